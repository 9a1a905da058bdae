# SPDX-License-Identifier: Apache-2.0
"""Admission of a pod by the kubelet's Topology Manager, as in Kubernetes 1.35 to 1.37 (numa.md 3).

A pure function: amounts of a pod and of zones go in, the zone sets that the kubelet will use come out. The module knows
no Kubernetes objects, snapshots or drafts, so that the function can be tested by enumeration and compared with the
kubelet.

A request is the unit of alignment: a container, or with scope pod the whole pod. To align a request means to take all
its amounts from one zone set. For each resource, the kubelet's managers prefer zone sets that have the amount free and
have the least size that could hold the amount on an empty node (its width). A request is aligned by a set that all
managers prefer. The cost is the number of zone sets of one size; for policy single-numa-node that is the number of
zones.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import NamedTuple

from koordpy.devices.numa.zone_sets import all_sets, sets_by_size, sum_in, zones_in


class Policy(StrEnum):
    """Policy of the Topology Manager, by the names of the kubelet."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE = "single-numa-node"

    @property
    def strictness(self) -> int:
        """Order of the policies by strictness; 0 for none. Of two policies, the larger number is the stricter one."""
        return _STRICTNESS[self]

    @property
    def rejects(self) -> bool:
        """True if the kubelet rejects a pod that it cannot align."""
        return self in (Policy.RESTRICTED, Policy.SINGLE)


_STRICTNESS = {one: rank for rank, one in enumerate(Policy)}


class Scope(StrEnum):
    """Scope of the Topology Manager, by the names of the kubelet."""

    CONTAINER = "container"
    POD = "pod"


class RequestPart(IntEnum):
    """The part of a pod to which a request belongs."""

    POD = 0
    INIT = 1
    """An init container that ends before the containers start."""
    SIDECAR = 2
    """A restartable init container."""
    CONTAINER = 3


class Request(NamedTuple):
    """Amounts that are aligned together, from one zone set."""

    part: RequestPart
    amounts: tuple[tuple[str, int], ...]
    """(resource, amount above 0) of the aligned resources."""


class PodAmounts(NamedTuple):
    """The amounts of a pod that a node aligns."""

    requests: tuple[Request, ...]
    """Requests in the order in which the kubelet admits them; requests without an amount are left out."""
    held: tuple[tuple[str, int], ...]
    """(resource, amount above 0) that the pod holds while it runs."""


Zoned = Mapping[str, tuple[int, ...]]
"""Resource -> [zones] amount."""


@dataclass(frozen=True)
class Zones:
    """The zones of a node, without the free amounts. Hashable, so that equal nodes share results."""

    numbers: tuple[int, ...]
    """[zones] number of the NUMA node, ascending."""
    sizes: tuple[tuple[str, tuple[int, ...]], ...]
    """((resource, [zones] amount), ...) from which widths are computed: capacity of cpu and devices, allocatable of
    memory."""


class ZoneAdmission(NamedTuple):
    """The zones that the kubelet uses for an admitted pod."""

    taken: Mapping[str, tuple[int, ...]]
    """Resource -> [zones] amount that the pod holds in each zone."""
    sets: tuple[int, ...]
    """Zone set of each request."""

    @property
    def span(self) -> int:
        """Size of the largest zone set; 0 if nothing is aligned."""
        return max((one.bit_count() for one in self.sets), default=0)

    @property
    def union(self) -> int:
        """The zones of all requests."""
        out = 0
        for one in self.sets:
            out |= one
        return out


NOTHING_ALIGNED = ZoneAdmission({}, ())
"""Admission of a pod without aligned amounts."""


def is_memory(resource: str) -> bool:
    """Returns whether the Memory Manager, not the CPU or Device Manager, aligns a resource."""
    return resource == "memory" or resource.startswith("hugepages-")


def admit(
    pod: PodAmounts, zones: Zones, free: Zoned, policy: Policy, groups: frozenset[int] = frozenset()
) -> ZoneAdmission | RequestPart:
    """Returns the zones that the kubelet uses for a pod, or the part of the pod that it rejects first.

    free: resource -> [zones] free amount; negative counts as 0. groups: zone sets of other pods with memory.
    """
    state = _AdmissionState(zones, free, groups)
    sets: list[int] = []
    for request in pod.requests:
        found = _choose(request, state, policy)
        if found is None:
            return request.part
        sets.append(found)
        if request.part is RequestPart.POD:
            state.take_held(pod.held, found)
        else:
            state.take(request, found)
    return ZoneAdmission({name: tuple(row) for name, row in state.held.items() if any(row)}, tuple(sets))


