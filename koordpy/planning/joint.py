"""Placement of a unit of different pods where filters count on a node what its problem does not know together.

The problem knows how many pods of each shape a node serves alone: chips that form sets, a filter with a capacity of its
own. Where a placement puts shapes together on a node that does not serve them all, some shape must have fewer pods
there: the problem is split into one for each shape, and the best answer of all is taken. Every placement that the nodes
serve survives in one of them, so the search is exact.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from koordpy.cluster.pods import PodInfo
from koordpy.planning.accelerators.registry import ACCELERATORS
from koordpy.planning.attraction import attraction
from koordpy.planning.build import partitions
from koordpy.planning.figures import Figures
from koordpy.planning.limits import SPLITS
from koordpy.planning.place import could_place, place, place_best
from koordpy.planning.placement.goals import goal_vector
from koordpy.planning.placement.problem import Problem, Solution, only_ranks, with_column
from koordpy.planning.plan import Proof, SolverRun, combined
from koordpy.planning.units import Unit


def place_gang(unit: Unit, problem: Problem, figures: Figures) -> Solution:
    """The best placement of a unit of gangs, attracted by the pods that it places alone.

    problem: of the unit, with the attraction of all its pending pods.
    """
    found = place_jointly(unit, problem, figures)
    if not found.placed or not problem.gather or len(found.nodes) == len(problem.pending):
        return found
    own = attraction(unit, [unit.members[rank] for rank in found.nodes], figures)
    if (own == problem.attract).all():
        return found
    placed = Counter(problem.members[rank].gang for rank in found.nodes)
    needs = tuple(placed[gang] for gang in range(len(problem.needs)))
    again = place_jointly(unit, replace(only_ranks(problem, found.nodes), attract=own, needs=needs), figures)
    runs = (*found.runs, *again.runs)
    if not again.placed:  # out of time: what was found first is valid
        return Solution(found.nodes, Proof.FEASIBLE, runs)
    return Solution(again.nodes, combined((found.proof, again.proof), placed=True), runs)


def place_jointly(unit: Unit, problem: Problem, figures: Figures) -> Solution:
    """The best placement of a unit whose pods are served together on every node."""
    apart = _counted_apart(unit, figures)
    if len(apart) < 2:
        return place_best(partitions(unit, problem, figures))
    waiting = list(partitions(unit, problem, figures))
    best: tuple[Problem, Solution] | None = None
    runs: list[SolverRun] = []
    proofs: list[Proof] = []
    for _ in range(SPLITS):
        if not waiting:
            break
        one = waiting.pop()
        found = place(one)
        runs += found.runs
        better = found.placed and (
            best is None or goal_vector(problem, found.nodes) < goal_vector(problem, best[1].nodes)
        )
        fault = _unserved(unit, found, apart, figures) if better else None
        if fault is not None:
            waiting += _split(one, *fault)
            continue
        proofs.append(found.proof)
        if better:
            best = one, found
    if waiting:
        proofs.append(Proof.UNKNOWN)
    return Solution(best[1].nodes if best else {}, combined(proofs, placed=best is not None), tuple(runs))


def fit_jointly(unit: Unit, problem: Problem, figures: Figures) -> bool | None:
    """Whether all pods of a unit are found a place, wherever that is; None where only a placement tells."""
    if len(_counted_apart(unit, figures)) > 1:
        return None
    return any(could_place(part) is Proof.FEASIBLE for part in partitions(unit, problem, figures))


def _counted_apart(unit: Unit, figures: Figures) -> frozenset[bytes]:
    """Shapes with filters of which the problem knows only what they let of each shape alone."""
    kinds = {pod.shape: pod for pod in unit.pending}
    if len(kinds) < 2:
        return frozenset()
    return frozenset(shape for shape, pod in kinds.items() if not all(rule.together for rule in figures.rules(pod)))


def _unserved(unit: Unit, found: Solution, apart: frozenset[bytes], figures: Figures) -> tuple[int, list[int]] | None:
    """(node, ranks of the pods on it) of the first node that does not serve all that is placed on it."""
    by_node: dict[int, list[int]] = {}
    for rank in sorted(found.nodes):
        if unit.members[rank].shape in apart:
            by_node.setdefault(found.nodes[rank], []).append(rank)
    for node, ranks in by_node.items():
        pods = [unit.members[rank] for rank in ranks]
        if len({pod.shape for pod in pods}) > 1 and not _serves(node, pods, figures):
            return node, ranks
    return None


def _serves(node: int, pods: Sequence[PodInfo], figures: Figures) -> bool:
    """Whether a node serves pods together: by sets of its devices, and by filters that see the pods come in order."""
    if not all(family.serves(node, pods, figures) for family in ACCELERATORS):
        return False
    return all(
        rule.takes_after(pods[:number], node)
        for number, pod in enumerate(pods)
        for rule in figures.rules(pod)
        if not rule.together
    )


def _split(problem: Problem, node: int, ranks: Sequence[int]) -> list[Problem]:
    """The problem with one pod fewer of a shape on a node, for each shape that is there."""
    counts = Counter(problem.members[rank].shape for rank in ranks)
    out = []
    for shape, count in sorted(counts.items(), reverse=True):
        room = np.full(len(problem.free), len(problem.members), dtype=np.int64)
        room[node] = count - 1
        out.append(with_column(problem, room, {shape: 1}))
    return out
