"""The solver against the worked examples, against plain enumeration on random tiny problems, and at its limits."""

import numpy as np
import pytest

from koordpy.planning.goals import Goals, goal_vector, violations
from koordpy.planning.plan import Proof
from koordpy.planning.problem import Problem
from koordpy.planning.solver import solve
from tests.planning.examples import EXAMPLES, Example
from tests.planning.oracle import Place, best_placement, problem_of


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
    return problem_of(
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


def check_against_enumeration(problem: Problem) -> None:
    best = best_placement(problem)
    solution = solve(problem)
    if best is None:
        assert not solution.nodes and solution.proof is Proof.INFEASIBLE
        return
    assert solution.proof is Proof.OPTIMAL
    assert violations(problem, solution.nodes) == []
    assert goal_vector(problem, solution.nodes) == goal_vector(problem, best)


@pytest.mark.parametrize("seed", range(300))
def test_the_solver_is_as_good_as_enumeration(seed: int) -> None:
    check_against_enumeration(random_problem(seed))
