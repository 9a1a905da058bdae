# SPDX-License-Identifier: Apache-2.0
"""Goals that depend on how many pods a node takes: counting and the solver against plain enumeration."""

from dataclasses import replace

import numpy as np
import pytest

from koordpy.placement.goals import goal_vector, violations
from koordpy.placement.problem import DeviceCosts, Problem, Sizes
from koordpy.placement.solver.exact_placement import solve
from koordpy.plan.round_plan import Proof
from koordpy.problems.placement_methods import place_problem
from tests.halves import own_half
from tests.planning.oracle import best_placement, is_as_good
from tests.planning.test_solver import random_problem


def without_gather(problem: Problem) -> Problem:
    """The problem without gather goals, and so without what goes with them."""
    return replace(problem, gather=False, hard=0, multiples={}, pipeline=1, interactions=())


def with_table(problem: Problem, seed: int, *, hard: bool) -> Problem:
    """The problem with random vectors; `hard`: some nodes cannot take some numbers of pods of several shapes."""
    rng = np.random.default_rng(seed)
    width, shapes = int(rng.integers(1, 4)), len(problem.shapes)
    kinds = rng.integers(0, 3, size=len(problem.free))
    active = tuple(i for i in range(shapes) if rng.random() < 0.7) or (0,)
    known: dict[tuple[int, tuple[int, ...]], tuple[int, ...] | None] = {}

    def cost(kind: int, counts: tuple[int, ...]) -> tuple[int, ...] | None:
        beside = any(n for i, n in enumerate(counts) if i not in active)
        key = (kind, (*(counts[i] for i in active), beside))
        if key not in known:
            own = np.random.default_rng(hash((seed, kind, key[1])) & 0xFFFFFFFF)
            several = sum(1 for i in active if counts[i]) > 1
            no = hard and several and own.random() < 0.3
            known[key] = None if no else tuple(int(n) for n in own.integers(0, 3, size=width))
        return known[key]

    standing = rng.integers(0, 2, size=len(problem.free)) if not problem.gather and rng.random() < 0.5 else None
    return replace(
        problem, device_costs=DeviceCosts(kinds, cost, width, active, always=not hard), already_used=standing
    )


def check(problem: Problem) -> None:
    best = best_placement(problem)
    for method in (solve, place_problem):
        solution = method(problem)
        if best is None:
            assert not solution.nodes and solution.proof is Proof.INFEASIBLE, method.__name__
            continue
        assert solution.proof is Proof.OPTIMAL, method.__name__
        assert violations(problem, solution.nodes) == [], method.__name__
        assert is_as_good(problem, solution, best), method.__name__


@pytest.mark.parametrize("seed", own_half(range(150)))
def test_both_methods_find_the_best_of_all(seed: int) -> None:
    check(with_table(random_problem(seed), seed, hard=False))


@pytest.mark.parametrize("seed", own_half(range(1000, 1060)))
def test_nodes_that_cannot_take_some_mixtures_are_left_alone(seed: int) -> None:
    check(with_table(random_problem(seed), seed, hard=True))


@pytest.mark.parametrize("seed", own_half(range(2000, 2080)))
def test_equal_pods_are_counted_without_the_solver(seed: int) -> None:
    problem = random_problem(seed)
    alike = tuple(replace(member, shape=0) if member.shape >= 0 else member for member in problem.members)
    kept = replace(problem, members=alike, shapes=problem.shapes[:1], pipeline=1)
    if not kept.gather:  # hard layers and multiples are gather goals
        kept = replace(kept, hard=0, multiples={})
    check(with_table(kept, seed, hard=False))


@pytest.mark.parametrize("seed", own_half(range(3000, 3160)))
@pytest.mark.parametrize("hard", [False, True], ids=["any mixture", "some mixtures"])
def test_equal_nodes_are_counted_together(seed: int, hard: bool) -> None:
    check(with_table(without_gather(random_problem(seed)), seed, hard=hard))


@pytest.mark.parametrize("seed", own_half(range(4000, 4060)))
def test_nodes_that_can_be_filled_in_too_many_ways_are_counted_one_by_one(seed: int) -> None:
    problem = with_table(without_gather(random_problem(seed)), seed, hard=seed % 2 == 0)
    check(replace(problem, sizes=Sizes(class_fillings=0)))


@pytest.mark.parametrize("seed", own_half(range(4000, 4060)))
def test_where_names_are_not_asked_about_all_goals_before_are_the_best(seed: int) -> None:
    problem = with_table(without_gather(random_problem(seed)), seed, hard=False)
    problem = replace(problem, sizes=Sizes(named_variables=-1))
    best, found = best_placement(problem), solve(problem)
    if best is None:
        assert found.proof is Proof.INFEASIBLE
        return
    assert violations(problem, found.nodes) == []
    assert found.proof is Proof.OPTIMAL
    assert goal_vector(problem, found.nodes)[:-1] == goal_vector(problem, best)[:-1]
