# SPDX-License-Identifier: Apache-2.0
"""Gangs without accelerators leave nodes with accelerators: every method of placing against plain enumeration."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from koordpy.placement.counting import applies
from koordpy.placement.problem import Problem, Solution
from koordpy.placement.solver.exact_placement import solve
from koordpy.placement.solver.filling_capacity import FillingCapacity
from koordpy.placement.solver.greedy_placement import Greedy
from koordpy.problems.placement_methods import place_problem
from tests.halves import own_half
from tests.planning.oracle import Place, assert_best, best_placement, problem_of
from tests.planning.test_counting import random_problem as equal_pods
from tests.planning.test_solver import random_problem as mixed_pods


def _with_scarce(problem: Problem, seed: int) -> Problem:
    """The problem without a gather goal, and with scarce resources on some of its nodes."""
    scarce = np.random.default_rng(seed).integers(0, 2, size=len(problem.free))
    return replace(problem, gather=False, hard=0, multiples={}, pipeline=1, scarce=scarce)


def _plainly_scarce(problem: Problem) -> bool:
    """Whether the best placement would be another without the goal."""
    best, without = best_placement(problem), best_placement(replace(problem, scarce=None))
    return best != without


@pytest.mark.parametrize(("of", "method"), [(equal_pods, place_problem), (equal_pods, solve), (mixed_pods, solve)])
def test_every_method_is_as_good_as_enumeration(
    of: Callable[[int], Problem], method: Callable[[Problem], Solution]
) -> None:
    told = 0
    for seed in own_half(range(120)):
        problem = _with_scarce(of(seed), seed)
        assert of is not equal_pods or applies(problem)
        assert_best(problem, method(problem))
        told += _plainly_scarce(problem)
    assert told > 5


@pytest.mark.parametrize(
    ("pods", "wanted"),
    [
        (4, {"b": 2, "c": 2}),
        (6, {"a": 2, "b": 2, "c": 2}),  # the others are filled first
        (12, {"a": 8, "b": 2, "c": 2}),
        (13, {}),
    ],
)
@pytest.mark.parametrize("method", [place_problem, solve])
def test_pods_fill_the_other_nodes_first(
    pods: int, wanted: dict[str, int], method: Callable[[Problem], Solution]
) -> None:
    places = [Place(("a",), (8,)), Place(("b",), (2,)), Place(("c",), (2,))]
    problem = problem_of(places, [(1,)], [(0, 0, None)] * pods, gather=False, scarce=np.array([1, 0, 0]))
    names = [problem.tree.node_names[node] for node in method(problem).nodes.values()]
    assert {name: names.count(name) for name in set(names)} == wanted


def test_filling_node_after_node_leaves_nodes_with_scarce_resources_for_the_last() -> None:
    places = [Place(("a",), (8,)), Place(("b",), (2,)), Place(("c",), (2,))]
    for pods, used in ((4, {1, 2}), (5, {0, 1, 2})):
        problem = problem_of(places, [(1,)], [(0, 0, None)] * pods, gather=False, scarce=np.array([1, 0, 0]))
        found = Greedy(FillingCapacity(problem, {0: pods})).fill((0, 0))
        assert found is not None and set(found) == used
        assert sum(found[0]) == pods - 4 if 0 in used else True
