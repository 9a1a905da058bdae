# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a cluster, updated with Devices, nodes and pods; the book builds views of them (gpu-topology.md 2).

A Device is the object in which the agent of a node reports GPUs and links. Which GPUs a bound pod uses is read from its
annotations. Nothing is guessed: a pod with unknown GPUs makes its node count-only (GPUs are counted, not named) until
the pod is gone.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from koordpy.api import keys
from koordpy.api.custom_objects import Device, is_delivery_unavailable
from koordpy.api.key_hints import Holder
from koordpy.api.objects import Node, Wire
from koordpy.cache.cluster_state import ClusterState
from koordpy.config.configuration import Gpu
from koordpy.decoding.annotation_settings import odd_settings
from koordpy.devices.gpu.gpu_machine import GPUS, Machine, read_machine
from koordpy.devices.gpu.gpu_sharing import SHARING_LABELS, counts_by, shares_by
from koordpy.devices.gpu.gpu_view import GpuView, NodeGpus
from koordpy.devices.gpu.held_gpus import GpuHolding, holding_of
from koordpy.devices.gpu.link_comparison import Comparison, compare_links
from koordpy.devices.gpu.sick_gpus import SickGpus
from koordpy.pods.family_books import FamilyBook, PlannedAllocation
from koordpy.pods.gang_refs import GroupKey
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.tally import Tally

READ_LABELS = (keys.GPU_PARTITION_POLICY, keys.GPU_MODEL, *SHARING_LABELS)
"""Labels of nodes that affect their GPUs."""


def gpu_book(state: ClusterState) -> "GpuBook":
    """Returns the GPU book of a cluster."""
    return cast(GpuBook, state.families[GPUS])


