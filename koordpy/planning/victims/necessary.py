"""Sums that show at once that no set of victims can help, with their numbers.

Source: preemption.md section 6 (1). Upper bounds only: all eligible victims gone, each pod looked at alone. What they
allow may still be impossible; what they forbid is.
"""

from dataclasses import dataclass, replace

import numpy as np

from koordpy.api.quantity import quantity_text
from koordpy.cluster.snapshot import Ints
from koordpy.planning.placement.problem import Problem, hard_regions


@dataclass(frozen=True, slots=True)
class Lack:
    """Why it is impossible. resource: empty where a number of pods is lacking."""

    resource: str
    needed: int
    free: int
    reclaimable: int
    place: str = ""

    @property
    def text(self) -> str:
        where = f" in {self.place}" if self.place else ""
        if not self.resource:
            return f"needed {self.needed} pods, room for {self.free}, with every victim gone {self.reclaimable}{where}"
        needed, free, back = (quantity_text(self.resource, n) for n in (self.needed, self.free, self.reclaimable))
        return f"needed {needed} {self.resource}, free {free}, reclaimable {back}{where}"


def lacking(problem: Problem, relief: Ints, names: tuple[str, ...]) -> Lack | None:
    """What is missing for all pending members; None where the sums allow them. names: resource of each column."""
    tree, level = problem.tree, problem.hard
    regions = hard_regions(problem)
    freed = problem.free.copy()
    freed[:, : relief.shape[1]] += relief
    room = replace(problem, free=freed)
    wanted: dict[int, int] = {}
    for rank in problem.pending:
        shape = problem.members[rank].shape
        wanted[shape] = wanted.get(shape, 0) + 1
    best: Lack | None = None
    allowed: Ints = np.stack([problem.shapes[s].allowed for s in wanted]).max(axis=0)
    for _, domain in regions:
        start, end = int(tree.levels[level].start[domain]), int(tree.levels[level].end[domain])
        place = f"{tree.layer_name(level)} {tree.path(level, domain)}" if level else ""
        lack = _in_region(problem, room, wanted, slice(start, end), allowed=allowed, names=names, place=place)
        if lack is None:
            return None
        if best is None or _least(lack) < _least(best):
            best = lack
    return best if best is not None else Lack("", len(problem.pending), 0, 0)


def _least(lack: Lack) -> tuple[bool, int]:
    return not lack.resource, lack.needed - lack.free - (lack.reclaimable if lack.resource else 0)


def _in_region(
    problem: Problem,
    room: Problem,
    wanted: dict[int, int],
    nodes: slice,
    *,
    allowed: Ints,
    names: tuple[str, ...],
    place: str,
) -> Lack | None:
    inside = allowed[nodes] > 0
    needs: dict[int, int] = {}
    for shape, number in wanted.items():
        for column, amount in problem.shapes[shape].request:
            needs[column] = needs.get(column, 0) + number * amount
    for column, need in sorted(needs.items(), key=lambda item: names[item[0]] if item[0] < len(names) else "~"):
        if column == 0 or column >= len(names):
            continue
        free = np.maximum(problem.free[nodes, column][inside], 0)
        after = np.maximum(room.free[nodes, column][inside], 0)
        if int(after.sum()) < need:
            have = int(free.sum())
            return Lack(names[column], need, have, int(after.sum()) - have, place)
    for shape, number in wanted.items():
        slots = int(room.slots_of[shape][nodes].sum())
        if slots < number:
            return Lack("", number, int(problem.slots_of[shape][nodes].sum()), slots, place)
    return None
