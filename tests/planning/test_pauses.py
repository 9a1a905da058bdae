"""Rounds beside a search: it pauses for them, and finds what it would have found without."""

import random
import threading
import time
from collections.abc import Callable

import pytest

from koordpy.planning.patience import Patience, Pauses
from koordpy.planning.plan import RoundPlan
from koordpy.planning.round import PlannerCache, plan_round
from tests.planning.test_patience import _random
from tests.scenarios.cluster import World, group, node, pod


class Between(Pauses):
    """Others plan at each of the first steps, and during each of the first solves."""

    def __init__(self, others: Callable[[int], None], most: int) -> None:
        super().__init__()
        self.times = 0
        self._others, self._most = others, most

    def step(self) -> None:
        if self.times < self._most:
            self.times += 1
            self._others(self.times)

    def solving(self, solve: Callable[[], object], stop: Callable[[], None]) -> object:  # type: ignore[override]
        self.step()
        return solve()


def searched(world: World, units: list[str], pauses: Pauses | None, cache: PlannerCache) -> RoundPlan:
    patience = Patience(searches=True, spent=lambda: False, stops=True, pauses=pauses)
    return plan_round(world.snapshot(), only=frozenset(units), patience=patience, planner_cache=cache)


@pytest.mark.parametrize("seed", range(30))
def test_what_is_planned_and_changed_meanwhile_changes_nothing_of_a_round(seed: int) -> None:
    """One cache, one ClusterState: pods are placed, nodes and labels change and snapshots are taken while it pauses."""
    world, units = _random(random.Random(seed))
    alone = searched(world, units, None, PlannerCache())
    cache, rng = PlannerCache(), random.Random(seed)
    placed = 0

    def others(time: int) -> None:
        nonlocal placed
        world.add(node(f"m{time}:2", {"zone": str(time)}), pod(f"new-{time}", created=50 + time))
        if rng.random() < 0.5:
            world.add(node(f"n{rng.randrange(4)}:4", {"rack": str(time)}))
        patience = Patience(searches=False, spent=lambda: False)
        plan = plan_round(
            world.snapshot(), only=frozenset([f"default/new-{time}"]), patience=patience, planner_cache=cache
        )
        for one in plan.placements:
            world.state.bind(one.pod_key, one.node, dict(one.annotations))
            placed += 1

    pauses = Between(others, 12)
    beside = searched(world, units, pauses, cache)
    assert placed == pauses.times > 0
    assert (beside.placements, beside.evictions, beside.pending) == (alone.placements, alone.evictions, alone.pending)
    assert (beside.gangs, beside.nominations) == (alone.gangs, alone.nominations)


def test_once_a_round_has_decided_it_is_cut_and_does_not_pause() -> None:
    world = World().add(node("n1:2"), pod("a"), pod("b"), pod("c"))
    steps: list[int] = []
    pauses = Between(steps.append, 99)
    patience = Patience(searches=True, spent=lambda: False, stops=True, pauses=pauses, cut=lambda: True)
    plan = plan_round(world.snapshot(), only=frozenset(["default/a", "default/b", "default/c"]), patience=patience)
    assert len(plan.placements) == 1 and len(plan.deferred) == 2
    assert steps == [1], "before the first unit"


def test_a_round_pauses_before_each_kind_of_pod_that_it_says_something_of() -> None:
    steps = {}
    for kinds in (2, 12):
        world = World().add(node("n1:2"), group("train", kinds))
        world.add(*(pod(f"p-{i}", gang="train", cpu=str(9 + i)) for i in range(kinds)))
        pauses = Between(lambda times: None, 99)
        assert len(searched(world, ["gang:default/train"], pauses, PlannerCache()).pending) == kinds
        steps[kinds] = pauses.times
    assert steps[12] == steps[2] + 10


def test_a_round_that_pauses_is_cut_for_who_was_left_undecided_beside_it() -> None:
    world = World().add(node("n1:2"), *(pod(name, cpu=str(i)) for i, name in enumerate("abc", 7)))
    pauses = Between(lambda times: setattr(pauses, "left", True), 1)
    patience = Patience(searches=True, spent=lambda: False, pauses=pauses, cut=lambda: True)
    plan = plan_round(world.snapshot(), only=frozenset(["default/a", "default/b", "default/c"]), patience=patience)
    assert [one.unit for one in plan.units] == ["default/a"]


def spin(there: Callable[[], bool]) -> None:
    for _ in range(60_000):
        if there():
            return
        time.sleep(0.001)
    pytest.fail("it never came")


class Search:
    """A thread that counts its steps until it is told to end, with a solve in the middle if that is held."""

    def __init__(self) -> None:
        self.pauses = Pauses()
        self.steps = 0
        self.ends = threading.Event()
        self.solves = threading.Event()
        self.solved = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with self.pauses.planning():
            while not self.ends.is_set():
                self.pauses.step()
                self.steps += 1
                if self.solves.is_set():
                    self.pauses.solving(self.solved.wait, lambda: None)

    def taken(self) -> None:
        """Waits until it is ours to plan."""
        self.pauses.hold()
        spin(self.pauses.take)


def test_a_search_stands_still_while_another_has_its_turn_and_goes_on_then() -> None:
    search = Search()
    search.thread.start()
    for _ in range(50):
        search.taken()
        stood = search.steps
        assert all(search.steps == stood for _ in range(200))
        search.pauses.go_on(taken=True, seconds=0.5)
        spin(lambda stood=stood: search.steps > stood)  # type: ignore[misc]
    search.ends.set()
    search.thread.join(60)
    assert search.pauses.seconds == 25.0
    assert search.pauses.take(), "who has ended holds nobody up"


def test_a_solve_goes_on_while_another_plans_and_its_answer_waits() -> None:
    search = Search()
    search.solves.set()
    search.thread.start()
    search.taken()
    search.solves.clear()
    stood = search.steps
    search.solved.set()
    assert all(search.steps == stood for _ in range(200))
    search.pauses.go_on(taken=True, seconds=0.0)
    spin(lambda: search.steps > stood)
    search.ends.set()
    search.thread.join(60)


def test_who_gives_up_waiting_for_its_turn_lets_the_search_go_on() -> None:
    search = Search()
    with search.pauses.planning():
        search.pauses.hold()
        assert not search.pauses.take()
        search.pauses.go_on(taken=False, seconds=0.0)
        search.pauses.step()
    assert search.pauses.seconds == 0.0
