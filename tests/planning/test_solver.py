# SPDX-License-Identifier: Apache-2.0
"""The solver against the worked examples, against plain enumeration on random tiny problems, and at its limits."""

from dataclasses import replace

import numpy as np
import pytest

from koordpy.placement.goals import Goals, violations
from koordpy.placement.problem import Problem
from koordpy.placement.solver.exact_placement import solve
from koordpy.plan.round_plan import Proof
from tests.halves import own_half
from tests.planning.examples import EXAMPLES, Example
from tests.planning.oracle import Place, assert_best, problem_of


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)
def test_the_solver_finds_the_worked_answer(example: Example) -> None:
    solution = solve(example.problem)
    names = example.problem.tree.node_names
    assert {r: names[n] for r, n in solution.nodes.items()} == example.answer
    assert solution.proof is (Proof.OPTIMAL if example.answer else Proof.INFEASIBLE)


def random_problem(seed: int) -> Problem:
    """A tiny problem with a random mixture of everything that problems can have."""
    rng = np.random.default_rng(seed)

    def chance(share: float) -> bool:
        return bool(rng.random() < share)

    depth = int(rng.integers(1, 4))
    pods = int(rng.integers(1, 6))
    count = int(rng.integers(2, {1: 9, 2: 9, 3: 7, 4: 6, 5: 5}[pods]))
    shapes = int(rng.integers(1, 4))
    columns = int(rng.integers(1, 3))
    places = []
    for i in range(count):
        path = [f"d{rng.integers(3)}" if not chance(0.08) else "-" for _ in range(depth - 1)]
        places.append(Place((*path, f"n{i}"), tuple(int(n) for n in rng.integers(0, 7, size=columns))))
    names = [place.path[-1] for place in places]
    requests = [tuple(int(n) for n in rng.integers(0 if columns > 1 else 1, 4, size=columns)) for _ in range(shapes)]
    gangs = int(rng.integers(1, 3))
    members: list[tuple[int, int, str | None]] = [
        (int(rng.integers(gangs)), int(rng.integers(shapes)), None) for _ in range(pods)
    ]
    if chance(0.35):
        for _ in range(int(rng.integers(1, 4))):
            node = "" if chance(0.1) else str(rng.choice(names))
            members.insert(
                int(rng.integers(len(members) + 1)), (int(rng.integers(gangs)), int(rng.integers(shapes)), node)
            )
    pending = [sum(g == gang and node is None for g, _, node in members) for gang in range(gangs)]
    needs = pending if chance(0.5) else [int(rng.integers(0, n + 1)) for n in pending]
    multiples = {}
    if chance(0.25):
        multiples = {int(rng.integers(1, depth + 1)): int(rng.integers(2, 4))}
    few = chance(0.3)
    problem = problem_of(
        places,
        requests,
        members,
        needs,
        attract={name: int(rng.integers(0, 3)) for name in names} if chance(0.3) else None,
        allowed=[[n for n in names if chance(0.8)] for _ in requests] if chance(0.3) else None,
        scores=[{n: int(rng.integers(0, 2 if few else 50)) for n in names} for _ in requests] if chance(0.3) else None,
        gather=chance(0.85),
        hard=int(rng.integers(0, depth + 1)) if chance(0.3) else 0,
        multiples=multiples,
        pipeline=int(rng.integers(2, 4)) if chance(0.5) else 1,
        deterministic_time=100.0,
    )
    return problem if problem.gather else replace(problem, hard=0, multiples={})


def check_against_enumeration(problem: Problem) -> None:
    assert_best(problem, solve(problem))


def test_by_names_alone_the_first_pod_takes_the_first_node_though_others_fill_more() -> None:
    places = [Place(("s", "a"), (4,)), Place(("s", "b"), (4,))]
    problem = problem_of(places, [(4,), (1,)], [(0, shape, None) for shape in (0, 1, 1, 1)], gather=False)
    assert solve(problem).nodes == {0: 0, 1: 1, 2: 1, 3: 1}


@pytest.mark.parametrize("seed", own_half(range(300)))
def test_the_solver_is_as_good_as_enumeration(seed: int) -> None:
    check_against_enumeration(random_problem(seed))


def _block(nodes: int, room: int, *, block: str = "b0") -> list[Place]:
    return [Place((block, f"{block}-{i}"), (room,)) for i in range(nodes)]


