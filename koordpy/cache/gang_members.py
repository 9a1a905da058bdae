# SPDX-License-Identifier: Apache-2.0
"""Classifies the pods of a gang as pending, bound, Succeeded or failed members, and determines the gang's present run.

A gang needs `minMember` members at the same time. Succeeded members count as present, even if their pods are deleted.
A gang may run several times under one name; members of an earlier run do not count in the present run. Source:
gang-network.md sections 1 and 2.4.
"""

from dataclasses import dataclass
from functools import cached_property
from math import inf

from koordpy.api.keys import JOB_COMPLETION_INDEX
from koordpy.cache.gang_history import NO_PAST, EndedMember, GangPast, Run, to_ended_member
from koordpy.pods.pod_info import SUCCEEDED, PodInfo
from koordpy.workloads.workload_manifest import index_in


@dataclass(frozen=True, kw_only=True)
class Members:
    """All known pods that name a gang, and the gang's history."""

    pods: tuple[PodInfo, ...]
    """Pending, bound and finished pods, including pods that are not members."""
    past: GangPast = NO_PAST
    """History of the gang: facts that its existing pods do not show."""

    @cached_property
    def members(self) -> tuple[PodInfo, ...]:
        """The members: bound pods, and pending pods that koordpy schedules and that have no scheduling gates (section
        1).

        Bound pods on lost nodes are not members (`lost`).

        Pods of an earlier run are not members either. A pod is of an earlier run if all pods of its controlling owner
        are terminating and another owner has pods that are not. It is also of an earlier run if its owner was deleted
        and created again under the same name.
        """
        found = tuple(pod for pod in self.pods if (pod.bound and not pod.lost) or pod.pending)
        live = {pod.controller for pod in found if not pod.pod.metadata.deletion_timestamp}
        if len(live) > 1:
            live -= _replaced_owners([pod for pod in found if pod.controller in live])
        if not live or all(pod.controller in live for pod in found):
            return found
        return tuple(pod for pod in found if pod.controller in live)

    @cached_property
    def pending(self) -> tuple[PodInfo, ...]:
        """Members without a node."""
        return tuple(pod for pod in self.members if pod.pending)

    @cached_property
    def bound(self) -> tuple[PodInfo, ...]:
        """Members on a node, including members that are being deleted."""
        return tuple(pod for pod in self.members if not pod.pending)

    @cached_property
    def lost(self) -> tuple[PodInfo, ...]:
        """Bound pods on lost nodes; they do not count as members (repair.md 4.1)."""
        return tuple(pod for pod in self.pods if pod.lost and pod.bound)

    @cached_property
    def live(self) -> tuple[PodInfo, ...]:
        """Live members: bound members that are not being deleted."""
        return tuple(pod for pod in self.bound if not pod.pod.metadata.deletion_timestamp)

    @cached_property
    def ended(self) -> tuple[EndedMember, ...]:
        """Members that have Succeeded, including those with deleted pods."""
        seen = (*(to_ended_member(pod) for pod in self.pods if self.is_success(pod)), *self.past.gone)
        return self.past.with_records(seen)

    def is_success(self, pod: PodInfo) -> bool:
        """Returns True if a pod has completed its work: its phase is Succeeded, and the pod or its controller confirms
        it.

        The controller confirms it if its record (`GangPast.records`) lists the pod's completion index.
        """
        if pod.pod.status.phase != SUCCEEDED:
            return False
        return (
            pod.succeeded
            or index_in(pod.pod.metadata, JOB_COMPLETION_INDEX) in self.past.record(pod.controller).indexes
        )

    @cached_property
    def failed(self) -> tuple[PodInfo, ...]:
        """Pods that ended without success, including pods of phase Succeeded that `is_success` does not confirm."""
        return tuple(pod for pod in self.pods if pod.finished and not self.is_success(pod))

    @cached_property
    def run(self) -> Run:
        """The present run of the gang, defined by the controlling owners of its pods.

        These are the owners of the members that are not being deleted; if there are none, the owners of the terminating
        members; if there are no members, the owner of the member that Succeeded last. Owners that ran together with one
        of these are included, such as a launcher Job and a worker Job.
        """
        live = [pod for pod in self.members if not pod.pod.metadata.deletion_timestamp] or self.members
        if live or not self.ended:
            owners = frozenset(pod.controller for pod in live)
        else:
            owners = frozenset([max(self.ended, key=lambda one: one.ended_at).owner])
        began = min((pod.created for pod in self.pods if pod.controller in owners), default=0.0)
        return Run(owners if owners.isdisjoint(self.past.joint_owners) else owners | self.past.joint_owners, began)

    @cached_property
    def succeeded(self) -> int:
        """Number of members of the present run that have Succeeded."""
        return sum(map(self.run.has, self.ended))

    @cached_property
    def deleted_succeeded(self) -> int:
        """Number of Succeeded members of the present run with deleted pods, including members that only a record
        counts."""
        return self.succeeded - sum(self.run.has(to_ended_member(pod)) for pod in self.pods if self.is_success(pod))

    @cached_property
    def done(self) -> int:
        """Number of Succeeded members that count towards the minimum of the pending members (section 2.4).

        A Succeeded member counts in two cases:

        - a pending member has the same owner;
        - its owner ran together with the owner of a pending member, such as a driver with its workers. Two owners ran
          together if both had bound members at one time, or if the member Succeeded after the first pod of the other
          owner had started.

        A Succeeded member without an owner counts only while its pod exists. If no member is pending, all Succeeded
        members with existing pods count.
        """
        if not self.pending:
            return sum(not one.gone for one in self.ended)
        owners = {pod.controller for pod in self.pending}
        together = self.past.joint_owners if not owners.isdisjoint(self.past.joint_owners) else frozenset[str]()
        # the node of a pod that has ended is not stored
        ran = [pod.created for pod in self.pods if pod.controller in owners and (pod.bound or pod.finished)]
        began = min(ran, default=inf)
        return sum(
            bool(one.owner or not one.gone)
            if one.owner in owners
            else bool(one.owner) and (one.owner in together or one.ended_at > began)
            for one in self.ended
        )

    @property
    def present(self) -> int:
        """Number of bound and Succeeded members."""
        return len(self.bound) + self.succeeded

    @property
    def present_in_run(self) -> int:
        """Number of bound and Succeeded members of the present run; `present` also has terminating pods of earlier
        runs."""
        return sum(pod.controller in self.run.owners for pod in self.bound) + self.succeeded

    def runs(self, min_member: int) -> bool:
        """Returns True if at least one member is bound, and bound and Succeeded members together reach the minimum."""
        return bool(self.bound) and self.present >= min_member


def _replaced_owners(pods: list[PodInfo]) -> set[str]:
    """Returns the uids of owners that were replaced: an owner of the same kind and name has pods that are newer.

    The creation times of the first pods of both owners are compared.
    """
    began: dict[str, float] = {}
    names: dict[str, tuple[str, str]] = {}
    for pod in pods:
        owner = pod.pod.metadata.controller
        if owner is not None and owner.name:
            began[owner.uid] = min(pod.created, began.get(owner.uid, inf))
            names[owner.uid] = owner.kind, owner.name
    last = {names[uid]: uid for uid in sorted(names, key=lambda uid: began[uid])}
    return {uid for uid, name in names.items() if last[name] != uid}
