# SPDX-License-Identifier: Apache-2.0
"""Large regions of mixed kinds: one measure of room against enumeration, and what is modelled only in part.

The sizes are set so low that tiny problems count as large.
"""

from dataclasses import replace

import numpy as np
import pytest

from koordpy.placement.goals import Goals, violations
from koordpy.placement.problem import DeviceCosts, Devices, Problem, Sizes, Solution
from koordpy.placement.solver.exact_placement import solve
from koordpy.placement.solver.large_regions import least_domains
from koordpy.plan.round_plan import Proof
from koordpy.problems.placement_methods import place_problem
from tests.halves import own_half
from tests.planning.oracle import Place, _placements, best_placement, is_as_good, problem_of
from tests.planning.test_solver import random_problem


def mixed(seed: int, *, bound: bool = False) -> Problem:
    """Pods of devices and CPUs on a few nodes of two layers; all must be placed."""
    rng = np.random.default_rng(seed)
    places = [
        Place(
            (f"s{rng.integers(2)}", f"b{rng.integers(2)}", f"n{i}"), (int(rng.integers(0, 5)), int(rng.integers(2, 9)))
        )
        for i in range(int(rng.integers(3, 6)))
    ]
    requests = [(0, 3), (1, 2), (2, 1)]
    members: list[tuple[int, int, str | None]] = [
        (0, int(rng.integers(3)), None) for _ in range(int(rng.integers(2, 5)))
    ]
    if bound:
        members.insert(0, (0, 1, f"n{rng.integers(len(places))}"))
    return problem_of(places, requests, members, deterministic_time=100.0)


def with_devices(problem: Problem) -> Problem:
    """The problem with devices of which only numbers are known, in column 1."""
    asks = tuple(dict(shape.request).get(1, 0) for shape in problem.shapes)
    free = problem.free[:, 1]

    def cost(kind: int, counts: tuple[int, ...]) -> tuple[int, ...]:
        given = sum(n * ask for n, ask in zip(counts, asks, strict=True))
        several = sum(n for n, ask in zip(counts, asks, strict=True) if ask > 1)
        return (int(given > 1), kind - given, several) if any(counts) else (0, 0, 0)

    table = DeviceCosts(free.copy(), cost, 3, (1, 2), always=True, devices=Devices(asks, free))
    return replace(problem, device_costs=table)


@pytest.mark.parametrize("seed", own_half(range(150)))
def test_devices_by_number_are_worth_what_enumeration_finds(seed: int) -> None:
    problem = with_devices(mixed(seed, bound=seed % 3 == 0))
    best, solution = best_placement(problem), place_problem(problem)
    if best is None:
        assert solution.proof is Proof.INFEASIBLE
        return
    assert solution.proof is Proof.OPTIMAL
    assert is_as_good(problem, solution, best)


@pytest.mark.parametrize("seed", own_half(range(150)))
def test_no_placement_opens_fewer_domains_than_one_measure_needs(seed: int) -> None:
    problem = with_devices(mixed(seed))
    goals, pending = Goals(problem), problem.pending
    every = [nodes for nodes in _placements(problem) if len(nodes) == len(pending)]
    amounts = {
        column: sum(dict(problem.shapes[problem.members[r].shape].request).get(column, 0) for r in pending)
        for column in (0, 1, 2)
    }
    for column, need in amounts.items():
        if not need:
            continue
        least = least_domains(problem, (0, 0), problem.free[:, column], need, left=column == 1)
        if least is None:
            assert not every
            continue
        for nodes in every:
            assert goals.domains(nodes) >= least.domains
            if least.value and goals.domains(nodes) == least.domains:
                assert goals.counted(nodes)[:2] >= least.value


def agreed(problem: Problem) -> tuple[dict[int, int] | None, Solution]:
    """The best placement by enumeration, and the solver's: valid, none only where there is none, and best if proven."""
    best, solution = best_placement(problem), solve(problem)
    if best is None:
        assert not solution.nodes
        return best, solution
    assert solution.nodes and violations(problem, solution.nodes) == []
    if solution.proof is Proof.OPTIMAL:
        assert is_as_good(problem, solution, best)
    return best, solution


@pytest.mark.parametrize("seed", own_half(range(200)))
def test_a_region_modelled_in_part_is_valid_and_proven_only_where_it_is_best(seed: int) -> None:
    problem = replace(mixed(seed, bound=seed % 5 == 0), sizes=Sizes(model_nodes=seed % 4))
    problem = with_devices(problem) if seed % 2 else problem
    best, solution = agreed(problem)
    if best is not None and solution.proof is not Proof.OPTIMAL:
        assert solution.proof is Proof.FEASIBLE
        assert Goals(problem).layers(solution.nodes) == Goals(problem).layers(best)


@pytest.mark.parametrize("seed", own_half(range(300)))
def test_whatever_else_is_asked_a_region_modelled_in_part_is_valid(seed: int) -> None:
    problem = replace(random_problem(seed), gather=True, sizes=Sizes(model_nodes=seed % 4))
    agreed(problem)
