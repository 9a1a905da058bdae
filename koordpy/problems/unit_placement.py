# SPDX-License-Identifier: Apache-2.0
"""Places the pending members of a unit: the planner's entry point to the methods of `placement_methods`.

`place_unit` returns a placement of the kind that a `Question` names. `place_problem` does most of the work. This module
adds three cases that a single problem cannot represent:

- Some filters and device sets limit pods of different shapes on a node together, but a problem only says how many pods
  of each shape fit a node alone. If a solution puts pods on a node that does not take them together, at least one of
  their shapes must have fewer pods there. So the problem is replaced by one problem per shape with this limit, and the
  best solution of all is used. Every valid placement is possible in one of these problems, so the search is exact.
- If not all members are placed, attraction (goal 2) must count only the values of placed members. This needs a second
  search.
- The pods of a job that is not all or nothing are placed one by one, as far as they fit.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto

import numpy as np

from koordpy.devices.family_registry import fit_together
from koordpy.feasibility.round_state import RoundState
from koordpy.framework.device_limits import FitsAcross
from koordpy.gangs.queue_units import Unit
from koordpy.placement.goals import goal_vector
from koordpy.placement.problem import Problem, Solution, only_ranks, with_column
from koordpy.plan.limits import SPLITS
from koordpy.plan.round_plan import Proof, SolverRun, combine_proofs, proof_of
from koordpy.pods.pod_info import PodInfo
from koordpy.problems.attraction import attraction
from koordpy.problems.placement_methods import can_place, place_parts, place_problem
from koordpy.problems.problem_building import member_constraints_of, partitions


class Question(Enum):
    """The kind of placement that `place_unit` returns."""

    BEST = auto()
    """The best placement of a gang, for binding. Attraction is counted for the members that are placed."""
    TRIAL = auto()
    """The best placement in one search, for dry runs and reservations.

    To save the second search, attraction is counted for all pending members, even if not all of them are placed.
    """
    IN_ORDER = auto()
    """A placement of a job that is not all or nothing (gpu-topology.md 5): all its pods if they fit, else the pods in
    rank order, skipping each pod that does not fit."""


def place_unit(unit: Unit, problem: Problem, round_state: RoundState, question: Question) -> Solution:
    """Returns the nodes of a unit's pending members by rank; no nodes, with the proof, if there is no placement.

    problem: the result of `build` for the unit, with the attraction of all its pending pods.
    """
    if question is Question.IN_ORDER:
        return place_in_order(problem)
    found = _placed_together(unit, problem, round_state)
    # a second search is needed only if members stay pending and attraction may count their values
    if question is Question.TRIAL or not found.placed or not problem.gather or len(found.nodes) == len(problem.pending):
        return found
    own = attraction(unit, [unit.members[rank] for rank in found.nodes], round_state)
    if (own == problem.attract).all():
        return found
    placed = Counter(problem.members[rank].gang for rank in found.nodes)
    needs = tuple(placed[gang] for gang in range(len(problem.needs)))
    again = _placed_together(unit, replace(only_ranks(problem, found.nodes), attract=own, needs=needs), round_state)
    runs = (*found.runs, *again.runs)
    if not again.placed:  # the time is used up: the first result is still valid
        return Solution(found.nodes, Proof.FEASIBLE, runs)
    return Solution(again.nodes, combine_proofs((found.proof, again.proof), placed=True), runs)


def fits_somewhere(unit: Unit, problem: Problem, round_state: RoundState) -> bool | None:
    """Returns True if it is proven that the unit has a placement, else False.

    None if only a search for a placement can decide, because filters limit pods of several shapes together.
    """
    if len(_counted_apart(unit, round_state)) > 1 or _checks_across(unit, round_state):
        return None
    return any(can_place(part) is Proof.FEASIBLE for part in partitions(unit, problem, round_state))


def _placed_together(unit: Unit, problem: Problem, round_state: RoundState) -> Solution:
    """Returns the best placement of a unit in which every node takes its pods together.

    Splits each problem with a solution that fails this check, as the module's docstring describes. After `SPLITS`
    problems the search ends, and the result is not proven.
    """
    apart = _counted_apart(unit, round_state)
    if len(apart) < 2 and not _checks_across(unit, round_state):
        return place_parts(list(partitions(unit, problem, round_state)))
    # `waiting`: problems that are not solved yet; every placement that may be the best is possible in one of them
    waiting = list(partitions(unit, problem, round_state))
    best: tuple[Problem, Solution] | None = None
    runs: list[SolverRun] = []
    proofs: list[Proof] = []
    for _ in range(SPLITS):
        if not waiting:
            break
        one = waiting.pop()
        found = place_problem(one)
        runs += found.runs
        better = found.placed and (
            best is None or goal_vector(problem, found.nodes) < goal_vector(problem, best[1].nodes)
        )
        fault = _unserved(unit, found, apart, round_state) if better else None
        if fault is not None:
            waiting += _split(one, fault)
            continue
        proofs.append(found.proof)
        if better:
            best = one, found
    if waiting:
        proofs.append(Proof.UNKNOWN)
    return Solution(best[1].nodes if best else {}, combine_proofs(proofs, placed=best is not None), tuple(runs))


def _counted_apart(unit: Unit, round_state: RoundState) -> frozenset[bytes]:
    """Returns the shapes with filters that the problem represents only for pods of one shape (not
    `Rule.is_in_problem`).

    Empty for a unit with one shape.
    """
    kinds = {pod.shape: pod for pod in unit.pending}
    if len(kinds) < 2:
        return frozenset()
    return frozenset(
        shape for shape, pod in kinds.items() if not all(rule.is_in_problem for rule in round_state.rules(pod))
    )


def _checks_across(unit: Unit, round_state: RoundState) -> tuple[FitsAcross, ...]:
    """Returns the checks of a placement over all nodes together."""
    among = member_constraints_of(unit, round_state)
    return among.fits_across if among is not None else ()


def _unserved(
    unit: Unit, found: Solution, apart: frozenset[bytes], round_state: RoundState
) -> dict[int, list[int]] | None:
    """Returns node position -> ranks of pods that cannot be placed so together, of the first node or set of nodes.

    None if all pods can be placed. apart: shapes that must be checked on each node (`_counted_apart`).
    """
    by_node: dict[int, list[int]] = {}
    for rank in sorted(found.nodes):
        if unit.members[rank].shape in apart:
            by_node.setdefault(found.nodes[rank], []).append(rank)
    for node, ranks in by_node.items():
        pods = [unit.members[rank] for rank in ranks]
        if len({pod.shape for pod in pods}) > 1 and not _serves(node, pods, round_state):
            return {node: ranks}
    for fits in _checks_across(unit, round_state):
        left = sorted(found.nodes)
        if fits([(unit.members[rank], found.nodes[rank]) for rank in left]):
            continue
        for rank in sorted(found.nodes):  # leaves out each pod without which the others still do not fit
            fewer = [other for other in left if other != rank]
            left = left if fits([(unit.members[one], found.nodes[one]) for one in fewer]) else fewer
        conflict: dict[int, list[int]] = {}
        for rank in left:
            conflict.setdefault(found.nodes[rank], []).append(rank)
        return conflict
    return None


def _serves(node: int, pods: Sequence[PodInfo], round_state: RoundState) -> bool:
    """Returns True if a node takes pods together: its devices suffice, and the filters admit the pods one after the
    other."""
    if not fit_together(node, pods, round_state):
        return False
    return all(
        rule.fits_after(pods[:number], node)
        for number, pod in enumerate(pods)
        for rule in round_state.rules(pod)
        if not rule.is_in_problem
    )


def _split(problem: Problem, conflict: Mapping[int, Sequence[int]]) -> list[Problem]:
    """Returns the problems that replace a problem with a solution that is not valid.

    conflict: node position -> ranks of the pods that cannot be placed so together. For each node and shape of these
    pods, one problem limits the shape on the node to one pod fewer than the conflict has there.
    """
    counts = Counter((problem.members[rank].shape, node) for node, ranks in conflict.items() for rank in ranks)
    out = []
    for (shape, node), count in sorted(counts.items(), reverse=True):
        room = np.full(len(problem.free), len(problem.members), dtype=np.int64)
        room[node] = count - 1
        out.append(with_column(problem, room, {shape: 1}))
    return out


# --- one after the other ---


def place_in_order(problem: Problem) -> Solution:
    """Places the pods of a job that is not all or nothing (gpu-topology.md 5).

    Places all pods if they fit. Otherwise tries them in rank order, and skips pods that do not fit. If the pods have no
    rules about each other, the pods that fit are found by bisection, and then placed together.
    """
    pending = problem.pending
    if len({problem.members[rank].shape for rank in pending}) < 2:
        return place_problem(problem)
    found = place_problem(replace(problem, needs=(len(pending),)))
    if found.placed:
        return found
    if problem.interactions or problem.gather:
        return _one_by_one(problem, found)
    taken, sure = _as_far_as_they_fit(problem, not_all=found.proof is Proof.INFEASIBLE)
    if not taken:
        return Solution({}, proof_of(placed=False, sure=sure), found.runs)
    best = place_problem(_only_all_of(problem, taken))
    proof = best.proof if sure or not best.placed else Proof.FEASIBLE
    return Solution(best.nodes, proof, (*found.runs, *best.runs))


def _only_all_of(problem: Problem, ranks: Collection[int]) -> Problem:
    """Returns the problem of placing all pods of the given ranks, and no other pod."""
    return replace(only_ranks(problem, ranks), needs=(len(ranks),))


def _as_far_as_they_fit(problem: Problem, *, not_all: bool) -> tuple[list[int], bool]:
    """Returns (ranks of the pods that fit if they are tried in rank order, True if this answer is proven).

    not_all: True if it is known that not all pods fit.

    If a set of pods fits, each subset fits, so the first pod that does not fit is found by bisection. Later pods of its
    shape do not fit either, so they are skipped.
    """
    taken, left, sure = list[int](), list(problem.pending), True
    while left:
        fits, fails = 0, len(left) + (not not_all)
        while fails - fits > 1:
            middle = (fits + fails) // 2
            proof = can_place(_only_all_of(problem, [*taken, *left[:middle]]))
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


def _one_by_one(problem: Problem, found: Solution) -> Solution:
    """Tries the pods in rank order, each in a problem with all earlier pods that fitted.

    This is needed if pods have rules about each other: then a pod may fit although an earlier pod of its shape did not.
    found: the solution for all pods together, to which the solver runs are added.
    """
    pending = problem.pending
    best, taken, sure = Solution({}, Proof.INFEASIBLE), list[int](), True
    runs = list(found.runs)
    for rank in pending:
        tried = place_problem(_only_all_of(problem, [*taken, rank]))
        runs += tried.runs
        sure &= tried.proof is not Proof.UNKNOWN
        if tried.placed:
            best = tried
            taken.append(rank)
    proof = best.proof if sure else Proof.FEASIBLE if best.placed else Proof.UNKNOWN
    return Solution(best.nodes, proof, tuple(runs))
