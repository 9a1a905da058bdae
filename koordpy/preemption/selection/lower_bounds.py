# SPDX-License-Identifier: Apache-2.0
"""Shows by sums alone that even all eligible victims would free too little, with the numbers for the message.

Source: docs/rules/preemption.md 6 (1). The sums are upper bounds: all eligible victims are evicted, as far as quotas
allow, and the free amounts of all nodes are added up. So a placement that the sums forbid is infeasible. A placement
that the sums allow may still be infeasible.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from koordpy.api.counted_nouns import count_noun
from koordpy.api.quantity import quantity_text
from koordpy.cache.snapshot import Ints
from koordpy.placement.problem import Problem, hard_regions, slots
from koordpy.preemption.selection.victim_choice import Choices, Terms


@dataclass(frozen=True, slots=True)
class Lack:
    """Why placement is infeasible: of one resource, or of slots for pods, there is too little even with every victim
    evicted."""

    resource: str
    """Name of the resource in which the amounts are given; empty if slots for pods are lacking."""
    needed: int
    """What all pending members request; for slots, the number of pods of one shape."""
    free: int
    """Amount that is free without evictions."""
    reclaimable: int
    """Additional amount that the victims would free. If slots are lacking: all slots with every victim evicted."""
    place: str = ""
    """Layer and path of the region that lacks the least; empty for the whole cluster."""

    @property
    def text(self) -> str:
        """The sentence for the message, without its prefix."""
        where = f" in {self.place}" if self.place else ""
        if not self.resource:
            needed = count_noun(self.needed, "pod")
            return f"needed {needed}, room for {self.free}, with every victim gone {self.reclaimable}{where}"
        needed, free, back = (quantity_text(self.resource, n) for n in (self.needed, self.free, self.reclaimable))
        return f"needed {needed} {self.resource}, free {free}, reclaimable {back}{where}"


def freed_by(choices: Choices, units: Iterable[int]) -> Ints:
    """Returns [nodes, columns]: the free amounts once the given units are evicted.

    A pod that is in two of the units is counted twice, so the amounts are upper bounds.
    """
    freed = choices.problem.free.copy()
    for u in units:
        for node, amounts in choices.units[u].frees:
            for column, amount in amounts:
                freed[node, column] += amount
    return freed


def sums_allow(choices: Choices, units: Iterable[int]) -> bool:
    """Returns True if, with the given units evicted, one region has enough slots and resources for all pending members.

    Regions are the domains of the hard layer; without a hard layer, the cluster. False is a proof that no placement
    exists. True proves nothing: slots are counted for each shape alone, and resources are added up over nodes.
    """
    problem = choices.problem
    freed, level = freed_by(choices, units), problem.tree.levels[problem.hard]
    able = np.zeros(len(freed), dtype=bool)
    inside = np.array([domain for _, domain in hard_regions(problem)], dtype=np.int64)
    for s, number in problem.pending_counts.items():
        room = slots(freed, problem.shapes[s])
        able |= room > 0
        inside = inside[level.sums(room)[inside] >= number]
    for column, need in problem.total_demand.items():
        inside = inside[level.sums(np.where(able, np.maximum(freed[:, column], 0), 0))[inside] >= need]
    return bool(len(inside))


def most_freed(choices: Choices) -> dict[int, int]:
    """Returns column -> upper bound of what all victims together free in it, as limits of quotas restrict evictions.

    A column is only in the result if its bound is below the sum over all options.
    """
    # each bound: alternatives of (terms, most). A crossing allows usage above the entitlement - 1, and one whole unit
    bounds: list[tuple[tuple[Terms, int], ...]] = [
        ((limit.terms, limit.most),) for limit in choices.limits if limit.most is not None and not limit.when
    ]
    bounds += [
        tuple((terms, room - 1 + max((n for _, n in terms), default=0)) for terms, room in crossing.resources)
        for crossing in choices.crossings
    ]
    out: dict[int, int] = {}
    if not bounds:
        return out
    # option -> column -> amount on all nodes
    frees: list[dict[int, int]] = []
    for option in choices.options:
        held: dict[int, int] = {}
        for _, amounts in choices.units[option.unit].frees:
            for column, amount in amounts:
                held[column] = held.get(column, 0) + amount
        frees.append(held)
    for column in {column for shape in choices.problem.shapes for column, _ in shape.request}:
        every = {o: held[column] for o, held in enumerate(frees) if held.get(column)}
        caps = []
        for bound in bounds:
            inside = {o for terms, _ in bound for o, _ in terms if o in every}
            caps.append((inside, max(_most_within(terms, room, inside, every) for terms, room in bound)))
        whole = sum(every.values())
        # the sets of nested quotas overlap: try wide sets first, and narrow sets first
        least = min(_disjoint_bound(caps, every, widest=widest) for widest in (True, False))
        if least < whole:
            out[column] = least
    return out


def _most_within(terms: Terms, room: int, inside: set[int], frees: Mapping[int, int]) -> int:
    """Returns an upper bound of what options free in a column while the sum of their terms is at most `room`.

    inside: the options that count. frees: option -> amount of the column. The bound is `room` times the highest ratio
    of amount to term.
    """
    amounts = {o: amount for o, amount in terms if amount > 0}
    free_of_it = sum(frees[o] for o in inside if o not in amounts)
    bounded = [o for o in inside if o in amounts]
    whole = sum(frees[o] for o in bounded)
    if not bounded or sum(amounts[o] for o in bounded) <= room:
        return free_of_it + whole
    room = max(0, room)
    return free_of_it + min(whole, max(room * frees[o] // amounts[o] for o in bounded))


def _disjoint_bound(caps: Sequence[tuple[set[int], int]], frees: Mapping[int, int], *, widest: bool) -> int:
    """Returns an upper bound of what all options free, from bounds of sets of options.

    Bounds of disjoint sets are added; a set that overlaps an earlier set is skipped. caps: (set, its bound). widest:
    True to start with the largest set, False with the smallest.
    """
    left, total = set(frees), 0
    for inside, most in sorted(caps, key=lambda cap: len(cap[0]), reverse=widest):
        if inside and inside <= left:
            total += most
            left -= inside
    return total + sum(frees[o] for o in left)


def lacking(
    problem: Problem, relief: Ints, names: tuple[str, ...], most: Mapping[int, int] | None = None
) -> Lack | None:
    """Returns what all pending members lack, in the region that lacks the least; None if a region has enough.

    relief: [nodes, columns] amounts that all victims free. names: resource of each column. most: column -> a tighter
    upper bound of what all victims free in it (`most_freed`).
    """
    tree, level = problem.tree, problem.hard
    regions = hard_regions(problem)
    freed = problem.free.copy()
    freed[:, : relief.shape[1]] += relief
    room = replace(problem, free=freed)
    best: Lack | None = None
    allowed: Ints = np.stack([problem.shapes[s].allowed for s in problem.pending_counts]).max(axis=0)
    for _, domain in regions:
        start, end = int(tree.levels[level].start[domain]), int(tree.levels[level].end[domain])
        place = f"{tree.layer_name(level)} {tree.path(level, domain)}" if level else ""
        lack = _in_region(problem, room, slice(start, end), allowed=allowed, names=names, place=place, most=most or {})
        if lack is None:
            return None
        if best is None or _size_of_lack(lack) < _size_of_lack(best):
            best = lack
    return best if best is not None else Lack("", len(problem.pending), 0, 0)


def _size_of_lack(lack: Lack) -> tuple[bool, int]:
    """Returns a sort key: lacking resources before lacking slots, then the smaller lacking amount first."""
    return not lack.resource, lack.needed - lack.free - (lack.reclaimable if lack.resource else 0)


def _in_region(
    problem: Problem,
    room: Problem,
    nodes: slice,
    *,
    allowed: Ints,
    names: tuple[str, ...],
    place: str,
    most: Mapping[int, int],
) -> Lack | None:
    """Returns what is lacking in one region; None if the sums allow all pending members there.

    room: the problem with all victims evicted. nodes: the nodes of the region. allowed: [nodes] above 0 if some shape
    may be placed on the node. Resources are tried in order of their names, then slots in order of shapes. Column 0
    counts pods, so the test of slots covers it.
    """
    inside = allowed[nodes] > 0
    for column, need in sorted(
        problem.total_demand.items(), key=lambda item: names[item[0]] if item[0] < len(names) else "~"
    ):
        if column == 0 or column >= len(names):
            continue
        free = np.maximum(problem.free[nodes, column][inside], 0)
        after = np.maximum(room.free[nodes, column][inside], 0)
        have = int(free.sum())
        # free amounts below 0 count as 0 before and after, because victims on such a node first only cover its deficit
        back = min(int(after.sum()) - have, most.get(column, need))
        if have + back < need:
            return Lack(names[column], need, have, back, place)
    for shape, number in problem.pending_counts.items():
        slots = int(room.slots_of[shape][nodes].sum())
        if slots < number:
            return Lack("", number, int(problem.slots_of[shape][nodes].sum()), slots, place)
    return None
