"""Pods of one run of a workload, by role.

Source: workloads.md 5.3.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from koordpy.api.natural import natural_key
from koordpy.api.objects import Pod
from koordpy.workloads.kinds.jobs import index_in
from koordpy.workloads.known import Lineage, PodPlace
from koordpy.workloads.model import JobPart, Role, Workload


@dataclass(eq=False, slots=True)
class WorkloadPod:
    """A pod that may be in a derived gang."""

    key: str
    """`namespace/name`."""
    pod: Pod
    bound: bool
    """On a node, and not finished."""
    created: float
    place: PodPlace | None = None

    @property
    def leaving(self) -> bool:
        return bool(self.pod.metadata.deletion_timestamp)

    @property
    def succeeded(self) -> bool:
        return self.pod.status.phase == "Succeeded"

    @property
    def failed(self) -> bool:
        return self.pod.status.phase == "Failed"

    @property
    def alive(self) -> bool:
        """Neither finished nor being deleted."""
        return self.pod.status.phase not in ("Succeeded", "Failed") and not self.leaving

    @property
    def index(self) -> int | None:
        """Its completion index."""
        return index_in(self.pod.metadata.labels, self.pod.metadata.annotations)

    @property
    def stands(self) -> bool:
        """Whether it is on a node, and is to stay."""
        return self.bound and not self.leaving

    @property
    def waits(self) -> bool:
        """Whether it may be placed."""
        return self.alive and not self.bound and not self.pod.spec.scheduling_gates


P = TypeVar("P", bound=WorkloadPod)


def by_age(pods: Iterable[P]) -> list[P]:
    """The oldest first."""
    return sorted(pods, key=lambda one: (one.created, natural_key(one.pod.metadata.name)))


@dataclass(slots=True)
class WorkloadRun:
    """Pods of one run by role."""

    workload: Workload
    lineage: Lineage
    group: str
    run: str
    members: dict[str, list[WorkloadPod]] = field(default_factory=dict)
    """By role, the oldest first."""

    @classmethod
    def of(cls, pods: Iterable[WorkloadPod]) -> "WorkloadRun":
        """The run of these pods, one at least and the oldest first, which are all that belong to it."""
        found: WorkloadRun | None = None
        for one in pods:
            assert one.place is not None
            seat, workload = one.place.seat, one.place.workload
            found = found or cls(workload, one.place.lineage, seat.group, seat.run)
            found.members.setdefault(seat.role, []).append(one)
        assert found is not None
        return found

    @property
    def chain(self) -> tuple[Workload, ...]:
        """The workload, and the objects above it that are known."""
        chain = self.lineage.chain
        return chain[next(i for i, one in enumerate(chain) if one is self.workload) :]

    @property
    def began(self) -> float:
        return min((one.created for found in self.members.values() for one in found), default=float("inf"))

    @property
    def is_present(self) -> bool:
        """Whether it is the one that the workload runs now."""
        return not self.workload.run or self.run == self.workload.run

    def wanted(self, role: Role) -> Iterator[tuple[JobPart, int]]:
        """The parts of a role, and how many pods of each are kept alive now."""
        last = self.workload.ends_with
        ended = bool(last) and any(one.succeeded for one in self.members.get(last, ()))
        seen: dict[str, list[WorkloadPod]] = {}
        for one in self.members.get(role.name, ()):
            if one.place is not None:
                seen.setdefault(one.place.seat.part, []).append(one)
        for part in role.parts:
            pods = seen.get(part.key, ())
            done = sum(one.succeeded and part.counts(one.index) for one in pods)
            yield part, 0 if ended else part.wanted(done, sum(one.alive for one in pods))

    def roles(self) -> list[Role]:
        found = [role for role in self.workload.roles if role.group == self.group]
        if not found and self.workload.wide is not None:
            found = list(self.workload.wide(self.group))
        return found
