# SPDX-License-Identifier: Apache-2.0
"""The free chips of every node on a draft: listed by the node's report, healthy, and used by no pod (ascend.md 1).

A node is skipped if its report shows more free chips than its resource amounts do, because then the report and the pods
disagree. Chips are updated with the draft: placed pods use chips at once, evicted pods free them. One `FreeChips`
serves all shapes of a round; a change of the draft recomputes only its nodes.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from koordpy.cache.plan_draft import Draft
from koordpy.devices.ascend.tables.npu_book import NPUS, NpuHolding, npu_resource, npus_of
from koordpy.pods.pod_info import PodInfo


@dataclass
class Chips:
    """Chips of one resource. Lists are by node position; masks have bit k for chip k."""

    resource: str
    present: list[int]
    """Positions of the nodes that have the resource."""
    free: list[int]
    """Mask of the free chips, whatever the state of their network; 0 if the node is skipped."""
    unlinked: list[int]
    """Mask of the chips without a healthy network, which jobs of several NPU pods may not use."""
    height: list[int]
    """H of ascend.md 3: the number of healthy chips, at most the allocatable."""
    disagrees: list[bool]
    """True if the report shows more free chips than allocatable less requested."""
    sub_healthy: NDArray[np.bool_]
    """[nodes] True if the node reports a sub-health fault."""
    capacity: list[int]
    """Number of chips that the node states."""

    def for_job(self, node: int, *, multi_pod: bool) -> int:
        """Returns the mask of the chips that a pod may get on a node.

        multi_pod: True if its job has more than one NPU pod.
        """
        return self.free[node] & ~self.unlinked[node] if multi_pod else self.free[node]


@dataclass
class FreeChips:
    """The chips of all resources on a draft, read on first use."""

    draft: Draft
    _known: dict[str, Chips] = field(default_factory=dict)
    """Resource -> chips, of the resources read so far."""
    _seen: int = 0
    """Version of the draft up to which changes are applied."""
    _reserved: dict[int, dict[str, int]] = field(default_factory=dict)
    """Node -> pod key -> chips reserved for a pod that is not on the draft."""

    def of(self, resource: str) -> Chips:
        """Returns the chips of a resource on the current draft."""
        if self._seen < self.draft.version:
            for node in self.draft.touched_since(self._seen):
                for chips in self._known.values():
                    self._recompute(chips, node)
            self._seen = self.draft.version
        found = self._known.get(resource)
        if found is None:
            found = self._known[resource] = self._read(resource)
        return found

    def reserve(self, pod: PodInfo, node: int, chips: int) -> None:
        """Reserves chips for a pod that is not on the draft, such as a nominated pod; 0 releases them."""
        held = self._reserved.setdefault(node, {})
        if chips:
            held[pod.key] = chips
        else:
            held.pop(pod.key, None)
        resource = npu_resource(pod.requests)
        if resource in self._known:
            self._recompute(self._known[resource], node)

    def _read(self, resource: str) -> Chips:
        """Returns the chips of a resource on all nodes, on the current draft."""
        nodes = self.draft.snapshot.nodes
        reports = npus_of(self.draft.snapshot).reports
        size = len(nodes)
        present = [i for i, node in enumerate(nodes) if resource in reports.get(node.name, ())]
        zero, no = [0] * size, [False] * size
        chips = Chips(resource, present, zero, zero.copy(), zero.copy(), no, np.array(no, dtype=bool), zero.copy())
        for node in present:
            report = reports[nodes[node].name][resource]
            chips.unlinked[node] = report.unlinked
            allocatable = nodes[node].allocatable.get(resource, 0)
            chips.height[node] = min(allocatable, report.capacity - report.unhealthy.bit_count())
            chips.sub_healthy[node] = report.sub_healthy
            chips.capacity[node] = report.capacity
            self._recompute(chips, node)
        return chips

    def _recompute(self, chips: Chips, node: int) -> None:
        """Recomputes the free chips of one node on the current draft."""
        draft, resource = self.draft, chips.resource
        snapshot = draft.snapshot
        report = npus_of(snapshot).reports.get(snapshot.nodes[node].name, {}).get(resource)
        if report is None:
            return
        free = report.listed & ~report.unhealthy & ~self._held(node, resource)
        column = snapshot.columns[resource]
        ledger = int(snapshot.allocatable[node, column]) - draft.used_by_pods(node, column)
        chips.disagrees[node] = free.bit_count() > ledger
        if not chips.disagrees[node]:
            for extra in self._reserved.get(node, {}).values():
                free &= ~extra
        chips.free[node] = 0 if chips.disagrees[node] else free

    def _held(self, node: int, resource: str) -> int:
        """Returns the mask of the chips that pods use on a node: bound pods that the draft has not evicted, and placed
        pods."""
        draft = self.draft
        mask = 0
        for holding in npus_of(draft.snapshot).holdings.get(draft.snapshot.nodes[node].name, ()):
            if holding.resource == resource and self._stays(holding):
                mask |= holding.chips
        ledger = draft.ledgers.get(NPUS)
        if ledger is not None and ledger.allocations:
            for key, pod in draft.placed_on.get(node, {}).items():
                if resource in pod.requests:
                    for chip in ledger.allocations.get(key, ()):
                        mask |= 1 << chip
        return mask

    def _stays(self, holding: NpuHolding) -> bool:
        return holding.pod_key not in self.draft.evicted
