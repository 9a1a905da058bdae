# SPDX-License-Identifier: Apache-2.0
"""Checks spec.minResources of a PodGroup before the gang is planned (kube-parity.md section 6).

A gang is planned only if its minResources fit into the free capacity of the cluster. Free capacity is summed over the
nodes where every filter except NodeResourcesFit admits a pending member. The requests of the gang's bound members count
as free, because minResources includes them. O(nodes x resources).
"""

import numpy as np

from koordpy.api.quantity import quantity_text
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.gangs.unit_gates import Gate
from koordpy.plan.pending_reason import Reason
from koordpy.plan.round_plan import GangStatus
from koordpy.plugins.resource_fit import PLUGIN


def check_min_resources(unit: Unit, round_state: RoundState) -> Gate | None:
    """Returns a gate for the first gang that has minResources which do not fit; None if all fit."""
    snapshot, draft = round_state.snapshot, round_state.draft
    for gang in unit.gangs:
        if not gang.min_resources or not gang.pending:
            continue
        # [nodes] True if the filters admit at least one kind of pending member
        able = np.zeros(len(snapshot.nodes), dtype=bool)
        for pod in {pod.shape: pod for pod in gang.pending}.values():
            able |= round_state.of(pod).allowed > 0
        lacking = []
        for name, wanted in sorted(gang.min_resources.items()):
            column = snapshot.columns.get(name)
            free = 0
            if column is not None:
                room = snapshot.allocatable[able, column] - draft.used[able, column]
                free = int(np.maximum(room, 0).sum())
            free += sum(
                pod.requests.get(name, 0)
                for pod in gang.bound
                if pod.node in snapshot.index and able[snapshot.index[pod.node]]
            )
            if wanted > free:
                lacking.append(f"{name} {quantity_text(name, wanted)}, free {quantity_text(name, free)}")
        if lacking:
            text = f"gang {gang.key}: minResources do not fit: {'; '.join(lacking)}"
            return Gate(text, GangStatus.UNSCHEDULABLE, Reason.UNSCHEDULABLE, (PLUGIN,))
    return None
