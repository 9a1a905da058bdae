# SPDX-License-Identifier: Apache-2.0
"""The choice of GPUs on one node, for the pods that one plan places there together.

1. Candidates are all sets of free GPUs of the total size of the pods.
2. Sets that no division among the pods satisfies are removed (minimum bandwidth, listed sets).
3. The rules of gpu-topology.md 4 are applied one after the other. Each keeps the candidates with the best value.
   Criteria of the whole set are computed for all candidates at once, criteria of the division by `gpu_splits`.
4. The last rule chooses the lowest GPUs, and divides them among pods and containers.

Answers are cached, because they depend only on the links of the machine and the free GPUs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from koordpy.devices.gpu.choice.gpu_divisions import division_choice
from koordpy.devices.gpu.choice.gpu_judge import LinkClasses, candidates, judge_of
from koordpy.devices.gpu.choice.gpu_splits import Divider, counted
from koordpy.devices.gpu.choice.gpu_wants import GpuWant, Sets
from koordpy.devices.gpu.gpu_machine import Matrix
from koordpy.devices.gpu.gpu_partitions import PartitionTable, aligned_table
from koordpy.devices.links.device_masks import Masks, bits_of, reversed_bits
from koordpy.devices.links.device_partitioning import Partitioner
from koordpy.devices.links.link_tables import Tables, tables
from koordpy.plan.limits import JUDGEMENTS_KEPT

Objective = Literal["bottleneck", "sum", "partition"]
"""Setting `gpu.objective`."""
WHOLE_SIZES = (16, 8, 4, 2)
"""Sizes of listed sets that should stay whole (rule 7), in order of importance."""
PACKED_SIZES = (8, 4, 2)
"""Sizes of sets that should find fast links among the remaining GPUs (rule 4), in order of importance."""


@dataclass(frozen=True)
class Board:
    """All properties of a machine on which a choice depends: machines with equal boards share every choice."""

    matrix: Matrix
    """Links between the GPUs."""
    numa: tuple[int, ...] | None
    """NUMA node of each GPU; None if it is unknown for one of them."""
    roots: tuple[str, ...] | None
    """PCIe root of each GPU; None if it is unknown for one of them."""
    table: PartitionTable | None
    """Partition table of the Device; None for none."""

    @cached_property
    def listed(self) -> PartitionTable | None:
        """Sets that should stay whole; None for none.

        They are the sets of the partition table, else aligned blocks if all links are known and of one class.
        """
        one_class = self.matrix.source != "" and self.matrix.pattern.classes == 1
        return self.table or (aligned_table(self.matrix.pattern.size) if one_class else None)

    @property
    def places(self) -> list[Sequence[object]]:
        """NUMA nodes, then PCIe roots, of the GPUs; unknown ones are left out."""
        return [of for of in (self.numa, self.roots) if of is not None]


class Chooser:
    """Choices on machines with one board. A set of GPUs is a bit mask."""

    def __init__(self, board: Board) -> None:
        self.matrix, self.places, self.listed = board.matrix, board.places, board.listed
        self.tables: Tables = tables(board.matrix.pattern)
        self.divider = Divider(self.tables, board.matrix.floors)
        self.choose = lru_cache(JUDGEMENTS_KEPT)(self._choose)
        """`_choose` with a cache."""
        self._covers: dict[int, int] = {}

    def judge(self, free: int, held: int, wants: tuple[GpuWant, ...]) -> LinkClasses | None:
        """Returns the link classes of the choice, by which nodes are compared; None if the pods cannot all be served.

        free, held: as in `_choose`.
        """
        return judge_of(self.matrix.pattern).judge(free, held, wants)

    def can(self, free: int, wants: tuple[GpuWant, ...]) -> bool:
        """Returns whether the free GPUs can meet the requests of all pods."""
        return self.judge(free, 0, wants) is not None

    def low(self, mask: int) -> int:
        """Returns the class of the slowest pair of a set."""
        return self.tables.low_list[mask]

    # -- the rules ----------------------------------------------------------------------------------------------------

    def _choose(
        self, free: int, held: int, wants: tuple[GpuWant, ...], objective: Objective = "bottleneck"
    ) -> Sets | None:
        """Returns the GPUs of each pod, pods in order; None if they cannot all be served.

        free: mask of GPUs that may be allocated. held: mask of GPUs that bound members of the pods' group use.
        """
        if not wants:
            return ()
        if objective == "partition":
            masks = division_choice(self.matrix, self.tables.size, free, wants)
            if masks is not None:
                return self._with_containers(masks, wants)
        us = candidates(self.tables.size, free, sum(want.count for want in wants))
        if not len(us):
            return None
        flat = all(want.plain for want in wants) and self.tables.is_flat(free | held)
        rules = _Rules(self, us, free, held, wants, flat=flat)
        if not rules.able():
            return None
        if objective == "sum":
            rules.largest_sum()
        rules.apply()
        return self._with_containers(rules.division(), wants)

    def _with_containers(self, masks: Sequence[int], wants: tuple[GpuWant, ...]) -> Sets:
        """Returns the set of each pod together with the sets of its containers."""
        return tuple(
            (mask, self.divider.containers(mask, want.containers)) for mask, want in zip(masks, wants, strict=True)
        )

    # -- criteria of sets ---------------------------------------------------------------------------------------------

    @cached_property
    def _floor_matrix(self) -> NDArray[np.int64]:
        """[GPUs, GPUs] kB/s of the class of each pair; 0 on the diagonal."""
        ranks = np.array([list(row) for row in self.matrix.pattern.ranks], dtype=np.int64)
        floors = np.array(self.matrix.floors, dtype=np.int64)[ranks]
        np.fill_diagonal(floors, 0)
        return floors

    def sums(self, masks: Masks) -> NDArray[np.int64]:
        """Returns [sets] the sum of the class floors over the pairs of each set, in units of `Divider.sums`."""
        return self.divider.sums[masks]

    def towards(self, masks: Masks, others: int) -> NDArray[np.int64]:
        """Returns [sets] the sum of the class floors of the links from each set to the GPUs of `others` outside it."""
        bits = (masks[:, None] >> np.arange(self.tables.size)) & 1
        far = ((others & ~masks)[:, None] >> np.arange(self.tables.size)) & 1
        return np.asarray(((bits @ self._floor_matrix) * far).sum(axis=1))

    def whole(self, rest: Masks, size: int) -> NDArray[np.int64]:
        """Returns [sets] the total score of the listed sets of a size that lie inside each remainder."""
        out = np.zeros(len(rest), dtype=np.int64)
        for one in self.listed.of(size) if self.listed is not None else ():
            out += np.where((rest & one.mask) == one.mask, one.score, 0)
        return out

    def cover(self, mask: int) -> int:
        """Returns the fewest disjoint listed sets that make up a set; a GPU in no listed set counts as one."""
        if not mask or self.listed is None:
            return 0
        found = self._covers.get(mask)
        if found is None:
            first = mask & -mask
            found = 1 + self.cover(mask ^ first)
            for one in self.listed.sets:
                if one.mask & first and not one.mask & ~mask:
                    found = min(found, 1 + self.cover(mask ^ one.mask))
            self._covers[mask] = found
        return found


def _distinct(of: Sequence[object], masks: Masks) -> NDArray[np.int64]:
    """Returns [sets] the number of distinct values among the GPUs of each set. of: [GPUs] value, such as the NUMA
    node."""
    out = np.zeros(len(masks), dtype=np.int64)
    for value in dict.fromkeys(of):
        here = sum(1 << i for i, one in enumerate(of) if one == value)
        out += (masks & here) != 0
    return out


class _Rules:
    """The candidates that remain while rule after rule of gpu-topology.md 4 is applied.

    us: masks of the remaining candidates. free, held, wants: as in `Chooser._choose`. flat: True if all links have one
    class and no request distinguishes sets, so that rules about links change nothing.
    """

    def __init__(
        self, owner: Chooser, us: Masks, free: int, held: int, wants: tuple[GpuWant, ...], *, flat: bool
    ) -> None:
        self.owner, self.us, self.free, self.member_gpus, self.wants, self.flat = owner, us, free, held, wants, flat
        self.tables, self.divider = owner.tables, owner.divider
        self._kinds = counted(wants)
        self._divided: Partitioner | None = None

    def _keep(self, values: Callable[[], Any]) -> None:
        """Keeps the candidates with the largest value. values: computes [candidates]; not called for a single
        candidate."""
        if len(self.us) > 1:
            found = np.asarray(values())
            self.us = self.us[found == found.max()]

    def _shares(self) -> Partitioner:
        """Returns the ways to divide the remaining candidates among the pods."""
        if self._divided is None:
            self._divided = self.divider.shares(self.us, self._kinds)
        elif len(self._divided.us) > len(self.us):
            self._divided.keep(np.isin(self._divided.us, self.us))
        return self._divided

    def able(self) -> bool:
        """Returns whether a candidate can be divided as requested; keeps the candidates with the best listed sets."""
        if not all(want.plain for want in self.wants):
            shares = self._shares()
            self.divider.able(shares, self._kinds)
            self.us = shares.us
        return bool(len(self.us))

    def largest_sum(self) -> None:
        """Applies objective `sum`: the largest sum over all pairs; for a single GPU the lowest sum of links to other
        free GPUs."""
        if sum(want.count for want in self.wants) == 1 and not self.member_gpus:
            self._keep(lambda: -self.owner.towards(self.us, self.free))
        else:
            self._keep(lambda: self.owner.sums(self.us | self.member_gpus))

    def apply(self) -> None:
        """Applies rules 1 to 7."""
        self._keep(lambda: self.tables.low[self.us | self.member_gpus])  # rule 1
        if not self.flat:
            self._own_links()
            self._keep(lambda: self.tables.rings(self.us | self.member_gpus, only_best=True))
            # rule 4, for sizes that the remaining GPUs are enough for
            for size in PACKED_SIZES:
                if self.free.bit_count() - int(self.us[0]).bit_count() >= size:
                    self._keep(lambda size=size: self.tables.packed(size)[self.free & ~self.us])  # type: ignore[misc]
            self._own_sums()
            self._keep(lambda: self.owner.sums(self.us | self.member_gpus))
        # rule 6
        for of in self.owner.places:
            self._keep(lambda of=of: -_distinct(of, self.us | self.member_gpus))  # type: ignore[misc]
        self._whole_sets()

    @property
    def _is_single_container(self) -> bool:
        """True if one container of one pod gets all GPUs."""
        return len(self.wants) == 1 and self.wants[0].containers == (self.wants[0].count,)

    def _own_links(self) -> None:
        """Applies rule 2, and the part of rule 3 about each pod."""
        if self._is_single_container:
            self._keep(lambda: self.tables.low[self.us])
            self._keep(lambda: self.tables.rings(self.us, only_best=True))
            return
        shares = self._shares()
        self.divider.charge_links(shares, self._kinds, int(self.tables.low[self.us].min()))
        self.us = shares.us

    def _own_sums(self) -> None:
        """Applies the part of rule 5 about containers and pods."""
        if self._is_single_container:
            self._keep(lambda: self.owner.sums(self.us))
            return
        shares = self._shares()
        self.divider.charge_sums(shares, self._kinds)
        self.us = shares.us

    def _whole_sets(self) -> None:
        """Applies rule 7: listed sets that stay whole, then few listed sets that are broken."""
        if self.owner.listed is None:
            return
        for size in WHOLE_SIZES:
            self._keep(lambda size=size: self.owner.whole(self.free & ~self.us, size))  # type: ignore[misc]
        self._keep(lambda: [-self.owner.cover(u) for u in self.us.tolist()])

    def division(self) -> Sequence[int]:
        """Applies rule 8: the lowest GPUs. Returns the set of each pod."""
        if len(self.wants) == 1 or self.flat:
            turned = reversed_bits(self.tables.size)[self.us]
            mask = int(self.us[int(turned.argmax())])
            return _divide_ascending(mask, self.wants)
        kinds = [want for want, _ in self._kinds]
        return self._shares().deal([kinds.index(want) for want in self.wants])


def _divide_ascending(mask: int, wants: Sequence[GpuWant]) -> tuple[int, ...]:
    """Returns the set of each pod if the pods get the GPUs of a set in ascending order."""
    bits, out, at = bits_of(mask), [], 0
    for want in wants:
        out.append(sum(1 << i for i in bits[at : at + want.count]))
        at += want.count
    return tuple(out)
