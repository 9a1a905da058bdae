"""Costs of nodes for a unit with GPUs, by the number of its pods on each node (gpu-topology.md 5 (b) to (e)).

Placements are compared by the sorted list of the nodes' slowest pairs, slowest first. With an equal number of nodes
this equals comparing how many nodes have their slowest pair in the lowest class, then in the next class, and so on. So
the cost is a sum of one vector for each node: a number for each class of (c), the free GPUs that remain (d), and a
number for each class of (e).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from koordpy.cache.snapshot import Ints
from koordpy.devices.gpu.choice.gpu_wants import PodWant
from koordpy.devices.gpu.gpu_allocation import choice_sets
from koordpy.devices.gpu.gpu_machine import GPUS, Machine
from koordpy.devices.gpu.gpu_nodes import GpuNodes, GpuState, UnreadableWish, want_of
from koordpy.placement.problem import ByCount, Devices
from koordpy.pods.gang_refs import GroupKey
from koordpy.pods.pod_info import PodInfo

Vector = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Kind:
    """One pod of a shape of the unit, and its wishes for GPUs; None for a shape without GPUs."""

    pod: PodInfo
    want: PodWant | None


def gpu_room(pods: Sequence[PodInfo], gpus: GpuNodes) -> Ints | None:
    """Returns [nodes] GPUs that the devices of each node can still allocate to the pods; None if no node has a
    Device."""
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
    """Returns [nodes] 1 if bound members of the pods' GPU groups or gangs are on the node, else 0 (b).

    All 0 for a unit without GPUs.
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


def by_count(pods: Sequence[PodInfo], gpus: GpuNodes) -> ByCount | None:
    """Returns the cost table of a unit, with one pod of each shape in `pods`; None for a unit without GPUs."""
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
    return ByCount(table.kinds(), table.cost, table.width, active, table.always, lambda: table.exact, devices)


class _GpuTable:
    """Cost vectors by kind of node and number of pods of each shape."""

    def __init__(self, kinds: tuple[_Kind, ...], gpus: GpuNodes) -> None:
        self._kinds, self._gpus = kinds, gpus
        self._classes = gpus.classes
        self.width = 2 * self._classes + 1
        self.exact = True
        self._first: list[int] = []
        self._known: dict[tuple[int, tuple[int, ...]], Vector | None] = {}
        self._groups: tuple[GroupKey, ...] = tuple(
            dict.fromkeys(kind.pod.group for kind in kinds if kind.pod.group is not None)
        )

    def kinds(self) -> Ints:
        """Returns [nodes] kind of each node: nodes with equal links, free GPUs and GPUs of siblings have one kind."""
        gpus, numbers = self._gpus, dict[object, int]()
        asking = next(kind.pod for kind in self._kinds if kind.want is not None)
        count = len(gpus.draft.snapshot.nodes)
        out = np.zeros(count, dtype=np.int64)
        if not gpus.view.nodes:
            rooms = gpus.counted(np.arange(count), asking)
            _, first, which = np.unique(rooms, return_index=True, return_inverse=True)
            self._first = [int(i) for i in first]
            return which.reshape(-1).astype(np.int64)
        for node in range(count):
            state = gpus.state(node)
            key = (self._machine_key(state.by_name), state.free, self._group_masks(state), gpus.room(node, asking))
            number = numbers.setdefault(key, len(numbers))
            if number == len(self._first):
                self._first.append(node)
            out[node] = number
        return out

    def _group_masks(self, state: GpuState) -> tuple[int, ...]:
        return tuple(state.groups.get(group, 0) for group in self._groups)

    def numbers(self) -> Devices | None:
        """Returns the costs by numbers of free GPUs; None unless no machine is known and all pods with GPUs are chosen
        together."""
        asking = [kind.pod for kind in self._kinds if kind.want is not None]
        together = {pod.group or pod.gang or pod.key for pod in asking}
        if self._gpus.view.nodes or self.width != 3 or len(together) > 1 or not self.always:
            return None
        asks = tuple(kind.want.count if kind.want is not None else 0 for kind in self._kinds)
        return Devices(asks, self._gpus.counted(np.arange(len(self._gpus.draft.snapshot.nodes)), asking[0]))

    @property
    def always(self) -> bool:
        """True if only the number of free GPUs decides feasibility."""
        wants = [kind.want for kind in self._kinds if kind.want is not None]
        if any(want.restricted or want.least_kbs for want in wants):
            return False
        return not any(known.machine.honor for known in self._gpus.view.nodes.values())

    def _machine_key(self, machine: Machine | None) -> object:
        """Returns a key that is equal for machines with equal costs, whichever GPUs are free: noise in bandwidths is
        ignored."""
        if machine is None:
            return None
        matrix = machine.matrix
        exact = self._gpus.view.comparison.source == "links" and matrix.measured is not None
        if exact or machine.table is not None or not self.always:
            return id(matrix), machine.table, machine.honor, machine.numa, machine.roots
        ranks = self._gpus.view.comparison.ranks
        return matrix.source != "", matrix.pattern, tuple(ranks[floor] for floor in matrix.floors)

    def cost(self, kind: int, counts: tuple[int, ...]) -> Vector | None:
        """Returns the vector of a node of a kind with counts[i] pods of shape i; None if its GPUs cannot serve them."""
        key = (kind, counts)
        if key not in self._known:
            self._known[key] = self._vector(self._first[kind], counts)
        return self._known[key]

    def _vector(self, node: int, counts: tuple[int, ...]) -> Vector | None:
        """Computes `cost` on one node: the classes of (c), the free GPUs that remain (d), the classes of (e)."""
        slow, own = [0] * self._classes, [0] * self._classes
        gpus = self._gpus
        if not any(counts):
            for group in self._groups:
                self._count_class(slow, gpus.group_class(node, group))
            return (*slow, 0, *own)
        pods = [kind.pod for kind, number in zip(self._kinds, counts, strict=True) for _ in range(number)]
        given = [pod for pod in pods if pod.ask(GPUS) is not None]
        asking = next(kind.pod for kind in self._kinds if kind.want is not None)
        left = gpus.room(node, asking) - sum(pod.ask(GPUS).count for pod in given if pod.ask(GPUS) is not None)
        served: set[GroupKey] = set()
        for together, wants in self._choice_groups(given):
            worth = gpus.worth(node, wants, together)
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
        return (*slow, max(0, left), *own)

    def _count_class(self, numbers: list[int], rank: int) -> None:
        if rank < self._classes:
            numbers[rank] += 1

    def _choice_groups(self, given: Sequence[PodInfo]) -> list[tuple[GroupKey | None, tuple[PodWant, ...]]]:
        """Returns (group, wishes) of each set of pods for which GPUs are chosen together."""
        return [(pods[0].group, tuple(want_of(pod) for pod in pods)) for pods in choice_sets(given)]
