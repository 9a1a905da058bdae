# SPDX-License-Identifier: Apache-2.0
"""Divides the free chips of one node among several pods of a plan, exactly.

The tables of docs/rules/ascend.md 3 state which chips a single pod gets. Choosing pod by pod may leave a later pod
without chips. For example, on rings with 3 and 4 free chips a pod of two takes from the ring of 4, and a pod of four
then finds no ring.

1. Each pod, in rank order, gets the choice of the tables. If all pods are served, this is the answer.
2. Otherwise each pod, in rank order, gets the best set that leaves enough chips for the later pods. A depth-first
   search decides whether they are enough. Of groups (rings, cards, meshes) with equally many free chips it tries one
   only. If pods may use different chips, it tries one set of each equivalence class: two sets are equivalent if an
   exchange of chips that are alike for all remaining pods makes one from the other.
3. For pods that any chips serve, the chips are enough if Hall's condition holds.

The search is cached by the remaining demands and the free chips, without the order of groups and of chips in a group.
So with equal usable chips it is O(pods x C(groups + size, size)) states.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from koordpy.devices.ascend.tables.chip_costs import cost, groups_of, take
from koordpy.devices.ascend.tables.npu_presets import PickRule, Preset

_MESH = 4
"""Chips of a mesh."""
_RING = 8
"""Chips of a ring of `PickRule.HALVES`."""
_EVERY = -1
"""Mask of all chips: every bit of a negative number is set."""
_ANY_CHIPS = Preset("any chips", "", 64, PickRule.FIT, frozenset())
"""Preset of the chips that a flexible pod still needs."""


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
        """True if the rule does not use groups for this request, so that any chips of the right number serve it."""
        match self.preset.rule:
            case PickRule.FIT | PickRule.CARDS_TIGHT:
                return True
            case PickRule.MESH:
                return self.request > _MESH and self.request % _MESH > 0
        return False

    @property
    def crosses_rings(self) -> bool:
        """True if the request uses chips of both rings of `PickRule.HALVES`."""
        return self.preset.rule is PickRule.HALVES and self.request > _RING


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
    """Yields sets of chips that a pod may get, the choice of the tables first.

    If one group must hold the request, one set follows for each number of usable free chips in a group, by cost. For a
    flexible pod, the lowest chips that the later pods do not need follow. If the pods are not alike (`_are_alike`), one
    set of each further equivalence class follows. rest: demands of later pods on the same node.
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
    ranked: dict[int, tuple[int, int]] = {}
    for group in groups_of(own, size) if size else ():
        worth = cost(preset, request, group, multi_pod)
        if worth is not None:
            ranked.setdefault(group.bit_count(), (worth, take(preset, request, group, multi_pod)))
    known = {first}
    for _, mask in sorted(ranked.values()):
        if mask != first:
            known.add(mask)
            yield mask
    if rest and not demand.flexible and not _are_alike((demand, *rest), free):
        yield from (mask for mask in _classes_of_sets(demand, free, rest) if mask not in known)


def _group(demand: Demand) -> int:
    """Returns the group size if one group must hold the whole request and may keep free chips; else 0."""
    match demand.preset.rule:
        case PickRule.RINGS | PickRule.CARD | PickRule.HALVES:
            return demand.preset.group if demand.request <= demand.preset.group else 0
        case PickRule.MESH:
            return _MESH if demand.request < _MESH else 0
    return 0


def _sparing_choice(demand: Demand, free: int, rest: Sequence[Demand]) -> int | None:
    """Returns the lowest chips that the later pods do not need; None if there are too few. For a flexible pod.

    If taking a chip leaves too few chips, it still does after more chips are taken, so one pass is enough.
    """
    taken, missing = 0, demand.request
    for chip in _bits(free & demand.usable):
        if not missing:
            break
        others = demand._replace(preset=_ANY_CHIPS, request=missing - 1)
        if servable((*rest, others) if others.request else rest, free & ~(taken | chip)):
            taken, missing = taken | chip, missing - 1
    return taken if not missing else None


def _bits(mask: int) -> list[int]:
    """Returns the single chips of a mask, as masks."""
    return [1 << k for k in range(mask.bit_length()) if mask >> k & 1]


# --- pods that may use different chips --------------------------------------------------------------------------------


def _are_alike(demands: Sequence[Demand], free: int) -> bool:
    """Returns True if only the number of free chips in a group matters to the pods.

    It is False if they may use different free chips or have groups of different sizes, or if the only pod of a job
    needs chips that face each other across two rings.
    """
    sizes = {one.preset.group for one in demands if not one.flexible}
    if len({one.usable & free for one in demands}) > 1 or len(sizes) > 1:
        return False
    return not any(one.crosses_rings and not one.multi_pod for one in demands)


