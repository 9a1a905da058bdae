"""Pods of one run of a workload, by role.

Source: workloads.md 5.3.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from koordpy.api.natural import natural_key
from koordpy.api.objects import Pod
from koordpy.workloads.known import Known, PodPlace
from koordpy.workloads.model import Role, Workload


@dataclass(frozen=True, slots=True)
class WorkloadPod:
    """A pod that may be in a derived gang."""

    pod: Pod
    bound: bool
    created: float
    place: PodPlace | None = None

    @property
    def leaving(self) -> bool:
        return bool(self.pod.metadata.deletion_timestamp)

    @property
    def succeeded(self) -> bool:
        return self.pod.status.phase == "Succeeded"

    @property
    def alive(self) -> bool:
        """Neither finished nor being deleted."""
        return self.pod.status.phase not in ("Succeeded", "Failed") and not self.leaving

    @property
    def waits(self) -> bool:
        """Whether it may be placed."""
        return self.alive and not self.bound and not self.pod.spec.scheduling_gates


@dataclass
class WorkloadRun:
    """Pods of one run by role."""

    workload: Workload
    chain: tuple[Workload, ...]
    group: str
    run: str
    members: dict[str, list[WorkloadPod]] = field(default_factory=dict)

    @property
    def began(self) -> float:
        return min((one.created for found in self.members.values() for one in found), default=float("inf"))

    @property
    def is_present(self) -> bool:
        """Whether it is the one that the workload runs now."""
        return not self.workload.run or self.run == self.workload.run

    def roles(self) -> list[Role]:
        found = [role for role in self.workload.roles if role.group == self.group]
        if not found and self.workload.wide is not None:
            found = list(self.workload.wide(self.group))
        return found


def runs_of(known: Known, members: Iterable[WorkloadPod]) -> list[WorkloadRun]:
    """The runs of all workloads that have pods, or want some."""
    found: dict[tuple[str, str, str], WorkloadRun] = {}
    for workload in known.workloads():
        chain = known.chain(workload)
        top = next((one for one in reversed(chain) if one.roles), None)
        if top is workload and workload.is_kind and workload.by_default:
            for group in dict.fromkeys(role.group for role in workload.roles):
                if not group:
                    found[workload.head.uid, "", workload.run] = WorkloadRun(workload, chain, "", workload.run)
    for member in members:
        place = member.place
        if place is None or not place.workload.is_kind:
            continue
        seat, workload = place.seat, place.workload
        key = workload.head.uid, seat.group, seat.run
        run = found.get(key)
        if run is None:
            run = found[key] = WorkloadRun(workload, known.chain(workload), seat.group, seat.run)
        run.members.setdefault(seat.role, []).append(member)
    for run in found.values():
        for pods in run.members.values():
            pods.sort(key=lambda one: (one.created, natural_key(one.pod.metadata.name)))
    return list(found.values())
