# SPDX-License-Identifier: Apache-2.0
"""The live scheduler learns from rejections: it avoids the node, says so, and comes back (numa.md 8 and 9)."""

import asyncio
import json
from typing import Any

import msgspec

from koordpy.api.custom_objects import NodeResourceTopology, TopologyZone, ZoneResource
from koordpy.api.objects import Node, ObjectMeta, Pod
from koordpy.api.times import rfc3339
from koordpy.devices.family_registry import make_state
from koordpy.engine.scheduler import Scheduler
from koordpy.rejections.rejection_reading import TOPOLOGY, UNEXPECTED
from tests.engine.live import Live, gang, in_virtual_time, live, pod, small, until
from tests.engine.test_degraded_gangs import figures


def reject(cluster: Live, scheduler: Scheduler, name: str, reason: str = TOPOLOGY) -> None:
    """What a kubelet does with a pod that it does not admit."""

    def change(obj: dict[str, Any]) -> dict[str, Any]:
        status = {"phase": "Failed", "reason": reason, "startTime": rfc3339(scheduler.context.now())}
        return {**obj, "status": status}

    cluster.server.store.update("pods", name, change, namespace="default", status=True)


def notes(cluster: Live, reason: str) -> list[tuple[str, str]]:
    """(kind/name, text without the time) of events."""
    found = [one for one in cluster.events() if one["reason"] == reason]
    about = ((f"{one['involvedObject']['kind']}/{one['involvedObject']['name']}", one["message"]) for one in found)
    return sorted((name, text.partition(" before ")[0]) for name, text in about)


@in_virtual_time
async def test_a_node_that_rejects_a_shape_is_avoided_until_the_time_is_over() -> None:
    async with live([small("n1"), small("n2")]) as cluster, cluster.running() as scheduler:
        cluster.pod("a", gpus=4)
        await until(lambda: cluster.bound("a"))
        assert cluster.places() == {"a": "n1"}
        reject(cluster, scheduler, "a")
        cluster.pod("b", gpus=4)
        await until(lambda: cluster.bound("b"))
        assert cluster.places()["b"] == "n2"
        text = "pods of shape cpu 1, memory 1Gi, nvidia.com/gpu 4 are rejected (TopologyAffinityError): none"
        await until(lambda: notes(cluster, "NodeBackedOff") == [("Node/n1", text)])
        assert figures(scheduler, "koordpy_rejections_total") == {'{reason="TopologyAffinityError"}': 1.0}
        assert figures(scheduler, "koordpy_nodes_backed_off") == {'{scope="node"}': 0.0, '{scope="shape"}': 1.0}
        assert not figures(scheduler, "koordpy_conflicts_total").get('{kind="kubelet_TopologyAffinityError"}')
        cluster.pod("c", gpus=4)
        cluster.pod("d", gpus=3)
        await until(lambda: cluster.bound("d"))
        assert cluster.places()["d"] == "n1"
        cluster.delete("d")
        await asyncio.sleep(60)
        assert not cluster.bound("c")
        assert "1 node(s) rejected pods of this shape lately" in cluster.condition("c")["message"]
        await asyncio.sleep(65)
        await until(lambda: cluster.bound("c"))
        assert cluster.places()["c"] == "n1"
        given = "open again to pods of shape cpu 1, memory 1Gi, nvidia.com/gpu 4: time is over"
        await until(lambda: notes(cluster, "NodeGivenBack") == [("Node/n1", given)])
        # a leader that starts now learns the same from the Failed pod, and forgets it
        async with cluster.running() as second:
            await until(lambda: second.state.rejections is not None)


@in_virtual_time
async def test_an_alignment_that_was_predicted_wrongly_is_counted_on_nodes_with_numa_data() -> None:
    async with live([small("n1"), small("n2")]) as cluster, cluster.running() as scheduler:
        one = ZoneResource(name="nvidia.com/gpu", allocatable="4")
        scheduler.state.upsert(
            NodeResourceTopology(
                metadata=ObjectMeta(name="n1"),
                topology_policies=["SingleNUMANodePodLevel"],
                zones=[TopologyZone(name=f"node-{i}", type="Node", resources=[one]) for i in range(2)],
            )
        )
        for name, counted in (("a", 1.0), ("b", 1.0)):
            cluster.pod(name, gpus=4)
            await until(lambda name=name: cluster.bound(name))
            reject(cluster, scheduler, name)
            await until(lambda: sum(figures(scheduler, "koordpy_rejections_total").values()) == len(cluster.places()))
            assert figures(scheduler, "koordpy_numa_mispredicted_total") == {"": counted}
        assert cluster.places() == {"a": "n1", "b": "n2"}  # n2 has no zones


