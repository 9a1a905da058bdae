"""From counts per node to ranks on nodes: goal 7 in closed form where it is known, else by search.

Source: gang-network.md section 5, goal 7.
"""

from collections.abc import Sequence

from koordpy.planning.goals import Goals
from koordpy.planning.problem import Problem
from koordpy.planning.rank_order import assign_groups, order_ranks
from koordpy.planning.solver.budget import Budget
from koordpy.planning.solver.gather import Found, Gather
from koordpy.planning.solver.ring import MOST_PODS, Ring


def assign(problem: Problem, ranks: Sequence[int], gather: Gather, found: Found, *, budget: Budget) -> dict[int, int]:
    """Rank -> node for the region that won goals 1 to 5."""
    counts = gather.inside(found)
    pods = {
        node: {shape: n for shape, n in zip(gather.room.shapes, held, strict=True) if n}
        for node, held in counts.items()
    }
    start = assign_groups(problem, pods, ranks, whole=gather.whole, groups=gather.group_ranks())
    goals = Goals(problem)
    score = -goals.score(start)[0] if len(gather.room.shapes) > 1 else None
    totals = {node: sum(held.values()) for node, held in pods.items()}
    closed = order_ranks(problem, totals, ranks, crossed=goals.pipeline(start), score=score)
    if closed is not None:
        return closed
    if len(ranks) > MOST_PODS:
        return start
    return Ring(problem, start, budget=budget).solve()
