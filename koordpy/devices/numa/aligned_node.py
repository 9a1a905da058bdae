# SPDX-License-Identifier: Apache-2.0
"""The zones of one node as the kubelet aligns them: from its report, its label and its Device (numa.md 1 and 4)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from koordpy.api import keys
from koordpy.config.configuration import Gpu, KoordpyConfiguration
from koordpy.config.numa_settings import NumaSettings
from koordpy.devices.gpu.gpu_view import NodeGpus
from koordpy.devices.numa.admission import Policy, Scope, Zoned, Zones, is_memory
from koordpy.devices.numa.free_amounts import ReportedPod, free_amounts
from koordpy.devices.numa.numa_book import NodeNuma, ZonePod
from koordpy.devices.numa.zone_records import ByZone
from koordpy.devices.numa.zone_sets import MOST_ZONES
from koordpy.pods.resource_amounts import Amounts

Row = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class AlignedNode:
    """The zones of a node. Amounts are in the units of `api.quantity.units`."""

    numa: NodeNuma
    policy: Policy
    scope: Scope
    zones: Zones
    """Zones of all aligned resources."""
    allocatable: Zoned
    """Resource -> [zones] amount; only aligned resources."""
    available: Zoned
    """Resource -> [zones] amount that the report shows as free; without `by_device`."""
    by_device: Mapping[str, int] = field(default_factory=dict)
    """GPU resource of which the Device states free amounts -> units of one GPU."""
    gpu_zones: Row = ()
    """[zones] mask of the GPUs of each zone; empty if the zone of a GPU is not known."""
    gpus: NodeGpus | None = None
    """GPUs by the Device of the node; None without a Device."""
    memo: dict[object, Any] = field(default_factory=dict, repr=False)
    """Values that other modules derive from this object."""

    @cached_property
    def key(self) -> object:
        """A hashable value that is equal for nodes with equal zones, apart from what is free."""
        return self.policy, self.scope, self.zones, tuple(sorted(self.allocatable.items()))

    @cached_property
    def reported(self) -> tuple[tuple[ZonePod, ReportedPod], ...]:
        """Pods that were on the node when its report last changed, also those that have left."""
        there, left = self.numa.pods.values(), self.numa.left
        return tuple((pod, self._reported(pod, gone=i >= len(there))) for i, pod in enumerate((*there, *left)))

    def _reported(self, pod: ZonePod, *, gone: bool) -> ReportedPod:
        return ReportedPod(dict(pod.ask.held), self.record_of(pod), gone)

    @property
    def numbers(self) -> Row:
        """[zones] number of each zone, ascending."""
        return self.zones.numbers

    @cached_property
    def has_data(self) -> bool:
        """True if the kubelet aligns pods on the node: it has a policy and several zones."""
        return self.policy is not Policy.NONE and len(self.numbers) > 1

    @cached_property
    def resources(self) -> frozenset[str]:
        """Resources that the node aligns."""
        return frozenset(self.allocatable)

    def record_of(self, pod: ZonePod) -> Zoned:
        """Returns the zone record of a pod: resource -> [zones] amount; resources with unknown zones are left out.

        The first source counts with amounts that are in zones of the node and sum to what the pod holds (numa.md 4).
        """
        out: dict[str, Row] = {}
        minors = self._gpu_record(pod)
        reported = self.numa.report.cpus.get(pod.pod.key, {})
        for name, amount in pod.ask.held:
            if name not in self.allocatable:
                continue
            sources: tuple[Mapping[int, int] | None, ...] = (
                pod.stated.exported.get(name),
                reported if name == "cpu" else None,
                pod.stated.planned.get(name),
                minors.get(name),
            )
            row = next((row for one in sources if one and (row := self._row(one, amount)) is not None), None)
            if row is not None:
                out[name] = row
        return out

    def _row(self, amounts: Mapping[int, int], total: int) -> Row | None:
        """Returns [zones] amounts by number of a zone; None if a zone is not of the node, or the sum is another."""
        used = {number: amount for number, amount in amounts.items() if amount}
        if sum(used.values()) != total or not used.keys() <= set(self.numbers):
            return None
        return tuple(used.get(number, 0) for number in self.numbers)

    def _gpu_record(self, pod: ZonePod) -> ByZone:
        """Returns the GPU resources of a pod by zone, of GPUs that are known by name."""
        mask = self.gpus.masks.get(pod.pod.key) if self.gpus is not None and self.gpu_zones else None
        if not mask:
            return {}
        rows = {number: (mask & own).bit_count() for number, own in zip(self.numbers, self.gpu_zones, strict=True)}
        return {name: {number: count * units_of(name) for number, count in rows.items()} for name in self.allocatable}


def units_of(resource: str) -> int:
    """Returns the amount of a GPU resource that is one GPU."""
    return 100 if resource in keys.HUNDREDTHS else 1


def aligned_node(
    numa: NodeNuma, gpus: NodeGpus | None, node_amounts: Amounts, settings: NumaSettings, gpu: Gpu
) -> AlignedNode | None:
    """Returns the zones of a node; None for a node without zones.

    gpus: GPUs by the node's Device; None without a Device. node_amounts: allocatable amounts of the node.
    """
    report = numa.report.zones
    machine = gpus.machine if gpus is not None else None
    places = machine.numa if machine is not None and machine.numa and min(machine.numa) >= 0 else None
    listed = {name for zone in report.values() for name in zone}
    own = [name for name in gpu.resources if node_amounts.get(name)]
    delivered = machine is not None and (machine.delivery or gpu.delivery) in ("env", "device-plugin")
    by_device = {name: units_of(name) for name in own if places and (delivered or listed.isdisjoint(own))}
    numbers = tuple(sorted({*report, *(places if by_device and places else ())}))
    if not numbers or len(numbers) > MOST_ZONES:
        return None
    gpu_zones = (
        tuple(sum(1 << i for i, place in enumerate(places) if place == number) for number in numbers) if places else ()
    )
    capacity: dict[str, Row] = {}
    allocatable: dict[str, Row] = {}
    available: dict[str, Row] = {}
    for name in sorted(listed):
        rows = [report[number].get(name) if number in report else None for number in numbers]
        capacity[name] = tuple(one.capacity if one is not None else 0 for one in rows)
        allocatable[name] = tuple(one.allocatable if one is not None else 0 for one in rows)
        available[name] = tuple(one.available if one is not None else 0 for one in rows)
    if gpus is not None and places:
        usable = gpus.machine.healthy | gpus.allocated
        counts = tuple((usable & mask).bit_count() for mask in gpu_zones)
        for name in own:
            limit = tuple(count * units_of(name) for count in counts)
            if name in by_device:
                capacity[name] = tuple(mask.bit_count() * units_of(name) for mask in gpu_zones)
                allocatable[name] = limit
                available.pop(name, None)
            elif name in allocatable:
                less = tuple(max(0, have - most) for have, most in zip(allocatable[name], limit, strict=True))
                allocatable[name] = _minus(allocatable[name], less)
                available[name] = tuple(max(0, one) for one in _minus(available[name], less))
    if gpus is not None and gpus.unknown:
        # a count-only node: nothing tells from which zone its GPUs come
        for name in by_device:
            allocatable.pop(name, None)
        by_device = {}
    out_of = numa.report.unaligned | frozenset(settings.ignore_resources)
    aligned = {name: row for name, row in allocatable.items() if any(row) and name not in out_of}
    sizes = {name: allocatable[name] if is_memory(name) else capacity[name] for name in aligned}
    return AlignedNode(
        numa=numa,
        policy=numa.policy,
        scope=numa.report.scope if numa.report.policy is not None else Scope.POD,
        zones=Zones(numbers, tuple(sorted(sizes.items()))),
        allocatable=aligned,
        available={name: row for name, row in available.items() if name in aligned and name not in by_device},
        by_device={name: one for name, one in by_device.items() if name in aligned},
        gpu_zones=gpu_zones,
        gpus=gpus,
    )


def _minus(row: Row, less: Row) -> Row:
    return tuple(one - other for one, other in zip(row, less, strict=True))


def report_state(config: KoordpyConfiguration, numa: NodeNuma) -> str:
    """Returns whether the report of a node shows exactly the pods on it: `exact`, `behind`, or `none` without a report.

    Empty for a node without a policy, or with one zone. GPUs of the Device are left out.
    """
    if not config.numa.enabled or numa.policy is Policy.NONE:
        return ""
    found = aligned_node(numa, None, {}, config.numa, config.gpu)
    if found is None:
        return "none"
    if not found.has_data:
        return ""
    there = [pod for _, pod in found.reported]
    return "exact" if free_amounts(found.allocatable, found.available, there, ()).exact else "behind"
