"""The free chips of every node on a draft: held ones, broken ones, and where report and ledger disagree (ascend.md 1).

Chips of pods that the draft has placed are held at once, those of pods that it has evicted are free again. One Stock
serves all shapes of a round; a change of the draft writes one row anew.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from koordpy.cache.plan_draft import Draft
from koordpy.devices.ascend.tables.npu_book import NPUS, NpuHolding, npu_resource, npus_of
from koordpy.pods.pod_info import PodInfo


@dataclass
class Chips:
    """One resource. Lists by node position; free: mask before the network rule, 0 where a node is skipped.

    unlinked: mask that jobs of several NPU pods lose; height: H; disagrees: more free chips than the ledger has.
    """

    resource: str
    present: list[int]
    """Positions of the nodes that have the resource."""
    free: list[int]
    unlinked: list[int]
    height: list[int]
    disagrees: list[bool]
    sub_healthy: NDArray[np.bool_]
    capacity: list[int]

    def for_job(self, node: int, *, several: bool) -> int:
        """Mask of the chips that a pod may take on a node."""
        return self.free[node] & ~self.unlinked[node] if several else self.free[node]


@dataclass
class FreeChips:
    """The chips of all resources on a draft, read when they are asked for."""

    draft: Draft
    _known: dict[str, Chips] = field(default_factory=dict)
    _seen: int = 0
    _extra: dict[int, dict[str, int]] = field(default_factory=dict)
    """Node -> chips that a pod would take which is only thought to be there."""

    def of(self, resource: str) -> Chips:
        """The chips of a resource, current."""
        if self._seen < self.draft.version:
            for node in self.draft.touched_since(self._seen):
                for chips in self._known.values():
                    self._write(chips, node)
            self._seen = self.draft.version
        found = self._known.get(resource)
        if found is None:
            found = self._known[resource] = self._read(resource)
        return found

    def imagine(self, pod: PodInfo, node: int, chips: int) -> None:
        """Holds chips for a pod that is not on the draft (a nominated one); 0 lets go of them."""
        held = self._extra.setdefault(node, {})
        if chips:
            held[pod.key] = chips
        else:
            held.pop(pod.key, None)
        resource = npu_resource(pod.requests)
        if resource in self._known:
            self._write(self._known[resource], node)

    def _read(self, resource: str) -> Chips:
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
            self._write(chips, node)
        return chips

    def _write(self, chips: Chips, node: int) -> None:
        """One node's free chips, on the draft as it is."""
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
            for extra in self._extra.get(node, {}).values():
                free &= ~extra
        chips.free[node] = 0 if chips.disagrees[node] else free

    def _held(self, node: int, resource: str) -> int:
        draft = self.draft
        mask = 0
        for holding in npus_of(draft.snapshot).holdings.get(draft.snapshot.nodes[node].name, ()):
            if holding.resource == resource and self._stays(holding):
                mask |= holding.chips
        ledger = draft.ledgers.get(NPUS)
        if ledger is not None and ledger.given:
            for key, pod in draft.placed_on.get(node, {}).items():
                if resource in pod.requests:
                    for chip in ledger.given.get(key, ()):
                        mask |= 1 << chip
        return mask

    def _stays(self, holding: NpuHolding) -> bool:
        return holding.pod_key not in self.draft.evicted
