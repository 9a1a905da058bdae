# SPDX-License-Identifier: Apache-2.0
"""Which of many names a metric shows: never more than its bound, and the same ones for as long as they are there."""

from __future__ import annotations

import random

from koordpy.observe.bounded_labels import LETTERS, FewNames, label


def test_the_first_in_natural_order_are_named_and_stay_named() -> None:
    few = FewNames[str](2, str)
    assert few.choose({"g-10", "g-9", "g-2"}) == ["g-2", "g-9"]
    assert few.choose({"g-10", "g-9", "g-2", "g-1"}) == ["g-2", "g-9"]
    assert few.choose({"g-10", "g-9", "g-1"}) == ["g-9", "g-1"]
    assert few.choose(set()) == []
    assert few.choose({"g-10"}) == ["g-10"]


def test_names_that_come_and_go_are_never_more_than_the_bound_and_none_is_left_out_where_there_is_a_place() -> None:
    dice, few, there = random.Random(4), FewNames[str](5, str), set[str]()
    before: list[str] = []
    for _ in range(3000):
        name = f"n{dice.randrange(12)}"
        there ^= {name}
        chosen = few.choose(there)
        assert len(chosen) == len(set(chosen)) == min(5, len(there))
        assert set(chosen) <= there
        assert [one for one in before if one in there] == chosen[: len([one for one in before if one in there])]
        before = chosen


def test_a_label_is_cut() -> None:
    assert label("a/b") == "a/b"
    assert label("x" * 100_000) == "x" * (LETTERS - 3) + "..."
