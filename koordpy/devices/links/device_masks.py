# SPDX-License-Identifier: Apache-2.0
"""Sets of GPUs as bit masks: all sets of a size, and the ways to take a part out of each set.

The tables depend only on the number of GPUs of a machine. They are built once per process, for up to EXACT_GPUS GPUs.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from koordpy.plan.limits import EXACT_GPUS, MASKS_AT_ONCE

Masks = NDArray[np.int64]
"""[sets] bit mask of each set."""


def bits_of(mask: int) -> list[int]:
    """Returns the positions in a set, ascending."""
    out = []
    while mask:
        low = mask & -mask
        out.append(low.bit_length() - 1)
        mask ^= low
    return out


@lru_cache(maxsize=EXACT_GPUS + 1)
def _sizes(count: int) -> NDArray[np.int64]:
    """Returns [all masks] number of GPUs of each of the 2^count sets."""
    return np.bitwise_count(np.arange(1 << count, dtype=np.int64)).astype(np.int64)


@lru_cache(maxsize=256)
def masks_of_size(count: int, size: int) -> Masks:
    """Returns every set of a size out of `count` GPUs, ascending as numbers."""
    found: Masks = np.nonzero(_sizes(count) == size)[0]
    return found


@lru_cache(maxsize=EXACT_GPUS + 1)
def reversed_bits(count: int) -> Masks:
    """Returns each mask with its bits reversed: among sets of a size, the largest result has the lowest GPUs."""
    out = np.zeros(1, dtype=np.int64)
    for bit in range(count):
        out = np.concatenate([out, out | 1 << (count - 1 - bit)])
    return out


def members(masks: Masks, size: int) -> NDArray[np.int64]:
    """Returns [sets, size] the positions in each set, ascending. masks: sets of one size."""
    out = np.empty((len(masks), size), dtype=np.int64)
    rest = masks.copy()
    for i in range(size):
        lowest = rest & -rest
        out[:, i] = np.bitwise_count(lowest - 1)
        rest ^= lowest
    return out


@lru_cache(maxsize=64)
def _parts(count: int, total: int, size: int) -> NDArray[np.uint16]:
    """Returns [ways, sets] the parts of `size` that contain the lowest GPU, for all sets of `total` out of `count`
    GPUs. Ways are in the order of `itertools.combinations`.

    Parts grow by one position at a time, all ways and sets at once: one numpy call for each way takes much longer.
    """
    at = np.ascontiguousarray(np.left_shift(1, members(masks_of_size(count, total), total)).astype(np.uint16).T)
    rows, last = at[:1], np.zeros(1, dtype=np.int64)
    for chosen in range(1, size):
        # a part may continue with each position after its last one that leaves enough positions for the rest
        number = total - size + chosen - last
        before = np.repeat(np.arange(len(last)), number)
        last = last[before] + 1 + np.arange(len(before)) - np.repeat(np.cumsum(number) - number, number)
        rows = rows[before] | at[last]
    return rows


def parts(count: int, masks: Masks, size: int) -> Iterator[Masks]:
    """Yields [ways, sets] the parts of a size that contain the lowest GPU of each set, some ways at once.

    Only parts with the lowest GPU are needed, because the parts of a division have no order, so that part can always be
    listed first. masks: sets of one size, ascending as numbers. Ways are yielded in slices, because allocating one
    large array takes longer than the computation.
    """
    total = int(masks[0]).bit_count()
    known = masks_of_size(count, total)
    rows = _parts(count, total, size)
    if len(masks) < len(known):
        rows = rows[:, np.searchsorted(known, masks)]
    step = max(1, MASKS_AT_ONCE // len(masks))
    for at in range(0, len(rows), step):
        yield rows[at : at + step].astype(np.int64)
