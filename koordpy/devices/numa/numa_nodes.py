# SPDX-License-Identifier: Apache-2.0
"""The NUMA zones of all nodes on a draft: the free amounts of each zone, and the zones that a pod would get.

The state of a node is computed on first use, and again after the draft has changed the node. A pod that the draft
places is charged to the zones of its allocation; if it has none, to the zones that the kubelet would give it
(docs/rules/numa.md 3).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from koordpy.cache.plan_draft import Draft
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.gpu.gpu_nodes import GpuNodes, gpu_nodes
from koordpy.devices.gpu.gpu_view import gpu_view
from koordpy.devices.numa.admission import (
    NOTHING_ALIGNED,
    PodAmounts,
    Policy,
    RequestPart,
    ZoneAdmission,
    Zoned,
    Zones,
    admit,
    memory_sets,
    minus,
)
from koordpy.devices.numa.aligned_node import AlignedNode, aligned_node
from koordpy.devices.numa.free_amounts import free_amounts
from koordpy.devices.numa.numa_book import NodeNuma, NumaView, numa_view
from koordpy.devices.numa.pod_amounts import NUMA, NumaAsk
from koordpy.devices.numa.topology_report import NO_REPORT, TopologyReport
from koordpy.devices.numa.zone_records import ByZone
from koordpy.plugins.filter_inputs import FilterInputs

Row = tuple[int, ...]
_NO_NUMA = NodeNuma()


@dataclass(frozen=True)
class ZoneTake:
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


@dataclass(frozen=True, eq=False)
class ZoneState:
    """The zones of one node on a draft."""

    node: AlignedNode
    free: Zoned
    """Resource -> [zones] amount; may be negative."""
    groups: frozenset[int]
    """Zone sets in which pods have memory."""
    exact: bool
    """True if the report shows exactly the pods that were on the node when it last changed."""

    @cached_property
    def key(self) -> object:
        """A hashable value that is equal for nodes with equal answers."""
        return self.node.key, self.rows, self.groups

    @cached_property
    def rows(self) -> tuple[tuple[str, Row], ...]:
        """The free amounts, hashable."""
        return tuple(sorted(self.free.items()))

    @cached_property
    def empty(self) -> "ZoneState":
        """The node without any pod."""
        return replace(self, free=self.node.allocatable, groups=frozenset())

    @cached_property
    def whole(self) -> int:
        """Mask of the zones (positions) of which nothing is used."""
        have = self.node.allocatable
        return sum(
            1 << zone
            for zone in range(len(self.node.numbers))
            if all(row[zone] == have[name][zone] for name, row in self.free.items())
        )

    def policy_for(self, ask: NumaAsk) -> Policy:
        """Returns the stricter of the node's policy and the policy that the pod demands."""
        return max(self.node.policy, ask.demand, key=lambda one: one.strictness)

    def amounts_of(self, ask: NumaAsk) -> PodAmounts:
        """Returns what the node aligns of a pod."""
        return ask.on(self.node.resources, self.node.scope)

    def admit(self, ask: NumaAsk) -> ZoneAdmission | RequestPart:
        """Returns the zones that a pod gets, or the part of the pod that the kubelet rejects first."""
        pod = self.amounts_of(ask)
        if not self.node.has_data or not pod.requests:
            return NOTHING_ALIGNED
        return _admit(pod, self.node.zones, self.rows, self.policy_for(ask), self.groups)

    def after(self, taken: Zoned) -> "ZoneState":
        """Returns the state with one more pod. taken: resource -> [zones] amount of the pod."""
        if not taken:
            return self
        return replace(self, free=minus(self.free, taken), groups=self.groups | memory_sets([taken]))

    def after_pod(self, ask: NumaAsk, record: Zoned = {}) -> "ZoneState":  # noqa: B006 - it is not changed
        """Returns the state with one more pod; its zones are partly known.

        record: resource -> [zones] amount. Other resources are taken as the kubelet would; if it rejects the pod, from
        the zones in ascending order.
        """
        if not self.node.has_data:
            return self
        unknown = [(name, amount) for name, amount in self.amounts_of(ask).held if name not in record]
        if not unknown:
            return self.after(record)
        found = self.admit(ask)
        guess = found.taken if isinstance(found, ZoneAdmission) and found.taken else self._in_order(unknown)
        return self.after({**record, **{name: guess[name] for name, _ in unknown if name in guess}})

    def _in_order(self, amounts: Iterable[tuple[str, int]]) -> Zoned:
        """Returns amounts that are taken from the zones in ascending order, as much as each has free."""
        out: dict[str, Row] = {}
        for name, amount in amounts:
            row = []
            for have in self.free[name]:
                row.append(min(amount, max(0, have)))
                amount -= row[-1]
            row[-1] += amount
            out[name] = tuple(row)
        return out


