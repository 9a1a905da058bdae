"""What is remembered for speed alone: bounded, and forgotten as a whole where much of what it was told of is gone; or
for as long as an object lives.

Else names, amounts and templates of pods that are gone would stay among what is in use, each with a page of memory.
"""

from collections.abc import Callable, Hashable
from functools import _lru_cache_wrapper, lru_cache
from typing import ParamSpec, TypeVar
from weakref import ref

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
M = TypeVar("M")
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


def once(read: Callable[[K, M], T]) -> Callable[[K, M], T]:
    """`read(how, metadata)`, remembered by what it is given; a metadata that changed is another object."""
    known: dict[tuple[K, int], tuple[ref[M], T]] = {}

    def remembered(how: K, meta: M) -> T:
        key = how, id(meta)
        found = known.get(key)
        if found is not None and found[0]() is meta:
            return found[1]
        value = read(how, meta)
        # it is called before the id is given to another object
        known[key] = ref(meta, lambda _: known.pop(key, None)), value
        return value

    return remembered
