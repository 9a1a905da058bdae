# SPDX-License-Identifier: Apache-2.0
"""Entry point of the solver: places any unit by CP-SAT, or proves that it cannot be placed.

First all pending members are tried. If they do not fit, `MemberSearch` chooses the members that can be placed together.
Then `Gather` (with a gather goal) or `Plain` (without) finds the best nodes. If the solver's time ends without an
answer, `Greedy` fills nodes; then nothing is proven.

Source: docs/rules/gang-network.md 5 and 7. Other packages call `solve` and `can_place` only.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from koordpy.placement.goals import core_of, violations
from koordpy.placement.problem import Problem, Solution
from koordpy.placement.rank_order import assign_groups, settle_ranks
from koordpy.placement.solver.filling_capacity import FillingCapacity
from koordpy.placement.solver.gather_goals import Gather
from koordpy.placement.solver.greedy_placement import Greedy
from koordpy.placement.solver.member_search import MemberSearch
from koordpy.placement.solver.plain_placement import Plain
from koordpy.placement.solver.region_cells import TooLarge
from koordpy.placement.solver.time_budget import TimeBudget
from koordpy.plan.limits import DOMAINS_TRIED
from koordpy.plan.round_plan import Proof, proof_of

__all__ = ["can_place", "solve"]


def solve(problem: Problem) -> Solution:
    """Returns the best placement of a problem by the goals of docs/rules/gang-network.md 5, with its proof.

    OPTIMAL: every stage was proven. FEASIBLE: there is a placement, but the deterministic time ran out or the model was
    too large. INFEASIBLE: no placement exists. UNKNOWN (no nodes): not decided, and greedy filling found no placement.
    """
    budget = TimeBudget.for_problem(problem)
    try:
        nodes = _place(problem, budget)
    except TooLarge:
        nodes = {}
        budget.leave_open("feasible")
    if not nodes and not budget.proven:
        nodes = _first_found(problem, problem.pending, budget)
        if not nodes and (core := core_of(problem, problem.pending)):
            nodes = _first_found(problem, core, budget)
    proof = proof_of(placed=bool(nodes), sure=budget.proven)
    return Solution(nodes=nodes, proof=proof, runs=tuple(budget.runs))


def can_place(problem: Problem) -> Proof:
    """Returns whether all pending members fit: FEASIBLE, INFEASIBLE, or UNKNOWN if this is not decided.

    Only for problems without a gather goal.
    """
    pending = problem.pending
    if not problem.allowed(pending):
        return Proof.INFEASIBLE
    budget = TimeBudget.for_problem(problem)
    if _first_found(problem, pending, budget):
        return Proof.FEASIBLE
    try:
        return Plain(problem, pending, capacity=_room(problem, pending), budget=budget).can_place()
    except TooLarge:
        return Proof.UNKNOWN


def _place(problem: Problem, budget: TimeBudget) -> dict[int, int]:
    """Returns rank -> node of the best placement; empty if none was found.

    Tries all pending members first, then the largest selection of members that fits (goal 0).
    """
    pending = problem.pending
    core = core_of(problem, pending)
    if core is None or not pending:
        return {}
    capacity = _room(problem, pending)
    if problem.allowed(pending) and (nodes := _best(problem, pending, capacity, budget)):
        return nodes
    if core == pending:
        return {}
    ranks = MemberSearch(problem, capacity=capacity, budget=budget).choose()
    if ranks is None:
        return {}
    return _best(problem, ranks, _room(problem, ranks), budget) or {}


def _first_found(problem: Problem, ranks: Sequence[int], budget: TimeBudget) -> dict[int, int]:
    """Returns rank -> node of all given members, placed by `Greedy` in one of the lowest domains with enough capacity.

    Levels are tried from the lowest up, and on each level the domains with the most capacity first. Empty if no valid
    placement is found; this proves nothing.
    """
    tree = problem.tree
    capacity = _room(problem, ranks)
    greedy = Greedy(capacity)
    for level in range(tree.depth if problem.gather else problem.hard, problem.hard - 1, -1):
        most = capacity.most_in(level)
        domains = np.nonzero(capacity.may_fit(level))[0]
        for domain in domains[np.argsort(-most[domains], kind="stable")][:DOMAINS_TRIED].tolist():
            region = level, domain
            found = greedy.fill(region)
            if found is None:
                continue
            pods = {n: {s: k for s, k in zip(capacity.shapes, held, strict=True) if k} for n, held in found.items()}
            start = assign_groups(problem, pods, ranks, whole={}, groups=[])
            if not violations(problem, start):
                if not problem.gather:
                    return start
                nodes, best = settle_ranks(problem, start)
                if not best:
                    budget.leave_ranks_open()
                return nodes
    return {}


def _room(problem: Problem, ranks: Sequence[int]) -> FillingCapacity:
    """Returns the capacity of the nodes for the given members."""
    return FillingCapacity(problem, dict(Counter(problem.members[rank].shape for rank in ranks)))


def _best(
    problem: Problem, ranks: Sequence[int], capacity: FillingCapacity, budget: TimeBudget
) -> dict[int, int] | None:
    """Returns rank -> node of the best placement of exactly these ranks; None if none was found."""
    if not problem.gather:
        return Plain(problem, ranks, capacity=capacity, budget=budget).solve()
    return Gather(problem, ranks, capacity=capacity, budget=budget).solve()
