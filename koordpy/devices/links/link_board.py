# SPDX-License-Identifier: Apache-2.0
"""Links and places of the devices of a node as numbers, with slowest pairs and sums of all sets of the given devices.

Nodes with equal boards share the arrays, and every result that depends on nothing else. A set is a bit mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from koordpy.devices.links.device_masks import Masks, bits_of
from koordpy.devices.links.link_pattern import Pattern
from koordpy.devices.links.link_tables import Tables, tables

NO_LIMIT = 1 << 40
"""Slowest link of a set without a pair."""
LEFT_SIZES = (8, 4, 2)
"""Sizes of the sets that the devices left are packed into."""


@dataclass(frozen=True)
class StatedLinks:
    """Links of one driver's devices that form no nested groups, because the node's Device states them or because of
    their places."""

    positions: tuple[int, ...]
    """Devices of the driver."""
    pattern: Pattern
    floors: tuple[int, ...]
    """kB/s of each class."""

    @cached_property
    def tables(self) -> Tables:
        """Tables over all sets of the driver's devices."""
        return tables(self.pattern)

    def in_table(self, mask: int) -> int:
        """Returns the driver's devices of a mask of the board, as a mask of `tables`."""
        return sum(1 << k for k, i in enumerate(self.positions) if mask >> i & 1)


@lru_cache(maxsize=64)
def table_masks(positions: tuple[int, ...], at: tuple[int, ...]) -> Masks:
    """Returns [all masks of `at`] each set as a mask of the tables over `positions`. Must not be changed."""
    out: Masks = np.zeros(1, dtype=np.int64)
    for i in at:
        bit = 1 << positions.index(i) if i in positions else 0
        out = np.concatenate([out, out | bit])
    return out


@dataclass(frozen=True)
class LinkBoard:
    """Links and places of the devices of a node, without names: nodes with equal boards share every choice."""

    drivers: tuple[int, ...]
    """[devices] number of the driver."""
    values: tuple[tuple[int, ...], ...]
    """[devices][lower devices] kB/s of each pair."""
    roots: tuple[int | None, ...]
    """[devices] number of the PCIe root; None for an unknown one."""
    numas: tuple[int | None, ...]
    """[devices] number of the NUMA node; None for an unknown one."""
    stated: tuple[StatedLinks, ...]
    """Drivers with links that form no nested groups."""

    @cached_property
    def _hash(self) -> int:
        return hash((self.drivers, self.values, self.roots, self.numas))

    def __hash__(self) -> int:
        return self._hash

    def value(self, i: int, j: int) -> int:
        """Returns kB/s of a pair."""
        return self.values[max(i, j)][min(i, j)]


@lru_cache(maxsize=64)
def pair_arrays(board: LinkBoard, at: tuple[int, ...]) -> "PairArrays":
    """Returns the arrays of the given devices of a board; cached."""
    return PairArrays(board, at)


