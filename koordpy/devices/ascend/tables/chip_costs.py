# SPDX-License-Identifier: Apache-2.0
"""Costs of a request on a node's free chips, its score AscendAffinity, and the chips it gets (docs/rules/ascend.md 3).

A cost says how well a request fits the free chips: a lower cost is better, None means infeasible. AscendAffinity is a
score made from it: higher is better. All functions are pure: they depend on a preset (row of the product table), a
request (number of chips) and a bit mask of free chips. `multi_pod` is True if the job has more than one NPU pod, which
some products restrict. There is one branch for each `PickRule`. O(chips), and cached, because the nodes of a cluster
have few different masks.
"""

from collections.abc import Iterable
from functools import lru_cache

from koordpy.devices.ascend.tables.npu_presets import MESH_WEIGHT, MODULE, PickRule, Preset

DIES = 2
"""Dies of a two-die card."""


def _lowest(mask: int, number: int) -> int:
    """Returns the `number` lowest chips of a mask."""
    taken = 0
    for _ in range(number):
        low = mask & -mask
        taken |= low
        mask ^= low
    return taken


def groups_of(mask: int, size: int) -> list[int]:
    """Returns the masks of the groups of `size` chips, the lowest first; empty groups are masks of 0."""
    whole = (1 << size) - 1
    return [mask & whole << k for k in range(0, max(mask.bit_length(), 1), size)]


def _fill(groups: Iterable[int], number: int) -> int:
    """Returns `number` chips: groups are used up in their order, and the last group gives its lowest chips."""
    taken = 0
    for group in groups:
        taken |= _lowest(group, min(number - taken.bit_count(), group.bit_count()))
    return taken


@lru_cache(maxsize=1 << 16)
def cost(preset: Preset, request: int, free: int, multi_pod: bool) -> int | None:
    """Returns the cost of a request on a node's free chips; None if they cannot serve it.

    multi_pod: True if the job has more than one NPU pod.
    """
    count = free.bit_count()
    if count < request:
        return None
    match preset.rule:
        case PickRule.RINGS | PickRule.CARD:
            if preset is MODULE and request == preset.size:
                return 0 if count == preset.size else None
            best = [
                c for group in groups_of(free, preset.group) if (c := _by_table(preset, request, group)) is not None
            ]
            return min(best, default=None)
        case PickRule.FIT | PickRule.CARDS_TIGHT:
            return count - request
        case PickRule.HALVES:
            return _halves(request, free, multi_pod)
        case PickRule.DIES:
            return _dies(preset.size, request, free)
        case PickRule.DUO:
            return _duo(request, free)
        case PickRule.MESH:
            return _mesh(preset.size, request, free)


def _by_table(preset: Preset, request: int, group: int) -> int | None:
    """Returns the cost on one group (mask of its free chips) by the cost table of the preset; None if it is
    infeasible."""
    row = preset.table.get(request)
    count = group.bit_count()
    return row[count - 1] if row is not None and 0 < count <= len(row) else None


def _halves(request: int, free: int, multi_pod: bool) -> int | None:
    """Returns the cost on two rings of eight chips; None if it is infeasible.

    Up to 8 chips come from one ring. More than 8 are divided equally among both rings, and 16 need all chips. The chips
    of a job of one pod must face each other across the rings (k and k + 8).
    """
    left, right = free & 0xFF, free >> 8 & 0xFF
    if request <= 8:
        fits = [ring.bit_count() - request for ring in (left, right) if ring.bit_count() >= request]
        return min(fits, default=None)
    if request == 16:
        return 0 if left == right == 0xFF else None
    across = min(left.bit_count(), right.bit_count()) if multi_pod else (left & right).bit_count()
    return across - request // 2 if across >= request // 2 else None


def _dies(size: int, request: int, free: int) -> int | None:
    """Returns the cost on cards of two dies; None if it is infeasible.

    A request of 1 prefers a card with one free die. If there is none, it pays `size` more, which exceeds every other
    cost. Other requests use whole cards.
    """
    cards = groups_of(free, DIES)
    if request == 1:
        return free.bit_count() - 1 + (0 if any(card.bit_count() == 1 for card in cards) else size)
    whole = sum(card.bit_count() == DIES for card in cards)
    return free.bit_count() - request if 2 * whole >= request else None


def _duo(request: int, free: int) -> int | None:
    """Returns the cost on cards of two dies: whole cards, and for an odd request one single die; None if it is
    infeasible.

    The single die preferably comes from a card with one free die. Otherwise the cost starts at 9, because costs with
    such a card are at most 8, the number of chips of a node.
    """
    cards = groups_of(free, DIES)
    full = sum(card.bit_count() == DIES for card in cards)
    half = sum(card.bit_count() == 1 for card in cards)
    count = free.bit_count()
    if request % 2 == 0:
        return count - request + 1 if request <= 2 * full else None
    if request - 1 > 2 * full or request > half + 2 * full:
        return None
    return count - request + 1 if half else 9 + (count - request - 1) // 2