@pytest.mark.parametrize(
    ("order", "crossings"),
    [
        # every node takes two and two: small ones first, so two runs a node but for the two that hold a change of size
        ([0] * 32 + [1] * 32, (0, 30)),
        ([0, 1] * 32, (0, 16)),
    ],
    ids=["by size", "in turns"],
)
def test_two_sizes_fill_a_block_exactly(order: list[int], crossings: tuple[int, ...]) -> None:
    places = [*_block(16, 15, block="b1"), *_block(16, 16), *_block(15, 17, block="b2")]
    problem = problem_of(places, [(3,), (5,)], [(0, shape, None) for shape in order], hard=1)
    solution = solve(problem)
    assert solution.proof is Proof.OPTIMAL
    assert violations(problem, solution.nodes) == []
    assert {problem.tree.node_names[n][:2] for n in solution.nodes.values()} == {"b0"}
    assert Goals(problem).crossings(solution.nodes) == crossings


def test_masters_and_workers_share_nodes_where_sizes_first_would_strand_workers() -> None:
    members = [(g, g, None) for i in range(48) for g in ((0, 1) if i < 16 else (1,))]
    problem = problem_of([*_block(16, 8, block="a"), *_block(16, 9, block="c")], [(3,), (2,)], members, hard=1)
    solution = solve(problem)
    assert solution.proof is Proof.OPTIMAL and violations(problem, solution.nodes) == []
    held: dict[int, list[int]] = {}
    for rank, node in solution.nodes.items():
        held.setdefault(node, []).append(problem.members[rank].shape)
    assert sorted(map(sorted, held.values())) == [[0, 1, 1, 1]] * 16


def _cluster(nodes: int, room: tuple[int, ...]) -> list[Place]:
    return [Place((f"s{i // 100}", f"b{i // 10}", f"n{i}"), room) for i in range(nodes)]


def test_a_hopeless_mixed_gang_needs_no_solve() -> None:
    members = [(0, i % 2, None) for i in range(600)]
    solution = solve(problem_of(_cluster(1000, (64, 0)), [(8, 1), (16, 2)], members))
    assert (dict(solution.nodes), solution.proof, solution.runs) == ({}, Proof.INFEASIBLE, ())


def test_a_master_and_its_workers_are_planned_on_a_large_cluster() -> None:
    problem = problem_of(_cluster(1000, (64, 8)), [(8, 0), (8, 1)], [(0, 0, None), *[(1, 1, None)] * 63])
    solution = solve(problem)
    assert solution.proof is Proof.OPTIMAL and violations(problem, solution.nodes) == []
    assert solution.nodes == {rank: rank // 8 for rank in range(64)}


def test_without_time_what_filling_node_after_node_finds_is_taken() -> None:
    places = [Place(("b", "a"), (8,)), Place(("b", "c"), (8,))]
    members = [(0, shape, None) for shape in (0, 1, 1, 2)]
    problem = problem_of(places, [(3,), (4,), (5,)], members, deterministic_time=0.0)
    solution = solve(problem)
    assert solution.proof is Proof.FEASIBLE
    assert len(solution.nodes) == 4 and violations(problem, solution.nodes) == []


def test_without_time_the_answer_is_unknown_where_only_search_finds_one() -> None:
    members = [(g, g, None) for i in range(48) for g in ((0, 1) if i < 16 else (1,))]
    places = _block(16, 9, block="c")
    solution = solve(problem_of(places, [(3,), (2,)], members, hard=1, deterministic_time=0.0))
    assert (dict(solution.nodes), solution.proof) == ({}, Proof.UNKNOWN)


@pytest.mark.parametrize("limit", [1e-4, 1e-3, 1e-2])
def test_with_little_time_what_is_placed_is_valid(limit: float) -> None:
    rng = np.random.default_rng(5)
    places = [Place((f"b{i // 8}", f"n{i}"), (int(rng.integers(4, 20)), int(rng.integers(1, 6)))) for i in range(64)]
    members = [(0, int(rng.integers(3)), None) for _ in range(40)]
    problem = problem_of(places, [(3, 1), (5, 1), (2, 2)], members, deterministic_time=limit)
    solution = solve(problem)
    assert solution.proof in (Proof.FEASIBLE, Proof.UNKNOWN, Proof.OPTIMAL)
    assert bool(solution.nodes) is (solution.proof is not Proof.UNKNOWN)
    assert not solution.nodes or violations(problem, solution.nodes) == []
    assert any(run.status is not Proof.OPTIMAL for run in solution.runs) or solution.proof is Proof.OPTIMAL


@pytest.mark.parametrize("seed", [3, 17, 40])
def test_the_same_problem_has_the_same_answer(seed: int) -> None:
    one, two = solve(random_problem(seed)), solve(random_problem(seed))
    assert (dict(one.nodes), one.proof, one.runs) == (dict(two.nodes), two.proof, two.runs)
