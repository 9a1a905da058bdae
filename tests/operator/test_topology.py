# SPDX-License-Identifier: Apache-2.0
"""Status of ClusterNetworkTopology, and what is warned of."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from koordpy.api.custom_objects import ClusterNetworkTopology
from koordpy.api.objects import Node
from koordpy.cache.cluster_state import ClusterState
from koordpy.devices.family_registry import make_state
from koordpy.engine.scheduler import Scheduler
from koordpy.operator.topology_status import TopologyStatusWriter, topology_status, topology_warning
from tests.clusters import topology, training_cluster
from tests.engine.live import Live, in_virtual_time, live, small, until
from tests.engine.manifests import TOPOLOGIES

NOW = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


def one_layer(key: str) -> dict[str, Any]:
    return {**topology(), "spec": {"hierarchy": [{"layerName": "blockLayer", "labelKey": key}]}}


def two_chains() -> dict[str, Any]:
    layers = [{"layerName": name, "labelKey": f"example.com/{name}"} for name in "ab"]
    return {**topology(), "spec": {"hierarchy": layers}}


def state_of(*manifests: dict[str, Any], nodes: int = 8, unlabelled: int = 0) -> ClusterState:
    state = make_state()
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
    nodes = state.nodes
    return topology_status(obj, nodes.topology_faults, nodes.tree, nodes.gaps, now=NOW)


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


@pytest.mark.parametrize(
    ("manifest", "unlabelled", "valid", "degraded"),
    [
        (topology(), 0, "True", ("False", "all checked nodes have the labels of all layers")),
        (
            one_layer("network.topology.koordpy.io/blocks"),
            0,
            "Degraded",
            (
                "True",
                "blockLayer: no node has the label network.topology.koordpy.io/blocks, "
                "did you mean network.topology.koordpy.io/block?",
            ),
        ),
        (
            one_layer("network.topology.koordpy.io/block"),
            2,
            "Degraded",
            ("True", "blockLayer: 2 of 8 nodes lack the label network.topology.koordpy.io/block: node-0, node-1"),
        ),
        (two_chains(), 0, "False", None),
        (topology("other"), 8, "Unknown", None),
    ],
)
def test_gaps_are_a_condition_and_the_word_of_the_column(
    manifest: dict[str, Any], unlabelled: int, valid: str, degraded: tuple[str, str] | None
) -> None:
    status = status_of(manifest, unlabelled=unlabelled)
    assert status["valid"] == valid
    assert conditions(status).get("Degraded") == degraded


def test_an_object_of_another_name_is_told_that_it_is_not_used() -> None:
    assert conditions(status_of(topology("other")))["Valid"] == ("Unknown", "only the object named default is used")


@pytest.mark.parametrize(
    ("before", "after", "unlabelled", "warning"),
    [
        pytest.param([], topology(), 0, "", id="all is well"),
        pytest.param([], topology(), 3, "", id="some nodes lack labels"),
        pytest.param([], topology("other"), 0, "only the object named default is used", id="an object of another name"),
        pytest.param([], one_layer("example.com/blok"), 0, "", id="a label that no node has is a gap"),
        pytest.param(
            [topology()],
            two_chains(),
            0,
            "spec.hierarchy[1]: b and a both have no layer below; the layers must form one chain; "
            "the hierarchy in use is still datacenterLayer > spineLayer > blockLayer > acceleratorLayer > nodeLayer",
            id="it became invalid",
        ),
        pytest.param(
            [],
            two_chains(),
            0,
            "spec.hierarchy[1]: b and a both have no layer below; the layers must form one chain; "
            "the hierarchy in use is still nodeLayer",
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


# -- on a cluster -----------------------------------------------------------------------------------------------------


RACK = "example.com/rack"


@asynccontextmanager
async def written(cluster: Live, **changes: Any) -> AsyncIterator[Scheduler]:
    """A scheduler whose process writes the status of topologies."""
    async with cluster.running(**changes) as scheduler:
        task = asyncio.create_task(TopologyStatusWriter(scheduler.context, scheduler.leading).run())
        try:
            yield scheduler
        finally:
            task.cancel()


def racks(key: str = RACK) -> dict[str, Any]:
    return {**topology(), "spec": {"hierarchy": [{"layerName": "rackLayer", "labelKey": key}]}}


def label(cluster: Live, name: str, value: str | None) -> None:
    def change(obj: dict[str, Any]) -> dict[str, Any]:
        labels = {key: old for key, old in obj["metadata"]["labels"].items() if key != RACK}
        added = {RACK: value} if value is not None else {}
        return {**obj, "metadata": {**obj["metadata"], "labels": {**labels, **added}}}

    cluster.server.store.update("nodes", name, change)


def valid(cluster: Live) -> str:
    said = cluster.server.store.get(TOPOLOGIES, "default", "").get("status", {})
    return str(said.get("valid", ""))


def told(cluster: Live) -> list[tuple[str, str]]:
    """(reason, text) of events on the topology, sorted: their names are random."""
    found = (one for one in cluster.events() if one["involvedObject"]["kind"] == "ClusterNetworkTopology")
    return sorted((one["reason"], one["message"]) for one in found)


LACKS = ("TopologyDegraded", "rackLayer: 1 of 2 nodes lacks the label example.com/rack: b")
WHOLE = ("TopologyRepaired", "all checked nodes have the labels of all layers")


def gauge(scheduler: Scheduler) -> float:
    prefix = 'koordpy_topology_unlabelled_nodes{layer="rackLayer"} '
    (line,) = (one for one in scheduler.metrics.render().decode().splitlines() if one.startswith(prefix))
    return float(line.removeprefix(prefix))


@in_virtual_time
async def test_a_node_that_loses_its_label_is_told_of_by_status_event_and_metric_until_it_has_it_again() -> None:
    async with live([small("a", labels={RACK: "r0"}), small("b", labels={RACK: "r0"})]) as cluster:
        cluster.server.store.create(TOPOLOGIES, racks())
        async with written(cluster) as scheduler:
            await until(lambda: valid(cluster) == "True")
            assert gauge(scheduler) == 0 and told(cluster) == []
            label(cluster, "b", None)
            await until(lambda: valid(cluster) == "Degraded")
            await until(lambda: told(cluster) == [LACKS])
            assert gauge(scheduler) == 1
            label(cluster, "b", "r1")
            await until(lambda: valid(cluster) == "True")
            assert gauge(scheduler) == 0 and told(cluster) == [LACKS]
            await asyncio.sleep(301)
            await until(lambda: told(cluster) == [LACKS, WHOLE])


@in_virtual_time
async def test_labels_that_come_and_go_are_told_of_once() -> None:
    nodes = [small(f"n{i}", labels={RACK: "r0"}) for i in range(6)]
    async with live(nodes) as cluster:
        cluster.server.store.create(TOPOLOGIES, racks())
        async with written(cluster) as scheduler:
            await until(lambda: valid(cluster) == "True")
            for i in range(60):
                label(cluster, f"n{i % 6}", None)
                await until(lambda: gauge(scheduler) == 1)
                await asyncio.sleep(3)
                label(cluster, f"n{i % 6}", "r0")
                await asyncio.sleep(3)
            await until(lambda: valid(cluster) == "True")
            (only,) = told(cluster)
            assert only[0] == "TopologyDegraded"


@in_virtual_time
async def test_the_next_leader_does_not_tell_again_and_tells_of_the_end() -> None:
    async with live([small("a", labels={RACK: "r0"}), small("b")]) as cluster:
        cluster.server.store.create(TOPOLOGIES, racks())
        async with written(cluster):
            await until(lambda: valid(cluster) == "Degraded" and told(cluster) == [LACKS])
        async with written(cluster):
            await asyncio.sleep(30)
            assert told(cluster) == [LACKS]
        label(cluster, "b", "r0")
        async with written(cluster):
            await until(lambda: valid(cluster) == "True")
            await asyncio.sleep(301)
            await until(lambda: told(cluster) == [LACKS, WHOLE])


@in_virtual_time
async def test_a_device_plugin_that_starts_makes_a_node_count() -> None:
    async with live([small("a", labels={RACK: "r0"}), small("b", gpus=0)]) as cluster:
        cluster.server.store.create(TOPOLOGIES, racks())
        async with written(cluster):
            await until(lambda: valid(cluster) == "True")

            def start(obj: dict[str, Any]) -> dict[str, Any]:
                return {**obj, "status": {**obj["status"], "allocatable": small("b")["status"]["allocatable"]}}

            cluster.server.store.update("nodes", "b", start, status=True)
            await until(lambda: valid(cluster) == "Degraded")


@in_virtual_time
async def test_a_definition_that_prunes_the_field_is_not_written_to_for_ever() -> None:
    async with live([small("a", labels={RACK: "r0"})]) as cluster:
        store = cluster.server.store
        store.create(TOPOLOGIES, racks())
        async with cluster.running() as scheduler:
            writer = TopologyStatusWriter(scheduler.context, scheduler.leading)
            task = asyncio.create_task(writer.run())
            try:
                for _ in range(200):
                    await asyncio.sleep(1)

                    def prune(obj: dict[str, Any]) -> dict[str, Any]:
                        status = {key: value for key, value in obj.get("status", {}).items() if key != "valid"}
                        return {**obj, "status": status}

                    if valid(cluster):
                        store.update(TOPOLOGIES, "default", prune, status=True)
                assert 1 <= writer.sent <= 3
            finally:
                task.cancel()
