# SPDX-License-Identifier: Apache-2.0
"""Distributes the pods of a unit over nodes and domains, such that their victims are the least harmful.

Source: docs/rules/preemption.md 5. Each node has a lowest cost for 0, 1, 2, ... pods (an offer). The table of a domain
has the lowest cost for each number of pods in the domain. It is computed from the tables of its children, for each
number of pods over all splits (a min-plus convolution), from the nodes up to the cluster. The first levels (gangs
broken, accelerators, pods, then goals 3 and 4 of a gather goal) are packed into one 64-bit word. The last levels (8:
priorities, 9: importance) are long integers, so they are compared only among splits with equal words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from koordpy.placement.problem import Problem
from koordpy.plan.limits import GATHERED_VICTIMS_STEPS
from koordpy.preemption.selection.node_covers import LEVEL_BITS, Unwieldy

Words = NDArray[np.int64]
"""[pods] index m has the word of the cheapest way to place m pods. A word packs the first levels, the most important in
the highest bits, so that words can be added, and compare like the levels."""
_NEVER = 1 << 61
"""The word for a number of pods that a domain cannot take. The sum of two such words is still below 1 << 63."""
_BITS = 60
"""Maximum number of bits of a word, so that every word is below `_NEVER`."""

Early = tuple[int, int, int]
"""Levels 3 to 5 of a cost: (gangs broken, accelerators in hundredths of a device, pods)."""


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """The cheapest victims of one node for each number of pods: index m is for m pods, from 0 on.

    costs: the lowest cost. taken: the options that are evicted.
    """

    costs: tuple[int, ...]
    taken: tuple[tuple[int, ...], ...]


@dataclass
class _Domain:
    """One domain of the network tree."""

    children: list[int] = field(default_factory=list)
    """Child domains with offers."""
    tables: list[Words] = field(default_factory=list)
    """Index k has the table of the first k children together."""
    own: Words = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    """Table of the domain: that of all children together, with the gather goals of the domain added."""
    late: dict[int, int] = field(default_factory=dict)
    """Number of pods -> levels 8 and 9 of the best split over the children."""
    split: dict[int, list[int]] = field(default_factory=dict)
    """Number of pods -> number of pods in each child, in the best split."""


class Gathered:
    """Finds the cheapest way to place `number` pods in one of the regions, with gather goals if the gang has any.

    Raises `Unwieldy` if the numbers do not fit a word, or if too many splits have equal words.
    """

    def __init__(
        self, problem: Problem, regions: Sequence[int], offers: Mapping[int, NodeOffer], number: int, *, late: int
    ) -> None:
        """regions: domains of the hard layer; only the cluster if there is no hard layer. offers: by node. late: number
        of bits of a cost below levels 3 to 5."""
        self.problem, self.regions, self.number = problem, regions, number
        self.tree, self.offers = problem.tree, offers
        self._below = (1 << late) - 1
        self._early = {node: [_levels(cost >> late) for cost in one.costs] for node, one in offers.items()}
        self._steps = 0
        self._merged: dict[tuple[bytes, bytes], Words] = {}
        self._owned: dict[tuple[int, bytes], Words] = {}
        self._widths()
        self.domains: list[dict[int, _Domain]] = [{} for _ in self.tree.levels]
        self._build()

    # --- words --------------------------------------------------------------------------------------------------------

    def _widths(self) -> None:
        """Computes the number of bits of each part of a word. Raises `Unwieldy` if they do not fit.

        To save bits, each level is divided by the greatest common divisor of its values. With a gather goal, the goals
        are in the bits below the levels. First, for each layer, the pods in pipeline groups that span domains (goal 3);
        then, for each layer, the number of used domains (goal 4).
        """
        every = self._early.values()
        most = [sum(max(part[i] for part in early) for early in every) for i in range(3)]
        scale = [int(np.gcd.reduce([part[i] for early in every for part in early])) for i in range(3)]
        self.scale = [max(1, step) for step in scale]
        early = [(total // step).bit_length() for total, step in zip(most, self.scale, strict=True)]
        goal, depth = (self.number + 1).bit_length() if self.problem.gather else 0, self.tree.depth
        groups = depth if goal and self.problem.pipeline > 1 else 0
        self.goals = goal * (depth + groups)
        if sum(early) + self.goals > _BITS:
            raise Unwieldy
        self.shifts = [self.goals + early[1] + early[2], self.goals + early[2], self.goals]
        self.used = [1 << goal * (depth - level) if goal else 0 for level in range(depth + 1)]
        self.broken = [1 << goal * (depth + groups - level) if groups else 0 for level in range(depth + 1)]

    def _word(self, early: Early) -> int:
        """Returns levels 3 to 5 as a word, each divided by its `scale`, with zero in the bits of the goals."""
        return sum(part // step << shift for part, step, shift in zip(early, self.scale, self.shifts, strict=True))

    def _with_goals(self, level: int, table: Words) -> Words:
        """Returns a domain's table with goals 3 and 4 of the domain added.

        Goal 4 adds one used domain for any number of pods above 0. Goal 3 adds the pods beyond a multiple of the group
        size, because their pipeline group is not whole in the domain.
        """
        key = level, table.tobytes()
        found = self._owned.get(key)
        if found is None:
            found = table.copy()
            size = self.problem.pipeline
            if len(found) > 1:
                found[1:] += self.used[level]
                if size > 1:
                    found += self.broken[level] * (np.arange(len(found), dtype=np.int64) % size)
            np.minimum(found, _NEVER, out=found)
            self._owned[key] = found
        return found

    def _merge(self, left: Words, right: Words) -> Words:
        """Returns the table of two children together: for each m, the lowest sum over all splits of m pods."""
        key = left.tobytes(), right.tobytes()
        known = self._merged.get(key)
        if known is not None:
            return known
        if len(left) < len(right):
            left, right = right, left
        size = min(len(left) + len(right) - 1, self.number + 1)
        out = np.full(size, _NEVER, dtype=np.int64)
        for j, value in enumerate(right[:size].tolist()):
            if value < _NEVER:
                upto = min(len(left), size - j)
                np.minimum(out[j : j + upto], left[:upto] + value, out=out[j : j + upto])
        self._merged[key] = out
        return out

    def _build(self) -> None:
        """Builds the tables of all domains, from the nodes up to the root."""
        tree = self.tree
        for node in sorted(self.offers):
            words = np.array([self._word(early) for early in self._early[node]], dtype=np.int64)
            self.domains[tree.depth][node] = _Domain(own=self._with_goals(tree.depth, words))
        for level in range(tree.depth - 1, -1, -1):
            for child, one in self.domains[level + 1].items():
                parent = int(tree.levels[level + 1].parent[child]) if level else 0
                domain = self.domains[level].setdefault(parent, _Domain())
                domain.children.append(child)
                if not domain.tables:
                    domain.tables.append(np.zeros(1, dtype=np.int64))
                domain.tables.append(self._merge(domain.tables[-1], one.own))
            for domain in self.domains[level].values():
                domain.own = self._with_goals(level, domain.tables[-1]) if level else domain.tables[-1]

    # --- the answer ---------------------------------------------------------------------------------------------------

    def solve(self) -> list[int] | None:
        """Returns the chosen options; None if no region can take all pods.

        First the lowest levels 3 to 5 within the regions are found. Then, among the domains that reach these levels,
        the gather goals 1 to 4 decide, then levels 8 and 9. Without a gather goal only the regions are compared.
        """
        # (level, domain) -> word of all pods in the domain
        reached = {
            (level, domain): int(one.own[self.number])
            for level in range(self.problem.hard, self.tree.depth + 1)
            for domain, one in self.domains[level].items()
            if self.number < len(one.own) and one.own[self.number] < _NEVER
        }
        hard = {(self.problem.hard, domain) for domain in self.regions}
        inside = [word for key, word in reached.items() if key in hard]
        if not inside:
            return None
        least = min(word >> self.goals for word in inside)
        ready = [
            key for key, word in reached.items() if word >> self.goals == least and (self.problem.gather or key in hard)
        ]
        # goal 1: the lowest layer; goal 2: the most attracting pods; goals 3 and 4: in the word; then levels 8 and 9
        lowest = max(level for level, _ in ready)
        ready = [key for key in ready if key[0] == lowest]
        pull = {key: self._attraction(*key) for key in ready}
        most = max(pull.values())
        ready = [key for key in ready if pull[key] == most]
        word = min(reached[key] for key in ready)
        ready = [key for key in ready if reached[key] == word]
        level, domain = min(ready, key=lambda key: self._late(key[0], key[1], self.number))
        out: list[int] = []
        self._take(level, domain, self.number, out)
        return out

    def _attraction(self, level: int, domain: int) -> tuple[int, ...]:
        """Returns the number of attracting pods in a domain and in each domain above it, starting with the domain
        itself."""
        levels, attract = self.tree.levels, self.problem.attract
        return tuple(int(levels[n].sums(attract)[d]) for n, d in self.tree.upwards(level, domain))

    def _late(self, level: int, domain: int, m: int) -> int:
        """Returns the lowest levels 8 and 9 for m pods in a domain, over the splits with the lowest word."""
        if not m:
            return 0
        if level == self.tree.depth:
            return self.offers[domain].costs[m] & self._below
        one = self.domains[level][domain]
        if m not in one.late:
            self._split(level, one, m)
        return one.late[m]

    def _split(self, level: int, one: _Domain, m: int) -> None:
        """Finds the best split of m pods over the children of a domain, among the splits with the lowest word.

        Stores the split and its levels 8 and 9 in the domain. Raises `Unwieldy` after `GATHERED_VICTIMS_STEPS` splits.
        """
        # backwards: the numbers of pods that each child has in any split with the lowest word
        own = [self.domains[level + 1][child].own for child in one.children]
        wanted: list[list[int]] = [[] for _ in range(len(own) + 1)]
        ways: list[dict[int, list[int]]] = [{} for _ in own]
        wanted[-1] = [m]
        for at in range(len(own) - 1, -1, -1):
            before, after, coming = one.tables[at], one.tables[at + 1], set[int]()
            for total in wanted[at + 1]:
                fewest, upto = max(0, total - len(before) + 1), min(total, len(own[at]) - 1)
                takes = np.arange(fewest, upto + 1)
                sums = before[total - takes] + own[at][takes]
                best = takes[sums == after[total]].tolist()
                self._steps += len(best)
                if self._steps > GATHERED_VICTIMS_STEPS:
                    raise Unwieldy
                ways[at][total] = best
                coming.update(total - k for k in best)
            wanted[at] = sorted(coming)
        # forwards: over these splits, the lowest levels 8 and 9 of the first children together
        known: dict[int, int] = {0: 0}
        taken: list[dict[int, int]] = []
        for at, child in enumerate(one.children):
            now: dict[int, int] = {}
            chosen: dict[int, int] = {}
            for total in wanted[at + 1]:
                costs = ((known[total - k] + self._late(level + 1, child, k), k) for k in ways[at][total])
                now[total], chosen[total] = min(costs)
            known = now
            taken.append(chosen)
        # backwards again: the numbers of pods in the best split
        one.late[m] = known[m]
        split, left = [], m
        for chosen in reversed(taken):
            split.append(chosen[left])
            left -= chosen[left]
        one.split[m] = split[::-1]

    def _take(self, level: int, domain: int, m: int, out: list[int]) -> None:
        """Appends to `out` the options that are evicted for m pods in a domain."""
        if not m:
            return
        if level == self.tree.depth:
            out += self.offers[domain].taken[m]
            return
        one = self.domains[level][domain]
        if m not in one.split:
            self._split(level, one, m)
        for child, k in zip(one.children, one.split[m], strict=True):
            self._take(level + 1, child, k, out)


def _levels(early: int) -> Early:
    """Returns levels 3 to 5 of a cost."""
    mask = (1 << LEVEL_BITS) - 1
    return early >> 2 * LEVEL_BITS, early >> LEVEL_BITS & mask, early & mask
