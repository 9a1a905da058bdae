"""Solves a Problem by the method that is exact for it: the counting shortcut, else the solver.

Source: gang-network.md section 7.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace

from koordpy.planning.placement.counting import applies, count
from koordpy.planning.placement.packed import NotCountable
from koordpy.planning.placement.problem import Allowance, Problem, Solution, only_ranks
from koordpy.planning.placement.rank_order import rank_counts
from koordpy.planning.plan import RANKS_OPEN, Proof, combined, proof_of


def place(problem: Problem) -> Solution:
    """The best placement under the order of goals, or the proof that there is none."""
    found = _place(problem)
    if problem.by_count is None or problem.by_count.exact():
        return found
    # what nodes were said to be worth is not proven, so nothing that rests on it is
    proofs = {Proof.OPTIMAL: Proof.FEASIBLE}
    if not problem.by_count.always:
        proofs[Proof.INFEASIBLE] = Proof.UNKNOWN
    return replace(found, proof=proofs.get(found.proof, found.proof))


def _place(problem: Problem) -> Solution:
    if not problem.pending:
        return Solution({}, Proof.INFEASIBLE)
    if hopeless(problem):
        return Solution({}, Proof.INFEASIBLE)
    if applies(problem):
        try:
            counted = count(problem)
        except NotCountable:
            return _solver(problem)
        if isinstance(counted, Solution):
            return counted
        if not problem.gather:
            used = sorted(counted.counts, key=lambda node: int(problem.name_rank[node]))
            filled = [node for node in used for _ in range(counted.counts[node])]
            return Solution(dict(zip(counted.ranks, filled, strict=True)), Proof.OPTIMAL)
        nodes, proven = rank_counts(problem, counted.ranks, counted.counts)
        return Solution(nodes, Proof.OPTIMAL, () if proven else (RANKS_OPEN,))
    return _solver(problem)


def needs_solver(problem: Problem) -> bool:
    """Whether sums and counting do not tell: `place` would ask CP-SAT."""
    return bool(problem.pending) and not hopeless(problem) and not applies(problem)


def place_best(parts: Iterable[Problem]) -> Solution:
    """The best placement of one unit over problems that differ in the nodes they leave (upstream's topology keys)."""
    from koordpy.planning.placement.goals import goal_vector

    problems = list(parts)
    solutions = [place(problem) for problem in problems]
    if len(solutions) == 1:
        return solutions[0]
    runs = tuple(run for solution in solutions for run in solution.runs)
    proofs = [solution.proof for solution in solutions]
    found = [(problem, solution) for problem, solution in zip(problems, solutions, strict=True) if solution.placed]
    if not found:
        return Solution({}, combined(proofs, placed=False), runs)
    _, best = min(found, key=lambda pair: goal_vector(pair[0], pair[1].nodes))
    return Solution(best.nodes, combined(proofs, placed=True), runs)


def place_in_turn(problem: Problem) -> Solution:
    """The pods of a job that is not all or nothing: all of them where they fit, else in order, one that does not fit
    left out (gpu-topology.md 5)."""
    pending = problem.pending
    if len({problem.members[rank].shape for rank in pending}) < 2:
        return place(problem)
    found = place(replace(problem, needs=(len(pending),)))
    if found.placed:
        return found
    if problem.interactions or problem.gather:
        return _one_by_one(problem, found)
    taken, sure = _as_far_as_they_fit(problem, not_all=found.proof is Proof.INFEASIBLE)
    if not taken:
        return Solution({}, proof_of(placed=False, sure=sure), found.runs)
    best = place(_just(problem, taken))
    proof = best.proof if sure or not best.placed else Proof.FEASIBLE
    return Solution(best.nodes, proof, (*found.runs, *best.runs))


def _just(problem: Problem, ranks: Collection[int]) -> Problem:
    """All of just these pods."""
    return replace(only_ranks(problem, ranks), needs=(len(ranks),))


def _as_far_as_they_fit(problem: Problem, *, not_all: bool) -> tuple[list[int], bool]:
    """The pods that fit, taken in order, and whether that is proven. not_all: it is known that not all of them do.

    What fits, fits with fewer, so the first that does not is found by halves; and where one does not, no later one of
    its shape does.
    """
    taken, left, sure = list[int](), list(problem.pending), True
    while left:
        fits, fails = 0, len(left) + (not not_all)
        while fails - fits > 1:
            middle = (fits + fails) // 2
            proof = could_place(_just(problem, [*taken, *left[:middle]]))
            sure = sure and proof is not Proof.UNKNOWN
            if proof is Proof.FEASIBLE:
                fits = middle
            else:
                fails = middle
        taken += left[:fits]
        refused = {problem.members[rank].shape for rank in left[fits : fits + 1]}
        left = [rank for rank in left[fits + 1 :] if problem.members[rank].shape not in refused]
        not_all = False
    return taken, sure


def could_place(problem: Problem) -> Proof:
    """FEASIBLE where all pods fit somehow, INFEASIBLE where it is proven that they do not, else UNKNOWN."""
    if hopeless(problem):
        return Proof.INFEASIBLE
    if applies(problem):
        found = place(problem)
        return Proof.FEASIBLE if found.placed else found.proof
    from koordpy.planning.solver import can_place

    return can_place(problem)


def _one_by_one(problem: Problem, found: Solution) -> Solution:
    """The same where pods that come may help others, or hinder: each is tried on top of those before it."""
    pending = problem.pending
    best, taken, sure = Solution({}, Proof.INFEASIBLE), list[int](), True
    runs = list(found.runs)
    for rank in pending:
        tried = place(_just(problem, [*taken, rank]))
        runs += tried.runs
        sure &= tried.proof is not Proof.UNKNOWN
        if tried.placed:
            best = tried
            taken.append(rank)
    proof = best.proof if sure else Proof.FEASIBLE if best.placed else Proof.UNKNOWN
    return Solution(best.nodes, proof, tuple(runs))


def _solver(problem: Problem) -> Solution:
    # OR-Tools takes half a second to import, which plain pods and ordinary gangs need not wait for.
    from koordpy.planning.solver import solve

    return solve(problem)


def hopeless(problem: Problem) -> bool:
    """Necessary conditions by sums alone: every gang has enough pods, and its kinds enough slots and resources."""
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
    """Whether even the members that take least are more than an allowance has room for."""
    amounts: dict[int, list[int]] = {}
    for rank in problem.pending:
        member = problem.members[rank]
        amounts.setdefault(member.gang, []).append(allowance.amounts[member.shape])
    least = sum(sum(sorted(amounts.get(gang, ()))[:need]) for gang, need in enumerate(problem.needs))
    if not any(problem.needs):
        least = min(allowance.amounts[problem.members[rank].shape] for rank in problem.pending)
    return least > allowance.room
