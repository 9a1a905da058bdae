# SPDX-License-Identifier: Apache-2.0
"""Admission by the kubelet as numa.md 3 states it, by brute force over all zone sets; shares no code with the planner.

Zone sets are frozensets of zone numbers. A pod is a list of (kind, {resource: amount}) of its containers, kind one of
init, sidecar, container; a node is {zone: {resource: (capacity, allocatable, free)}}.
"""

from collections.abc import Iterable
from itertools import combinations

Node = dict[int, dict[str, tuple[int, int, int]]]
Containers = list[tuple[str, dict[str, int]]]
ZoneSet = frozenset[int]
Answer = tuple[bool, dict[str, dict[int, int]]]
"""(whether the pod is admitted, resource -> zone -> amount that it holds)."""


def zone_sets(zones: Iterable[int]) -> list[ZoneSet]:
    """Returns all zone sets: the fewest zones first, then the smallest sum of 2^number."""
    numbers = list(zones)
    found = [frozenset(some) for size in range(1, len(numbers) + 1) for some in combinations(numbers, size)]
    return sorted(found, key=lambda one: (len(one), sum(2**number for number in one)))


def is_memory(resource: str) -> bool:
    return resource == "memory" or resource.startswith("hugepages-")


class Kubelet:
    """One node while one pod is admitted."""

    def __init__(self, node: Node, policy: str, groups: Iterable[ZoneSet] = ()) -> None:
        self.node, self.policy, self.groups = node, policy, set(groups)
        self.free = {(z, r): amounts[2] for z, own in node.items() for r, amounts in own.items()}
        self.reuse: dict[tuple[object, str], dict[int, int]] = {}
        self.held: dict[str, dict[int, int]] = {}

    def size(self, zone: int, resource: str) -> int:
        return self.node[zone][resource][1 if is_memory(resource) else 0]

    def width(self, resource: str, request: dict[str, int]) -> int:
        together = [r for r in request if is_memory(r)] if is_memory(resource) else [resource]
        for zones in zone_sets(self.node):
            if all(sum(self.size(z, r) for z in zones) >= request[r] for r in together):
                return len(zones)
        return len(self.node)

    def reusable(self, resource: str, zones: ZoneSet) -> dict[int, int]:
        return self.reuse.get((zones if is_memory(resource) else None, resource), {})

    def has_free(self, resource: str, amount: int, zones: ZoneSet) -> bool:
        again = self.reusable(resource, zones)
        return sum(max(0, self.free[z, resource]) + again.get(z, 0) for z in zones) >= amount

    def prefers(self, resource: str, request: dict[str, int], zones: ZoneSet) -> bool:
        if len(zones) != self.width(resource, request) or not self.has_free(resource, request[resource], zones):
            return False
        if is_memory(resource):
            if len(zones) > 1:
                return not any(group != zones and group & zones for group in self.groups)
            return not any(len(group) > 1 and group & zones for group in self.groups)
        return all(z in zones for z, amount in self.reusable(resource, zones).items() if amount)

    def choose(self, request: dict[str, int]) -> ZoneSet | None:
        every = zone_sets(self.node)
        for zones in every:
            if self.policy == "single-numa-node" and len(zones) > 1:
                continue
            if all(self.prefers(r, request, zones) for r in request):
                return zones
        if self.policy != "best-effort":
            return None
        for zones in every:
            if all(self.has_free(r, amount, zones) for r, amount in request.items()):
                return zones
        return every[-1]

    def take(self, resource: str, amount: int, zones: ZoneSet) -> dict[int, int]:
        """Takes an amount from free amounts, ascending; the last zone takes the rest."""
        out: dict[int, int] = {}
        for zone in sorted(zones):
            out[zone] = min(amount, max(0, self.free[zone, resource]))
            if zone == max(zones):
                out[zone] = amount
            amount -= out[zone]
            self.free[zone, resource] -= out[zone]
        return out

    def hold(self, resource: str, amounts: dict[int, int]) -> None:
        row = self.held.setdefault(resource, {})
        for zone, amount in amounts.items():
            if amount:
                row[zone] = row.get(zone, 0) + amount

    def admit_pod(self, request: dict[str, int], held: dict[str, int]) -> Answer:
        if request:
            zones = self.choose(request)
            if zones is None:
                return False, {}
            for resource, amount in held.items():
                self.hold(resource, self.take(resource, amount, zones))
        return True, {r: row for r, row in self.held.items() if row}

    def admit_containers(self, containers: Containers) -> Answer:
        for kind, request in containers:
            if not request:
                continue
            zones = self.choose(request)
            if zones is None:
                return False, {}
            for resource, amount in request.items():
                again = dict(self.reusable(resource, zones))
                reused: dict[int, int] = {}
                for zone in sorted(zones):
                    reused[zone] = min(amount - sum(reused.values()), again.get(zone, 0))
                fresh = self.take(resource, amount - sum(reused.values()), zones)
                if kind == "init":
                    left = {z: again.get(z, 0) + fresh.get(z, 0) for z in {*again, *fresh}}
                else:
                    left = {z: amount - reused.get(z, 0) for z, amount in again.items()}
                    self.hold(resource, reused)
                    self.hold(resource, fresh)
                self.reuse[zones if is_memory(resource) else None, resource] = left
                if is_memory(resource):
                    self.groups.add(zones)
        return True, {r: row for r, row in self.held.items() if row}


def kubelet_answer(
    node: Node,
    containers: Containers,
    policy: str,
    scope: str,
    groups: Iterable[ZoneSet] = (),
) -> Answer:
    """Returns what the kubelet does with a pod."""
    kubelet = Kubelet(node, policy, groups)
    if scope == "container":
        return kubelet.admit_containers(containers)
    total: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    held: dict[str, int] = {}
    for resource in {r for _, own in containers for r in own}:
        apps = sum(own.get(resource, 0) for kind, own in containers if kind != "init")
        peak = running = 0
        for kind, own in containers:
            if kind == "sidecar":
                running += own.get(resource, 0)
                peak = max(peak, running)
            elif kind == "init":
                peak = max(peak, running + own.get(resource, 0))
        total[resource], sidecars[resource], held[resource] = max(apps, peak), running, apps
    used = {r: amount for r, amount in held.items() if amount}
    return kubelet.admit_pod({r: amount for r, amount in total.items() if amount}, used)
