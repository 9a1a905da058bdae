"""The counting shortcut finds what plain enumeration finds, goal by goal, on small random trees."""

import random

import pytest

from koordpy.planning.counting import Counted, applies, count
from koordpy.planning.goals import goal_vector, violations
from koordpy.planning.place import place
from koordpy.planning.plan import Proof
from koordpy.planning.problem import Problem
from tests.planning.oracle import Place, best_placement, problem_of

SEEDS = 400


def random_problem(seed: int) -> Problem:
    """A unit of one shape on a tree of 2 or 3 layers above 2 to 6 nodes."""
    rng = random.Random(seed)
    layers = rng.choice([0, 1, 2, 2, 2])
    nodes = rng.randint(2, 6)
    places = []
    for i in range(nodes):
        path = [f"{'sb'[k]}{rng.randint(0, 1)}" if rng.random() < 0.95 else "-" for k in range(layers)]
        places.append(Place((*path, f"n{i}"), (rng.randint(0, 3),)))
    names = [p.path[-1] for p in places]
    gangs = rng.choice([1, 1, 1, 2])
    gather = rng.random() < 0.8
    pipeline = rng.choice([1, 1, 2]) if gather else 1
    bound = 0 if pipeline > 1 else rng.choice([0, 0, 0, 1, 2])
    members: list[tuple[int, int, str | None]] = [(rng.randrange(gangs), 0, rng.choice(names)) for _ in range(bound)]
    members += [(rng.randrange(gangs), 0, None) for _ in range(rng.randint(1, 5 if nodes < 6 else 4))]
    rng.shuffle(members)
    needs = []
    for g in range(gangs):
        own = sum(m[0] == g and m[2] is None for m in members)
        needs.append(rng.choice([own, own, max(0, own - 1), 0]))
    settings: dict[str, object] = {"gather": gather}
    if gather:
        settings["pipeline"] = pipeline
        settings["hard"] = rng.choice([0, 0, 0, rng.randint(0, layers)])
        if rng.random() < 0.3:
            settings["multiples"] = {level: rng.choice([2, 3]) for level in range(1, layers + 2) if rng.random() < 0.5}
    scores = [{name: rng.choice([0, 0, 1, 3]) for name in names}] if rng.random() < 0.4 else None
    attract = {name: 1 for name in names if rng.random() < 0.3} if gather and rng.random() < 0.3 else None
    return problem_of(places, [(1,)], members, needs, attract=attract, scores=scores, **settings)


@pytest.mark.parametrize("block", range(8))
def test_a_unit_of_equal_pods_is_placed_as_enumeration_would(block: int) -> None:
    for seed in range(block * SEEDS // 8, (block + 1) * SEEDS // 8):
        problem = random_problem(seed)
        assert applies(problem)
        best = best_placement(problem)
        found = place(problem)
        if best is None:
            assert not found.placed and found.proof is Proof.INFEASIBLE, seed
            continue
        assert violations(problem, found.nodes) == [], seed
        assert goal_vector(problem, found.nodes) == goal_vector(problem, best), seed
        assert found.proof is Proof.OPTIMAL, seed


def test_cost_vectors_too_wide_for_a_word_are_still_exact() -> None:
    """A score of many digits pushes the packed vector past 62 bits."""
    checked = 0
    for seed in range(60):
        problem = random_problem(seed)
        for shape in problem.shapes:
            shape.score[:] = [(seed * 7 + i * 13) % 5 * 10**17 for i in range(len(shape.score))]
        best = best_placement(problem)
        if best is not None:
            counted = count(problem) if problem.pipeline == 1 else None
            if isinstance(counted, Counted):
                assert goal_vector(problem, place(problem).nodes) == goal_vector(problem, best), seed
                checked += 1
    assert checked > 20
