# SPDX-License-Identifier: Apache-2.0
"""The counting shortcut finds what plain enumeration finds, goal by goal, on small random trees."""

import random

import numpy as np
import pytest

from koordpy.placement import cost_tables
from koordpy.placement.cost_tables import CostTables
from koordpy.placement.counting import NodeCounts, applies, count
from koordpy.placement.goals import violations
from koordpy.placement.problem import Problem
from koordpy.plan.round_plan import Proof
from koordpy.problems.placement_methods import place_problem
from tests.halves import own_half
from tests.planning.oracle import Place, best_placement, is_as_good, problem_of, tree_of

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


@pytest.mark.parametrize("block", own_half(range(8)))
def test_a_unit_of_equal_pods_is_placed_as_enumeration_would(block: int) -> None:
    for seed in range(block * SEEDS // 8, (block + 1) * SEEDS // 8):
        problem = random_problem(seed)
        assert applies(problem)
        best = best_placement(problem)
        found = place_problem(problem)
        if best is None:
            assert not found.placed and found.proof is Proof.INFEASIBLE, seed
            continue
        assert violations(problem, found.nodes) == [], seed
        assert is_as_good(problem, found, best), seed
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
            if isinstance(counted, NodeCounts):
                assert is_as_good(problem, place_problem(problem), best), seed
                checked += 1
    assert checked > 20


@pytest.mark.parametrize("seed", range(60))
def test_tables_made_many_at_a_time_are_those_made_one_by_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_tables, "TABLES_AT_ONCE", 1)
    rng = random.Random(seed)
    paths = [(f"s{rng.randint(0, 2)}", f"b{rng.randint(0, 2)}", f"n{i}") for i in range(rng.randint(4, 12))]
    tree, n, pipeline = tree_of(paths), rng.randint(2, 12), rng.choice([1, 2, 3])
    step = rng.choice([1, pipeline])
    slots = np.array([rng.randint(0, 4) for _ in paths], dtype=np.int64)
    settings = {
        "n": n // step * step,
        "slots": slots,
        "loss": np.array([rng.randint(0, rng.choice([0, 2])) for _ in paths], dtype=np.int64),
        "bound": np.zeros(len(paths), dtype=np.int64),
        "pipeline": pipeline,
        "per": [step, step, 1, 1],
        "multiples": {},
        "most": [len(level) for level in tree.levels],
    }
    filled, lazy = CostTables(tree, **settings), CostTables(tree, **settings)
    filled.fill(0)
    assert filled._tables
    for level, kind in list(filled._tables):
        assert filled.of_kind(level, kind).tolist() == lazy.of_kind(level, kind).tolist()
