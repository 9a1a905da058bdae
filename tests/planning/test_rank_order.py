# SPDX-License-Identifier: Apache-2.0
"""Goal 7: closed forms, the bounded local search, and what is called proven.

Source: gang-network.md section 5.
"""

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from koordpy.explain.explanation import explain
from koordpy.placement.goals import Goals, goal_vector, violations
from koordpy.placement.problem import Problem
from koordpy.placement.rank_order import rank_counts
from koordpy.placement.solver.exact_placement import solve
from koordpy.plan.round_plan import Proof, ranks_proven
from tests.planning.oracle import Place, best_placement, problem_of
from tests.planning.test_solver import random_problem
from tests.scenarios.cluster import TWO_LAYERS, World, group, nodes_of, pod, wish


def is_whole(problem: Problem, nodes: dict[int, int]) -> bool:
    """True if every domain is one run of the ring."""
    goals = Goals(problem)
    domains = (n if n > 1 else 0 for n in goals.domains(nodes))
    return goals.crossings(nodes) == tuple(domains)


@pytest.mark.parametrize("block", range(4))
def test_what_is_proven_has_the_fewest_crossings_and_the_rest_is_seldom_worse(block: int) -> None:
    proven = crossed = best_of_all = 0
    for seed in range(block * 60, block * 60 + 60):
        problem = replace(random_problem(seed), gather=True)
        best, solution = best_placement(problem), solve(problem)
        if best is None:
            assert solution.proof is Proof.INFEASIBLE, seed
            continue
        assert violations(problem, solution.nodes) == [], seed
        found, wanted = goal_vector(problem, solution.nodes), goal_vector(problem, best)
        assert found[:-1] == wanted[:-1], seed
        assert solution.proof is Proof.OPTIMAL, seed
        assert ranks_proven(solution.runs) or not is_whole(problem, dict(solution.nodes)), seed
        assert not ranks_proven(solution.runs) or found[-1][0] == wanted[-1][0], seed
        proven += ranks_proven(solution.runs)
        crossed += not ranks_proven(solution.runs)
        best_of_all += found == wanted
    assert proven > 15 and best_of_all >= 0.95 * (proven + crossed)


def _gang(seed: int) -> tuple[Problem, dict[int, int]]:
    """(equal pods with pipeline groups of 2 or 3, pods per node at random): 32 nodes in blocks of 4."""
    rng = random.Random(seed)
    size = rng.choice([2, 3])
    places = [Place((f"s{i // 16}", f"b{i // 4}", f"n{i}"), (9,)) for i in range(32)]
    counts = {i: rng.randint(1, 9) for i in range(32)}
    for _ in range(sum(counts.values()) % size):
        counts[max(counts, key=counts.__getitem__)] -= 1
    return problem_of(places, [(1,)], [(0, 0, None)] * sum(counts.values()), pipeline=size), counts


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_large_gangs_of_equal_pods_get_an_order_of_whole_domains(seed: int) -> None:
    problem, counts = _gang(seed)
    ranks = range(len(problem.members))
    nodes, proven = rank_counts(problem, ranks, counts)
    assert proven and is_whole(problem, nodes) and Counter(nodes.values()) == counts
    size, sums = problem.pipeline, [level.sums(_per_node(counts)) for level in problem.tree.levels]
    whole = [-(-len(ranks) // size), *(int((held // size).sum()) for held in sums[1:])]
    assert Goals(problem).pipeline(nodes) == tuple(a - b for a, b in pairwise(whole))


def _per_node(counts: dict[int, int]) -> np.ndarray:
    return np.array([counts[node] for node in sorted(counts)], dtype=np.int64)


def test_no_order_of_whole_domains_exists_and_the_search_leaves_one_run_more() -> None:
    """Blocks of 5, 5, 5 and 1 with groups of 4: every block of 5 has a group and one pod of the last group."""
    counts = {0: 5, 1: 5, 2: 5, 3: 1}
    problem = problem_of([Place((f"b{i}", f"n{i}"), (5,)) for i in counts], [(1,)], [(0, 0, None)] * 16, pipeline=4)
    nodes, proven = rank_counts(problem, range(16), counts)
    assert not proven and Goals(problem).crossings(nodes) == (5, 5)


def _split_groups() -> World:
    """Pairs of pipeline stages of which two have a bound member each."""
    wanted = wish({"blockLayer": "Prefer"}, pp=2)
    world = World().add(TWO_LAYERS, nodes_of("s{b1: n1:2 n2:2; b2: n3:2 n4:2}"), group("g", 6, wanted))
    return world.add(*(pod(f"p-{i}", gang="g", at={1: "n2", 5: "n1"}.get(i, "")) for i in range(6)))


def test_explain_says_that_the_order_of_a_partly_bound_gang_is_not_proven_and_it_stays_optimal() -> None:
    plan = _split_groups().plan()
    assert [gang.proof for gang in plan.gangs] == [Proof.OPTIMAL]
    assert not ranks_proven(plan.units[0].solver)
    assert explain(_split_groups().snapshot(), None, "default/p-0").message == "rank order: not proven best"


def test_explain_says_nothing_of_an_order_of_ranks_that_is_proven() -> None:
    wanted = wish({"blockLayer": "Prefer"}, pp=2)
    world = World().add(TWO_LAYERS, nodes_of("s{b1: n1:2 n2:2; b2: n3:2 n4:2}"), group("g", 6, wanted))
    world = world.add(*(pod(f"p-{i}", gang="g") for i in range(6)))
    assert ranks_proven(world.plan().units[0].solver)
    assert explain(world.snapshot(), None, "default/p-0").message == ""
