"""From counts per node to ranks on nodes: goal 7, by the search along the ring where it proves its answer, else CP-SAT.

Source: gang-network.md section 5, goal 7.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from koordpy.planning.limits import RING_PODS
from koordpy.planning.placement.goals import Goals, faults_together
from koordpy.planning.placement.problem import Problem
from koordpy.planning.placement.rank_order import assign_groups, order_ranks
from koordpy.planning.plan import RANKS
from koordpy.planning.solver.budget import TimeBudget
from koordpy.planning.solver.gather import Gather
from koordpy.planning.solver.reached import Found
from koordpy.planning.solver.ring import Ring


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

    Above 64 pods the start serves where no order of whole domains exists; where it is not known whether, the order of
    ranks is left open.
    """
    goals, ranks = Goals(problem), sorted(start)
    mixed = len({problem.members[rank].shape for rank in ranks}) > 1
    ordered, proven = order_ranks(
        problem,
        Counter(start.values()),
        ranks,
        crossed=goals.pipeline(start),
        score=-goals.score(start)[0] if mixed else None,
    )
    if (
        mixed
        and ordered is not None
        and (faults_together(problem, ordered) or goals.counted(ordered) != goals.counted(start))
    ):
        ordered, proven = None, False
    if proven and ordered is not None:
        return ordered
    best = dict(start)
    if ordered is not None and goals.ranks(ordered) < goals.ranks(start):
        best = ordered
    if len(ranks) <= RING_PODS:
        return Ring(problem, best, budget=budget).solve()
    budget.leave_open(RANKS)
    return best
