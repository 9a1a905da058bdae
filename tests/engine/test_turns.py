"""The seconds that searches take are shared among namespaces, however many units one of them has, or makes."""

from dataclasses import dataclass
from math import inf

import pytest

from koordpy.engine.queue import QueuedPod, UnitQueue, first_of
from koordpy.engine.turns import SearchTurns


@dataclass
class Unit:
    tenant: str
    name: str
    answered: float = -inf


class Rounds:
    """Rounds in which the first of the units given is searched for, a namespace's in the order of their names."""

    def __init__(self, *units: Unit, seconds: float = 2.0) -> None:
        self.now, self.seconds = 0.0, seconds
        self.turns = SearchTurns(lambda: self.now, 0.5)
        self.units = list(units)

    def round(self, stays: bool = False) -> Unit:
        """The unit that had its search, and that is gone then."""
        self.now += 0.001
        first = min(self.turns.next(self.units), key=lambda one: (one.tenant, one.name))
        self.now += self.seconds
        first.answered = self.now
        self.turns.took(first.tenant, self.seconds)
        if not stays:
            self.units.remove(first)
        return first


def many(tenant: str, count: int) -> list[Unit]:
    return [Unit(tenant, f"{i:03}") for i in range(count)]


def test_a_namespace_with_many_units_does_not_come_first_with_all_of_them() -> None:
    rounds = Rounds(*many("a", 50), *many("b", 2))
    assert [rounds.round().tenant for _ in range(5)] == ["a", "b", "a", "b", "a"]


def test_nor_does_one_that_makes_new_ones_all_the_time() -> None:
    rounds = Rounds(*many("a", 1), *many("b", 1))
    order = []
    for i in range(6):
        order.append(rounds.round().tenant)
        if order[-1] == "a":
            rounds.units.append(Unit("a", f"new-{i}"))
    assert "b" in order[:2]


def test_time_that_was_not_asked_for_is_not_saved_up() -> None:
    rounds = Rounds(*many("a", 9))
    for _ in range(5):
        rounds.round()
    rounds.units += many("b", 9)
    assert [rounds.round().tenant for _ in range(4)].count("a") >= 1


@pytest.mark.parametrize("seconds", [0.01, 0.2])
def test_short_searches_go_in_the_order_of_the_queue_until_the_part_is_used_up(seconds: float) -> None:
    rounds = Rounds(*many("a", 99), *many("b", 1), seconds=seconds)
    before = 0
    while rounds.round().tenant == "a":
        before += 1
    assert before == pytest.approx(0.5 / seconds, abs=1.1)


def test_namespaces_of_one_tenant_have_one_part() -> None:
    queue = UnitQueue(tenant_of=lambda namespace: namespace[0])
    for name in ("a1/p", "a2/p", "b/p"):
        queue.add(name, QueuedPod(name, name, added=0.0, priority=0, created=float(name[1] == "/"), light=True))
    entries = [queue.entry(name) for name in ("a1/p", "a2/p", "b/p")]
    assert [one.unit for one in first_of([one for one in entries if one is not None], 2)] == ["a1/p", "b/p"]


def test_each_unit_of_a_namespace_has_its_turn_before_one_of_them_has_a_second() -> None:
    rounds = Rounds(*many("a", 3))
    assert [rounds.round(stays=True).name for _ in range(6)] == ["000", "001", "002", "000", "001", "002"]


def test_once_nobody_waits_all_begin_anew() -> None:
    rounds = Rounds(*many("a", 3))
    for _ in range(3):
        rounds.round()
    assert rounds.turns.next([]) == []
    rounds.units = [*many("a", 2), *many("b", 1)]
    assert rounds.round().tenant == "a"
