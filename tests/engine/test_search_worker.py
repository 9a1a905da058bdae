# SPDX-License-Identifier: Apache-2.0
"""Rounds beside a search: for those who come while it lasts, and what of its answer holds after them."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from koordpy.api.objects import PersistentVolumeClaimSource, Volume
from koordpy.attempts.unit_outcome import UnitOutcome
from koordpy.engine.queue_entry import Entry
from koordpy.engine.staleness import ConcurrentPlacements
from koordpy.gangs.queue_units import Unit
from koordpy.plan.round_plan import Eviction, Placement, RoundPlan
from koordpy.planner import round_context as rounds
from koordpy.planner.planning_round import plan_round
from koordpy.pods.pod_info import PodInfo
from tests.engine.live import Live, in_virtual_time, live, pod, small, until
from tests.scenarios import cluster as scenes
from tests.scenarios.cluster import World, group, node
from tests.scenarios.quotas import belongs, quota
from tests.scenarios.test_slots_of_copies import apart, spread

TREE = [
    quota("a", 2, 9, inner=True),
    quota("a1", 1, 9, parent="a"),
    quota("a2", 1, 9, parent="a"),
    quota("b", 2, 9),
]
CLAIM = [Volume(name="v", persistent_volume_claim=PersistentVolumeClaimSource(claim_name="c"))]
GONE = {"metadata": {"deletionTimestamp": "now"}}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "elsewhere": ({"node": "n1"}, {"node": "n2"}, False),
    "on the same node": ({"node": "n1"}, {"node": "n1"}, True),
    "in the same quota": ({"quota": "a1"}, {"quota": "a1"}, True),
    "in quotas under one": ({"quota": "a1"}, {"quota": "a2"}, True),
    "in another quota": ({"quota": "a1"}, {"quota": "b"}, False),
    "in no quota": ({"quota": "a1"}, {}, False),
    "of the same user, whom nobody takes back for": ({"user": "u"}, {"user": "u"}, False),
    "that others shun": ({}, apart("kubernetes.io/hostname"), True),
    "of one that is spread": (spread("zone"), {}, True),
    "with claims on both sides": ({"volumes": CLAIM}, {"volumes": CLAIM}, True),
    "with a claim on one": ({"volumes": CLAIM}, {}, False),
}


def made(name: str, *, node: str = "", quota: str = "", user: str = "", **spec: Any) -> Any:
    return scenes.pod(name, labels=belongs(quota, user=user), **spec)


def put(name: str, at: str) -> tuple[Placement, ...]:
    return (Placement(f"default/{name}", f"uid-{name}", at, f"default/{name}"),)


@pytest.mark.parametrize(("ours", "theirs", "matters"), CASES.values(), ids=CASES)
def test_what_was_placed_meanwhile_matters(ours: Any, theirs: Any, matters: bool) -> None:
    world = World().add(node("n1:4"), node("n2:4"), *TREE, made("ours", **ours), made("theirs", **theirs))
    snapshot = world.snapshot()
    own = put("ours", ours.get("node", "n1"))
    concurrent = ConcurrentPlacements()
    assert not concurrent.touches(snapshot, own, ())
    concurrent.add(RoundPlan(put("theirs", theirs.get("node", "n2")), (), (), (), ()), snapshot)
    assert concurrent.touches(snapshot, own, ()) is matters


def test_a_quota_that_came_meanwhile_counts_with_those_above_it() -> None:
    world = World().add(node("n1:4"), node("n2:4"), *TREE, made("ours", quota="a1"))
    then = world.snapshot()
    now = world.add(quota("a3", 1, 9, parent="a"), made("theirs", quota="a3")).snapshot()
    concurrent = ConcurrentPlacements()
    concurrent.add(RoundPlan(put("theirs", "n2"), (), (), (), ()), now)
    assert concurrent.touches(then, put("ours", "n1"), ())


def test_a_victim_that_was_evicted_meanwhile_and_room_for_one_that_moves_matter() -> None:
    world = World().add(node("n1:1"), node("n2:1"), scenes.pod("r", at="n1", priority=0), made("ours", priority=9))
    world.add(scenes.pod("s", at="n2", priority=99))
    then = world.snapshot()
    plan = plan_round(then)
    assert [one.pod_key for one in plan.evictions] == ["default/r"]
    concurrent = ConcurrentPlacements()
    concurrent.add(plan, then)
    assert concurrent.touches(then, (), plan.evictions)
    others = Eviction("default/s", "uid-s", "n2", "priority", None)
    assert concurrent.touches(then, (), (others,)), "a budget or a minimum may allow one of them"
    assert not concurrent.touches(then, put("ours", "n2"), ())


def test_a_member_that_was_placed_of_a_gang_that_others_leave_matters() -> None:
    """What is left of the gang would stand below its minimum."""
    world = World().add(node("n1:4"), node("n2:4"), group("g", 1), group("h", 1), made("ours"))
    world.add(*(scenes.pod(f"{name}-0", gang=name, at="n1") for name in "gh"), scenes.pod("g-1", gang="g"))
    snapshot = world.snapshot()
    concurrent = ConcurrentPlacements()
    concurrent.add(RoundPlan(put("g-1", "n2"), (), (), (), ()), snapshot)
    for name, matters in (("g", True), ("h", False)):
        victim = Eviction(f"default/{name}-0", f"uid-{name}-0", "n1", "priority", None)
        assert concurrent.touches(snapshot, put("ours", "n1"), (victim,)) is matters


def test_room_that_was_promised_meanwhile_matters() -> None:
    snapshot = World().add(node("n1:4"), node("n2:4"), made("ours"), made("theirs")).snapshot()
    waits = Placement("default/theirs", "uid-theirs", "n1", "default/theirs")
    concurrent = ConcurrentPlacements()
    concurrent.add(RoundPlan((), (), (), (), (), awaiting_nominations=(waits,)), snapshot)
    assert concurrent.touches(snapshot, put("ours", "n1"), ())
    assert not concurrent.touches(snapshot, put("ours", "n2"), ())


def test_room_that_one_who_moves_returns_to_and_what_its_user_got_matter_to_who_takes_from_others() -> None:
    pods = made("ours", user="u"), made("own", user="u"), made("other", user="w")
    snapshot = World().add(node("n1:4"), node("n2:4"), scenes.pod("r", at="n1"), *pods).snapshot()
    moved = Eviction("default/r", "uid-r", "n1", "consolidation", None, returns_to="n2")
    taken = Eviction("default/r", "uid-r", "n1", "fair-share", None)
    for name, eviction, matters in (("other", moved, True), ("other", taken, False), ("own", taken, True)):
        concurrent = ConcurrentPlacements()
        concurrent.add(RoundPlan(put(name, "n2"), (), (), (), ()), snapshot)
        assert concurrent.touches(snapshot, put("ours", "n1"), (eviction,)) is matters
        assert not concurrent.touches(snapshot, put("ours", "n1"), ())


@asynccontextmanager
async def _with_pod(node: dict[str, Any], there: dict[str, Any]) -> AsyncIterator[Live]:
    async with live([node, small("n2", gpus=0)]) as cluster:
        cluster.create(there)
        yield cluster


@in_virtual_time
async def test_who_was_bound_meanwhile_may_be_a_victim_of_those_that_were_refused() -> None:
    """They were told of no such pod, and nobody tells them that it is confirmed."""
    first = pod("first", gpus=4, cpu="1", memory="1Gi")
    first["spec"]["nodeName"] = "n1"
    async with _with_pod(small("n1"), first) as cluster, cluster.running() as scheduler:
        told: dict[str, set[str]] = {}
        refusals = scheduler._loop._refusals
        ended = refusals.round_ended

        def heard(refused: list[Entry], assumed: list[PodInfo]) -> None:
            told.update({entry.unit: {info.key for info in assumed} for entry in refused})
            ended(refused, assumed)

        refusals.round_ended = heard  # type: ignore[method-assign, assignment]
        held = cluster.planner.search_hold = threading.Event()
        cluster.pod("large", gpus=4)
        await until(lambda: len(cluster.planner.rounds) == 2)
        cluster.create(pod("late", gpus=0, cpu="1", memory="1Gi"))
        await until(lambda: cluster.bound("late"))
        await until(lambda: scheduler.state.assumed_node("default/late") is None)
        held.set()
        await until(lambda: bool(told))
        assert told == {"default/large": {"default/late"}}


@in_virtual_time
async def test_who_goes_for_nobody_in_particular_goes_once() -> None:
    async with live([small("n1"), small("n2"), small("n3")]) as cluster, cluster.running() as scheduler:

        def comes(name: str, at: str) -> None:
            manifest = pod(name, gpus=0, cpu="1", memory="1Gi")
            manifest["spec"]["nodeSelector"] = {"kubernetes.io/hostname": at}
            cluster.create(manifest)

        comes("r", "n1")
        await until(lambda: cluster.bound("r"))
        await cluster.at_rest(scheduler, "pods")
        uid = cluster.pods()["r"]["metadata"]["uid"]
        goes = Eviction("default/r", uid, "n1", "stale-gang", None, unit="gang:default/g")
        started: list[str] = []
        starter = scheduler._loop._dispatcher._eviction_starter
        starter.start = lambda plan, unit, *args: started.append(unit)  # type: ignore[method-assign]
        cluster.planner.beside = lambda plan: plan if plan.deferred else replace(plan, evictions=(goes,))
        held = cluster.planner.search_hold = threading.Event()
        before = len(cluster.planner.rounds)
        cluster.pod("large", cpu="99")
        await until(lambda: len(cluster.planner.rounds) == before + 2)
        comes("late", "n3")
        await until(lambda: cluster.bound("late"))
        assert started == ["gang:default/g"]
        held.set()
        await until(lambda: "message" in cluster.condition("large"))
        assert len(cluster.planner.rounds) == before + 3 and started == ["gang:default/g"]


@pytest.mark.parametrize("with_others", [False, True])
async def test_a_pod_that_comes_in_the_middle_of_a_search_is_bound_before_that_ends(
    monkeypatch: pytest.MonkeyPatch, with_others: bool
) -> None:
    """Also where others are searched for with it. The plan, which the pod does not concern, is carried out as it is."""
    known, ahead = rounds.plan_unit, list[bool]()
    loop = asyncio.get_running_loop()
    async with live([small("n1"), small("n2")]) as cluster:
        important = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}}
        cluster.server.store.create("priorityclasses.scheduling.k8s.io", {**important, "value": 9})

        def comes(name: str, at: str, priority: str = "") -> None:
            manifest = pod(name, gpus=0, cpu="3" if at == "n1" else "1", memory="1Gi")
            manifest["spec"] |= {"priorityClassName": priority, "nodeSelector": {"kubernetes.io/hostname": at}}
            cluster.create(manifest)

        comes("low", "n1")

        def searching(unit: Unit, *args: Any, defers: bool) -> UnitOutcome:
            if unit.id == "default/high" and not (ahead or defers):
                loop.call_soon_threadsafe(comes, "late", "n2")
                for _ in range(30_000):
                    if cluster.bound("late"):
                        break
                    time.sleep(0.001)
                ahead.append(cluster.bound("late") and not cluster.bound("high"))
            return known(unit, *args, defers=defers)

        async with cluster.running() as scheduler:
            await until(lambda: cluster.bound("low"))
            await cluster.at_rest(scheduler, "pods")
            monkeypatch.setattr(rounds, "plan_unit", searching)
            comes("high", "n1", priority="high")
            if with_others:
                cluster.pod("large", gpus=9)
            await until(lambda: "low" not in cluster.pods() or "deletionTimestamp" in cluster.pods()["low"]["metadata"])
        assert ahead[0]
        assert not scheduler.metrics.conflicts.labels("overtaken_beside")._value.get()
