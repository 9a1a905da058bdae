# SPDX-License-Identifier: Apache-2.0
"""Limits on a plan (preemption.md 3.7), through whole rounds: harm against gain, gangs that surplus spares."""

from typing import Any

import pytest

from koordpy.config.configuration import Consolidation, Fairness, KoordpyConfiguration, MaxHarm, Preemption, Protection
from koordpy.plan.round_plan import RoundPlan
from tests.scenarios.cluster import World, bound, group, messages, node, pod
from tests.scenarios.quotas import belongs, quota

GPU = "nvidia.com/gpu"
BREAKS_NO_GANG = "preemption: members above minMember break no gang."


def configured(*, moves: bool = False, **limits: Any) -> KoordpyConfiguration:
    return KoordpyConfiguration(
        consolidation=Consolidation(enabled=moves), protection=Protection(max_harm=MaxHarm(**limits))
    )


def gone(plan: RoundPlan) -> list[str]:
    return sorted(one.pod_key.partition("/")[2] for one in plan.evictions)


def gpu_nodes(*amounts: int) -> World:
    return World().add(*(node(f"n{i}", cpu="64", **{GPU: str(n)}) for i, n in enumerate(amounts, start=1)))


def running(name: str, gpus: int, at: str, **settings: Any) -> Any:
    return pod(name, cpu="0", requests={GPU: str(gpus)} if gpus else {}, at=at, **settings)


def waiting(name: str, gpus: int, **settings: Any) -> Any:
    return pod(name, cpu="0", requests={GPU: str(gpus)} if gpus else {}, created=100, **settings)


# --- harm -----------------------------------------------------------------------------------------------------------


def scattered() -> World:
    """A gang of 20 GPUs on four nodes of 8, and a pod that asks for 8."""
    world = gpu_nodes(8, 8, 8, 8).add(group("big", 4), waiting("p", 8))
    for i, gpus in enumerate((6, 6, 4, 4)):
        world.add(running(f"big-{i}", gpus, f"n{i + 1}", gang="big"))
    return world


@pytest.mark.parametrize(
    ("factor", "moved", "limit"),
    [(1.0, False, "8"), (2.49, False, "19"), (2.5, True, ""), (3.0, True, ""), (0.0, False, "0"), (None, True, "")],
)
def test_a_plan_moves_at_most_what_its_factor_allows(factor: float | None, moved: bool, limit: str) -> None:
    plan = scattered().plan(config=configured(moves=True, consolidation=factor))
    assert bool(plan.evictions) == moved == ("p" in bound(plan))
    told = messages(plan).get("p", "")
    assert (f"consolidation: would move 20 accelerators for 8, limit {limit}." in told) == (not moved)
    assert [unit.withheld for unit in plan.units if unit.unit == "default/p"] == [() if moved else ("harm",)]


def test_moves_are_limited_by_default() -> None:
    config = KoordpyConfiguration(consolidation=Consolidation(enabled=True))
    assert gone(scattered().plan(config=config)) == []


def test_as_much_as_is_gained_may_move() -> None:
    world = gpu_nodes(8, 8).add(running("a", 4, "n1", created=1), running("b", 4, "n2", created=2), waiting("want", 8))
    plan = world.plan(config=configured(moves=True))
    assert gone(plan) == ["b"] and bound(plan) == {"want": "n2"}


def test_the_limit_is_a_condition_of_the_search() -> None:
    """The victim of lowest priority holds too much: the plan with the next priority is taken."""
    world = gpu_nodes(4, 2).add(running("x", 4, "n1", priority=0), running("y", 2, "n2", priority=5))
    world.add(waiting("p", 2, priority=10))
    assert gone(world.plan(config=configured(priority=None))) == ["x"]
    plan = world.plan(config=configured(priority=1.0))
    assert gone(plan) == ["y"] and bound(plan) == {"p": "n2"}


@pytest.mark.parametrize(
    ("factor", "victims"), [(2.0, ["x"]), (1.9, []), (0.3, [])], ids=["just", "a little more", "much more"]
)
def test_harm_is_compared_exactly(factor: float, victims: list[str]) -> None:
    world = gpu_nodes(4).add(running("x", 4, "n1", priority=0), waiting("p", 2, priority=10))
    plan = world.plan(config=configured(priority=factor))
    assert gone(plan) == victims
    limit = {2.0: "", 1.9: "3", 0.3: "0"}[factor]
    assert victims or f"preemption: would evict 4 accelerators for 2, limit {limit}." in messages(plan)["p"]


def test_a_third_of_ten_is_no_float() -> None:
    """0.3 times 10 GPUs are 3, not 2.9999999999999996."""
    world = gpu_nodes(10).add(running("x", 3, "n1", priority=0), waiting("p", 10, priority=10))
    assert gone(world.plan(config=configured(priority=0.3))) == ["x"]


