"""How many pods of one shape a domain can take, with podCountMultiple at every layer (gang-network.md 4 and 5).

Without multiples a domain takes any number up to the sum of its slots. With multiples the possible numbers are an
arithmetic progression (`goals.progressions`), and the domains outside must have multiples as well.
"""

import numpy as np
from numpy.typing import NDArray

from koordpy.placement.goals import progressions
from koordpy.placement.problem import Ints, Problem, hard_regions


def rest_kept(problem: Problem, level: int, size: int | None = None) -> NDArray[np.bool_]:
    """Returns [domains of a level] True if all domains outside have multiples when only this domain takes new pods.

    Domains above it must have a multiple with `size` new pods; None: with some number of new pods.
    """
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


def able_domains(problem: Problem, shape: int, level: int, size: int) -> Ints:
    """Returns the domains of a level that can take exactly `size` new pods of a shape.

    Every multiple in the tree is met.
    """
    low, high, step, possible = progressions(problem, shape)[level]
    takes = possible & (low <= size) & (size <= high)
    if problem.multiples:
        takes &= (size - low) % step == 0
        takes &= rest_kept(problem, level, size)
    return np.nonzero(takes)[0]


def most_pods(problem: Problem, shape: int, *, core: int, limit: int) -> int:
    """Returns the largest number of pods of a shape, from `core` to `limit`, that the hard layer and multiples admit.

    0 if there is none.
    """
    hard = problem.hard
    allowed = [domain for _, domain in hard_regions(problem)]
    low, high, step, possible = progressions(problem, shape)[hard]
    low, high, possible = low[allowed], high[allowed], possible[allowed]
    top = np.minimum(high, limit)
    open_ = possible & (low <= top)
    if not open_.any():
        return 0
    sizes = low[open_] + (top[open_] - low[open_]) // step * step
    if not problem.multiples:
        return int(sizes.max()) if sizes.max() >= core else 0
    residues = set((low[open_] % step).tolist())
    for size in range(int(sizes.max()), core - 1, -1):
        if size % step in residues and np.isin(able_domains(problem, shape, hard, size), allowed).any():
            return size
    return 0
