# SPDX-License-Identifier: Apache-2.0
"""Goals of zones between nodes, and the zones inside which GPUs are chosen (numa.md 6).

The span of a pod is the number of zones in its largest zone set. Plans with smaller spans are better. Of these, plans
are better that use fewer zones which were free as a whole, because large pods need such zones.
"""

from collections.abc import Hashable, Sequence
from functools import cached_property

import numpy as np

from koordpy.cache.snapshot import Ints
from koordpy.devices.gpu.zone_limits import PodZones
from koordpy.devices.numa.admission import RequestPart, ZoneAdmission
from koordpy.devices.numa.numa_filter import PLUGIN
from koordpy.devices.numa.numa_nodes import NumaNodes, ZoneState, ZoneTake, numa_nodes
from koordpy.devices.numa.pod_amounts import NUMA, NumaAsk
from koordpy.devices.numa.zone_sets import zones_in
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.plugins.soft_scores import Mask, SoftScore
from koordpy.pods.pod_info import PodInfo


def numa_limits(inputs: FilterInputs) -> "NumaLimits":
    """Returns the zones as the choice of GPUs reads them, built once for the draft of `inputs`."""
    found = inputs.memo.get(NumaLimits)
    if not isinstance(found, NumaLimits):
        found = inputs.memo[NumaLimits] = NumaLimits(inputs)
    return found


class NumaLimits:
    """Implements `ZoneLimits`."""

    def __init__(self, inputs: FilterInputs) -> None:
        self._inputs = inputs
        self.planned: tuple[int, dict[str, ZoneTake]] = (-1, {})
        """(version of the draft, pod key -> zones) of the plan for which GPUs are being allocated."""

    @property
    def _numa(self) -> NumaNodes:
        return numa_nodes(self._inputs)

    @property
    def width(self) -> int:
        """Implements `ZoneLimits.width`: the number of pods of each span above 1, the largest first, and whole zones
        begun."""
        return max(0, self._numa.widest - 1) + 1

    def key(self, node: int) -> Hashable:
        """Implements `ZoneLimits.key`."""
        state = self._numa.state(node)
        if state is None or not state.node.has_data:
            return None
        return state.key, state.node.gpu_zones

    def gpu_masks(self, node: int, pods: Sequence[PodInfo]) -> Sequence[PodZones] | None:
        """Implements `ZoneLimits.gpu_masks`."""
        state = self._numa.state(node)
        if state is None or not state.node.has_data or not state.node.gpu_zones:
            return None
        version, planned = self.planned
        current = planned if version == self._inputs.draft.version else {}
        out = []
        for pod in pods:
            ask: NumaAsk | None = pod.ask(NUMA)
            take = current.get(pod.key)
            found = take.admission if take is not None else state.admit(ask) if ask is not None else None
            if ask is None or not isinstance(found, ZoneAdmission):
                out.append(PodZones(0))
                continue
            out.append(_pod_zones(ask, found, state, self._inputs.config.gpu.resources))
            state = state.after(found.taken)
        return out if any(one.mask for one in out) else None

    def cost(self, node: int, pods: Sequence[PodInfo]) -> tuple[int, ...]:
        """Implements `ZoneLimits.cost`."""
        widest, start = self._numa.widest, self._numa.state(node)
        spans, state = [0] * (self.width - 1), start
        for pod in pods:
            span, state = _next(pod, state, widest)
            if span > 1:
                spans[widest - span] += 1
        return *spans, _begun(start, state)


def _next(pod: PodInfo, state: ZoneState | None, widest: int) -> tuple[int, ZoneState | None]:
    """Returns (span of a pod on a node, state of the node with it)."""
    ask: NumaAsk | None = pod.ask(NUMA)
    found = state.admit(ask) if state is not None and ask is not None else None
    if state is None or not isinstance(found, ZoneAdmission) or not found.sets:
        return widest, state
    return found.span, state.after(found.taken)


def _begun(before: ZoneState | None, after: ZoneState | None) -> int:
    """Returns the number of zones that are free as a whole before a plan, and not after it."""
    if before is None or after is None:
        return 0
    return (before.whole & ~after.whole).bit_count()


def _pod_zones(ask: NumaAsk, found: ZoneAdmission, state: ZoneState, resources: Sequence[str]) -> PodZones:
    """Returns the GPUs that the kubelet may give to a pod and to its containers."""
    zones, names = state.node.gpu_zones, [name for name in resources if name in state.node.allocatable]

    def gpus(mask: int) -> int:
        return sum(zones[zone] for zone in zones_in(mask))

    requests = state.amounts_of(ask).requests
    with_gpus = [
        (request.part, gpus(mask))
        for request, mask in zip(requests, found.sets, strict=True)
        if any(name in names for name, _ in request.amounts)
    ]
    if not with_gpus:
        return PodZones(0)
    union = 0
    for _, mask in with_gpus:
        union |= mask
    if with_gpus[0][0] is RequestPart.POD or len({mask for _, mask in with_gpus}) == 1:
        return PodZones(union)
    apps = [mask for part, mask in with_gpus if part is RequestPart.CONTAINER]
    return PodZones(union, (*apps, *(mask for part, mask in with_gpus if part is RequestPart.SIDECAR)))


class ZoneScore(SoftScore):
    """Score NodeResourceTopologyMatch (numa.md 6): prefers nodes on which the pod needs few zones and few unused
    zones."""

    plugin = PLUGIN

    def __init__(self, pod: PodInfo, nodes: NumaNodes) -> None:
        self._pod, self._numa = pod, nodes
        count = len(nodes.draft.snapshot.nodes)
        self._points: Ints = np.zeros(count, dtype=np.int64)
        """[nodes] 3 for each zone that the pod needs beyond the first, and 1 for each zone that was free as a whole."""
        self._stale = set(range(count))
        self._known: dict[object, int] = {}
        """Key of a node's state -> points."""

    @cached_property
    def concerns(self) -> bool:
        """True if a node with NUMA data aligns a request of the pod."""
        states = map(self._numa.state, range(len(self._points)))
        ask = self._pod.ask(NUMA)
        return any(one is not None and one.node.has_data and one.amounts_of(ask).requests for one in states)

    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        """Implements `SoftScore.change`."""
        if pod.ask(NUMA) is None or self._numa.state(node) is None:
            return False
        self._stale.add(node)
        return True

    def values(self, feasible: Mask) -> Ints:
        """Implements `SoftScore.values`."""
        for node in self._stale:
            self._points[node] = self._points_of(self._numa.state(node))
        self._stale.clear()
        most = int(self._points[feasible].max()) if feasible.any() else 0
        if not most:
            return np.full(len(feasible), 100, dtype=np.int64)
        return np.asarray(np.where(feasible, 100 - 100 * self._points // most, 0), dtype=np.int64)

    def _points_of(self, start: ZoneState | None) -> int:
        """Returns the points of a node in a state; computed once for equal states."""
        key = start.key if start is not None else None
        found = self._known.get(key)
        if found is None:
            span, state = _next(self._pod, start, self._numa.widest)
            found = self._known[key] = 3 * (max(1, span) - 1) + _begun(start, state)
        return found
