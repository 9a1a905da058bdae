# SPDX-License-Identifier: Apache-2.0
"""Units that wait for nodes are woken once growing usage of a quota excludes them, each once and few at a time."""

from collections.abc import Iterator
from itertools import combinations
from random import Random

import pytest

from koordpy.engine.quota_watch import MOST_AT_ONCE, PAUSE_SECONDS, QuotaWatch
from koordpy.engine.scheduling_queue import UnitQueue
from koordpy.engine.wakeups import Wake
from koordpy.fairness.least_requests import least_requests
from koordpy.gangs.queue_units import Groups, Unit
from koordpy.plan.quota_needs import QuotaNeed
from tests.engine.test_queue import Clock, add
from tests.scenarios.cluster import World, group, node, pod
from tests.scenarios.quotas import belongs, quota


def need(cores: int, name: str = "a", *, rigid: bool = False) -> QuotaNeed:
    return QuotaNeed(name, rigid, "cpu", cores * 1000)


def refuse(queue: UnitQueue, watch: QuotaWatch, needs: list[QuotaNeed]) -> None:
    """Ends an attempt of all due units: they wait for nodes."""
    for entry in queue.take(light_pods=10_000):
        queue.settle_unschedulable(entry, wakes=Wake.NODE_ADDED, plugins=(), gated=False, seconds=0.0)
        watch.settled(entry.unit, needs)


def use(world: World, name: str, cores: int, of: str = "a", *, rigid: bool = False) -> None:
    world.add(pod(name, at="n1", cpu=str(cores), labels=belongs(of, rigid=rigid)))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> UnitQueue:
    return UnitQueue(clock=clock)


@pytest.fixture
def world() -> World:
    top = quota("top", 0, 8, inner=True)
    return World().add(node("n1:99"), top, quota("a", 0, 6, parent="top"), quota("b", 2, 9, parent="top"))


@pytest.mark.parametrize(
    ("needs", "of", "cores", "rigid", "woken"),
    [
        ([need(2)], "a", 4, False, False),
        ([need(2)], "a", 5, False, True),
        ([need(2)], "b", 5, False, False),
        ([need(2), need(2, "top")], "b", 6, False, False),
        ([need(2), need(2, "top")], "b", 7, False, True),
        ([need(1, "b", rigid=True)], "b", 2, False, False),
        ([need(1, "b", rigid=True)], "b", 1, True, False),
        ([need(1, "b", rigid=True)], "b", 2, True, True),
        ([], "a", 6, False, False),
    ],
)
def test_a_unit_is_woken_if_a_limit_admits_it_no_more(
    world: World,
    clock: Clock,
    queue: UnitQueue,
    needs: list[QuotaNeed],
    of: str,
    cores: int,
    rigid: bool,
    woken: bool,
) -> None:
    watch = QuotaWatch(world.state, queue)
    add(queue, "p")
    refuse(queue, watch, needs)
    watch.look()
    assert not queue.ready()
    use(world, "x", cores, of, rigid=rigid)
    watch.look()
    assert not queue.ready(), "too early"
    clock.now += PAUSE_SECONDS
    watch.look()
    assert queue.ready() is woken
    assert watch.next_look() is None


def test_a_unit_that_was_woken_in_vain_is_not_woken_again_before_its_next_attempt(
    world: World, clock: Clock, queue: UnitQueue
) -> None:
    watch, woken = QuotaWatch(world.state, queue), []
    add(queue, "p")
    use(world, "x", 5)
    for step in range(6):
        if step == 3:
            queue.touch("default/p", "PodUpdate")
        refuse(queue, watch, [need(2)])
        use(world, f"more-{step}", 0)
        clock.now += PAUSE_SECONDS
        watch.look()
        woken.append(queue.ready())
    assert woken == [True, False, False, True, False, False]


def test_thousands_of_units_are_woken_little_by_little(world: World, clock: Clock, queue: UnitQueue) -> None:
    watch, number = QuotaWatch(world.state, queue), 2 * MOST_AT_ONCE + 10
    names = [f"p-{i}" for i in range(number)]
    add(queue, *names)
    refuse(queue, watch, [need(2)])
    use(world, "x", 5)
    woken = []
    while watch.next_look() is not None:
        clock.now += PAUSE_SECONDS
        watch.look()
        woken.append(len(queue.take(light_pods=number)))
    assert woken == [MOST_AT_ONCE, MOST_AT_ONCE, 10]


def test_entries_of_units_that_are_gone_do_not_stay(world: World, clock: Clock, queue: UnitQueue) -> None:
    watch = QuotaWatch(world.state, queue)
    for i in range(5000):
        add(queue, "p")
        refuse(queue, watch, [need(1 + i % 2)])
        queue.discard("default/p")
    assert sum(map(len, watch._heaps.values())) < 1100
    watch.forget()
    assert not watch._heaps and not watch.needs


# -- what a unit adds ------------------------------------------------------------------------------------------------


def units() -> Iterator[tuple[Unit, World]]:
    """Random gangs and pods in quotas, of different requests."""
    for seed in range(60):
        random = Random(seed)
        world = World().add(quota("top", 0, 9, inner=True), quota("a", 1, 9, parent="top"), quota("b", 0, 9))
        minimum = random.randint(0, 3)
        world.add(group("g", minimum))
        for i in range(random.randint(max(1, minimum), 4)):
            team = belongs(random.choice(["a", "b", ""]), rigid=random.random() < 0.3)
            world.add(pod(f"p-{i}", gang=random.choice(["g", "g", ""]), cpu=str(random.randint(1, 3)), labels=team))
        for unit in Groups(world.snapshot()).units():
            if all(unit.need(gang) <= len(gang.pending) for gang in unit.gangs):
                yield unit, world


def test_least_requests_are_those_of_an_enumeration() -> None:
    tried = 0
    for unit, world in units():
        quotas = world.snapshot().quotas
        needed = sum(unit.need(gang) for gang in unit.gangs)
        cores = combinations(unit.pending, needed) if needed else [unit.pending[:1]]
        sums: dict[tuple[str, bool], list[int]] = {}
        for core in cores:
            for name in quotas.tree.quotas:
                for rigid in (False, True):
                    inside = [one for one in core if name in quotas.tree.path(quotas.quota_of(one))]
                    inside = [one for one in inside if one.owner.rigid or not rigid]
                    sums.setdefault((name, rigid), []).append(sum(one.charged["cpu"] for one in inside))
        expected = {(*key, "cpu", min(found)) for key, found in sums.items() if min(found)}
        assert {tuple(one) for one in least_requests(unit, quotas)} == expected
        tried += bool(expected)
    assert tried > 30
