# SPDX-License-Identifier: Apache-2.0
"""Helpers to plan an Ascend unit member by member.

They return the unit's legal jobs, the unit as if the given pods were bound, the usable nodes of a job, and the members
already placed. Later members must see earlier ones as bound, for example if victims are evicted for members beyond the
core. Only nodes are set here; `bind_placed` adds annotations. O(members), `usable_nodes` O(shapes x nodes).
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from koordpy.devices.ascend.family.npu_filter import AscendChips, chips_rule
from koordpy.devices.ascend.family.npu_round import npu_job
from koordpy.devices.ascend.tables.ascend_job import AscendJob
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import PodInfo

Bools = NDArray[np.bool_]
"""[nodes] True or False."""


def legal_jobs(unit: Unit, round_state: RoundState) -> dict[GangRef | None, AscendJob]:
    """Returns the legal jobs of a unit's pending pods, by gang; the key of a plain pod is None."""
    return {pod.gang: job for pod in unit.pending if isinstance(job := npu_job(pod, round_state.inputs), AscendJob)}


def with_placed(unit: Unit, nodes: Mapping[str, int], round_state: RoundState) -> Unit:
    """Returns the unit as if the given pods were bound where a plan places them; a unit of a plain pod is returned
    unchanged.

    nodes: pod key -> node position.
    """
    return unit.with_bound({key: round_state.snapshot.nodes[node].name for key, node in nodes.items()})


def usable_nodes(
    job: AscendJob, round_state: RoundState, again: Sequence[PodInfo], within: Bools | None
) -> tuple[Bools, AscendChips | None]:
    """Returns ([nodes] True for nodes that the job may use, filter `AscendChips` of one waiting shape).

    Waiting are the pods in `again` and the pending pods that the draft has not placed. A node is usable if it takes
    every waiting shape and has no bound member that is not evicted, because each pod needs a separate server. The
    filter is None if no pod waits. again: evicted members, as pending pods. within: [nodes] allowed for members, None
    for all.
    """
    draft, snapshot = round_state.draft, round_state.snapshot
    able, chips = np.ones(len(snapshot.nodes), dtype=bool) if within is None else within.copy(), None
    waiting = [*again, *(pod for pod in job.pods if pod.pending and pod.key not in draft.placed)]
    for pod in {pod.shape: pod for pod in waiting}.values():
        able &= round_state.of(pod).slots > 0
        chips = chips_rule(round_state.of(pod).rules)
    for pod in job.pods:
        if pod.bound and pod.node in snapshot.index and pod.key not in draft.evicted:
            able[snapshot.index[pod.node]] = False
    return able, chips


def placed_members(unit: Unit, round_state: RoundState) -> dict[str, int]:
    """Returns pod key -> node position of the pending members that the draft has placed."""
    draft = round_state.draft
    return {pod.key: draft.placed[pod.key] for pod in unit.pending if pod.key in draft.placed}
