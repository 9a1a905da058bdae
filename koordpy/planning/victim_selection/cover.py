"""The cheapest units of one node that make room for so many pods on it.

Costs are single integers that carry all levels (see `shortcut`), so the least one is the best set and sets of
different nodes add up. Exact for any number of resources as long as what is lacking is few steps of what units hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

from koordpy.planning.limits import NODE_COVER_COMBINATIONS, NODE_COVER_STATES


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


def covers(free: Sequence[int], request: Sequence[int], items: Sequence[Item], most: int) -> list[Cover]:
    """For 0 .. most pods (as many as fit with all items gone) the cheapest cover. Raises Unwieldy."""
    kinds = {item.frees for item in items}
    if len(kinds) == 1 and not any(item.core for item in items):
        return _of_one_kind(free, request, items, most)
    out: list[Cover] = [(0, ())]
    for number in range(1, most + 1):
        lacking = [number * asked - have for have, asked in zip(free, request, strict=True)]
        found = cover(lacking, items)
        if found is None:
            break
        out.append(found)
    return out


def _of_one_kind(free: Sequence[int], request: Sequence[int], items: Sequence[Item], most: int) -> list[Cover]:
    """The same where all units free alike: as many of the cheapest as needed."""
    frees = items[0].frees
    order = sorted(items, key=lambda item: item.cost)
    out: list[Cover] = [(0, ())]
    total, taken = 0, 0
    for number in range(1, most + 1):
        needed = 0
        for have, asked, each in zip(free, request, frees, strict=True):
            lacking = number * asked - have
            if lacking > 0:
                if not each:
                    return out
                needed = max(needed, -(-lacking // each))
        if needed > len(order):
            return out
        while taken < needed:
            total += order[taken].cost
            taken += 1
        out.append((total, tuple(item.option for item in order[:needed])))
    return out


def cover(lacking: Sequence[int], items: Sequence[Item]) -> Cover | None:
    """The cheapest units that free what is lacking of each amount; None where all together do not."""
    columns = [c for c, amount in enumerate(lacking) if amount > 0]
    if not columns:
        return 0, ()
    useful = [item for item in items if any(item.frees[c] for c in columns)]
    cores = sorted({item.gang for item in useful if item.core})
    if not cores:
        return _least([lacking[c] for c in columns], useful, columns)
    if 1 << len(cores) > NODE_COVER_COMBINATIONS:
        raise Unwieldy
    best: Cover | None = None
    for bits in range(1 << len(cores)):
        broken = {gang for i, gang in enumerate(cores) if bits >> i & 1}
        part = [item for item in useful if (item.gang in broken) == item.core or item.gang not in cores]
        found = _least([lacking[c] for c in columns], part, columns)
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    return best


def _least(lacking: list[int], items: Sequence[Item], columns: Sequence[int]) -> Cover | None:
    vectors = {tuple(item.frees[c] for c in columns) for item in items}
    if len(vectors) <= 1:
        return _alike(lacking, items, columns)
    scale = [gcd(*(vector[i] for vector in vectors)) for i in range(len(columns))]
    if not all(scale):
        return None
    need = [-(-amount // step) for amount, step in zip(lacking, scale, strict=True)]
    if prod(amount + 1 for amount in need) > NODE_COVER_STATES:
        raise Unwieldy
    states: dict[tuple[int, ...], Cover] = {tuple(need): (0, ())}
    for item in sorted(items, key=lambda item: item.cost):
        frees = [item.frees[c] // step for c, step in zip(columns, scale, strict=True)]
        for state, (cost, taken) in list(states.items()):
            after = tuple(max(0, left - amount) for left, amount in zip(state, frees, strict=True))
            total = cost + item.cost
            known = states.get(after)
            if after != state and (known is None or total < known[0]):
                states[after] = (total, (*taken, item.option))
    return states.get(tuple([0] * len(columns)))


def _alike(lacking: Sequence[int], items: Sequence[Item], columns: Sequence[int]) -> Cover | None:
    """Units that free the same: as many of the cheapest as needed."""
    if not items:
        return None
    frees = [items[0].frees[c] for c in columns]
    if not all(frees):
        return None
    number = max(-(-amount // have) for amount, have in zip(lacking, frees, strict=True))
    if number > len(items):
        return None
    chosen = sorted(items, key=lambda item: item.cost)[:number]
    return sum(item.cost for item in chosen), tuple(item.option for item in chosen)
