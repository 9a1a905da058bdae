"""From counts per node to ranks on nodes: goal 7, proven where the search along the ring ends in time.

Source: gang-network.md section 5, goal 7.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from koordpy.planning.placement.goals import Goals, faults_together
from koordpy.planning.placement.problem import Problem
from koordpy.planning.placement.rank_order import assign_groups, order_ranks
from koordpy.planning.solver.budget import TimeBudget
from koordpy.planning.solver.gather import Gather
from koordpy.planning.solver.reached import Found


def assign(
    problem: Problem, ranks: Sequence[int], gather: Gather, found: Found, *, budget: TimeBudget
) -> dict[int, int]:
    """Rank -> node for the region that won goals 1 to 5."""
    pods = {
        node: {shape: n for shape, n in zip(gather.room.shapes, held, strict=True) if n}
        for node, held in gather.inside(found).items()
    }
    start = assign_groups(problem, pods, ranks, whole=gather.whole, groups=gather.group_ranks())
    return settle_ranks(problem, start, budget=budget)


def settle_ranks(problem: Problem, start: Mapping[int, int], *, budget: TimeBudget) -> dict[int, int]:
    """The best assignment in goal 7 with the pods per node, goal 3 and score of an assignment that is best in 0-6.

    Where the search gives up, the better of its order and the start serves, and the order of ranks is left open.
    """
    goals, ranks = Goals(problem), sorted(start)
    score, counted = goals.score(start), goals.counted(start)

    def keeps(nodes: Mapping[int, int]) -> bool:
        same = goals.score(nodes) <= score and goals.counted(nodes) == counted
        return same and not faults_together(problem, nodes)

    alike = _exchangeable(problem, start)
    crossed = goals.pipeline(start)
    ordered, proven = order_ranks(
        problem, Counter(start.values()), ranks, crossed=crossed, keeps=None if alike else keeps
    )
    if proven and ordered is not None:
        return ordered
    if not proven:
        budget.leave_ranks_open()
    return ordered if ordered is not None and goals.ranks(ordered) < goals.ranks(start) else dict(start)


def _exchangeable(problem: Problem, start: Mapping[int, int]) -> bool:
    """Whether pods may change places wherever there is room: nothing but their order changes."""
    shapes = sorted({problem.members[rank].shape for rank in start})
    if len(shapes) == 1:
        return True
    rows = np.stack([problem.shapes[s].score[sorted(set(start.values()))] for s in shapes])
    return not problem.interactions and problem.by_count is None and bool((rows == rows[0]).all())
