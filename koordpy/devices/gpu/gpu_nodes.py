# SPDX-License-Identifier: Apache-2.0
"""The GPUs of every node on a draft: free GPUs, GPUs of pods, and the links that pods would get on a node.

The state of a node is computed on first use, and again after the draft has changed the node. Source:
docs/rules/gpu-topology.md 2, 3 and 5.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from koordpy.api import keys
from koordpy.api.field_faults import UnreadableError, literal
from koordpy.api.json_text import read_json
from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Ints
from koordpy.config.configuration import Gpu
from koordpy.devices.gpu.choice.gpu_choice import Chooser
from koordpy.devices.gpu.choice.gpu_choosers import chooser_of
from koordpy.devices.gpu.choice.gpu_judge import LinkClasses, link_classes_of
from koordpy.devices.gpu.choice.gpu_wants import GpuWant, PodWant, want_on
from koordpy.devices.gpu.choice.large_chooser import LargeChooser
from koordpy.devices.gpu.gpu_links import MAX_GBS, kbs
from koordpy.devices.gpu.gpu_machine import GPUS, Machine
from koordpy.devices.gpu.gpu_partitions import quantity
from koordpy.devices.gpu.gpu_view import GpuView, NodeGpus, gpu_view
from koordpy.devices.gpu.zone_limits import PodZones, ZoneLimits, have_enough, zone_limits_of
from koordpy.devices.links.device_masks import bits_of
from koordpy.plan.limits import EXACT_GPUS
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.pods.gang_refs import GroupKey
from koordpy.pods.pod_info import PodInfo

MOST_GPUS = 1 << 20
"""Largest number of GPUs of a node. A larger number is taken for a mistake and cut, so that sums of a choice do not
overflow."""


class UnreadableWish(ValueError):
    """The reason why a GPU annotation of a pod cannot be read."""


def want_of(pod: PodInfo) -> PodWant:
    """Returns what a pod requests of GPUs: number, minimum bandwidth, partition.

    Raises `UnreadableWish`, with a message for the owner of the pod, if an annotation cannot be read.
    """
    ask = pod.ask(GPUS)
    if ask is None:
        raise ValueError(f"{pod.key} requests no GPU")
    if ask.fault:
        raise UnreadableWish(ask.fault)
    annotations = pod.pod.metadata.annotations
    least = 0
    text = annotations.get(keys.GPU_MIN_BANDWIDTH)
    if text is not None:
        least = _parse_bandwidth(text)
    restricted, ring = _partition_spec(annotations.get(keys.GPU_PARTITION_SPEC))
    return PodWant(ask.count, ask.per_container, least, restricted, ring)


def _parse_bandwidth(text: str) -> int:
    """Returns a text in GB/s as kB/s, at least 1. Raises `UnreadableWish`."""
    try:
        value = float(text) if text.isascii() and "_" not in text else 0.0
    except ValueError:
        value = 0.0
    if not 0 < value <= MAX_GBS:  # also false of NaN
        raise UnreadableWish(
            f"annotation {keys.GPU_MIN_BANDWIDTH} cannot be read: {text!r} is not a positive number of GB/s"
        )
    return max(1, kbs(value))


def _partition_spec(text: str | None) -> tuple[bool, int | None]:
    """Returns what annotation `gpu-partition-spec` requests: (True if only listed sets are allowed, ring bandwidth).

    The bandwidth is in bytes and must be stated by a listed set; None for no requirement. Raises `UnreadableWish`.
    """
    if text is None:
        return False, None
    problem = ""
    raw: Any = None
    try:
        raw = read_json(text)
    except UnreadableError as fault:
        problem = str(fault)
    if not problem and not isinstance(raw, dict):
        problem = "not a mapping"
    policy = raw.get("allocatePolicy", "") if not problem else ""
    if not problem and policy not in ("", "Restricted", "BestEffort"):
        problem = f"allocatePolicy must be Restricted or BestEffort, not {literal(policy)}"
    ring: int | None = None
    if not problem and raw.get("ringBusBandwidth") is not None:
        try:
            ring = quantity(raw["ringBusBandwidth"])
        except ValueError as fault:
            problem = f"ringBusBandwidth {fault}"
    if problem:
        raise UnreadableWish(f"annotation {keys.GPU_PARTITION_SPEC} cannot be read: {problem}")
    return policy == "Restricted", ring


def wants_in(machine: Machine, wants: Sequence[PodWant], zones: Sequence[PodZones] | None) -> tuple[GpuWant, ...]:
    """Returns what pods request on a machine, inside their zones. zones: result of `GpuNodes.pod_zones`."""
    masks = [one.mask for one in zones] if zones is not None else [0] * len(wants)
    return tuple(want_on(machine, want, mask) for want, mask in zip(wants, masks, strict=True))


@dataclass(frozen=True, slots=True)
class GpuState:
    """The GPUs of one node on a draft."""

    machine: Machine | None
    """GPUs and links of the node; None if they are not known by name."""
    free: int
    """Mask of the GPUs that may be allocated."""
    unknown: bool
    """True if the GPUs of a pod on the node are unknown."""
    requested: int
    """Number of GPUs that pods on the node request."""
    groups: Mapping[GroupKey, int] = field(default_factory=dict)
    """GPU group -> mask of the GPUs of its members on the node."""

    @property
    def by_name(self) -> Machine | None:
        """Machine if GPUs of the node are allocated by name; None on a count-only node."""
        return None if self.unknown else self.machine

    @property
    def healthy(self) -> int | None:
        """Number of healthy GPUs; None if it is not known."""
        return self.machine.healthy.bit_count() if self.machine is not None else None


NOTHING = GpuState(None, 0, False, 0)
"""State of a node with GPUs that are not known by name."""


def gpu_nodes(inputs: FilterInputs) -> "GpuNodes":
    """Returns the GPUs of every node on the draft of `inputs`, built once for it."""
    found = inputs.memo.get(GpuNodes)
    if not isinstance(found, GpuNodes):
        found = inputs.memo[GpuNodes] = GpuNodes(inputs.draft, inputs.config.gpu, zone_limits_of(inputs))
    return found


class GpuNodes:
    """The GPUs of all nodes on a draft. node: position of a node."""

    def __init__(self, draft: Draft, config: Gpu, zones: ZoneLimits | None = None) -> None:
        """zones: NUMA zones of the nodes on the draft; None in a cluster without NUMA data."""
        self.draft, self.config, self.zones = draft, config, zones
        self.view: GpuView = gpu_view(draft.snapshot)
        self._states: dict[int, GpuState] = {}
        self._seen = 0
        """Version of the draft up to which states are current."""
        self._changed: set[int] = set()
        """Nodes that the draft has ever changed; the states of other nodes are read from the view."""

    @property
    def classes(self) -> int:
        """Number of link classes over all machines.

        As a class, this number means that no link limits: the pod or set has no pair of GPUs.
        """
        return self.view.comparison.classes

    def state(self, node: int) -> GpuState:
        """Returns the GPUs of a node on the current draft."""
        if self._seen < self.draft.version:
            for one in self.draft.touched_since(self._seen):
                self._states.pop(one, None)
                self._changed.add(one)
            self._seen = self.draft.version
        found = self._states.get(node)
        if found is None:
            found = self._states[node] = self._read(node)
        return found

    def _read(self, node: int) -> GpuState:
        """Returns the state of a node on the current draft."""
        known = self.view.nodes.get(self.draft.snapshot.nodes[node].name)
        if known is None:
            return NOTHING
        if node not in self._changed:
            groups = {one.group: known.group(one.group) for one in known.holders.values() if one.group is not None}
            return GpuState(
                known.machine, known.machine.healthy & ~known.allocated, known.unknown, known.requested, groups
            )
        return self._drafted(node, known)

    def _drafted(self, node: int, known: NodeGpus) -> GpuState:
        """Returns the state of a node that the draft has changed: without evicted pods, with placed pods."""
        machine, draft = known.machine, self.draft
        held, requested, unknown = 0, 0, False
        groups: dict[GroupKey, int] = {}
        for key, one in known.holders.items():
            if key in draft.evicted:
                continue
            mask = known.masks.get(key)
            requested += one.count
            unknown |= mask is None
            held |= mask or 0
            if one.group is not None:
                groups[one.group] = groups.get(one.group, 0) | (mask or 0)
        for key, pod in draft.placed_on.get(node, {}).items():
            if pod.ask(GPUS) is None:
                continue
            requested += pod.ask(GPUS).count
            mask = machine.mask(draft.family_devices_of(key, GPUS) or ())
            unknown |= mask.bit_count() < pod.ask(GPUS).count
            held |= mask
            if pod.group is not None:
                groups[pod.group] = groups.get(pod.group, 0) | mask
        return GpuState(machine, machine.healthy & ~held, unknown, requested, groups)

    def allocatable(self, node: int, pod: PodInfo) -> int:
        """Returns the allocatable GPUs of a node by the resources that a pod requests; the least of several."""
        amounts = self.draft.snapshot.nodes[node].allocatable
        names = pod.ask(GPUS).resources if pod.ask(GPUS) is not None else ()
        return min((amounts.get(n, 0) // (100 if n in keys.HUNDREDTHS else 1) for n in names), default=0)

    def cards(self, requests: Mapping[str, int]) -> int:
        """Returns the number of GPUs in requests (resource -> amount); a part of a GPU counts as one."""
        names = self.config.resources
        return sum(-(-requests.get(name, 0) // (100 if name in keys.HUNDREDTHS else 1)) for name in names)

    def devices(self, node: int, pod: PodInfo) -> int | None:
        """Returns the number of GPUs that the Device of a node can still give to pods like this one; None without a
        Device.

        On a count-only node, on which some pod's GPUs are unknown, numbers are compared instead of masks.
        """
        state = self.state(node)
        if state.machine is None:
            return None
        if state.unknown:
            return min(self.allocatable(node, pod), state.healthy or 0) - state.requested
        return state.free.bit_count()

    def usable_gpus(self, node: int, pod: PodInfo) -> int:
        """Returns how many GPUs pods with the same request may still get on a node (gpu-topology.md 2).

        The lesser of free devices and unused allocatable, at most `MOST_GPUS`.
        """
        known = [self.devices(node, pod), self._unused_allocatable(node, pod)]
        return min(max(0, min((int(one) for one in known if one is not None), default=0)), MOST_GPUS)

    def counted(self, nodes: Ints, pod: PodInfo) -> Ints:
        """Returns the number of free GPUs of the given nodes (positions) by their allocatable alone."""
        out = self._unused_allocatable(nodes, pod)
        return np.clip(out, 0, MOST_GPUS) if out is not None else np.zeros(len(nodes), dtype=np.int64)

    def _unused_allocatable(self, nodes: Ints | int, pod: PodInfo) -> Any:
        """Returns allocatable less used GPUs of the given nodes or of one node; None for a pod without GPUs."""
        draft, out = self.draft, None
        for name in pod.ask(GPUS).resources if pod.ask(GPUS) is not None else ():
            column = draft.snapshot.columns[name]
            left = draft.snapshot.allocatable[nodes, column] - draft.used[nodes, column]
            cards = left // (100 if name in keys.HUNDREDTHS else 1)
            out = cards if out is None else np.minimum(out, cards)
        return out

    # -- links that pods would get ------------------------------------------------------------------------------------

    def pod_zones(self, node: int, pods: Sequence[PodInfo]) -> Sequence[PodZones] | None:
        """Returns the GPUs that the kubelet may give to each pod of a plan on a node; None without limits by zones.

        pods: in the order of admission. None also if too few of these GPUs are free for the pods or their containers,
        as after a wrong zone record.
        """
        found = self.zones.gpu_masks(node, pods) if self.zones is not None else None
        if found is None or not have_enough(self.state(node).free, [pod.ask(GPUS) for pod in pods], found):
            return None
        return found

    def link_classes(
        self,
        node: int,
        wants: Sequence[PodWant],
        group: GroupKey | None,
        zones: Sequence[PodZones] | None = None,
    ) -> LinkClasses | None:
        """Returns the link classes that pods get if a node takes them together; None if it cannot.

        wants: one for each pod. group: GPU group of the pods; GPUs of its bound members on the node count with theirs.
        zones: result of `pod_zones` for the pods.
        """
        state = self.state(node)
        machine = state.by_name
        count = sum(want.count for want in wants)
        if machine is None or not machine.has_matrix:
            if machine is not None and state.free.bit_count() < count:
                return None
            return self._unlinked(state, wants, group, zones)
        if state.free.bit_count() < count:
            return None
        held = state.groups.get(group, 0) if group is not None else 0
        chooser = chooser_of(machine)
        own = wants_in(machine, wants, zones)
        if self.view.comparison.source == "links" and machine.matrix.measured is not None:
            sets = chooser.choose(state.free, held, own, "bottleneck")
            # nodes are compared by link classes; the choice on a node uses measured bandwidths
            return None if sets is None else link_classes_of(sets, held, lambda mask: self._link_rank(machine, mask))
        judged = chooser.judge(state.free, held, own)
        return None if judged is None else self._by_floors(chooser, judged)

    def is_exact(self, node: int) -> bool:
        """Returns whether the choice of GPUs on a node is proven optimal over all sets."""
        machine = self.state(node).by_name
        return machine is None or machine.size <= EXACT_GPUS

    def group_class(self, node: int, group: GroupKey) -> int:
        """Returns the class, over all machines, of the slowest pair of GPUs that bound members of a group have on a
        node.

        The number of classes if they have fewer than two GPUs there.
        """
        state = self.state(node)
        held = state.groups.get(group, 0)
        if held.bit_count() < 2:
            return self.classes
        machine = state.by_name
        if machine is None or not machine.has_matrix:
            return 0
        if self.view.comparison.source == "links" and machine.matrix.measured is not None:
            return self._link_rank(machine, held)
        chooser = chooser_of(machine)
        return self._by_floors(chooser, LinkClasses(chooser.low(held), ())).low

    def _by_floors(self, chooser: Chooser | LargeChooser, judged: LinkClasses) -> LinkClasses:
        """Translates link classes of one machine into classes over all machines."""
        ranks, floors = self.view.comparison.ranks, chooser.matrix.floors
        over = [*(ranks[floor] for floor in floors), self.classes]
        return LinkClasses(over[judged.low], tuple(sorted(over[low] for low in judged.lows)))

    def _link_rank(self, machine: Machine, mask: int) -> int:
        """Returns the class, over all machines, of the slowest pair of a set by its link classes instead of measured
        values."""
        links, at = machine.matrix.links, bits_of(mask)
        if links is None or len(at) < 2:
            return self.classes
        pairs = (links[i][j] for i in at for j in at if i < j)
        return self.view.comparison.ranks[min(one.bandwidth_kbs if one is not None else 0 for one in pairs)]

    def mean_mark(self, node: int, pod: PodInfo) -> float | None:
        """Returns the mean mark of the links that a single pod would get on a node (gpu-topology.md 3).

        None if link classes are not known, or if the pod gets fewer than two GPUs.
        """
        machine = self.state(node).by_name
        if machine is None or machine.matrix.links is None or pod.ask(GPUS) is None or pod.ask(GPUS).count < 2:
            return None
        state = self.state(node)
        held = state.groups.get(pod.group, 0) if pod.group is not None else 0
        own = wants_in(machine, (want_of(pod),), self.pod_zones(node, (pod,)))
        sets = chooser_of(machine).choose(state.free, held, own, self.config.objective)
        if sets is None:
            return None
        at, links = bits_of(sets[0][0]), machine.matrix.links
        marks = [links[i][j] for i in at for j in at if i < j]
        if any(one is None for one in marks):
            return None
        return sum(one.mark for one in marks if one is not None) / len(marks)

    def _unlinked(
        self,
        state: GpuState,
        wants: Sequence[PodWant],
        group: GroupKey | None,
        zones: Sequence[PodZones] | None,
    ) -> LinkClasses | None:
        """Returns the classes on a node without known links; None if the node cannot take the pods.

        Every pair has class 0, the slowest. A pod with one GPU has no pair, so nothing limits it.
        """
        machine = state.by_name
        held = state.groups.get(group, 0).bit_count() if group is not None else 0
        if any(want.count > 1 and want.least_kbs for want in wants):
            return None
        if machine is not None:
            own = wants_in(machine, wants, zones)
            if not all(one.plain for one in own) and not chooser_of(machine).can(state.free, own):
                return None
        lows = tuple(sorted(0 if want.count > 1 else self.classes for want in wants))
        return LinkClasses(0 if held + sum(want.count for want in wants) > 1 else self.classes, lows)