def find_rejected_request(
    pod: PodAmounts, zones: Zones, free: Zoned, policy: Policy, groups: frozenset[int] = frozenset()
) -> tuple[Request, Zoned] | None:
    """Returns (the request that the kubelet rejects first, resource -> [zones] amount that it finds there).

    The amounts are free, or reusable by the request. None if the kubelet admits the pod. Arguments as for `admit`.
    """
    state = _AdmissionState(zones, free, groups)
    for request in pod.requests:
        found = _choose(request, state, policy)
        if found is None:
            singles = [1 << zone for zone in range(state.count)]
            return request, {name: tuple(state.available(name, one) for one in singles) for name, _ in request.amounts}
        state.take(request, found)
    return None


def _choose(request: Request, state: "_AdmissionState", policy: Policy) -> int | None:
    """Returns the zone set of a request; None if the kubelet rejects the pod."""
    wanted = widths(request.amounts, state.zones)
    width = wanted[0][1]
    agreed = all(one == width for _, one in wanted)
    if agreed and not (policy is Policy.SINGLE and width > 1):
        for mask in sets_by_size(state.count)[width]:
            if all(state.prefers(name, amount, mask) for name, amount in request.amounts):
                return mask
    if policy.rejects:
        return None
    for mask in all_sets(state.count):
        if all(state.available(name, mask) >= amount for name, amount in request.amounts):
            return mask
    return (1 << state.count) - 1


@lru_cache(maxsize=1 << 14)
def widths(amounts: tuple[tuple[str, int], ...], zones: Zones) -> tuple[tuple[str, int], ...]:
    """Returns (resource, width) of each amount: the fewest zones that could hold it on an empty node.

    The memory types of a request share one width.
    """
    sizes, count = dict(zones.sizes), len(zones.numbers)
    memory = {name: amount for name, amount in amounts if is_memory(name)}
    shared = next(
        (
            mask.bit_count()
            for mask in all_sets(count)
            if all(sum_in(sizes[name], mask) >= amount for name, amount in memory.items())
        ),
        count,
    )
    return tuple(
        (name, shared if name in memory else _fewest_zones(amount, sizes[name], count)) for name, amount in amounts
    )


def _fewest_zones(amount: int, sizes: Sequence[int], count: int) -> int:
    """Returns the smallest number of zones with a total size of at least an amount; the number of all zones if
    they are too small."""
    total = 0
    for number, size in enumerate(sorted(sizes, reverse=True), 1):
        total += size
        if total >= amount:
            return number
    return count


