# SPDX-License-Identifier: Apache-2.0
"""Counts the pods on each node that attract a gang, so that it is placed close to them (goal 2 of a placement).

A running pod attracts the gang if it is a bound member, or if its annotation network-topology-selector has the same
value as that of a pod which the plan places. Goal 0 decides before which pods are placed; values of members that stay
pending do not count. Source: gang-network.md sections 4 and 5.
"""

from collections.abc import Iterable

import numpy as np

from koordpy.cache.snapshot import Ints
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.pods.pod_info import PodInfo


def attraction(unit: Unit, planned: Iterable[PodInfo], round_state: RoundState) -> Ints:
    """Returns [nodes] the number of pods that attract the unit on the current draft, each pod once.

    These pods attract the unit: bound members; pods with the network-topology-selector of a planned pod; for a gang
    that is derived from a workload, pods of the same run that another scheduler has bound. planned: pending pods that
    the plan places.
    """
    snapshot, draft = round_state.snapshot, round_state.draft
    # pods with the same selector: of the snapshot, with the placements and without the evictions of the draft
    out = np.zeros(len(snapshot.nodes), dtype=np.int64)
    values = {pod.selector for pod in planned if pod.selector}
    for value in values:
        for name, count in snapshot.selectors.get(value, {}).items():
            if name in snapshot.index:
                out[snapshot.index[name]] += count
    if values:
        for key, node in draft.placed.items():
            if snapshot.pods[key].selector in values:
                out[node] += 1
        for pod in draft.evicted.values():
            if pod.selector in values and pod.node in snapshot.index:
                out[snapshot.index[pod.node]] -= 1
    # bound members and pods of the same run, if they are not counted above
    for member in unit.members:
        if member.bound and member.selector not in values and member.node in snapshot.index:
            out[snapshot.index[member.node]] += 1
    foreign = {key for gang in unit.gangs if gang.workload_gang is not None for key in gang.workload_gang.foreign_pods}
    for key in foreign:
        other = snapshot.pods.get(key)
        if other is not None and other.bound and other.selector not in values and other.node in snapshot.index:
            out[snapshot.index[other.node]] += 1
    return out
