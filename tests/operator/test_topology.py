"""Status of ClusterNetworkTopology, and what is warned of."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from koordpy.api.custom import ClusterNetworkTopology
from koordpy.api.objects import Node
from koordpy.cluster.state import ClusterState
from koordpy.operator.topology import topology_status, topology_warning
from tests.clusters import topology, training_cluster

NOW = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


def one_layer(key: str) -> dict[str, Any]:
    return {**topology(), "spec": {"hierarchy": [{"layerName": "blockLayer", "labelKey": key}]}}


def two_chains() -> dict[str, Any]:
    layers = [{"layerName": name, "labelKey": f"example.com/{name}"} for name in "ab"]
    return {**topology(), "spec": {"hierarchy": layers}}


def state_of(*manifests: dict[str, Any], nodes: int = 8, unlabelled: int = 0) -> ClusterState:
    state = ClusterState()
    for manifest in manifests:
        state.upsert(msgspec.convert(manifest, ClusterNetworkTopology))
    for i, node in enumerate(training_cluster(nodes).nodes):
        if i < unlabelled:
            node["metadata"]["labels"] = {}
        state.upsert(msgspec.convert({k: v for k, v in node.items() if k in ("metadata", "spec", "status")}, Node))
    return state


def status_of(manifest: dict[str, Any], *, unlabelled: int = 0) -> dict[str, Any]:
    state = state_of(manifest, unlabelled=unlabelled)
    obj = msgspec.convert(manifest, ClusterNetworkTopology)
    return topology_status(obj, state.nodes.topology_faults, state.nodes.tree, now=NOW)


def conditions(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["message"]) for c in status.get("conditions", [])}


def test_a_good_hierarchy_is_valid_and_described() -> None:
    status = status_of(topology())
    assert status["detailStatus"][0]["topologyInfo"]["topologyLayer"] == "ClusterTopologyLayer"
    assert status["detailStatus"][0]["nodeNum"] == 8
    chain = "datacenterLayer > spineLayer > blockLayer > acceleratorLayer > nodeLayer"
    assert conditions(status)["Valid"] == ("True", chain)
    assert conditions(status)["UnlabelledNodes"][0] == "False"


def test_nodes_without_labels_are_counted_by_layer() -> None:
    verdict, text = conditions(status_of(topology(), unlabelled=3))["UnlabelledNodes"]
    assert verdict == "True"
    assert "blockLayer: 3 without network.topology.koordpy.io/block" in text


def test_a_label_that_no_node_has_at_all_is_told_as_such() -> None:
    text = conditions(status_of(topology(), unlabelled=8))["UnlabelledNodes"][1]
    assert "blockLayer: no node has network.topology.koordpy.io/block" in text


def test_a_bad_hierarchy_is_named_and_the_details_stay_as_they_were() -> None:
    manifest = topology()
    manifest["spec"]["hierarchy"][2]["parentTopologyLayer"] = "nowhere"
    status = status_of(manifest)
    assert "detailStatus" not in status
    verdict, text = conditions(status)["Valid"]
    assert verdict == "False"
    assert "spec.hierarchy[2].parentTopologyLayer" in text


def test_an_object_of_another_name_is_told_that_it_is_not_used() -> None:
    assert conditions(status_of(topology("other")))["Valid"] == ("Unknown", "only the object named default is used")


@pytest.mark.parametrize(
    ("before", "after", "unlabelled", "warning"),
    [
        pytest.param([], topology(), 0, "", id="all is well"),
        pytest.param([], topology(), 3, "", id="some nodes lack labels"),
        pytest.param([], topology("other"), 0, "only the object named default is used", id="an object of another name"),
        pytest.param(
            [],
            one_layer("example.com/blok"),
            0,
            "layer blockLayer: no node has the label example.com/blok",
            id="a label that no node has",
        ),
        pytest.param(
            [topology()],
            two_chains(),
            0,
            "spec.hierarchy[1]: a second chain starts at b, beside that of a; meanwhile what counts is"
            " datacenterLayer > spineLayer > blockLayer > acceleratorLayer > nodeLayer",
            id="it became invalid",
        ),
        pytest.param(
            [],
            two_chains(),
            0,
            "spec.hierarchy[1]: a second chain starts at b, beside that of a; meanwhile what counts is nodeLayer",
            id="it is invalid at the start",
        ),
    ],
)
def test_what_its_owner_should_know_is_a_warning(
    before: list[dict[str, Any]], after: dict[str, Any], unlabelled: int, warning: str
) -> None:
    state = state_of(*before, after, unlabelled=unlabelled)
    faults = state.nodes.topology_faults if after["metadata"]["name"] == "default" else []
    assert topology_warning(msgspec.convert(after, ClusterNetworkTopology), faults, state.nodes.tree) == warning


def test_what_is_there_already_is_not_written_again() -> None:
    manifest = topology()
    manifest["status"] = status_of(manifest)
    assert status_of(manifest) == {}
