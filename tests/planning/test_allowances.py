# SPDX-License-Identifier: Apache-2.0
"""Quotas as capacities of a placement: every method against enumeration, with random allowances."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from koordpy.placement.goals import violations
from koordpy.placement.problem import Allowance, Problem
from koordpy.placement.solver.exact_placement import solve
from koordpy.plan.round_plan import Proof
from koordpy.problems.placement_methods import place_problem
from tests.planning.oracle import Place, best_placement, is_as_good, problem_of

PATHS = [("b0", "n0"), ("b0", "n1"), ("b1", "n2")]


def units(shapes: Sequence[tuple[int, ...]], members: list[int], needs: list[int], room: list[int]) -> Problem:
    places = [Place(path, (size,)) for path, size in zip(PATHS, room, strict=True)]
    return problem_of(places, shapes, [(0, shape, None) for shape in members], needs)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=3, max_size=3),
    st.integers(1, 5),
    st.integers(0, 5),
    st.lists(st.tuples(st.integers(-1, 6), st.integers(0, 3)), max_size=2),
    st.booleans(),
)
def test_equal_pods_under_allowances(
    room: list[int], number: int, need: int, given_: list[tuple[int, int]], gather: bool
) -> None:
    problem = replace(
        units([(1,)], [0] * number, [min(need, number)], room),
        allowances=tuple(Allowance(left, (amount,)) for left, amount in given_),
        gather=gather,
    )
    best = best_placement(problem)
    for method in (place_problem, solve):
        found = method(problem)
        if best is None:
            assert (found.nodes, found.proof) == ({}, Proof.INFEASIBLE)
        else:
            assert not violations(problem, found.nodes)
            assert is_as_good(problem, found, best)
            assert found.proof is Proof.OPTIMAL


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=3, max_size=3),
    st.lists(st.integers(0, 1), min_size=2, max_size=4),
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=2),
)
def test_mixed_pods_under_allowances(
    room: list[int], members: list[int], need: int, given_: list[tuple[int, int, int]]
) -> None:
    problem = replace(
        units([(1,), (2,)], members, [min(need, len(members))], room),
        allowances=tuple(Allowance(left, (a, b)) for left, a, b in given_),
    )
    best = best_placement(problem)
    found = place_problem(problem)
    if best is None:
        assert (found.nodes, found.proof) == ({}, Proof.INFEASIBLE)
    else:
        assert not violations(problem, found.nodes)
        assert is_as_good(problem, found, best)


def test_two_gangs_share_an_allowance_beyond_their_needs() -> None:
    places = [Place(("b0", "n0"), (9,))]
    problem = problem_of(places, [(1,)], [(0, 0, None), (0, 0, None), (1, 0, None), (1, 0, None)], needs=[1, 1])
    three = replace(problem, allowances=(Allowance(3, (1,)),))
    assert sorted(place_problem(three).nodes) == [0, 1, 2]
    one = replace(problem, allowances=(Allowance(1, (1,)),))
    assert place_problem(one).proof is Proof.INFEASIBLE


def test_another_core_where_the_first_is_too_much_for_a_quota() -> None:
    places = [Place(("b0", "n0"), (9,))]
    problem = problem_of(places, [(4,), (1,)], [(0, 0, None), (0, 1, None), (0, 1, None)], needs=[2])
    assert sorted(place_problem(replace(problem, allowances=(Allowance(2, (4, 1)),))).nodes) == [1, 2]
