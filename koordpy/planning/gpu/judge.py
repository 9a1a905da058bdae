"""What a node's best choice of GPUs is worth to a comparison of nodes: rules 1 and 2, by the pattern of the links.

Source: gpu-topology.md 4 and 5. Machines of one pattern share the answers.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from koordpy.cluster.gpus import Pattern
from koordpy.planning.gpu.splits import Divider, counted
from koordpy.planning.gpu.submasks import Masks, masks_of_size
from koordpy.planning.gpu.tables import tables
from koordpy.planning.gpu.wants import GpuWant
from koordpy.planning.limits import JUDGEMENTS_KEPT


@dataclass(frozen=True, slots=True)
class Judged:
    """What a node's best choice is worth to a comparison of nodes: class of the slowest pair of all, and of each pod's
    own, slowest first. The number of classes stands for no limit."""

    low: int
    lows: tuple[int, ...]


class Judge:
    """Rules 1 and 2 alone, by the pattern of the links: what nodes are compared by."""

    def __init__(self, pattern: Pattern) -> None:
        self.tables = tables(pattern)
        self._divider = Divider(self.tables, (0,) * self.tables.classes)
        self._known: dict[tuple[int, int, tuple[int, ...]], Judged | None] = {}
        self._wanted: dict[tuple[int, int, tuple[GpuWant, ...]], Judged | None] = {}

    def judge(self, free: int, held: int, sizes: tuple[int, ...]) -> Judged | None:
        """For pods of the given sizes (ascending) that take any sets; None where there are too few GPUs."""
        key = (free, held, sizes)
        if key not in self._known:
            if len(self._known) > JUDGEMENTS_KEPT:
                self._known.clear()
            self._known[key] = self._judge(free, held, sizes)
        return self._known[key]

    def _judge(self, free: int, held: int, sizes: tuple[int, ...]) -> Judged | None:
        us = candidates(self.tables.size, free, sum(sizes))
        if not len(us):
            return None
        low = self.tables.low
        whole = low[us | held]
        top = int(whole.max())
        us = us[whole == top]
        if len(sizes) == 1:
            return Judged(top, (int(low[us].max()),))
        if self.tables.is_flat(free):
            pairs = self.tables.low_list[int(us[0])]
            return Judged(top, tuple(sorted(pairs if size > 1 else self.tables.classes for size in sizes)))
        return Judged(top, tuple(self._divider.slowest_pairs(us, sizes, int(low[us].min()))))

    def judge_wanted(self, free: int, held: int, wants: tuple[GpuWant, ...]) -> Judged | None:
        """For pods with thresholds or listed sets; None where they cannot all be given what they want."""
        key = (free, held, wants)
        if key not in self._wanted:
            if len(self._wanted) > JUDGEMENTS_KEPT:
                self._wanted.clear()
            self._wanted[key] = self._judge_wanted(*key)
        return self._wanted[key]

    def _judge_wanted(self, free: int, held: int, wants: tuple[GpuWant, ...]) -> Judged | None:
        us = candidates(self.tables.size, free, sum(want.count for want in wants))
        if not len(us):
            return None
        kinds = counted(tuple(replace(want, containers=(want.count,)) for want in wants))
        shares = self._divider.shares(us, kinds)
        self._divider.able(shares, kinds)
        if not len(shares.us):
            return None
        low = self.tables.low
        whole = low[shares.us | held]
        top = int(whole.max())
        shares.keep(whole == top)
        self._divider.charge_slowest(shares, int(low[shares.us].min()))
        return Judged(top, tuple(sorted(self.tables.low_list[own] for own in shares.any_way())))


def candidates(count: int, free: int, size: int) -> Masks:
    """Every set of a size out of the free GPUs of `count`."""
    masks = masks_of_size(count, size)
    return np.asarray(masks[(masks & ~free) == 0])


@lru_cache(maxsize=1024)
def judge_of(pattern: Pattern) -> Judge:
    """The Judge of a pattern, shared by its machines."""
    return Judge(pattern)
