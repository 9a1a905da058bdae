# SPDX-License-Identifier: Apache-2.0
"""Rings through many sets at once, against trying every order."""

from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpy.devices.links.link_rings import best_rings


def _brute(ranks: list[list[int]], gpus: tuple[int, ...]) -> int:
    first, *others = gpus
    return max(
        min(ranks[a][b] for a, b in zip((first, *order), (*order, first), strict=True))
        for order in permutations(others)
    )


@st.composite
def tables(draw: st.DrawFn) -> list[list[int]]:
    size = draw(st.integers(4, 7))
    rows = [[0] * size for _ in range(size)]
    for i, j in combinations(range(size), 2):
        rows[i][j] = rows[j][i] = draw(st.integers(0, 3))
    return rows


@given(tables(), st.data())
@settings(max_examples=120, deadline=None)
def test_the_ring_of_every_set_is_the_best_of_all_orders(ranks: list[list[int]], data: st.DataObject) -> None:
    size = data.draw(st.integers(4, len(ranks)))
    sets = sorted(combinations(range(len(ranks)), size), key=lambda gpus: sum(1 << i for i in gpus))
    masks = np.array([sum(1 << i for i in gpus) for gpus in sets], dtype=np.int64)
    brute = [_brute(ranks, gpus) for gpus in sets]
    assert best_rings(np.array(ranks, dtype=np.int64), masks, size).tolist() == brute
    only = best_rings(np.array(ranks, dtype=np.int64), masks, size, only_best=True).tolist()
    assert [one if one >= 0 else None for one in only] == [one if one == max(brute) else None for one in brute]


@pytest.mark.parametrize(
    ("edges", "ring"),
    [
        pytest.param([(i, (i + 1) % 8) for i in range(8)], 1, id="eight in a circle"),
        pytest.param([(i, i + 1) for i in range(7)], 0, id="a path is no ring"),
        pytest.param([(i, j) for i in range(3) for j in range(3, 8)], 0, id="three cannot stand between five"),
        pytest.param([(i, j) for i in range(4) for j in range(4, 8)], 1, id="four between four"),
    ],
)
def test_a_ring_goes_through_all_or_is_none(edges: list[tuple[int, int]], ring: int) -> None:
    ranks = np.zeros((8, 8), dtype=np.int64)
    for i, j in edges:
        ranks[i, j] = ranks[j, i] = 1
    assert best_rings(ranks, np.array([255], dtype=np.int64), 8).tolist() == [ring]
