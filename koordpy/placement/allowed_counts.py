# SPDX-License-Identifier: Apache-2.0
"""How many pods of one shape a topology domain can take if layers have a podCountMultiple (gang-network.md 4 and 5).

A podCountMultiple requires that each domain of a layer has a multiple of k members. Without multiples, a domain takes
any number of pods up to the sum of its slots. With multiples, the possible numbers in a domain are an arithmetic
progression (`goals.progressions`). In addition, each domain that gets no new pod must already have a multiple of bound
members (`rest_kept`).
"""

import numpy as np
from numpy.typing import NDArray

from koordpy.placement.goals import progressions
from koordpy.placement.problem import Ints, Problem, hard_regions


def rest_kept(problem: Problem, level: int, size: int | None = None) -> NDArray[np.bool_]:
    """Returns [domains of a level] True if every multiple outside a domain holds when that domain alone takes all new
    pods.

    Domains beside it keep their bound members, so their number must be a multiple already. The domains above it, and
    the domain itself, get `size` new pods as well, and must then have a multiple. size: None to leave these domains
    unchecked.
    """
    tree, domains = problem.tree, problem.tree.levels[level]
    kept = np.ones(len(domains), dtype=bool)
    for at, k in problem.multiples.items():
        held = tree.levels[at].sums(problem.bound_counts)
        wrong, above = held % k != 0, tree.domain_of[min(at, level)][domains.start]
        if size is not None and at <= level:
            kept &= ((held + size) % k == 0)[above]
        if at < level:
            # only the domain above may have no multiple yet, because it gets new pods
            kept &= int(wrong.sum()) == wrong[above]
        else:
            # every domain that has no multiple yet must be inside, because it gets new pods
            before = np.concatenate(([0], np.cumsum(wrong)))
            first, last = (np.searchsorted(tree.levels[at].start, edge) for edge in (domains.start, domains.end))
            kept &= before[last] - before[first] == before[-1]
    return kept


def able_domains(problem: Problem, shape: int, level: int, size: int) -> Ints:
    """Returns the domains of a level that can take exactly `size` new pods of a shape so that every multiple holds."""
    low, high, step, possible = progressions(problem, shape)[level]
    takes = possible & (low <= size) & (size <= high)
    if problem.multiples:
        takes &= (size - low) % step == 0
        takes &= rest_kept(problem, level, size)
    return np.nonzero(takes)[0]


def most_pods(problem: Problem, shape: int, *, core: int, limit: int) -> int:
    """Returns the largest number of pods of a shape, from `core` to `limit`, that fits one domain of the hard layer.

    Every multiple must hold with that number. 0 if no number in the range does. core: number of pods that must be
    placed.
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
    # try the sizes from the largest down; sizes outside every domain's progression are skipped
    residues = set((low[open_] % step).tolist())
    for size in range(int(sizes.max()), core - 1, -1):
        if size % step in residues and np.isin(able_domains(problem, shape, hard, size), allowed).any():
            return size
    return 0
