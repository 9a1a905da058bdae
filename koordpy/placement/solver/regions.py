# SPDX-License-Identifier: Apache-2.0
"""Bounds of how good a gang's placement in a topology domain can be, without solving a model.

A region is a domain that may become c, the lowest domain that contains all new pods (goals and letters: `goals.py`). A
solve of one region takes long. So regions are solved in the order of their bounds, and a region is skipped if its bound
is worse than the best value so far. Goals 2 and 5 depend on the region alone and are exact. Goals 3, 4 and the score
are bounded by sums of capacity. Of regions that differ only in names, one is solved. Source: docs/rules/gang-network.md
5 and 7.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from koordpy.placement.goals import slots_by_level
from koordpy.placement.problem import Ints, Problem
from koordpy.placement.solver.filling_capacity import FillingCapacity
from koordpy.placement.solver.whole_groups import GroupType

Region = tuple[int, int]
"""(level, domain) of the tree."""

Value = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], int, int]
"""Value of a region, smaller is better: goals 3, 4 and 5, the device cost vector, the negated score, the index of the
domain.

The index is the position in natural order; it decides between regions that are equal otherwise.
"""
_LEAST = -(1 << 60)
"""Lower bound of a component of the device cost vector if nothing is known about the component."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A region that may become c, with all values that are known before a solve."""

    best: Value
    """Lower bound on the value of the region."""
    region: Region
    best_fit: tuple[int, ...]
    """Goal 5: usable slots of the region, of its parent, and so on up to the cluster."""
    key: tuple[object, ...]
    """Equal for regions for which a solve gives equal results."""
    whole_above: tuple[int, ...]
    """Goal 3 on levels 1 to that of the region, which a solve does not change: negated number of whole pipeline
    groups."""
    domains_above: tuple[int, ...]
    """Goal 4 on levels 1 to that of the region: number of domains with members, bound and new."""


