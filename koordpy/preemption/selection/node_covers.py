# SPDX-License-Identifier: Apache-2.0
"""The cheapest victims on one node that free given amounts there: a knapsack by dynamic programming over the amounts.

The cost of a set is one integer that contains the cost levels 3 to 5, 8 and 9. So the set with the lowest integer is
the best, and costs of several nodes can be added. The result is exact for any number of resources. Amounts are counted
in steps, the greatest common divisor of the amounts that units free. The number of states grows with the lacking
amounts in steps.

A plain pod takes the cheapest cover of one node (`search/single_pod.py`), a gang the cheapest covers of several nodes
(`counted_victims.py`). Both use `ItemBuilder` to make the items of the knapsack.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, combinations
from math import gcd
from operator import attrgetter, lt
from typing import NamedTuple

from koordpy.plan.limits import NODE_COVER_COMBINATIONS, NODE_COVER_STATES
from koordpy.preemption.selection.victim_choice import UnitFigures

LEVEL_BITS = 64
"""Bits of each level in a cost: enough for the sum of the level over all units."""
_SHIFT = 1 << 31
"""Added to the priority of each pod, so that the sum of priorities is never negative."""


class Item(NamedTuple):
    """A victim unit on one node, as an item of the knapsack."""

    option: int
    frees: tuple[int, ...]
    """Amounts that the unit frees, in the order of the requested amounts."""
    cost: int
    """Levels 3 to 5, 8 and 9, the first in the highest bits."""
    gang: int = -1
    """Number of the unit's gang, equal for its core and its surplus units, which exclude each other; -1 for no gang."""
    core: bool = False
    """True if the unit is the core of its gang."""


class ItemBuilder:
    """Turns the numbers of victim units into items."""

    def __init__(self, columns: Sequence[int], width: int) -> None:
        """columns: the requested resources, in the order of `Item.frees`. width: upper bound of the ranks of units."""
        self._columns, self._width = columns, width
        self._known: dict[tuple[tuple[int, int], ...], tuple[int, ...]] = {}
        """Cache: amounts that a unit frees on a node by column -> the same amounts in the order of `columns`."""

    def item(self, option: int, unit: UnitFigures, node: int, *, rank: int, gang: int = -1) -> Item:
        """Returns a unit as an item of a node.

        rank: position of the unit by importance, below `width`. gang: see `Item.gang`.
        """
        held = unit.frees[0][1] if len(unit.frees) == 1 else next(held for at, held in unit.frees if at == node)
        if (frees := self._known.get(held)) is None:
            amounts = dict(held)
            frees = self._known[held] = tuple([amounts.get(column, 0) for column in self._columns])
        # level 9 is one bit per unit, so sparing a unit outweighs sparing all less important units together
        early = (unit.breaks << LEVEL_BITS | unit.devices) << LEVEL_BITS | unit.pods
        cost = (early << LEVEL_BITS | unit.priorities + _SHIFT * unit.pods) << self._width | 1 << rank
        return Item(option, frees, cost, gang, bool(unit.breaks))


Cover = tuple[int, tuple[int, ...]]
"""A set of units that frees enough: (its cost, its options)."""


class Unwieldy(Exception):
    """Raised if the problem has too many combinations for an exact method, so that another method must decide."""


class NodeCovers:
    """The cheapest sets of units of one node, for all amounts up to `most`.

    Raises `Unwieldy` if there are more than `NODE_COVER_STATES` states, or more than `NODE_COVER_COMBINATIONS`
    combinations of broken gangs.
    """

    def __init__(self, items: Sequence[Item], most: Sequence[int]) -> None:
        """most: the largest amounts that will be requested, in the order of `Item.frees`."""
        # amounts in steps: the step of a column is the greatest common divisor of the amounts that units free in it
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
        # of units that free equal steps, the cheaper ones are chosen first
        for alike in kinds.values():
            alike.sort(key=attrgetter("cost"))
        # core and surplus of a gang exclude each other, so each combination of broken gangs is solved separately
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
        """(cost, options, steps freed per column) of each set, the cheapest set first."""

    def _sets(self, kinds: Mapping[tuple[int, ...], Sequence[Item]]) -> dict[tuple[int, ...], Cover]:
        """Returns steps freed per column, capped at the request -> the cheapest units that free this much.

        kinds: steps that a unit frees per column -> the units that free exactly these steps, the cheapest first.
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
        """Returns the cheapest set of units for each of several lacking amounts, which must not decrease.

        The list ends before the first amounts that all units together do not free.
        """
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
