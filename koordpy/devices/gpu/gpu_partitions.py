"""Partition tables: which sets of a node's GPUs are meant to be given together (gpu-topology.md 8)."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from koordpy.api.quantity import units

BUILT_IN_MODELS = frozenset({"H100", "H800", "H20"})
BUILT_IN_SIZES = (1, 2, 4, 8, 16)
SCORE_SCALE = 1000
_WORDS = re.compile(r"[A-Za-z0-9]+")


@dataclass(frozen=True, slots=True)
class Partition:
    """A listed set. mask: bits of the positions of its GPUs; score: allocationScore in thousandths; ring_bandwidth: as
    stated, in units of its quantity, None where it is not."""

    mask: int
    size: int
    score: int
    ring_bandwidth: int | None = None


@dataclass(frozen=True)
class PartitionTable:
    """Listed sets, by size and then by position. The same content is the same table."""

    sets: tuple[Partition, ...]

    def of(self, size: int) -> tuple[Partition, ...]:
        """The listed sets of a size."""
        return tuple(one for one in self.sets if one.size == size)


def aligned_table(count: int) -> PartitionTable:
    """The built-in table: aligned blocks of 1, 2, 4, 8 and 16 GPUs by position."""
    return PartitionTable(
        tuple(
            Partition(((1 << size) - 1) << at, size, SCORE_SCALE)
            for size in BUILT_IN_SIZES
            for at in range(0, count - size + 1, size)
        )
    )


def has_built_in_table(model: str) -> bool:
    """Whether a node's GPU model is one of those with a built-in table."""
    return not BUILT_IN_MODELS.isdisjoint(word.upper() for word in _WORDS.findall(model))


class TableFault(ValueError):
    """What is wrong with a partition table."""


def read_table(text: str, minors: Sequence[int]) -> PartitionTable:
    """A table as Koordinator writes it: number of GPUs -> partitions. Raises TableFault."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        raise TableFault("is no JSON") from None
    if not isinstance(raw, dict):
        raise TableFault("is no mapping of numbers to partitions")
    position = {minor: i for i, minor in enumerate(minors)}
    sets: list[Partition] = []
    for key, listed in raw.items():
        if not key.isascii() or not key.isdigit() or not isinstance(listed, list):
            raise TableFault(f"{key!r} is no number with a list of partitions")
        for i, one in enumerate(listed):
            sets.append(_partition(one, int(key), position, where=f"{key}[{i}]"))
    return PartitionTable(tuple(sorted(sets, key=lambda p: (p.size, p.mask & -p.mask, p.mask, -p.score))))


def _partition(one: Any, size: int, position: Mapping[int, int], *, where: str) -> Partition:
    minors = one.get("minors") if isinstance(one, dict) else None
    if not isinstance(minors, list) or any(isinstance(m, bool) or not isinstance(m, int) for m in minors):
        raise TableFault(f"{where}.minors is no list of minors")
    if len(set(minors)) != size or len(minors) != size:
        raise TableFault(f"{where}.minors names {len(set(minors))} GPUs in place of {size}")
    if any(minor not in position for minor in minors):
        raise TableFault(f"{where}.minors names a GPU that the Device lacks")
    score = one.get("allocationScore", 0)
    if isinstance(score, bool) or not isinstance(score, int | float) or not -1e9 < score < 1e9:
        raise TableFault(f"{where}.allocationScore is no number")
    ring = one.get("ringBusBandwidth")
    try:
        bandwidth = None if ring is None else quantity(ring)
    except ValueError as what:
        raise TableFault(f"{where}.ringBusBandwidth {what}") from None
    return Partition(sum(1 << position[m] for m in minors), size, round(score * SCORE_SCALE), bandwidth)


def quantity(raw: Any) -> int:
    """A bandwidth as a quantity of bytes. Raises ValueError."""
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        raise ValueError("is no quantity")
    return units("memory", str(raw))
