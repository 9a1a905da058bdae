# SPDX-License-Identifier: Apache-2.0
"""Members on lost nodes, and seats of broken gangs, against the embedded API server: what changes with time alone, or
with a node, is acted on without any other event (repair.md 4.1, 4.4, 7)."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from koordpy.api import keys
from koordpy.api.times import rfc3339
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.config.node_failures import Repair
from koordpy.engine.evictions.eviction_calls import Dropped
from koordpy.engine.evictions.evictor import EvictionPlan
from koordpy.engine.scheduler import Scheduler
from koordpy.plan.round_plan import Eviction
from koordpy.preemption.selection.preemption_names import RuleName
from tests.clusters import pod
from tests.engine.live import QUICK, Live, gang, in_virtual_time, live, small, until
from tests.engine.manifests import BLOCK, DEVICES, TOPOLOGIES
from tests.engine.stage import blocks, device
from tests.engine.test_degraded_gangs import figures, told
from tests.engine.virtual import EPOCH_SECONDS

UNREACHABLE = "node.kubernetes.io/unreachable"
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "condition": ("status", {"conditions": [{"type": "Broken", "status": "True"}]}),
    "taint": ("spec", {"taints": [{"key": UNREACHABLE, "effect": "NoExecute"}]}),
}
"""Mark that makes a node lost -> (part of the Node, its fields)."""


def scheduled(cluster: Live) -> int | None:
    found: int | None = cluster.group("g").get("scheduled")
    return found


def degraded(cluster: Live) -> dict[str, Any]:
    """Condition Degraded of the PodGroup; empty without one."""
    conditions = cluster.group("g").get("conditions", [])
    return next((one for one in conditions if one["type"] == "Degraded"), {})


async def bound_gang(cluster: Live) -> None:
    """Creates a gang of two that takes both nodes."""
    cluster.create(*gang("g", 2, gpus=4))
    await until(lambda: cluster.bound("g-0", "g-1"))
    await until(lambda: scheduled(cluster) == 2)


@in_virtual_time
async def test_a_gang_counts_a_member_again_when_its_node_is_back() -> None:
    async with live([small("n1", gpus=4), small("n2", gpus=4)]) as cluster, cluster.running():
        await bound_gang(cluster)
        gone = cluster.places()["g-1"]
        cluster.server.store.delete("nodes", gone)
        await until(lambda: scheduled(cluster) == 1)
        cluster.nodes(small(gone, gpus=4))
        await until(lambda: scheduled(cluster) == 2)


@in_virtual_time
async def test_a_gang_counts_no_member_on_a_node_whose_grace_has_ended() -> None:
    async with live([small("n1", gpus=4), small("n2", gpus=4)]) as cluster, cluster.running():
        await bound_gang(cluster)
        began = asyncio.get_running_loop().time()

        def tainted(old: dict[str, Any]) -> dict[str, Any]:
            taint = {"key": UNREACHABLE, "effect": "NoExecute", "timeAdded": rfc3339(EPOCH_SECONDS + began)}
            return {**old, "spec": {**old["spec"], "taints": [taint]}}

        cluster.server.store.update("nodes", cluster.places()["g-1"], tainted)
        await until(lambda: scheduled(cluster) == 1)
        assert asyncio.get_running_loop().time() - began >= 29.0


@in_virtual_time
async def test_a_broken_gang_without_pending_members_is_told_of_until_its_node_is_back() -> None:
    async with live([small("n1", gpus=4), small("n2", gpus=4)]) as cluster, cluster.running():
        await bound_gang(cluster)
        gone = cluster.places()["g-1"]
        taint = {"key": UNREACHABLE, "effect": "NoExecute"}  # without timeAdded it is long ago
        cluster.server.store.update("nodes", gone, lambda old: {**old, "spec": {**old["spec"], "taints": [taint]}})
        await until(lambda: degraded(cluster).get("status") == "True")
        text = f"1 of 2 members, missing ranks 1; lost on node {gone} (taint {UNREACHABLE})"
        assert (degraded(cluster)["reason"], degraded(cluster)["message"]) == ("MembersMissing", text)
        await until(lambda: told(cluster, "GangDegraded") == [("PodGroup", "g", "", f"gang default/g has {text}")])
        cluster.server.store.update("nodes", gone, lambda old: {**old, "spec": {**old["spec"], "taints": []}})
        await until(lambda: degraded(cluster).get("status") == "False")
        assert degraded(cluster)["reason"] == "Repaired"
        await until(lambda: [one[:2] for one in told(cluster, "GangRepaired")] == [("PodGroup", "g")])


@in_virtual_time
async def test_a_job_that_is_deleted_is_not_degraded() -> None:
    async with live([small("n1", gpus=4), small("n2", gpus=4)]) as cluster, cluster.running():
        await bound_gang(cluster)

        for name in ("g-0", "g-1"):
            cluster.server.store.delete("pods", name, namespace="default", options={"gracePeriodSeconds": 60})
        await asyncio.sleep(3.0)
        cluster.delete("g-1")
        await until(lambda: scheduled(cluster) == 1)
        await asyncio.sleep(3.0)
        assert degraded(cluster) == {} and told(cluster, "GangDegraded") == []


@in_virtual_time
async def test_seats_of_a_gang_without_a_pod_group_end() -> None:
    async with live([small("n", cpu=2)]) as cluster:
        cluster.planner.config = KoordpyConfiguration(repair=Repair(seat_hold=20.0))
        async with cluster.running():
            labels = {
                "pod-group.scheduling.sigs.k8s.io/name": "named",
                "pod-group.scheduling.sigs.k8s.io/min-available": "2",
            }
            for name in ("a", "b"):
                cluster.pod(name, labels=labels)
            await until(lambda: cluster.bound("a", "b"))
            cluster.delete("b")
            await until(lambda: bool(told(cluster, "GangDegraded")))
            cluster.pod("other")
            await until(lambda: "is held for gang default/named" in cluster.condition("other").get("message", ""))
            await asyncio.sleep(10.0)
            assert not cluster.bound("other")
            await until(lambda: cluster.bound("other"), seconds=15.0)


@pytest.mark.parametrize("how", ["the time of the seats is over", "the gang is gone"])
def test_a_pod_that_seats_keep_from_starting_starts_when_they_end(how: str) -> None:
    @in_virtual_time
    async def play() -> None:
        async with live([small("n1", gpus=4), small("n2", gpus=4)]) as cluster:
            cluster.planner.config = KoordpyConfiguration(repair=Repair(seat_hold=20.0))
            async with cluster.running():
                await bound_gang(cluster)
                cluster.delete("g-1")
                await until(lambda: scheduled(cluster) == 1)
                cluster.pod("other", gpus=4)
                await until(lambda: "is held for gang default/g" in cluster.condition("other").get("message", ""))
                await asyncio.sleep(10.0)
                assert not cluster.bound("other")
                if how == "the gang is gone":
                    cluster.server.store.delete("podgroups.scheduling.sigs.k8s.io", "g", namespace="default")
                await until(lambda: cluster.bound("other"), seconds=15.0)

    play()


async def shows(scheduler: Scheduler, metric: str, values: dict[str, float]) -> None:
    """Waits until a metric has these values."""
    async with asyncio.timeout(60.0):
        while figures(scheduler, metric) != values:  # noqa: ASYNC110 - metrics are computed when they are read
            await asyncio.sleep(1.0)


OUTCOMES = {
    "a free node": ("replaced", "replace", True, None),
    "a pod of lower priority": ("evicted", "replace", True, ""),
    "the node returns": (None, "wait", False, None),
    "no node in time": ("gaveup", "replace", True, "high"),
}
"""How a member comes back -> (outcome, policy, its pod is created again, priority class of a pod on the only other
node)."""


@pytest.mark.parametrize("how", OUTCOMES)
def test_repairs_are_counted_by_the_step_that_ended_them(how: str) -> None:
    outcome, policy, again, other = OUTCOMES[how]

    @in_virtual_time
    async def play() -> None:
        async with live([small("n1", gpus=4), small("n2", gpus=4)]) as cluster, cluster.running() as scheduler:
            for name, value in (("middle", 50), ("high", 100)):
                priority = {"metadata": {"name": name}, "value": value}
                cluster.server.store.create("priorityclasses.scheduling.k8s.io", priority)
            group, *members = gang("g", 2, gpus=4)
            grace = {keys.GANG_STALE_GRACE: "60s"} if how == "no node in time" else {}
            group["metadata"]["annotations"] = {keys.GANG_REPAIR: policy, **grace}
            for one in members:
                one["spec"] |= {"priorityClassName": "middle", "terminationGracePeriodSeconds": 0}
            cluster.create(group, *members)
            await until(lambda: cluster.bound("g-0", "g-1"))
            await until(lambda: scheduled(cluster) == 2)
            cluster.nodes(small("n3", gpus=4))
            if other is not None:
                taker = pod("other", gpus=4, cpu="1", memory="1Gi")
                taker["spec"] |= {"priorityClassName": other, "terminationGracePeriodSeconds": 0}
                cluster.create(taker)
                await until(lambda: cluster.bound("other"))
            gone = cluster.places()["g-1"]
            cluster.server.store.delete("nodes", gone)
            await until(lambda: degraded(cluster).get("status") == "True")
            assert list(figures(scheduler, "koordpy_gang_degraded_seconds")) == ['{gang="default/g"}']
            if again:
                cluster.delete("g-1")
                if other is None:
                    await shows(scheduler, "koordpy_seats", {"": 1.0})
                    await until(lambda: "; seats kept on n3 until " in degraded(cluster)["message"])
                cluster.create(members[1])
            else:
                cluster.nodes(small(gone, gpus=4))
            if outcome == "gaveup":
                await until(lambda: not cluster.bound("g-0"), seconds=120.0)
            else:
                await until(lambda: scheduled(cluster) == 2)
            await shows(scheduler, "koordpy_gang_degraded_seconds", {})
            found = figures(scheduler, "koordpy_repairs_total")
            assert {key: n for key, n in found.items() if n} == ({f'{{outcome="{outcome}"}}': 1.0} if outcome else {})
            assert figures(scheduler, "koordpy_seats") == {"": 0.0}
            seen = figures(scheduler, "koordpy_gang_repair_seconds_count")[""]
            assert seen == (outcome in ("replaced", "evicted"))

    play()


@in_virtual_time
async def test_a_member_moves_off_a_gpu_that_falls_sick_and_comes_back_where_it_was_planned() -> None:
    own = msgspec.structs.replace(QUICK.config, repair=Repair(sick_devices="evict"))
    async with live([small(name, gpus=4) for name in ("n1", "n2", "n3")]) as cluster:
        cluster.planner.config = own
        for name in ("n1", "n2", "n3"):
            cluster.server.store.create(DEVICES, device(name))
        async with cluster.running(replace(QUICK, config=own)) as scheduler:
            group, *members = gang("g", 2, gpus=4)
            for one in members:
                one["spec"]["terminationGracePeriodSeconds"] = 0
            cluster.create(group, *members)
            await until(lambda: cluster.bound("g-0", "g-1"))
            await until(lambda: scheduled(cluster) == 2)
            sick = cluster.places()["g-1"]
            (free,) = {"n1", "n2", "n3"} - set(cluster.places().values())
            cluster.server.store.update(DEVICES, sick, lambda old: {**old, "spec": device(sick, sick=(1,))["spec"]})
            await until(lambda: not cluster.bound("g-1"))
            assert cluster.bound("g-0")
            cluster.create(members[1])
            await until(lambda: cluster.places().get("g-1") == free)
            await shows(scheduler, "koordpy_seats", {"": 0.0})
            found = figures(scheduler, "koordpy_repairs_total")
            assert found['{outcome="moved"}'] == 1.0


BLOCKS_OF = {"n1": "b0", "n2": "b0", "n3": "b1", "n4": "b1"}


@contextlib.asynccontextmanager
async def two_blocks() -> AsyncIterator[Live]:
    """Four nodes of four GPUs."""
    async with live([small(name, gpus=4, labels={BLOCK: block}) for name, block in BLOCKS_OF.items()]) as cluster:
        cluster.server.store.create(TOPOLOGIES, blocks())
        yield cluster


async def gathered_gang(cluster: Live, grace: str = "0s") -> list[dict[str, Any]]:
    """Creates a gang of two that takes one block and moves as a whole once it is broken; its members.

    grace: annotation stale-grace; empty for none.
    """
    group, *members = gang("g", 2, gpus=4)
    must = json.dumps({"gatherStrategy": [{"layer": "blockLayer", "strategy": "MustGather"}]})
    notes = {keys.GANG_TOPOLOGY: must, keys.GANG_REPAIR: "regather"}
    group["metadata"]["annotations"] = notes | ({keys.GANG_STALE_GRACE: grace} if grace else {})
    for one in members:
        one["spec"]["terminationGracePeriodSeconds"] = 0
    cluster.create(group, *members)
    await until(lambda: cluster.bound("g-0", "g-1"))
    await until(lambda: scheduled(cluster) == 2)
    return members


@in_virtual_time
async def test_the_nodes_of_a_gang_that_moves_are_kept_until_its_members_are_created_again() -> None:
    async with two_blocks() as cluster, cluster.running():
        members = await gathered_gang(cluster)
        first = {BLOCKS_OF[node] for node in cluster.places().values()}
        # its other node is not there any more, so no place is left in the block
        cluster.server.store.delete("nodes", cluster.places()["g-1"])
        cluster.delete("g-1")
        cluster.create(members[1])
        await until(lambda: not cluster.bound("g-0"))
        for name in ("a", "b"):
            cluster.pod(name, gpus=4)
        await until(lambda: cluster.bound("a") or cluster.bound("b"))
        await asyncio.sleep(20.0)
        assert not cluster.bound("a", "b")
        cluster.create(members[0])
        await until(lambda: cluster.bound("g-0", "g-1"))
        assert {BLOCKS_OF[cluster.places()[name]] for name in ("g-0", "g-1")}.isdisjoint(first)
        assert not cluster.bound("a", "b")


async def is_told_of_once(cluster: Live, warnings: int = 1) -> None:
    """Waits until the gang is repaired, which is one event. warnings: events of its loss."""
    await until(lambda: degraded(cluster).get("reason") == "Repaired")
    await until(lambda: bool(told(cluster, "GangRepaired")))
    await asyncio.sleep(5.0)
    assert told(cluster, "GangRepaired") == [("PodGroup", "g", "", "2 members are bound or have Succeeded")]
    assert len(told(cluster, "GangDegraded")) == warnings


MOVE_WARNINGS = 2
"""The loss, and half of the grace."""


async def begin_move(cluster: Live) -> list[dict[str, Any]]:
    """Breaks a gang and lets it move after it was told to be degraded; its members, of which g-0 does not exist."""
    members = await gathered_gang(cluster, grace="5s")
    cluster.server.store.delete("nodes", cluster.places()["g-1"])
    cluster.delete("g-1")
    cluster.create(members[1])
    await until(lambda: degraded(cluster).get("status") == "True")
    await until(lambda: "g-0" not in cluster.pods())
    return members


@pytest.mark.parametrize("seconds", [0.0, 5.0])
def test_a_gang_that_moves_is_repaired_when_it_has_its_minimum_again(seconds: float) -> None:
    @in_virtual_time
    async def play() -> None:
        async with two_blocks() as cluster, cluster.running():
            members = await begin_move(cluster)
            await asyncio.sleep(seconds)
            cluster.create(members[0])
            await until(lambda: cluster.bound("g-0", "g-1"))
            await is_told_of_once(cluster, MOVE_WARNINGS)

    play()


@in_virtual_time
async def test_a_leader_that_starts_while_a_gang_moves_tells_of_its_repair() -> None:
    async with two_blocks() as cluster:
        async with cluster.running():
            members = await begin_move(cluster)
            await until(lambda: degraded(cluster).get("status") == "False")
        cluster.create(members[0])
        async with cluster.running():
            await until(lambda: cluster.bound("g-0", "g-1"))
            await is_told_of_once(cluster, MOVE_WARNINGS)


@in_virtual_time
async def test_a_leader_that_finds_a_gang_repaired_tells_of_it() -> None:
    async with live([small("n1", gpus=4), small("n2", gpus=4)]) as cluster:
        async with cluster.running():
            await bound_gang(cluster)
            gone = cluster.places()["g-1"]
            cluster.server.store.delete("nodes", gone)
            await until(lambda: degraded(cluster).get("status") == "True")
        cluster.nodes(small(gone, gpus=4))
        async with cluster.running():
            await is_told_of_once(cluster)
        async with cluster.running():
            await asyncio.sleep(5.0)
            await is_told_of_once(cluster)


@in_virtual_time
async def test_a_gang_that_is_evicted_and_runs_again_was_not_repaired() -> None:
    async with live([small("n1", gpus=4), small("n2", gpus=4)]) as cluster, cluster.running():
        group, *members = gang("g", 2, gpus=4)
        group["metadata"]["annotations"] = {keys.GANG_STALE_GRACE: "0s"}
        for one in members:
            one["spec"]["terminationGracePeriodSeconds"] = 0
        cluster.create(group, *members)
        await until(lambda: cluster.bound("g-0", "g-1"))
        await until(lambda: scheduled(cluster) == 2)
        cluster.delete("g-1")
        await until(lambda: degraded(cluster).get("reason") == "NoneBound")
        cluster.create(*members)
        await until(lambda: scheduled(cluster) == 2)
        await asyncio.sleep(5.0)
        assert (degraded(cluster)["reason"], told(cluster, "GangRepaired")) == ("NoneBound", [])


@in_virtual_time
async def test_a_gang_moves_when_the_configured_grace_ends_without_another_event() -> None:
    """Stale gangs are not evicted by default, and the grace of the configuration applies to the move all the same."""
    async with two_blocks() as cluster, cluster.running():
        members = await gathered_gang(cluster, grace="")
        first = {BLOCKS_OF[node] for node in cluster.places().values()}
        cluster.server.store.delete("nodes", cluster.places()["g-1"])
        cluster.delete("g-1")
        cluster.create(members[1])
        grace = KoordpyConfiguration().stale_gangs.grace
        await asyncio.sleep(grace - 5.0)
        assert cluster.bound("g-0")
        await until(lambda: not cluster.bound("g-0"), seconds=10.0)
        cluster.create(members[0])
        await until(lambda: cluster.bound("g-0", "g-1"))
        assert {BLOCKS_OF[cluster.places()[name]] for name in ("g-0", "g-1")}.isdisjoint(first)


@in_virtual_time
async def test_the_nodes_of_moved_members_that_are_not_created_again_are_free_after_a_time() -> None:
    async with two_blocks() as cluster, cluster.running():
        members = await gathered_gang(cluster)
        cluster.server.store.delete("nodes", cluster.places()["g-1"])
        cluster.delete("g-1")
        cluster.create(members[1])
        await until(lambda: not cluster.bound("g-0"))
        cluster.delete("g-1")
        for name in ("a", "b", "c"):
            cluster.pod(name, gpus=4)
        await asyncio.sleep(20.0)
        assert not cluster.bound("a", "b", "c")
        await until(lambda: cluster.bound("a", "b", "c"), seconds=120.0)


@in_virtual_time
async def test_a_gang_is_told_to_be_whole_though_the_reply_on_its_loss_was_lost() -> None:
    nodes = [small("n1", gpus=4), small("n2", gpus=4)]
    async with live(nodes) as cluster, cluster.running(wobble_hold_seconds=1.0):
        await bound_gang(cluster)
        gone = cluster.places()["g-1"]
        cluster.server.faults.fail(500, method="PATCH", path="*/podgroups/*", times=1, after=True)
        cluster.server.store.delete("nodes", gone)
        await until(lambda: degraded(cluster).get("status") == "True")
        cluster.nodes(small(gone, gpus=4))
        await until(lambda: (scheduled(cluster), degraded(cluster).get("reason")) == (2, "Repaired"))


@pytest.mark.parametrize("mark", ["condition", "taint"])
def test_no_pod_is_bound_to_a_node_that_is_reported_broken_while_it_is_planned(mark: str) -> None:
    @in_virtual_time
    async def play() -> None:
        own = msgspec.structs.replace(QUICK.config, repair=Repair(lost_after=0.0, lost_conditions=("Broken",)))
        async with live([small("n1", gpus=4)]) as cluster:
            cluster.planner.config = own
            async with cluster.running(replace(QUICK, config=own)) as scheduler:
                hold = cluster.planner.hold = threading.Event()
                cluster.pod("p", gpus=1)
                await until(lambda: bool(cluster.planner.rounds))
                cluster.planner.hold = None
                part, change = PARTS[mark]
                cluster.server.store.update(
                    "nodes", "n1", lambda old: {**old, part: {**old.get(part, {}), **change}}, status=part == "status"
                )
                await until(lambda: cluster.is_known_to(scheduler, "nodes"))
                hold.set()
                await until(lambda: bool(cluster.condition("p")))
                await asyncio.sleep(3.0)
                assert not cluster.bound("p")

    play()


@in_virtual_time
async def test_a_gang_whose_last_member_is_not_evicted_after_all_is_degraded() -> None:
    """While its eviction is expected, the gang counts as ending. It is broken once the plan is dropped."""
    async with live([small("n1", gpus=4), small("n2", gpus=4)]) as cluster, cluster.running() as scheduler:
        await bound_gang(cluster)
        assert scheduler.evictor is not None
        begun, dropped = asyncio.Event(), asyncio.Event()

        async def refused(*_: Any, **__: Any) -> bool:
            begun.set()
            await dropped.wait()
            raise Dropped("the API server refuses it")

        scheduler.evictor._calls.preempt = refused  # type: ignore[method-assign]
        info = scheduler.state.pod("default/g-0")
        assert info is not None
        victim = Eviction(info.key, info.uid, info.node, RuleName.PRIORITY, "default/p", "default/p")
        scheduler.evictor.submit(EvictionPlan("default/p", (victim,)), lambda _, __: None)
        await begun.wait()
        cluster.delete("g-1")
        await until(lambda: scheduled(cluster) == 1)
        await asyncio.sleep(3.0)
        assert degraded(cluster) == {}
        dropped.set()
        await until(lambda: degraded(cluster).get("status") == "True")
