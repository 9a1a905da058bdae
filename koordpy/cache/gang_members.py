"""The pods of a gang by state: pending, bound, live, Succeeded or failed.

Source: gang-network.md sections 1 and 2.4.
"""

from dataclasses import dataclass
from functools import cached_property
from math import inf

from koordpy.api.keys import JOB_COMPLETION_INDEX
from koordpy.cache.gang_history import NO_PAST, Ended, Past, Run, ended
from koordpy.pods.pod_info import SUCCEEDED, PodInfo
from koordpy.workloads.workload_manifest import index_in


@dataclass(frozen=True, kw_only=True)
class Members:
    """All known pods that name a gang, and the gang's history."""

    pods: tuple[PodInfo, ...]
    past: Past = NO_PAST

    @cached_property
    def members(self) -> tuple[PodInfo, ...]:
        """Bound pods, and pending ones that koordpy schedules and that are not gated (section 1).

        Excluded are pods of an earlier Job that are terminating while pods of a later one exist, and pods of a Job that
        was recreated under its name: a new run has begun.
        """
        found = tuple(pod for pod in self.pods if pod.bound or pod.pending)
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
        """Members on a node, also those that are being deleted."""
        return tuple(pod for pod in self.members if pod.bound)

    @cached_property
    def standing(self) -> tuple[PodInfo, ...]:
        """Bound members that are not being deleted."""
        return tuple(pod for pod in self.bound if not pod.pod.metadata.deletion_timestamp)

    @cached_property
    def ended(self) -> tuple[Ended, ...]:
        """Members that have Succeeded, also those with deleted pods."""
        seen = (*(ended(pod) for pod in self.pods if self.is_success(pod)), *self.past.gone)
        return self.past.with_records(seen)

    def is_success(self, pod: PodInfo) -> bool:
        """Returns whether a pod has completed its work, by its status or by its index in its controller's record."""
        if pod.pod.status.phase != SUCCEEDED:
            return False
        return (
            pod.succeeded
            or index_in(pod.pod.metadata, JOB_COMPLETION_INDEX) in self.past.record(pod.controller).indexes
        )

    @cached_property
    def failed(self) -> tuple[PodInfo, ...]:
        """Pods that ended without success; phase Succeeded alone is no success."""
        return tuple(pod for pod in self.pods if pod.finished and not self.is_success(pod))

    @cached_property
    def run(self) -> Run:
        """The present run: of the members that are not being deleted, or else of the terminating ones, or else of the
        last Succeeded one. Owners that ran together with these are included."""
        live = [pod for pod in self.members if not pod.pod.metadata.deletion_timestamp] or self.members
        if live or not self.ended:
            owners = frozenset(pod.controller for pod in live)
        else:
            owners = frozenset([max(self.ended, key=lambda one: one.at).owner])
        began = min((pod.created for pod in self.pods if pod.controller in owners), default=0.0)
        return Run(owners if owners.isdisjoint(self.past.beside) else owners | self.past.beside, began)

    @cached_property
    def succeeded(self) -> int:
        """Number of members of the present run that have Succeeded."""
        return sum(map(self.run.has, self.ended))

    @cached_property
    def departed(self) -> int:
        """Number of Succeeded members of the present run with deleted pods."""
        return sum(map(self.run.has, self.past.gone))

    @cached_property
    def done(self) -> int:
        """Number of Succeeded members that count as present for the pending members, in need and gate (2.4).

        They have the same controlling owner as a pending member, or one that ran together with it, such as a driver and
        its workers: both had bound members at one time, or the member ended after one of the pending members' owners
        had started pods. Deleted pods without an owner do not count.
        """
        if not self.pending:
            return sum(not one.gone for one in self.ended)
        owners = {pod.controller for pod in self.pending}
        beside = self.past.beside if not owners.isdisjoint(self.past.beside) else frozenset[str]()
        # the node of a pod that has ended is not stored
        ran = [pod.created for pod in self.pods if pod.controller in owners and (pod.bound or pod.finished)]
        began = min(ran, default=inf)
        return sum(
            bool(one.owner or not one.gone)
            if one.owner in owners
            else bool(one.owner) and (one.owner in beside or one.at > began)
            for one in self.ended
        )

    @property
    def present(self) -> int:
        """Number of bound and Succeeded members."""
        return len(self.bound) + self.succeeded

    @property
    def of_run(self) -> int:
        """Number of bound and Succeeded members of the present run only: pods of an earlier run may still be
        terminating."""
        return sum(pod.controller in self.run.owners for pod in self.bound) + self.succeeded

    def runs(self, min_member: int) -> bool:
        """Returns whether members are bound, and bound and Succeeded members reach the minimum."""
        return bool(self.bound) and self.present >= min_member


def _replaced_owners(pods: list[PodInfo]) -> set[str]:
    """Returns the controlling owners that a later one of the same kind and name has replaced, by the first of their
    pods."""
    began: dict[str, float] = {}
    names: dict[str, tuple[str, str]] = {}
    for pod in pods:
        owner = pod.pod.metadata.controller
        if owner is not None and owner.name:
            began[owner.uid] = min(pod.created, began.get(owner.uid, inf))
            names[owner.uid] = owner.kind, owner.name
    last = {names[uid]: uid for uid in sorted(names, key=lambda uid: began[uid])}
    return {uid for uid, name in names.items() if last[name] != uid}
