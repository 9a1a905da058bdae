# SPDX-License-Identifier: Apache-2.0
"""What numbers of pods domains can take, against all ways to put them on the nodes."""

import itertools
import random

import numpy as np
import pytest

from koordpy.placement.allowed_counts import able_domains, most_pods
from koordpy.placement.problem import Problem
from tests.planning.oracle import Place, problem_of


def random_problem(seed: int) -> Problem:
    """Pods of one shape on 2 to 5 nodes below two layers, with bound members and multiples."""
    dice = random.Random(seed)
    places = [
        Place((f"s{dice.randint(0, 1)}", f"b{dice.randint(0, 1)}", f"n{i}"), (dice.randint(0, 3),))
        for i in range(dice.randint(2, 5))
    ]
    names = [place.path[-1] for place in places]
    members: list[tuple[int, int, str | None]] = [(0, 0, dice.choice(names)) for _ in range(dice.choice([0, 0, 1, 2]))]
    members += [(0, 0, None)] * dice.randint(1, 4)
    multiples = {level: dice.choice([1, 2, 3]) for level in range(4) if dice.random() < 0.4}
    return problem_of(places, [(1,)], members, multiples=multiples, hard=dice.randint(0, 2))


def ways(problem: Problem) -> list[np.ndarray]:
    """Every [nodes] number of further pods that leaves a multiple in every domain of the tree."""
    tree, slots, bound = problem.tree, problem.slots_of[0], problem.bound_counts
    found = [np.array(one, dtype=np.int64) for one in itertools.product(*(range(int(n) + 1) for n in slots))]
    return [
        one
        for one in found
        if all((tree.levels[level].sums(one + bound) % k == 0).all() for level, k in problem.multiples.items())
    ]


@pytest.mark.parametrize("block", range(4))
def test_domains_take_what_some_way_puts_there_and_nowhere_else(block: int) -> None:
    seen = 0
    for seed in range(block * 60, block * 60 + 60):
        problem = random_problem(seed)
        every = ways(problem)
        for number, level in enumerate(problem.tree.levels):
            can: dict[int, set[int]] = {}
            for one in every:
                within = level.sums(one)
                for domain in np.nonzero(within == one.sum())[0].tolist():
                    can.setdefault(int(one.sum()), set()).add(domain)
            for size in range(int(problem.slots_of[0].sum()) + 2):
                assert set(able_domains(problem, 0, number, size).tolist()) == can.get(size, set()), (
                    seed,
                    number,
                    size,
                )
                seen += bool(can.get(size))
    assert seen > 100


@pytest.mark.parametrize("block", range(4))
def test_the_largest_number_is_that_of_the_best_domain_that_bound_members_leave_open(block: int) -> None:
    seen = 0
    for seed in range(block * 60, block * 60 + 60):
        problem = random_problem(seed)
        level = problem.tree.levels[problem.hard]
        held = set(np.nonzero(level.sums(problem.bound_counts))[0].tolist())
        open_ = held or set(range(len(level)))
        sizes = {
            int(one.sum())
            for one in ways(problem)
            for domain in (open_ if len(held) < 2 else set())
            if level.sums(one)[domain] == one.sum()
        }
        for core, limit in itertools.product(range(1, 4), range(1, 6)):
            fitting = [size for size in sizes if core <= size <= limit]
            assert most_pods(problem, 0, core=core, limit=limit) == max(fitting, default=0), (seed, core, limit)
            seen += bool(fitting)
    assert seen > 100
