"""The cheapest units of one node that free given amounts: a knapsack by dynamic programming over the amounts.

A cost is a single integer that contains all levels, so the least one is the best set, and sets of different nodes add
up. Exact for any number of resources. The number of states grows with the lacking amounts, in steps of what units use.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, combinations
from math import gcd
from operator import attrgetter, lt
from typing import NamedTuple

from koordpy.plan.limits import NODE_COVER_COMBINATIONS, NODE_COVER_STATES

LEVEL_BITS = 64
"""Bits of a level of the cost: no sum exceeds them."""
_SHIFT = 1 << 31
"""Added to each pod's priority, which may be negative, so that the sum is not."""


def packed(*, breaks: int, devices: int, pods: int, priorities: int, rank: int, width: int) -> int:
    """Returns the cost of a unit in levels 3 to 5, 8 and 9. rank: its position by importance, below `width`."""
    early = (breaks << LEVEL_BITS | devices) << LEVEL_BITS | pods
    return (early << LEVEL_BITS | priorities + _SHIFT * pods) << width | 1 << rank


class Item(NamedTuple):
    """A unit on one node.

    frees: amounts by position of the request. gang: number shared by the core and the surplus of a gang, -1 for none.
    """

    option: int
    frees: tuple[int, ...]
    cost: int
    gang: int = -1
    core: bool = False


Cover = tuple[int, tuple[int, ...]]
"""(cost, options)."""


class Unwieldy(Exception):
    """Raised if the problem has too many combinations for a method."""


class NodeCovers:
    """Sets of units of one node. most: the largest amounts that will be requested. Raises `Unwieldy`."""

    def __init__(self, items: Sequence[Item], most: Sequence[int]) -> None:
        asked = [c for c, amount in enumerate(most) if amount > 0]
        equal: dict[tuple[int, ...], list[Item]] = {}
        for item in items:
            equal.setdefault(item.frees, []).append(item)
        self._scale = {c: gcd(*(frees[c] for frees in equal)) for c in asked}
        self._columns = [c for c in asked if self._scale[c]]
        self._cap = [-(-most[c] // self._scale[c]) for c in self._columns]
        kinds: dict[tuple[int, ...], list[Item]] = {}
        for frees, some in equal.items():
            steps = tuple([frees[c] // self._scale[c] for c in self._columns])
            if any(steps):
                kinds.setdefault(steps, []).extend(some)
        for alike in kinds.values():
            alike.sort(key=attrgetter("cost"))
        cores = {item.gang for alike in kinds.values() for item in alike if item.core}
        if 1 << len(cores) > NODE_COVER_COMBINATIONS:
            raise Unwieldy
        found: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []
        for broken in chain.from_iterable(combinations(cores, number) for number in range(len(cores) + 1)):
            part = {
                steps: [item for item in alike if item.gang not in cores or (item.gang in broken) == item.core]
                for steps, alike in kinds.items()
            }
            found += [(cost, taken, freed) for freed, (cost, taken) in self._sets(part).items()]
        self._found = sorted(found)
        """(cost, options, steps freed by column), the cheapest first."""

    def _sets(self, kinds: Mapping[tuple[int, ...], Sequence[Item]]) -> dict[tuple[int, ...], Cover]:
        """Returns steps freed by column, capped at the request -> the cheapest units that free them.

        kinds: steps that units free -> these units, the cheapest first.
        """
        states: dict[tuple[int, ...], Cover] = {(0,) * len(self._columns): (0, ())}
        for steps, alike in kinds.items():
            before, total, options = list(states.items()), 0, tuple[int, ...]()
            most = max([-(-cap // step) for step, cap in zip(steps, self._cap, strict=True) if step])
            for number, item in enumerate(alike[:most], start=1):
                total, options = total + item.cost, (*options, item.option)
                for freed, (cost, taken) in before:
                    sums = zip(freed, steps, self._cap, strict=True)
                    after = tuple([min(have + number * step, cap) for have, step, cap in sums])
                    known = states.get(after)
                    if known is None or cost + total < known[0]:
                        states[after] = cost + total, (*taken, *options)
            if len(states) > NODE_COVER_STATES:
                raise Unwieldy
        return states

    def rising(self, every: Iterable[Sequence[int]]) -> list[Cover]:
        """Returns the cheapest units for each of some non-decreasing lacking amounts, until all units are too few."""
        out: list[Cover] = []
        found = iter(self._found)
        cost, taken, freed = next(found)
        for lacking in every:
            if any(lacking[c] > 0 and not step for c, step in self._scale.items()):
                break
            need = [-(-lacking[c] // self._scale[c]) for c in self._columns]
            while any(map(lt, freed, need)):
                if (following := next(found, None)) is None:
                    return out
                cost, taken, freed = following
            out.append((cost, taken))
        return out
