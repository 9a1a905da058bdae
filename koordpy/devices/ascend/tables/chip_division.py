"""How the free chips of one node are divided among several pods: exact, where picking one after the other may strand.

The table says which chips a pod takes (ascend.md 3). On rings of 3 and 4 free chips a pod of two takes from the
ring of 4, and a pod of four that comes with it finds none; so each pod takes the best choice *from which the others
can still be served*. Where the table's own picks serve everybody, they are what comes out.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from koordpy.planning.ascend.chips import cost, groups_of, take
from koordpy.planning.ascend.presets import PickRule, Preset

_MESH = 4
_EVERY = -1


class Demand(NamedTuple):
    """What one pod asks of a node. several: its job has more than one NPU pod; usable: mask of chips it may take."""

    preset: Preset
    request: int
    several: bool
    usable: int = _EVERY

    @property
    def flexible(self) -> bool:
        """Whether any chips will do."""
        match self.preset.rule:
            case PickRule.FIT | PickRule.CARDS_TIGHT:
                return True
            case PickRule.MESH:
                return self.request > _MESH and self.request % _MESH > 0
        return False


def divide(demands: Sequence[Demand], free: int) -> tuple[int, ...] | None:
    """Chips of each pod, in the order of their ranks; None where they cannot all be served."""
    taken: list[int] = []
    for demand in demands:
        own = free & demand.usable
        if cost(demand.preset, demand.request, own, demand.several) is None:
            break
        taken.append(take(demand.preset, demand.request, own, demand.several))
        free &= ~taken[-1]
    if len(taken) == len(demands):
        return tuple(taken)
    for mask in taken:
        free |= mask
    taken = []
    for i, demand in enumerate(demands):
        rest = demands[i + 1 :]
        found = next((mask for mask in options(demand, free, rest) if servable(rest, free & ~mask)), None)
        if found is None:
            return None
        taken.append(found)
        free &= ~found
    return tuple(taken)


def options(demand: Demand, free: int, rest: Sequence[Demand] = ()) -> Iterator[int]:
    """The sets of chips that a pod may take, the table's first; of sets that leave the same to others only one.

    rest: who comes on the same node; where any chips serve the pod, they are spared for them.
    """
    preset, request, several = demand.preset, demand.request, demand.several
    own = free & demand.usable
    if cost(preset, request, own, several) is None:
        return
    first = take(preset, request, own, several)
    yield first
    if demand.flexible and rest:
        spared = _spare(demand, free, rest)
        if spared is not None and spared != first:
            yield spared
    size = _group(demand)
    if not size:
        return
    ranked: dict[int, tuple[int, int]] = {}
    for group in groups_of(own, size):
        worth = cost(preset, request, group, several)
        if worth is not None:
            ranked.setdefault(group.bit_count(), (worth, take(preset, request, group, several)))
    for _, mask in sorted(ranked.values()):
        if mask != first:
            yield mask


def _group(demand: Demand) -> int:
    """Size of the groups of which one has to hold the whole request; 0 where there is nothing to choose."""
    match demand.preset.rule:
        case PickRule.RINGS | PickRule.CARD | PickRule.HALVES:
            return demand.preset.group if demand.request <= demand.preset.group else 0
        case PickRule.MESH:
            return _MESH if demand.request < _MESH else 0
    return 0


def _spare(demand: Demand, free: int, rest: Sequence[Demand]) -> int | None:
    """The lowest chips that leave the others served. What others need is never given away chip by chip, so a chip
    that was passed over stays needed, and there are enough of those that come after it."""
    taken = 0
    for chip in _bits(free & demand.usable):
        if taken.bit_count() == demand.request:
            break
        if servable(rest, free & ~(taken | chip)):
            taken |= chip
    return taken if taken.bit_count() == demand.request else None


def _bits(mask: int) -> list[int]:
    return [1 << k for k in range(mask.bit_length()) if mask >> k & 1]


def servable(demands: Sequence[Demand], free: int) -> bool:
    """Whether pods can be served by the free chips of a node together, in some way."""
    if not demands:
        return True
    if sum(one.request for one in demands) > free.bit_count():
        return False
    # those that have no choice come last: they take what is left over
    order = sorted(demands, key=lambda one: (one.flexible, one.usable == _EVERY, -one.request))
    return _one_by_one(tuple(order), free)


@lru_cache(maxsize=1 << 14)
def _one_by_one(demands: tuple[Demand, ...], free: int) -> bool:
    rest = demands[1:]
    return any(not rest or _one_by_one(rest, free & ~mask) for mask in options(demands[0], free, rest))
