"""Places the pending members of a unit: the entry point to the methods of `placement_methods`.

`place_unit` answers a `Question`. The problem of a unit represents how many pods of each shape a node takes alone; sets
of devices and some filters limit pods of different shapes together. If a placement puts shapes together on a node that
does not take them all, some shape must have fewer pods there. So the problem is split into one problem per shape, and
the best solution of all is used. Every valid placement is possible in one of them, so the search is exact.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from enum import Enum, auto

import numpy as np

from koordpy.devices.family_registry import serves
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.placement.goals import goal_vector
from koordpy.placement.problem import Problem, Solution, only_ranks, with_column
from koordpy.plan.limits import SPLITS
from koordpy.plan.round_plan import Proof, SolverRun, combined, proof_of
from koordpy.pods.pod_info import PodInfo
from koordpy.problems.attraction import attraction
from koordpy.problems.placement_methods import could_place, place_parts, place_problem
from koordpy.problems.problem_building import partitions


class Question(Enum):
    """The kind of placement that is wanted for a unit."""

    BEST = auto()
    """The best placement. Attraction is counted for the members that it places."""
    TRIAL = auto()
    """The best placement with the attraction of all pending members, in one search: for dry runs and reservations."""
    IN_ORDER = auto()
    """The pods of a job that is not all or nothing: all of them if they fit, else in order of their ranks, skipping
    pods that do not fit (gpu-topology.md 5)."""


def place_unit(unit: Unit, problem: Problem, round_state: RoundState, question: Question) -> Solution:
    """Returns the nodes of a unit's pending members by rank; no nodes, with the proof, if there is no placement.

    problem: of the unit, with the attraction of all its pending pods.
    """
    if question is Question.IN_ORDER:
        return place_in_order(problem)
    found = _placed_together(unit, problem, round_state)
    if question is Question.TRIAL or not found.placed or not problem.gather or len(found.nodes) == len(problem.pending):
        return found
    own = attraction(unit, [unit.members[rank] for rank in found.nodes], round_state)
    if (own == problem.attract).all():
        return found
    placed = Counter(problem.members[rank].gang for rank in found.nodes)
    needs = tuple(placed[gang] for gang in range(len(problem.needs)))
    again = _placed_together(unit, replace(only_ranks(problem, found.nodes), attract=own, needs=needs), round_state)
    runs = (*found.runs, *again.runs)
    if not again.placed:  # out of time: the first result is still valid
        return Solution(found.nodes, Proof.FEASIBLE, runs)
    return Solution(again.nodes, combined((found.proof, again.proof), placed=True), runs)


def fits_somewhere(unit: Unit, problem: Problem, round_state: RoundState) -> bool | None:
    """Returns True if all pods of a unit can be placed in some way; None if only a placement decides."""
    if len(_counted_apart(unit, round_state)) > 1:
        return None
    return any(could_place(part) is Proof.FEASIBLE for part in partitions(unit, problem, round_state))


def _placed_together(unit: Unit, problem: Problem, round_state: RoundState) -> Solution:
    """Returns the best placement of a unit in which every node takes its pods together."""
    apart = _counted_apart(unit, round_state)
    if len(apart) < 2:
        return place_parts(list(partitions(unit, problem, round_state)))
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
            waiting += _split(one, *fault)
            continue
        proofs.append(found.proof)
        if better:
            best = one, found
    if waiting:
        proofs.append(Proof.UNKNOWN)
    return Solution(best[1].nodes if best else {}, combined(proofs, placed=best is not None), tuple(runs))


def _counted_apart(unit: Unit, round_state: RoundState) -> frozenset[bytes]:
    """Returns the shapes with filters that the problem represents only for each shape alone."""
    kinds = {pod.shape: pod for pod in unit.pending}
    if len(kinds) < 2:
        return frozenset()
    return frozenset(shape for shape, pod in kinds.items() if not all(rule.together for rule in round_state.rules(pod)))


def _unserved(
    unit: Unit, found: Solution, apart: frozenset[bytes], round_state: RoundState
) -> tuple[int, list[int]] | None:
    """Returns (node, ranks of the pods on it) of the first node that does not take its placed pods together.

    None without one.
    """
    by_node: dict[int, list[int]] = {}
    for rank in sorted(found.nodes):
        if unit.members[rank].shape in apart:
            by_node.setdefault(found.nodes[rank], []).append(rank)
    for node, ranks in by_node.items():
        pods = [unit.members[rank] for rank in ranks]
        if len({pod.shape for pod in pods}) > 1 and not _serves(node, pods, round_state):
            return node, ranks
    return None


def _serves(node: int, pods: Sequence[PodInfo], round_state: RoundState) -> bool:
    """Returns True if a node takes pods together: by sets of its devices, and by filters that get the pods in order."""
    if not serves(node, pods, round_state):
        return False
    return all(
        rule.takes_after(pods[:number], node)
        for number, pod in enumerate(pods)
        for rule in round_state.rules(pod)
        if not rule.together
    )


def _split(problem: Problem, node: int, ranks: Sequence[int]) -> list[Problem]:
    """Returns the problem with one pod fewer of a shape on a node, for each shape that is there."""
    counts = Counter(problem.members[rank].shape for rank in ranks)
    out = []
    for shape, count in sorted(counts.items(), reverse=True):
        room = np.full(len(problem.free), len(problem.members), dtype=np.int64)
        room[node] = count - 1
        out.append(with_column(problem, room, {shape: 1}))
    return out


# --- one after the other ---


def place_in_order(problem: Problem) -> Solution:
    """Places the pods of a job that is not all or nothing (gpu-topology.md 5).

    All of them if they fit, else in order, skipping pods that do not fit.
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
    """Returns the problem of placing all of just these pods."""
    return replace(only_ranks(problem, ranks), needs=(len(ranks),))


def _as_far_as_they_fit(problem: Problem, *, not_all: bool) -> tuple[list[int], bool]:
    """Returns the pods that fit, tried in order, and True if that is proven.

    not_all: True if it is known that not all of them fit.

    A set of pods that fits also fits without some of them, so the first pod that does not fit is found by bisection. If
    a pod does not fit, no later pod of its shape does.
    """
    taken, left, sure = list[int](), list(problem.pending), True
    while left:
        fits, fails = 0, len(left) + (not not_all)
        while fails - fits > 1:
            middle = (fits + fails) // 2
            proof = could_place(_only_all_of(problem, [*taken, *left[:middle]]))
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
    """Places the pods one by one, each together with those placed before it.

    Pods may help or hinder each other, so a later pod may fit after an earlier one did not.
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
