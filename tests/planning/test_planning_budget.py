"""Rounds that are cut: what fits comes before searches, and nobody is given what somebody ahead may need."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Collection
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.config import KoordpyConfiguration, Planning
from koordpy.api.objects import Pod, PodStatus
from koordpy.cluster.state import ClusterState
from koordpy.planning import solver
from koordpy.planning.patience import Interrupted, Interrupts, Patience
from koordpy.planning.plan import Deferred, Proof, RoundPlan
from koordpy.planning.round import plan_round
from koordpy.planning.solver.budget import TimeBudget
from koordpy.planning.solver.cpsat import cp_model
from tests.scenarios.cluster import TWO_LAYERS, World, bound, gang_pods, group, messages, node, nodes_of, pod, wish
from tests.scenarios.quotas import quota

GANG = "gang:default/train"


def cut(
    state: ClusterState,
    only: Collection[str],
    *,
    searches: bool = False,
    stops: bool = True,
    tries: int = 0,
    waiting: Collection[str] = (),
    lapsed: Collection[str] = (),
    over: Collection[str] = (),
    interrupts: Interrupts | None = None,
    firm: Collection[str] = (),
) -> RoundPlan:
    """A round with patience; tries: after so many looks at the clock its time is up, 0 for never."""
    looks = 0

    def spent() -> bool:
        nonlocal looks
        looks += 1
        return bool(tries) and looks >= tries

    patience = Patience(
        searches=searches,
        spent=spent,
        stops=searches and stops,
        waiting=frozenset(waiting),
        lapsed=frozenset(lapsed),
        over=frozenset(over),
        interrupts=interrupts or Interrupts(lambda: False),
        firm={unit: Interrupts(lambda: False) for unit in firm},
        clock=itertools.count(0.0).__next__,
    )
    return plan_round(state.snapshot(0.0), only=frozenset(only), patience=patience)


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
    assert plan.deferred == (Deferred(GANG),)
    assert not plan.evictions and not plan.pending
    later = cut(world.state, [GANG, "default/s"], searches=True)
    assert {one.pod_key for one in later.evictions} == {"default/r-0", "default/r-1"}
    assert {one.unit: one.method for one in later.units} == {GANG: "victims-counting", "default/s": "scores"}
    assert all(one.seconds == 1.0 for one in later.units)
    assert not later.deferred


def test_room_that_a_unit_ahead_could_use_is_kept_until_it_has_an_answer() -> None:
    world = full(node("n2:1"), small("s"))
    world.add(*(pod(f"p-{i}", gang="train", priority=100) for i in range(2)))  # the gang may go anywhere now
    both = [GANG, "default/s"]
    plan = cut(world.state, both)
    assert bound(plan) == {"p-0": "apart", "p-1": "n2"}  # it fits at once

    world.add(pod("p-2", gang="train", priority=100), group("train", 3))
    plan = cut(world.state, both)
    assert plan.placements == ()
    assert plan.deferred == (Deferred(GANG), Deferred("default/s", kept_off=True))


def test_kept_room_is_kept_in_later_rounds_for_who_is_not_tried_until_it_lapses() -> None:
    world = World().add(node("n1:1"), node("n2:1"), group("train", 2), gang_pods("train", 2, priority=100, cpu="1"))
    world.add(pod("r", at="n1", priority=0), small("s"))
    assert cut(world.state, ["default/s"], waiting=[GANG]).deferred == (Deferred("default/s", kept_off=True),)
    assert bound(cut(world.state, ["default/s"], waiting=[GANG], lapsed=[GANG])) == {"s": "n2"}
    assert bound(cut(world.state, ["default/s"])) == {"s": "n2"}


@pytest.mark.parametrize(("priority", "kept"), [(100, False), (99, True)])
def test_who_was_kept_off_for_long_enough_is_kept_off_only_for_the_more_important(priority: int, kept: bool) -> None:
    world = World().add(node("n1:1"), node("n2:1"), group("train", 2), gang_pods("train", 2, priority=100, cpu="1"))
    world.add(pod("r", at="n1", priority=0), small("s", priority=priority))
    plan = cut(world.state, ["default/s"], waiting=[GANG], lapsed=["default/s"])
    assert bound(plan) == ({} if kept else {"s": "n2"})


@pytest.mark.parametrize(
    ("over", "priority", "kept"),
    [((), 100, True), (["default"], 100, False), (["default"], 99, True), (["default", "other"], 100, True)],
)
def test_a_tenant_that_had_its_part_of_planning_keeps_room_only_from_the_less_important(
    over: list[str], priority: int, kept: bool
) -> None:
    world = World().add(node("n1:1"), node("n2:1"), group("train", 2), gang_pods("train", 2, priority=100, cpu="1"))
    world.add(pod("r", at="n1", priority=0), of("other", "s", created=9, priority=priority))
    plan = cut(world.state, ["other/s"], waiting=[GANG], over=over)
    assert plan.deferred == ((Deferred("other/s", kept_off=True),) if kept else ())
    assert bound(plan) == ({} if kept else {"s": "n2"})


def test_who_is_searched_for_has_nothing_kept_from_it() -> None:
    world = World().add(node("n1:1"), node("n2:1"), group("train", 2), gang_pods("train", 2, priority=100))
    world.add(pod("r-1", at="n1", priority=0), pod("r-2", at="n2", priority=0), small("s", priority=50))
    plan = cut(world.state, ["default/s"], searches=True, waiting=[GANG])
    assert (set(bound(plan)), len(plan.evictions), plan.deferred) == ({"s"}, 1, ())


def test_who_waits_keeps_nothing_from_those_before_it() -> None:
    world = World().add(node("n1:1"), node("n2:1"), group("train", 2), gang_pods("train", 2, priority=100))
    world.add(pod("r", at="n1", priority=0), pod("s", priority=1000))
    assert bound(cut(world.state, ["default/s"], waiting=[GANG])) == {"s": "n2"}


@pytest.mark.parametrize("asks", [{"node_selector": {"for": "small"}}, {"cpu": "0"}])
def test_room_that_a_unit_ahead_cannot_use_is_given_at_once(asks: dict[str, object]) -> None:
    world = full(pod("s", created=9, **asks))  # type: ignore[arg-type]
    assert set(bound(cut(world.state, ["default/s"], waiting=[GANG]))) == {"s"}


@pytest.mark.parametrize(("priority", "placed"), [(100, {"s": "n2"}), (50, {})])
def test_room_that_was_made_for_a_pod_is_kept_from_it_only_for_who_is_more_important(
    priority: int, placed: dict[str, str]
) -> None:
    world = World().add(node("n1:1"), node("n2:1"), group("train", 2), gang_pods("train", 2, priority=100))
    world.add(pod("r", at="n1", priority=0), pod("s", created=9, priority=priority))
    nominated = replace(world.state.pod("default/s").pod, status=PodStatus(phase="Pending", nominated_node_name="n2"))
    world.add(nominated)
    assert bound(cut(world.state, ["default/s"], waiting=[GANG])) == placed


def test_another_node_is_taken_where_the_best_one_is_kept() -> None:
    world = World().add(node("n1:1"), node("n2:1", {"for": "all"}), node("n3:4", {"for": "all"}))
    world.add(group("train", 2), gang_pods("train", 2, priority=100, node_selector={"kubernetes.io/hostname": "n1"}))
    world.add(pod("r", at="n3", priority=0), small("s"))
    assert bound(cut(world.state, ["default/s"])) == {"s": "n1"}
    assert bound(cut(world.state, ["default/s"], waiting=[GANG])) == {"s": "n2"}


def test_a_round_that_searches_decides_one_unit_at_least_and_those_like_it() -> None:
    world = World().add(
        node("n1:1"), node("n2:1"), pod("r-0", at="n1", priority=500), pod("r-1", at="n2", priority=500)
    )
    for name, count in (("a", 2), ("b", 2), ("c", 1)):
        world.add(group(name, count), gang_pods(name, count, prefix=name, priority=100))
    units = ["gang:default/a", "gang:default/b", "gang:default/c"]
    plan = cut(world.state, units, searches=True, tries=1)
    assert [one.unit for one in plan.units] == units[:2]
    assert set(messages(plan)) == {"a-0", "a-1", "b-0", "b-1"}
    assert plan.deferred == (Deferred(units[2]),)


def test_a_round_whose_time_is_used_up_goes_on_placing_what_fits() -> None:
    world = full(small("s", "apart"))
    world.add(node("n3:1"), pod("r-3", at="n3", priority=0))
    world.add(pod("a", created=1, priority=500, node_selector={"kubernetes.io/hostname": "n3"}))
    units = ["default/a", GANG, "default/s"]
    plan = cut(world.state, units, searches=True, stops=False, tries=3)
    assert [one.pod_key for one in plan.evictions] == ["default/r-3"]
    assert set(bound(plan)) == {"a", "s"}
    assert plan.deferred == (Deferred(GANG),)
    assert not cut(world.state, units, searches=True, stops=False).deferred


def test_without_preemption_everybody_is_told_at_once() -> None:
    from koordpy.api.config import KoordpyConfiguration, Preemption

    world = full()
    patience = Patience(searches=False, spent=lambda: False)
    config = KoordpyConfiguration(preemption=Preemption(enabled=False))
    plan = plan_round(world.snapshot(), config, only=frozenset([GANG]), patience=patience)
    assert not plan.deferred and set(messages(plan)) == {"p-0", "p-1"}


def test_what_those_ahead_ask_of_a_quota_is_kept_for_them() -> None:
    world = World().add(node("n1:4", {"for": "gang"}), node("n2:4"), quota("team", {"cpu": "4"}, {"cpu": "4"}))
    of_team = {keys.QUOTA_NAME: "team"}
    world.add(pod("r", cpu="3", at="n1", labels=of_team), group("train", 2))
    world.add(gang_pods("train", 2, labels=of_team, node_selector={"for": "gang"}), small("s", labels=of_team))
    plan = cut(world.state, ["default/s"], waiting=[GANG])
    assert plan.deferred == (Deferred("default/s", kept_off=True),)
    assert set(bound(cut(world.state, ["default/s"], waiting=[GANG], lapsed=[GANG]))) == {"s"}
    world.add(quota("team", {"cpu": "6"}, {"cpu": "6"}))
    assert set(bound(cut(world.state, ["default/s"], waiting=[GANG]))) == {"s"}
    world.add(quota("team", {"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "1"}))
    assert set(bound(cut(world.state, ["default/s"], waiting=[GANG]))) == {"s"}


def test_who_is_refused_by_a_runtime_has_a_second_turn_in_a_round_that_is_cut_too() -> None:
    """The next round, of those that it left undecided, does not look at it any more."""
    world = World().add(node("n1:8"), quota("a", {"cpu": "4"}, {"cpu": "8"}), quota("b", {"cpu": "4"}, {"cpu": "8"}))
    for name, team, age in (("old", "a", 0), ("new", "b", 9)):
        world.add(pod(name, cpu="6", labels={keys.QUOTA_NAME: team}, created=age))
    plan = cut(world.state, ["default/old", "default/new"], searches=True, tries=1)
    assert set(bound(plan)) == {"old"} and plan.deferred == (Deferred("default/new"),)


def test_what_tenants_of_all_kinds_ask_of_a_quota_is_kept_together() -> None:
    world = World().add(node("n1:9", {"for": "them"}), node("n2:9"), quota("team", {"cpu": "4"}, {"cpu": "4"}))
    for namespace in ("busy", "idle"):
        world.add(of(namespace, "w", cpu="2", labels={keys.QUOTA_NAME: "team"}, node_selector={"for": "them"}))
    world.add(of("busy", "s", created=9, labels={keys.QUOTA_NAME: "team"}))
    plan = cut(world.state, ["busy/s"], waiting=["busy/w", "idle/w"], over=["busy"])
    assert plan.deferred == (Deferred("busy/s", kept_off=True),)


def test_who_fails_like_another_takes_no_time() -> None:
    world = World().add(node("n1:1"), *(pod(f"p{i}", cpu="9") for i in range(3)))
    plan = cut(world.state, [f"default/p{i}" for i in range(3)], searches=True)
    assert [one.seconds is not None for one in plan.units] == [True, False, False]


def test_a_round_is_cut_after_one_unit_for_who_came_meanwhile() -> None:
    world = World().add(node("n1:3"), small("a"), small("b"), small("c"))
    names = [f"default/{name}" for name in "abc"]
    patience = Patience(searches=True, spent=lambda: False, cut=lambda: True)
    plan = plan_round(world.snapshot(), only=frozenset(names), patience=patience)
    assert set(bound(plan)) == {"a"}
    assert plan.deferred == (Deferred("default/b"), Deferred("default/c"))


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


def at_step(number: int) -> Interrupts:
    """Somebody comes at this step of the searches, and another at each that follows."""
    steps = 0

    def came() -> bool:
        nonlocal steps
        steps += 1
        return steps > number

    return Interrupts(came)


def test_a_search_that_is_given_up_leaves_the_round_as_it_found_it() -> None:
    """At whatever step: those before it are decided as ever, those behind it as if it were not there."""
    given_up = 0
    for seed in range(40):
        world, units = _random(random.Random(seed))
        whole = plan_round(world.snapshot(), only=frozenset(units))
        order = [one.unit for one in whole.units]
        for number in (0, 1, 2, 5, 11):
            plan = cut(world.state, units, searches=True, interrupts=at_step(number))
            left = [one.unit for one in plan.deferred]
            assert left == order[len(order) - len(left) :], (seed, number)
            decided = set(order) - set(left)
            assert [p for p in whole.placements if p.unit in decided] == list(plan.placements)
            assert [e for e in whole.evictions if e.unit in decided] == list(plan.evictions)
            if left:
                given_up += 1
                assert plan.deferred[0] == Deferred(left[0], interrupted=True)
                carried = cut(world.state, units, searches=True, interrupts=at_step(number), firm=left[:1])
                assert left[0] not in {one.unit for one in carried.deferred}
        first = cut(world.state, units, searches=True, stops=False, interrupts=at_step(0))
        others = {*units} - {one.unit for one in first.deferred}
        second = cut(world.state, others, searches=True, stops=False, interrupts=at_step(0))
        assert (first.placements, first.evictions) == (second.placements, second.evictions), seed
    assert given_up > 50


def test_a_search_is_given_up_while_its_model_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gang of a thousand kinds of pods makes one of seconds."""
    monkeypatch.setattr(cp_model.CpSolver, "solve", lambda *_: pytest.fail("the model was made whole"))
    world = World().add(TWO_LAYERS, *nodes_of("s1{b1: n1:4 n2:5 n3:6; b2: n4:7 n5:8}"))
    world.add(group("train", 9, wish({"blockLayer": "Prefer"})))
    world.add(*(pod(f"train-{i}", gang="train", cpu=f"{1000 + 100 * i}m") for i in range(9)))
    for number in range(5):
        plan = cut(world.state, [GANG], searches=True, interrupts=at_step(number))
        assert plan.deferred == (Deferred(GANG, interrupted=True),)


