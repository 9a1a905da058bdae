# SPDX-License-Identifier: Apache-2.0
"""Mixed kinds: first placements that hold before any solve."""

from collections import Counter

import numpy as np
import pytest

from koordpy.placement.goals import Goals, violations
from koordpy.placement.problem import Problem
from koordpy.placement.rank_order import assign_groups
from koordpy.placement.solver.count_model import CountModel
from koordpy.placement.solver.exact_placement import solve
from koordpy.placement.solver.filling_capacity import FillingCapacity
from koordpy.placement.solver.greedy_placement import Greedy
from koordpy.placement.solver.region_cells import CellOptions
from koordpy.placement.solver.time_budget import TimeBudget
from koordpy.plan.round_plan import Proof
from tests.planning.oracle import Place, _placements, problem_of


def mixed(seed: int) -> Problem:
    """Two or three kinds on a few nodes of two layers; all must be placed."""
    rng = np.random.default_rng(seed)
    columns = int(rng.integers(1, 3))
    places = [
        Place(
            (f"s{rng.integers(2)}", f"b{rng.integers(2)}", f"n{i}"), tuple(int(n) for n in rng.integers(0, 8, columns))
        )
        for i in range(int(rng.integers(2, 5)))
    ]
    kinds = int(rng.integers(2, 4))
    requests = [tuple(int(n) for n in rng.integers(1, 4, columns)) for _ in range(kinds)]
    members = [(0, int(rng.integers(kinds)), None) for _ in range(int(rng.integers(2, 5)))]
    return problem_of(places, requests, members)


def room_of(problem: Problem) -> FillingCapacity:
    return FillingCapacity(problem, dict(Counter(problem.members[rank].shape for rank in problem.pending)))


def assigned(problem: Problem, room: FillingCapacity, pods: dict[int, tuple[int, ...]]) -> dict[int, int]:
    held = {node: {s: n for s, n in zip(room.shapes, there, strict=True) if n} for node, there in pods.items()}
    return assign_groups(problem, held, problem.pending, whole={}, groups=[])


@pytest.mark.parametrize("seed", range(120))
def test_a_first_placement_is_valid_and_a_model_takes_it_as_it_is(seed: int) -> None:
    problem = mixed(seed)
    room = room_of(problem)
    pods = Greedy(room).fill((0, 0))
    if pods is None:
        return
    assert violations(problem, assigned(problem, room, pods)) == []
    model = CountModel(
        room, (0, 0), budget=TimeBudget(1.0), options=CellOptions(ordered=False, keep=range(len(room.most)))
    )
    model.add_used()
    model.take(pods)
    for index, value in enumerate(model.values):
        model.model.add(model.model.get_int_var_from_proto_index(index) == value)
    assert model.find("as it is") is Proof.OPTIMAL


def test_most_first_placements_are_found() -> None:
    found = placeable = 0
    for seed in range(120):
        problem = mixed(seed)
        room = room_of(problem)
        if any(len(p) == len(problem.pending) for p in _placements(problem)):
            placeable += 1
            found += Greedy(room).fill((0, 0)) is not None
    assert placeable * 9 <= found * 10 <= placeable * 10


def cluster(nodes: int) -> list[Place]:
    return [Place((f"s{i // 64}", f"b{i // 8}", f"n{i}"), (64, 8)) for i in range(nodes)]


def test_three_kinds_over_several_spines_are_placed_best_though_the_cluster_is_too_large_to_be_modelled() -> None:
    members = [(0, 0, None)] * 2 + [(0, 1, None)] * 90 + [(0, 2, None)] * 260
    problem = problem_of(cluster(640), [(16, 0), (4, 1), (2, 2)], members, deterministic_time=20.0)
    solution = solve(problem)
    assert solution.proof is Proof.OPTIMAL
    assert violations(problem, solution.nodes) == []
    assert Goals(problem).domains(solution.nodes) == (2, 10, 77)
