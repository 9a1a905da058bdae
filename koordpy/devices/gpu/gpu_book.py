"""Who holds which GPUs: the machines as they come and go, and the pods on them (gpu-topology.md 2).

Nothing is guessed: a pod whose GPUs cannot be told makes its node count-only until it is gone.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import or_
from typing import Any

from koordpy.api import keys
from koordpy.api.config import Gpu
from koordpy.api.custom import Device
from koordpy.api.objects import Node
from koordpy.api.settings import odd_settings
from koordpy.api.unread import Holder
from koordpy.cluster.gpus import BANDWIDTH, GroupKey, Machine, read_machine
from koordpy.cluster.links import class_floors
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.tally import Tally

READ_LABELS = (keys.GPU_PARTITION_POLICY, keys.GPU_MODEL)


@dataclass(frozen=True, slots=True)
class GpuHolding:
    """GPUs of one pod on a node. minors: None where they cannot be told."""

    count: int
    minors: tuple[int, ...] | None
    group: GroupKey | None


def _numbers(raw: Any) -> set[int]:
    """Minors of a list of them, as text or numbers. Raises ValueError."""
    if not isinstance(raw, list):
        raise ValueError("no list")
    out = set()
    for one in raw:
        if isinstance(one, bool) or not isinstance(one, str | int):
            raise ValueError("no minor")
        out.add(int(one))
    return out


def _allocated(text: str, count: int) -> set[int]:
    """Minors of our own annotation; less than a pod holds where its init containers have more and its group shows
    others. Raises ValueError."""
    raw = json.loads(text)
    if not isinstance(raw, dict) or not isinstance(raw.get("allocatedGPUs", {}), dict):
        raise ValueError("no allocation")
    lists = list(raw.get("allocatedGPUs", {}).values())
    own = set().union(*(_numbers(one) for one in lists)) if lists else set()
    if len(own) < count:
        visible = _numbers(raw.get("visibleGPUs", []))
        if len(visible) == count:
            return visible
    return own


def _koordinator(text: str) -> set[int] | None:
    """Minors of Koordinator's annotation, None where it names no GPU. Raises ValueError."""
    raw = json.loads(text)
    if not isinstance(raw, dict):
        raise ValueError("no allocation")
    listed = raw.get("gpu")
    if listed is None:
        return None
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise ValueError("no list of GPUs")
    return _numbers([one.get("minor") for one in listed])


def _gpushare(annotations: Mapping[str, str]) -> set[int] | None:
    """Minors in the keys of the gpushare form, None without any. Raises ValueError."""
    tails = [k.removeprefix(keys.GPUSHARE_ID_PREFIX) for k in annotations if k.startswith(keys.GPUSHARE_ID_PREFIX)]
    return {int(tail) for tail in tails} if tails else None


def named_minors(annotations: Mapping[str, str], count: int) -> tuple[int, ...] | None:
    """Minors that a pod holds by what is written on it; None where nothing is, or less than it holds."""
    try:
        found: set[int] | None = None
        if keys.GPU_ALLOCATION in annotations:
            found = _allocated(annotations[keys.GPU_ALLOCATION], count)
        if found is None or len(found) < count:
            found = None
            if keys.DEVICE_ALLOCATED in annotations:
                found = _koordinator(annotations[keys.DEVICE_ALLOCATED])
            if found is None:
                found = _gpushare(annotations)
    except (ValueError, RecursionError):
        return None
    if found is None or len(found) < count:
        return None
    return tuple(sorted(found))


def holding_of(info: PodInfo, chips: tuple[int, ...] = ()) -> GpuHolding | None:
    """What a pod holds of the GPUs of its node; None for a pod that asks for none, whatever is written on it.

    chips: of a pod that is only assumed.
    """
    ask, parts = info.gpus, any(name in info.requests for name in keys.GPU_PARTS)
    if ask is None and not parts:
        return None
    count = ask.count if ask is not None else 0
    minors = chips or named_minors(info.pod.metadata.annotations, count)
    if minors and len(minors) > count and not parts:
        minors = None
    if not count and not minors:
        return None
    return GpuHolding(count, minors, info.group)


@dataclass(frozen=True, eq=False)
class NodeGpus:
    """One node's GPUs and who holds them. Nothing in it changes."""

    machine: Machine
    holders: Mapping[str, GpuHolding]

    @cached_property
    def masks(self) -> dict[str, int]:
        """Pod -> what it holds, of the pods whose GPUs are known."""
        machine = self.machine
        found = ((key, one, machine.mask(one.minors)) for key, one in self.holders.items() if one.minors is not None)
        return {key: mask for key, one, mask in found if mask.bit_count() >= one.count}

    @cached_property
    def held(self) -> int:
        return reduce(or_, self.masks.values(), 0)

    @cached_property
    def unknown(self) -> bool:
        """Whether any holder's GPUs cannot be told: then the node is known by count only."""
        return len(self.masks) < len(self.holders)

    @cached_property
    def requested(self) -> int:
        return sum(one.count for one in self.holders.values())

    def group(self, key: GroupKey) -> int:
        """GPUs that members of a group hold."""
        return reduce(or_, (mask for name, mask in self.masks.items() if self.holders[name].group == key), 0)


