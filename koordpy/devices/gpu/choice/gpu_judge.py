# SPDX-License-Identifier: Apache-2.0
"""The link classes of the best choice of GPUs on a node, by which nodes are compared.

Comparing nodes needs only rules 1 and 2 of gpu-topology.md 4: the slowest pair of all pods together, and of each pod.
They depend on the pattern of the links only, so machines with one pattern share the answers.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from koordpy.devices.gpu.choice.gpu_splits import Divider, Kinds, counted
from koordpy.devices.gpu.choice.gpu_wants import GpuWant, Sets
from koordpy.devices.links.device_masks import Masks, masks_of_size
from koordpy.devices.links.link_pattern import Pattern
from koordpy.devices.links.link_tables import tables
from koordpy.plan.limits import JUDGEMENTS_KEPT


@dataclass(frozen=True, slots=True)
class LinkClasses:
    """Link classes of a choice, of the machine's pattern or over all machines. The number of classes means no limit."""

    low: int
    """Class of the slowest pair of all GPUs that the pods get together."""
    lows: tuple[int, ...]
    """Class of the slowest pair of each pod's GPUs, slowest first."""


def link_classes_of(sets: Sets, held: int, rank: Callable[[int], int]) -> LinkClasses:
    """Returns the link classes of chosen sets. held: mask of GPUs of bound members, which count in `LinkClasses.low`.

    rank: returns the class of the slowest pair of a set.
    """
    whole = held
    for own, _ in sets:
        whole |= own
    return LinkClasses(rank(whole), tuple(sorted(rank(own) for own, _ in sets)))


class Judge:
    """Applies rules 1 and 2 on machines with one pattern. Answers are cached."""

    def __init__(self, pattern: Pattern) -> None:
        self.tables = tables(pattern)
        self._divider = Divider(self.tables, (0,) * self.tables.classes)
        self._known = lru_cache(JUDGEMENTS_KEPT)(self._judge)

    def judge(self, free: int, held: int, wants: tuple[GpuWant, ...]) -> LinkClasses | None:
        """Returns the link classes of the best choice for the given pods; None if they cannot all be served.

        free: mask of GPUs that may be allocated. held: mask of GPUs that bound members of the pods' group use.
        """
        # rules 1 and 2 ignore containers and the order of pods
        kinds = counted(tuple(replace(want, containers=(), listed=want.listed or None) for want in wants))
        return self._known(free, held, kinds)

    def _judge(self, free: int, held: int, kinds: Kinds) -> LinkClasses | None:
        """Finds the best slowest pair over all candidate sets, then the best division of these sets among the pods."""
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
            return LinkClasses(top, (int(low[us].max()),))
        elif self.tables.is_flat(free):
            pairs = (
                low_list[int(us[0])] if want.count > 1 else self.tables.classes for want, n in kinds for _ in range(n)
            )
            return LinkClasses(top, tuple(sorted(pairs)))
        else:
            shares = self._divider.shares(us, kinds)
        self._divider.charge_slowest(shares, int(low[us].min()))
        return LinkClasses(top, tuple(sorted(low_list[own] for own in shares.any_way())))


def candidates(count: int, free: int, size: int) -> Masks:
    """Returns every set of a size out of the free GPUs of `count`."""
    masks = masks_of_size(count, size)
    return np.asarray(masks[(masks & ~free) == 0])


@lru_cache(maxsize=1024)
def judge_of(pattern: Pattern) -> Judge:
    """Returns the Judge of a pattern, shared by its machines."""
    return Judge(pattern)
