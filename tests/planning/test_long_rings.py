"""Goal 7 above 64 pods: the best order where one of whole domains exists, any order else, and what is called proven.

Source: gang-network.md section 5. The limits of size are set so low that tiny problems count as large.
"""

from dataclasses import replace

import pytest

from koordpy.planning.placement import rank_search
from koordpy.planning.placement.goals import Goals, goal_vector, violations
from koordpy.planning.placement.problem import Problem
from koordpy.planning.plan import Proof
from koordpy.planning.solver import assignment, solve
from tests.planning.oracle import best_placement
from tests.planning.test_solver import random_problem


def has_whole_order(problem: Problem, nodes: dict[int, int]) -> bool:
    """Whether every domain is one run of the ring."""
    goals = Goals(problem)
    domains = (n if n > 1 else 0 for n in goals.domains(nodes))
    return goals.crossings(nodes) == tuple(domains)


@pytest.mark.parametrize("block", range(10))
def test_an_order_is_proven_only_where_it_is_best_or_no_order_of_whole_domains_exists(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_search, "RANK_RING_PODS", 1)
    monkeypatch.setattr(assignment, "RING_PODS", 1)
    proven = whole = 0
    for seed in range(block * 60, block * 60 + 60):
        problem = replace(random_problem(seed), gather=True)
        best, solution = best_placement(problem), solve(problem)
        if best is None:
            assert solution.proof is Proof.INFEASIBLE, seed
            continue
        assert violations(problem, solution.nodes) == [], seed
        found, wanted = goal_vector(problem, solution.nodes), goal_vector(problem, best)
        assert found[:-1] == wanted[:-1], seed
        if solution.proof is Proof.OPTIMAL:
            proven += 1
            if has_whole_order(problem, best):
                whole += 1
                assert found == wanted, seed
    assert proven > 15 and whole > 10


def test_what_is_given_up_is_not_called_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_search, "RANK_RING_PODS", 1)
    monkeypatch.setattr(assignment, "RING_PODS", 1)
    monkeypatch.setattr(rank_search.RankSearch, "_within", lambda self, limits: (None, False))
    monkeypatch.setattr(rank_search.RankSearch, "_bounds", lambda self: [1] * len(self.ring.levels))
    proofs = {solve(replace(random_problem(seed), gather=True)).proof for seed in range(80)}
    assert Proof.FEASIBLE in proofs