@dataclass(frozen=True, eq=False)
class GpuView:
    """The GPUs of every node that has a Device. Nothing in it changes."""

    nodes: Mapping[str, NodeGpus]
    group_nodes: Mapping[GroupKey, Mapping[str, int]]
    """Group -> node name -> bound members, with or without GPUs, of nodes with and without a Device."""
    warnings: tuple[tuple[str, str], ...]
    """(object, text)."""
    comparison: "Comparison"
    partition_policies: bool = False
    """Whether some node's label says how its GPU partitions are to be honoured."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """How links of different machines compare (gpu-topology.md 3). source: `bandwidth`, `links`, or `mixed` where
    measured and assumed figures are."""

    source: str
    ranks: Mapping[int, int]
    """Value in kB/s of a pair -> number of its class over all machines, 0 the slowest."""
    classes: int


NO_GPUS = GpuView({}, {}, (), Comparison(BANDWIDTH, {0: 0}, 1))


def _comparison(machines: list[Machine], config: Gpu) -> Comparison:
    matrices = list({id(m.matrix): m.matrix for m in machines if m.has_matrix}.values())
    if not matrices:
        return NO_GPUS.comparison
    source = BANDWIDTH if all(m.measured is not None for m in matrices) else "links"
    mixed = source == "links" and any(m.links is None for m in matrices)
    values: set[int] = set()
    for matrix in matrices:
        if source == "links" and matrix.links is not None and not mixed:
            values.update(one.bandwidth_kbs if one is not None else 0 for row in matrix.links for one in row)
        else:
            values.update(matrix.floors)
            values.update(cell for i, row in enumerate(matrix.measured or ()) for cell in row[:i])
    values.add(0)
    if source == "links" and not mixed:
        floors = {value: value for value in values}
    else:
        floors = class_floors(values, gap=config.class_gap, width=config.class_width)
    number = {floor: i for i, floor in enumerate(sorted(set(floors.values())))}
    ranks = {value: number[floor] for value, floor in floors.items()}
    return Comparison("mixed" if mixed else source, ranks, len(number))


@dataclass(slots=True)
class GpuBook:
    """Devices, what of nodes they are read with, and holders, as they come and go."""

    config: Gpu
    devices: dict[str, Device] = field(default_factory=dict)
    _nodes: dict[str, tuple[dict[str, str], dict[str, str]]] = field(default_factory=dict)
    """Node -> (its GSOC annotations, its labels that are read), of nodes that have any."""
    _holders: dict[str, dict[str, GpuHolding]] = field(default_factory=dict)
    _groups: Tally[GroupKey, str] = field(default_factory=Tally)
    _machines: dict[str, Machine | None] = field(default_factory=dict)
    _seen: dict[str, NodeGpus] = field(default_factory=dict)
    _changed: set[str] = field(default_factory=set)
    _unreported: set[str] = field(default_factory=set)
    _machines_changed: bool = True
    _standing: tuple[Comparison, tuple[tuple[str, str], ...]] | None = None

    # -- in -----------------------------------------------------------------------------------------------------------

    def put_device(self, device: Device) -> None:
        name = device.metadata.name
        old = self.devices.get(name)
        self.devices[name] = device
        self._unreported.add(name)
        if old is not None and old.spec == device.spec:
            a, b = old.metadata, device.metadata
            if a.labels == b.labels and a.annotations == b.annotations:
                return
        self._forget_machine(name)

    def drop_device(self, name: str) -> None:
        if self.devices.pop(name, None) is not None:
            self._forget_machine(name)

    def put_node(self, node: Node) -> None:
        """Takes what of a node its GPUs are read with."""
        meta = node.metadata
        described = {key: text for key, text in meta.annotations.items() if key.startswith(keys.GSOC_PREFIX)}
        labels = {key: meta.labels[key] for key in READ_LABELS if key in meta.labels}
        if (described, labels) != self._nodes.get(meta.name, ({}, {})):
            self._nodes[meta.name] = (described, labels)
            self._forget_machine(meta.name)

    def drop_node(self, name: str) -> None:
        """Forgets a node; its pods stay known."""
        if self._nodes.pop(name, None) is not None:
            self._forget_machine(name)

    def _forget_machine(self, name: str) -> None:
        self._machines.pop(name, None)
        self._changed.add(name)
        self._unreported.add(name)
        self._machines_changed = True

    def hold(self, info: PodInfo, chips: tuple[int, ...]) -> None:
        """Takes in a pod that is on a node. chips: what an assumed pod is given."""
        key, node = info.key, info.node
        found = holding_of(info, chips)
        if found is not None:
            self._holders.setdefault(node, {})[key] = found
            self._changed.add(node)
            self._unreported.add(node)
        if info.group is not None:
            self._groups.add(info.group, node, 1)

    def release(self, info: PodInfo) -> None:
        """Takes back what `hold` took in."""
        key, node = info.key, info.node
        holders = self._holders.get(node)
        if holders is not None and holders.pop(key, None) is not None:
            self._changed.add(node)
            self._unreported.add(node)
            if not holders:
                del self._holders[node]
        if info.group is not None:
            self._groups.add(info.group, node, -1)

    def taken(self, node: str, given: Mapping[str, GpuHolding], going: Callable[[str], bool]) -> bool:
        """Whether GPUs that pods are given on a node are others' by now, sick or gone.

        A holder whose GPUs cannot be told may hold any of them. Pods that are not told which take from what is left.
        going: whether a holder is about to leave.
        """
        named = {minor for one in given.values() for minor in one.minors or ()}
        staying = [one for key, one in self._holders.get(node, {}).items() if key not in given and not going(key)]
        machine = self._machine(node)
        if named:
            if machine is None or not named <= set(machine.minors_of(machine.healthy)):
                return True
            if any(one.minors is None or not named.isdisjoint(one.minors) for one in staying):
                return True
        if machine is None or all(one.minors for one in given.values()):
            return False
        return sum(one.count for one in (*staying, *given.values())) > machine.healthy.bit_count()

    def _machine(self, name: str) -> Machine | None:
        """The machine of a node, read when it is first asked for."""
        if name not in self._machines:
            device = self.devices.get(name)
            known = self._nodes.get(name, ({}, {}))
            self._machines[name] = read_machine(device, *known, self.config) if device is not None else None
        return self._machines[name]

    # -- what Devices are told ----------------------------------------------------------------------------------------

    def take_unreported(self) -> list[str]:
        """Devices of which something changed since this was last asked."""
        found = sorted(name for name in self._unreported if name in self.devices)
        self._unreported.clear()
        return found

    def faults(self, name: str) -> tuple[tuple[str, str], ...]:
        """What is wrong with a Device: (type of the condition that says so or empty, text)."""
        machine = self._machine(name)
        return machine.faults if machine is not None else ()

    def minors_held(self, name: str) -> dict[str, tuple[int, ...]]:
        """Pod -> its GPUs, of the pods on a node whose GPUs can be told."""
        return {key: one.minors for key, one in self._holders.get(name, {}).items() if one.minors}

    # -- out ----------------------------------------------------------------------------------------------------------

    def view(self) -> GpuView:
        for name in self._changed:
            machine = self._machine(name)
            if machine is None:
                self._seen.pop(name, None)
            else:
                self._seen[name] = NodeGpus(machine, dict(self._holders.get(name, {})))
        self._changed.clear()
        if self._machines_changed or self._standing is None:
            self._standing = self._machine_facts()
            self._machines_changed = False
        comparison, warnings = self._standing
        policies = any(keys.GPU_PARTITION_POLICY in labels for _, labels in self._nodes.values())
        return GpuView(dict(self._seen), self._groups.frozen(), warnings, comparison, policies)

    def _machine_facts(self) -> tuple[Comparison, tuple[tuple[str, str], ...]]:
        warnings: list[tuple[str, str]] = []
        for name, device in sorted(self.devices.items()):
            warnings += [(f"Device/{name}", text) for text in odd_settings(Holder.DEVICE, device.metadata)]
            machine = self._machines.get(name)
            if machine is None:
                if any(entry.type == "gpu" for entry in device.spec.devices):
                    text = "spec.devices: a GPU without a minor, or a minor or id given twice"
                    warnings.append((f"Device/{name}", text))
            else:
                warnings += [(f"Device/{name}", text) for _, text in machine.faults]
        for name, (described, _) in sorted(self._nodes.items()):
            if described and name not in self.devices:
                text = f"annotations {keys.GSOC_PREFIX}... are ignored: there is no Device to tell the GPUs by"
                warnings.append((f"Node/{name}", text))
        comparison = _comparison([m for m in self._machines.values() if m is not None], self.config)
        if comparison.source == "mixed":
            text = (
                "some Devices have measured bandwidths only and others link classes only: they are compared by figures "
                "as they stand, which differ by a factor of 2 to 3"
            )
            warnings.append(("Device", text))
        return comparison, tuple(warnings)