def test_a_gang_gains_what_all_its_members_ask_for() -> None:
    world = gpu_nodes(4, 4).add(group("me", 2), *(waiting(f"me-{i}", 4, gang="me", priority=9) for i in range(2)))
    world.add(group("low", 2), *(running(f"low-{i}", 4, f"n{i + 1}", gang="low") for i in range(2)))
    assert gone(world.plan(config=configured(priority=1.0))) == ["low-0", "low-1"]
    alone = gpu_nodes(4, 4).add(waiting("p", 4, priority=9), group("low", 2))
    alone.add(*(running(f"low-{i}", 4, f"n{i + 1}", gang="low") for i in range(2)))
    plan = alone.plan(config=configured(priority=1.0))
    assert gone(plan) == []
    assert "preemption: would evict 8 accelerators for 4, limit 4." in messages(plan)["p"]


def test_without_accelerators_cpu_is_compared_and_no_accelerator_goes() -> None:
    world = World().add(node("n1:8", **{GPU: "4"}), node("n2:8"))
    world.add(pod("card", cpu="4", requests={GPU: "1"}, at="n1", priority=0, created=1))
    world.add(pod("rest", cpu="4", at="n1", priority=8), pod("web", cpu="8", at="n2", priority=5, created=2))
    world.add(pod("p", cpu="4", priority=10, created=100))
    assert gone(world.plan(config=configured())) == ["card"]
    told = world.plan(config=configured(priority=1.0))
    assert gone(told) == ["rest"]  # "web" would be 8 cpu for 4
    world = World().add(node("n2:8")).add(pod("web", cpu="8", at="n2", priority=5), pod("p", cpu="4", priority=10))
    assert "preemption: would evict 8 cpu for 4, limit 4." in messages(world.plan(config=configured(priority=1.0)))["p"]


def test_without_cpu_pods_are_compared() -> None:
    world = World().add(node("n1:8", pods="2"))
    world.add(*(pod(f"v{i}", cpu="0", at="n1", priority=0, gang="v") for i in range(2)), group("v", 2))
    world.add(pod("p", cpu="0", priority=10, created=100))
    assert gone(world.plan(config=configured(priority=2.0))) == ["v0", "v1"]
    plan = world.plan(config=configured(priority=1.5))
    assert gone(plan) == [] and "preemption: would evict 2 pods for 1, limit 1." in messages(plan)["p"]


@pytest.mark.parametrize(("rule", "config"), [("quota", "quota"), ("fair-share", "fair_share")])
def test_reclaims_have_limits_of_their_own(rule: str, config: str) -> None:
    world = gpu_nodes(4).add(quota("a", {GPU: 2}, {GPU: 9}), quota("b", {GPU: 1}, {GPU: 9}))
    world.add(running("b", 4, "n1", labels=belongs("b"), priority=9), waiting("a", 2, labels=belongs("a")))
    reclaim = Fairness(reclaim="all", mode="gpu-count") if rule == "fair-share" else Fairness()
    if rule == "fair-share":
        world = gpu_nodes(4).add(running("b", 4, "n1", labels=belongs(user="b"), priority=9))
        world.add(waiting("a", 2, labels=belongs(user="a")))
    protection = Protection(max_harm=MaxHarm(**{config: 1.0}))
    free = world.plan(config=KoordpyConfiguration(fairness=reclaim))
    assert {str(one.rule) for one in free.evictions} <= {rule}
    plan = world.plan(config=KoordpyConfiguration(fairness=reclaim, protection=protection))
    assert gone(plan) == []
    if free.evictions:
        assert "reclaim: would evict 4 accelerators for 2, limit 2." in messages(plan)["a"]
    else:
        pytest.fail("nothing to reclaim")


# --- surplus --------------------------------------------------------------------------------------------------------


def elastic(**settings: Any) -> World:
    """Example 6: hi of four members, minMember 1; lo of four, minMember 3, on all 8 GPUs."""
    world = gpu_nodes(8).add(group("hi", settings.get("least", 1)), group("lo", 3))
    world.add(*(running(f"lo-{i}", 2, "n1", gang="lo", created=i) for i in range(4)))
    return world.add(*(waiting(f"hi-{i}", 2, gang="hi", priority=10) for i in range(4)))


def test_surplus_takes_surplus_and_breaks_no_gang() -> None:
    plan = elastic().plan()
    assert gone(plan) == ["lo-3"] and set(bound(plan)) == {"hi-0"}


def test_surplus_that_waits_says_what_it_may_not_do() -> None:
    world = gpu_nodes(6).add(group("hi", 1), group("lo", 2))
    world.add(running("hi-0", 2, "n1", gang="hi", priority=10))
    world.add(*(running(f"lo-{i}", 2, "n1", gang="lo") for i in range(2)))
    world.add(*(waiting(f"hi-{i}", 2, gang="hi", priority=10) for i in (1, 2)))
    plan = world.plan()
    assert gone(plan) == [] and BREAKS_NO_GANG in messages(plan)["hi-1"]
    assert [unit.withheld for unit in plan.units] == [("surplus",)]
    before = KoordpyConfiguration(preemption=Preemption(surplus_victims="any"))
    assert gone(world.plan(config=before)) == ["lo-0", "lo-1"]


