# SPDX-License-Identifier: Apache-2.0
"""Finds surplus pending members of a run, and counts live members of pods that were bound together.

Source: workloads.md 5.1 and 5.6.
"""

from collections.abc import Sequence

from koordpy.api import keys
from koordpy.api.natural_order import natural_key
from koordpy.workloads.workload_model import Filling, Role
from koordpy.workloads.workload_runs import WorkloadPod, WorkloadRun


def surplus_pods(role: Role, members: Sequence[WorkloadPod], wanted: int) -> tuple[str, ...]:
    """Returns the keys of the pending members by which a role exceeds `wanted` members: those with the highest
    indexes."""
    alive = [one for one in members if one.alive]
    if len(alive) <= wanted:
        return ()
    alive.sort(
        key=lambda one: (not one.bound, one.position.index is None, one.position.index or 0, natural_key(one.key))
    )
    by_index = any(part.filling is Filling.INDEX for part in role.parts)
    there: dict[object, WorkloadPod] = {}
    for one in alive:  # two pods of one index count as one
        index = one.position.index if by_index else None
        there.setdefault(one.key if index is None else index, one)
    return tuple(one.key for one in list(there.values())[wanted:] if not one.bound)


def live_counts(run: WorkloadRun) -> dict[str, int]:
    """Returns BIND_GROUP_ID -> number of pods in the roles of that group's pods that are bound or Succeeded.

    BIND_GROUP_ID is an annotation with one value on pods that were bound together. Succeeded pods that only the
    workload's status counts are included. For ReplicaSets of one Deployment, only ReplicaSets with pods of the group
    are counted.
    """
    roles: dict[str, set[tuple[str, str]]] = {}
    live: dict[tuple[str, str], int] = {}
    recorded = {role.name: sum(part.succeeded for part in role.parts) for role in run.roles}
    for role, found in run.members.items():
        ended: dict[tuple[str, str], int] = {}
        for one in found:
            part = role, one.position.part if run.workload.sets else ""
            live[part] = live.get(part, 0) + one.is_live
            ended[part] = ended.get(part, 0) + one.succeeded
            if one.bound:
                roles.setdefault(one.pod.metadata.annotations.get(keys.BIND_GROUP_ID, ""), set()).add(part)
        for part, succeeded in ended.items():
            live[part] += max(succeeded, recorded.get(role, 0))
    return {mark: sum(live[part] for part in parts) for mark, parts in roles.items()}
