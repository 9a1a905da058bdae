"""What a node's best choice of GPUs is worth to a comparison of nodes: rules 1 and 2, by the pattern of the links.

Source: gpu-topology.md 4 and 5. Machines of one pattern share the answers.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from koordpy.devices.gpu.choice.gpu_splits import Divider, Kinds, counted
from koordpy.devices.gpu.choice.gpu_submasks import Masks, masks_of_size
from koordpy.devices.gpu.choice.gpu_tables import tables
from koordpy.devices.gpu.choice.gpu_wants import GpuWant, Sets
from koordpy.devices.gpu.gpu_machine import Pattern
from koordpy.plan.limits import JUDGEMENTS_KEPT


@dataclass(frozen=True, slots=True)
class Worth:
    """Class of the slowest pair of all GPUs that pods are given together, and of each pod's own, slowest first: classes
    of the machine's pattern, or those over all machines. The number of classes stands for no limit."""

    low: int
    lows: tuple[int, ...]


def worth_of(sets: Sets, held: int, rank: Callable[[int], int]) -> Worth:
    """What sets are worth beside what is held. rank: class of the slowest pair of a set."""
    whole = held
    for own, _ in sets:
        whole |= own
    return Worth(rank(whole), tuple(sorted(rank(own) for own, _ in sets)))


class Judge:
    """Rules 1 and 2 alone, by the pattern of the links: what nodes are compared by."""

    def __init__(self, pattern: Pattern) -> None:
        self.tables = tables(pattern)
        self._divider = Divider(self.tables, (0,) * self.tables.classes)
        self._known = lru_cache(JUDGEMENTS_KEPT)(self._judge)

    def judge(self, free: int, held: int, wants: tuple[GpuWant, ...]) -> Worth | None:
        """What the best choice for some pods is worth; None where they cannot all be given what they want."""
        # neither containers nor the order of pods count
        kinds = counted(tuple(replace(want, containers=(), listed=want.listed or None) for want in wants))
        return self._known(free, held, kinds)

    def _judge(self, free: int, held: int, kinds: Kinds) -> Worth | None:
        low, low_list, number = self.tables.low, self.tables.low_list, sum(number for _, number in kinds)
        us = candidates(self.tables.size, free, sum(want.count * number for want, number in kinds))
        shares = None
        if len(us) and not all(want.plain for want, _ in kinds):
            shares = self._divider.shares(us, kinds)
            self._divider.able(shares, kinds)
            us = shares.us
        if not len(us):
            return None
        whole = low[us | held]
        top = int(whole.max())
        us = us[whole == top]
        if shares is not None:
            shares.keep(whole == top)
        elif number == 1:
            return Worth(top, (int(low[us].max()),))
        elif self.tables.is_flat(free):
            pairs = (
                low_list[int(us[0])] if want.count > 1 else self.tables.classes for want, n in kinds for _ in range(n)
            )
            return Worth(top, tuple(sorted(pairs)))
        else:
            shares = self._divider.shares(us, kinds)
        self._divider.charge_slowest(shares, int(low[us].min()))
        return Worth(top, tuple(sorted(low_list[own] for own in shares.any_way())))


def candidates(count: int, free: int, size: int) -> Masks:
    """Every set of a size out of the free GPUs of `count`."""
    masks = masks_of_size(count, size)
    return np.asarray(masks[(masks & ~free) == 0])


@lru_cache(maxsize=1024)
def judge_of(pattern: Pattern) -> Judge:
    """The Judge of a pattern, shared by its machines."""
    return Judge(pattern)
