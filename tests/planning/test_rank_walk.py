"""What the walk along the ring counts as it goes and comes back is what a fresh look at its members counts."""

from dataclasses import replace

import pytest

from koordpy.planning.placement.rank_walk import Walk
from koordpy.planning.solver import solve
from tests.planning.test_solver import random_problem


def assert_counted(walk: Walk) -> None:
    search, count = walk.search, len(walk.search.shapes)
    taken = {node: [0] * count for node in search.totals}
    left = dict(search.size)
    for at, node in enumerate(walk.sequence):
        if search.shape[at] >= 0:
            taken[node][search.shape[at]] += 1
        for level in walk.levels:
            left[level, search.path[node][level]] -= 1
    for i, level in enumerate(walk.levels):
        assert all(walk.left[walk.at[node][i]] == left[level, search.path[node][level]] for node in search.nodes)
        sizes = [(n, left[key]) for key, n in search.size.items() if key[0] == level]
        assert walk.fresh[i] == sum(n == size for size, n in sizes)
        assert walk.begun[i] == sum(0 < n < size for size, n in sizes)
    assert walk.rest == {node: search.totals[node] - sum(held) for node, held in taken.items()}
    if walk.mixed:
        assert walk.taken == {node: tuple(held) for node, held in taken.items()}
        # what each node may hold in the end: of its mixtures those that have room for what it has
        may = [
            [m for m in walk.mixtures[node] if all(a <= b for a, b in zip(held, m, strict=True))]
            for node, held in taken.items()
        ]
        assert walk.low == [sum(min(m[i] for m in held) for held in may) for i in range(count)]
        assert walk.high == [sum(max(m[i] for m in held) for held in may) for i in range(count)]
        assert all(lo <= n <= hi for lo, n, hi in zip(walk.low, search.wanted, walk.high, strict=True))


def test_counts_follow_every_step_and_every_step_back(monkeypatch: pytest.MonkeyPatch) -> None:
    take, untake = Walk._take, Walk._untake
    steps = {"on": 0, "refused": 0, "back": 0, "mixed": 0}

    def taking(walk: Walk, node: int) -> bool:
        done = take(walk, node)
        assert_counted(walk)
        steps["on" if done else "refused"] += 1
        steps["mixed"] += walk.mixed
        return done

    def taking_back(walk: Walk) -> None:
        untake(walk)
        assert_counted(walk)
        steps["back"] += 1

    monkeypatch.setattr(Walk, "_take", taking)
    monkeypatch.setattr(Walk, "_untake", taking_back)
    for seed in range(150):
        solve(replace(random_problem(seed), gather=True))
    assert steps["refused"] and min(steps["on"], steps["back"], steps["mixed"]) > 100, steps
