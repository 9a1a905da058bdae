# SPDX-License-Identifier: Apache-2.0
"""Partition tables: the sets of a node's GPUs that are meant to be allocated together (gpu-topology.md 8).

Some machines can isolate only certain sets of GPUs. A table lists these sets by their number of GPUs. It is an
annotation of the Device, or built in for a known GPU model.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from koordpy.api.quantity import units

BUILT_IN_MODELS = frozenset({"H100", "H800", "H20"})
"""Words in the node label of the GPU model that select the built-in table."""
BUILT_IN_SIZES = (1, 2, 4, 8, 16)
"""Sizes of the sets of the built-in table."""
SCORE_SCALE = 1000
"""Factor by which allocationScore becomes a whole number."""
_WORDS = re.compile(r"[A-Za-z0-9]+")


@dataclass(frozen=True, slots=True)
class Partition:
    """A set of a partition table: GPUs that may be allocated together."""

    mask: int
    """Mask of the positions of its GPUs."""
    size: int
    """Number of its GPUs."""
    score: int
    """allocationScore in thousandths."""
    ring_bandwidth: int | None = None
    """ringBusBandwidth in bytes; None if the table does not state it."""


@dataclass(frozen=True)
class PartitionTable:
    """The sets of a table, by size and then by position. Tables of equal content are equal."""

    sets: tuple[Partition, ...]

    def of(self, size: int) -> tuple[Partition, ...]:
        """Returns the sets of a size."""
        return tuple(one for one in self.sets if one.size == size)


def aligned_table(count: int) -> PartitionTable:
    """Returns the built-in table: aligned blocks of 1, 2, 4, 8 and 16 GPUs by position."""
    return PartitionTable(
        tuple(
            Partition(((1 << size) - 1) << at, size, SCORE_SCALE)
            for size in BUILT_IN_SIZES
            for at in range(0, count - size + 1, size)
        )
    )


def has_built_in_table(model: str) -> bool:
    """Returns whether a GPU model (text of a node label) has a built-in table."""
    return not BUILT_IN_MODELS.isdisjoint(word.upper() for word in _WORDS.findall(model))


class TableFault(ValueError):
    """The reason why a partition table is rejected."""


def read_table(text: str, minors: Sequence[int]) -> PartitionTable:
    """Parses a table in Koordinator's format: number of GPUs -> partitions. Raises `TableFault`."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        raise TableFault("is not valid JSON") from None
    if not isinstance(raw, dict):
        raise TableFault("is not a mapping from numbers to partitions")
    position = {minor: i for i, minor in enumerate(minors)}
    sets: list[Partition] = []
    for key, listed in raw.items():
        if not key.isascii() or not key.isdigit() or not isinstance(listed, list):
            raise TableFault(f"{key!r} is not a number with a list of partitions")
        for i, one in enumerate(listed):
            sets.append(_partition(one, int(key), position, where=f"{key}[{i}]"))
    return PartitionTable(tuple(sorted(sets, key=lambda p: (p.size, p.mask & -p.mask, p.mask, -p.score))))


def _partition(one: Any, size: int, position: Mapping[int, int], *, where: str) -> Partition:
    """Parses one set of `size` GPUs. Raises `TableFault`. position: minor -> position. where: path in messages."""
    minors = one.get("minors") if isinstance(one, dict) else None
    if not isinstance(minors, list) or any(isinstance(m, bool) or not isinstance(m, int) for m in minors):
        raise TableFault(f"{where}.minors is not a list of minors")
    if len(set(minors)) != size or len(minors) != size:
        raise TableFault(f"{where}.minors names {len(set(minors))} GPUs, expected {size}")
    if any(minor not in position for minor in minors):
        raise TableFault(f"{where}.minors names a GPU that the Device lacks")
    score = one.get("allocationScore", 0)
    if isinstance(score, bool) or not isinstance(score, int | float) or not -1e9 < score < 1e9:
        raise TableFault(f"{where}.allocationScore is not a number")
    ring = one.get("ringBusBandwidth")
    try:
        bandwidth = None if ring is None else quantity(ring)
    except ValueError as fault:
        raise TableFault(f"{where}.ringBusBandwidth {fault}") from None
    return Partition(sum(1 << position[m] for m in minors), size, round(score * SCORE_SCALE), bandwidth)


def quantity(raw: Any) -> int:
    """Returns a bandwidth in bytes, parsed as a quantity. Raises `ValueError`."""
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        raise ValueError("is not a quantity")
    return units("memory", str(raw))
