# SPDX-License-Identifier: Apache-2.0
"""Charges of the rules for a set of GPUs divided among pods, and for a pod's set divided among its containers.

A charge is the cost of one part of a division by one criterion; lower is better. For a fixed set, every criterion of a
division is a sum of charges over its parts, which `Partitioner` minimises. The criterion "the slowest pair of the worst
pod" becomes one charge for each link class, the slowest class first: the charge of a part is 1 if its slowest pair is
in the class, else 0. Source: docs/rules/gpu-topology.md 4, rules 2, 3, 5 and 8.
"""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from math import gcd

import numpy as np
from numpy.typing import NDArray

from koordpy.devices.gpu.choice.gpu_wants import GpuWant
from koordpy.devices.links.device_masks import Masks
from koordpy.devices.links.device_partitioning import Charge, Partitioner
from koordpy.devices.links.link_tables import Tables

Kinds = tuple[tuple[GpuWant, int], ...]
"""Pods with equal requests: (request, number of pods)."""


class Divider:
    """Divides sets of GPUs on machines with one pattern and equal class floors."""

    def __init__(self, tables: Tables, floors: Sequence[int]) -> None:
        """floors: kB/s of each class."""
        self.tables, self._floors = tables, tuple(floors)

    @cached_property
    def sums(self) -> NDArray[np.int64]:
        """[all masks] sum of the class floors over the pairs, in units of the greatest common divisor of the floors."""
        unit = max(1, gcd(*self._floors))
        out = np.zeros(1, dtype=np.int64)
        for bit in range(self.tables.size):
            row = np.zeros(1, dtype=np.int64)
            for other in range(bit):
                row = np.concatenate([row, row + self._floors[self.tables.pattern.ranks[bit][other]] // unit])
            out = np.concatenate([out, out + row])
        return out

    # -- pods ---------------------------------------------------------------------------------------------------------

    def shares(self, us: Masks, kinds: Kinds) -> Partitioner:
        """Returns the ways to divide each of the given sets (`us`) among pods."""
        return Partitioner(self.tables.size, us, [want.count for want, _ in kinds], [number for _, number in kinds])

    def able(self, shares: Partitioner, kinds: Kinds) -> None:
        """Keeps the ways that meet the hard requirements of each pod and have the best listed sets (gpu-topology.md 8).

        Best are the ways with most pods on a listed set, then those with the highest sum of scores.
        """
        scores = [_scores(want, self.tables.size) for want, _ in kinds]

        def allowed(kind: int, own: Masks) -> NDArray[np.bool_]:
            want = kinds[kind][0]
            found = np.array([want.linked(mask) and want.allows(mask) for mask in own.tolist()], dtype=bool)
            return found & (scores[kind][0][own] > 0) if want.must else found

        shares.forbid(allowed)
        if len(shares.us):
            shares.charge_best([lambda kind, own: -scores[kind][0][own], lambda kind, own: -scores[kind][1][own]])

    def charge_links(self, shares: Partitioner, kinds: Kinds, slowest: int) -> None:
        """Applies rule 2, and the part of rule 3 about each pod. slowest: lower bound of the class of all pairs."""
        tables = self.tables
        classes = range(slowest, tables.classes)
        charges: list[Charge] = [lambda _, own, c=c: (tables.low[own] == c).astype(np.int64) for c in classes]  # type: ignore[misc]
        if any(not _is_single_container(want) for want, _ in kinds):
            containers = _Containers(self, kinds)
            charges += [lambda kind, own, c=c: containers.of(kind, own)[:, c] for c in classes]  # type: ignore[misc]
        shares.charge_best(charges)
        if any(want.count > 3 for want, _ in kinds):
            shares.charge_best([lambda _, own, c=c: (tables.rings(own) == c).astype(np.int64) for c in classes])  # type: ignore[misc]

    def charge_sums(self, shares: Partitioner, kinds: Kinds) -> None:
        """Applies the part of rule 5 about containers and pods."""
        charges: list[Charge] = [lambda _, own: -self.sums[own]]
        if any(not _is_single_container(want) for want, _ in kinds):
            containers = _Containers(self, kinds)
            charges.insert(0, lambda kind, own: -containers.of(kind, own)[:, -1])
        shares.charge_best(charges)

    def charge_slowest(self, shares: Partitioner, slowest: int) -> None:
        """Applies the part of rule 2 about pods. slowest: lower bound of the class of all pairs."""
        low = self.tables.low
        shares.charge_best(
            [lambda _, own, c=c: (low[own] == c).astype(np.int64) for c in range(slowest, self.tables.classes)]  # type: ignore[misc]
        )

    # -- containers ---------------------------------------------------------------------------------------------------

    def containers(self, mask: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the set of each container in the best split of a pod's set. sizes: GPUs of each container.

        GPUs beyond those of the containers belong to an init container.
        """
        if not sizes:
            return ()
        if len(sizes) == 1 and sizes[0] == mask.bit_count():
            return (mask,)
        shares, kinds = self._split(np.array([mask], dtype=np.int64), sizes)
        shares.charge_best([*self._inner_links(kinds), self._inner_sum(kinds)])
        return tuple(shares.deal([kinds.index(size) for size in sizes]))

    def container_criteria(self, masks: Masks, sizes: tuple[int, ...]) -> NDArray[np.int64]:
        """Returns [sets, classes + 1] criteria of the best split of each set among containers.

        Column c: number of containers with their slowest pair in class c. Last column: sum of floors within containers.
        """
        shares, kinds = self._split(masks, sizes)
        return np.stack(shares.charge([*self._inner_links(kinds), self._inner_sum(kinds)]), axis=1) * self._signs

    @cached_property
    def _signs(self) -> NDArray[np.int64]:
        """[classes + 1] 1 for counts, -1 for the sum, which is charged with a negative sign."""
        return np.array([1] * self.tables.classes + [-1], dtype=np.int64)

    def _split(self, masks: Masks, sizes: tuple[int, ...]) -> tuple[Partitioner, list[int]]:
        """Returns (ways to split sets, sizes of containers as kinds of parts). GPUs of no container form one more
        kind."""
        kinds = sorted(set(sizes))
        numbers = [sizes.count(size) for size in kinds]
        left = int(masks[0]).bit_count() - sum(sizes)
        extra = [left] if left else []
        return Partitioner(self.tables.size, masks, [*kinds, *extra], [*numbers, *([1] * len(extra))]), kinds

    def _inner_links(self, kinds: Sequence[int]) -> list[Charge]:
        """Returns one charge for each class: 1 for a container with its slowest pair in this class."""
        low = self.tables.low
        return [
            lambda kind, own, c=c: (low[own] == c).astype(np.int64) * (kind < len(kinds))  # type: ignore[misc]
            for c in range(self.tables.classes)
        ]

    def _inner_sum(self, kinds: Sequence[int]) -> Charge:
        """Returns the charge of the sum of floors within containers; negative, because more is better."""
        return lambda kind, own: -self.sums[own] * (kind < len(kinds))


class _Containers:
    """Criteria of the containers of pods, computed on first use for all parts of a kind of pods."""

    def __init__(self, divider: Divider, kinds: Kinds) -> None:
        self._divider, self._kinds = divider, kinds
        self._known: dict[int, tuple[Masks, NDArray[np.int64]]] = {}

    def of(self, kind: int, own: Masks) -> NDArray[np.int64]:
        """Returns [sets, classes + 1] criteria of pods of a kind on the given sets, as in
        `Divider.container_criteria`."""
        known = self._known.get(kind)
        if known is None:
            known = self._known[kind] = own, self._criteria(self._kinds[kind][0], own)
        masks, criteria = known
        return criteria if len(masks) == len(own) else criteria[np.searchsorted(masks, own)]

    def _criteria(self, want: GpuWant, own: Masks) -> NDArray[np.int64]:
        """Computes `of` for all sets that pods of a kind may get."""
        tables = self._divider.tables
        if not len(own) or not want.containers:
            return np.zeros((len(own), tables.classes + 1), dtype=np.int64)
        if not _is_single_container(want):
            return self._divider.container_criteria(own, want.containers)
        links = tables.low[own][:, None] == np.arange(tables.classes)
        return np.concatenate([links.astype(np.int64), self._divider.sums[own][:, None]], axis=1)


def _is_single_container(want: GpuWant) -> bool:
    """Returns whether one container gets all GPUs of its pod."""
    return want.containers == (want.count,)


def _scores(want: GpuWant, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns ([all masks] 1 for a set that is listed for a pod, [all masks] the highest score that it is listed
    with)."""
    listed, score = np.zeros(1 << count, dtype=np.int64), np.zeros(1 << count, dtype=np.int64)
    for one in want.listed or ():
        score[one.mask] = max(one.score, int(score[one.mask])) if listed[one.mask] else one.score
        listed[one.mask] = 1
    return listed, score


@lru_cache(maxsize=4096)
def counted(wants: tuple[GpuWant, ...]) -> Kinds:
    """Returns the different requests with the number of pods of each, in a fixed order."""
    numbers: dict[GpuWant, int] = {}
    for want in wants:
        numbers[want] = numbers.get(want, 0) + 1
    return tuple(sorted(numbers.items(), key=lambda item: repr(item[0])))