class _AdmissionState:
    """Free and reusable amounts while the requests of one pod are admitted one after the other."""

    def __init__(self, zones: Zones, free: Zoned, groups: frozenset[int]) -> None:
        self.zones = zones
        self.count = len(zones.numbers)
        self._free = {name: [max(0, one) for one in row] for name, row in free.items()}
        self._groups = groups
        self.held: dict[str, list[int]] = {}
        """Resource -> [zones] amount that containers and sidecars hold."""
        self._reusable: dict[str, list[int]] = {}
        """Resource of the CPU or Device Manager -> [zones] amount that init containers left to later containers."""
        self._memory: dict[tuple[int, str], list[int]] = {}
        """(zone set, memory type) -> [zones] amount that init containers left to later containers of the same set."""

    def _reuse_of(self, resource: str, mask: int) -> Sequence[int]:
        """Returns [zones] amounts of a resource that a container in a zone set may reuse; empty if there are none."""
        return self._memory.get((mask, resource), ()) if is_memory(resource) else self._reusable.get(resource, ())

    def available(self, resource: str, mask: int) -> int:
        """Returns the free and reusable amount of a resource in a zone set."""
        reuse = self._reuse_of(resource, mask)
        return sum_in(self._free[resource], mask) + (sum_in(reuse, mask) if reuse else 0)

    def prefers(self, resource: str, amount: int, mask: int) -> bool:
        """Returns whether the manager of a resource prefers a zone set of the width of the amount."""
        if self.available(resource, mask) < amount:
            return False
        if is_memory(resource):
            return self._is_ungrouped(mask)
        return all(mask >> i & 1 for i, left in enumerate(self._reusable.get(resource, ())) if left)

    def _is_ungrouped(self, mask: int) -> bool:
        """Returns True if no zone of a set has memory of a pod that uses another zone set.

        For a set of one zone, only other sets of several zones count.
        """
        several = mask.bit_count() > 1
        return not any(one & mask and one != mask and (several or one.bit_count() > 1) for one in self._groups)

    def take(self, request: Request, mask: int) -> None:
        """Takes the amounts of a container from its zone set: reusable amounts first."""
        for name, amount in request.amounts:
            reuse = list(self._reuse_of(name, mask)) or [0] * self.count
            reused = spread(min(amount, sum_in(reuse, mask)), reuse, mask)
            fresh = self._take_free(name, amount - sum(reused), mask)
            if request.part is RequestPart.INIT:
                left = [one + new for one, new in zip(reuse, fresh, strict=True)]
            else:
                left = [one - used for one, used in zip(reuse, reused, strict=True)]
                row = self.held.setdefault(name, [0] * self.count)
                for i in range(self.count):
                    row[i] += reused[i] + fresh[i]
            if is_memory(name):
                self._memory[mask, name] = left
                self._groups |= {mask}
            else:
                self._reusable[name] = left

    def take_held(self, held: Sequence[tuple[str, int]], mask: int) -> None:
        """Takes the amounts that a pod holds from its zone set, with scope pod."""
        for name, amount in held:
            self.held[name] = self._take_free(name, amount, mask)

    def _take_free(self, resource: str, amount: int, mask: int) -> list[int]:
        """Takes an amount from the free amounts of a zone set; returns [zones] what is taken."""
        free = self._free[resource]
        out = spread(amount, free, mask)
        for i, one in enumerate(out):
            free[i] = max(0, free[i] - one)
        return out


def spread(amount: int, free: Sequence[int], mask: int) -> list[int]:
    """Returns [zones] the parts of an amount that are taken from each zone of a set.

    Zones are used in ascending order, each up to its free amount; the last zone takes the rest.
    """
    out = [0] * len(free)
    zones = zones_in(mask)
    for i in zones:
        out[i] = min(amount, max(0, free[i]))
        amount -= out[i]
    if amount > 0:
        out[zones[-1]] += amount
    return out


def copies(
    pod: PodAmounts,
    zones: Zones,
    free: Zoned,
    policy: Policy,
    groups: frozenset[int] = frozenset(),
    *,
    most: int,
) -> int:
    """Returns how many copies of a pod are admitted one after the other, at most `most` (numa.md 7)."""
    if not pod.requests:
        return most
    if policy is Policy.SINGLE and len(pod.requests) == 1 and pod.requests[0].amounts == pod.held:
        # the copies of each zone are independent of each other, because every copy uses one zone
        closed = frozenset[int]() if not any(is_memory(name) for name, _ in pod.held) else groups
        if any(width > 1 for _, width in widths(pod.held, zones)):
            return 0
        fits = (
            min(max(0, free[name][i]) // amount for name, amount in pod.held)
            for i in range(len(zones.numbers))
            if not any(one >> i & 1 and one.bit_count() > 1 for one in closed)
        )
        return min(most, sum(fits))
    left = dict(free)
    for number in range(most):
        found = admit(pod, zones, left, policy, groups)
        if not isinstance(found, ZoneAdmission):
            return number
        if not found.taken:
            return most
        left = minus(left, found.taken)
        groups |= memory_sets([found.taken])
    return most


def minus(free: Zoned, taken: Zoned) -> dict[str, tuple[int, ...]]:
    """Returns free amounts without those that a pod takes. Resources that the zones do not have are left out."""
    out = dict(free)
    for name, row in taken.items():
        if name in out:
            out[name] = tuple(have - used for have, used in zip(out[name], row, strict=True))
    return out


def memory_sets(pods: Sequence[Zoned]) -> frozenset[int]:
    """Returns the zone sets in which pods have memory. pods: zone records."""
    return frozenset(mask for one in pods for mask in _memory_set(one))


def _memory_set(record: Zoned) -> Iterator[int]:
    """Yields the zone set in which a pod has memory; nothing for a pod without."""
    mask = 0
    for name, row in record.items():
        if is_memory(name):
            mask |= sum(1 << i for i, amount in enumerate(row) if amount)
    if mask:
        yield mask
