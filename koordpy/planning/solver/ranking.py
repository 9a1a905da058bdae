"""Goal 7 for the counting shortcut: ranks for settled counts where the plain order will not do.

Source: gang-network.md section 5, goal 7. That is so with bound members in the ring, and where the plain order would
split pipeline groups that the counts allow to be whole.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from koordpy.planning.placement.problem import Problem, Solution
from koordpy.planning.placement.rank_order import assign_groups
from koordpy.planning.plan import proof_of
from koordpy.planning.solver.assignment import settle_ranks
from koordpy.planning.solver.budget import TimeBudget


def rank_counts(problem: Problem, ranks: Sequence[int], counts: Mapping[int, int]) -> Solution:
    """Rank -> node for equal pods whose counts per node are optimal in goals 0 to 6."""
    budget = TimeBudget.of(problem)
    nodes = settle_ranks(problem, _start(problem, ranks, counts), budget=budget)
    return Solution(nodes, proof_of(placed=True, sure=budget.proven), tuple(budget.runs))


def _start(problem: Problem, ranks: Sequence[int], counts: Mapping[int, int]) -> dict[int, int]:
    """An assignment with every group whole that can be; the plain order without pipeline groups."""
    size = problem.pipeline
    if size <= 1:
        return dict(zip(ranks, (node for node in sorted(counts) for _ in range(counts[node])), strict=True))
    shape = problem.members[ranks[0]].shape
    per_node = np.zeros(len(problem.free), dtype=np.int64)
    for node, number in counts.items():
        per_node[node] = number
    whole = {
        (0, level, int(d)): int(sums[d]) // size
        for level in range(1, problem.tree.depth + 1)
        for sums in [problem.tree.levels[level].sums(per_node)]
        for d in np.nonzero(sums >= size)[0]
    }
    groups = [ranks[at : at + size] for at in range(0, len(ranks), size)]
    return assign_groups(problem, {node: {shape: n} for node, n in counts.items()}, ranks, whole=whole, groups=[groups])
