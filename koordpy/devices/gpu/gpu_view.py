# SPDX-License-Identifier: Apache-2.0
"""The GPUs of all nodes at one moment: machines, the GPUs of pods, and the comparison of links. Views are immutable.

A machine is the set of GPUs of one node with their links, as its Device describes them. A holder is a pod on a node
that uses GPUs.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import or_
from typing import cast

from koordpy.cache.snapshot import Snapshot
from koordpy.devices.gpu.gpu_machine import GPUS, Machine
from koordpy.devices.gpu.held_gpus import GpuHolding
from koordpy.devices.gpu.link_comparison import NO_LINKS, Comparison
from koordpy.pods.family_books import FamilyView, KnownLinks, ShownDevices, ShownLinks
from koordpy.pods.gang_refs import GroupKey
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.tally import Tally, counts_without


@dataclass(frozen=True, eq=False)
class NodeGpus:
    """The GPUs of one node, and the pods that use them. Immutable."""

    machine: Machine
    """GPUs and links of the node."""
    holders: Mapping[str, GpuHolding]
    """Pod key -> GPUs that the pod uses."""

    @cached_property
    def masks(self) -> dict[str, int]:
        """Pod key -> mask of its GPUs; pods with unknown GPUs are left out."""
        machine = self.machine
        found = ((key, one, machine.mask(one.minors)) for key, one in self.holders.items() if one.minors is not None)
        return {key: mask for key, one, mask in found if mask.bit_count() >= one.count}

    @cached_property
    def allocated(self) -> int:
        """Mask of the GPUs that pods use, whole or in part."""
        return reduce(or_, self.masks.values(), 0)

    @cached_property
    def unknown(self) -> bool:
        """True if the GPUs of a pod are unknown; the node is then count-only."""
        return len(self.masks) < len(self.holders)

    @cached_property
    def held_whole(self) -> int:
        """Mask of the GPUs that pods use whole; pods that use parts of GPUs are left out."""
        return reduce(or_, (mask for key, mask in self.masks.items() if self.holders[key].count), 0)

    @cached_property
    def sick(self) -> int:
        """Mask of the unhealthy GPUs."""
        return ((1 << self.machine.size) - 1) & ~self.machine.healthy

    @cached_property
    def sick_holders(self) -> frozenset[str]:
        """Keys of the pods that use an unhealthy GPU, whole or in part."""
        return frozenset(key for key, mask in self.masks.items() if mask & self.sick) if self.sick else frozenset()

    @cached_property
    def requested(self) -> int:
        """Number of GPUs that pods on the node request."""
        return sum(one.count for one in self.holders.values())

    def group(self, key: GroupKey) -> int:
        """Returns the mask of the GPUs that members of a GPU group use."""
        return reduce(or_, (mask for name, mask in self.masks.items() if self.holders[name].group == key), 0)


@dataclass(frozen=True, eq=False)
class GpuView(FamilyView):
    """The GPUs of every node that has a Device. Immutable."""

    nodes: Mapping[str, NodeGpus]
    """Node name -> its GPUs."""
    group_nodes: Mapping[GroupKey, Mapping[str, int]]
    """Group -> node name -> bound members, with or without GPUs, of nodes with and without a Device."""
    comparison: "Comparison"
    """Link classes over all machines, by which links of different machines are compared."""
    warnings: tuple[tuple[str, str], ...] = ()
    """(object, text) of settings of Devices and nodes that have no effect."""
    partition_policies: bool = False
    """True if the label of a node sets a partition policy (Honor or Prefer)."""
    shared: frozenset[str] = frozenset()
    """Nodes on which another device plugin hands out shares of GPUs."""

    @cached_property
    def sick_held(self) -> tuple[str, ...]:
        """Names of nodes on which a pod uses an unhealthy GPU, sorted."""
        return tuple(sorted(name for name, known in self.nodes.items() if known.held_whole & known.sick))

    @cached_property
    def sick_holders(self) -> frozenset[str]:
        """Implements `FamilyView.sick_holders`."""
        return frozenset().union(*(known.sick_holders for known in self.nodes.values() if known.sick))

    def without_pods(self, gone: Collection[PodInfo]) -> "GpuView":
        """Implements `FamilyView.without_pods`."""
        keys = {pod.key for pod in gone}
        groups = Tally[GroupKey, str]()
        for pod in gone:
            if pod.group is not None:
                groups.add(pod.group, pod.node, 1)
        nodes = dict(self.nodes)
        for name in {pod.node for pod in gone} & nodes.keys():
            holders = {key: one for key, one in nodes[name].holders.items() if key not in keys}
            nodes[name] = replace(nodes[name], holders=holders)
        return replace(self, nodes=nodes, group_nodes=counts_without(self.group_nodes, groups.frozen()))

    def with_nodes(self, like: Mapping[str, str]) -> "GpuView":
        """Implements `FamilyView.with_nodes`."""
        machines = {new: replace(self.nodes[old], holders={}) for new, old in like.items() if old in self.nodes}
        shared = {new for new, old in like.items() if old in self.shared}
        return replace(self, nodes={**self.nodes, **machines}, shared=self.shared | shared)

    def ground(self) -> object:
        """Implements `FamilyView.ground`."""
        return self.comparison

    def state_of(self, node: str) -> object:
        """Implements `FamilyView.state_of`."""
        known = self.nodes.get(node)
        return known.machine if known is not None else None

    def moved_pods(self, before: "GpuView") -> Iterator[str]:
        """Implements `FamilyView.moved_pods`."""
        for name, here in self.nodes.items():
            if before.nodes.get(name) is not here:
                yield from here.holders

    def cells_of(self, node: str, pod: str) -> tuple[int, ...]:
        """Implements `FamilyView.cells_of`."""
        known = self.nodes.get(node)
        held = known.holders.get(pod) if known is not None else None
        return self.cells(node, held.minors or ()) if held is not None else ()

    def cells(self, node: str, minors: Sequence[int]) -> tuple[int, ...]:
        """Returns the positions of GPUs (minors) among all GPUs of their node; the minors if the node has no
        machine."""
        known = self.nodes.get(node)
        there = known.machine.minors if known is not None else tuple(minors)
        return tuple(there.index(minor) for minor in minors if minor in there) if known is not None else there

    def is_room_of(self, before: "GpuView") -> bool:
        """Implements `FamilyView.is_room_of`."""
        return self.nodes == before.nodes

    def shown(self, node: str) -> ShownDevices | None:
        """Implements `FamilyView.shown`."""
        known = self.nodes.get(node)
        if known is None:
            return None
        machine = known.machine
        sick = tuple(i for i in range(machine.size) if not machine.healthy >> i & 1)
        matrix = machine.matrix
        links = ShownLinks(matrix, matrix.source, matrix.lowest) if machine.has_matrix else None
        return ShownDevices(machine.size, sick, links)

    def links_of(self, node: str) -> KnownLinks | None:
        """Implements `FamilyView.links_of`."""
        known = self.nodes.get(node)
        if known is None:
            return None
        machine, matrix = known.machine, known.machine.matrix
        places = [entry.topology for entry in machine.entries]
        floors, ranks = matrix.floors, matrix.pattern.ranks
        pooled: dict[int, int] = {}
        for value, rank in sorted(self.comparison.ranks.items()):
            pooled.setdefault(rank, value)
        numbers = (self.comparison.ranks.get(floor) for floor in floors)
        pool = [
            pooled.get(number, floor) if number is not None else floor
            for number, floor in zip(numbers, floors, strict=True)
        ]
        return KnownLinks(
            ids={one: i for i, one in enumerate(machine.ids) if one},
            bus_ids={place.bus_id: i for i, place in enumerate(places) if place is not None and place.bus_id},
            classes=[[floors[rank] for rank in row] for row in ranks] if machine.has_matrix else None,
            compared=[[pool[rank] for rank in row] for row in ranks] if machine.has_matrix else None,
            lowest=matrix.lowest if machine.has_matrix else None,
            numa=[place.node_id if place is not None else None for place in places],
            roots=[(place.pcie_id or "") if place is not None else "" for place in places],
        )

    def amends(self, node: str) -> bool:
        """Implements `FamilyView.amends`."""
        return node in self.sick_held


NO_GPUS = GpuView({}, {}, NO_LINKS)
"""View of a cluster without GPUs."""


def gpu_view(snapshot: Snapshot) -> GpuView:
    """Returns the GPUs of a snapshot."""
    return cast(GpuView, snapshot.families.get(GPUS, NO_GPUS))
