# SPDX-License-Identifier: Apache-2.0
"""The seconds that searches take are shared among namespaces, however many units one of them has, or makes."""

import asyncio
from dataclasses import dataclass
from math import inf

import pytest

from koordpy.engine.planning_turns import ByTurns, SearchTurns, Turnstile
from koordpy.engine.queue_entry import QueuedPod
from koordpy.engine.queue_order import select_light_units
from koordpy.engine.scheduling_queue import UnitQueue


@dataclass
class Unit:
    tenant: str
    name: str
    answered_at: float = -inf


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
        first.answered_at = self.now
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
    entries = [queue.entries.get(name) for name in ("a1/p", "a2/p", "b/p")]
    assert [one.unit for one in select_light_units([one for one in entries if one is not None], 2)] == ["a1/p", "b/p"]


def test_each_unit_of_a_namespace_has_its_turn_before_one_of_them_has_a_second() -> None:
    rounds = Rounds(*many("a", 3))
    assert [rounds.round(stays=True).name for _ in range(6)] == ["000", "001", "002", "000", "001", "002"]


def test_once_nobody_waits_all_begin_anew() -> None:
    rounds = Rounds(*many("a", 3))
    for _ in range(3):
        rounds.round()
    rounds.turns.reset()
    rounds.units = [*many("a", 2), *many("b", 1)]
    assert rounds.round().tenant == "a"


def test_who_has_much_is_next_after_each_of_those_who_have_less() -> None:
    line: ByTurns[str] = ByTurns()
    for one in ("a1", "a2", "a3", "b1", "b2", "c1"):
        line.add(one[0], one)
    assert [line.next() for _ in range(len(line))] == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert not line and not line.lines


def test_what_falls_out_is_the_last_of_who_has_most() -> None:
    line: ByTurns[str] = ByTurns()
    for one in ("a1", "a2", "b1"):
        line.add(one[0], one)
    assert line.drop(2) is None
    assert [line.drop(least) for least in (1, 0, 0)] == ["a2", "a1", "b1"]
    assert not line and not line.lines


async def test_a_gate_lets_namespaces_in_by_turns() -> None:
    gate, order = Turnstile(1), list[str]()

    async def enter(name: str) -> None:
        async with gate.turn(name[0]):
            order.append(name)
            await asyncio.sleep(0)

    await asyncio.gather(*map(enter, ("a1", "a2", "a3", "b1")))
    assert order == ["a1", "a2", "b1", "a3"]


async def test_who_gives_up_at_a_gate_leaves_his_turn_to_others() -> None:
    gate, order = Turnstile(1), list[str]()

    async def enter(name: str) -> None:
        async with gate.turn(name):
            order.append(name)

    async with gate.turn("a"):
        waits = [asyncio.create_task(enter(name)) for name in "bcd"]
        await asyncio.sleep(0)
        waits[0].cancel()
    waits[1].cancel()  # its turn came at the same moment
    await asyncio.gather(*waits, return_exceptions=True)
    await enter("e")
    assert order == ["d", "e"]