class Regions:
    """Computes bounds of the values that regions can reach if they take all given pods.

    ranks: members to place. capacity: capacity of the nodes for them. types: their pipeline groups.
    """

    def __init__(
        self, problem: Problem, ranks: Sequence[int], *, capacity: FillingCapacity, types: Sequence[GroupType]
    ):
        self.problem, self.tree, self.capacity = problem, problem.tree, capacity
        self.types = types
        self._usable = slots_by_level(problem, problem.reference(tuple(ranks)))
        self.bound: list[int] = np.nonzero(problem.bound_counts)[0].tolist()
        self._held = [set(level.tolist()) for level in self.tree.domain_of[:, self.bound]]
        self._known: dict[int, Ints] = {}
        self._bound_in = [level.sums(problem.bound_counts) for level in self.tree.levels]

    def number_with_members(self, level: int) -> int:
        """Returns the number of domains of a level that contain bound members."""
        return int((self._bound_in[level] > 0).sum())

    def candidate(self, level: int, domain: int) -> Candidate:
        """Returns a region's values that are known before a solve.

        On its own level and above, goals 3 and 4 are exact; below, they are bounded by sums of capacity.
        """
        # exact values on the level of the region and above
        path = self.tree.upwards(level, domain)
        region = level, domain
        best_fit = tuple(int(self._usable[n][d]) for n, d in path)
        above = dict(path)
        common = [(t, level if t.anchor is None else self._common_level(t.anchor, above)) for t in self.types]
        whole_above = tuple(-sum(t.count for t, at in common if at >= n) for n in range(1, level + 1))
        domains_above = tuple(len(self._held[n] | {above[n]}) if self.bound else 1 for n in range(1, level + 1))
        # regions with equal keys are equal in everything that a solve depends on
        below = range(level + 1, self.tree.depth + 1)
        key = (
            int(self.capacity.twins[level][domain]),
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
        """Lower bound of the device cost vector: `_LEAST` in every component; empty without device costs."""
        table = self.problem.device_costs
        return (_LEAST,) * table.width if table is not None else ()

    def _residue(self, level: int, domain: int) -> int:
        """Returns the remainder of the number of bound members of a domain divided by the multiple of its level."""
        return int(self._bound_in[level][domain]) % self.problem.multiples[level]

    def _common_level(self, anchor: Region, path: Mapping[int, int]) -> int:
        """Returns the level of the lowest domain that contains both a region and the anchor of a pipeline group.

        anchor: (level, domain) of the lowest domain with all bound members of the group. path: level -> domain of the
        region and of each domain above it.
        """
        level, domain = anchor
        while path.get(level) != domain:
            domain = int(self.tree.levels[level].parent[domain])
            level -= 1
        return level

    def _inside(self, level: int, region: Region) -> slice:
        """Returns the domains of a level inside the region, as a slice of the domains of that level."""
        outer, starts = self.tree.levels[region[0]], self.tree.levels[level].start
        lo, hi = outer.start[region[1]], outer.end[region[1]]
        return slice(int(np.searchsorted(starts, lo)), int(np.searchsorted(starts, hi)))

    def most_whole(self, level: int, region: Region) -> int:
        """Returns an upper bound of the number of pipeline groups that are whole in domains of a level inside the
        region."""
        total = 0
        inside = self._inside(level, region)
        for group in self.types:
            most = np.full(inside.stop - inside.start, group.count, dtype=np.int64)
            for i, n in enumerate(group.pods):
                if n:
                    most = np.minimum(most, self.tree.levels[level].sums(self.capacity.slots[i])[inside] // n)
            total += min(group.count, int(most.sum()))
        return total

    def fewest(self, level: int, region: Region) -> int:
        """Returns a lower bound of the number of domains of a level with members, if the region takes all new pods."""
        return int(self.fewest_by_measure(level, region).max())

    def fewest_by_measure(self, level: int, region: Region) -> Ints:
        """Returns [measures] the bound of `fewest` by each measure of capacity alone (`measures`).

        Domains with bound members are open already, so they are filled first; then the largest domains are opened.
        """
        inside = self._inside(level, region)
        held = self._bound_in[level] > 0
        there = held[inside]
        sizes = self._sizes(level)[:, inside]
        rest = self._wanted - sizes[:, there].sum(axis=1)
        sums = np.cumsum(np.sort(sizes[:, ~there], axis=1)[:, ::-1], axis=1)
        opened = np.where(rest > 0, (sums < rest[:, None]).sum(axis=1) + 1, 0)
        return np.asarray(opened + int(held.sum()), dtype=np.int64)

    def _sizes(self, level: int) -> Ints:
        """Returns [measures, domains of a level] the capacity of each domain by each measure."""
        if level not in self._known:
            place = self.tree.levels[level]
            self._known[level] = np.stack([place.sums(per_node) for per_node, _ in self.measures])
        return self._known[level]

    @cached_property
    def measures(self) -> list[tuple[Ints, Ints]]:
        """The measures of capacity: number of pods, pods of each shape, each resource.

        Each is ([nodes] capacity, [shapes] amount that one pod of the shape uses).
        """
        own = np.eye(len(self.capacity.counts), dtype=np.int64)
        out = [(self.capacity.most, np.ones_like(self.capacity.counts)), *zip(self.capacity.slots, own, strict=True)]
        return [*out, *zip(self.capacity.caps.T, self.capacity.request.T, strict=True)]

    def most_score(self, level: int, domain: int) -> int:
        """Returns an upper bound of the total score: for each shape alone, the best nodes of the domain are filled."""
        place = self.tree.levels[level]
        nodes = slice(int(place.start[domain]), int(place.end[domain]))
        slots, score = self.capacity.slots[:, nodes], self._scores[:, nodes]
        order = np.argsort(-score, axis=1, kind="stable")
        slots, score = (np.take_along_axis(rows, order, axis=1) for rows in (slots, score))
        before = np.cumsum(slots, axis=1) - slots
        return int((np.clip(self.capacity.counts[:, None] - before, 0, slots) * score).sum())

    @cached_property
    def _scores(self) -> Ints:
        """[shape positions, nodes] score of a pod of the shape on the node."""
        return np.stack([self.problem.shapes[shape].score for shape in self.capacity.shapes])

    @cached_property
    def _wanted(self) -> Ints:
        """[measures] total amount that all new pods use."""
        return np.array([int(self.capacity.counts @ amounts) for _, amounts in self.measures], dtype=np.int64)
