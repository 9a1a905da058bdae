# SPDX-License-Identifier: Apache-2.0
"""Nodes that are deleted and made anew under their name, or get less capacity, between a plan and its Bindings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api.objects import Node
from koordpy.apiserver.resource_shelf import Change
from koordpy.cache.cluster_state import ClusterState
from koordpy.engine.binding.binder import Binding, BindOutcome
from koordpy.engine.binding.unit_commit import Obstacles, PendingBinding, SendPermission, UnitCommit
from koordpy.engine.client.token_bucket import TokenBucket
from koordpy.engine.queue_entry import queued_pod
from koordpy.engine.staleness import find_stale_reason
from koordpy.plan.round_plan import Placement
from tests.engine.live import Live, gang, in_virtual_time, live, pod, small, until
from tests.engine.manifests import CLAIMS_OF_DEVICES, DEVICES, GPU, minors
from tests.engine.parts import a_context
from tests.engine.stage import device
from tests.engine.test_degraded_gangs import figures
from tests.engine.test_reservations import claim, offer, users
from tests.engine.virtual import Wire
from tests.numa.test_overtaken_zones import NIC, made, nics, zones
from tests.numa.test_zone_placements import node as zoned_node
from tests.scenarios import cluster as scenes
from tests.scenarios.cluster import World
from tests.scenarios.gpus import gpu_node, gpu_pod, measured
from tests.scenarios.npus import npu_node, npu_pod

Happening = Callable[[ClusterState], None]


def changed(amounts: dict[str, str] | None = None, *, uid: str = "", labels: dict[str, str] | None = None) -> Happening:
    """Another object of the node n1. amounts: resource -> allocatable; uid: of a node made anew."""

    def change(state: ClusterState) -> None:
        info = state.nodes.get("n1")
        assert info is not None
        meta, status = info.node.metadata, info.node.status
        given = {**status.allocatable, **(amounts or {})}
        if uid:
            state.delete(Node, "n1")
        meta = replace(meta, uid=uid or meta.uid, labels={**meta.labels, **(labels or {})})
        state.upsert(replace(info.node, metadata=meta, status=replace(status, allocatable=given)))

    return change


def deleted(state: ClusterState) -> None:
    state.delete(Node, "n1")


def untouched(state: ClusterState) -> None:
    pass


def obstacles(world: World, placements: tuple[Placement, ...], change: Happening, sent: int) -> list[str]:
    """What keeps each of these Bindings back after a change. sent: number of the unit's Bindings before."""
    state, feeds = world.state, a_context(state=world.state, pods=a_context(foreign_marks={}), queue=None)
    commit = UnitCommit("unit", gang=True, began=0.0, deadline=1e9, sent=sent)
    jobs = []
    for one in placements:
        info, node = state.pod(one.pod_key), state.nodes.get(one.node)
        assert info is not None
        state.assume(one.pod_key, one.node, one.claims, one.devices, one.annotations)
        jobs.append(PendingBinding(commit, info, one, queued_pod(info, 0.0), 0, node))
    change(state)
    context = a_context(feeds=feeds)
    found = Obstacles(context, may_send=SendPermission(context.may_write))
    return [found.of(job) for job in jobs]


