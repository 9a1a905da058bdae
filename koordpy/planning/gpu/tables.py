"""What sets of a machine's GPUs are worth by the pattern of its links: slowest pair, best ring, packings of the rest.

Source: gpu-topology.md section 4. A set is a mask of bits. Tables over all masks are made once a pattern and shared by
every machine of the pattern; up to EXACT GPUs.
"""

from functools import cached_property, lru_cache
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koordpy.cluster.gpus import Pattern

EXACT = 16
"""GPUs of a machine up to which tables over all sets are made."""
RING_LIMIT = 8
"""Rings of larger sets all count as equal."""

Masks = NDArray[np.int64]


@lru_cache(maxsize=1024)
def tables(pattern: Pattern) -> "Tables":
    """The tables of a pattern of up to EXACT GPUs."""
    return Tables(pattern)


@lru_cache(maxsize=EXACT + 1)
def _sizes(count: int) -> NDArray[np.int64]:
    return np.bitwise_count(np.arange(1 << count, dtype=np.int64)).astype(np.int64)


@lru_cache(maxsize=256)
def masks_of_size(count: int, size: int) -> Masks:
    """Every set of a size out of `count` GPUs, ascending as numbers."""
    return np.nonzero(_sizes(count) == size)[0]


@lru_cache(maxsize=EXACT + 1)
def reversed_bits(count: int) -> Masks:
    """Number of each mask with its bits turned round: of sets of a size the largest has the lowest GPUs."""
    out = np.zeros(1, dtype=np.int64)
    for bit in range(count):
        out = np.concatenate([out, out | 1 << (count - 1 - bit)])
    return out


def bits_of(mask: int) -> list[int]:
    """Positions in a set, ascending."""
    out = []
    while mask:
        low = mask & -mask
        out.append(low.bit_length() - 1)
        mask ^= low
    return out


class Tables:
    """Classes go from 0, the slowest, to `classes` - 1; `classes` itself stands for no limit (a single GPU)."""

    def __init__(self, pattern: Pattern) -> None:
        if pattern.size > EXACT:
            raise ValueError(f"{pattern.size} GPUs, tables hold {EXACT}")
        self.pattern = pattern
        self.size, self.classes = pattern.size, pattern.classes
        self._rings: dict[int, int] = {}

    @cached_property
    def low(self) -> NDArray[np.int64]:
        """[sets] class of the slowest pair."""
        out = np.full(1, self.classes, dtype=np.int64)
        for bit in range(self.size):
            row = np.full(1, self.classes, dtype=np.int64)
            for other in range(bit):
                row = np.concatenate([row, np.minimum(row, self.pattern.ranks[bit][other])])
            out = np.concatenate([out, np.minimum(out, row)])
        return out

    @cached_property
    def low_list(self) -> list[int]:
        """`low` as plain numbers, for single look-ups."""
        return [int(value) for value in self.low]

    def ring(self, mask: int) -> int:
        """Class of the slowest hop of the best ring through a set; `classes` where rings do not count."""
        size = mask.bit_count()
        if size <= 3:
            return self.low_list[mask]
        if size > RING_LIMIT:
            return self.classes
        found = self._rings.get(mask)
        if found is None:
            found = self._rings[mask] = self._best_ring(mask)
        return found

    def _best_ring(self, mask: int) -> int:
        ranks, nodes, low = self.pattern.ranks, bits_of(mask), self.low_list[mask]
        # every GPU has two hops, so its second best link bounds the ring
        most = min(sorted((ranks[i][j] for j in nodes if j != i), reverse=True)[1] for i in nodes)
        for threshold in sorted({ranks[i][j] for i, j in combinations(nodes, 2)}, reverse=True):
            if threshold <= low:
                break
            if threshold > most:
                continue
            near = {i: sum(1 << j for j in nodes if j != i and ranks[i][j] >= threshold) for i in nodes}
            if _has_ring(near, mask):
                return threshold
        return low

    def packed(self, size: int) -> NDArray[Any]:
        """[sets] what disjoint sets of a size packed into each are worth: most of the highest class, then of the next.

        Larger is better; only figures of one size compare.
        """
        return self._packed_eight if size == 8 else self._packed_four if size == 4 else self._packed_two

    @cached_property
    def _packed_eight(self) -> NDArray[Any]:
        """One set at most fits where something is given: the best class, plus one, over the subsets."""
        masks = masks_of_size(self.size, 8)
        out = np.zeros(1 << self.size, dtype=np.int64)
        out[masks] = self.low[masks] + 1
        for bit in range(self.size):
            halves = out.reshape(-1, 2, 1 << bit)
            halves[:, 1] = np.maximum(halves[:, 1], halves[:, 0])
        return out

    @cached_property
    def _packed_four(self) -> NDArray[Any]:
        return self._pack(4)

    @cached_property
    def _packed_two(self) -> NDArray[Any]:
        return self._pack(2)

    def _pack(self, size: int) -> NDArray[Any]:
        base = self.size // size + 1
        wide = base**self.classes >= 1 << 62
        out = np.zeros(1 << self.size, dtype=object if wide else np.int64)
        for bit in range(size - 1, self.size):
            rests = np.arange(1 << bit, dtype=np.int64)
            block = out[1 << bit : 2 << bit]
            block[:] = out[: 1 << bit]
            for others in combinations(range(bit), size - 1):
                inner = sum(1 << j for j in others)
                worth = base ** self.low_list[inner | 1 << bit]
                at = rests[(rests & inner) == inner]
                block[at] = np.maximum(block[at], out[at ^ inner] + worth)
        return out

    def is_flat(self, mask: int) -> bool:
        """Whether all pairs of a set are of one class."""
        if self.classes == 1 or mask.bit_count() < 3:
            return True
        nodes = bits_of(mask)
        first = self.pattern.ranks[nodes[0]][nodes[1]]
        return all(self.pattern.ranks[i][j] == first for i, j in combinations(nodes, 2))


def _has_ring(near: dict[int, int], mask: int) -> bool:
    """Whether a ring goes through all of a set along the given neighbours."""
    start = (mask & -mask).bit_length() - 1
    home = near[start]

    def walk(at: int, left: int) -> bool:
        if not left:
            return bool(home >> at & 1)
        steps = near[at] & left
        while steps:
            step = steps & -steps
            if walk(step.bit_length() - 1, left ^ step):
                return True
            steps ^= step
        return False

    return walk(start, mask ^ 1 << start)
