"""The methods that solve a placement problem, and the choice between them (gang-network.md section 7).

`METHODS` lists them in order: the first that applies solves the problem. A method passes a problem to the next one by
returning None. Each is exact for the problems that it applies to.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol
from weakref import WeakKeyDictionary

from koordpy.placement import counting
from koordpy.placement.goals import goal_vector
from koordpy.placement.opened_place import opened_places
from koordpy.placement.packed_worth import NotCountable
from koordpy.placement.problem import Allowance, Problem, Solution
from koordpy.placement.rank_order import rank_counts
from koordpy.plan.round_plan import RANKS_OPEN, Proof, combined


class PlacementMethod(Protocol):
    """One way to solve a problem."""

    def applies(self, problem: Problem) -> bool:
        """Returns True if this method decides the problem."""

    def place(self, problem: Problem) -> Solution | None:
        """Returns the best placement, or the proof that there is none; None hands the problem to the next method."""

    def could(self, problem: Problem) -> Proof:
        """Returns FEASIBLE if all pods fit somehow, INFEASIBLE if it is proven that they do not, else UNKNOWN."""


class SumsMethod:
    """Proves by sums that there is no placement."""

    def applies(self, problem: Problem) -> bool:
        return not problem.pending or is_hopeless(problem)

    def place(self, problem: Problem) -> Solution | None:
        return Solution({}, Proof.INFEASIBLE)

    def could(self, problem: Problem) -> Proof:
        return Proof.INFEASIBLE


class CountingMethod:
    """Places pods of one shape: a placement is a count per node, and the ranks follow."""

    def applies(self, problem: Problem) -> bool:
        return counting.applies(problem)

    def place(self, problem: Problem) -> Solution | None:
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

    def could(self, problem: Problem) -> Proof:
        found = place_problem(problem)
        return Proof.FEASIBLE if found.placed else found.proof


class OpenedPlacesMethod:
    """Required affinity among the members: the best solution of one problem per place that they may open."""

    def __init__(self) -> None:
        self._parts: WeakKeyDictionary[Problem, list[Problem]] = WeakKeyDictionary()

    def parts_of(self, problem: Problem) -> list[Problem]:
        if problem not in self._parts:
            self._parts[problem] = opened_places(problem) or []
        return self._parts[problem]

    def applies(self, problem: Problem) -> bool:
        return bool(self.parts_of(problem))

    def place(self, problem: Problem) -> Solution | None:
        return place_parts(self.parts_of(problem))

    def could(self, problem: Problem) -> Proof:
        proofs = [could_place(part) for part in self.parts_of(problem)]
        return next((proof for proof in (Proof.FEASIBLE, Proof.UNKNOWN) if proof in proofs), Proof.INFEASIBLE)


class SolverMethod:
    """CP-SAT, for every problem. OR-Tools takes half a second to import, so it is imported on first use."""

    def applies(self, problem: Problem) -> bool:
        return True

    def place(self, problem: Problem) -> Solution | None:
        from koordpy.placement.solver.exact_placement import solve

        return solve(problem)

    def could(self, problem: Problem) -> Proof:
        from koordpy.placement.solver.exact_placement import can_place

        return can_place(problem)


_OPENED = OpenedPlacesMethod()
METHODS: tuple[PlacementMethod, ...] = (SumsMethod(), CountingMethod(), _OPENED, SolverMethod())
"""All methods, in the order in which they are tried."""


def place_problem(problem: Problem) -> Solution:
    """Returns the best placement under the order of goals, or the proof that there is none."""
    answers = (method.place(problem) for method in METHODS if method.applies(problem))
    found = next(answer for answer in answers if answer is not None)
    if problem.by_count is None or problem.by_count.exact():
        return found
    # the ByCount costs are not proven, so a result that depends on them is not proven either
    proofs = {Proof.OPTIMAL: Proof.FEASIBLE}
    if not problem.by_count.always:
        proofs[Proof.INFEASIBLE] = Proof.UNKNOWN
    return replace(found, proof=proofs.get(found.proof, found.proof))


def place_parts(problems: Sequence[Problem]) -> Solution:
    """Returns the best placement of one unit over problems that differ in the nodes they allow."""
    solutions = [place_problem(problem) for problem in problems]
    if len(solutions) == 1:
        return solutions[0]
    runs = tuple(run for solution in solutions for run in solution.runs)
    proofs = [solution.proof for solution in solutions]
    found = [(problem, solution) for problem, solution in zip(problems, solutions, strict=True) if solution.placed]
    if not found:
        return Solution({}, combined(proofs, placed=False), runs)
    _, best = min(found, key=lambda pair: goal_vector(pair[0], pair[1].nodes))
    return Solution(best.nodes, combined(proofs, placed=True), runs)


def could_place(problem: Problem) -> Proof:
    """Returns FEASIBLE if all pods fit somehow, INFEASIBLE if it is proven that they do not, else UNKNOWN."""
    return next(method for method in METHODS if method.applies(problem)).could(problem)


def needs_solver(problem: Problem) -> bool:
    """Returns True if sums and counting do not decide, so that `place_problem` would call CP-SAT."""
    method = next(method for method in METHODS if method.applies(problem))
    if method is _OPENED:
        return not all(counting.applies(part) for part in _OPENED.parts_of(problem))
    return isinstance(method, SolverMethod)


def is_hopeless(problem: Problem) -> bool:
    """Returns True if sums alone show that a gang lacks pods, or that its kinds lack slots or resources."""
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
    """Returns True if even the members with the smallest requests exceed an allowance."""
    amounts: dict[int, list[int]] = {}
    for rank in problem.pending:
        member = problem.members[rank]
        amounts.setdefault(member.gang, []).append(allowance.amounts[member.shape])
    least = sum(sum(sorted(amounts.get(gang, ()))[:need]) for gang, need in enumerate(problem.needs))
    if not any(problem.needs):
        least = min(allowance.amounts[problem.members[rank].shape] for rank in problem.pending)
    return least > allowance.room