@pytest.mark.parametrize(
    ("change", "first", "later"),
    [
        pytest.param(untouched, "", "", id="nothing"),
        pytest.param(changed(), "", "", id="a-heartbeat"),
        pytest.param(changed({GPU: "4"}), "", "", id="less-and-still-enough"),
        pytest.param(changed({GPU: "3"}), "room", "room", id="too-few-gpus"),
        pytest.param(changed({"cpu": "1"}), "", "", id="less-of-what-these-pods-do-not-request"),
        pytest.param(changed({"pods": "2"}), "room", "room", id="fewer-pods"),
        pytest.param(changed(labels={"zone": "b"}), "node", "", id="relabelled"),
        pytest.param(changed(uid="new"), "node", "node", id="made-anew"),
        pytest.param(changed({GPU: "2"}, uid="new"), "node", "node", id="made-anew-with-less"),
        pytest.param(changed({GPU: "16"}, uid="new"), "node", "node", id="made-anew-with-more"),
        pytest.param(deleted, "node", "node", id="deleted"),
    ],
)
def test_a_binding_is_held_back_if_its_node_is_another_one_or_too_small_now(
    change: Happening, first: str, later: str
) -> None:
    """Two pods of 2 GPUs next to a pod with all the cores. first: before the first Binding of the unit; later: after
    it."""
    for sent, why in ((0, first), (1, later)):
        world = World().add(gpu_node("n1"), scenes.pod("other", cpu="64", at="n1"))
        world.add(gpu_pod("p", 2), gpu_pod("q", 2))
        placements = world.plan().placements
        assert [one.node for one in placements] == ["n1", "n1"]
        assert obstacles(world, placements, change, sent) == [why, why]


FAMILIES: dict[str, Callable[[], list[Any]]] = {
    "number of GPUs": lambda: [gpu_node("n1"), gpu_pod("p", 2)],
    "GPUs of a Device": lambda: [*measured("n1"), gpu_pod("p", 2)],
    "NPUs": lambda: [npu_node("n1"), npu_pod("p", 2)],
    "zones of a report": lambda: [
        made(zoned_node("n1", **{NIC.replace("/", "_"): "8"})),
        made(zones("single-numa-node", 4, 4)),
        made(nics("p", 3)),
    ],
}


@pytest.mark.parametrize("objects", FAMILIES.values(), ids=FAMILIES)
def test_what_is_known_of_the_devices_of_the_old_node_does_not_stand_for_the_new_one(
    objects: Callable[[], list[Any]],
) -> None:
    """The Device, the report and the amounts stay the same."""
    for sent in (0, 1):
        world = World().add(*objects())
        assert obstacles(world, world.plan().placements, untouched, sent) == [""]
        world = World().add(*objects())
        snapshot, plan = world.snapshot(), world.plan()
        changed(uid="new")(world.state)
        assert find_stale_reason(world.state, snapshot, plan.placements, {}) == "node"
        world = World().add(*objects())
        assert obstacles(world, world.plan().placements, changed(uid="new"), sent) == ["node"]


def make_anew(cluster: Live, name: str, gpus: int) -> None:
    cluster.server.store.remove("nodes", name)
    cluster.nodes(small(name, gpus=gpus))


def shrink(cluster: Live, name: str, gpus: int) -> None:
    def smaller(obj: dict[str, Any]) -> dict[str, Any]:
        return {**obj, "status": {**obj["status"], "allocatable": {**obj["status"]["allocatable"], GPU: str(gpus)}}}

    cluster.server.store.update("nodes", name, smaller, status=True)


@pytest.mark.parametrize(("happens", "why"), [(make_anew, "node"), (shrink, "room")])
@pytest.mark.parametrize("with_devices", [False, True], ids=["numbers", "devices"])
def test_a_member_is_not_sent_after_the_first_to_a_node_that_has_too_few_gpus_now(
    happens: Callable[[Live, str, int], None], why: str, with_devices: bool
) -> None:
    @in_virtual_time
    async def scene() -> None:
        async with live([small("n1")]) as cluster, cluster.running(max_binds_in_flight=1) as scheduler:
            if with_devices:
                cluster.server.store.create(DEVICES, device("n1"))
                await until(lambda: cluster.is_known_to(scheduler, DEVICES))
            sent, bind = [], scheduler.binder.bind

            async def slow(binding: Binding, **options: Any) -> BindOutcome:
                sent.append((binding.name, binding.node))
                outcome = await bind(binding, **options)
                if len(sent) == 1:
                    happens(cluster, "n1", 2)
                    await until(lambda: cluster.is_known_to(scheduler, "nodes"))
                return outcome

            scheduler.binder.bind = slow  # type: ignore[method-assign]
            cluster.create(*gang("g", 2, gpus=2))
            await until(lambda: cluster.condition("g-1").get("status") == "False")
            assert sent == [("g-0", "n1")]
            cluster.nodes(small("n2"))
            await until(lambda: cluster.bound("g-1"))
            assert sent == [("g-0", "n1"), ("g-1", "n2")]
            assert len(minors(cluster.pods()["g-0"])) == (2 if with_devices else 0)
            assert figures(scheduler, "koordpy_conflicts_total")[f'{{kind="{why}"}}'] == 1.0

    scene()


