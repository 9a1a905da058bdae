"""Combines the least harmful covers of nodes along the tree, with the gather goals of the unit.

Source: preemption.md 5. The levels that decide first (gangs broken, accelerators, pods, then goals 3 and 4) are small
and fit machine words: one table per domain by the number of pods it takes. Priorities and level 9 are long numbers, so
they are compared only if the words leave a choice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from koordpy.placement.problem import Problem
from koordpy.plan.limits import GATHERED_VICTIMS_STEPS
from koordpy.preemption.selection.node_covers import LEVEL_BITS, Unwieldy

Words = NDArray[np.int64]
_NEVER = 1 << 61
_BITS = 60

Early = tuple[int, int, int]
"""(gangs broken, accelerators, pods)."""


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """Offers of one node: for m = 0, 1, ... pods the cost and the chosen options."""

    costs: tuple[int, ...]
    taken: tuple[tuple[int, ...], ...]


@dataclass
class _Domain:
    """One domain: children with offers, tables of the first 0, 1, ... of them, and its own table."""

    children: list[int] = field(default_factory=list)
    tables: list[Words] = field(default_factory=list)
    own: Words = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    late: dict[int, int] = field(default_factory=dict)
    split: dict[int, list[int]] = field(default_factory=dict)
    """Number of pods -> pods of each child in the best split."""


class Gathered:
    """The cheapest way to place `number` pods in one of the regions, with gather goals if there are any."""

    def __init__(
        self, problem: Problem, regions: Sequence[int], offers: Mapping[int, NodeOffer], number: int, *, late: int
    ) -> None:
        """late: number of bits of a cost below levels 3 to 5."""
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
        """Computes the number of bits of each part of a word. Raises `Unwieldy` if they do not fit."""
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
        return sum(part // step << shift for part, step, shift in zip(early, self.scale, self.shifts, strict=True))

    def _with_goals(self, level: int, table: Words) -> Words:
        """Returns the table with goals 3 and 4 of a domain: groups that are not whole in it, and that it is used."""
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
        """Returns the least sums over all ways to split m pods in two."""
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

        Minimises levels 1 to 6 of the hard layer, then goals 1 to 4 of a gather goal among the domains that reach them,
        then levels 8 and 9.
        """
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
        levels, attract = self.tree.levels, self.problem.attract
        return tuple(int(levels[n].sums(attract)[d]) for n, d in self.tree.upwards(level, domain))

    def _late(self, level: int, domain: int, m: int) -> int:
        """Returns the least priorities and level 9 of m pods among the splits with the least words."""
        if not m:
            return 0
        if level == self.tree.depth:
            return self.offers[domain].costs[m] & self._below
        one = self.domains[level][domain]
        if m not in one.late:
            self._split(level, one, m)
        return one.late[m]

    def _split(self, level: int, one: _Domain, m: int) -> None:
        """Finds the best split of m pods over the children of a domain, among the splits with the least words."""
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
        one.late[m] = known[m]
        split, left = [], m
        for chosen in reversed(taken):
            split.append(chosen[left])
            left -= chosen[left]
        one.split[m] = split[::-1]

    def _take(self, level: int, domain: int, m: int, out: list[int]) -> None:
        """Appends the options for m pods in a domain to `out`."""
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