def test_a_gang_of_many_kinds_is_given_up_while_their_figures_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver, "solve", lambda *_: pytest.fail("the figures were made whole"))
    world = World().add(TWO_LAYERS, *nodes_of("s1{b1: n1:400}"), group("train", 200))
    world.add(*(pod(f"train-{i}", gang="train", cpu=f"{i + 1}m") for i in range(200)))
    for number in range(3):
        plan = cut(world.state, [GANG], searches=True, interrupts=at_step(number))
        assert plan.deferred == (Deferred(GANG, interrupted=True),)


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


def test_a_solve_is_ended_by_who_comes_meanwhile() -> None:
    model = hard_model()
    came = threading.Event()
    interrupts = Interrupts(came.is_set)
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.01):
            came.set()
            interrupts.look()

    other = threading.Thread(target=look)
    other.start()
    try:
        with pytest.raises(Interrupted):
            TimeBudget(1e9, watchdog_seconds=3600, interrupts=interrupts).solve("hard", model)
    finally:
        ended.set()
        other.join()


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
    assert len(seconds) == 2  # of the victims, and of where the gang stands with them gone
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
    patience = Patience(searches=True, spent=lambda: False, begins=lambda: said.append("begun"))
    plan = plan_round(world.snapshot(), only=frozenset(["default/a", "default/b"]), patience=patience)
    assert len(plan.placements) == 2 and said == ["begun"]