@in_virtual_time
async def test_the_claims_of_a_member_that_is_held_back_are_free_again() -> None:
    async with live([small("n1")]) as cluster, cluster.running(max_binds_in_flight=1) as scheduler:
        offer(cluster, "n1", "a", "b")
        group, *pods = gang("g", 2, gpus=0)
        for i, member in enumerate(pods):
            claim(cluster, f"d{i}")
            member["spec"]["resourceClaims"] = [{"name": "d", "resourceClaimName": f"d{i}"}]
        seen: list[tuple[str, set[str]]] = []
        bind = scheduler.binder.bind

        async def slow(binding: Binding, **options: Any) -> BindOutcome:
            seen.append((binding.name, users(cluster, "d1")))
            outcome = await bind(binding, **options)
            if binding.name == "g-0":
                make_anew(cluster, "n1", 4)
                await until(lambda: cluster.is_known_to(scheduler, "nodes"))
            return outcome

        def written(shelf: str, change: Change) -> None:
            if shelf == CLAIMS_OF_DEVICES and change.entry.obj["metadata"]["name"] == "d1" and seen:
                seen.append(("", users(cluster, "d1")))

        scheduler.binder.bind = slow  # type: ignore[method-assign]
        cluster.server.store.listeners.append(written)
        cluster.create(group, *pods)
        await until(lambda: cluster.bound("g-0", "g-1"))
        steps = [one for i, one in enumerate(seen) if i == 0 or one != seen[i - 1]]
        assert steps == [("g-0", {"g-1"}), ("", set()), ("", {"g-1"}), ("g-1", {"g-1"})]


@pytest.mark.parametrize("is_gang", [False, True], ids=["pods", "gang"])
def test_a_binding_that_the_rate_limit_holds_back_is_checked_again(is_gang: bool) -> None:
    """The first Binding takes the last token. Meanwhile n1 is made anew."""

    @in_virtual_time
    async def scene() -> None:
        async with live([small("n1")]) as cluster:
            client = Wire(cluster.server)
            async with cluster.running(client=client) as scheduler:
                clock = asyncio.get_running_loop().time
                sent, bind = [], scheduler.binder.bind

                async def counting(binding: Binding, **options: Any) -> BindOutcome:
                    sent.append((binding.name, cluster.server.store.get("nodes", "n1")["metadata"]["uid"]))
                    return await bind(binding, **options)

                scheduler.binder.bind = counting  # type: ignore[method-assign]
                made = (
                    gang("g", 2, gpus=1)
                    if is_gang
                    else [pod(f"g-{i}", gpus=1, cpu="0", memory="1Mi") for i in range(2)]
                )
                client.bucket = TokenBucket(1.0, 1, clock=clock)
                old = cluster.server.store.get("nodes", "n1")["metadata"]["uid"]
                cluster.create(*made)
                await until(lambda: len(sent) == 1)
                make_anew(cluster, "n1", 2)
                client.bucket.qps = 0.0
                new = cluster.server.store.get("nodes", "n1")["metadata"]["uid"]
                await until(lambda: len(sent) == 2)
                assert [uid for _, uid in sent] == [old, new]
                assert figures(scheduler, "koordpy_conflicts_total")['{kind="node"}'] == 1.0

    scene()
