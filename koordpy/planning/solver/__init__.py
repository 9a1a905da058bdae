"""The exact general path of the planner: every Problem, solved with CP-SAT in stages.

Source: gang-network.md sections 5 and 7. The only package that imports ortools; `solve` is all that others use.
"""

from collections import Counter
from collections.abc import Sequence

from koordpy.planning.goals import core_of
from koordpy.planning.plan import Proof
from koordpy.planning.problem import Problem, Solution
from koordpy.planning.solver.assignment import assign
from koordpy.planning.solver.budget import Budget
from koordpy.planning.solver.gather import Gather
from koordpy.planning.solver.members import Members
from koordpy.planning.solver.plain import Plain
from koordpy.planning.solver.room import Room

__all__ = ["solve"]


def solve(problem: Problem) -> Solution:
    """The best placement of a problem by the goals of section 5, and what is proven of it.

    OPTIMAL when every stage was proven, FEASIBLE when the deterministic time ran out on the way, INFEASIBLE when no
    placement exists, UNKNOWN (no nodes) when the time ran out before one was found.
    """
    budget = Budget(problem.deterministic_time, seed=problem.seed)
    nodes = _place(problem, budget)
    if nodes:
        proof = Proof.OPTIMAL if budget.proven else Proof.FEASIBLE
    else:
        proof = Proof.INFEASIBLE if budget.proven else Proof.UNKNOWN
    return Solution(nodes=nodes, proof=proof, runs=tuple(budget.runs))


def _place(problem: Problem, budget: Budget) -> dict[int, int]:
    pending = problem.pending
    core = core_of(problem, pending)
    if core is None or not pending:
        return {}
    room = _room(problem, pending)
    if problem.allowed(pending) and (nodes := _best(problem, pending, room, budget)):
        return nodes
    if core == pending:
        return {}
    ranks = Members(problem, room=room, budget=budget).choose()
    if ranks is None:
        return {}
    return _best(problem, ranks, _room(problem, ranks), budget) or {}


def _room(problem: Problem, ranks: Sequence[int]) -> Room:
    return Room(problem, dict(Counter(problem.members[rank].shape for rank in ranks)))


def _best(problem: Problem, ranks: Sequence[int], room: Room, budget: Budget) -> dict[int, int] | None:
    """The best placement of exactly these ranks; None where there is none."""
    if not problem.gather:
        return Plain(problem, ranks, room=room, budget=budget).solve()
    gather = Gather(problem, ranks, room=room, budget=budget)
    found = gather.solve()
    return None if found is None else assign(problem, ranks, gather, found, budget=budget)
