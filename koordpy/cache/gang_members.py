"""The pods of a gang, told apart: who waits, who stands, who has Succeeded.

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
    """Every known pod that names a gang, and what is remembered of others."""

    pods: tuple[PodInfo, ...]
    past: Past = NO_PAST

    @cached_property
    def members(self) -> tuple[PodInfo, ...]:
        """Bound pods and pending ones that are ours and ungated (section 1).

        Not those of an earlier Job that are still ending while none of its pods lives, nor those of one that was made
        again under its name, whose pods are about to be deleted: the gang has begun anew.
        """
        found = tuple(pod for pod in self.pods if pod.bound or pod.pending)
        live = {pod.controller for pod in found if not pod.pod.metadata.deletion_timestamp}
        if len(live) > 1:
            live -= _made_again([pod for pod in found if pod.controller in live])
        if not live or all(pod.controller in live for pod in found):
            return found
        return tuple(pod for pod in found if pod.controller in live)

    @cached_property
    def pending(self) -> tuple[PodInfo, ...]:
        return tuple(pod for pod in self.members if pod.pending)

    @cached_property
    def bound(self) -> tuple[PodInfo, ...]:
        return tuple(pod for pod in self.members if pod.bound)

    @cached_property
    def standing(self) -> tuple[PodInfo, ...]:
        """The bound members that are not being deleted."""
        return tuple(pod for pod in self.bound if not pod.pod.metadata.deletion_timestamp)

    @cached_property
    def ended(self) -> tuple[Ended, ...]:
        """The members that have Succeeded, those included whose pods are gone."""
        seen = (*(ended(pod) for pod in self.pods if self.is_success(pod)), *self.past.gone)
        return self.past.with_records(seen)

    def is_success(self, pod: PodInfo) -> bool:
        """True if a pod has done its part: by itself, or by the record of its controller, which counts its index."""
        if pod.pod.status.phase != SUCCEEDED:
            return False
        return (
            pod.succeeded
            or index_in(pod.pod.metadata, JOB_COMPLETION_INDEX) in self.past.record(pod.controller).indexes
        )

    @cached_property
    def failed(self) -> tuple[PodInfo, ...]:
        """The pods that ended without success; phase Succeeded alone is none."""
        return tuple(pod for pod in self.pods if pod.finished and not self.is_success(pod))

    @cached_property
    def run(self) -> Run:
        """The present run: of those that stand or wait, else of those that are ending, else of who has ended last; and
        of who ran beside them."""
        live = [pod for pod in self.members if not pod.pod.metadata.deletion_timestamp] or self.members
        if live or not self.ended:
            owners = frozenset(pod.controller for pod in live)
        else:
            owners = frozenset([max(self.ended, key=lambda one: one.at).owner])
        began = min((pod.created for pod in self.pods if pod.controller in owners), default=0.0)
        return Run(owners if owners.isdisjoint(self.past.beside) else owners | self.past.beside, began)

    @cached_property
    def succeeded(self) -> int:
        """Members of the present run that have Succeeded."""
        return sum(map(self.run.has, self.ended))

    @cached_property
    def departed(self) -> int:
        """Of those, the members whose pods are gone."""
        return sum(map(self.run.has, self.past.gone))

    @cached_property
    def done(self) -> int:
        """Succeeded members that stand for members that wait, in need and gate (2.4): of the same controlling owner,
        or of one that ran beside it, as a driver beside its workers: both had members bound at one time, or who of it
        ended did so after one of these had started.

        Pods without an owner say by themselves alone what became of them: one that is gone counts for nothing.
        """
        if not self.pending:
            return sum(not one.gone for one in self.ended)
        owners = {pod.controller for pod in self.pending}
        beside = self.past.beside if not owners.isdisjoint(self.past.beside) else frozenset[str]()
        # the node of a pod that has ended is not kept
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
        """Members bound or Succeeded."""
        return len(self.bound) + self.succeeded

    @property
    def of_run(self) -> int:
        """The same of the present run alone: pods of an earlier one may still be ending."""
        return sum(pod.controller in self.run.owners for pod in self.bound) + self.succeeded

    def runs(self, min_member: int) -> bool:
        """Whether members are bound and, with those that have Succeeded, as many as the minimum."""
        return bool(self.bound) and self.present >= min_member


def _made_again(pods: list[PodInfo]) -> set[str]:
    """Controlling owners in whose place another of the same kind and name has come, by the first of its pods."""
    began: dict[str, float] = {}
    names: dict[str, tuple[str, str]] = {}
    for pod in pods:
        owner = pod.pod.metadata.controller
        if owner is not None and owner.name:
            began[owner.uid] = min(pod.created, began.get(owner.uid, inf))
            names[owner.uid] = owner.kind, owner.name
    last = {names[uid]: uid for uid in sorted(names, key=lambda uid: began[uid])}
    return {uid for uid, name in names.items() if last[name] != uid}
