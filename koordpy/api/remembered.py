"""What is remembered for speed alone: bounded, and forgotten as a whole where much of what it was told of is gone.

Else names, amounts and templates of pods that are gone would stay among what is in use, each with a page of memory.
"""

from collections.abc import Callable
from functools import _lru_cache_wrapper, lru_cache
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_FORGET: list[Callable[[], object]] = []
turn = 0
"""How often all was forgotten: for what another thread remembers, and forgets itself."""


def remembered(most: int) -> "Callable[[Callable[P, T]], _lru_cache_wrapper[T]]":
    """Decorates a function of which so many answers are remembered, those that were asked for last."""

    def decorated(function: Callable[P, T]) -> "_lru_cache_wrapper[T]":
        known = lru_cache(maxsize=most)(function)
        forgotten_by(known.cache_clear)
        return known

    return decorated


def forgotten_by(forget: Callable[[], object]) -> None:
    """Has `forget` called with all others; also while the planner's thread goes on remembering."""
    _FORGET.append(forget)


def forget_all() -> None:
    """Forgets everything that is remembered so."""
    global turn
    turn += 1
    for forget in _FORGET:
        forget()
