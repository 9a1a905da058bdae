"""The cheapest units of one node by what they free: a knapsack by dynamic programming over the amounts.

Costs are single integers that carry all levels, so the least one is the best set and sets of different nodes add up.
Exact for any number of resources as long as what is lacking is few steps of what units hold.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import gcd

from koordpy.planning.limits import NODE_COVER_COMBINATIONS, NODE_COVER_STATES

FIELD = 64
"""Bits of a level of the cost: more than any sum reaches."""
_SHIFT = 1 << 31
"""Priorities may be negative; counted from here, each pod's is not."""


def packed(*, breaks: int, devices: int, pods: int, priorities: int, rank: int, width: int) -> int:
    """The cost of a unit in levels 3 to 5, 8 and 9. rank: its place in the order of importance, below `width`."""
    early = (breaks << FIELD | devices) << FIELD | pods
    return (early << FIELD | priorities + _SHIFT * pods) << width | 1 << rank


@dataclass(frozen=True, slots=True)
class Item:
    """A unit on one node. frees: amounts by position of the request. rival: cores and surplus of one gang share it."""

    option: int
    frees: tuple[int, ...]
    cost: int
    gang: int = -1
    core: bool = False


Cover = tuple[int, tuple[int, ...]]
"""(cost, options)."""


class Unwieldy(Exception):
    """Too many ways for this method."""


class NodeCovers:
    """Sets of units of one node. most: the largest amounts that will be asked for. Raises Unwieldy."""

    def __init__(self, items: Sequence[Item], most: Sequence[int]) -> None:
        self._scale = [gcd(*(item.frees[c] for item in items)) for c in range(len(most))]
        columns = [c for c, amount in enumerate(most) if amount > 0 and self._scale[c]]
        self._columns, self._cap = columns, [-(-most[c] // self._scale[c]) for c in columns]
        useful = sorted((item for item in items if any(item.frees[c] for c in columns)), key=lambda item: item.cost)
        cores = sorted({item.gang for item in useful if item.core})
        if 1 << len(cores) > NODE_COVER_COMBINATIONS:
            raise Unwieldy
        found: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []
        for bits in range(1 << len(cores)):
            broken = {gang for i, gang in enumerate(cores) if bits >> i & 1}
            part = [item for item in useful if (item.gang in broken) == item.core or item.gang not in cores]
            found += ((cost, taken, freed) for freed, (cost, taken) in self._sets(part).items())
        self._found = sorted(found)
        """(cost, options, steps freed by column), the cheapest first."""

    def _sets(self, items: Iterable[Item]) -> dict[tuple[int, ...], Cover]:
        """Steps freed by column, at most as many as are asked for -> the cheapest units that free them."""
        states: dict[tuple[int, ...], Cover] = {(0,) * len(self._columns): (0, ())}
        for item in items:
            frees = [item.frees[c] // self._scale[c] for c in self._columns]
            for state, (cost, taken) in list(states.items()):
                after = tuple(map(min, map(sum, zip(state, frees, strict=True)), self._cap))
                total = cost + item.cost
                known = states.get(after)
                if after != state and (known is None or total < known[0]):
                    states[after] = (total, (*taken, item.option))
            if len(states) > NODE_COVER_STATES:
                raise Unwieldy
        return states

    def least(self, lacking: Sequence[int]) -> Cover | None:
        """The cheapest units that free what is lacking of each amount; None where all together do not."""
        if any(amount > 0 and not step for amount, step in zip(lacking, self._scale, strict=True)):
            return None
        need = [-(-lacking[c] // self._scale[c]) for c in self._columns]
        enough = (one for one in self._found if all(have >= want for have, want in zip(one[2], need, strict=True)))
        return next(((cost, taken) for cost, taken, _ in enough), None)
