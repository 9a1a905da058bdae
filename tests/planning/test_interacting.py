# SPDX-License-Identifier: Apache-2.0
"""Members that ask something of each other's places: the solver against plain enumeration, and at its limits."""

from dataclasses import replace

import numpy as np
import pytest

from koordpy.cache.snapshot import Ints
from koordpy.placement.counting import applies
from koordpy.placement.goals import violations
from koordpy.placement.member_interactions import (
    AntiAffinity,
    InOneDomain,
    Interaction,
    LinkedAffinity,
    RequiredAffinity,
    Spread,
    linked_sets,
)
from koordpy.placement.problem import Problem
from koordpy.placement.solver.exact_placement import solve
from koordpy.plan.round_plan import Proof
from koordpy.problems.placement_methods import place_problem
from tests.halves import own_half
from tests.planning.oracle import Place, assert_best, problem_of
from tests.planning.test_solver import random_problem


def random_interactions(problem: Problem, rng: np.random.Generator) -> tuple[Interaction, ...]:
    """One to three rules between random shapes over domains of random labels."""
    nodes, shapes = len(problem.free), len(problem.shapes)

    def labels() -> Ints:
        if rng.random() < 0.2:
            return np.arange(nodes)
        if rng.random() < 0.2:
            return np.asarray(problem.tree.domain_of[int(rng.integers(1, problem.tree.depth + 1))], dtype=np.int64)
        groups = rng.integers(0, 3, size=nodes)
        groups[rng.random(nodes) < 0.1] = -1
        groups[0] = max(groups[0], 0)
        return np.asarray(np.unique(groups, return_inverse=True)[1] - (groups.min() < 0), dtype=np.int64)

    def meant() -> tuple[int, ...]:
        return tuple(s for s in range(shapes) if rng.random() < 0.7) or (int(rng.integers(shapes)),)

    def pods(groups: Ints, share: float) -> Ints:
        return np.where(rng.random(groups.max() + 1) < share, rng.integers(1, 3, size=groups.max() + 1), 0)

    out: list[Interaction] = []
    for _ in range(int(rng.integers(1, 4))):
        shape, kind = int(rng.integers(shapes)), int(rng.integers(4))
        groups = labels()
        if kind == 0:
            out.append(AntiAffinity(shape, meant(), groups))
        elif kind == 3:
            out.append(InOneDomain(meant(), groups))
        elif kind == 1:
            owners = [shape, *(s for s in range(shapes) if s != shape and rng.random() < 0.5)]
            keys = [groups, labels()]
            found = []
            for one in owners:
                every = tuple(keys[:2] if rng.random() < 0.3 else [keys[int(rng.integers(2))]])
                running = 0.3 if rng.random() < 0.3 else 0.0
                found.append(RequiredAffinity(one, meant(), every, tuple(pods(of, running) for of in every)))
            out += [LinkedAffinity(tuple(linked)) for linked in linked_sets(found)]
        else:
            eligible = rng.random(groups.max() + 1) < 0.9
            open_groups = np.where((groups >= 0) & eligible[groups], groups, -1)
            out.append(
                Spread(
                    shape,
                    meant(),
                    open_groups,
                    pods(groups, 0.3),
                    eligible,
                    max_skew=int(rng.integers(1, 3)),
                    min_domains=int(rng.integers(1, 4)) if rng.random() < 0.3 else 1,
                )
            )
    return tuple(out)


def interacting_problem(seed: int) -> Problem:
    problem = random_problem(seed)
    return replace(problem, interactions=random_interactions(problem, np.random.default_rng((seed, 1))))


def opening_problem(seed: int) -> Problem:
    """Pods that match themselves and open one place, by labels of a layer or across layers, of one kind or several."""
    problem, rng = random_problem(seed), np.random.default_rng((seed, 2))
    nodes, shapes, level = len(problem.free), range(len(problem.shapes)), int(rng.integers(1, problem.tree.depth + 1))
    across = np.asarray(np.unique(rng.integers(0, 3, size=nodes), return_inverse=True)[1], dtype=np.int64)
    layer = np.asarray(problem.tree.domain_of[level], dtype=np.int64)
    layer = np.where(rng.random(nodes) < 0.1, -1, layer)
    keys = [[layer], [across], [layer, across]][int(rng.integers(3))]
    none = tuple(np.zeros(nodes, dtype=np.int64) for _ in keys)
    owners = tuple(RequiredAffinity(shape, tuple(shapes), tuple(keys), none) for shape in shapes)
    return replace(problem, interactions=(LinkedAffinity(owners),))


