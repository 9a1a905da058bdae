# SPDX-License-Identifier: Apache-2.0
"""Zone sets of a node as masks: bit i is the i-th zone by number.

The kubelet compares zone sets by their size, then by the sum of 2^number. For sets of one size the order of the masks
is the order of these sums, because positions ascend with numbers.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

MOST_ZONES = 16
"""Largest number of zones of a node; a report with more is ignored (numa.md 1)."""


@lru_cache(maxsize=MOST_ZONES + 1)
def sets_by_size(zones: int) -> tuple[tuple[int, ...], ...]:
    """Returns [size] the zone sets of that size, in the kubelet's order. zones: number of zones, at most
    `MOST_ZONES`."""
    found: list[list[int]] = [[] for _ in range(zones + 1)]
    for mask in range(1 << zones):
        found[mask.bit_count()].append(mask)
    return tuple(map(tuple, found))


@lru_cache(maxsize=1 << 16)
def zones_in(mask: int) -> tuple[int, ...]:
    """Returns the positions of the zones of a set, ascending."""
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


def sum_in(amounts: Sequence[int], mask: int) -> int:
    """Returns the sum of amounts over a zone set. amounts: [zones]."""
    return sum(amounts[i] for i in zones_in(mask))


def all_sets(zones: int) -> Iterator[int]:
    """Yields all zone sets that are not empty, in the kubelet's order."""
    for sets in sets_by_size(zones)[1:]:
        yield from sets
