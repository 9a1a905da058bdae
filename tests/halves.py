# SPDX-License-Identifier: Apache-2.0
"""Which half of a random family a Python plays.

The two versions that `.ci/run` tries, 3.11 and 3.13, together play all. Only a family that takes seconds is divided.
A seed that once showed a fault is played on every Python.
"""

import os
import sys
from collections.abc import Sequence
from typing import TypeVar

ALL = bool(os.environ.get("KOORDPY_ALL_SEEDS"))
"""True if this Python plays every family in full."""

Played = TypeVar("Played")


def own_half(seeds: Sequence[Played]) -> Sequence[Played]:
    """Returns the seeds whose index has an even number of 1 bits on Python 3.12 and 3.13, the others on Python 3.11.

    Both halves have even and odd seeds, because a family may derive an option from `seed % 2`. Every Python plays a
    lone seed, and all seeds if KOORDPY_ALL_SEEDS is set.
    """
    if ALL or len(seeds) < 2:
        return seeds
    half = sys.version_info.minor // 2 % 2
    return [seed for index, seed in enumerate(seeds) if index.bit_count() % 2 == half]
