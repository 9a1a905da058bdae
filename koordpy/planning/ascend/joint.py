"""Placement of a unit whose pods ask for different numbers of chips: what single shapes fit need not fit together.

The problem knows how many copies of each shape a node serves alone. Where a placement puts shapes together on a node
that its chips do not serve, some shape must have fewer pods there: the problem is split into one for each shape, and
the best answer of all is taken. Every placement that the chips serve survives in one of them, so the search is exact.
"""

from dataclasses import replace

import numpy as np

from koordpy.cluster.npus import npu_resource
from koordpy.planning.ascend.dealing import deal_node
from koordpy.planning.attraction import place_attracted
from koordpy.planning.build import partitions
from koordpy.planning.figures import Figures
from koordpy.planning.goals import goal_vector
from koordpy.planning.place import place, place_best
from koordpy.planning.plan import Proof, SolverRun
from koordpy.planning.problem import Problem, Shape, Solution
from koordpy.planning.units import Unit

_MOST_SPLITS = 200


def place_gang(unit: Unit, problem: Problem, figures: Figures) -> Solution:
    """The best placement of a unit of gangs, attracted by the pods that it places."""
    return place_attracted(unit, problem, figures, lambda one: place_jointly(unit, one, figures))


def place_jointly(unit: Unit, problem: Problem, figures: Figures) -> Solution:
    """The best placement of a unit whose chips are served on every node."""
    kinds = {pod.shape for pod in unit.pending if npu_resource(pod.requests) is not None}
    if len(kinds) < 2:
        return place_best(partitions(unit, problem, figures))
    waiting = list(partitions(unit, problem, figures))
    best: tuple[Problem, Solution] | None = None
    runs: list[SolverRun] = []
    proof = Proof.OPTIMAL
    for _ in range(_MOST_SPLITS):
        if not waiting:
            break
        one = waiting.pop()
        found = place(one)
        runs += found.runs
        if not found.placed:
            proof = Proof.UNKNOWN if found.proof is Proof.UNKNOWN else proof
            continue
        if best is not None and goal_vector(problem, best[1].nodes) <= goal_vector(problem, found.nodes):
            continue
        fault = _unserved(unit, found, figures)
        if fault is None:
            best = one, found
            proof = Proof.FEASIBLE if found.proof is Proof.FEASIBLE else proof
        else:
            waiting += _split(one, *fault)
    if waiting:
        proof = Proof.FEASIBLE if best is not None else Proof.UNKNOWN
    if best is None:
        return Solution({}, Proof.INFEASIBLE if proof is Proof.OPTIMAL else Proof.UNKNOWN, tuple(runs))
    return Solution(best[1].nodes, proof if proof is not Proof.UNKNOWN else Proof.FEASIBLE, tuple(runs))


def _unserved(unit: Unit, found: Solution, figures: Figures) -> tuple[int, dict[int, int]] | None:
    """(node, rank -> 1 of the pods on it) of the first node whose chips do not serve all that is placed on it."""
    by_node: dict[int, list[int]] = {}
    for rank in sorted(found.nodes):
        if npu_resource(unit.members[rank].requests) is not None:
            by_node.setdefault(found.nodes[rank], []).append(rank)
    for node, ranks in by_node.items():
        if len({unit.members[rank].shape for rank in ranks}) < 2:
            continue
        if deal_node([unit.members[rank] for rank in ranks], node, figures) is None:
            return node, dict.fromkeys(ranks, 1)
    return None


def _split(problem: Problem, node: int, ranks: dict[int, int]) -> list[Problem]:
    """The problem with one pod fewer of a shape on a node, for each shape that is there."""
    counts: dict[int, int] = {}
    for rank in ranks:
        shape = problem.members[rank].shape
        counts[shape] = counts.get(shape, 0) + 1
    out = []
    for shape, count in sorted(counts.items(), reverse=True):
        column = np.full((len(problem.free), 1), len(problem.members), dtype=np.int64)
        column[node] = count - 1
        shapes = tuple(
            Shape((*s.request, (problem.free.shape[1], 1)), s.allowed, s.score) if i == shape else s
            for i, s in enumerate(problem.shapes)
        )
        out.append(replace(problem, free=np.concatenate([problem.free, column], axis=1), shapes=shapes))
    return out
