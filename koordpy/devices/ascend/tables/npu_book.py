# SPDX-License-Identifier: Apache-2.0
"""The Ascend NPUs of every node: chips in use, chips that may be allocated, and unhealthy chips.

Three sources are merged (docs/rules/ascend.md 1). Annotations of pods state the chips that they use, whichever
scheduler bound the pods. The ConfigMap of a node's device plugin states its unhealthy chips; without it, annotations of
the node do. A set of chips is a mask: bit k is the chip `<prefix>-<k>`. Nodes are read on first use and after changes.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from koordpy.api import keys
from koordpy.api.objects import ConfigMap, Node, Wire
from koordpy.api.quantity import units
from koordpy.cache.snapshot import Snapshot
from koordpy.pods.family_books import FamilyBook, FamilyView, PlannedAllocation, ShownDevices
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import PodInfo

NPUS = "npus"
"""Name of the family."""
SUB_HEALTHY = "SubHealthFault"
MOST_CHIPS = 512
"""Largest number of chips of a node. A larger number is reduced to it: no server has half as many, and the cost of
choosing chips grows faster than their number."""


class NpuHolding(NamedTuple):
    """Chips that one pod on a node uses, by its annotation. chips: mask."""

    pod_key: str
    resource: str
    chips: int


@dataclass(frozen=True, slots=True)
class ChipReport:
    """Chips of one resource on one node. capacity: number of chips that the node states. unhealthy: mask."""

    capacity: int
    listed: int
    """Mask of the chips that may be allocated."""
    unhealthy: int
    unlinked: int
    """Mask of the chips with an unhealthy network."""
    sub_healthy: bool


@dataclass(frozen=True)
class Npus(FamilyView):
    """The NPUs at one moment. Immutable. Methods without a docstring implement those of `FamilyView`."""

    reports: Mapping[str, Mapping[str, ChipReport]] = field(default_factory=dict)
    """Node -> resource -> report; only nodes with NPUs."""
    holdings: Mapping[str, tuple[NpuHolding, ...]] = field(default_factory=dict)
    """Node -> chips of the pods on it."""
    config_maps: Mapping[str, ConfigMap] = field(default_factory=dict)
    """ConfigMap of the switch table by its name; empty without one."""
    jobs: Mapping[GangRef, tuple[PodInfo, ...]] = field(default_factory=dict)
    """Gang -> its bound pods with an NPU request."""

    def state_of(self, node: str) -> object:
        return self.reports.get(node)

    def moved_pods(self, before: "Npus") -> Iterator[str]:
        for name, here in self.holdings.items():
            if before.holdings.get(name) != here:
                yield from (one.pod_key for one in here)

    def cells_of(self, node: str, pod: str) -> tuple[int, ...]:
        return chip_numbers(next((one.chips for one in self.holdings.get(node, ()) if one.pod_key == pod), 0))

    def shown(self, node: str) -> ShownDevices | None:
        """Implements `FamilyView.shown`: the chips of the first resource of the node."""
        for resource, report in self.reports.get(node, {}).items():
            ill = (report.unhealthy | report.unlinked) & ((1 << report.capacity) - 1)
            return ShownDevices(report.capacity, chip_numbers(ill), product=resource)
        return None

    def without_pods(self, gone: Collection[PodInfo]) -> "Npus":
        left = {pod.key for pod in gone}
        holdings = {
            node: kept
            for node, held in self.holdings.items()
            if (kept := tuple(one for one in held if one.pod_key not in left))
        }
        jobs = self.jobs
        if any(pod.gang is not None and pod.ask(NPUS) is not None for pod in gone):
            # an unchanged tuple is reused, so that its job is not read again
            jobs = {}
            for ref, pods in self.jobs.items():
                kept_pods = tuple(pod for pod in pods if pod.key not in left)
                if kept_pods:
                    jobs[ref] = pods if len(kept_pods) == len(pods) else kept_pods
        return replace(self, holdings=holdings, jobs=jobs)

    def with_nodes(self, like: Mapping[str, str]) -> "Npus":
        chips = {new: self.reports[old] for new, old in like.items() if old in self.reports}
        return replace(self, reports={**self.reports, **chips}) if chips else self


NO_NPUS = Npus()


def npus_of(snapshot: Snapshot) -> Npus:
    """Returns the NPUs of a snapshot."""
    return cast(Npus, snapshot.families.get(NPUS, NO_NPUS))


def npu_resource(requests: Mapping[str, int]) -> str | None:
    """Returns the NPU resource of a request, the first of several (which is illegal); None for none."""
    for name in keys.NPU_RESOURCES:
        if name in requests:
            return name
    return None


def parse_chips(text: str, resource: str) -> int:
    """Returns the mask of a list such as `Ascend910-0,Ascend910-1`; entries that are not ids of the resource are left
    out."""
    prefix = resource.partition("/")[2] + "-"
    mask = 0
    for part in text.split(","):
        name = part.strip()
        number = name[len(prefix) :]
        if name.startswith(prefix) and _NUMBER.fullmatch(number):
            mask |= 1 << int(number)
    return mask


_PREFIX = "huawei.com/"
_NUMBER = re.compile(r"[0-9]{1,4}", re.ASCII)


def chip_numbers(mask: int) -> tuple[int, ...]:
    """Returns the chips of a mask, ascending."""
    return tuple(k for k in range(mask.bit_length()) if mask >> k & 1)


def chip_ids(chips: Iterable[int], resource: str) -> str:
    """Returns ids such as `Ascend910-0,Ascend910-1`, in the allocated order."""
    prefix = resource.partition("/")[2]
    return ",".join(f"{prefix}-{k}" for k in chips)


def super_pod_of(node: Node) -> str:
    """Returns the id of the SuperPoD of a node; empty for none."""
    meta = node.metadata
    return meta.labels.get(keys.SUPER_POD_ID) or meta.annotations.get(keys.SUPER_POD_ID_ANNOTATION, "")


def node_facts(node: Node) -> tuple[object, ...]:
    """Returns the annotations and addresses of a node that affect its NPUs."""
    notes = node.metadata.annotations
    own = [(key, text) for key, text in notes.items() if key.startswith(_PREFIX) or key == keys.SUPER_POD_ID_ANNOTATION]
    return tuple(own), tuple(address.address for address in node.status.addresses) if node.status.addresses else ()


def reports_npus(config_map: ConfigMap) -> bool:
    """Returns whether a ConfigMap is the switch table or the device report of a node."""
    meta = config_map.metadata
    own = meta.name == keys.SWITCH_TABLE or meta.name.startswith(keys.DEVICE_INFO_PREFIX)
    return own and meta.namespace == keys.SYSTEM_NAMESPACE


def read_reports(node: Node, info: ConfigMap | None) -> dict[str, ChipReport]:
    """Returns resource -> report of a node, from its annotations or the ConfigMap that replaces them."""
    status = node.status
    out: dict[str, ChipReport] = {}
    listed_by_plugin = device_list(info)
    for resource in keys.NPU_RESOURCES:
        capacity = _count(resource, status.capacity.get(resource, status.allocatable.get(resource)))
        if not capacity:
            continue
        source: Mapping[str, Any] = node.metadata.annotations
        listed = (1 << min(capacity, MOST_CHIPS)) - 1
        # the ConfigMap replaces the annotations of the node if it has any key of the resource
        if listed_by_plugin is not None and any(key in listed_by_plugin for key in _lists(resource)):
            source = listed_by_plugin
            if resource in source:
                listed = parse_chips(str(source[resource]), resource)
        out[resource] = ChipReport(
            capacity=capacity,
            listed=listed,
            unhealthy=parse_chips(str(source.get(f"{resource}-Unhealthy", "")), resource),
            unlinked=parse_chips(str(source.get(f"{resource}-NetworkUnhealthy", "")), resource),
            sub_healthy=_sub_healthy(source.get(f"{resource}-Fault")),
        )
    return out


def _lists(resource: str) -> tuple[str, ...]:
    """Returns the keys of a resource in a report: listed chips, unhealthy chips by kind, faults."""
    return resource, f"{resource}-Unhealthy", f"{resource}-NetworkUnhealthy", f"{resource}-Fault"


def _count(resource: str, text: str | int | float | None) -> int:
    """Returns the number of chips that a node states; 0 for none or an unreadable number."""
    try:
        return max(0, units(resource, text)) if text is not None else 0
    except ValueError:
        return 0


def device_list(info: ConfigMap | None) -> Mapping[str, Any] | None:
    """Returns the DeviceList of a device-info ConfigMap; None if there is none or it is unreadable."""
    if info is None:
        return None
    found = _json(info.data.get(keys.DEVICE_INFO_KEY))
    for name in ("DeviceInfo", "DeviceList"):
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else None


def _sub_healthy(text: Any) -> bool:
    """Returns whether a node's list of faults, parsed or as JSON text, has a sub-health fault."""
    entries = text if isinstance(text, list) else _json(text)
    if not isinstance(entries, list):
        return False
    return any(isinstance(entry, dict) and entry.get("fault_level") == SUB_HEALTHY for entry in entries)


