# SPDX-License-Identifier: Apache-2.0
"""AscendChips: the filter that decides which nodes can give an NPU pod its chips, how many pods, and how well.

It is row 15 of the filters (docs/rules/kube-parity.md 1). For each node it answers four questions. Is the product of
the node legal for the request? If the job needs the switch table or a SuperPoD, is the node in it? Do the free chips
contain a legal set? How good is that set? Tables and wording: docs/rules/ascend.md 2 to 5.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from koordpy.cache.snapshot import Ints
from koordpy.devices.ascend.tables.ascend_job import AscendJob, Tor
from koordpy.devices.ascend.tables.ascend_jobs import AscendJobs
from koordpy.devices.ascend.tables.chip_costs import affinity, copies, take
from koordpy.devices.ascend.tables.free_chips import FreeChips
from koordpy.devices.ascend.tables.npu_presets import MESH_X8, MESH_X16, NPU, NPU_910, Preset
from koordpy.framework.filter_protocol import Code, Refusal, Verdict
from koordpy.framework.pod_rule_filter import Rule
from koordpy.pods.pod_info import PodInfo

PLUGIN = "AscendChips"
"""Name of the filter in messages."""
AFFINITY = "AscendAffinity"
"""Name of the score of ascend.md 3 in explanations."""
NOT_IN_TABLE = Refusal(PLUGIN, Code.UNRESOLVABLE, ("node(s) weren't in the switch table",))
"""Refusal of a node that is not in the switch table, for a job with switch affinity."""
NO_SUPER_POD = Refusal(PLUGIN, Code.UNRESOLVABLE, ("node(s) had no SuperPoD id",))
"""Refusal of a node without a SuperPoD id, for a job that needs one."""
DISAGREES = Refusal(PLUGIN, Code.UNSCHEDULABLE, ("node(s) had an inconsistent Ascend chip report",))
"""Refusal of a node that is skipped because its report and its pods disagree (`free_chips`)."""


def illegal(why: str) -> Refusal:
    """Returns the refusal of all nodes for a pod of an illegal job."""
    return Refusal(PLUGIN, Code.UNRESOLVABLE, (f"JobValidateFailed: {why}",))


def chips_rule(rules: Iterable[Rule]) -> "AscendChips | None":
    """Returns the filter `AscendChips` among a pod's rules; None for a pod without an NPU request."""
    return next((rule for rule in rules if isinstance(rule, AscendChips)), None)