def _classes_of_sets(demand: Demand, free: int, rest: Sequence[Demand]) -> Iterator[int]:
    """Yields one set of each equivalence class of the sets that serve a demand that is not flexible."""
    preset, request = demand.preset, demand.request
    own = free & demand.usable
    if cost(preset, request, own, demand.multi_pod) is None:
        return
    kind = _chip_kinds(demand, rest)
    size = preset.group

    def group_kind(group: int) -> Hashable:
        """Returns a value that is equal for groups with equal free chips. group: mask with a chip of the group."""
        window = ((1 << size) - 1) << (group.bit_length() - 1) // size * size
        return tuple(sorted(kind(chip) for chip in _bits(window & free)))

    def whole_groups(number: int) -> Iterator[int]:
        return _choices(_by_kind((one for one in groups_of(own, size) if one.bit_count() == size), group_kind), number)

    if demand.crosses_rings:
        left, right = own & 0xFF, own & 0xFF00
        if demand.multi_pod:
            halves = [list(_choices(_by_kind(_bits(one), kind), request // 2)) for one in (left, right)]
            yield from (one | other for one, other in product(*halves))
        else:
            pairs = (chip | chip << _RING for chip in _bits(left & right >> _RING))
            both = _by_kind(pairs, lambda pair: tuple(map(kind, _bits(pair))))
            yield from _choices(both, request // 2)
    elif preset.rule is PickRule.DUO and request % 2:
        for cards in whole_groups(request // 2):
            dies = _by_kind(_bits(own & ~cards), lambda chip: (kind(chip), group_kind(chip)))
            yield from (cards | die for die, *_ in dies)
    elif request < size:
        groups = [one for one in groups_of(own, size) if cost(preset, request, one, demand.multi_pod) is not None]
        for group, *_ in _by_kind(groups, group_kind):
            yield from _choices(_by_kind(_bits(group), kind), request)
    else:
        yield from whole_groups(request // size)


def _chip_kinds(demand: Demand, rest: Sequence[Demand]) -> Callable[[int], tuple[int, ...]]:
    """Returns a function of a chip, as a mask. Two chips of a group are alike for all these demands if it returns equal
    values."""
    masks = {one.usable: None for one in (demand, *rest)}
    sizes = sorted({one.preset.group for one in rest if not one.flexible} - {0, demand.preset.group})
    has_pairs = any(one.crosses_rings for one in rest)

    def kind(chip: int) -> tuple[int, ...]:
        at = chip.bit_length() - 1
        return (*(mask >> at & 1 for mask in masks), *(at // size for size in sizes), at % _RING if has_pairs else 0)

    return kind


def _by_kind(masks: Iterable[int], kind: Callable[[int], Hashable]) -> list[list[int]]:
    """Returns the masks as lists of equal kind; their order is kept."""
    found: dict[Hashable, list[int]] = {}
    for mask in masks:
        found.setdefault(kind(mask), []).append(mask)
    return list(found.values())


def _choices(classes: Sequence[Sequence[int]], number: int) -> Iterator[int]:
    """Yields the unions of `number` masks, one for each way to divide the number among the classes; of a class the
    first masks."""
    if not classes:
        if not number:
            yield 0
        return
    for own in range(min(number, len(classes[0])), -1, -1):
        for others in _choices(classes[1:], number - own):
            yield sum(classes[0][:own]) | others


# --- search -----------------------------------------------------------------------------------------------------------


def servable(demands: Sequence[Demand], free: int) -> bool:
    """Returns whether the free chips of a node can serve all demands together."""
    if not demands:
        return True
    if sum(one.request for one in demands) > free.bit_count():
        return False
    # demands that any chips serve come last, because they can use any remaining chips
    order = sorted(demands, key=lambda one: (one.flexible, one.usable == _EVERY, -one.request))
    return _serve_in_order(*_canonical(order, free))


def _canonical(demands: Sequence[Demand], free: int) -> tuple[tuple[Demand, ...], int]:
    """Returns the demands and free chips with other numbers of chips and groups, equal for equivalent arguments.

    So equivalent states of the search share one cache entry. Unusable chips are left out. Unchanged if the demands have
    groups of different sizes, or if one needs chips that face each other across two rings.
    """
    sizes = {one.preset.group for one in demands if not one.flexible}
    if len(sizes) != 1 or any(one.crosses_rings and not one.multi_pod for one in demands):
        return tuple(demands), free
    (size,) = sizes
    masks = list(dict.fromkeys(one.usable & free for one in demands))
    groups: list[list[tuple[bool, ...]]] = []
    for group in groups_of(free, size):
        kinds = (tuple(mask & chip > 0 for mask in masks) for chip in _bits(group))
        groups.append(sorted((kind for kind in kinds if any(kind)), reverse=True))
    numbered = {
        1 << number * size + at: kind
        for number, group in enumerate(sorted(groups, reverse=True))
        for at, kind in enumerate(group)
    }
    usable = {mask: sum(chip for chip, kind in numbered.items() if kind[i]) for i, mask in enumerate(masks)}
    return tuple(one._replace(usable=usable[one.usable & free]) for one in demands), sum(numbered)


@lru_cache(maxsize=1 << 14)
def _serve_in_order(demands: tuple[Demand, ...], free: int) -> bool:
    """Returns whether demands can be served, flexible ones last. Recursive, and cached."""
    if not demands:
        return True
    if not _has_enough_chips(demands, free):
        return False
    first, rest = demands[0], demands[1:]
    if first.flexible:
        return True
    sets = options(first, free, rest) if _are_alike(demands, free) else _classes_of_sets(first, free, rest)
    return any(_serve_in_order(*_canonical(rest, free & ~mask)) for mask in sets)


def _has_enough_chips(demands: Sequence[Demand], free: int) -> bool:
    """Returns whether Hall's condition holds: any demands together may use as many free chips as they request.

    It is sufficient if all demands are flexible. O(2^different masks); most nodes have one or two.
    """
    requests: dict[int, int] = {}
    for one in demands:
        requests[one.usable & free] = requests.get(one.usable & free, 0) + one.request
    unions: dict[int, int] = {0: 0}
    for mask in requests:
        unions |= {mask | one: 0 for one in unions}
    return all(
        sum(number for mask, number in requests.items() if not mask & ~union) <= union.bit_count() for union in unions
    )