def test_a_round_that_is_cut_leaves_nobody_out_who_had_no_part_of_it() -> None:
    world = World().add(node("n1:9"), *(of("many", f"p{i}") for i in range(4)), of("one", "p"), of("one", "q"))
    names = [*(f"many/p{i}" for i in range(4)), "one/p", "one/q"]
    patience = Patience(
        searches=True,
        spent=lambda: False,
        cut=lambda: True,
        shared=lambda: 2.0,
        clock=itertools.count(0.0).__next__,
    )
    plan = plan_round(world.snapshot(), only=frozenset(names), patience=patience)
    # each takes a second, which is an equal part of two seconds
    assert [one.unit for one in plan.units] == ["many/p0", "one/p"]
    assert all(not one.passed_over for one in plan.deferred) and len(plan.deferred) == 4


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
    patience = Patience(
        searches=False,
        spent=lambda: False,
        shared=lambda: seconds,
        came=lambda: came or {},
        clock=itertools.count(0.0).__next__,
    )
    plan = plan_round(world.snapshot(), config, only=frozenset(names), evict=False, patience=patience)
    assert {one.unit for one in plan.units} | {one.unit for one in plan.deferred} == set(names)
    assert all(one == Deferred(one.unit, passed_over=True) for one in plan.deferred)
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
