# SPDX-License-Identifier: Apache-2.0
"""Jobs that are not all or nothing: pods in order, one that does not fit left out, against trying each in turn."""

from dataclasses import replace

import pytest

from koordpy.placement.goals import violations
from koordpy.placement.problem import Problem, only_ranks
from koordpy.plan.round_plan import Proof
from koordpy.problems.unit_placement import place_in_order
from tests.planning.gpu.test_by_count import with_table, without_gather
from tests.planning.oracle import best_placement, is_as_good
from tests.planning.test_solver import random_problem


def all_of(problem: Problem, ranks: list[int]) -> Problem:
    return replace(only_ranks(problem, ranks), needs=(len(ranks),))


def crowded(seed: int) -> Problem:
    """A problem of one gang whose nodes have less room than its pods ask for, mostly."""
    problem = without_gather(random_problem(seed))
    members = tuple(replace(member, gang=0) for member in problem.members)
    free = problem.free // (1 + seed % 3)
    return replace(problem, members=members, needs=(0,), free=free, allowances=())


@pytest.mark.parametrize("seed", range(240))
def test_the_pods_that_fit_are_taken_in_order(seed: int) -> None:
    problem = with_table(crowded(seed), seed, hard=False)
    taken: list[int] = []
    for rank in problem.pending:
        if best_placement(all_of(problem, [*taken, rank])) is not None:
            taken.append(rank)
    found = place_in_order(problem)
    if len({problem.members[rank].shape for rank in problem.pending}) < 2:
        assert len(found.nodes) == len(taken), "equal pods are as many"
        return
    assert sorted(found.nodes) == taken
    if not taken:
        assert found.proof is Proof.INFEASIBLE
        return
    just = all_of(problem, taken)
    best = best_placement(just)
    assert best is not None
    assert found.proof is Proof.OPTIMAL
    assert violations(just, found.nodes) == []
    assert is_as_good(just, found, best)
