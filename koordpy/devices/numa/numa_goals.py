# SPDX-License-Identifier: Apache-2.0
"""Goals of zones between nodes, and the zones inside which GPUs are chosen (numa.md 6).

The span of a pod is the number of zones in its largest zone set. Plans with smaller spans are better. Of these, plans
are better that use fewer zones which were free as a whole, because large pods need such zones.
"""

from collections.abc import Sequence
from functools import cached_property
from weakref import ref

import numpy as np

from koordpy.cache.snapshot import Ints
from koordpy.devices.gpu.zone_limits import PodZones
from koordpy.devices.numa.admission import RequestPart, ZoneAdmission
from koordpy.devices.numa.numa_filter import PLUGIN
from koordpy.devices.numa.numa_nodes import NodeValues, NumaNodes, ZoneTake, numa_nodes
from koordpy.devices.numa.pod_amounts import NUMA, NumaAsk
from koordpy.devices.numa.zone_sets import MOST_ZONES, zones_in
from koordpy.devices.numa.zone_state import ZoneState
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
    """Implements `ZoneLimits`.

    Stored with the inputs of a round, which it must not keep alive: the state of the zones reads the GPUs of the draft,
    and the GPUs read this object.
    """

    def __init__(self, inputs: FilterInputs) -> None:
        self._of_round = ref(inputs)
        self.planned: tuple[int, dict[str, ZoneTake]] = (-1, {})
        """(version of the draft, pod key -> zones) of the plan for which GPUs are being allocated."""

    @property
    def _inputs(self) -> FilterInputs:
        inputs = self._of_round()
        assert inputs is not None, "the zones of a draft are read after its round"
        return inputs

    @property
    def _numa(self) -> NumaNodes:
        return numa_nodes(self._inputs)

    @property
    def width(self) -> int:
        """Implements `ZoneLimits.width`: the number of pods of each span above 1, the largest first, and whole zones
        begun."""
        return max(0, self._numa.widest - 1) + 1

    def keys(self) -> Ints:
        """Implements `ZoneLimits.keys`: the number of the state of each node; -1 without NUMA data."""
        numa = self._numa
        bare = [number for number, one in enumerate(numa.states) if not one.kind.has_data]
        numbers = numa.numbers()
        return np.where(np.isin(numbers, bare), -1, numbers) if bare else numbers.copy()

    def gpu_masks(self, node: int, pods: Sequence[PodInfo]) -> Sequence[PodZones] | None:
        """Implements `ZoneLimits.gpu_masks`."""
        state = self._numa.state(node)
        if not state.kind.has_data or not state.kind.gpu_zones:
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

    def pod_costs(self, pod: PodInfo) -> Ints:
        """Implements `ZoneLimits.pod_costs`."""
        return np.asarray(zone_costs(pod, self._inputs).refresh()[0])


class _CostsOfAsks(dict[NumaAsk | None, NodeValues]):
    """Request -> costs of all nodes; stored with the inputs of a round."""


def zone_costs(pod: PodInfo, inputs: FilterInputs) -> NodeValues:
    """Returns two integers of each node, for all pods with equal requests.

    The first is ordered like (span of the pod, number of zones begun that were free as a whole). The second is the
    points of the score: 3 for each zone that the pod needs beyond the first, and 1 for each zone begun.
    """
    known = inputs.memo.setdefault(_CostsOfAsks, _CostsOfAsks())
    assert isinstance(known, _CostsOfAsks)
    ask, numa = pod.ask(NUMA), numa_nodes(inputs)
    if ask not in known:
        known[ask] = NodeValues(numa, 2, lambda state: _costs(pod, state, numa.widest))
    return known[ask]


def _costs(pod: PodInfo, start: ZoneState, widest: int) -> tuple[int, int]:
    """Returns the integers of `zone_costs` for one state."""
    span, state = _next(pod, start, widest)
    more, begun = max(1, span) - 1, _begun(start, state)
    return more * (MOST_ZONES + 1) + begun, 3 * more + begun


def _next(pod: PodInfo, state: ZoneState, widest: int) -> tuple[int, ZoneState]:
    """Returns (span of a pod on a node, state of the node with it)."""
    ask: NumaAsk | None = pod.ask(NUMA)
    found = state.admit(ask) if ask is not None else None
    if not isinstance(found, ZoneAdmission) or not found.sets:
        return widest, state
    return found.span, state.after(found.taken)


def _begun(before: ZoneState, after: ZoneState) -> int:
    """Returns the number of zones that are free as a whole before a plan, and not after it."""
    return (before.whole & ~after.whole).bit_count()


def _pod_zones(ask: NumaAsk, found: ZoneAdmission, state: ZoneState, resources: Sequence[str]) -> PodZones:
    """Returns the GPUs that the kubelet may give to a pod and to its containers."""
    zones, names = state.kind.gpu_zones, [name for name in resources if name in state.kind.resources]

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
    local = True

    def __init__(self, pod: PodInfo, inputs: FilterInputs) -> None:
        self._pod, self._numa = pod, numa_nodes(inputs)
        self._costs = zone_costs(pod, inputs)

    @cached_property
    def concerns(self) -> bool:
        """True if a node with NUMA data aligns a request of the pod."""
        ask = self._pod.ask(NUMA)
        return any(one.kind.has_data and one.amounts_of(ask).requests for one in self._numa.states)

    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        """Implements `SoftScore.change`."""
        return pod.ask(NUMA) is not None and bool(self._numa.aligned(node).kind.numbers)

    def values(self, feasible: Mask) -> Ints:
        """Implements `SoftScore.values`."""
        points, most = self._costs.refresh()[1], self.scale(feasible)
        if not most:
            return np.full(len(feasible), 100, dtype=np.int64)
        return np.asarray(np.where(feasible, 100 - 100 * points // most, 0), dtype=np.int64)

    def scale(self, feasible: Mask) -> int:
        """Implements `SoftScore.scale`: the largest points of a feasible node."""
        return int((self._costs.refresh()[1] * feasible).max(initial=0))

    def value_at(self, node: int, scale: int, *, feasible: bool) -> int:
        """Implements `SoftScore.value_at`."""
        if not scale:
            return 100
        return 100 - 100 * int(self._costs.refresh()[1, node]) // scale if feasible else 0
