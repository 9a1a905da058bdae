"""Goal 7 above 64 pods: the best order where one of whole domains exists, any order else, and what is called proven.

Source: gang-network.md section 5. The limits of size are set so low that tiny problems count as large.
"""

from dataclasses import replace

import pytest

from koordpy.planning.explain import explain
from koordpy.planning.placement import rank_search
from koordpy.planning.placement.goals import Goals, goal_vector, violations
from koordpy.planning.placement.problem import Problem, Sizes
from koordpy.planning.plan import Proof, ranks_proven
from koordpy.planning.solver import solve
from tests.planning.oracle import best_placement
from tests.planning.test_solver import random_problem
from tests.scenarios.cluster import TWO_LAYERS, World, group, nodes_of, pod, wish


def has_whole_order(problem: Problem, nodes: dict[int, int]) -> bool:
    """Whether every domain is one run of the ring."""
    goals = Goals(problem)
    domains = (n if n > 1 else 0 for n in goals.domains(nodes))
    return goals.crossings(nodes) == tuple(domains)


@pytest.mark.parametrize("block", range(10))
def test_an_order_is_proven_only_where_it_is_best_or_no_order_of_whole_domains_exists(block: int) -> None:
    proven = whole = 0
    for seed in range(block * 60, block * 60 + 60):
        problem = replace(random_problem(seed), gather=True, sizes=Sizes(ring_pods=1))
        best, solution = best_placement(problem), solve(problem)
        if best is None:
            assert solution.proof is Proof.INFEASIBLE, seed
            continue
        assert violations(problem, solution.nodes) == [], seed
        found, wanted = goal_vector(problem, solution.nodes), goal_vector(problem, best)
        assert found[:-1] == wanted[:-1], seed
        assert solution.proof is Proof.OPTIMAL, seed
        if ranks_proven(solution.runs):
            proven += 1
            if has_whole_order(problem, best):
                whole += 1
                assert found == wanted, seed
    assert proven > 15 and whole > 10


@pytest.fixture
def given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """No search for an order of ranks finds one."""
    monkeypatch.setattr(rank_search.RankSearch, "solve", lambda self: (None, False))


@pytest.mark.usefixtures("given_up")
def test_what_is_given_up_is_not_called_proven() -> None:
    found = [solve(replace(random_problem(seed), gather=True)) for seed in range(80)]
    assert {one.proof for one in found} == {Proof.OPTIMAL, Proof.INFEASIBLE}
    assert not all(ranks_proven(one.runs) for one in found)


def _split_groups() -> World:
    """Pairs of pipeline stages of which two have a bound member each."""
    wanted = wish({"blockLayer": "Prefer"}, pp=2)
    world = World().add(TWO_LAYERS, nodes_of("s{b1: n1:2 n2:2; b2: n3:2 n4:2}"), group("g", 6, wanted))
    return world.add(*(pod(f"p-{i}", gang="g", at={1: "n2", 5: "n1"}.get(i, "")) for i in range(6)))


@pytest.mark.usefixtures("given_up")
def test_explain_says_that_an_order_of_ranks_is_not_proven_and_the_gang_stays_optimal() -> None:
    plan = _split_groups().plan()
    assert [gang.proof for gang in plan.gangs] == [Proof.OPTIMAL]
    assert not ranks_proven(plan.units[0].solver)
    assert explain(_split_groups().snapshot(), None, "default/p-0").message == "rank order: not proven best"


def test_explain_says_nothing_of_an_order_of_ranks_that_is_proven() -> None:
    plan = _split_groups().plan()
    assert [gang.proof for gang in plan.gangs] == [Proof.OPTIMAL] and ranks_proven(plan.units[0].solver)
    assert explain(_split_groups().snapshot(), None, "default/p-0").message == ""
