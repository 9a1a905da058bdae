# SPDX-License-Identifier: Apache-2.0
"""The best ring through each of many sets of GPUs at once (gpu-topology.md 4, rule 3).

A ring visits each GPU of a set once, as ring all-reduce does; it is a Hamiltonian cycle. The best ring is the one with
the fastest slowest hop. For each link class, dynamic programming over subsets decides if there is a ring without slower
hops. All sets are processed together: each bit of a long integer represents a set, so one step is an AND and an OR for
all sets. O(classes x 2^size x size^2) steps.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from koordpy.devices.links.device_masks import Masks, members


def best_rings(ranks: NDArray[np.int64], masks: Masks, size: int, *, only_best: bool = False) -> NDArray[np.int64]:
    """Returns [sets] class of the slowest hop of the best ring through each set.

    ranks: [GPUs, GPUs] class of each pair. masks: sets of one size, 4 or more. only_best: stop at the best class that
    any set reaches; the other sets get -1.
    """
    flat, at = ranks.ravel(), members(masks, size).T
    pairs = [[flat[at[i] * len(ranks) + at[j]] for j in range(i)] for i in range(size)]
    present = np.zeros(int(ranks.max()) + 1, dtype=bool)
    for row in pairs:
        for one in row:
            present[one] = True
    out = np.full(len(masks), -1, dtype=np.int64)
    left = (1 << len(masks)) - 1
    for threshold in np.flatnonzero(present)[::-1].tolist():
        near = [[_pack_flags(one >= threshold) & left for one in row] for row in pairs]
        found = _with_ring(near, size) & left
        if found:
            out[_unpack_flags(found, len(masks))] = threshold
            left &= ~found
            if only_best or not left:
                break
    return out


def _with_ring(near: Sequence[Sequence[int]], size: int) -> int:
    """Returns the sets (bits of an integer) that have a ring of near pairs.

    near[i][j], j < i: the sets in which the i-th and j-th GPU are near. Paths start at the last GPU of a set; no ring
    is missed by that, because a ring may start at any GPU.
    """
    last = size - 1
    # ways[inner][i]: sets with a path from their last GPU through all of `inner` that ends at their i-th
    ways: list[list[int]] = [[]] * (1 << last)
    for inner in range(1, 1 << last):
        row = [0] * last
        for i in range(last):
            if not inner >> i & 1:
                continue
            before = inner ^ 1 << i
            if not before:
                row[i] = near[last][i]
                continue
            reached = 0
            for j, way in enumerate(ways[before]):
                if way:
                    reached |= way & (near[i][j] if j < i else near[j][i])
            row[i] = reached
        ways[inner] = row
    out = 0
    for i, way in enumerate(ways[-1]):
        out |= way & near[last][i]
    return out


def _pack_flags(flags: NDArray[np.bool_]) -> int:
    """Returns flags as an integer: bit k is flag k."""
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


def _unpack_flags(number: int, count: int) -> NDArray[np.bool_]:
    """Returns the lowest `count` bits of an integer as flags."""
    raw = np.frombuffer(number.to_bytes((count + 7) // 8, "little"), dtype=np.uint8)
    return np.unpackbits(raw, count=count, bitorder="little").astype(bool)
