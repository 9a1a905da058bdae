# SPDX-License-Identifier: Apache-2.0
"""Caches of pure functions, such as parsing a quantity, with bounded memory.

`cached` limits the number of entries of a cache. `forget_all` clears all such caches at once: an old entry that remains
would prevent the release of the whole memory page that it is on, so that memory would grow. `shared` and `HashedOnce`
make values cheap keys of such caches. `once` caches a value as long as the object exists from which it was read.
"""

from collections.abc import Callable, Hashable
from dataclasses import fields
from functools import _lru_cache_wrapper, cached_property, lru_cache
from typing import Any, ParamSpec, TypeVar, cast
from weakref import ref

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
M = TypeVar("M")
_FORGET: list[Callable[[], object]] = []
"""One function for each registered cache: it clears the cache."""
turn = 0
"""Number of times that all caches were cleared. Another thread reads it to clear its own caches."""


def cached(most: int) -> "Callable[[Callable[P, T]], _lru_cache_wrapper[T]]":
    """Decorates a pure function with a cache of the results for the `most` arguments that were used last."""

    def decorated(function: Callable[P, T]) -> "_lru_cache_wrapper[T]":
        known = lru_cache(maxsize=most)(function)
        forgotten_by(known.cache_clear)
        return known

    return decorated


def forgotten_by(forget: Callable[[], object]) -> None:
    """Registers a function that clears a cache, for `forget_all`.

    The function must be safe while another thread, such as the planner's, fills the cache.
    """
    _FORGET.append(forget)


def forget_all() -> None:
    """Clears all registered caches."""
    global turn
    turn += 1
    for forget in _FORGET:
        forget()


class HashedOnce:
    """Base class of frozen dataclasses that are keys of many look-ups: the hash is computed once.

    A subclass sets `__hash__ = HashedOnce.__hash__`, because `dataclass` would replace it.
    """

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, one.name) for one in fields(cast(Any, self))))

    def __hash__(self) -> int:
        return self._hash


_first_of_equals = cached(1 << 14)(lambda value: value)


def shared(value: K) -> K:
    """Returns one object for all equal values, as far as they are cached, so that comparing them is comparing
    identities."""
    return cast(K, _first_of_equals(value))


def once(read: Callable[[K, M], T]) -> Callable[[K, M], T]:
    """Returns the function `read(how, metadata)` with a cache.

    The key is `how` and the identity of the metadata object: wire objects are immutable, so changed metadata is another
    object. An entry is removed when its metadata object is garbage-collected.
    """
    known: dict[tuple[K, int], tuple[ref[M], T]] = {}

    def remembered(how: K, meta: M) -> T:
        key = how, id(meta)
        found = known.get(key)
        if found is not None and found[0]() is meta:
            return found[1]
        value = read(how, meta)
        # the weak reference's callback runs before another object can get the same id
        known[key] = ref(meta, lambda _: known.pop(key, None)), value
        return value

    return remembered
