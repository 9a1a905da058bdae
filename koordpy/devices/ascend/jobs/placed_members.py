# SPDX-License-Identifier: Apache-2.0
"""Views of an Ascend job and its unit in which members that the draft has placed count as bound, and its usable nodes.

A unit is planned member by member if its core is bound and victims are evicted for further members: each member must
see the members placed before it, with their nodes and the annotations of their Bindings. O(members) per view.
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
    """Returns the unit with some pods bound where a plan places them. nodes: pod key -> node position."""
    return unit.with_bound({key: round_state.snapshot.nodes[node].name for key, node in nodes.items()})


def usable_nodes(
    job: AscendJob, round_state: RoundState, again: Sequence[PodInfo], within: Bools | None
) -> tuple[Bools, AscendChips | None]:
    """Returns ([nodes] True for nodes that the job may use, the job's filter `AscendChips`).

    A node is usable if it takes every pending shape of the job and has no bound member, because each pod needs a
    separate server. The filter is None if no pending pod has one. again: evicted members, as pending pods. within:
    [nodes] allowed for members, None for all.
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
