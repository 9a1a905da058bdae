# SPDX-License-Identifier: Apache-2.0
"""For every set of GPUs of a machine, how well it is linked: its slowest pair, its best ring, its best packing.

A set is a bit mask. A table has one entry for each of the 2^n masks: shape [all masks], while [sets] is the shape of
results for a list of sets. Tables are computed once per pattern and shared by every machine with it, for up to
EXACT_GPUS GPUs. Source: gpu-topology.md 4.
"""

from functools import cached_property, lru_cache
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koordpy.devices.links.device_masks import Masks, bits_of, masks_of_size, parts
from koordpy.devices.links.link_pattern import Pattern
from koordpy.devices.links.link_rings import best_rings
from koordpy.plan.limits import EXACT_GPUS, GPU_RING


@lru_cache(maxsize=1024)
def tables(pattern: Pattern) -> "Tables":
    """Returns the tables of a pattern; one object for equal patterns."""
    return Tables(pattern)


class Tables:
    """Tables of one pattern.

    Classes are 0, the slowest, to `classes` - 1. The number `classes` itself means no limit, as for a single GPU.
    """

    def __init__(self, pattern: Pattern) -> None:
        if pattern.size > EXACT_GPUS:
            raise ValueError(f"{pattern.size} GPUs, tables support at most {EXACT_GPUS}")
        self.pattern = pattern
        self.size, self.classes = pattern.size, pattern.classes
        self._packed: dict[int, NDArray[Any]] = {}
        """Size -> result of `packed`."""
        self._ranks = np.array([list(row) for row in pattern.ranks], dtype=np.int64)

    @cached_property
    def low(self) -> NDArray[np.int64]:
        """[all masks] class of the slowest pair."""
        out = np.full(1, self.classes, dtype=np.int64)
        for bit in range(self.size):
            row = np.full(1, self.classes, dtype=np.int64)
            for other in range(bit):
                row = np.concatenate([row, np.minimum(row, self.pattern.ranks[bit][other])])
            out = np.concatenate([out, np.minimum(out, row)])
        return out

    @cached_property
    def low_list(self) -> list[int]:
        """`low` as Python integers, for single look-ups."""
        return [int(value) for value in self.low.tolist()]

    @cached_property
    def _rings(self) -> NDArray[np.int64]:
        """[all masks] results of `rings`; -1 if not computed yet."""
        return np.full(1 << self.size, -1, dtype=np.int64)

    def rings(self, masks: Masks, *, only_best: bool = False) -> NDArray[np.int64]:
        """Returns [sets] class of the slowest hop of the best ring through each set; `classes` for sets of more than
        GPU_RING GPUs.

        masks: sets of one size. A ring of up to three GPUs uses all pairs, so its value is `low`. only_best: True if
        only the sets with the best value need exact values; the values of others may be too low.
        """
        size = int(masks[0]).bit_count() if len(masks) else 0
        if size <= 3:
            return self.low[masks]
        if size > GPU_RING:
            return np.full(len(masks), self.classes, dtype=np.int64)
        known = self._rings[masks]
        new = known < 0
        if new.any():
            if only_best:
                return best_rings(self._ranks, masks, size, only_best=True)
            known[new] = self._rings[masks[new]] = best_rings(self._ranks, masks[new], size)
        return known

    def packed(self, size: int) -> NDArray[Any]:
        """Returns [all masks] value of the best packing of disjoint subsets of a size into each set.

        The class of a subset is that of its slowest pair. A packing with more subsets of the highest class is better,
        then with more of the next class. Larger values are better; only values of one size are comparable.
        """
        if size not in self._packed:
            self._packed[size] = self._pack(size)
        return self._packed[size]

    def _pack(self, size: int) -> NDArray[Any]:
        """Computes `packed` by dynamic programming over the number of packed subsets.

        The value of one subset is base^i: its class is the i-th, from 0, of the classes that occur. The base exceeds
        the possible number of subsets. So values of disjoint subsets add up without a carry.
        """
        single = masks_of_size(self.size, size)
        found, digit = np.unique(self.low[single], return_inverse=True)
        base = self.size // size + 1
        top = base ** len(found)
        kind = np.int32 if top < 1 << 30 else np.int64 if top < 1 << 62 else object
        out = np.zeros(1 << self.size, dtype=kind)
        worth = np.array([base**i for i in range(len(found))], dtype=kind)[digit]
        out[single] = worth
        for number in range(2, self.size // size + 1):
            masks = masks_of_size(self.size, number * size)
            best = np.zeros(len(masks), dtype=kind)
            for own in parts(self.size, masks, size):
                best = np.maximum(best, (out[own] + out[own ^ masks]).max(axis=0))
            out[masks] = best
        # a set is worth at least as much as each of its subsets
        for bit in range(self.size):
            halves = out.reshape(-1, 2, 1 << bit)
            halves[:, 1] = np.maximum(halves[:, 1], halves[:, 0])
        return out

    def is_flat(self, mask: int) -> bool:
        """Returns whether all pairs of a set have one class."""
        if self.classes == 1 or mask.bit_count() < 3:
            return True
        gpus = bits_of(mask)
        first = self.pattern.ranks[gpus[0]][gpus[1]]
        return all(self.pattern.ranks[i][j] == first for i, j in combinations(gpus, 2))
