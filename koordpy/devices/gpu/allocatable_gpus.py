# SPDX-License-Identifier: Apache-2.0
"""Allocatable GPUs that pods get beside devices of claims, for the costs of nodes (dra.md 6 (d), (e)).

Links are compared by the classes of gpu-topology.md 3 over all machines, in kB/s: the lowest bandwidth of the class. A
node without known links counts as 0 for two GPUs and more, as for pods without claims. A pod gets no GPU on a node
where the resource is not allocatable, because devices of claims serve it there.
"""

from collections.abc import Hashable, Sequence
from functools import cached_property
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from koordpy.cache.snapshot import Ints
from koordpy.devices.gpu.choice.gpu_choosers import chooser_of
from koordpy.devices.gpu.gpu_allocation import choice_sets_at
from koordpy.devices.gpu.gpu_machine import GPUS, Machine
from koordpy.devices.gpu.gpu_nodes import GpuNodes, UnreadableWish, gpu_nodes, want_of, wants_in
from koordpy.devices.gpu.plain_gpus import plain_gpus
from koordpy.devices.links.allocatable_devices import DevicesOfNode, DevicesOfNodes, no_devices
from koordpy.devices.links.device_masks import bits_of
from koordpy.devices.links.link_board import NO_LIMIT
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.pods.pod_info import PodInfo


def allocatable_gpus(kinds: Sequence[PodInfo], inputs: FilterInputs) -> "AllocatableGpus | None":
    """Returns the GPUs that pods may get; None if no node can give one, and for a request that cannot be read.

    kinds: one pod of each shape.
    """
    asking = [pod for pod in kinds if pod.ask(GPUS) is not None and giving_nodes(pod, inputs).any()]
    try:
        for pod in asking:
            want_of(pod)
    except UnreadableWish:
        return None
    return AllocatableGpus(asking, inputs) if asking else None


class _GivingNodes(dict[tuple[str, ...], NDArray[np.bool_]]):
    """GPU resources -> [nodes] True for nodes with a device plugin for all of them; stored with the inputs of a
    round."""


def giving_nodes(pod: PodInfo, inputs: FilterInputs) -> NDArray[np.bool_]:
    """Returns [nodes] True for nodes with a device plugin for all GPU resources of a pod.

    The amounts of a snapshot include devices of claims, so the status of the node decides.
    """
    known = inputs.memo.setdefault(_GivingNodes, _GivingNodes())
    assert isinstance(known, _GivingNodes)
    names = pod.ask(GPUS).resources
    if names not in known:
        stated = (node.node.status.allocatable or node.node.status.capacity for node in inputs.snapshot.nodes)
        known[names] = np.fromiter((all(str(one.get(n, "0")) != "0" for n in names) for one in stated), dtype=bool)
    return known[names]


class AllocatableGpus:
    """Implements `AllocatableDevices`."""

    def __init__(self, asking: Sequence[PodInfo], inputs: FilterInputs) -> None:
        """asking: one pod of each shape with GPU requests."""
        self._asking, self._inputs = asking, inputs
        self._gpus: GpuNodes = gpu_nodes(inputs)
        self._giving = {pod.ask(GPUS).resources: giving_nodes(pod, inputs) for pod in asking}

    @cached_property
    def bandwidths(self) -> Sequence[int]:
        """Implements `AllocatableDevices.bandwidths`: the lowest value of each link class, the slowest first."""
        found: dict[int, int] = {}
        for value, rank in sorted(self._gpus.view.comparison.ranks.items()):
            found.setdefault(rank, value)
        return [found[rank] for rank in sorted(found)]

    def _kbs(self, rank: int) -> int:
        """Returns kB/s of a link class over all machines; `NO_LIMIT` for the number of classes."""
        return self.bandwidths[rank] if rank < self._gpus.classes else NO_LIMIT

    def key(self, node: int) -> Hashable:
        """Implements `AllocatableDevices.key`."""
        gpus, state = self._gpus, self._gpus.state(node)
        zone = int(gpus.zones.keys()[node]) if gpus.zones is not None else 0
        room = tuple((self._gives(node, pod), gpus.usable_gpus(node, pod)) for pod in self._asking)
        return _machine_key(state.by_name), state.free, tuple(state.groups.items()), room, zone

    def _gives(self, node: int, pod: PodInfo) -> bool:
        """Returns whether a node gives allocatable GPUs to a pod."""
        ask = pod.ask(GPUS)
        return ask is not None and ask.resources in self._giving and bool(self._giving[ask.resources][node])

    def is_exact(self, node: int) -> bool:
        """Implements `AllocatableDevices.is_exact`."""
        return self._gpus.is_exact(node)

    def on_node(self, node: int, pods: Sequence[PodInfo]) -> DevicesOfNode | None:
        """Implements `AllocatableDevices.on_node`."""
        gpus = self._gpus
        own = [pod for pod in pods if self._gives(node, pod)]
        if not own:
            return DevicesOfNode()
        own.sort(key=attrgetter("order"))
        number = sum(pod.ask(GPUS).count for pod in own)
        left = gpus.usable_gpus(node, own[0]) - number
        zones = gpus.pod_zones(node, own)
        slowest = NO_LIMIT
        for chosen in choice_sets_at(own):
            wants = [want_of(own[i]) for i in chosen]
            near = [zones[i] for i in chosen] if zones is not None else None
            found = gpus.link_classes(node, wants, own[chosen[0]].group, near)
            if found is None:
                return None
            slowest = min(slowest, self._kbs(found.low))
        machine, mask = gpus.state(node).by_name, None
        if machine is not None:
            wanted = wants_in(machine, [want_of(pod) for pod in own], zones)
            sets = chooser_of(machine).choose(gpus.state(node).free, 0, wanted, gpus.config.objective)
            mask = sum(one for one, _ in sets) if sets is not None else None
        return DevicesOfNode(number, slowest, max(0, left), tuple(bits_of(mask)) if mask is not None else None)

    def of_pod(self, pod: PodInfo, nodes: Ints) -> DevicesOfNodes:
        """Implements `AllocatableDevices.of_pod`."""
        if pod.ask(GPUS) is None or pod.ask(GPUS).resources not in self._giving:
            return no_devices(nodes)
        *slow, left = plain_gpus(pod, self._inputs).without_zones(nodes)
        served = self._giving[pod.ask(GPUS).resources][nodes]
        kbs = [NO_LIMIT if pod.ask(GPUS).count < 2 else 0] * len(nodes)
        if slow:
            kbs = [self._kbs(rank) if rank >= 0 else 0 for rank in (-slow[0]).tolist()]
        slowest = np.where(served, np.array(kbs, dtype=np.int64), NO_LIMIT)
        return DevicesOfNodes(slowest, np.where(served, np.maximum(left, 0), 0))


def _machine_key(machine: Machine | None) -> Hashable:
    """Returns a key that is equal for machines with equal links between their GPUs."""
    if machine is None:
        return None
    return id(machine.matrix), machine.table, machine.honor, machine.numa, machine.roots
