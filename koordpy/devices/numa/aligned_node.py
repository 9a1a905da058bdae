# SPDX-License-Identifier: Apache-2.0
"""The zones of one node as the kubelet aligns them: from its report, its label and its Device (numa.md 1 and 4)."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial

from koordpy.api import keys
from koordpy.api.bounded_memory import shared
from koordpy.config.configuration import Gpu, KoordpyConfiguration
from koordpy.config.numa_settings import NumaSettings
from koordpy.devices.gpu.gpu_view import NodeGpus
from koordpy.devices.numa.admission import Policy, Scope, Zoned, Zones, is_memory, memory_sets
from koordpy.devices.numa.free_amounts import FreeZones, ReportedPod, free_amounts
from koordpy.devices.numa.numa_book import NodeNuma, ZonePod
from koordpy.devices.numa.zone_records import ByZone
from koordpy.devices.numa.zone_sets import MOST_ZONES
from koordpy.devices.numa.zone_state import NO_ZONES, Row, ZoneKind, ZoneState
from koordpy.pods.resource_amounts import Amounts

Settings = tuple[NumaSettings, Gpu]
"""Settings of NUMA zones and of GPUs."""


@dataclass(frozen=True, eq=False)
class AlignedNode:
    """The zones of a node and what its report says about them. Amounts are in the units of `api.quantity.units`."""

    numa: NodeNuma
    gpus: NodeGpus | None
    """GPUs by the Device of the node; None without a Device."""
    kind: ZoneKind = NO_ZONES
    available: Zoned = field(default_factory=dict)
    """Resource -> [zones] amount that the report shows as free; without `by_device`."""
    by_device: Mapping[str, int] = field(default_factory=dict)
    """GPU resource with free amounts in the Device -> units of one GPU."""
    read_by_name: Callable[[], "AlignedNode"] | None = None
    """Reads the node as if the GPUs of all its pods were known. None if they are, or if that would change nothing."""

    @cached_property
    def by_name(self) -> "AlignedNode":
        """The node once pods with unknown GPUs have left it; the kubelet then aligns its GPUs."""
        return self.read_by_name() if self.read_by_name is not None else self

    @cached_property
    def listed(self) -> Zoned:
        """Resource -> [zones] allocatable amount, for the resources with free amounts in the report."""
        return {name: row for name, row in self.kind.total if name not in self.by_device}

    def free_by_report(self, gone: Collection[str] = ()) -> FreeZones:
        """Returns what is free of `listed` without pods that were placed after the report. gone: keys of pods that have
        left besides."""
        pods = [known._replace(gone=known.gone or pod.pod.key in gone) for pod, known in self.reported]
        return free_amounts(self.listed, self.available, pods)

    @cached_property
    def start(self) -> ZoneState:
        """The zones with all pods that are bound to the node, and the GPUs that are free by its Device."""
        gpus = self.gpus
        return self.state_without((), gpus.machine.healthy & ~gpus.allocated if gpus is not None else 0)

    def state_without(self, gone: Collection[str], free_gpus: int) -> ZoneState:
        """Returns the zones without the given pods (keys) of the node. free_gpus: mask of the free GPUs by its
        Device."""
        kind, free = self.kind, dict(self.free_by_report(gone).free)
        for name, scale in self.by_device.items():
            free[name] = tuple((free_gpus & own).bit_count() * scale for own in kind.gpu_zones)
        zone, extra = self.numa.extra_free
        for name, amount in extra:
            numbers = zip(kind.numbers, free[name], strict=True)
            free[name] = tuple(have + amount * (number == zone) for number, have in numbers)
        staying = [known.record for pod, known in self.reported if not (known.gone or pod.pod.key in gone)]
        state = shared(ZoneState(kind, tuple(sorted(free.items())), memory_sets(staying)))
        for key, pod in self.numa.since.items() if kind.has_data else ():
            if key not in gone:
                state = state.after_pod(pod.ask, self.beside_device(self.record_of(pod)))
        return state

    def beside_device(self, record: Zoned) -> Zoned:
        """Returns a zone record without the amounts of GPU resources with free amounts in the Device, because these
        GPUs are counted by name."""
        if not self.by_device:
            return record
        return {name: (0,) * len(row) if name in self.by_device else row for name, row in record.items()}

    @cached_property
    def reported(self) -> tuple[tuple[ZonePod, ReportedPod], ...]:
        """Pods that were on the node when its report last changed, also those that have left."""
        there, left = self.numa.pods.values(), self.numa.left
        return tuple((pod, self._reported(pod, gone=i >= len(there))) for i, pod in enumerate((*there, *left)))

    def _reported(self, pod: ZonePod, *, gone: bool) -> ReportedPod:
        return ReportedPod(dict(pod.ask.held), self.record_of(pod), gone)

    def record_of(self, pod: ZonePod) -> Zoned:
        """Returns the zone record of a pod: resource -> [zones] amount; resources with unknown zones are left out.

        The first source counts with amounts that are in zones of the node and sum to what the pod holds (numa.md 4).
        """
        out: dict[str, Row] = {}
        minors = self._gpu_record(pod)
        reported = self.numa.report.cpus.get(pod.pod.key, {})
        for name, amount in pod.ask.held:
            if name not in self.kind.resources:
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
        if sum(used.values()) != total or not used.keys() <= set(self.kind.numbers):
            return None
        return tuple(used.get(number, 0) for number in self.kind.numbers)

    def _gpu_record(self, pod: ZonePod) -> ByZone:
        """Returns the GPU resources of a pod by zone, of GPUs that are known by name."""
        mask = self.gpus.masks.get(pod.pod.key) if self.gpus is not None and self.kind.gpu_zones else None
        if not mask:
            return {}
        zones = zip(self.kind.numbers, self.kind.gpu_zones, strict=True)
        rows = {number: (mask & own).bit_count() for number, own in zones}
        return {name: {number: one * units_of(name) for number, one in rows.items()} for name in self.kind.resources}


def units_of(resource: str) -> int:
    """Returns the amount of a GPU resource that is one GPU."""
    return 100 if resource in keys.HUNDREDTHS else 1


def aligned_node(
    numa: NodeNuma, gpus: NodeGpus | None, amounts: Amounts, settings: Settings, *, by_name: bool = False
) -> AlignedNode:
    """Returns the zones of a node; arguments as in `AlignedNode`. With `numa.enabled: false` no zones are known.

    by_name: True to read the node as if the GPUs of all its pods were known.
    """
    (numa_settings, gpu), report = settings, numa.report.zones
    machine = gpus.machine if gpus is not None else None
    places = machine.numa if machine is not None and machine.numa and min(machine.numa) >= 0 else None
    listed = {name for zone in report.values() for name in zone}
    own = [name for name in gpu.resources if amounts.get(name)]
    delivered = machine is not None and (machine.delivery or gpu.delivery) in ("env", "device-plugin")
    by_device = {name: units_of(name) for name in own if places and (delivered or listed.isdisjoint(own))}
    numbers = tuple(sorted({*report, *(places if by_device and places else ())}))
    if not numbers or len(numbers) > MOST_ZONES or not numa_settings.enabled:
        return AlignedNode(numa, gpus)
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
    count_only = gpus is not None and gpus.unknown and not by_name and bool(by_device)
    if count_only:
        # a count-only node: nothing tells from which zone its GPUs come
        for name in by_device:
            allocatable.pop(name, None)
        by_device = {}
    out_of = numa.report.unaligned | frozenset(numa_settings.ignore_resources)
    aligned = {name: row for name, row in allocatable.items() if any(row) and name not in out_of}
    sizes = {name: allocatable[name] if is_memory(name) else capacity[name] for name in aligned}
    return AlignedNode(
        numa,
        gpus,
        kind=shared(
            ZoneKind(
                policy=numa.policy,
                scope=numa.report.scope if numa.report.policy is not None else Scope.POD,
                zones=Zones(numbers, tuple(sorted(sizes.items()))),
                total=tuple(sorted(aligned.items())),
                gpu_zones=gpu_zones,
            )
        ),
        available={name: row for name, row in available.items() if name in aligned and name not in by_device},
        by_device={name: one for name, one in by_device.items() if name in aligned},
        read_by_name=partial(aligned_node, numa, gpus, amounts, settings, by_name=True) if count_only else None,
    )


def _minus(row: Row, less: Row) -> Row:
    return tuple(one - other for one, other in zip(row, less, strict=True))


def report_state(config: KoordpyConfiguration, numa: NodeNuma) -> str:
    """Returns whether the report of a node shows exactly the pods on it: `exact`, `behind`, or `none` without a report.

    Empty for a node without a policy, or with one zone. GPUs of the Device are left out.
    """
    if not config.numa.enabled or numa.policy is Policy.NONE:
        return ""
    found = aligned_node(numa, None, {}, (config.numa, config.gpu))
    if not found.kind.numbers:
        return "none"
    if not found.kind.has_data:
        return ""
    return "exact" if found.free_by_report().exact else "behind"
