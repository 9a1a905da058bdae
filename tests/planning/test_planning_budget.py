# SPDX-License-Identifier: Apache-2.0
"""Rounds with a budget: what fits is placed, units that need a search are deferred, tenants have a part each."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import Pod
from koordpy.cache.cluster_state import ClusterState
from koordpy.config.configuration import KoordpyConfiguration, Planning
from koordpy.placement.solver.cpsat import cp_model
from koordpy.placement.solver.time_budget import TimeBudget
from koordpy.plan.planning_budget import PlanningBudget
from koordpy.plan.round_plan import Deferral, DeferralReason, Proof, RoundPlan
from koordpy.planner.planning_round import plan_round
from tests.scenarios.cluster import World, bound, gang_pods, group, messages, node, pod
from tests.scenarios.quotas import quota

GANG = "gang:default/train"


def cut(state: ClusterState, only: Collection[str], *, searches: bool = False, ends: bool = False) -> RoundPlan:
    """A round, or a search, with a budget. ends: after its first unit."""
    budget = PlanningBudget(searches=searches, ends=lambda: ends, clock=itertools.count(0.0).__next__)
    return plan_round(state.snapshot(0.0), only=frozenset(only), budget=budget)


def full(*more: object) -> World:
    """A node full of what may be evicted, one that only who names it may use, and a gang of two before it all."""
    world = World().add(node("n1:2"), node("apart:1", {"for": "small"}))
    world.add(pod("r-0", at="n1", priority=0), pod("r-1", at="n1", priority=0))
    world.add(group("train", 2), gang_pods("train", 2, priority=100, node_selector={"kubernetes.io/hostname": "n1"}))
    return world.add(*more)


def small(name: str, at: str = "", **spec: object) -> object:
    selector = {"kubernetes.io/hostname": at} if at else {}
    return pod(name, node_selector=selector, created=9, **spec)  # type: ignore[arg-type]


def test_what_fits_is_placed_and_who_needs_victims_is_deferred() -> None:
    world = full(small("s", "apart"))
    plan = cut(world.state, [GANG, "default/s"])
    assert bound(plan) == {"s": "apart"}
    assert plan.deferred == (Deferral(GANG),)
    assert not plan.evictions and not plan.pending
    later = cut(world.state, [GANG, "default/s"], searches=True)
    assert {one.pod_key for one in later.evictions} == {"default/r-0", "default/r-1"}
    assert {one.unit: one.method for one in later.units} == {GANG: "victims-counting", "default/s": "scores"}
    assert all(one.seconds == 1.0 for one in later.units)
    assert not later.deferred


def test_a_round_that_searches_decides_one_unit_at_least_and_those_like_it() -> None:
    world = World().add(
        node("n1:1"), node("n2:1"), pod("r-0", at="n1", priority=500), pod("r-1", at="n2", priority=500)
    )
    for name, count in (("a", 2), ("b", 2), ("c", 1)):
        world.add(group(name, count), gang_pods(name, count, prefix=name, priority=100))
    units = ["gang:default/a", "gang:default/b", "gang:default/c"]
    plan = cut(world.state, units, searches=True, ends=True)
    assert [one.unit for one in plan.units] == units[:2]
    assert set(messages(plan)) == {"a-0", "a-1", "b-0", "b-1"}
    assert plan.deferred == (Deferral(units[2], DeferralReason.CUT),)


def test_without_preemption_everybody_is_told_at_once() -> None:
    from koordpy.config.configuration import KoordpyConfiguration, Preemption

    world = full()
    budget = PlanningBudget(searches=False, ends=lambda: False)
    config = KoordpyConfiguration(preemption=Preemption(enabled=False))
    plan = plan_round(world.snapshot(), config, only=frozenset([GANG]), budget=budget)
    assert not plan.deferred and set(messages(plan)) == {"p-0", "p-1"}


def test_who_is_refused_by_a_runtime_has_a_second_turn_in_a_round_that_is_cut_too() -> None:
    """The next round, of those that it left undecided, does not look at it any more."""
    world = World().add(node("n1:8"), quota("a", {"cpu": "4"}, {"cpu": "8"}), quota("b", {"cpu": "4"}, {"cpu": "8"}))
    for name, team, age in (("old", "a", 0), ("new", "b", 9)):
        world.add(pod(name, cpu="6", labels={keys.QUOTA_NAME: team}, created=age))
    plan = cut(world.state, ["default/old", "default/new"], searches=True, ends=True)
    assert set(bound(plan)) == {"old"} and plan.deferred == (Deferral("default/new", DeferralReason.CUT),)


def test_who_fails_like_another_takes_no_time() -> None:
    world = World().add(node("n1:1"), *(pod(f"p{i}", cpu="9") for i in range(3)))
    plan = cut(world.state, [f"default/p{i}" for i in range(3)], searches=True)
    assert [one.seconds is not None for one in plan.units] == [True, False, False]


def test_a_round_is_cut_after_one_unit_for_who_came_meanwhile() -> None:
    world = World().add(node("n1:3"), small("a"), small("b"), small("c"))
    names = [f"default/{name}" for name in "abc"]
    budget = PlanningBudget(searches=False, ends=lambda: True)
    plan = plan_round(world.snapshot(), only=frozenset(names), budget=budget)
    assert set(bound(plan)) == {"a"}
    assert plan.deferred == (Deferral("default/b", DeferralReason.CUT), Deferral("default/c", DeferralReason.CUT))


def test_rounds_that_are_cut_decide_as_one_that_is_not() -> None:
    """Nothing lapses: what comes of first placing and then searching is lawful in the order of the queue."""
    for seed in range(60):
        world, units = _random(random.Random(seed))
        whole = plan_round(world.snapshot(), only=frozenset(units))
        first = cut(world.state, units)
        assert not first.evictions
        ahead: list[str] = []
        deferred = {one.unit for one in first.deferred}
        for report in whole.units:
            placed = {p.pod_key: p.node for p in whole.placements if p.unit == report.unit}
            now = {p.pod_key: p.node for p in first.placements if p.unit == report.unit}
            if not deferred & set(ahead):
                # up to the first that is deferred both go the same way
                assert report.unit in deferred or now == placed, (seed, report.unit)
            ahead.append(report.unit)
        left = cut(world.state, [*deferred], searches=True)
        assert not left.deferred
        assert {one.unit for one in left.units} == deferred


def hard_model() -> cp_model.CpModel:
    """A knapsack of 300 dimensions, whose best filling no machine proves in hours."""
    rng, model = random.Random(1), cp_model.CpModel()
    some = [model.new_bool_var("") for _ in range(400)]
    for _ in range(300):
        model.add(sum(rng.randint(1, 50) * one for one in rng.sample(some, 30)) <= 300)
    model.maximize(sum(rng.randint(1, 50) * one for one in some))
    return model


def test_the_watchdog_ends_a_solve_that_its_deterministic_time_lets_go_on() -> None:
    budget = TimeBudget(1e9, watchdog_seconds=0.05)
    proof, _ = budget.solve("hard", hard_model())
    assert proof in (Proof.FEASIBLE, Proof.UNKNOWN)
    assert not budget.proven
    assert budget.left > 0


def test_offline_no_solve_ends_by_the_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    known, seconds = TimeBudget.__init__, list[float]()

    def asked(self: TimeBudget, deterministic_time: float, **options: Any) -> None:
        seconds.append(options.get("watchdog_seconds", 10))
        known(self, deterministic_time, **options)

    monkeypatch.setattr(TimeBudget, "__init__", asked)
    world = World().add(node("n1:3"), node("n2:3"), pod("r-0", at="n1", priority=0), pod("r-1", at="n2", priority=0))
    world.add(group("train", 3), gang_pods("train", 2, priority=100), pod("q", gang="train", priority=100, cpu="3"))
    plan = plan_round(world.state.snapshot(0.0))
    assert plan.evictions
    assert len(seconds) == 3  # of the victims, and of the dry run with all of them and with those that are needed
    assert min(seconds) >= 3600
    seconds.clear()
    cut(world.state, [GANG], searches=True)
    assert seconds
    assert max(seconds) == 10


def _random(rng: random.Random) -> tuple[World, list[str]]:
    world, units = World(), []
    slots = [rng.randint(1, 3) for _ in range(4)]
    world.add(*(node(f"n{i}:{size}") for i, size in enumerate(slots)))
    for i, size in enumerate(slots):
        world.add(
            *(pod(f"r-{i}-{k}", at=f"n{i}", priority=rng.choice((0, 50, 200))) for k in range(rng.randint(0, size)))
        )
    for i in range(5):
        count, priority = rng.randint(1, 3), rng.choice((0, 100, 300))
        if count == 1:
            world.add(pod(f"u{i}", priority=priority, created=i))
            units.append(f"default/u{i}")
        else:
            world.add(group(f"g{i}", count), gang_pods(f"g{i}", count, prefix=f"g{i}", priority=priority, created=i))
            units.append(f"gang:default/g{i}")
    return world, units


def test_who_plans_says_when_the_first_unit_is_tried() -> None:
    world = World().add(node("n1:3"), small("a"), small("b"))
    said: list[str] = []
    budget = PlanningBudget(searches=True, ends=lambda: False, begins=lambda: said.append("begun"))
    plan = plan_round(world.snapshot(), only=frozenset(["default/a", "default/b"]), budget=budget)
    assert len(plan.placements) == 2 and said == ["begun"]


def test_a_round_that_is_cut_leaves_nobody_out_who_had_no_part_of_it() -> None:
    world = World().add(node("n1:9"), *(of("many", f"p{i}") for i in range(4)), of("one", "p"), of("one", "q"))
    names = [*(f"many/p{i}" for i in range(4)), "one/p", "one/q"]
    budget = PlanningBudget(
        searches=False,
        ends=lambda: True,
        shared=lambda: 2.0,
        clock=itertools.count(0.0).__next__,
    )
    plan = plan_round(world.snapshot(), only=frozenset(names), budget=budget)
    # each takes a second, which is an equal part of two seconds
    assert [one.unit for one in plan.units] == ["many/p0", "one/p"]
    assert all(one.reason is not DeferralReason.TURN for one in plan.deferred) and len(plan.deferred) == 4


def of(namespace: str, name: str, **options: Any) -> Pod:
    one = pod(f"{namespace}-{name}", **options)
    return replace(one, metadata=replace(one.metadata, name=name, namespace=namespace))


def shared(
    world: World,
    names: Collection[str],
    *,
    seconds: float,
    came: dict[str, int] | None = None,
    config: KoordpyConfiguration | None = None,
) -> list[str]:
    """The units that a round of so many seconds tries, in its order, each of which takes one."""
    budget = PlanningBudget(
        searches=False,
        ends=lambda: False,
        shared=lambda: seconds,
        came=lambda: came or {},
        clock=itertools.count(0.0).__next__,
    )
    plan = plan_round(world.snapshot(), config, only=frozenset(names), evict=False, budget=budget)
    assert {one.unit for one in plan.units} | {one.unit for one in plan.deferred} == set(names)
    assert all(one == Deferral(one.unit, DeferralReason.TURN) for one in plan.deferred)
    return [one.unit for one in plan.units]


def tenants(**more: int) -> tuple[World, list[str]]:
    """3,000 pods of `evil` that fit nowhere, none like another, and younger ones of others: namespace -> priority."""
    world, names = World().add(node("n1:9")), []
    for i in range(3000):
        world.add(of("evil", f"e{i:04}", cpu=str(100 + i)))
        names.append(f"evil/e{i:04}")
    for namespace, priority in more.items():
        world.add(of(namespace, "p", created=1, priority=priority))
        names.append(f"{namespace}/p")
    return world, names


def test_a_namespace_that_had_its_part_of_a_long_round_lets_others_go_first() -> None:
    world, names = tenants(b=0, c=0)
    assert shared(world, names, seconds=5) == [*names[:5], *names[-2:]]


def test_namespaces_that_one_quota_lists_have_one_part_where_time_is_shared_by_quota() -> None:
    world = World().add(node("n1:9"), quota("team", 0, 900, namespaces=["a", "b"]))
    names = [f"{namespace}/p{i}" for i, namespace in enumerate("aabc")]
    for i, name in enumerate(names):
        namespace, _, own = name.partition("/")
        world.add(of(namespace, own, created=i))
    assert shared(world, names, seconds=2) == names
    by_quota = KoordpyConfiguration(planning=Planning(share_by="quota"))
    assert shared(world, names, seconds=2, config=by_quota) == [*names[:2], names[3]]


def test_but_for_those_that_are_less_important() -> None:
    world, names = tenants(b=-1)
    assert shared(world, names, seconds=5) == [*names]


@pytest.mark.parametrize(("came", "tries"), [({"b": 0}, 5), ({"b": -1}, 3000), ({"evil": 0}, 3000), ({}, 3000)])
def test_and_for_those_who_came_meanwhile(came: dict[str, int], tries: int) -> None:
    world, names = tenants()
    assert shared(world, names, seconds=5, came=came) == names[:tries]


def test_nobody_lets_those_go_first_who_had_more() -> None:
    world = World().add(node("n1:9"))
    names = [f"{namespace}/p{i}" for i, namespace in enumerate("aaabbb")]
    for i, name in enumerate(names):
        world.add(of(name[0], name[2:], created=i))
    assert shared(world, names, seconds=2, came={"a": 0}) == [*names[:2], *names[3:]]


def test_who_had_less_than_its_part_goes_on_in_the_order_of_the_queue() -> None:
    world = World().add(node("n1:9"))
    names = [f"{namespace}/p{i}" for i, namespace in enumerate("aabaacbbcda")]
    for i, name in enumerate(names):
        namespace, _, own = name.partition("/")
        world.add(of(namespace, own, created=i))
    # of eight seconds each of four namespaces has two: a had four of the first eight, b three; c and d had less
    assert shared(world, names, seconds=8) == names
    assert shared(world, names, seconds=7) == [*names[:7], *names[8:]]
    assert shared(world, names, seconds=4) == [*names[:4], names[5], names[9]]
