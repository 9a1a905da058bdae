# SPDX-License-Identifier: Apache-2.0
"""Reads a NodeResourceTopology: zones, amounts, and policy and scope of the kubelet's Topology Manager (numa.md 1)."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from koordpy.api import keys
from koordpy.api.bounded_memory import cached
from koordpy.api.custom_objects import NodeResourceTopology, TopologyZone, ZoneResource
from koordpy.api.field_faults import UnreadableError
from koordpy.api.json_text import read_json
from koordpy.api.objects import Node, Quantity
from koordpy.api.quantity import units
from koordpy.devices.numa.admission import Policy, Scope, is_memory
from koordpy.devices.numa.zone_sets import MOST_ZONES

_NUMBER = re.compile(r"([0-9]{1,9})$", re.ASCII)
_POLICY, _SCOPE = "topologyManagerPolicy", "topologyManagerScope"
_POLICIES = {one.value: one for one in Policy}
_SCOPES = {one.value: one for one in Scope}
_WORDS = {
    "SingleNUMANode": Policy.SINGLE,
    "Restricted": Policy.RESTRICTED,
    "BestEffort": Policy.BEST_EFFORT,
    "None": Policy.NONE,
}
"""Policy of `topologyPolicies` and of the node label -> policy."""
_SUFFIXES = {"PodLevel": Scope.POD, "ContainerLevel": Scope.CONTAINER}
KIND = "NodeResourceTopology"


@dataclass(frozen=True, slots=True)
class ZoneAmounts:
    """Amounts of one resource in one zone, in the units of `api.quantity.units`."""

    capacity: int
    allocatable: int
    available: int


@dataclass(frozen=True, eq=False)
class TopologyReport:
    """The content of a node's report (NodeResourceTopology)."""

    zones: Mapping[int, Mapping[str, ZoneAmounts]] = field(default_factory=dict)
    """Number of each zone -> resource -> amounts, ascending."""
    policy: Policy | None = None
    """Policy of the kubelet. None if the report states no policy or `none`; then the label of the node decides. NONE
    for an unknown policy."""
    scope: Scope = Scope.CONTAINER
    unaligned: frozenset[str] = frozenset()
    """Resources that the kubelet does not align although zones list them."""
    cpus: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """`namespace/name` of a pod -> number of a zone -> CPUs that the report assigns to the pod, in millicores."""
    warnings: tuple[tuple[str, str], ...] = ()
    """(object, text) of parts that are ignored."""

    @cached_property
    def totals(self) -> tuple[object, ...]:
        """Equal for reports that differ only in available amounts and in what they say about pods."""
        zones = {
            number: {name: (one.capacity, one.allocatable) for name, one in zone.items()}
            for number, zone in self.zones.items()
        }
        return self.policy, self.scope, self.unaligned, zones


NO_REPORT = TopologyReport()
"""The report of a node without a report object."""


def read_report(topology: NodeResourceTopology) -> TopologyReport:
    """Reads a report. Raises `UnreadableError` for an unreadable quantity."""
    where = f"{KIND}/{topology.metadata.name}"
    warnings: list[str] = []
    zones = _zones(topology.zones, warnings)
    annotations = topology.metadata.annotations
    attributes = {one.name: one.value for one in reversed(topology.attributes)}
    manager = _json_of(annotations, keys.CPU_MANAGER_POLICY, warnings)
    cpu_zones = _cpu_zones(annotations, warnings)
    reserved = manager.get("reservedCPUs") if isinstance(manager, dict) else None
    for cpu, zone in cpu_zones.items() if isinstance(reserved, str) else ():
        if zone in zones and "cpu" in zones[zone] and cpu in _cpuset(reserved):
            one = zones[zone]["cpu"]
            less = ZoneAmounts(one.capacity, max(0, one.allocatable - 1000), max(0, one.available - 1000))
            zones[zone]["cpu"] = less
    policy, scope = _policy(attributes, topology.topology_policies, warnings)
    return TopologyReport(
        zones=dict(sorted(zones.items())),
        policy=policy,
        scope=scope,
        unaligned=frozenset(_unaligned(attributes, manager, zones)),
        cpus=_pod_cpus(annotations, cpu_zones, warnings),
        warnings=tuple((where, text) for text in warnings),
    )


def label_policy(node: Node) -> tuple[Policy, str]:
    """Returns (policy of a node by its label, warning about an unknown value or empty); none without the label."""
    text = node.metadata.labels.get(keys.NUMA_POLICY)
    if not text or text in _WORDS:
        return _WORDS.get(text or "", Policy.NONE), ""
    return Policy.NONE, f'label {keys.NUMA_POLICY} "{text}" is unknown: none holds'


def _zones(listed: Sequence[TopologyZone], warnings: list[str]) -> dict[int, dict[str, ZoneAmounts]]:
    """Returns number of a zone -> resource -> amounts; empty if the report is ignored as a whole."""
    found: dict[int, dict[str, ZoneAmounts]] = {}
    names: dict[int, str] = {}
    for i, zone in enumerate(listed):
        if zone.type != "Node":
            continue
        match = _NUMBER.search(zone.name)
        if match is None:
            warnings.append(f'zones[{i}]: name "{zone.name}" ends in no number: ignored')
            continue
        number = int(match[1])
        if number in names:
            warnings.append(f"{names[number]} and {zone.name} have one number: the report is ignored")
            return {}
        names[number] = zone.name
        found[number] = {one.name: _amounts(one, f"zones[{i}].resources[{j}]") for j, one in enumerate(zone.resources)}
    if len(found) > MOST_ZONES:
        warnings.append(f"{len(found)} zones, at most {MOST_ZONES}: the report is ignored")
        return {}
    return found


