"""Status of ClusterNetworkTopology: pure, then written through the operator."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from koordpy.api.custom import ClusterNetworkTopology
from koordpy.cluster.state import ClusterState
from koordpy.operator.topology import topology_status
from koordpy.sim.clusters import topology, training_cluster

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def status_of(manifest: dict[str, Any], *, nodes: int = 8, unlabelled: int = 0) -> dict[str, Any]:
    from koordpy.api.objects import Node

    state = ClusterState()
    obj = msgspec.convert(manifest, ClusterNetworkTopology)
    state.upsert(obj)
    for i, node in enumerate(training_cluster(nodes).nodes):
        if i < unlabelled:
            node["metadata"]["labels"] = {}
        state.upsert(msgspec.convert({k: v for k, v in node.items() if k in ("metadata", "spec", "status")}, Node))
    return topology_status(obj, state.topology_faults, state.tree, now=NOW)


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


def test_what_is_there_already_is_not_written_again() -> None:
    manifest = topology()
    manifest["status"] = status_of(manifest)
    assert status_of(manifest) == {}