class GpuBook(FamilyBook):
    """Devices, the labels and annotations of nodes that affect GPUs, and the GPUs of pods, updated per event."""

    kinds = (Device,)

    def __init__(self, config: Gpu) -> None:
        self.config = config
        self.is_idle = True
        self.told_resources = config.resources
        """GPU resources. Assumed pods that request them pass their GPUs to `hold`, because koordpy's annotations are
        not on the pod yet."""
        self.devices: dict[str, Device] = {}
        """Node name -> Device."""
        self._nodes: dict[str, tuple[dict[str, str], dict[str, str]]] = {}
        """Node -> (its GSOC annotations, its labels that affect GPUs), of nodes that have any."""
        self._holders: dict[str, dict[str, GpuHolding]] = {}
        """Node name -> pod key -> GPUs of the pod."""
        self._groups = Tally[GroupKey, str]()
        """(GPU group, node name) -> number of bound members."""
        self._machines: dict[str, Machine | None] = {}
        """Node name -> machine read from its Device; None if its GPUs are not known by name."""
        self._node_gpus: dict[str, NodeGpus] = {}
        """Node name -> GPUs as in the last view."""
        self._changed: set[str] = set()
        """Nodes with a machine or pods that changed since the last view."""
        self._changed_devices: set[str] = set()
        """Nodes with a Device that may need a new status (`take_unreported`)."""
        self._machines_changed = True
        self._facts: tuple[Comparison, tuple[tuple[str, str], ...]] | None = None
        """Comparison and warnings of the last view; None before the first."""

    # -- changes of the book ------------------------------------------------------------------------------------------

    def put(self, device: Device) -> None:
        """Adds or updates a Device. A change of its status alone, other than its delivery condition, keeps the
        machine."""
        name = device.metadata.name
        old = self.devices.get(name)
        self.devices[name] = device
        self.is_idle = False
        self._changed_devices.add(name)
        if old is not None and old.spec == device.spec:
            a, b = old.metadata, device.metadata
            same_status = is_delivery_unavailable(old) == is_delivery_unavailable(device)
            if a.labels == b.labels and a.annotations == b.annotations and same_status:
                return
        self._forget_machine(name)

    def drop(self, kind: type[Wire], name: str) -> None:
        """Implements `FamilyBook.drop`."""
        if self.devices.pop(name, None) is not None:
            self._forget_machine(name)

    def get(self, kind: type[Wire], key: str) -> Device | None:
        """Implements `FamilyBook.get`."""
        return self.devices.get(key)

    def put_node(self, node: Node) -> None:
        """Records the annotations and labels of a node that affect its GPUs."""
        meta = node.metadata
        described = {key: text for key, text in meta.annotations.items() if key.startswith(keys.GSOC_PREFIX)}
        labels = {key: meta.labels[key] for key in READ_LABELS if key in meta.labels}
        if (described, labels) != self._nodes.get(meta.name, ({}, {})):
            self._nodes[meta.name] = (described, labels)
            self.is_idle = False
            self._forget_machine(meta.name)

    def drop_node(self, name: str) -> None:
        """Removes a node; its pods stay known."""
        if self._nodes.pop(name, None) is not None:
            self._forget_machine(name)

    def _forget_machine(self, name: str) -> None:
        """Records that the Device, the labels or the annotations of a node have changed, so that the machine is read
        again."""
        self._machines.pop(name, None)
        self._changed.add(name)
        self._changed_devices.add(name)
        self._machines_changed = True

    def hold(self, info: PodInfo, allocated: Any) -> None:
        """Implements `FamilyBook.hold`. allocated: minors of an assumed pod; None if its annotations state them."""
        key, node = info.key, info.node
        found = holding_of(info, allocated or ())
        self.is_idle &= found is None and info.group is None
        if found is not None:
            self._holders.setdefault(node, {})[key] = found
            self._changed.add(node)
            self._changed_devices.add(node)
        if info.group is not None:
            self._groups.add(info.group, node, 1)

    def release(self, info: PodInfo) -> None:
        """Undoes `hold`."""
        key, node = info.key, info.node
        holders = self._holders.get(node)
        if holders is not None and holders.pop(key, None) is not None:
            self._changed.add(node)
            self._changed_devices.add(node)
            if not holders:
                del self._holders[node]
        if info.group is not None:
            self._groups.add(info.group, node, -1)

    def is_lost(
        self, planned: Sequence[PlannedAllocation], ending: Collection[str], *, new_pods: Sequence[PodInfo]
    ) -> bool:
        """Implements `FamilyBook.is_lost`."""
        by_node: dict[str, dict[str, GpuHolding]] = {}
        for pod, node, allocated, _ in planned:
            count = pod.ask(GPUS).count
            by_node.setdefault(node, {})[pod.key] = GpuHolding(count, allocated or None, pod.group)
        return any(self._is_lost_on(node, found, ending) for node, found in by_node.items())

    def _is_lost_on(self, node: str, allocated: Mapping[str, GpuHolding], ending: Collection[str]) -> bool:
        """Returns whether allocated GPUs of a node are in use by other pods by now, unhealthy or gone.

        allocated: pod key -> allocation. A pod with unknown GPUs may use any GPU, so it invalidates every allocation by
        name. Pods that are allocated a number without names need as many healthy GPUs in total. ending: keys of
        pods that are about to end.
        """
        named = {minor for one in allocated.values() for minor in one.minors or ()}
        staying = [
            one for key, one in self._holders.get(node, {}).items() if key not in allocated and key not in ending
        ]
        machine = self._machine(node)
        if named:
            if machine is None or not named <= set(machine.minors_of(machine.healthy)):
                return True
            if any(one.minors is None or not named.isdisjoint(one.minors) for one in staying):
                return True
        if machine is None or all(one.minors for one in allocated.values()):
            return False
        return sum(one.count for one in (*staying, *allocated.values())) > machine.healthy.bit_count()

    @property
    def amended(self) -> Collection[str]:
        """Nodes with a machine, or with GPUs of pods, that changed since the last view."""
        return self._changed

    def amendment(self, node: str) -> SickGpus | None:
        """Returns the sick GPUs of a node that pods still use; None if there are none, or if a pod's GPUs are unknown.

        Applies only if koordpy's agent is the device plugin of the node, because only then the kubelet's devices are
        known to be the GPUs of the Device.
        """
        machine = self._machine(node)
        if machine is None or (machine.delivery or self.config.delivery) != "device-plugin":
            return None
        known = NodeGpus(machine, self._holders.get(node, {}))
        held = known.held_whole & known.sick
        if not held or known.unknown:
            return None
        return SickGpus(held.bit_count(), machine.size - (known.sick & ~held).bit_count(), self.config.resources)

    def is_delivered(self, nodes: Iterable[str]) -> bool:
        """Returns False if the agent of one of the nodes reports that it cannot deliver GPUs now."""
        return all(machine is None or machine.delivers for machine in map(self._machine, nodes))

    def ground(self, nodes: Collection[str]) -> list[object]:
        """Implements `FamilyBook.ground`: returns the Devices of nodes (names)."""
        return [*map(self.devices.get, nodes)]

    def _machine(self, name: str) -> Machine | None:
        """Returns the machine of a node, read on first use; None if its GPUs are not known by name."""
        if name not in self._machines:
            device = self.devices.get(name)
            known = self._nodes.get(name, ({}, {}))
            by_name = device is not None and not (counts_by(known[1]) and self._has_foreign_delivery(name))
            self._machines[name] = read_machine(device, *known, self.config) if device is not None and by_name else None
        return self._machines[name]

    def _has_foreign_delivery(self, name: str) -> bool:
        """Returns whether a device plugin other than koordpy's agent delivers the GPUs of a node."""
        device = self.devices.get(name)
        own = device.metadata.labels.get(keys.GPU_DELIVERY, "") if device is not None else ""
        return (own or self.config.delivery) not in ("env", "device-plugin")

    # -- the status of Devices ----------------------------------------------------------------------------------------

    def take_unreported(self) -> list[str]:
        """Returns the names of Devices with a status that may have changed since the last call, sorted."""
        found = sorted(name for name in self._changed_devices if name in self.devices)
        self._changed_devices.clear()
        return found

    def faults(self, name: str) -> tuple[tuple[str, str], ...]:
        """Returns (type of the condition that reports it or empty, text) of each fault of a Device."""
        machine = self._machine(name)
        return machine.faults if machine is not None else ()

    def minors_held(self, name: str) -> dict[str, tuple[int, ...]]:
        """Returns pod key -> minors of its GPUs, of the pods on a node (name) with known GPUs."""
        return {key: one.minors for key, one in self._holders.get(name, {}).items() if one.minors}

    # -- the view -----------------------------------------------------------------------------------------------------

    def view(self) -> GpuView:
        """Returns the current view; only nodes that changed since the last view are rebuilt."""
        for name in self._changed:
            machine = self._machine(name)
            if machine is None:
                self._node_gpus.pop(name, None)
            else:
                self._node_gpus[name] = NodeGpus(machine, dict(self._holders.get(name, {})))
        self._changed.clear()
        if self._machines_changed or self._facts is None:
            self._facts = self._machine_facts()
            self._machines_changed = False
        comparison, warnings = self._facts
        policies = any(keys.GPU_PARTITION_POLICY in labels for _, labels in self._nodes.values())
        shared = frozenset(
            name for name, (_, labels) in self._nodes.items() if shares_by(labels) and self._has_foreign_delivery(name)
        )
        return GpuView(dict(self._node_gpus), self._groups.frozen(), comparison, warnings, policies, shared)

    def _machine_facts(self) -> tuple[Comparison, tuple[tuple[str, str], ...]]:
        """Returns the comparison of all machines, and warnings about Devices and nodes."""
        warnings: list[tuple[str, str]] = []
        for name, device in sorted(self.devices.items()):
            warnings += [(f"Device/{name}", text) for text in odd_settings(Holder.DEVICE, device.metadata)]
            machine = self._machines.get(name)
            by = counts_by(self._nodes.get(name, ({}, {}))[1])
            if by and not self._has_foreign_delivery(name):
                delivery = device.metadata.labels.get(keys.GPU_DELIVERY, "") or self.config.delivery
                text = f"delivery {delivery} gives whole cards: node label {by} is not read"
                warnings.append((f"Device/{name}", text))
            if machine is None and by and self._has_foreign_delivery(name):
                continue
            if machine is None:
                if any(entry.type == "gpu" for entry in device.spec.devices):
                    text = "spec.devices: a GPU without a minor, or a minor or id given twice"
                    warnings.append((f"Device/{name}", text))
            else:
                warnings += [(f"Device/{name}", text) for _, text in machine.faults]
        for name, (described, _) in sorted(self._nodes.items()):
            if described and name not in self.devices:
                text = f"annotations {keys.GSOC_PREFIX}... are ignored because the node has no Device"
                warnings.append((f"Node/{name}", text))
        comparison = compare_links([m for m in self._machines.values() if m is not None], self.config)
        if comparison.source == "mixed":
            text = (
                "some Devices have only measured bandwidths and others only link classes: their links are compared by "
                "bandwidth, although measured and assumed values differ by a factor of 2 to 3"
            )
            warnings.append(("Device", text))
        return comparison, tuple(warnings)
