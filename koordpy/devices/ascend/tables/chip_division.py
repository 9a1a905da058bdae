# SPDX-License-Identifier: Apache-2.0
"""Divides the free chips of one node among several pods of a plan, exactly.

The tables of docs/rules/ascend.md 3 state which chips a single pod gets. Choosing pod by pod may leave a later pod
without chips. For example, on rings with 3 and 4 free chips a pod of two takes from the ring of 4, and a pod of four
then finds no ring.

1. Each pod, in rank order, gets the choice of the tables. If all pods are served, this is the answer.
2. Otherwise each pod, in rank order, gets the best set from which the remaining pods can still be served. A depth-first
   search decides whether they can be. It tries one set for each number of free chips of a group, and is cached by
   (demands, mask).
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from koordpy.devices.ascend.tables.chip_costs import cost, groups_of, take
from koordpy.devices.ascend.tables.npu_presets import PickRule, Preset

_MESH = 4
"""Chips of a mesh."""
_EVERY = -1
"""Mask of all chips: every bit of a negative number is set."""


class Demand(NamedTuple):
    """Request of one pod to the chips of a node."""

    preset: Preset
    """Product row of the node."""
    request: int
    """Number of chips."""
    multi_pod: bool
    """True if the pod's job has more than one NPU pod."""
    usable: int = _EVERY
    """Mask of the chips that the pod may use."""

    @property
    def flexible(self) -> bool:
        """True if any chips of the right number serve the request, whatever their groups."""
        match self.preset.rule:
            case PickRule.FIT | PickRule.CARDS_TIGHT:
                return True
            case PickRule.MESH:
                return self.request > _MESH and self.request % _MESH > 0
        return False


def divide(demands: Sequence[Demand], free: int) -> tuple[int, ...] | None:
    """Returns the mask of each pod, in rank order; None if the free chips cannot serve all pods."""
    taken: list[int] = []
    for demand in demands:
        own = free & demand.usable
        if cost(demand.preset, demand.request, own, demand.multi_pod) is None:
            break
        taken.append(take(demand.preset, demand.request, own, demand.multi_pod))
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
    """Yields the sets of chips that a pod may get, the choice of the tables first.

    Of sets that leave an equal remainder only one is yielded. rest: demands of later pods on the same node. A flexible
    pod also gets the option of leaving the chips that these need.
    """
    preset, request, multi_pod = demand.preset, demand.request, demand.multi_pod
    own = free & demand.usable
    if cost(preset, request, own, multi_pod) is None:
        return
    first = take(preset, request, own, multi_pod)
    yield first
    if demand.flexible and rest:
        spared = _sparing_choice(demand, free, rest)
        if spared is not None and spared != first:
            yield spared
    size = _group(demand)
    if not size:
        return
    ranked: dict[int, tuple[int, int]] = {}
    for group in groups_of(own, size):
        worth = cost(preset, request, group, multi_pod)
        if worth is not None:
            ranked.setdefault(group.bit_count(), (worth, take(preset, request, group, multi_pod)))
    for _, mask in sorted(ranked.values()):
        if mask != first:
            yield mask


def _group(demand: Demand) -> int:
    """Returns the size of the groups of which one must contain the whole request; 0 if the request may use several
    groups."""
    match demand.preset.rule:
        case PickRule.RINGS | PickRule.CARD | PickRule.HALVES:
            return demand.preset.group if demand.request <= demand.preset.group else 0
        case PickRule.MESH:
            return _MESH if demand.request < _MESH else 0
    return 0


def _sparing_choice(demand: Demand, free: int, rest: Sequence[Demand]) -> int | None:
    """Returns the lowest chips that leave the rest servable; None if there are too few such chips.

    A chip that the rest needs stays needed after further choices, so one pass finds the answer.
    """
    taken = 0
    for chip in _bits(free & demand.usable):
        if taken.bit_count() == demand.request:
            break
        if servable(rest, free & ~(taken | chip)):
            taken |= chip
    return taken if taken.bit_count() == demand.request else None


def _bits(mask: int) -> list[int]:
    """Returns the single chips of a mask, as masks."""
    return [1 << k for k in range(mask.bit_length()) if mask >> k & 1]


def servable(demands: Sequence[Demand], free: int) -> bool:
    """Returns whether the free chips of a node can serve all demands together."""
    if not demands:
        return True
    if sum(one.request for one in demands) > free.bit_count():
        return False
    # demands that any chips serve come last, because they can use any remaining chips
    order = sorted(demands, key=lambda one: (one.flexible, one.usable == _EVERY, -one.request))
    return _serve_in_order(tuple(order), free)


@lru_cache(maxsize=1 << 14)
def _serve_in_order(demands: tuple[Demand, ...], free: int) -> bool:
    """Returns whether demands can be served, each by one of its `options`. Recursive, and cached."""
    rest = demands[1:]
    return any(not rest or _serve_in_order(rest, free & ~mask) for mask in options(demands[0], free, rest))
