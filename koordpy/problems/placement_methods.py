# SPDX-License-Identifier: Apache-2.0
"""Defines the methods that place the pods of a unit, and chooses between them (gang-network.md section 7).

`METHODS` lists them in order, the fastest first. The first method that applies solves the problem. If it returns None,
the next method that applies solves it. Every method is exact for the problems that it solves.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol
from weakref import WeakKeyDictionary

from koordpy.placement import counting
from koordpy.placement.goals import goal_vector
from koordpy.placement.opened_place import opened_places
from koordpy.placement.packed_costs import NotCountable
from koordpy.placement.problem import Allowance, Problem, Solution
from koordpy.placement.rank_order import rank_counts
from koordpy.plan.round_plan import RANKS_OPEN, Proof, combine_proofs


class PlacementMethod(Protocol):
    """One way to solve a problem."""

    def applies(self, problem: Problem) -> bool:
        """Returns True if this method can be used for the problem."""

    def place(self, problem: Problem) -> Solution | None:
        """Returns the best placement, or the proof that there is none. None: the next method must solve the problem."""

    def can_place(self, problem: Problem) -> Proof:
        """Returns FEASIBLE if the problem has a placement, INFEASIBLE if it is proven that it has none, else
        UNKNOWN."""


class SumsMethod:
    """Proves that there is no placement by sums of capacity, without a search."""

    def applies(self, problem: Problem) -> bool:
        """Implements `PlacementMethod.applies`: no member is pending, or sums prove that the unit cannot fit."""
        return not problem.pending or is_hopeless(problem)

    def place(self, problem: Problem) -> Solution | None:
        """Implements `PlacementMethod.place`: always the proof that there is no placement."""
        return Solution({}, Proof.INFEASIBLE)

    def can_place(self, problem: Problem) -> Proof:
        """Implements `PlacementMethod.can_place`: always INFEASIBLE."""
        return Proof.INFEASIBLE


class CountingMethod:
    """Places pods of one shape by exact counting (`placement/counting.py`): first the number of pods on each node is
    chosen, then ranks are assigned."""

    def applies(self, problem: Problem) -> bool:
        """Implements `PlacementMethod.applies`: the pods have one shape, and no rules about each other."""
        return counting.applies(problem)

    def place(self, problem: Problem) -> Solution | None:
        """Implements `PlacementMethod.place`; None if counts of pods per node cannot represent the problem.

        Without a gather goal, the members in rank order fill the used nodes in natural order of names.
        """
        try:
            counted = counting.count(problem)
        except NotCountable:
            return None
        if isinstance(counted, Solution):
            return counted
        if not problem.gather:
            used = sorted(counted.counts, key=lambda node: int(problem.name_rank[node]))
            filled = [node for node in used for _ in range(counted.counts[node])]
            return Solution(dict(zip(counted.ranks, filled, strict=True)), Proof.OPTIMAL)
        nodes, proven = rank_counts(problem, counted.ranks, counted.counts)
        return Solution(nodes, Proof.OPTIMAL, () if proven else (RANKS_OPEN,))

    def can_place(self, problem: Problem) -> Proof:
        """Implements `PlacementMethod.can_place` by computing a placement, which is cheap with this method."""
        found = place_problem(problem)
        return Proof.FEASIBLE if found.placed else found.proof


class OpenedPlacesMethod:
    """Places members with required pod affinity to each other. The first member opens a domain, which all members must
    share; each domain that they may open is tried as a separate problem (`opened_place`)."""

    def __init__(self) -> None:
        self._parts: WeakKeyDictionary[Problem, list[Problem]] = WeakKeyDictionary()

    def parts_of(self, problem: Problem) -> list[Problem]:
        """Returns the problems that replace a problem, one per domain that may be opened; empty if it cannot be
        replaced. Cached."""
        if problem not in self._parts:
            self._parts[problem] = opened_places(problem) or []
        return self._parts[problem]

    def applies(self, problem: Problem) -> bool:
        """Implements `PlacementMethod.applies`: the problem can be replaced by one problem per domain."""
        return bool(self.parts_of(problem))

    def place(self, problem: Problem) -> Solution | None:
        """Implements `PlacementMethod.place`: the best solution over all domains."""
        return place_parts(self.parts_of(problem))

    def can_place(self, problem: Problem) -> Proof:
        """Implements `PlacementMethod.can_place`: FEASIBLE if one domain is, INFEASIBLE if all domains are, else
        UNKNOWN."""
        proofs = [can_place(part) for part in self.parts_of(problem)]
        return next((proof for proof in (Proof.FEASIBLE, Proof.UNKNOWN) if proof in proofs), Proof.INFEASIBLE)


class SolverMethod:
    """Solves every problem by CP-SAT. OR-Tools takes half a second to import, so it is imported on first use."""

    def applies(self, problem: Problem) -> bool:
        """Implements `PlacementMethod.applies`: always True."""
        return True

    def place(self, problem: Problem) -> Solution | None:
        """Implements `PlacementMethod.place`; never None."""
        from koordpy.placement.solver.exact_placement import solve

        return solve(problem)

    def can_place(self, problem: Problem) -> Proof:
        """Implements `PlacementMethod.can_place`."""
        from koordpy.placement.solver.exact_placement import can_place

        return can_place(problem)


_OPENED = OpenedPlacesMethod()
METHODS: tuple[PlacementMethod, ...] = (SumsMethod(), CountingMethod(), _OPENED, SolverMethod())
"""All methods, in the order in which they are tried."""


def place_problem(problem: Problem) -> Solution:
    """Returns the best placement of a problem, or the proof that there is none, by the first method that solves it.

    If the device costs of the problem are not proven to be exact, OPTIMAL becomes FEASIBLE, and INFEASIBLE may become
    UNKNOWN.
    """
    answers = (method.place(problem) for method in METHODS if method.applies(problem))
    found = next(answer for answer in answers if answer is not None)
    if problem.device_costs is None or problem.device_costs.exact():
        return found
    # the device costs are not proven, so a result that depends on them is not proven either
    proofs = {Proof.OPTIMAL: Proof.FEASIBLE}
    if not problem.device_costs.always:
        proofs[Proof.INFEASIBLE] = Proof.UNKNOWN
    return replace(found, proof=proofs.get(found.proof, found.proof))


def place_parts(problems: Sequence[Problem]) -> Solution:
    """Returns the best placement of one unit over several problems that allow different nodes."""
    solutions = [place_problem(problem) for problem in problems]
    if len(solutions) == 1:
        return solutions[0]
    runs = tuple(run for solution in solutions for run in solution.runs)
    proofs = [solution.proof for solution in solutions]
    found = [(problem, solution) for problem, solution in zip(problems, solutions, strict=True) if solution.placed]
    if not found:
        return Solution({}, combine_proofs(proofs, placed=False), runs)
    _, best = min(found, key=lambda pair: goal_vector(pair[0], pair[1].nodes))
    return Solution(best.nodes, combine_proofs(proofs, placed=True), runs)


def can_place(problem: Problem) -> Proof:
    """Returns FEASIBLE if the problem has a placement, INFEASIBLE if it is proven that it has none, else UNKNOWN."""
    return next(method for method in METHODS if method.applies(problem)).can_place(problem)


def needs_solver(problem: Problem) -> bool:
    """Returns True if `place_problem` would call CP-SAT, because sums and counting do not apply."""
    method = next(method for method in METHODS if method.applies(problem))
    if method is _OPENED:
        return not all(counting.applies(part) for part in _OPENED.parts_of(problem))
    return isinstance(method, SolverMethod)


def is_hopeless(problem: Problem) -> bool:
    """Returns True if sums prove that the problem has no placement. False proves nothing.

    There is none if a gang has fewer pending members than it needs, if its shapes have too few slots in sum, if a quota
    admits too little, or if no pending pod fits any node.
    """
    slots = [int(room.sum()) for room in problem.slots_of]
    own: dict[int, Counter[int]] = {}
    for rank in problem.pending:
        member = problem.members[rank]
        own.setdefault(member.gang, Counter())[member.shape] += 1
    for gang, need in enumerate(problem.needs):
        kinds = own.get(gang, Counter())
        if kinds.total() < need or sum(min(number, slots[shape]) for shape, number in kinds.items()) < need:
            return True
    if any(_beyond(problem, one) for one in problem.allowances):
        return True
    return not any(problem.slots_of[problem.members[rank].shape].any() for rank in problem.pending)


def _beyond(problem: Problem, allowance: Allowance) -> bool:
    """Returns True if a quota admits less than the smallest possible sum of requests of the members to be placed.

    These are as many members of each gang as it needs, with the smallest requests; one pod if no gang needs any.
    """
    amounts: dict[int, list[int]] = {}
    for rank in problem.pending:
        member = problem.members[rank]
        amounts.setdefault(member.gang, []).append(allowance.amounts[member.shape])
    least = sum(sum(sorted(amounts.get(gang, ()))[:need]) for gang, need in enumerate(problem.needs))
    if not any(problem.needs):
        least = min(allowance.amounts[problem.members[rank].shape] for rank in problem.pending)
    return least > allowance.remaining
