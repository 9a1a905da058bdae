# SPDX-License-Identifier: Apache-2.0
"""Plans one job under leaf switches by the configured rule set: usable servers, their assignment to ranks, annotations.

A leaf (top-of-rack) switch connects the servers below it; each server has a slice position under its leaf. Reads the
leaves on the draft (`leaf_switches`), then calls `switch_rules_v1` or `switch_rules_v2` (docs/rules/ascend.md 4).
`ascend.nslbVersion` selects the rule set. O(servers log servers).
"""

from collections.abc import Mapping, Sequence

import numpy as np

from koordpy.api import keys
from koordpy.devices.ascend.family.npu_round import ascend_jobs
from koordpy.devices.ascend.jobs.placed_members import Bools, usable_nodes
from koordpy.devices.ascend.tables import switch_rules_v1, switch_rules_v2
from koordpy.devices.ascend.tables.ascend_job import AscendJob, Tor
from koordpy.devices.ascend.tables.leaf_switches import (
    LeafState,
    PlannedServer,
    Uplinks,
    bound_nodes,
    per_position,
    read_leaves,
    servers_of,
    tightest,
)
from koordpy.devices.ascend.tables.switch_table import Switches
from koordpy.devices.placement_rules import JobPlan
from koordpy.feasibility.round_state import RoundState
from koordpy.pods.pod_info import PodInfo


class SwitchJob:
    """One job under leaf switches on the current draft. `plan` places any of its pending pods."""

    def __init__(
        self, job: AscendJob, round_state: RoundState, *, within: Bools | None = None, again: Sequence[PodInfo] = ()
    ) -> None:
        """within: [nodes] allowed for members, None for all. again: evicted members, as pending pods."""
        switches = ascend_jobs(round_state.inputs).switches
        assert isinstance(switches, Switches)
        self.job, self.round_state, self.switches = job, round_state, switches
        draft, snapshot = round_state.draft, round_state.snapshot
        self._bound = bound_nodes(job, switches, snapshot.index, draft.evicted)
        able, chips = usable_nodes(job, round_state, again, within)
        where = np.nonzero(able)[0]
        usable = dict(zip(where.tolist(), chips.affinity[where].tolist(), strict=True)) if chips is not None else {}
        gang = job.pods[0].gang
        spanning = Uplinks(ascend_jobs(round_state.inputs), switches).of(
            draft.placed, draft.evicted, round_state.notes, without=gang
        )
        self.leaves: tuple[LeafState, ...] = read_leaves(switches, usable, spanning)
        """State of every leaf: its usable servers, and other jobs that use its uplinks."""

    @property
    def positions(self) -> int:
        """Number of slice positions of a leaf."""
        return self.switches.table.positions

    def plan(self, pods: Sequence[PodInfo]) -> JobPlan | None:
        """Places pending pods of the job; None if they must wait.

        pods: in rank order. Jobs with bound pods extend their own leaves. New jobs are placed by the rule set; in a
        single-layer network one leaf must be enough. The objective of a plan is its number of leaves.
        """
        job, config = self.job, self.round_state.config.ascend
        second = config.nslb_version == "2.0"
        found: Sequence[PlannedServer] | None
        own: dict[int, str] = {}
        if self._bound:
            own = self._own_marks()
            if self.switches.table.single_layer or (second and not own):
                found = switch_rules_v2.place_again(self.leaves, own, len(pods), kind=Tor.PADDING, shared_most=0)
            elif second:
                most = config.shared_tor_num
                found = switch_rules_v2.place_again(self.leaves, own, len(pods), kind=job.tor, shared_most=most)
            else:
                found = self._place_again(pods)
        elif self.switches.table.single_layer:
            one = tightest(self.leaves, len(pods))
            found = servers_of(one, len(pods)) if one is not None else None
        elif second:
            most = config.shared_tor_num
            found = switch_rules_v2.place(self.leaves, len(pods), self.positions, kind=job.tor, shared_most=most)
        else:
            found = switch_rules_v1.place(self.leaves, len(pods), self.positions, job.tor)
        if found is None:
            return None
        nodes = {pod.key: planned.server.node for pod, planned in zip(pods, found, strict=True)}
        notes: dict[str, Mapping[str, str]] = {}
        if second:
            notes = {
                pod.key: own for pod, own in zip(pods, switch_rules_v2.leaf_notes(found, job.tor, own), strict=True)
            }
        return JobPlan(nodes, notes=notes, cost=(len({planned.leaf.number for planned in found}),))

    def _own_marks(self) -> dict[int, str]:
        """Returns leaf number -> annotation isSharedTor of the job's bound pods under the leaf, the largest of
        several."""
        out: dict[int, str] = {}
        for rank, node in self._bound.items():
            said = self.job.pods[rank].pod.metadata.annotations.get(keys.SHARED_TOR, "")
            leaf = self.switches.leaf_of[node]
            out[leaf] = max(out.get(leaf, ""), said)
        return out

    def _place_again(self, pods: Sequence[PodInfo]) -> list[PlannedServer] | None:
        """Returns the servers of pending pods of a job with bound pods by rule set 1.0; None if they must wait."""
        switches = self.switches
        at = {rank: (switches.leaf_of[node], switches.slice_of[node]) for rank, node in self._bound.items()}
        ranks = [self.job.ranks[pod.key] for pod in pods]
        found = switch_rules_v1.place_again(self.leaves, at, ranks, self.positions, self.job.tor)
        return [found[rank] for rank in ranks] if found is not None else None

    def remark(self) -> str:
        """Returns why the pods wait, with the usable servers that the rule set counts."""
        text = f"switch affinity: needed {len(self.job.pods)}"
        if self._bound:
            text += f", {len(self._bound)} of them bound"
        if self.round_state.config.ascend.nslb_version == "2.0":
            idle = sum(leaf.count for leaf in self.leaves if leaf.idle)
            shared = sum(leaf.count for leaf in self.leaves if leaf.shared)
            own = sum(leaf.count for leaf in self.leaves if leaf.exclusive)
            return (
                f"{text}, usable servers: {idle} under idle leaves, {shared} under shared, {own} under exclusive leaves"
            )
        return f"{text}, usable servers per slice position: {per_position(self.leaves, self.positions)}"
