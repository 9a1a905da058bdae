"""Sums that show at once that no set of victims can help, with their numbers.

Source: preemption.md 6 (1). Upper bounds only: all eligible victims gone, as far as quotas allow, each pod by itself. A
placement that they allow may still be infeasible; one that they forbid is infeasible.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from koordpy.api.counted_nouns import counted
from koordpy.api.quantity import quantity_text
from koordpy.cache.snapshot import Ints
from koordpy.placement.problem import Problem, hard_regions, slots
from koordpy.preemption.selection.victim_choice import Choices, Terms


@dataclass(frozen=True, slots=True)
class Lack:
    """Why placement is infeasible. resource: empty if slots for pods are lacking."""

    resource: str
    needed: int
    free: int
    reclaimable: int
    place: str = ""

    @property
    def text(self) -> str:
        where = f" in {self.place}" if self.place else ""
        if not self.resource:
            needed = counted(self.needed, "pod")
            return f"needed {needed}, room for {self.free}, with every victim gone {self.reclaimable}{where}"
        needed, free, back = (quantity_text(self.resource, n) for n in (self.needed, self.free, self.reclaimable))
        return f"needed {needed} {self.resource}, free {free}, reclaimable {back}{where}"


def freed_by(choices: Choices, units: Iterable[int]) -> Ints:
    """Returns [nodes, columns]: free amounts once some units are gone. A pod in several units is counted for each."""
    freed = choices.problem.free.copy()
    for u in units:
        for node, amounts in choices.units[u].frees:
            for column, amount in amounts:
                freed[node, column] += amount
    return freed


def sums_allow(choices: Choices, units: Iterable[int]) -> bool:
    """Returns True if some hard domain has enough slots per shape, and enough of every resource for all members.

    Some units count as gone. False is a proof that no placement exists.
    """
    problem = choices.problem
    freed, level = freed_by(choices, units), problem.tree.levels[problem.hard]
    able = np.zeros(len(freed), dtype=bool)
    inside = np.array([domain for _, domain in hard_regions(problem)], dtype=np.int64)
    for s, number in problem.wanted.items():
        room = slots(freed, problem.shapes[s])
        able |= room > 0
        inside = inside[level.sums(room)[inside] >= number]
    for column, need in problem.asked.items():
        inside = inside[level.sums(np.where(able, np.maximum(freed[:, column], 0), 0))[inside] >= need]
    return bool(len(inside))


def most_freed(choices: Choices) -> dict[int, int]:
    """Returns column -> upper bound on what all victims free of it, by limits and crossings of quotas.

    Contains only columns that these bound.
    """
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
        # for nested sets of quotas: wide sets first, or narrow sets first
        least = min(_disjoint_bound(caps, every, widest=widest) for widest in (True, False))
        if least < whole:
            out[column] = least
    return out


def _most_within(terms: Terms, room: int, inside: set[int], frees: Mapping[int, int]) -> int:
    """Returns the most that options free of a column while the sum of their terms is at most `room`."""
    amounts = {o: amount for o, amount in terms if amount > 0}
    free_of_it = sum(frees[o] for o in inside if o not in amounts)
    bounded = [o for o in inside if o in amounts]
    whole = sum(frees[o] for o in bounded)
    if not bounded or sum(amounts[o] for o in bounded) <= room:
        return free_of_it + whole
    room = max(0, room)
    return free_of_it + min(whole, max(room * frees[o] // amounts[o] for o in bounded))


def _disjoint_bound(caps: Sequence[tuple[set[int], int]], frees: Mapping[int, int], *, widest: bool) -> int:
    """Returns the most that is freed if, of overlapping sets, the first one bounds its options."""
    left, total = set(frees), 0
    for inside, most in sorted(caps, key=lambda cap: len(cap[0]), reverse=widest):
        if inside and inside <= left:
            total += most
            left -= inside
    return total + sum(frees[o] for o in left)


def lacking(
    problem: Problem, relief: Ints, names: tuple[str, ...], most: Mapping[int, int] | None = None
) -> Lack | None:
    """Returns what is lacking for all pending members; None if the sums allow them.

    names: resource of each column. most: column -> upper bound on what all victims free of it.
    """
    tree, level = problem.tree, problem.hard
    regions = hard_regions(problem)
    freed = problem.free.copy()
    freed[:, : relief.shape[1]] += relief
    room = replace(problem, free=freed)
    best: Lack | None = None
    allowed: Ints = np.stack([problem.shapes[s].allowed for s in problem.wanted]).max(axis=0)
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
    """Returns what is lacking in one region; None if the sums allow all pending members there."""
    inside = allowed[nodes] > 0
    for column, need in sorted(problem.asked.items(), key=lambda item: names[item[0]] if item[0] < len(names) else "~"):
        if column == 0 or column >= len(names):
            continue
        free = np.maximum(problem.free[nodes, column][inside], 0)
        after = np.maximum(room.free[nodes, column][inside], 0)
        have = int(free.sum())
        # a node that is overcommitted frees nothing at first
        back = min(int(after.sum()) - have, most.get(column, need))
        if have + back < need:
            return Lack(names[column], need, have, back, place)
    for shape, number in problem.wanted.items():
        slots = int(room.slots_of[shape][nodes].sum())
        if slots < number:
            return Lack("", number, int(problem.slots_of[shape][nodes].sum()), slots, place)
    return None
