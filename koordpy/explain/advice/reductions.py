# SPDX-License-Identifier: Apache-2.0
"""Reduces a number or a list to the smallest that still helps, with few trials: bisection, then single steps.

`helps` is a function that tries a number or list and returns True if it helps. The cost is O(log n + result) trials.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def lowest(low: int, high: int, helps: Callable[[int], bool]) -> int:
    """Returns the smallest number above `low` that helps, by bisection; `high` is known to help, `low` not to help."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if helps(middle) else (middle, high)
    return high


def shortest_start(items: Sequence[T], helps: Callable[[Sequence[T]], bool]) -> list[T]:
    """Returns the shortest beginning of a list that helps. The whole list is known to help."""
    return list(items[: lowest(0, len(items), lambda number: helps(items[:number]))])


def without_unneeded(items: Sequence[T], helps: Callable[[Sequence[T]], bool]) -> list[T]:
    """Returns the items without those that are not needed, tried one by one. All items are known to help."""
    chosen = list(items)
    for item in tuple(items):
        left = [one for one in chosen if one is not item]
        if left and helps(left):
            chosen = left
    return chosen