def _mesh(size: int, request: int, free: int) -> int | None:
    """Returns the cost on meshes of four chips; None if it is infeasible.

    Up to 4 chips come from one mesh, multiples of 4 use whole meshes, other requests any chips. The most important part
    of the cost is the number of usable meshes beyond those needed.
    """
    count = free.bit_count()
    if request > 4 and request % 4:
        return count - request
    able = sum(mesh.bit_count() >= min(request, 4) for mesh in groups_of(free, 4))
    needed = -(-request // 4)
    return size * (able - needed) + count - request if able >= needed else None


def score(preset: Preset, best: int, *, free: int, height: int) -> int:
    """Returns AscendAffinity of a node; higher is better. Not for `PickRule.MESH`.

    best: cost of the request. free: number of free chips. height: H of ascend.md 3. The factor of the cost exceeds the
    number of free chips that is added, so that the cost decides first.
    """
    match preset.rule:
        case PickRule.RINGS if preset is MODULE:
            return 8 * (4 * height - best) + (8 - free)
        case PickRule.HALVES:
            return 16 * (height - best) + (16 - free)
        case PickRule.DIES:
            return preset.size * (2 * preset.size - best)
        case PickRule.CARD:
            return 8 * (preset.group - best)
        case PickRule.DUO:
            return 8 * (16 - best)
        case _:
            return 8 * (height - best)


def mesh_score(preset: Preset, request: int, best: int) -> int:
    """Returns AscendAffinity of a mesh product; its weight depends on whether the request must be on whole meshes."""
    if request <= 4 or request % 4 == 0:
        weight = MESH_WEIGHT[preset.size]
        return weight * (weight - best)
    return preset.size * (preset.size - best)


@lru_cache(maxsize=1 << 16)
def affinity(preset: Preset, request: int, free: int, height: int, multi_pod: bool) -> int | None:
    """Returns AscendAffinity of a node; None if it cannot serve the request."""
    best = cost(preset, request, free, multi_pod)
    if best is None:
        return None
    if preset.rule is PickRule.MESH:
        return mesh_score(preset, request, best)
    return score(preset, best, free=free.bit_count(), height=height)


@lru_cache(maxsize=1 << 16)
def take(preset: Preset, request: int, free: int, multi_pod: bool) -> int:
    """Returns the mask of the free chips that a request gets. Raises `ValueError` if they cannot serve it."""
    if cost(preset, request, free, multi_pod) is None:
        raise ValueError(f"free chips {free:#x} of {preset.name} cannot serve a request of {request}")
    match preset.rule:
        case PickRule.RINGS | PickRule.CARD:
            if request > preset.group:
                return free
            groups = [g for g in groups_of(free, preset.group) if _by_table(preset, request, g) is not None]
            return _lowest(min(groups, key=lambda g: _by_table(preset, request, g) or 0), request)
        case PickRule.FIT:
            return _lowest(free, request)
        case PickRule.CARDS_TIGHT:
            return _fill(sorted(groups_of(free, preset.group), key=int.bit_count), request)
        case PickRule.HALVES:
            return _take_halves(request, free, multi_pod)
        case PickRule.DIES:
            if request == 1:
                half = [card for card in groups_of(free, DIES) if card.bit_count() == 1]
                return half[0] if half else _lowest(free, 1)
            return _fill(_full(free, DIES), request)
        case PickRule.DUO:
            return _take_duo(request, free)
        case PickRule.MESH:
            return _take_mesh(request, free)


def _full(free: int, size: int) -> list[int]:
    """Returns the masks of the groups of `size` chips that are free as a whole."""
    return [group for group in groups_of(free, size) if group.bit_count() == size]


def _take_halves(request: int, free: int, multi_pod: bool) -> int:
    """Returns the chips of a request on two rings of eight; above 8 chips pairs (k, k + 8) are used first."""
    left, right = free & 0xFF, free >> 8 & 0xFF
    if request <= 8:
        rings = [ring for ring in (left, right << 8) if ring.bit_count() >= request]
        return _lowest(min(rings, key=int.bit_count), request)
    each = request // 2
    pairs = _lowest(left & right, min(each, (left & right).bit_count()))
    rest = each - pairs.bit_count()
    one = pairs | _lowest(left & ~pairs, rest)
    other = pairs | _lowest(right & ~pairs, rest)
    assert multi_pod or not rest, "a job of one pod gets only pairs"
    return one | other << 8


def _take_duo(request: int, free: int) -> int:
    """Returns the chips of a request on cards of two dies: whole cards, then a half-free card or one die of the last
    card."""
    cards = _full(free, DIES)
    taken = _fill(cards, request - request % 2)
    if request % 2:
        half = [card for card in groups_of(free, DIES) if card.bit_count() == 1]
        taken |= half[0] if half else _lowest(cards[request // 2], 1)
    return taken


def _take_mesh(request: int, free: int) -> int:
    """Returns the chips of a request on meshes of four: the tightest mesh below 4 chips, else whole meshes, else any
    chips."""
    if request > 4 and request % 4:
        return _lowest(free, request)
    if request < 4:
        able = [mesh for mesh in groups_of(free, 4) if mesh.bit_count() >= request]
        return _lowest(min(able, key=int.bit_count), request)
    return _fill(_full(free, 4), request)


@lru_cache(maxsize=1 << 14)
def copies(preset: Preset, request: int, free: int, multi_pod: bool) -> int:
    """Returns how many equal requests the free chips serve one after the other, each taking its best chips."""
    number = 0
    while cost(preset, request, free, multi_pod) is not None:
        free &= ~take(preset, request, free, multi_pod)
        number += 1
    return number