class AscendChips(Rule):
    """The filter for pods of one shape in one kind of job, on all nodes.

    Kept current with the draft: `change` recomputes the node of a placement or eviction.
    """

    plugin = PLUGIN
    local = True
    """A pod on a node changes the result for this node alone."""

    def __init__(self, pod: PodInfo, job: AscendJob, jobs: AscendJobs, stock: FreeChips) -> None:
        """pod: one pod of the shape, of `job`. jobs: the jobs of the snapshot. stock: the free chips on the draft."""
        want = job.want(pod)
        self._stock, self._multi_pod = stock, job.multi_pod
        self.resource, self.request = want.resource, want.request
        """NPU resource that the pod requests, and the number of chips."""
        product = f"node(s) had an Ascend product that cannot serve {want.request} chips"
        group = f"node(s) didn't have {want.request} free Ascend chips in one affinity group"
        self._refusals = (
            Refusal(PLUGIN, Code.UNRESOLVABLE, (product,)),
            NOT_IN_TABLE,
            NO_SUPER_POD,
            DISAGREES,
            Refusal(PLUGIN, Code.UNSCHEDULABLE, (group,)),
        )
        self._chips = stock.of(want.resource)
        size = len(jobs.snapshot.nodes)
        self.presets: list[Preset | None] = [None] * size
        """[nodes] product row by which the node serves the pod; None if the node has no chips of the resource, or a
        product for which the request is illegal."""
        self._which = np.zeros(size, dtype=np.int32)
        """[nodes] verdict: 0 if this filter does not refuse the node, else the position of the refusal in `_refusals`,
        from 1. A node without chips of the resource has 0, because NodeResourcesFit refuses it."""
        self.affinity: Ints = np.full(size, -1, dtype=np.int64)
        """[nodes] AscendAffinity of the nodes that can serve the pod; -1 for other nodes."""
        self._copies: Ints = np.zeros(size, dtype=np.int64)
        """[nodes] number of pods of the shape that the free chips serve one after the other."""
        switches = jobs.switches if job.tor is not Tor.NONE else None
        for node in self._chips.present:
            preset = self._preset(want.presets, node, jobs)
            self.presets[node] = preset
            if preset is None:
                self._which[node] = 1
            elif switches is not None and not isinstance(switches, str) and node not in switches.leaf_of:
                self._which[node] = 2
            elif job.needs_super_pod and node not in jobs.super_pods:
                self._which[node] = 3
            else:
                self._recompute(node)

    def _preset(self, legal: tuple[Preset, ...], node: int, jobs: AscendJobs) -> Preset | None:
        """Returns the product row that serves the pod on a node; None if the request is illegal on the node's product.

        legal: rows for which the request is legal. Only Ascend910 nodes state a product by label. The two rows of
        `huawei.com/npu` differ by the number of chips of the node.
        """
        if self.resource == NPU_910:
            own = jobs.preset_of(node)
            return own if own in legal else None
        if self.resource == NPU and len(legal) > 1:
            return MESH_X8 if self._chips.capacity[node] <= MESH_X8.size else MESH_X16
        return legal[0]

    def _recompute(self, node: int) -> bool:
        """Recomputes one node; returns whether its verdict, affinity or copies changed."""
        preset = self.presets[node]
        assert preset is not None
        chips = self._chips
        before = self._which[node], self.affinity[node], self._copies[node]
        free = chips.for_job(node, multi_pod=self._multi_pod)
        best = affinity(preset, self.request, free, chips.height[node], self._multi_pod)
        self.affinity[node] = -1 if best is None else best
        self._copies[node] = copies(preset, self.request, free, self._multi_pod)
        self._which[node] = 4 if chips.disagrees[node] else 5 if best is None else 0
        return before != (self._which[node], self.affinity[node], self._copies[node])

    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        """Implements `Rule.change`.

        A node that is refused by its product, switch table or SuperPoD id is not recomputed, because pods do not change
        that.
        """
        if self.resource not in pod.requests or node < 0 or self.presets[node] is None or self._which[node] in (2, 3):
            return False
        draft = self._stock.draft
        if pod.pending and pod.key not in draft.placed:
            self._reserve_nominated(pod, node, sign)
        self._stock.of(self.resource)
        return self._recompute(node)

    def _reserve_nominated(self, pod: PodInfo, node: int, sign: int) -> None:
        """Reserves (sign 1) or frees chips for a nominated pod on its node.

        A nominated pod has no chips yet. The filter assumes that it gets the chips that this job would get for the same
        number.
        """
        preset = self.presets[node]
        free = self._chips.for_job(node, multi_pod=self._multi_pod)
        amount = pod.requests[self.resource]
        taken = 0
        if sign > 0 and preset is not None and affinity(preset, amount, free, 0, self._multi_pod) is not None:
            taken = take(preset, amount, free, self._multi_pod)
        self._stock.reserve(pod, node, taken)

    def verdict(self) -> Verdict:
        """Implements `Rule.verdict`."""
        return Verdict(self._which.copy(), self._refusals)

    def permanent_verdict(self) -> Verdict:
        """Implements `Rule.permanent_verdict`: keeps refusals 1 to 3, which state product, switch table and SuperPoD,
        not pods."""
        return Verdict(np.where(self._which <= 3, self._which, 0).astype(np.int32), self._refusals)

    def fits_after(self, others: Sequence[PodInfo], node: int) -> bool:
        """Implements `Rule.fits_after`."""
        return True  # `Family.fit_together` decides for all pods of a node together

    def height(self, node: int) -> int:
        """Returns H of a node: its number of healthy chips, at most the allocatable (ascend.md 3)."""
        return self._chips.height[node]

    def copies(self) -> Ints:
        """Implements `Rule.copies`."""
        return self._copies

    def free(self, node: int) -> int:
        """Returns the mask of the chips that a pod may get on a node."""
        return self._stock.of(self.resource).for_job(node, multi_pod=self._multi_pod)

    @property
    def sub_healthy(self) -> NDArray[np.bool_]:
        """[nodes] True for nodes with a sub-health fault, which are used only after healthy ones."""
        return self._chips.sub_healthy
