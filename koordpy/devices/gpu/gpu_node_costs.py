# SPDX-License-Identifier: Apache-2.0
"""Costs of nodes for a unit with GPUs, by the number of its pods on each node (gpu-topology.md 5 (b) to (e)).

Placements are compared by the slowest pair of GPUs on each node, sorted with the slowest first. With an equal number of
nodes, this equals comparing how many nodes have their slowest pair in the lowest link class, then in the next class,
and so on. So the cost of a placement is the sum of one vector for each node. The vector has, with the letters of the
steps in gpu-topology.md 5: a number for each link class of the slowest pair on the node (c), the free GPUs that remain
(d), and a number for each link class of the slowest pair of each pod (e).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from koordpy.cache.snapshot import Ints
from koordpy.devices.gpu.choice.gpu_wants import PodWant
from koordpy.devices.gpu.gpu_allocation import choice_sets_at
from koordpy.devices.gpu.gpu_machine import GPUS, Machine
from koordpy.devices.gpu.gpu_nodes import MOST_GPUS, GpuNodes, GpuState, UnreadableWish, want_of
from koordpy.placement.problem import DeviceCosts, Devices
from koordpy.pods.gang_refs import GroupKey
from koordpy.pods.pod_info import PodInfo

Vector = tuple[int, ...]
"""Cost of a node; compared from left to right, lower is better."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """One pod of a shape of the unit, and what it requests of GPUs (`want`); None for a shape without GPUs."""

    pod: PodInfo
    want: PodWant | None


def free_gpus(pods: Sequence[PodInfo], gpus: GpuNodes) -> Ints | None:
    """Returns [nodes] GPUs that the devices of each node can still allocate to the pods; None if no node has a Device.

    A node without a Device gets a number above all requests, because its resource states its GPUs.
    """
    first = next((pod for pod in pods if pod.ask(GPUS) is not None), None)
    if first is None or not gpus.view.nodes:
        return None
    nodes = gpus.draft.snapshot.nodes
    most = int(gpus.draft.snapshot.allocatable.max(initial=0)) + sum(
        pod.ask(GPUS).count for pod in pods if pod.ask(GPUS)
    )
    found = (gpus.devices(i, first) for i in range(len(nodes)))
    return np.fromiter((most if one is None else max(0, one) for one in found), dtype=np.int64, count=len(nodes))


def nodes_with_members(members: Sequence[PodInfo], gpus: GpuNodes) -> Ints:
    """Returns [nodes] 1 if bound members of the pending pods' GPU groups are on the node, else 0 (step (b)).

    For pods without a GPU group, bound members of the gang count. All 0 for a unit without GPUs. members: all pods of
    the unit.
    """
    snapshot = gpus.draft.snapshot
    out = np.zeros(len(snapshot.nodes), dtype=np.int64)
    pending = [pod for pod in members if pod.pending]
    if all(pod.ask(GPUS) is None for pod in pending):
        return out
    groups = {pod.group: None for pod in pending if pod.group is not None}
    for group in groups:
        for name in gpus.view.group_nodes.get(group, {}):
            if name in snapshot.index:
                out[snapshot.index[name]] = 1
    for key, node in gpus.draft.placed.items() if groups else ():
        if snapshot.pods[key].group in groups:
            out[node] = 1
    if any(pod.group is None for pod in pending):
        for pod in members:
            if pod.bound and pod.node in snapshot.index:
                out[snapshot.index[pod.node]] = 1
    return out


def device_costs(pods: Sequence[PodInfo], gpus: GpuNodes) -> DeviceCosts | None:
    """Returns the cost table of a unit; None for a unit without GPUs, and for a request that cannot be read.

    pods: one pod of each shape.
    """
    kinds = []
    for pod in pods:
        try:
            kinds.append(_Kind(pod, want_of(pod) if pod.ask(GPUS) is not None else None))
        except UnreadableWish:
            return None
    if all(kind.want is None for kind in kinds):
        return None
    table = _GpuTable(tuple(kinds), gpus)
    active = tuple(i for i, kind in enumerate(kinds) if kind.want is not None)
    devices = table.numbers()
    return DeviceCosts(table.kinds(), table.cost, table.width, active, table.always, lambda: table.exact, devices)


class _GpuTable:
    """Computes the cost vector of a node from its kind and the number of pods of each shape. Results are cached."""

    def __init__(self, kinds: tuple[_Kind, ...], gpus: GpuNodes) -> None:
        self._kinds, self._gpus = kinds, gpus
        self._classes = gpus.classes
        self._zones = gpus.zones.width if gpus.zones is not None else 0
        self.width = 2 * self._classes + self._zones + 1
        """Length of a vector: a number for each class of (c), the costs of zones (n1, n2), one number for (d), a number
        for each class of (e)."""
        self.exact = True
        """True if all vectors computed so far are proven the least; False once a large machine has been judged by the
        heuristic."""
        self._first: list[int] = []
        """Kind -> position of its first node, on which vectors of the kind are computed."""
        self._known: dict[tuple[int, tuple[int, ...]], Vector | None] = {}
        self._groups: tuple[GroupKey, ...] = tuple(
            dict.fromkeys(kind.pod.group for kind in kinds if kind.pod.group is not None)
        )
        """GPU groups of the unit's pods."""

    def kinds(self) -> Ints:
        """Returns [nodes] kind of each node. Nodes of one kind have equal links, free GPUs and GPUs of the pods'
        groups."""
        gpus, numbers = self._gpus, dict[object, int]()
        asking = next(kind.pod for kind in self._kinds if kind.want is not None)
        count = len(gpus.draft.snapshot.nodes)
        out = np.zeros(count, dtype=np.int64)
        zones = gpus.zones.keys() if gpus.zones is not None else out
        if not gpus.view.nodes:
            rooms = gpus.counted(np.arange(count), asking)
            _, first, which = np.unique(zones * (MOST_GPUS + 1) + rooms, return_index=True, return_inverse=True)
            self._first = [int(i) for i in first]
            return np.asarray(which.reshape(-1), dtype=np.int64)
        for node, zone in enumerate(zones.tolist()):
            state = gpus.state(node)
            key = (
                self._machine_key(state.by_name),
                state.free,
                self._group_masks(state),
                gpus.usable_gpus(node, asking),
                zone,
            )
            number = numbers.setdefault(key, len(numbers))
            if number == len(self._first):
                self._first.append(node)
            out[node] = number
        return out

    def _group_masks(self, state: GpuState) -> tuple[int, ...]:
        """Returns, for each group of the unit, the mask of the GPUs of its members on a node."""
        return tuple(state.groups.get(group, 0) for group in self._groups)

    def numbers(self) -> Devices | None:
        """Returns the costs by the number of free GPUs alone, which solvers can treat faster; None if links matter.

        Links do not matter if no machine is known and the GPUs of all pods of the unit are chosen together.
        """
        asking = [kind.pod for kind in self._kinds if kind.want is not None]
        together = {pod.group or pod.gang or pod.key for pod in asking}
        if (
            self._gpus.view.nodes
            or self._gpus.zones is not None
            or self.width != 3
            or len(together) > 1
            or not self.always
        ):
            return None
        asks = tuple(kind.want.count if kind.want is not None else 0 for kind in self._kinds)
        return Devices(asks, self._gpus.counted(np.arange(len(self._gpus.draft.snapshot.nodes)), asking[0]))

    @property
    def always(self) -> bool:
        """True if the number of free GPUs decides feasibility: no pod restricts its GPUs, and no node honors a
        partition table."""
        wants = [kind.want for kind in self._kinds if kind.want is not None]
        if any(want.restricted or want.least_kbs for want in wants):
            return False
        return not any(known.machine.honor for known in self._gpus.view.nodes.values())

    def _machine_key(self, machine: Machine | None) -> object:
        """Returns a key that is equal for machines with equal costs, whichever of their GPUs are free.

        Noise in measured bandwidths is ignored: machines with equal link classes have equal keys. Except if exact
        values decide: with a partition table, a restricting pod, or a comparison by link classes.
        """
        if machine is None:
            return None
        matrix = machine.matrix
        exact = self._gpus.view.comparison.source == "links" and matrix.measured is not None
        if exact or machine.table is not None or not self.always:
            return id(matrix), machine.table, machine.honor, machine.numa, machine.roots
        ranks = self._gpus.view.comparison.ranks
        return matrix.source != "", matrix.pattern, tuple(ranks[floor] for floor in matrix.floors)

    def cost(self, kind: int, counts: tuple[int, ...]) -> Vector | None:
        """Returns the vector of a node of a kind with counts[i] pods of shape i; None if its GPUs cannot serve these
        pods."""
        key = (kind, counts)
        if key not in self._known:
            self._known[key] = self._vector(self._first[kind], counts)
        return self._known[key]

    def _vector(self, node: int, counts: tuple[int, ...]) -> Vector | None:
        """Computes `cost` on one node: the classes of (c), the free GPUs that remain (d), the classes of (e).

        Groups of the unit that get no new GPUs on the node still count in (c), by the GPUs of their bound members.
        """
        slow, own = [0] * self._classes, [0] * self._classes
        gpus = self._gpus
        if not any(counts):
            for group in self._groups:
                self._count_class(slow, gpus.group_class(node, group))
            return (*slow, *((0,) * self._zones), 0, *own)
        pods = [kind.pod for kind, number in zip(self._kinds, counts, strict=True) for _ in range(number)]
        gpu_pods = [pod for pod in pods if pod.ask(GPUS) is not None]
        asking = next(kind.pod for kind in self._kinds if kind.want is not None)
        left = gpus.usable_gpus(node, asking) - sum(
            pod.ask(GPUS).count for pod in gpu_pods if pod.ask(GPUS) is not None
        )
        served: set[GroupKey] = set()
        gpu_pods.sort(key=attrgetter("order"))
        zones = gpus.zones.cost(node, gpu_pods) if gpus.zones is not None else ()
        masks = gpus.pod_zones(node, gpu_pods) if gpus.zones is not None else None
        for chosen in choice_sets_at(gpu_pods):
            together, wants = gpu_pods[chosen[0]].group, tuple(want_of(gpu_pods[i]) for i in chosen)
            worth = gpus.link_classes(node, wants, together, [masks[i] for i in chosen] if masks is not None else None)
            if worth is None:
                return None
            self.exact = self.exact and gpus.is_exact(node)
            self._count_class(slow, worth.low)
            for low in worth.lows:
                self._count_class(own, low)
            if together is not None:
                served.add(together)
        for group in self._groups:
            if group not in served:
                self._count_class(slow, gpus.group_class(node, group))
        return (*slow, *zones, max(0, left), *own)

    def _count_class(self, numbers: list[int], rank: int) -> None:
        """Counts a class in a list of numbers. The number of classes means that nothing limits and is not counted."""
        if rank < self._classes:
            numbers[rank] += 1
