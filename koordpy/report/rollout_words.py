# SPDX-License-Identifier: Apache-2.0
"""Composes sentences on a rollout of a Deployment that cannot proceed (workloads.md 4).

There are two causes: an old pod uses the capacity that a new pod needs, or an old pod is pending that no node could
take.
"""

from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.plan.limits import OUTGOING_TRIED
from koordpy.pods.pod_info import PodInfo


def holder_of_room(unit: Unit, round_state: RoundState) -> str:
    """Returns a sentence on an old pod that the rollout will delete, if a new pod would fit the old pod's node.

    Tries the first `OUTGOING_TRIED` old pods: each is removed from the draft, and the filters are run. Empty if no such
    pod is found.
    """
    snapshot, draft = round_state.snapshot, round_state.draft
    for gang in unit.gangs:
        if gang.workload_gang is None or not gang.pending:
            continue
        waiting = gang.pending[0]
        for key in gang.workload_gang.outgoing[:OUTGOING_TRIED]:
            old = snapshot.pods.get(key)
            if old is None or old.node not in snapshot.index or key in draft.evicted:
                continue
            with draft.trial([old]):
                takes = round_state.of(waiting).verdict().which[snapshot.index[old.node]] == 0
            if takes:
                owner = old.pod.metadata.controller
                of_owner = f" of {owner.kind} {owner.name}" if owner is not None else ""
                return (
                    f"pod {key}{of_owner} uses the capacity (with maxSurge 0 and maxUnavailable 1 it is deleted first)"
                )
    return ""


def blocked_by_predecessor(unit: Unit, round_state: RoundState) -> str:
    """Returns a sentence on a pending pod of an older ReplicaSet that no node could take, if it blocks a gang.

    Such a pod blocks a gang that has no bound member and too few other members for its minimum. The controller keeps
    old replicas until new pods run. So it creates too few new pods, and free capacity does not help. Empty without such
    a pod. O(pods of older ReplicaSets + shapes x nodes).
    """
    if unit.bound_any:
        return ""
    for gang in unit.gangs:
        older = gang.workload_gang.superseded if gang.workload_gang is not None else ()
        able: dict[bytes, bool] = {}
        lacking: list[PodInfo] = []
        for pod in (round_state.snapshot.pods[key] for key in older if key in round_state.snapshot.pods):
            kind = round_state.key(pod)
            if kind not in able:
                able[kind] = round_state.of(pod).refusal is None and bool(round_state.could_hold(pod).any())
            if pod.pending and not able[kind]:
                lacking.append(pod)
        if lacking and len(gang.pending) - len(lacking) < unit.need(gang):
            owner = lacking[0].pod.metadata.controller
            if owner is not None:
                return (
                    f"no node could take pod {lacking[0].key} of {owner.kind} {owner.name}, and the rollout creates "
                    f"fewer new pods than the minimum while this {owner.kind} has replicas"
                )
    return ""
