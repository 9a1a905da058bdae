"""How many pods of one shape a domain can take, with podCountMultiple at every layer (gang-network.md 4 and 5).

Without multiples a domain takes any number up to the sum of its slots. With them the numbers that it can take are an
arithmetic progression (`goals.progressions`), and what lies outside the domain must be left whole as well.
"""

import numpy as np
from numpy.typing import NDArray

from koordpy.planning.placement.goals import progressions, slots_by_level
from koordpy.planning.placement.problem import Ints, Problem, hard_regions


def rest_kept(problem: Problem, level: int, size: int | None = None) -> NDArray[np.bool_]:
    """[domains of a level] whether the domains above and beside hold multiples where only this one takes new pods:
    `size` of them, or some number."""
    tree, domains = problem.tree, problem.tree.levels[level]
    kept = np.ones(len(domains), dtype=bool)
    for at, k in problem.multiples.items():
        held = tree.levels[at].sums(problem.bound_counts)
        wrong, above = held % k != 0, tree.domain_of[min(at, level)][domains.start]
        if size is not None and at <= level:
            kept &= ((held + size) % k == 0)[above]
        if at < level:
            kept &= int(wrong.sum()) == wrong[above]
        else:
            before = np.concatenate(([0], np.cumsum(wrong)))
            first, last = (np.searchsorted(tree.levels[at].start, edge) for edge in (domains.start, domains.end))
            kept &= before[last] - before[first] == before[-1]
    return kept


class Reach:
    """What counts of one shape the domains of a problem can take."""

    def __init__(self, problem: Problem, shape: int) -> None:
        self.problem = problem
        self.tree = problem.tree
        self.shape = shape
        self.multiples = {level: k for level, k in problem.multiples.items() if k > 1}

    def usable(self, level: int) -> Ints:
        """[domains of the level] slots: further pods that fit, whatever the unit's size; with multiples of the layers
        at and below it the largest number that leaves a multiple in every domain, 0 where there is none."""
        return slots_by_level(self.problem, self.shape)[level]

    def domains(self, level: int, size: int) -> Ints:
        """Domains of a level that can take exactly `size` new pods, with every multiple kept in the whole tree."""
        low, high, step, possible = progressions(self.problem, self.shape)[level]
        takes = possible & (low <= size) & (size <= high)
        if self.multiples:
            takes &= (size - low) % step == 0
            takes &= rest_kept(self.problem, level, size)
        return np.nonzero(takes)[0]

    def largest(self, *, core: int, limit: int) -> int:
        """Most pods, `core` to `limit`, that some placement under the hard layer and multiples takes; 0 for none."""
        hard = self.problem.hard
        allowed = [domain for _, domain in hard_regions(self.problem)]
        low, high, step, possible = progressions(self.problem, self.shape)[hard]
        low, high, possible = low[allowed], high[allowed], possible[allowed]
        top = np.minimum(high, limit)
        open_ = possible & (low <= top)
        if not open_.any():
            return 0
        sizes = low[open_] + (top[open_] - low[open_]) // step * step
        if not self.multiples:
            return int(sizes.max()) if sizes.max() >= core else 0
        residues = set((low[open_] % step).tolist())
        for size in range(int(sizes.max()), core - 1, -1):
            if size % step in residues and np.isin(self.domains(hard, size), allowed).any():
                return size
        return 0