def test_any_breaks_gangs_for_surplus() -> None:
    before = KoordpyConfiguration(preemption=Preemption(surplus_victims="any"))
    plan = elastic().plan(config=before)
    assert gone(plan) == ["lo-0", "lo-1", "lo-2", "lo-3"] and len(bound(plan)) == 4


def test_a_gang_breaks_a_gang_for_its_minimum() -> None:
    plan = elastic(least=4).plan()
    assert gone(plan) == ["lo-0", "lo-1", "lo-2", "lo-3"] and len(bound(plan)) == 4


def test_surplus_does_not_take_the_rest_of_a_broken_gang() -> None:
    world = gpu_nodes(4).add(group("hi", 1), group("lo", 3), running("hi-0", 2, "n1", gang="hi", priority=10))
    world.add(running("lo-0", 2, "n1", gang="lo"), waiting("hi-1", 2, gang="hi", priority=10))
    plan = world.plan()
    assert gone(plan) == [] and BREAKS_NO_GANG in messages(plan)["hi-1"]


def test_a_gang_without_a_minimum_has_no_surplus() -> None:
    world = gpu_nodes(4).add(group("hi", 0), group("lo", 2))
    world.add(*(running(f"lo-{i}", 2, "n1", gang="lo") for i in range(2)))
    world.add(*(waiting(f"hi-{i}", 2, gang="hi", priority=10) for i in range(2)))
    assert gone(world.plan()) == ["lo-0", "lo-1"]


def test_a_quota_takes_back_its_min_for_surplus_too() -> None:
    world = gpu_nodes(4).add(
        quota("a", {GPU: 4}, {GPU: 4}), quota("b", {GPU: 0}, {GPU: 4}), group("hi", 1), group("lo", 2)
    )
    world.add(*(running(f"lo-{i}", 2, "n1", gang="lo", labels=belongs("b"), priority=50) for i in range(2)))
    world.add(*(waiting(f"hi-{i}", 2, gang="hi", labels=belongs("a")) for i in range(2)))
    plan = world.plan()
    assert gone(plan) == ["lo-0", "lo-1"] and {str(one.rule) for one in plan.evictions} == {"quota"}
    assert len(bound(plan)) == 2


def test_surplus_moves_single_pods_and_no_gang() -> None:
    def world(gang: str) -> World:
        out = gpu_nodes(2, 2, 1).add(group("hi", 1), running("hi-0", 1, "n3", gang="hi"))
        out.add(group("lo", 2), running("lo-0", 1, "n1", gang=gang), running("lo-1", 1, "n2", gang=gang))
        return out.add(waiting("hi-1", 2, gang="hi"))

    config = configured(moves=True)
    assert len(gone(world("").plan(config=config))) == 1
    plan = world("lo").plan(config=config)
    assert gone(plan) == [] and BREAKS_NO_GANG in messages(plan)["hi-1"]


# --- system priorities ----------------------------------------------------------------------------------------------

SYSTEM = 2_000_000_000


@pytest.mark.parametrize(("priority", "limited"), [(SYSTEM - 1, True), (SYSTEM, False), (SYSTEM + 1000, False)])
@pytest.mark.parametrize("rule", ["harm", "moves", "surplus"])
def test_no_limit_binds_a_system_priority(rule: str, priority: int, limited: bool) -> None:
    if rule == "harm":
        world = gpu_nodes(4).add(running("x", 4, "n1"), waiting("p", 1, priority=priority))
        config = configured(priority=1.0)
    elif rule == "moves":
        world = gpu_nodes(4, 4).add(*(running(f"{at}", 2, at, priority=0) for at in ("n1", "n2")))
        world.add(waiting("p", 4, priority=priority))
        config = KoordpyConfiguration(
            preemption=Preemption(enabled=False),
            consolidation=Consolidation(enabled=True),
            protection=Protection(max_harm=MaxHarm(consolidation=0.25)),
        )
    else:
        world = gpu_nodes(4).add(group("hi", 1), group("lo", 2))
        world.add(*(running(f"lo-{i}", 2, "n1", gang="lo") for i in range(2)))
        world.add(*(waiting(f"hi-{i}", 2, gang="hi", priority=priority + i) for i in range(2)))
        config = KoordpyConfiguration()
    plan = world.plan(config=config)
    unlimited, least = {"harm": (1, 0), "moves": (1, 0), "surplus": (2, 1)}[rule]
    assert len(bound(plan)) == (least if limited else unlimited)