@in_virtual_time
async def test_a_node_with_numa_data_gets_one_binding_at_a_time_in_the_order_of_the_plan() -> None:
    """Its kubelet gives a pod what the pods before it left. Earlier Bindings take longer, so others could overtake."""
    async with live([small("n1"), small("n2")]) as cluster, cluster.running() as scheduler:
        one = ZoneResource(name="cpu", allocatable="8")
        zones = [TopologyZone(name=f"node-{i}", type="Node", resources=[one]) for i in range(2)]
        report = NodeResourceTopology(
            metadata=ObjectMeta(name="n1"), topology_policies=["SingleNUMANodePodLevel"], zones=zones
        )
        scheduler.state.upsert(report)
        in_flight: dict[str, set[str]] = {"n1": set(), "n2": set()}
        most, begun, real = {"n1": 0, "n2": 0}, [], scheduler.binder.bind

        async def slow(binding: Any, **options: Any) -> Any:
            here = in_flight[binding.node]
            here.add(binding.name)
            begun.append(binding.name)
            most[binding.node] = max(most[binding.node], len(here))
            await asyncio.sleep(1.0 / len(begun))
            outcome = await real(binding, **options)
            here.remove(binding.name)
            return outcome

        scheduler.binder.bind = slow  # type: ignore[method-assign]
        for name, node in (("g", "n1"), ("h", "n2")):
            group, *pods = gang(name, 4, gpus=1)
            for member in pods:
                member["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
            begun.clear()
            cluster.create(group, *pods)
            await until(lambda name=name: cluster.bound(*(f"{name}-{i}" for i in range(4))))
            assert begun == [f"{name}-{i}" for i in range(4)]
        assert most["n1"] == 1
        assert most["n2"] > 1


@in_virtual_time
async def test_pods_that_tenants_wrote_close_nothing() -> None:
    """A pod with the node and status of a rejection, but without the Binding of koordpy."""
    async with live([small("n1"), small("n2")]) as cluster, cluster.running() as scheduler:
        forged = pod("forged", gpus=4, cpu="1", memory="1Gi")
        forged["spec"]["nodeName"] = "n1"
        cluster.create(forged)
        await until(lambda: cluster.is_known_to(scheduler, "pods"))
        reject(cluster, scheduler, "forged", UNEXPECTED)
        await until(lambda: scheduler.state.rejections is not None)
        cluster.pod("b", gpus=4)
        await until(lambda: cluster.bound("b"))
        assert cluster.places()["b"] == "n1"
        assert figures(scheduler, "koordpy_conflicts_total") == {
            **figures(scheduler, "koordpy_conflicts_total"),
            '{kind="kubelet_UnexpectedAdmissionError"}': 1.0,
        }


@in_virtual_time
async def test_a_dead_device_plugin_costs_three_pods_of_a_shape_at_most_and_closes_the_node_to_its_devices() -> None:
    async with live([small("n1"), small("n2", gpus=0)]) as cluster, cluster.running() as scheduler:
        for size in (1, 2, 3):
            cluster.pod(f"p{size}", gpus=size)
            await until(lambda size=size: cluster.bound(f"p{size}"))
            reject(cluster, scheduler, f"p{size}", UNEXPECTED)
            cluster.pod(f"again{size}", gpus=size)
        cluster.pod("four", gpus=4)
        cluster.pod("cpu")
        await until(lambda: cluster.bound("cpu"))
        await asyncio.sleep(20)
        assert not {"again1", "again2", "again3", "four"} & cluster.places().keys()
        assert "1 node(s) rejected pods lately" in cluster.condition("four")["message"]
        assert figures(scheduler, "koordpy_nodes_backed_off")['{scope="node"}'] == 1.0
        closed = ("Node/n1", "3 shapes are rejected (UnexpectedAdmissionError): no pods with nvidia.com/gpu")
        assert closed in notes(cluster, "NodeBackedOff")


@in_virtual_time
async def test_a_burst_that_a_node_rejects_opens_nothing_by_its_end() -> None:
    async with live([small("n1"), small("n2")]) as cluster, cluster.running() as scheduler:
        for i in range(4):
            cluster.pod(f"p{i}", gpus=1)
        await until(lambda: cluster.bound("p0", "p1", "p2", "p3"))
        places = cluster.places()
        assert set(places.values()) == {"n1"}
        for i in range(4):
            reject(cluster, scheduler, f"p{i}")
            await asyncio.sleep(1.5)
        cluster.pod("q", gpus=1)
        await until(lambda: cluster.bound("q"))
        assert cluster.places()["q"] == "n2"
        # a pod that ends frees more than the burst: the node is tried again
        assert notes(cluster, "NodeGivenBack") == []


@in_virtual_time
async def test_a_pod_that_was_planned_before_a_rejection_avoids_the_node_too() -> None:
    async with live([small("n1"), small("n2")]) as cluster, cluster.running() as scheduler:
        one = ZoneResource(name="cpu", allocatable="8")
        zones = [TopologyZone(name=f"node-{i}", type="Node", resources=[one]) for i in range(2)]
        policy = ["SingleNUMANodePodLevel"]
        # so that Bindings to n1 are sent one at a time
        scheduler.state.upsert(
            NodeResourceTopology(metadata=ObjectMeta(name="n1"), topology_policies=policy, zones=zones)
        )
        real, rejected = scheduler.binder.bind, asyncio.Event()

        async def slow(binding: Any, **options: Any) -> Any:
            await asyncio.sleep(1.0)
            outcome = await real(binding, **options)
            if binding.name == "a":
                reject(cluster, scheduler, "a")
                await until(lambda: scheduler.state.rejections is not None)
                rejected.set()
            return outcome

        scheduler.binder.bind = slow  # type: ignore[method-assign]
        for name, cpu in (("a", "1"), ("b", "1"), ("c", "2")):
            cluster.pod(name, gpus=1, cpu=cpu)
        await until(lambda: cluster.bound("a", "b", "c"))
        assert rejected.is_set()
        assert cluster.places() == {"a": "n1", "b": "n2", "c": "n1"}
        assert figures(scheduler, "koordpy_rejections_total") == {'{reason="TopologyAffinityError"}': 1.0}


@in_virtual_time
async def test_a_rejection_withdraws_the_rest_of_a_gang_and_its_members_avoid_the_node() -> None:
    async with live([small("n1"), small("n2"), small("n3")]) as cluster, cluster.running() as scheduler:
        cluster.create(*gang("g", 2, gpus=4))
        await until(lambda: cluster.bound("g-0", "g-1"))
        lost = cluster.places()["g-1"]
        reject(cluster, scheduler, "g-1")
        await asyncio.sleep(2)
        cluster.delete("g-1")
        cluster.create(gang("g", 2, gpus=4)[2])
        await until(lambda: cluster.bound("g-1"))
        assert cluster.places()["g-1"] not in (lost, cluster.places()["g-0"])


@in_virtual_time
async def test_the_snapshot_holds_rejected_pods_while_they_are_remembered() -> None:
    async with live([small("n1", gpus=8), small("n2", gpus=8)]) as cluster, cluster.running() as scheduler:

        def offline() -> list[tuple[str, str, int]]:
            """(node, shape, strikes) of the closures that a planner learns from the snapshot."""
            state = make_state()
            for item in json.loads(scheduler.inspection.snapshot()())["items"]:
                if item["kind"] in ("Node", "Pod"):
                    state.upsert(msgspec.convert(item, {"Node": Node, "Pod": Pod}[item["kind"]]))
            closed = state.closed_nodes(scheduler.context.now())
            return sorted(
                (name, one.text, one.rejections) for name, own in closed.shapes.items() for one in own.values()
            )

        cluster.pod("a", gpus=4)
        cluster.create(*gang("g", 2, gpus=3))
        await until(lambda: cluster.bound("a", "g-0", "g-1"))
        plain = (cluster.places()["a"], "cpu 1, memory 1Gi, nvidia.com/gpu 4", 1)
        member = (cluster.places()["g-0"], "memory 1Mi, nvidia.com/gpu 3", 1)
        reject(cluster, scheduler, "a")
        reject(cluster, scheduler, "g-0")
        await until(lambda: scheduler.state.rejections is not None and len(offline()) == 2)
        assert offline() == sorted([plain, member])
        # a deleted pod stays as long as koordpy remembers it, and a new pod of its name takes its place
        cluster.delete("a")
        cluster.delete("g-0")
        await until(lambda: offline() == [plain])
        cluster.pod("a", gpus=2)
        await until(lambda: cluster.bound("a"))
        await until(lambda: offline() == [])