@lru_cache(maxsize=1 << 14)
def _admit(
    pod: PodAmounts, zones: Zones, free: tuple[tuple[str, Row], ...], policy: Policy, groups: frozenset[int]
) -> ZoneAdmission | RequestPart:
    """Returns `admit`, computed once for equal nodes."""
    return admit(pod, zones, dict(free), policy, groups)


def numa_nodes(inputs: FilterInputs) -> "NumaNodes":
    """Returns the zones of every node on the draft of `inputs`, built once for it."""
    found = inputs.memo.get(NumaNodes)
    if not isinstance(found, NumaNodes):
        found = inputs.memo[NumaNodes] = NumaNodes(inputs.draft, inputs.config, gpu_nodes(inputs))
    return found


class NumaNodes:
    """The zones of all nodes on a draft. node: position of a node."""

    def __init__(self, draft: Draft, config: KoordpyConfiguration, gpus: GpuNodes) -> None:
        self.draft, self.config = draft, config
        self.view: NumaView = numa_view(draft.snapshot)
        self._gpus = gpus
        self._machines = gpu_view(draft.snapshot).nodes
        self._states: dict[int, ZoneState | None] = {}
        self._seen = 0
        """Version of the draft up to which states are current."""
        self._changed: set[int] = set()
        """Nodes that the draft has ever changed; the states of other nodes are those of the snapshot."""

    def state(self, node: int) -> ZoneState | None:
        """Returns the zones of a node on the current draft; None for a node without zones."""
        if self._seen < self.draft.version:
            for one in self.draft.touched_since(self._seen):
                self._states.pop(one, None)
                self._changed.add(one)
            self._seen = self.draft.version
        if node not in self._states:
            self._states[node] = self._read(node)
        return self._states[node]

    @cached_property
    def widest(self) -> int:
        """Largest number of zones of a node with NUMA data; 0 if no node has some."""
        found = map(self.aligned, range(len(self.draft.snapshot.nodes)))
        return max((len(one.numbers) for one in found if one is not None and one.has_data), default=0)

    def aligned(self, node: int) -> AlignedNode | None:
        """Returns the zones of a node without regard to the draft; None for a node without zones."""
        info = self.draft.snapshot.nodes[node]
        numa, gpus = self.view.nodes.get(info.name), self._machines.get(info.name)
        if not self.config.numa.enabled or (numa is None and gpus is None):
            return None
        numa = numa or _NO_NUMA
        if numa is _NO_NUMA:
            return aligned_node(numa, gpus, info.allocatable, self.config.numa, self.config.gpu)
        known = numa.memo.get(AlignedNode)
        basis = (gpus, info.allocatable, self.config.numa, self.config.gpu)
        if known is None or any(one is not other for one, other in zip(known[0], basis, strict=True)):
            found = aligned_node(numa, gpus, info.allocatable, self.config.numa, self.config.gpu)
            known = numa.memo[AlignedNode] = basis, found
        aligned: AlignedNode | None = known[1]
        return aligned

    def _read(self, node: int) -> ZoneState | None:
        """Returns the state of a node on the current draft."""
        aligned = self.aligned(node)
        return self.state_without_bound(node, aligned, ()) if aligned is not None else None

    def state_without_bound(self, node: int, aligned: AlignedNode, gone: Collection[str]) -> ZoneState:
        """Returns the state of a node on the current draft, without some bound pods (keys) that the draft has not
        evicted."""
        draft = self.draft
        evicted = draft.evicted.keys() | set(gone) if node in self._changed or gone else frozenset[str]()
        state = self.state_without(node, aligned, evicted)
        for key, pod in draft.placed_on.get(node, {}).items():
            if (ask := pod.ask(NUMA)) is None:
                continue
            take = draft.family_devices_of(key, NUMA)
            state = state.after_pod(ask, _by_report(aligned, take.taken if take is not None else {}))
        return state

    def state_without(self, node: int, aligned: AlignedNode, gone: Collection[str]) -> ZoneState:
        """Returns the state of a node on the snapshot without some of its pods (keys)."""
        free_gpus = self._gpus.state(node).free if aligned.by_device else 0
        if gone:
            return zones_of(aligned, gone, free_gpus)
        # All else that the state depends on is part of `aligned`.
        known: tuple[int, ZoneState] | None = aligned.memo.get(ZoneState)
        if known is None or known[0] != free_gpus:
            known = aligned.memo[ZoneState] = free_gpus, zones_of(aligned, gone, free_gpus)
        return known[1]


