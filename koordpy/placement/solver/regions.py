"""Regions that may become c, with bounds on their goals before any solve.

The bounds set the order of solves and rule regions out.

Source: gang-network.md sections 5 and 7. Goals 2 and 5 depend on the region alone. Sums bound goals 3, 4 and the
scores. Of regions that differ in names only one is solved.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from koordpy.placement.goals import slots_by_level
from koordpy.placement.problem import Ints, Problem
from koordpy.placement.solver.region_room import FillingCapacity
from koordpy.placement.solver.whole_groups import GroupType

Region = tuple[int, int]

Value = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], int, int]
"""Goals 3, 4 and 5, the ByCount vector, the negated score and the place in natural order of a region."""
_LEAST = -(1 << 60)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A region that may become c: its known goals, and `best`, a lower bound on its value before any solve."""

    best: Value
    region: Region
    best_fit: tuple[int, ...]
    key: tuple[object, ...]
    """Equal for regions for which the solved goals are equal."""
    whole_above: tuple[int, ...]
    """Negated number of whole groups at each level down to the region's."""
    domains_above: tuple[int, ...]


class Regions:
    """Bounds on the value that regions can reach with all given pods."""

    def __init__(self, problem: Problem, ranks: Sequence[int], *, room: FillingCapacity, types: Sequence[GroupType]):
        self.problem, self.tree, self.room = problem, problem.tree, room
        self.types = types
        self._usable = slots_by_level(problem, problem.reference(tuple(ranks)))
        self.bound: list[int] = np.nonzero(problem.bound_counts)[0].tolist()
        self._held = [set(level.tolist()) for level in self.tree.domain_of[:, self.bound]]
        self._known: dict[int, Ints] = {}
        self._bound_in = [level.sums(problem.bound_counts) for level in self.tree.levels]

    def held(self, level: int) -> int:
        """Returns the number of domains of a level that contain bound members."""
        return int((self._bound_in[level] > 0).sum())

    def candidate(self, level: int, domain: int) -> Candidate:
        """Returns the bounds that sums give for a region."""
        path = self.tree.upwards(level, domain)
        region = level, domain
        best_fit = tuple(int(self._usable[n][d]) for n, d in path)
        above = dict(path)
        common = [(t, level if t.anchor is None else self._common_level(t.anchor, above)) for t in self.types]
        whole_above = tuple(-sum(t.count for t, at in common if at >= n) for n in range(1, level + 1))
        domains_above = tuple(len(self._held[n] | {above[n]}) if self.bound else 1 for n in range(1, level + 1))
        below = range(level + 1, self.tree.depth + 1)
        key = (
            int(self.room.twins[level][domain]),
            whole_above,
            domains_above,
            tuple(self._residue(n, d) for n, d in path[1:] if n in self.problem.multiples),
            domain if any(t.anchor is not None for t in self.types) else -1,
        )
        best = (
            (*whole_above, *(-self.most_whole(n, region) for n in below)),
            (*domains_above, *(self.fewest(n, region) for n in below)),
            best_fit,
            self._least_counted,
            -self.most_score(level, domain),
        )
        return Candidate((*best, domain), region, best_fit, key, whole_above, domains_above)

    @property
    def _least_counted(self) -> tuple[int, ...]:
        """Lower bound on the vector that a ByCount adds."""
        table = self.problem.by_count
        return (_LEAST,) * table.width if table is not None else ()

    def _residue(self, level: int, domain: int) -> int:
        return int(self._bound_in[level][domain]) % self.problem.multiples[level]

    def _common_level(self, anchor: Region, path: Mapping[int, int]) -> int:
        """Returns the level of the lowest domain that contains both an anchor and the region with the given path."""
        level, domain = anchor
        while path.get(level) != domain:
            domain = int(self.tree.levels[level].parent[domain])
            level -= 1
        return level

    def _inside(self, level: int, region: Region) -> slice:
        """Returns the domains of a level inside the region."""
        outer, starts = self.tree.levels[region[0]], self.tree.levels[level].start
        lo, hi = outer.start[region[1]], outer.end[region[1]]
        return slice(int(np.searchsorted(starts, lo)), int(np.searchsorted(starts, hi)))

    def most_whole(self, level: int, region: Region) -> int:
        """Returns an upper bound on the groups that are whole in domains of a level inside the region."""
        total = 0
        inside = self._inside(level, region)
        for group in self.types:
            most = np.full(inside.stop - inside.start, group.count, dtype=np.int64)
            for i, n in enumerate(group.pods):
                if n:
                    most = np.minimum(most, self.tree.levels[level].sums(self.room.slots[i])[inside] // n)
            total += min(group.count, int(most.sum()))
        return total

    def fewest(self, level: int, region: Region) -> int:
        """Returns a lower bound on the domains of a level that contain members if the region takes all new pods."""
        return int(self.fewest_by_measure(level, region).max())

    def fewest_by_measure(self, level: int, region: Region) -> Ints:
        """Returns [measures] the bound of `fewest` by each measure alone."""
        inside = self._inside(level, region)
        held = self._bound_in[level] > 0
        there = held[inside]
        sizes = self._sizes(level)[:, inside]
        rest = self._wanted - sizes[:, there].sum(axis=1)
        sums = np.cumsum(np.sort(sizes[:, ~there], axis=1)[:, ::-1], axis=1)
        opened = np.where(rest > 0, (sums < rest[:, None]).sum(axis=1) + 1, 0)
        return np.asarray(opened + int(held.sum()), dtype=np.int64)

    def _sizes(self, level: int) -> Ints:
        """Returns [measures, domains of a level] the capacity."""
        if level not in self._known:
            place = self.tree.levels[level]
            self._known[level] = np.stack([place.sums(per_node) for per_node, _ in self.measures])
        return self._known[level]

    @cached_property
    def measures(self) -> list[tuple[Ints, Ints]]:
        """([nodes] capacity, [shapes] request of a pod) of each measure: pods, pods of each shape, each resource."""
        own = np.eye(len(self.room.counts), dtype=np.int64)
        out = [(self.room.most, np.ones_like(self.room.counts)), *zip(self.room.slots, own, strict=True)]
        return [*out, *zip(self.room.caps.T, self.room.request.T, strict=True)]

    def most_score(self, level: int, domain: int) -> int:
        """Returns an upper bound on the total score in a domain."""
        place = self.tree.levels[level]
        nodes = slice(int(place.start[domain]), int(place.end[domain]))
        slots, score = self.room.slots[:, nodes], self._scores[:, nodes]
        order = np.argsort(-score, axis=1, kind="stable")
        slots, score = (np.take_along_axis(rows, order, axis=1) for rows in (slots, score))
        before = np.cumsum(slots, axis=1) - slots
        return int((np.clip(self.room.counts[:, None] - before, 0, slots) * score).sum())

    @cached_property
    def _scores(self) -> Ints:
        """[shapes, nodes] scores."""
        return np.stack([self.problem.shapes[shape].score for shape in self.room.shapes])

    @cached_property
    def _wanted(self) -> Ints:
        """[measures] total request of all new pods."""
        return np.array([int(self.room.counts @ amounts) for _, amounts in self.measures], dtype=np.int64)