class PairArrays:
    """Slowest pairs and sums of all sets of the given devices. A set is a mask of indexes of `at`."""

    def __init__(self, board: LinkBoard, at: Sequence[int]) -> None:
        self._board, self._at = board, at
        self.several = len({board.drivers[i] for i in at}) > 1

    def _is_pair(self, i: int, j: int, *, far: bool) -> bool:
        return (self._board.drivers[i] != self._board.drivers[j]) == far

    def slow(self, *, far: bool) -> NDArray[np.int64]:
        """Returns [all masks] kB/s of the slowest pair. far: True for pairs of different drivers, else of one
        driver."""
        return self._slow_far if far else self._slow_near

    def total(self, *, far: bool) -> NDArray[np.int64]:
        """Returns [all masks] the sum of kB/s over the pairs."""
        return self._total_far if far else self._total_near

    @cached_property
    def _slow_near(self) -> NDArray[np.int64]:
        return self._least(far=False)

    @cached_property
    def _slow_far(self) -> NDArray[np.int64]:
        return self._least(far=True)

    @cached_property
    def _total_near(self) -> NDArray[np.int64]:
        return self._sum(far=False)

    @cached_property
    def _total_far(self) -> NDArray[np.int64]:
        return self._sum(far=True)

    def _least(self, *, far: bool) -> NDArray[np.int64]:
        out = np.full(1, NO_LIMIT, dtype=np.int64)
        for bit, i in enumerate(self._at):
            row = np.full(1, NO_LIMIT, dtype=np.int64)
            for j in self._at[:bit]:
                value = self._board.value(i, j) if self._is_pair(i, j, far=far) else NO_LIMIT
                row = np.concatenate([row, np.minimum(row, value)])
            out = np.concatenate([out, np.minimum(out, row)])
        return out

    def _sum(self, *, far: bool) -> NDArray[np.int64]:
        out = np.zeros(1, dtype=np.int64)
        for bit, i in enumerate(self._at):
            row = np.zeros(1, dtype=np.int64)
            for j in self._at[:bit]:
                row = np.concatenate([row, row + (self._board.value(i, j) if self._is_pair(i, j, far=far) else 0)])
            out = np.concatenate([out, out + row])
        return out

    def slow_with(self, others: int, *, far: bool) -> NDArray[np.int64]:
        """Returns [all masks] `slow` of each set together with other devices (mask of the board). Must not be
        changed."""
        if not others:
            return self.slow(far=far)
        inner = [self._board.value(i, j) for i, j in combinations(bits_of(others), 2) if self._is_pair(i, j, far=far)]
        out = np.full(1, min(inner, default=NO_LIMIT), dtype=np.int64)
        for i in self._at:
            near = (self._board.value(i, j) for j in bits_of(others) if j != i and self._is_pair(i, j, far=far))
            out = np.concatenate([out, np.minimum(out, min(near, default=NO_LIMIT))])
        return np.minimum(out, self.slow(far=far))

    def total_with(self, others: int, *, far: bool) -> NDArray[np.int64]:
        """Returns [all masks] `total` of each set together with other devices (mask of the board). Must not be
        changed."""
        if not others:
            return self.total(far=far)
        inner = [self._board.value(i, j) for i, j in combinations(bits_of(others), 2) if self._is_pair(i, j, far=far)]
        out = np.full(1, sum(inner), dtype=np.int64)
        for i in self._at:
            near = (self._board.value(i, j) for j in bits_of(others) if j != i and self._is_pair(i, j, far=far))
            out = np.concatenate([out, out + sum(near)])
        return out + self.total(far=far)

    # -- packings by places --------------------------------------------------------------------------------------------

    def packings(self, here: int) -> "PlacePackings":
        """Returns how sets fit into the given devices (mask of indexes), by their places."""
        groups = []
        for places in (self._board.roots, self._board.numas):
            by: dict[int, int] = {}
            for k, i in enumerate(self._at):
                place = places[i]
                if here >> k & 1 and place is not None:
                    by[place] = by.get(place, 0) | 1 << k
            groups.append(tuple(by.values()))
        return PlacePackings(groups[0], groups[1], here)


@dataclass(frozen=True)
class PlacePackings:
    """How many disjoint sets fit into devices with links that follow from their PCIe roots and NUMA nodes."""

    roots: tuple[int, ...]
    """Mask of the devices of each PCIe root."""
    numas: tuple[int, ...]
    """Mask of the devices of each NUMA node."""
    every: int
    """Mask of all devices."""

    def packed(self, rest: Masks, size: int, level: int) -> NDArray[np.int64]:
        """Returns, for each set in `rest`, how many more disjoint subsets of a size fit at a level than at the levels
        below.

        level: 0 for one root, 1 for one NUMA node, 2 for known NUMA nodes, 3 for unknown links.
        """
        levels = (self.roots, self.numas, (sum(self.numas),), (self.every,))[: level + 1]
        before = out = np.zeros(len(rest), dtype=np.int64)
        for some in levels:
            total = np.zeros(len(rest), dtype=np.int64)
            for one in some:
                total += np.bitwise_count(rest & one) // size
            out = np.maximum(total - before, 0)
            before = np.maximum(before, total)
        return out