def _json(text: Any) -> Any:
    if not isinstance(text, str):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class NpuBook(FamilyBook):
    """Nodes, pods and ConfigMaps, updated per event; `view` returns the current `Npus`."""

    kinds = (ConfigMap,)

    def __init__(self) -> None:
        self.is_idle = True
        self._nodes: dict[str, Node] = {}
        """Nodes with NPUs by name."""
        self._infos: dict[str, ConfigMap] = {}
        """Node name -> device-info ConfigMap."""
        self._tables: dict[str, ConfigMap] = {}
        self._reports: dict[str, dict[str, ChipReport]] = {}
        self._holdings: dict[str, tuple[NpuHolding, ...]] = {}
        self._jobs: dict[GangRef, dict[str, PodInfo]] = {}
        self._job_views: dict[GangRef, tuple[PodInfo, ...]] = {}
        self._view: Npus | None = None

    def put_node(self, node: Node) -> None:
        """Adds or updates a node. A node that has lost its NPU resources is removed."""
        name, status = node.metadata.name, node.status
        if any(resource in status.allocatable or resource in status.capacity for resource in keys.NPU_RESOURCES):
            self._nodes[name] = node
            self.is_idle = False
            self._forget(name)
        elif name in self._nodes:
            self.drop_node(name)

    def drop_node(self, name: str) -> None:
        if self._nodes.pop(name, None) is not None:
            self._forget(name)

    def put(self, config_map: ConfigMap) -> None:
        """Adds or updates a ConfigMap; a ConfigMap that does not describe NPUs is ignored."""
        self._config_map(config_map.metadata.namespace, config_map.metadata.name, config_map)

    def drop(self, kind: type[Wire], key: str) -> None:
        """Removes a ConfigMap by `namespace/name`."""
        namespace, _, name = key.partition("/")
        self._config_map(namespace, name, None)

    def _config_map(self, namespace: str, name: str, config_map: ConfigMap | None) -> None:
        if namespace != keys.SYSTEM_NAMESPACE:
            return
        self.is_idle &= config_map is None
        if name == keys.SWITCH_TABLE:
            _put(self._tables, name, config_map)
            self._view = None
        elif name.startswith(keys.DEVICE_INFO_PREFIX):
            node = name.removeprefix(keys.DEVICE_INFO_PREFIX)
            _put(self._infos, node, config_map)
            self._forget(node)

    def _forget(self, node: str) -> None:
        self._reports.pop(node, None)
        self._view = None

    def hold(self, info: PodInfo, allocated: Any) -> None:
        """Adds a pod on its node. Its chips are read from the annotations of its Binding, so `allocated` is unused."""
        self._account(info, 1)

    def release(self, info: PodInfo) -> None:
        """Undoes `hold`."""
        self._account(info, -1)

    def _account(self, info: PodInfo, sign: int) -> None:
        """Adds (sign 1) or removes a pod: its chips by annotation, and its membership in a job."""
        self.is_idle &= info.ask(NPUS) is None
        notes = info.pod.metadata.annotations
        if notes:
            for resource in keys.NPU_RESOURCES:
                # an annotation with more chips than the pod requests is ignored
                if resource in notes and parse_chips(notes[resource], resource).bit_count() <= info.requests.get(
                    resource, 0
                ):
                    self._note(info, resource, notes[resource], sign)
        if info.gang is not None and npu_resource(info.requests) is not None:
            pods = self._jobs.setdefault(info.gang, {})
            if sign > 0:
                pods[info.key] = info
            else:
                pods.pop(info.key, None)
            self._job_views.pop(info.gang, None)
            if not pods:
                del self._jobs[info.gang]
            self._view = None

    def _note(self, info: PodInfo, resource: str, text: str, sign: int) -> None:
        """Adds (sign 1) or removes the chips that an annotation of a pod states."""
        kept = tuple(h for h in self._holdings.get(info.node, ()) if (h.pod_key, h.resource) != (info.key, resource))
        if sign > 0:
            kept = (*kept, NpuHolding(info.key, resource, parse_chips(text, resource)))
        if kept:
            self._holdings[info.node] = kept
        else:
            self._holdings.pop(info.node, None)
        self._view = None

    def is_lost(
        self, planned: Sequence[PlannedAllocation], ending: Collection[str], *, new_pods: Sequence[PodInfo]
    ) -> bool:
        """Implements `FamilyBook.is_lost`. A new pod next to the plan without a chip annotation may use any chip."""
        for pod in new_pods:
            resource = pod.ask(NPUS)
            if resource and resource not in pod.pod.metadata.annotations:
                return True  # the pod uses unknown chips
        chips: dict[tuple[str, str, bool], dict[str, tuple[int, ...]]] = {}
        for pod, node, allocated, annotations in planned:
            if allocated:
                multi_pod = annotations.get(keys.DISTRIBUTED_JOB) == "true"
                chips.setdefault((node, pod.ask(NPUS), multi_pod), {})[pod.key] = allocated
        return any(
            self._is_taken(node, resource, own, ending, multi_pod=multi_pod)
            for (node, resource, multi_pod), own in chips.items()
        )

    def _is_taken(
        self,
        node: str,
        resource: str,
        chips: Mapping[str, Iterable[int]],
        ending: Collection[str],
        *,
        multi_pod: bool,
    ) -> bool:
        """Returns whether allocated chips of a node are in use by other pods by now, or may no longer be allocated.

        ending: keys of pods that are about to end. multi_pod: True if the job has several NPU pods, which also need the
        network of their chips.
        """
        wanted = sum(1 << k for own in chips.values() for k in own)
        for holding in self._holdings.get(node, ()):
            if holding.resource != resource or not holding.chips & wanted:
                continue
            if holding.pod_key not in chips and holding.pod_key not in ending:
                return True
        report = self._report(node).get(resource)
        if report is None:
            return True
        lost = report.unhealthy | (report.unlinked if multi_pod else 0)
        return bool(wanted & (~report.listed | lost))

    def _report(self, node: str) -> dict[str, ChipReport]:
        """Returns the reports of a node, read on first use."""
        if node not in self._nodes:
            return {}
        if node not in self._reports:
            self._reports[node] = read_reports(self._nodes[node], self._infos.get(node))
        return self._reports[node]

    def view(self) -> Npus:
        if self._view is None:
            for name in self._nodes:
                self._report(name)
            for gang, pods in self._jobs.items():
                if gang not in self._job_views:
                    self._job_views[gang] = tuple(pods.values())
            jobs = {gang: self._job_views[gang] for gang in self._jobs}
            self._view = Npus(self._reports.copy(), self._holdings.copy(), self._tables.copy(), jobs)
        return self._view


def _put(table: dict[str, ConfigMap], name: str, config_map: ConfigMap | None) -> None:
    if config_map is None:
        table.pop(name, None)
    else:
        table[name] = config_map
