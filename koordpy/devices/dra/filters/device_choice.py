# SPDX-License-Identifier: Apache-2.0
"""Which devices of a node a pod gets: of all allocations the best by alternatives, links and fit (dra.md 6).

All solutions of the search are compared, except those that differ only by equal devices. Links of two devices follow
from their attributes: equal `resource.kubernetes.io/pcieRoot`, else equal or different
`resource.kubernetes.io/numaNode`, else unknown. These classes nest, so what is left can be counted by groups.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from fractions import Fraction
from itertools import combinations
from typing import Any

from koordpy.devices.dra.filters.claim_requests import UndecidedNode
from koordpy.devices.dra.filters.device_search import DeviceSearch
from koordpy.devices.dra.ledger.device_usage import DeviceUsage
from koordpy.devices.dra.ledger.offered_devices import OfferedDevice
from koordpy.pods.claim_refs import Grant

PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
NUMA_NODE = "resource.kubernetes.io/numaNode"
SAME_ROOT, SAME_NUMA, OTHER_NUMA, UNKNOWN = 12, 9, 8, 0
"""Classes of links in GB/s, as assumed for PIX, NODE and SYS; 0 for unknown."""
NO_LIMIT = 1 << 30
LEFT_SIZES = (8, 4, 2)
"""Sizes of the sets that the devices left are packed into."""

Place = tuple[Any, Any]
"""(PCIe root, NUMA node) of a device; None for an unknown one."""


def place_of(device: OfferedDevice) -> Place:
    """Returns where a device is, as its attributes state it."""
    root, numa = device.attribute(PCIE_ROOT), device.attribute(NUMA_NODE)
    return (
        root[1] if root is not None and root[0] == "string" else None,
        numa[1] if numa is not None and numa[0] == "int" else None,
    )


def link(a: Place, b: Place) -> int:
    """Returns the class of the link between two devices."""
    if a[0] is not None and a[0] == b[0]:
        return SAME_ROOT
    if a[1] is None or b[1] is None:
        return UNKNOWN
    return SAME_NUMA if a[1] == b[1] else OTHER_NUMA


class BestChoice:
    """Keeps the best solution of a search. Pass `offer` to `DeviceSearch.each`."""

    def __init__(self, usage: DeviceUsage, grants: list[Grant] | None = None) -> None:
        """grants: a solution to start with; None for none."""
        self._usage = usage
        self.grants = grants
        self.rank: tuple[Any, ...] = ()
        """Rank of the best solution; smaller is better."""
        self.alternatives: tuple[int, ...] = ()
        """Index of the chosen alternative of each request."""
        self.slowest: tuple[int, int] = (NO_LIMIT, NO_LIMIT)
        """Slowest link between devices of one driver, and of different drivers."""
        self.left = 0
        """Free suitable devices that the solution leaves."""

    def offer(self, search: DeviceSearch) -> bool:
        """Compares the current solution of a search. Returns False, so that the search goes on."""
        chosen = [one for claim in search.chosen() for one in claim]
        devices = [search.devices[at] for one, at in chosen if not one.admin and not search.devices[at].multi]
        first = tuple(search.alternative_indexes())
        links = _links(devices)
        taken = {at for one, at in chosen if not one.admin}
        suitable = search.suitable_free()
        rest = [place_of(search.devices[at]) for at in suitable if at not in taken]
        grants = search.grants()
        self._apply(grants, 1)
        takeable = sum(_is_takeable(device, self._usage) for device in search.devices)
        empty = _emptiness([search.devices[at] for at in sorted(taken)], self._usage)
        self._apply(grants, -1)
        rank = (
            first,
            sum(bool(search.devices[at].facts.binding_conditions) for _, at in chosen),
            self._begun([search.devices[at] for at in sorted(taken)]),
            *links[0],
            tuple(-number for number in packed(rest)),
            *links[1],
            -takeable,
            empty,
        )
        if self.grants is None or rank < self.rank:
            self.grants, self.rank, self.alternatives = grants, rank, first
            self.slowest, self.left = (-links[0][0], -links[0][2]), len(rest)
        return False

    def _apply(self, grants: Sequence[Grant], sign: int) -> None:
        """Adds a solution to the devices in use (sign 1), or removes it (-1)."""
        for grant in grants:
            for one in grant:
                self._usage.change(one, sign)

    def _begun(self, devices: Sequence[OfferedDevice]) -> int:
        """Returns the number of counter sets and shared devices that were untouched before."""
        sets = {(d.id.driver, d.id.pool, key[0]) for d in devices for key, _ in d.consumes}
        drawn = {(driver, pool, key[0]) for (driver, pool, key), amount in self._usage.counters.items() if amount}
        shared = {device.id for device in devices if device.multi and not self._usage.is_used(device.id)}
        return len(sets - drawn) + len(shared)


def _links(devices: Sequence[OfferedDevice]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the parts of the rank before and after what is left: slowest pairs; sums of pairs, NUMA nodes and roots.

    Values of which more is better are negative. Pairs of different drivers come after those of one driver.
    """
    places = [(device.id.driver, place_of(device)) for device in devices]
    near: list[int] = []
    far: list[int] = []
    for (one, a), (other, b) in combinations(places, 2):
        (near if one == other else far).append(link(a, b))
    slow = min(near, default=NO_LIMIT), min(far, default=NO_LIMIT)
    numas, roots = {place[1] for _, place in places}, {place[0] for _, place in places}
    before = (-slow[0], -slow[0], -slow[1], -slow[1])
    after = (-sum(near), -sum(far), 0 if None in numas else len(numas), 0 if None in roots else len(roots))
    return before, after


def packed(places: Sequence[Place]) -> list[int]:
    """Returns, for each size, how many disjoint sets of devices have their slowest pair in each class, best first."""
    roots = Counter(place[0] for place in places if place[0] is not None)
    numas = Counter(place[1] for place in places if place[1] is not None)
    known = sum(numas.values())
    out: list[int] = []
    for size in LEFT_SIZES:
        totals = [sum(n // size for n in roots.values()), sum(n // size for n in numas.values()), known // size]
        totals.append(len(places) // size)
        before = 0
        for total in totals:
            out.append(max(total - before, 0))
            before = max(before, total)
    return out


def _is_takeable(device: OfferedDevice, usage: DeviceUsage) -> bool:
    """Returns whether a device could still be taken alone: whole, or as a share while every capacity has room."""
    if device.id in usage.whole or (device.id in usage.shares and not device.multi):
        return False
    if device.id in usage.shares:
        taken = usage.shared(device.id)
        return all(taken.get(name, 0) < value for name, value in device.capacity.items())
    return usage.has_counters(device)


def _emptiness(devices: Sequence[OfferedDevice], usage: DeviceUsage) -> Fraction:
    """Returns how empty the given shared devices are afterwards: the sum of free parts of their capacities."""
    total = Fraction(0)
    for device in devices:
        taken = usage.shared(device.id) if device.multi else {}
        for name, value in device.capacity.items() if device.multi else ():
            total += (value - taken.get(name, Fraction(0))) / value if value else 0
    return total


def best_choice(search: DeviceSearch, usage: DeviceUsage) -> BestChoice:
    """Returns the best solution; its `grants` are None without any.

    If the search ends at its limit, the best solution so far counts.
    """
    best = BestChoice(usage)
    with suppress(UndecidedNode):
        search.each(best.offer)
    return best


def alternatives_score(indexes: Sequence[int]) -> int:
    """Returns the score of chosen alternatives: 8 for each first one, 7 for each second one, and so on."""
    return sum(8 - index for index in indexes)
