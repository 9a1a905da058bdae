# SPDX-License-Identifier: Apache-2.0
"""Ground truth for tiny problems: every placement is tried, the best by goal vector wins."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from koordpy.placement.goals import Goals, goal_vector, violations
from koordpy.placement.problem import Member, Problem, Shape, Solution
from koordpy.plan.round_plan import Proof, ranks_proven
from koordpy.topology.topology_layers import Layer, Layers
from koordpy.topology.topology_tree import Tree, build_tree


def best_placement(problem: Problem) -> dict[int, int] | None:
    """The best valid placement, rank -> node; None where there is none."""
    goals = Goals(problem)
    left = [nodes for nodes in _placements(problem) if not violations(problem, nodes)]
    for stage in goals.stages:
        if not left:
            return None
        values = [stage(nodes) for nodes in left]
        best = min(values)
        left = [nodes for nodes, value in zip(left, values, strict=True) if value == best]
    assert left
    return left[0]


def _placements(problem: Problem) -> Iterator[dict[int, int]]:
    """Every way to put pending pods on nodes (or leave them out) that the nodes have room for, cores and larger."""
    pending = problem.pending
    free = problem.free.tolist()
    nodes: dict[int, int] = {}

    def step(at: int) -> Iterator[dict[int, int]]:
        if at == len(pending):
            if nodes:
                yield dict(nodes)
            return
        rank = pending[at]
        shape = problem.shapes[problem.members[rank].shape]
        for node in range(len(free)):
            if shape.allowed[node] and all(free[node][c] >= amount for c, amount in shape.request):
                for c, amount in shape.request:
                    free[node][c] -= amount
                nodes[rank] = node
                yield from step(at + 1)
                del nodes[rank]
                for c, amount in shape.request:
                    free[node][c] += amount
        yield from step(at + 1)

    yield from step(0)


@dataclass(frozen=True)
class Place:
    """A node of a table: its path below the cluster and its room."""

    path: tuple[str, ...]
    room: tuple[int, ...]


def tree_of(paths: Sequence[Sequence[str]]) -> Tree:
    """A tree from node paths such as ("s1", "b1", "n1"); a "-" is a missing label."""
    depth = len(paths[0])
    names = [f"layer{i}" for i in range(1, depth)]
    layers = Layers((*(Layer(name, (name,)) for name in names), Layer("nodeLayer", ())))
    labels = {
        path[-1]: {name: part for name, part in zip(names, path[:-1], strict=True) if part != "-"} for path in paths
    }
    return build_tree(layers, labels)


def problem_of(
    places: Sequence[Place],
    requests: Sequence[tuple[int, ...]],
    members: Sequence[tuple[int, int, str | None]],
    needs: Sequence[int] | None = None,
    *,
    attract: dict[str, int] | None = None,
    allowed: Sequence[Sequence[str]] | None = None,
    scores: Sequence[dict[str, int]] | None = None,
    **settings: object,
) -> Problem:
    """A problem from a table. requests: amounts per resource after column 0, which is pods and unlimited here.

    members: (gang, shape, node name or None or "" for a node that is gone). Bound members' use is taken off already.
    """
    tree = tree_of([place.path for place in places])
    rooms = {place.path[-1]: place.room for place in places}
    free = np.array([(10**6, *rooms[name]) for name in tree.node_names], dtype=np.int64)
    count = len(tree.node_names)
    shapes = []
    for i, request in enumerate(requests):
        may = np.ones(count, dtype=np.int64)
        if allowed is not None:
            may = np.array([name in allowed[i] for name in tree.node_names], dtype=np.int64)
        score = np.array([(scores[i] if scores else {}).get(name, 0) for name in tree.node_names], dtype=np.int64)
        amounts = ((0, 1), *((c + 1, amount) for c, amount in enumerate(request) if amount))
        shapes.append(Shape(request=amounts, allowed=may, score=score))
    where = {"": -1, **tree.index}
    people = tuple(Member(gang, shape, None if node is None else where[node]) for gang, shape, node in members)
    gangs = max((m.gang for m in people), default=0) + 1
    if needs is None:
        needs = tuple(sum(m.gang == g and m.node is None for m in people) for g in range(gangs))
    pull = np.array([(attract or {}).get(name, 0) for name in tree.node_names], dtype=np.int64)
    for member in people:
        if member.node is not None and member.node >= 0:
            pull[member.node] += 1
    order = sorted(range(count), key=lambda i: tree.node_names[i])
    name_rank = np.empty(count, dtype=np.int64)
    name_rank[order] = np.arange(count)
    return Problem(
        tree=tree,
        free=free,
        shapes=tuple(shapes),
        members=people,
        needs=tuple(needs),
        attract=pull,
        name_rank=name_rank,
        **settings,  # type: ignore[arg-type]
    )


def assert_best(problem: Problem, solution: Solution) -> None:
    """A solution is as good as the best of all placements, goal by goal, and says so."""
    best = best_placement(problem)
    if best is None:
        assert not solution.nodes and solution.proof is Proof.INFEASIBLE
        return
    assert solution.proof is Proof.OPTIMAL
    assert violations(problem, solution.nodes) == []
    assert is_as_good(problem, solution, best)


def is_as_good(problem: Problem, solution: Solution, best: dict[int, int]) -> bool:
    """True if a solution equals the best placement in goals 0 to 6, and in the crossings of goal 7 if they are proven.

    Without a gather goal all goals are compared.
    """
    found, wanted = goal_vector(problem, solution.nodes), goal_vector(problem, best)
    if not problem.gather:
        return found == wanted
    return found[:-1] == wanted[:-1] and (found[-1][0] == wanted[-1][0] or not ranks_proven(solution.runs))
