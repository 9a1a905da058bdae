# SPDX-License-Identifier: Apache-2.0
"""The NUMA zones of all nodes on a draft: the free amounts of each zone, and the zones that a pod would get.

The state of a node is read once for a snapshot, and again after the draft has changed the node. A pod that the draft
places is charged to the zones of its allocation; if it has none, to the zones that the kubelet would give it
(docs/rules/numa.md 3).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from itertools import repeat
from typing import NamedTuple

import numpy as np

from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Ints, NodeInfo, Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.gpu.gpu_nodes import GpuNodes, gpu_nodes
from koordpy.devices.gpu.gpu_view import NodeGpus, gpu_view
from koordpy.devices.numa.admission import Policy, ZoneAdmission, Zoned
from koordpy.devices.numa.aligned_node import AlignedNode, Settings, aligned_node
from koordpy.devices.numa.numa_book import NO_DATA, NodeNuma, numa_view
from koordpy.devices.numa.pod_amounts import NUMA
from koordpy.devices.numa.topology_report import NO_REPORT, TopologyReport
from koordpy.devices.numa.zone_records import ByZone
from koordpy.devices.numa.zone_state import Row, ZoneState
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.pods.pod_info import stays


class ZoneTake(NamedTuple):
    """Zones that a plan expects the kubelet to use for a pod: the allocation of the family."""

    numbers: Row
    """[zones] number of each zone of the node."""
    admission: ZoneAdmission
    policy: Policy
    report: TopologyReport = NO_REPORT
    """Report of the node for which the plan was made."""

    @property
    def taken(self) -> Zoned:
        """Resource -> [zones] amount."""
        return self.admission.taken

    @property
    def by_zone(self) -> ByZone:
        """Resource -> number of a zone -> amount above 0."""
        return {
            name: {number: one for number, one in zip(self.numbers, row, strict=True) if one}
            for name, row in self.taken.items()
        }

    def is_valid(self, numa: NodeNuma) -> bool:
        """Returns True if the plan is still valid for the node: it has the policy and the zones for which the plan was
        made."""
        zones = set(numa.report.zones)
        return numa.policy is self.policy and (not zones or zones <= set(self.numbers))


def numa_nodes(inputs: FilterInputs) -> "NumaNodes":
    """Returns the zones of every node on the draft of `inputs`, built once for it."""
    found = inputs.memo.get(NumaNodes)
    if not isinstance(found, NumaNodes):
        found = inputs.memo[NumaNodes] = NumaNodes(inputs.draft, inputs.config, gpu_nodes(inputs))
    return found


class _SnapshotZones(NamedTuple):
    """The zones of all nodes of a snapshot, and what they were read from. Lists are [nodes]."""

    settings: Settings
    sources: tuple[Mapping[str, NodeNuma], Mapping[str, NodeGpus]]
    """NUMA data and GPUs by the name of the node."""
    infos: Sequence[NodeInfo]
    numas: list[NodeNuma]
    gpus: list[NodeGpus | None]
    aligned: list[AlignedNode]
    states: list[ZoneState]
    """The different states of the nodes."""
    numbers: Ints
    """[nodes] position in `states`."""


def _snapshot_zones(snapshot: Snapshot, settings: Settings) -> _SnapshotZones:
    """Returns the zones of all nodes of a snapshot. Nodes that have not changed since the last call are not read."""
    view, machines, infos = numa_view(snapshot), gpu_view(snapshot).nodes, snapshot.nodes
    last: _SnapshotZones | None = view.memo.get(_SnapshotZones)
    if last is None or last.settings != settings:
        last = _SnapshotZones(settings, ({}, {}), (), [], [], [], [], np.zeros(0, dtype=np.int64))
    elif last.infos == infos and last.sources == (view.nodes, machines):
        return last
    numas = [*map(view.nodes.get, snapshot.index, repeat(NO_DATA))]
    gpus = [*map(machines.get, snapshot.index)]
    before = zip(last.infos, last.numas, last.gpus, strict=True)
    known = {source[0].name: (source, one) for source, one in zip(before, last.aligned, strict=True)}
    aligned: list[AlignedNode] = []
    for source in zip(infos, numas, gpus, strict=True):
        info, numa, own = source
        was, one = known.get(info.name, (None, None))
        if one is None or was != source:
            one = aligned_node(numa, own, info.allocatable, settings)
        aligned.append(one)
    numbers: dict[ZoneState, int] = {}
    of_nodes = [numbers.setdefault(one.start, len(numbers)) for one in aligned]
    found = _SnapshotZones(
        settings, (view.nodes, machines), infos, numas, gpus, aligned, [*numbers], np.array(of_nodes, dtype=np.int64)
    )
    view.memo[_SnapshotZones] = found
    return found


class NumaNodes:
    """The zones of all nodes on a draft. node: position of a node.

    The states of the nodes are numbered, so that a value of a state is computed once and read for all nodes as an
    array (`NodeValues`). After a change of the draft, only the changed nodes are read again.
    """

    def __init__(self, draft: Draft, config: KoordpyConfiguration, gpus: GpuNodes) -> None:
        self.draft, self._gpus = draft, gpus
        start = _snapshot_zones(draft.snapshot, (config.numa, config.gpu))
        self._aligned, self._numbers = start.aligned, start.numbers.copy()
        self.states = [*start.states]
        """The different states of nodes, in order of their first use."""
        self._number_of = {state: number for number, state in enumerate(self.states)}
        """State -> its position in `states`."""
        self._seen = 0
        """Version of the draft up to which the numbers are current."""
        self.log: list[int] = []
        """Nodes that have come to another state, in the order of the changes."""
        kinds = {one.kind for one in self.states if one.kind.has_data}
        self.widest = max((len(one.numbers) for one in kinds), default=0)
        """Largest number of zones of a node with NUMA data; 0 if no node has some."""

    def numbers(self) -> Ints:
        """Returns [nodes] the position in `states` of the state of each node on the current draft."""
        draft = self.draft
        if self._seen < draft.version:
            for node in draft.touched_since(self._seen):
                number = self.number_of(self.state_without(node, ()))
                if number != self._numbers[node]:
                    self._numbers[node] = number
                    self.log.append(node)
            self._seen = draft.version
        return self._numbers

    def number_of(self, state: ZoneState) -> int:
        """Returns the position of a state in `states`; a new state is added."""
        number = self._number_of.setdefault(state, len(self.states))
        if number == len(self.states):
            self.states.append(state)
        return number

    def state(self, node: int) -> ZoneState:
        """Returns the zones of a node on the current draft."""
        return self.states[int(self.numbers()[node])]

    def states_of(self, nodes: Collection[int]) -> dict[int, ZoneState]:
        """Returns `state` of each of the given nodes."""
        numbers = self.numbers()[[*nodes]].tolist()
        return {node: self.states[number] for node, number in zip(nodes, numbers, strict=True)}

    def aligned(self, node: int) -> AlignedNode:
        """Returns the zones of a node without regard to the draft."""
        return self._aligned[node]

    @cached_property
    def count_only(self) -> list[int]:
        """Nodes that do not align GPUs only because the GPUs of some pod there are unknown."""
        return [node for node, one in enumerate(self._aligned) if one.read_by_name is not None]

    def stays_count_only(self, node: int, own: Collection[str]) -> bool:
        """Returns True if a pod of the snapshot with unknown GPUs remains on a node once all pods that can end have
        left it. own: keys of pods that remain, besides pods of DaemonSets and mirror pods."""
        snapshot = self.draft.snapshot
        known = self._gpus.view.nodes[snapshot.nodes[node].name]
        return any(key in own or stays(snapshot.pods[key]) for key in known.holders.keys() - known.masks.keys())

    def state_without(self, node: int, gone: Collection[str]) -> ZoneState:
        """Returns the state of a node on the current draft, without the given bound pods (keys) that the draft has not
        evicted."""
        aligned, draft = self._aligned[node], self.draft
        evicted = draft.evicted.keys() | set(gone)
        if aligned.read_by_name is not None and evicted and not self._gpus.state(node).unknown:
            aligned = aligned.by_name
        if evicted or aligned.by_device:
            state = aligned.state_without(evicted, self._gpus.state(node).free if aligned.by_device else 0)
        else:
            state = aligned.start
        for key, pod in draft.placed_on.get(node, {}).items():
            ask, take = pod.ask(NUMA), draft.family_devices_of(key, NUMA)
            if take is not None:
                state = state.after(aligned.beside_device(take.taken))
            elif ask is not None:
                state = state.after_pod(ask)
        return state


class NodeValues:
    """Integers of each node for one shape of pods, such as copies and costs: functions of the state of its zones.

    Computed once for each state, and written again only for nodes that have come to another state.
    """

    def __init__(self, nodes: NumaNodes, width: int, value_of: Callable[[ZoneState], tuple[int, ...]]) -> None:
        """value_of: returns the integers of a state. width: their number."""
        self._nodes, self._value_of = nodes, value_of
        self._known: dict[int, tuple[int, ...]] = {}
        """Number of a state -> its integers."""
        numbers = nodes.numbers()
        table = np.zeros((width, len(nodes.states)), dtype=np.int64)
        for number in np.flatnonzero(np.bincount(numbers)).tolist():
            table[:, number] = self.of_state(number)
        self.values: Ints = table[:, numbers]
        """[width, nodes], as of the last refresh."""
        self._seen = len(nodes.log)
        """Length of `NumaNodes.log` at the last refresh."""
        self._overwritten: list[int] = []
        """Nodes with integers of a state in which they are not."""

    def refresh(self) -> Ints:
        """Returns `values` on the current draft."""
        numbers, log = self._nodes.numbers(), self._nodes.log
        for node in (*self._overwritten, *log[self._seen :]):
            self.values[:, node] = self.of_state(int(numbers[node]))
        self._overwritten.clear()
        self._seen = len(log)
        return self.values

    def of_state(self, number: int) -> tuple[int, ...]:
        """Returns the integers of a state by its number."""
        found = self._known.get(number)
        if found is None:
            found = self._known[number] = self._value_of(self._nodes.states[number])
        return found

    def overwrite(self, node: int, number: int) -> None:
        """Writes the integers of another state (number) for a node, until the next refresh."""
        self.values[:, node] = self.of_state(number)
        self._overwritten.append(node)


def zones_fit(config: KoordpyConfiguration, numa: NodeNuma, takes: Sequence[ZoneTake]) -> bool:
    """Returns True if the zones of a node have the amounts of a plan, by the current report and the current pods.

    numa: without the pods of the plan. GPUs are left out, because the plan is checked for them by name.
    """
    aligned = aligned_node(numa, None, {}, (config.numa, config.gpu))
    if not aligned.kind.policy.rejects:
        return True
    left = {name: dict(zip(aligned.kind.numbers, row, strict=True)) for name, row in aligned.start.rows}
    for take in takes:
        for name, by_zone in take.by_zone.items():
            if name not in left or name in config.gpu.resources:
                continue
            for zone, amount in by_zone.items():
                left[name][zone] -= amount
                if left[name][zone] < 0:
                    return False
    return True
