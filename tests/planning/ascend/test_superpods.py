# SPDX-License-Identifier: Apache-2.0
"""How many blocks each SuperPoD gives (ascend.md 5.1), against trying every division."""

from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from koordpy.devices.ascend.tables.superpod_shares import Grid, divide_blocks, divide_short_blocks


def divisions(most: list[int], need: int) -> Iterator[list[int]]:
    """Every way to take `need` blocks."""
    if not most:
        if need == 0:
            yield []
        return
    for own in range(min(most[0], need) + 1):
        for rest in divisions(most[1:], need - own):
            yield [own, *rest]


def key(nodes: int, share: int, size: int, reserve: int) -> tuple[int, int, int]:
    """As the specification words it."""
    spare = nodes - reserve
    row, column = (nodes % size, 0) if spare < 0 else (spare % size, spare // size)
    if share <= column <= share + 1:
        return 0, row, column
    return (1, column, row) if column > share + 1 else (2, -nodes, 0)


def best(sizes: list[int], need: int, size: int, reserve: int) -> list[tuple[int, int]] | None:
    """The best division by the levels, one after the other."""
    found = list(divisions([nodes // size for nodes in sizes], need))
    if not found:
        return None
    ranked = []
    for shares in found:
        eaten = sum(max(0, x - max(0, (nodes - reserve) // size)) for x, nodes in zip(shares, sizes, strict=True))
        used = [(x, i) for i, x in enumerate(shares) if x]
        used.sort(key=lambda pair: (-pair[0], key(sizes[pair[1]], pair[0], size, reserve), pair[1]))
        vector = tuple(-x for x, _ in used)
        keys = tuple(key(sizes[i], x, size, reserve) for x, i in used)
        ranked.append((eaten, len(used), vector, keys, tuple(i for _, i in used), used))
    return [(i, x) for x, i in min(ranked)[-1]]


@given(
    st.lists(st.integers(0, 14), min_size=1, max_size=5),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(0, 3),
)
@example([9, 16, 17], 2, 8, 2)
@example([10, 16, 18], 2, 8, 2)
@example([3, 3, 5, 5, 7], 6, 2, 3)
def test_the_division_is_the_best_of_all(sizes: list[int], need: int, size: int, reserve: int) -> None:
    assert divide_blocks(sizes, need, Grid(size, reserve)) == best(sizes, need, size, reserve)


def test_one_superpod_of_each_size_is_preferred_in_the_published_order() -> None:
    """Worked example 12: the next best is what remains when the best is gone."""
    left = list(range(18, 49))
    order = []
    while left:
        found = divide_blocks(left, 2, Grid(8, 2))
        assert found is not None and len(found) == 1
        order.append(left.pop(found[0][0]))
    rows = [size for pair in zip(range(18, 26), range(26, 34), strict=True) for size in pair]
    assert order == rows + list(range(34, 49))


@pytest.mark.parametrize(
    ("sizes", "want"),
    [([9, 16, 17], [(1, 1), (2, 1)]), ([10, 16, 18], [(2, 2)])],
    ids=["no reserve is touched", "one holds both"],
)
def test_reserve_comes_before_fewest(sizes: list[int], want: list[tuple[int, int]]) -> None:
    """Worked example 13."""
    found = divide_blocks(sizes, 2, Grid(8, 2))
    assert found is not None and sorted(found) == want


def test_hard_and_soft_of_worked_example_14() -> None:
    grid = Grid(16, 2)
    assert divide_blocks([16, 10, 6], 2, grid) is None
    assert divide_blocks([16, 10, 6], 1, grid) == [(0, 1)]
    assert divide_short_blocks([0, 10, 6], [True, False, False], 16, grid) == [(1, 10), (2, 6)]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 30), st.integers(2, 8))
def test_short_blocks_take_the_largest_remainders_first(left: list[int], missing: int, size: int) -> None:
    left = [nodes % size for nodes in left]
    found = divide_short_blocks(left, [False] * len(left), missing, Grid(size, 0))
    if sum(left) < missing:
        assert found is None
        return
    assert found is not None
    assert sum(taken for _, taken in found) == missing
    assert [left[i] for i, _ in found] == sorted((left[i] for i, _ in found), reverse=True)
    assert all(taken == left[i] for i, taken in found[:-1])
