# SPDX-License-Identifier: Apache-2.0
"""GPUs as a device family (gpu-topology.md 4 and 5): connects the modules of this package with the interface `Family`.

To Kubernetes GPUs are a number. On a node with a Device object, which the agent writes, the family also knows each GPU
by name, its health, and its links. The choice of GPUs for pods is in `koordpy.devices.gpu.choice`.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from koordpy.api import keys
from koordpy.api.custom_objects import DELIVERY_UNAVAILABLE
from koordpy.api.natural_order import natural_key
from koordpy.api.objects import Pod
from koordpy.cache.snapshot import Ints, Snapshot
from koordpy.config.configuration import Gpu, KoordpyConfiguration
from koordpy.devices.device_family import Family
from koordpy.devices.family_round import FamilyRound, Obstruction, Placed, UnitCosts
from koordpy.devices.gpu.allocatable_gpus import allocatable_gpus
from koordpy.devices.gpu.freed_gpus import freeable_gpus, held_gpus
from koordpy.devices.gpu.gpu_allocation import allocate
from koordpy.devices.gpu.gpu_book import GpuBook
from koordpy.devices.gpu.gpu_check import check_containers, check_gpus, takes_promised
from koordpy.devices.gpu.gpu_filter import PLUGIN, GPUDevices, gpu_refusal
from koordpy.devices.gpu.gpu_machine import GPUS, gpu_ask
from koordpy.devices.gpu.gpu_node_costs import device_costs, free_gpus, nodes_with_members
from koordpy.devices.gpu.gpu_nodes import gpu_nodes
from koordpy.devices.gpu.gpu_variables import NAMES, inject, is_injected
from koordpy.devices.gpu.gpu_view import GpuView, gpu_view
from koordpy.devices.gpu.part_asks import PARTS
from koordpy.devices.gpu.plain_gpus import plain_gpus
from koordpy.devices.gpu.sick_holder import sick_holder
from koordpy.devices.links.allocatable_devices import AllocatableDevices
from koordpy.framework.filter_protocol import Refusal
from koordpy.framework.pod_rule_filter import ANY_NUMBER, Rule
from koordpy.plan.round_plan import FamilyAllocation
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.pods.device_asks import AskReader
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.resource_amounts import Amounts

MARK = "GPUTopology"
"""Name in `koordpy explain` of the mean mark of the links that a single pod would get (gpu-topology.md 3)."""
_WISHES = (keys.GPU_MIN_BANDWIDTH, keys.GPU_PARTITION_SPEC)
"""Annotations of a pod about links and partitions of its GPUs."""


class GpuAskReader(AskReader):
    """Reads the number of GPUs that a pod requests, by the resource names in `gpu.resources` of the configuration."""

    family = GPUS

    def __init__(self, config: Gpu) -> None:
        self._resources = config.resources

    def read(self, pod: Pod, requests: Amounts, *, pending: bool) -> Any:
        """Implements `AskReader.read`: returns the GPU request of a pod; None if it requests none of the resources."""
        return gpu_ask(pod, self._resources) if any(name in requests for name in self._resources) else None

    def shape(self, pod: Pod, ask: Any) -> Any:
        """Implements `AskReader.shape`: the request, the annotations about links, and whether the webhook has changed
        the pod."""
        annotations = pod.metadata.annotations
        return ask, [annotations.get(key) for key in _WISHES], is_injected(pod, ask.resources)


class Gpus(Family):
    """GPUs: known by name on nodes with a Device, by their number on other nodes."""

    name = GPUS
    title = "GPUs"
    plugin = PLUGIN
    variables = frozenset(NAMES)

    def reader(self, config: KoordpyConfiguration) -> AskReader:
        """Implements `Family.reader`."""
        return GpuAskReader(config.gpu)

    def book(self, config: KoordpyConfiguration) -> GpuBook:
        """Implements `Family.book`."""
        return GpuBook(config.gpu)

    def apply_webhook(self, pod: Pod, config: KoordpyConfiguration) -> Pod:
        """Implements `Family.apply_webhook`: adds the environment variables by which delivery `env` passes GPUs to
        containers."""
        return inject(pod, config.gpu.resources)

    def refusal(self, pod: PodInfo, inputs: FilterInputs) -> Refusal | None:
        """Implements `Family.refusal`: returns why the pod's GPU request is invalid; None if it is valid."""
        return gpu_refusal(pod)

    def rules(self, pod: PodInfo, inputs: FilterInputs) -> Iterator[Rule]:
        """Implements `Family.rules`: yields the filter `GPUDevices` if more than the number of GPUs may decide."""
        # in all other cases NodeResourcesFit decides by the number of GPUs
        if (
            gpu_view(inputs.snapshot).nodes
            or inputs.config.gpu.delivery == "env"
            or any(key in pod.pod.metadata.annotations for key in _WISHES)
            or gpu_view(inputs.snapshot).partition_policies
            or gpu_view(inputs.snapshot).shared
            or (pod.ask(GPUS) is not None and is_injected(pod.pod, pod.ask(GPUS).resources))
        ):
            yield GPUDevices(pod, gpu_nodes(inputs))

    def equivalence_key(self, pod: PodInfo) -> Hashable:
        """Implements `Family.equivalence_key`: pods differ by their GPU request, group and annotations about links."""
        notes = pod.pod.metadata.annotations
        return pod.ask(GPUS), pod.group, *(notes.get(key) for key in _WISHES)

    def free_devices(self, pods: Sequence[PodInfo], inputs: FilterInputs) -> Ints | None:
        """Implements `Family.free_devices`: returns the free GPUs of each node; None if no pod of the unit requests
        GPUs."""
        return free_gpus(pods, gpu_nodes(inputs)) if any(pod.ask(GPUS) is not None for pod in pods) else None

    def requested_devices(self, pod: PodInfo) -> int:
        """Implements `Family.requested_devices`: returns the number of GPUs that a pod requests."""
        return pod.ask(GPUS).count if pod.ask(GPUS) is not None else 0

    def nominated_devices(self, held: Mapping[str, int], inputs: FilterInputs) -> int:
        """Implements `Family.nominated_devices`: returns the number of GPUs in the amounts that nominated pods
        request."""
        return gpu_nodes(inputs).cards(held)

    def unit_costs(
        self,
        kinds: Sequence[PodInfo],
        members: Sequence[PodInfo],
        now: FamilyRound,
        *,
        gather: bool,
        beside: Sequence[AllocatableDevices],
    ) -> UnitCosts | None:
        """Implements `Family.unit_costs`: returns costs of the links between the GPUs that the pods of each node get.

        None for a unit without GPU requests, and for a request that cannot be read.
        """
        if all(pod.ask(GPUS) is None for pod in kinds):
            return None
        table = device_costs(kinds, gpu_nodes(now.inputs))
        if table is None:
            return None
        return UnitCosts(table, None if gather else nodes_with_members(members, gpu_nodes(now.inputs)))

    def allocate(self, nodes: Mapping[str, int], now: FamilyRound) -> FamilyAllocation:
        """Implements `Family.allocate`: allocates GPUs by name; nothing in a cluster in which no node has a usable
        Device."""
        if not gpu_view(now.inputs.snapshot).nodes:
            return FamilyAllocation()
        pods = now.inputs.snapshot.pods
        return allocate([(pods[key], node) for key, node in nodes.items()], gpu_nodes(now.inputs))

    def check(
        self, placed: Placed, allocated: Mapping[str, Any], notes: Mapping[str, Mapping[str, str]], now: FamilyRound
    ) -> Iterator[str]:
        """Implements `Family.check`: yields faults of the GPUs of pods, then of the annotations of their containers."""
        draft = now.inputs.draft
        named = [(pod, draft.snapshot.nodes[node].name) for pod, node in placed]
        yield from check_gpus(named, allocated, draft)
        yield from check_containers(named, allocated, notes, draft)

    def uses_reserved_devices(
        self, placed: Placed, reserved: Mapping[int, Mapping[str, int]], inputs: FilterInputs
    ) -> bool:
        """Implements `Family.uses_reserved_devices`."""
        return takes_promised(placed, reserved, inputs.draft, inputs.config.gpu.resources)

    def allocatable_devices(self, kinds: Sequence[PodInfo], inputs: FilterInputs) -> AllocatableDevices | None:
        """Implements `Family.allocatable_devices`."""
        return allocatable_gpus(kinds, inputs)

    def pod_costs(
        self, pod: PodInfo, nodes: Ints, inputs: FilterInputs, *, beside: Sequence[AllocatableDevices]
    ) -> Sequence[Ints]:
        """Implements `Family.pod_costs`: prefers fast links between the pod's GPUs, then few NUMA zones, then few
        GPUs left on the node."""
        return plain_gpus(pod, inputs).at(nodes)

    def freeable(
        self, kinds: Sequence[PodInfo], inputs: FilterInputs, *, reserved: Mapping[int, Mapping[str, int]]
    ) -> Ints | None:
        """Implements `Family.freeable`."""
        return freeable_gpus(kinds, inputs, reserved)

    def freed_devices(self, pod: PodInfo, inputs: FilterInputs) -> int:
        """Implements `Family.freed_devices`: returns the number of GPUs that evicting the pod frees."""
        return held_gpus(pod, inputs.draft)

    def usable(self, inputs: FilterInputs) -> Ints | None:
        """Implements `Family.usable`: returns the healthy GPUs of each node, `ANY_NUMBER` for a node without known
        GPUs.

        None if no node has known GPUs.
        """
        if not gpu_view(inputs.snapshot).nodes:
            return None
        found = (gpu_nodes(inputs).state(i).healthy for i in range(len(inputs.snapshot.nodes)))
        return np.fromiter((ANY_NUMBER if one is None else one for one in found), dtype=np.int64)

    def obstruction(self, pod: PodInfo, now: FamilyRound) -> Obstruction | None:
        """Implements `Family.obstruction`: returns a pod that holds an unhealthy GPU, if its end admits the waiting
        pod."""
        return sick_holder(pod, now)

    def bottlenecks(self, nodes: Mapping[str, int], now: FamilyRound) -> Iterator[float]:
        """Implements `Family.bottlenecks`; kB/s of the machine are converted to GB/s."""
        draft = now.inputs.draft
        machines = gpu_view(draft.snapshot).nodes
        for key, node in nodes.items():
            minors, name = draft.family_devices_of(key, GPUS), draft.snapshot.nodes[node].name
            kbs = machines[name].machine.bottleneck_kbs(minors) if minors and name in machines else None
            if kbs is not None:
                yield kbs / 1e6

    def is_counted(self, pods: Iterable[PodInfo], inputs: FilterInputs) -> bool:
        """Implements `Family.is_counted`: True if no node of the cluster has GPUs that are known by name."""
        return not gpu_view(inputs.snapshot).nodes

    def shown_value(self, pod: PodInfo, inputs: FilterInputs) -> tuple[str, Callable[[int], float | None]] | None:
        """Implements `Family.shown_value`: the mean mark of the links that the pod would get on a node."""
        return MARK, lambda node: gpu_nodes(inputs).mean_mark(node, pod)

    def remedies(self, snapshot: Snapshot) -> Iterator[tuple[str, Callable[[Snapshot], Snapshot]]]:
        """Implements `Family.remedies`: yields the nodes with an agent that reports that it cannot deliver GPUs now."""
        machines = gpu_view(snapshot).nodes
        for name in sorted((name for name in machines if not machines[name].machine.delivers), key=natural_key):
            yield f"Device {name} had no condition {DELIVERY_UNAVAILABLE}", partial(_with_delivery, name)

    def cells(self, node: str, allocated: Any, families: Mapping[str, Any]) -> Sequence[int]:
        """Implements `Family.cells`."""
        view: GpuView = families[GPUS]
        return view.cells(node, allocated)

    def warnings(self, pod: PodInfo) -> Sequence[str]:
        """Implements `Family.warnings`: returns the faults of the GPU request.

        Empty if `PartAsks` refuses the pod anyway, because that family then reports the fault.
        """
        parts = pod.ask(PARTS)
        wrong = gpu_refusal(pod) if parts is None or not parts.refusal else None
        return wrong.reasons if wrong is not None else ()


def _with_delivery(name: str, snapshot: Snapshot) -> Snapshot:
    """Returns the snapshot as if the agent of a node (name) could deliver GPUs to containers."""
    view = gpu_view(snapshot)
    known = view.nodes[name]
    able = replace(known, machine=replace(known.machine, delivers=True))
    gpus = replace(view, nodes={**view.nodes, name: able})
    return replace(snapshot, families={**snapshot.families, GPUS: gpus}, memo={})