def _amounts(one: ZoneResource, path: str) -> ZoneAmounts:
    """Returns the amounts of a resource; a missing capacity equals allocatable and the reverse, a missing available
    equals allocatable. path: of the resource, for the fault."""

    def read(field: str, text: Quantity | None) -> int | None:
        try:
            return None if text is None else units(one.name, text)
        except UnreadableError as fault:
            raise UnreadableError(f"{path}.{field}: {fault}") from None

    capacity, allocatable = read("capacity", one.capacity), read("allocatable", one.allocatable)
    available = read("available", one.available)
    if allocatable is None:
        allocatable = capacity or 0
    return ZoneAmounts(
        allocatable if capacity is None else capacity, allocatable, allocatable if available is None else available
    )


def _policy(attributes: Mapping[str, str], policies: Sequence[str], warnings: list[str]) -> tuple[Policy | None, Scope]:
    """Returns policy and scope of the kubelet; policy None if the report states none."""
    scope = Scope.CONTAINER
    named = attributes.get(_SCOPE)
    if named:
        if named not in _SCOPES:
            warnings.append(f'attribute {_SCOPE} "{named}" is unknown: {scope} holds')
        scope = _SCOPES.get(named, scope)
    word = attributes.get(_POLICY)
    if word:
        if word not in _POLICIES:
            warnings.append(f'attribute {_POLICY} "{word}" is unknown: none holds')
        return _stated(_POLICIES.get(word, Policy.NONE), word == Policy.NONE), scope
    if not policies or not policies[0]:
        return None, scope
    bare = policies[0]
    for suffix, its_scope in _SUFFIXES.items():
        if bare.endswith(suffix):
            bare = bare.removesuffix(suffix)
            scope = its_scope if not named else scope
    if bare not in _WORDS:
        warnings.append(f'topologyPolicies[0] "{policies[0]}" is unknown: none holds')
    return _stated(_WORDS.get(bare, Policy.NONE), bare == "None"), scope


def _stated(policy: Policy, is_none: bool) -> Policy | None:
    return None if is_none else policy


def _unaligned(attributes: Mapping[str, str], manager: Any, zones: Mapping[int, Mapping[str, Any]]) -> Iterator[str]:
    """Yields the resources that the kubelet's managers do not align."""
    by_koordlet = manager is not None
    cpu = attributes.get("cpuManagerPolicy") or (manager.get("policy") if isinstance(manager, dict) else None)
    if cpu and cpu != "static":
        yield "cpu"
    if attributes.get("memoryManagerPolicy", "Static") != "Static" or by_koordlet:
        yield from {name for zone in zones.values() for name in zone if is_memory(name)}


def _json_of(annotations: Mapping[str, str], key: str, warnings: list[str]) -> Any:
    """Returns the JSON value of an annotation; None without the annotation, {} if it cannot be read."""
    if key not in annotations:
        return None
    try:
        return read_json(annotations[key])
    except UnreadableError as fault:
        warnings.append(f"annotation {key} cannot be read: {fault}: ignored")
        return {}


def _cpu_zones(annotations: Mapping[str, str], warnings: list[str]) -> dict[int, int]:
    """Returns number of a CPU -> number of its zone."""
    raw = _json_of(annotations, keys.CPU_TOPOLOGY, warnings)
    detail = raw.get("detail") if isinstance(raw, dict) else None
    entries = [one for one in detail if isinstance(one, dict)] if isinstance(detail, list) else []
    pairs = ((one.get("id"), one.get("node")) for one in entries)
    return {cpu: zone for cpu, zone in pairs if type(cpu) is int and type(zone) is int}


@cached(256)
def _cpuset(text: str) -> frozenset[int]:
    """Returns the CPUs of a set such as `0-3,8`; parts that are no numbers, or above 4095, are left out."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if first.isdecimal() and len(first) < 5 and (not dash or (last.isdecimal() and len(last) < 5)):
            found.update(range(int(first), min(int(last or first), 4095) + 1))
    return frozenset(found)


def _pod_cpus(
    annotations: Mapping[str, str], cpu_zones: Mapping[int, int], warnings: list[str]
) -> dict[str, dict[int, int]]:
    """Returns `namespace/name` of a pod -> number of a zone -> millicores that the report assigns to it."""
    raw = _json_of(annotations, keys.POD_CPU_ALLOCS, warnings)
    out: dict[str, dict[int, int]] = {}
    for one in raw if isinstance(raw, list) else ():
        if not isinstance(one, dict) or not isinstance(one.get("cpuset"), str):
            continue
        by_zone: dict[int, int] = {}
        for cpu in _cpuset(one["cpuset"]):
            if cpu in cpu_zones:
                by_zone[cpu_zones[cpu]] = by_zone.get(cpu_zones[cpu], 0) + 1000
        out[f"{one.get('namespace')}/{one.get('name')}"] = by_zone
    return out
