# SPDX-License-Identifier: Apache-2.0
"""Counts by two keys (such as label set and node) that are updated per event, and that snapshots read unchanged.

Filters about other pods need such counts: pods of one label set on each node, users of a host port, users of a claim. A
snapshot must not change while it is read, but copying every count for each snapshot would take longer than planning. So
`frozen` copies only the entries that changed since its last call.
"""

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
S = TypeVar("S", bound=Hashable)


class Tally(Generic[K, S]):
    """Counts by key and sub-key, such as label set and node name. Entries of 0 are left out."""

    __slots__ = ("_counts", "_dirty", "_frozen")

    def __init__(self) -> None:
        self._counts: dict[K, dict[S, int]] = {}
        self._frozen: dict[K, Mapping[S, int]] = {}
        self._dirty: set[K] = set()

    def add(self, key: K, sub: S, amount: int) -> None:
        """Adds an amount, which may be negative."""
        self.add_all(key, {sub: amount}, 1)

    def add_all(self, key: K, amounts: Mapping[S, int], sign: int) -> None:
        """Adds (sign 1) or subtracts (sign -1) amounts by sub-key."""
        inner = self._counts.get(key)
        if inner is None:
            inner = self._counts[key] = {}
        for sub, amount in amounts.items():
            total = inner.get(sub, 0) + sign * amount
            if total:
                inner[sub] = total
            else:
                inner.pop(sub, None)
        if not inner:
            del self._counts[key]
        self._dirty.add(key)

    def frozen(self) -> Mapping[K, Mapping[S, int]]:
        """Returns the current counts. The result never changes."""
        if self._dirty:
            out = self._frozen.copy()
            for key in self._dirty:
                inner = self._counts.get(key)
                if inner is None:
                    out.pop(key, None)
                else:
                    out[key] = inner.copy()
            self._frozen = out
            self._dirty.clear()
        return self._frozen


def counts_without(
    counts: Mapping[K, Mapping[S, int]], gone: Mapping[K, Mapping[S, int]]
) -> Mapping[K, Mapping[S, int]]:
    """Returns the counts after the amounts in `gone` are subtracted. Zeros, and keys without sub-keys, are left out."""
    if not gone:
        return counts
    out = dict(counts)
    for key, amounts in gone.items():
        left = dict(out.get(key, {}))
        for sub, amount in amounts.items():
            rest = left.get(sub, 0) - amount
            if rest:
                left[sub] = rest
            else:
                left.pop(sub, None)
        if left:
            out[key] = left
        else:
            out.pop(key, None)
    return out
