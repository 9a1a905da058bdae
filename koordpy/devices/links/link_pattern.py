# SPDX-License-Identifier: Apache-2.0
"""The link classes of the devices of one machine, from which tables over all sets of devices are computed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Pattern:
    """Link classes of a machine, without bandwidths; equal for machines with equally grouped links."""

    ranks: tuple[bytes, ...]
    """[GPUs][GPUs] class of each pair, 0 for the slowest; the diagonal is 0 and unused."""
    classes: int
    """Number of classes."""

    @property
    def size(self) -> int:
        """Number of GPUs."""
        return len(self.ranks)


def pattern_of(value: Sequence[Sequence[int]], floors: Mapping[int, int]) -> tuple[Pattern, tuple[int, ...]]:
    """Returns the pattern of a matrix of values, and the lowest value of each class.

    value: [GPUs][GPUs]. floors: value -> lowest value of its class.
    """
    ordered = sorted(set(floors.values()))
    rank = {floor: i for i, floor in enumerate(ordered)}
    rows = tuple(
        bytes(rank[floors[cell]] if i != j else 0 for j, cell in enumerate(row)) for i, row in enumerate(value)
    )
    return Pattern(rows, max(1, len(ordered))), tuple(ordered) or (0,)