def zones_of(aligned: AlignedNode, gone: Collection[str], free_gpus: int) -> ZoneState:
    """Returns the zones of a node without some of its pods (keys). free_gpus: mask of the free GPUs by its Device."""
    pods = [(pod, known) for pod, known in aligned.reported]
    if gone:
        pods = [(pod, known._replace(gone=known.gone or pod.pod.key in gone)) for pod, known in pods]
    there = {name: row for name, row in aligned.allocatable.items() if name not in aligned.by_device}
    found = free_amounts(there, aligned.available, [known for _, known in pods], ())
    free = dict(found.free)
    for name, scale in aligned.by_device.items():
        free[name] = tuple((free_gpus & own).bit_count() * scale for own in aligned.gpu_zones)
    zone, spare = aligned.numa.spare
    for name, amount in spare:
        numbers = zip(aligned.numbers, free[name], strict=True)
        free[name] = tuple(have + amount * (number == zone) for number, have in numbers)
    groups = memory_sets([known.record for _, known in pods if not known.gone])
    state = ZoneState(aligned, free, groups, found.exact)
    if not aligned.has_data:
        return state
    for key, pod in aligned.numa.since.items():
        if key not in gone:
            state = state.after_pod(pod.ask, _by_report(aligned, aligned.record_of(pod)))
    return state


def _by_report(aligned: AlignedNode, record: Zoned) -> Zoned:
    """Returns a zone record without GPUs of which the Device states the free ones, because these are counted by
    name."""
    return {
        name: (0,) * len(row) if name in aligned.by_device else row
        for name, row in record.items()
        if name in aligned.allocatable
    }


def zones_fit(config: KoordpyConfiguration, numa: NodeNuma, takes: Sequence[ZoneTake]) -> bool:
    """Returns True if the zones of a node have the amounts of a plan, by the current report and the current pods.

    numa: without the pods of the plan. GPUs are left out, because the plan is checked for them by name.
    """
    aligned = aligned_node(numa, None, {}, config.numa, config.gpu)
    if aligned is None or not aligned.policy.rejects:
        return True
    state = zones_of(aligned, (), 0)
    left = {name: dict(zip(aligned.numbers, row, strict=True)) for name, row in state.free.items()}
    for take in takes:
        for name, by_zone in take.by_zone.items():
            if name not in left or name in config.gpu.resources:
                continue
            for zone, amount in by_zone.items():
                left[name][zone] -= amount
                if left[name][zone] < 0:
                    return False
    return True