@pytest.mark.parametrize("seed", own_half(range(300)))
def test_the_place_that_a_gang_opens_is_as_good_as_enumeration(seed: int) -> None:
    problem = opening_problem(seed)
    assert_best(problem, place_problem(problem))


@pytest.mark.parametrize(
    "seed", [*own_half(range(500)), pytest.param(688, id="none-of-those-that-it-shuns-is-left-to-place")]
)
def test_with_interactions_the_solver_is_as_good_as_enumeration(seed: int) -> None:
    problem = interacting_problem(seed)
    assert_best(problem, place_problem(problem))


def zones(problem: Problem, number: int, *, label: int = 0) -> Ints:
    """[nodes] so many zones in turns, or with `label` so many neighbours each."""
    nodes = np.arange(len(problem.free))
    return np.asarray(nodes // label if label else nodes % number, dtype=np.int64)


def cluster(nodes: int, pods: list[int], *, gather: bool = True) -> Problem:
    places = [Place((f"s{i // 50}", f"b{i // 10}", f"n{i}"), (8,)) for i in range(nodes)]
    return problem_of(places, [(1,), (2,)], [(0, shape, None) for shape in pods], gather=gather)


def even(groups: Ints, *, shape: int = 0, skew: int = 1) -> Spread:
    count = int(groups.max()) + 1
    return Spread(shape, (shape,), groups, np.zeros(count, dtype=np.int64), np.ones(count, dtype=bool), skew)


def near(groups: Ints, *owners: tuple[int, tuple[int, ...]]) -> LinkedAffinity:
    """Of pairs (shape, shapes that match its term)."""
    none = (np.zeros(int(groups.max()) + 1, dtype=np.int64),)
    return LinkedAffinity(tuple(RequiredAffinity(shape, meant, (groups,), none) for shape, meant in owners))


LARGE = [cluster(200, [0] * 64), cluster(200, [1, *[0] * 63]), cluster(200, [0] * 64, gather=False)]


@pytest.mark.parametrize("kind", ["zones", "apart", "near", "hosts"])
@pytest.mark.parametrize("base", LARGE, ids=["one kind", "master and workers", "no gather goal"])
def test_sixty_four_pods_on_two_hundred_nodes_are_placed_best(base: Problem, kind: str) -> None:
    three, racks, hosts = zones(base, 3), zones(base, 0, label=3), zones(base, 0, label=1)
    rules: dict[str, tuple[Interaction, ...]] = {
        "zones": (even(three),),
        "apart": (AntiAffinity(0, (0,), racks), even(three)),
        "near": (near(three, (0, (0, 1)), (1, (0,))),),
        "hosts": (even(hosts),),
    }
    problem = replace(base, interactions=tuple(one for one in rules[kind] if one.shape < 2))
    assert not applies(problem)
    solution = solve(problem)
    assert solution.proof is Proof.OPTIMAL
    assert violations(problem, solution.nodes) == []
    assert len(solution.nodes) == 64


@pytest.mark.parametrize("limit", [1e-3, 1e-2, 1e-1])
def test_with_little_time_what_is_placed_keeps_the_interactions(limit: float) -> None:
    rng = np.random.default_rng(7)
    places = [Place((f"b{i // 8}", f"n{i}"), (int(rng.integers(2, 9)),)) for i in range(64)]
    base = problem_of(places, [(2,), (3,)], [(0, i % 2, None) for i in range(24)], deterministic_time=limit)
    problem = replace(base, interactions=(even(zones(base, 3)), AntiAffinity(1, (1,), zones(base, 0, label=4))))
    solution = solve(problem)
    assert bool(solution.nodes) is (solution.proof in (Proof.FEASIBLE, Proof.OPTIMAL))
    assert solution.proof is not Proof.INFEASIBLE
    assert not solution.nodes or violations(problem, solution.nodes) == []


@pytest.mark.parametrize("seed", range(40))
def test_above_the_size_of_a_model_linked_pods_are_put_into_one_place(seed: int) -> None:
    """Three zones that cross all blocks; only the last has room for all."""
    rng = np.random.default_rng(seed)
    base = cluster(60, [int(shape) for shape in rng.integers(0, 2, size=24)])
    three = zones(base, 3)
    free = np.where((three == 2)[:, None], base.free, np.minimum(base.free, 1))
    linked = near(three, (0, (0, 1)), (1, (0, 1)))
    problem = replace(base, free=free, interactions=(linked,), sizes=replace(base.sizes, model_pods=1))
    solution = solve(problem)
    assert solution.proof is Proof.FEASIBLE
    assert violations(problem, solution.nodes) == []
    assert {int(three[node]) for node in solution.nodes.values()} == {2}
