# SPDX-License-Identifier: Apache-2.0
"""The worked examples of gang-network.md section 5, by plain enumeration over `goals`: what best means."""

import itertools

import numpy as np
import pytest

from koordpy.placement.goals import goal_vector, slots_by_level, violations
from koordpy.placement.problem import Problem
from tests.planning.examples import EXAMPLES, Example
from tests.planning.oracle import Place, best_placement, problem_of


@pytest.mark.parametrize("example", [e for e in EXAMPLES if e.small], ids=lambda e: e.name)
def test_enumeration_finds_the_worked_answer(example: Example) -> None:
    best = best_placement(example.problem)
    names = example.problem.tree.node_names
    assert {r: names[n] for r, n in (best or {}).items()} == example.answer


def _tried_slots(problem: Problem, level: int, domain: int) -> int:
    """Usable slots by trying every vector of counts."""
    tree = problem.tree
    inside = [n for n in range(len(problem.free)) if tree.domain_of[level, n] == domain]
    best = 0
    for counts in itertools.product(*(range(int(problem.slots_of[0][n]) + 1) for n in inside)):
        held = problem.bound_counts.copy()
        held[inside] += np.array(counts, dtype=np.int64)
        holds = all(
            tree.levels[at].sums(held)[int(tree.domain_of[at, n])] % k == 0
            for at, k in problem.multiples.items()
            if at >= level
            for n in inside
        )
        if holds:
            best = max(best, sum(counts))
    return best


@pytest.mark.parametrize("seed", range(60))
def test_usable_slots_are_those_found_by_trying(seed: int) -> None:
    rng = np.random.default_rng(seed)
    places = [
        Place((f"s{rng.integers(2)}", f"b{rng.integers(2)}", f"n{i}"), (int(rng.integers(6)),))
        for i in range(int(rng.integers(1, 5)))
    ]
    multiples = {int(level): int(rng.integers(2, 5)) for level in rng.choice(4, size=rng.integers(1, 3), replace=False)}
    bound = [(0, 0, p.path[-1]) for p in places if rng.random() < 0.3]
    problem = problem_of(places, [(1,)], [(0, 0, None), *bound], multiples=multiples)
    for level in range(problem.tree.depth + 1):
        usable = slots_by_level(problem, 0)[level]
        assert usable.tolist() == [_tried_slots(problem, level, d) for d in range(len(problem.tree.levels[level]))]


def test_each_hard_rule_is_told_when_it_is_broken() -> None:
    places = [Place(("b1", "n1"), (2,)), Place(("b1", "n2"), (1,)), Place(("b2", "n3"), (2,))]
    problem = problem_of(
        places, [(1,)], [(0, 0, None)] * 4, needs=[2], hard=1, multiples={1: 2}, allowed=[["n1", "n3"]]
    )
    assert violations(problem, {0: 0, 1: 0}) == []
    assert violations(problem, {}) == ["no pod is placed"]
    assert violations(problem, {0: 0, 1: 1}) == ["rank 1 is not allowed on n2"]
    assert violations(problem, {0: 0, 9: 0}) == ["rank 9 is not a pending member"]
    assert violations(problem, {0: 0, 1: 0, 2: 0, 3: 0}) == ["n1 has 2 free of resource 1, 4 are placed"]
    assert violations(problem, {0: 0}) == ["gang 0 needs 2, 1 placed", "layer1 b1: 1 is not a multiple of 2"]
    assert violations(problem, {0: 0, 1: 0, 2: 2, 3: 2}) == ["members lie in several domains of layer1"]


def test_bound_members_count_for_hard_layers_and_multiples() -> None:
    places = [Place(("b1", "n1"), (2,)), Place(("b2", "n2"), (2,))]
    late = problem_of(places, [(1,)], [(0, 0, None), (0, 0, "n2"), (0, 0, "")], hard=1, multiples={1: 2})
    assert violations(late, {0: 1}) == []
    assert violations(late, {0: 0}) == [
        "members lie in several domains of layer1",
        "layer1 b1: 1 is not a multiple of 2",
        "layer1 b2: 1 is not a multiple of 2",
    ]


def test_members_compare_core_then_number_then_ranks() -> None:
    places = [Place(("b1", "n1"), (9,))]
    problem = problem_of(places, [(1,)], [(0, 0, None), (1, 0, None), (0, 0, None), (1, 0, None)], needs=[1, 1])
    order = [(0, 1, 2, 3), (0, 1, 2), (0, 1, 3), (0, 1), (0, 2, 3), (0, 3), (1, 2, 3), (2, 3)]
    vectors = [goal_vector(problem, dict.fromkeys(ranks, 0)) for ranks in order]
    assert vectors == sorted(vectors) and len(set(vectors)) == len(vectors)
