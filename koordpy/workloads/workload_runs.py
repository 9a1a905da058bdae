# SPDX-License-Identifier: Apache-2.0
"""The pods of one run of a workload, by role. A run is one start: the Job itself, or one restart attempt of a JobSet.

`WorkloadRun` has the pods, and finds the annotations and templates that apply to them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from koordpy.api.keys import GANG_MIN, JOB_COMPLETION_INDEX
from koordpy.api.natural_order import natural_key
from koordpy.api.objects import Pod
from koordpy.api.pod_endings import is_success
from koordpy.workloads.deployment_rollouts import asks
from koordpy.workloads.known_workloads import UNKNOWN, Lineage
from koordpy.workloads.workload_manifest import Head, index_in
from koordpy.workloads.workload_model import NO_RECORD, JobPart, PodPosition, Record, Role, Template, Workload


@dataclass(eq=False, slots=True)
class WorkloadPod:
    """A pod that may be in a derived gang, with the workload above it."""

    key: str
    """`namespace/name`."""
    pod: Pod
    bound: bool
    """True if the pod has a node that is not lost, and is not finished."""
    created: float
    """Creation time in seconds since the epoch."""
    lineage: Lineage = UNKNOWN
    """The objects above the pod; `UNKNOWN` until they are looked up."""

    @property
    def position(self) -> PodPosition:
        """Role and index of the pod in its workload; `NOWHERE` if its workload is not known."""
        return self.lineage.position

    @property
    def leaving(self) -> bool:
        """True if the pod is being deleted."""
        return bool(self.pod.metadata.deletion_timestamp)

    @property
    def succeeded(self) -> bool:
        """True if the pod has completed its work (gang-network.md 2.4).

        The phase Succeeded is not enough: the pod's status, or the completed indexes of its Job, must confirm it.
        """
        return is_success(self.pod) or (self.pod.status.phase == "Succeeded" and self.index in self.record.indexes)

    @property
    def failed(self) -> bool:
        """True if the pod ended without success: phase Failed, or an unconfirmed phase Succeeded."""
        return self.pod.status.phase == "Failed" or (self.pod.status.phase == "Succeeded" and not self.succeeded)

    @property
    def record(self) -> Record:
        """The Succeeded pods according to the status of the controlling owner."""
        owner, chain = self.pod.metadata.controller, self.lineage.chain
        return chain[0].record if owner is not None and chain and chain[0].head.uid == owner.uid else NO_RECORD

    @property
    def alive(self) -> bool:
        """True if the pod is not finished, not being deleted, and not lost with its node."""
        return self.pod.status.phase not in ("Succeeded", "Failed") and not self.leaving and not self.lost

    @property
    def lost(self) -> bool:
        """True if the pod has a node that is lost (repair.md 4.1)."""
        return bool(self.pod.spec.node_name) and not self.bound and self.pod.status.phase not in ("Succeeded", "Failed")

    @property
    def index(self) -> int | None:
        """Completion index of the pod; None if it has none."""
        return index_in(self.pod.metadata, JOB_COMPLETION_INDEX)

    @property
    def is_live(self) -> bool:
        """True if the pod is on a node, not finished, and not being deleted."""
        return self.bound and not self.leaving

    @property
    def is_placeable(self) -> bool:
        """True if the pod is pending and koordpy may place it."""
        return self.alive and not self.bound and not self.pod.spec.scheduling_gates


P = TypeVar("P", bound=WorkloadPod)


def by_age(pods: Iterable[P]) -> list[P]:
    """Sorts pods, the oldest first."""
    return sorted(pods, key=lambda one: (one.created, natural_key(one.pod.metadata.name)))


@dataclass(slots=True)
class WorkloadRun:
    """The pods of one run by role."""

    lineage: Lineage
    """Lineage of one of the pods."""
    members: dict[str, list[WorkloadPod]] = field(default_factory=dict)
    """Role -> its pods, the oldest first."""

    @classmethod
    def from_pods(cls, pods: Sequence[WorkloadPod]) -> "WorkloadRun":
        """Returns the run with these pods: all pods of the run, at least one, the oldest first."""
        found = cls(pods[0].lineage)
        for one in pods:
            found.members.setdefault(one.position.role, []).append(one)
        return found

    @property
    def workload(self) -> Workload:
        """The workload with the roles; for ReplicaSets of one Deployment, the workload that combines them."""
        return self.lineage.workload

    @property
    def position(self) -> PodPosition:
        """Position of one of the pods; it states the group and the run."""
        return self.lineage.position

    @property
    def chain(self) -> tuple[Workload, ...]:
        """The workload, and the known objects above it."""
        chain = self.lineage.chain
        return chain[next(i for i, one in enumerate(chain) if one is self.workload) :]

    @property
    def notes(self) -> list[Mapping[str, str]]:
        """Annotations of the workload and of the objects above it, the nearest first."""
        return [one.head.annotations for one in self.chain if one.is_kind]

    @property
    def oldest(self) -> dict[str, Mapping[str, str]]:
        """Role -> annotations of its oldest pod, because other systems write minimums on pods."""
        return {name: pods[0].pod.metadata.annotations for name, pods in self.members.items()}

    def own_notes(self, role: Role) -> list[Mapping[str, str]]:
        """Returns the annotations of one role, the nearest first: of its templates or its oldest pod, then of its
        Job."""
        if not role.template.raw and role.name in self.members:
            return [self.oldest[role.name], role.above]
        templates = self.templates(role)
        if not self.workload.sets:
            return [*(one.annotations for one in templates), role.above]
        # the newest ReplicaSet decides; an older one counts only if the newest has no minimum
        least = next(({GANG_MIN: one.annotations[GANG_MIN]} for one in templates if asks(one.annotations)), {})
        return [templates[0].annotations, least]

    def templates(self, role: Role) -> Sequence[Template]:
        """Returns the pod templates of a role; there is at least one.

        If ReplicaSets of one Deployment are combined, only templates of ReplicaSets that have or want pods are
        returned, the newest first. All other ReplicaSets exist only for a rollback.
        """
        if not self.workload.sets:
            return role.templates
        there = {one.position.part for one in self.members.get(role.name, ())}
        live = [role.template_of(part) for part in role.parts if part.number or part.key in there]
        return live or [role.template]

    @property
    def head(self) -> Head:
        """The object from which the gangs get their names: the workload; for a Deployment, the oldest ReplicaSet with
        pods."""
        there = {one.position.part for found in self.members.values() for one in found}
        return next((one for one in self.workload.sets if one.name in there), self.workload.head)

    @property
    def began(self) -> float:
        """Creation time of the oldest pod, in seconds since the epoch; infinite if there are no pods."""
        return min((one.created for found in self.members.values() for one in found), default=float("inf"))

    @property
    def is_present(self) -> bool:
        """True if this is the present run of the workload."""
        return not self.workload.run or self.position.run == self.workload.run

    def wanted(self, role: Role) -> Iterator[tuple[JobPart, int]]:
        """Yields (part, number of its pods that the controller keeps alive now) for the parts of a role."""
        last = self.workload.ends_with  # once a pod of this role has Succeeded, no pods are wanted
        ended = bool(last) and any(one.succeeded for one in self.members.get(last, ()))
        seen: dict[str, list[WorkloadPod]] = {}
        for one in self.members.get(role.name, ()):
            seen.setdefault(one.position.part, []).append(one)
        for part in role.parts:
            pods = seen.get(part.key, ())
            done = sum(one.succeeded and part.counts(one.index) for one in pods)
            yield part, 0 if ended else part.wanted(done, sum(one.alive for one in pods))

    @property
    def roles(self) -> Sequence[Role]:
        """The roles of the workload; for a LeaderWorkerSet, those of this run's group."""
        of_group = self.workload.of_group
        return self.workload.roles if of_group is None else of_group(self.position.group)
