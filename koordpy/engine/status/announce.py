"""The events of the scheduler, each worded once (kube-parity.md 4.6)."""

from collections.abc import Callable, Mapping

from koordpy.cluster.pods import GangSource, PodInfo
from koordpy.engine.status.recorder import EventRecorder, ObjectReference, of_pod
from koordpy.planning.plan import GangReport


class Announcer:
    """Records events under the scheduler name of the pod; says nothing where there is no recorder (dry run)."""

    def __init__(self, recorders: Mapping[str, EventRecorder], on_refused: Callable[[str, str], None]) -> None:
        """`recorders`: one for each scheduler name. `on_refused` hears of the kind of each object that says what is not
        taken, and of the reason of its event."""
        self._recorders, self._on_refused = recorders, on_refused
        self._default = next(iter(recorders.values()), None)

    def _of(self, info: PodInfo) -> EventRecorder | None:
        return self._recorders.get(info.pod.spec.scheduler_name, self._default)

    def scheduled(self, info: PodInfo, node: str) -> None:
        """The pod was bound."""
        if (recorder := self._of(info)) is not None:
            note = f"Successfully assigned {info.key} to {node}"
            recorder.record(of_pod(info), type="Normal", reason="Scheduled", action="Binding", note=note)

    def failed(self, info: PodInfo, message: str) -> None:
        """The pod stays pending; the message is that of its condition."""
        if (recorder := self._of(info)) is not None:
            recorder.record(of_pod(info), type="Warning", reason="FailedScheduling", action="Scheduling", note=message)

    def gang_scheduled(self, group: ObjectReference, report: GangReport, owner: ObjectReference | None) -> None:
        """A gang has its minimum bound. owner: of its pods, so that the start of the next Job is another event."""
        if self._default is not None:
            place = f" in {report.domain[1] or 'the cluster'} ({report.domain[0]})" if report.domain else ""
            remark = f"; {report.remark}" if report.remark else ""
            of_workload = f": {report.origin}" if report.source is GangSource.WORKLOAD else ""
            note = f"{report.bound} of {report.members} members bound{place}{of_workload}{remark}"
            self._default.record(
                group, type="Normal", reason="GangScheduled", action="Scheduling", note=note, related=owner
            )

    def gang_unschedulable(self, group: ObjectReference, note: str) -> None:
        """A gang has no place; the note tells what it needs and the best offers."""
        if self._default is not None:
            self._default.record(group, type="Warning", reason="GangUnschedulable", action="Scheduling", note=note)

    def gang_evicted(self, group: ObjectReference, note: str) -> None:
        """Members of a gang are evicted by koordpy."""
        if self._default is not None:
            self._default.record(group, type="Warning", reason="GangEvicted", action="Preempting", note=note)

    def gang_degraded(self, group: ObjectReference, note: str) -> None:
        """A gang has lost members that it needs."""
        if self._default is not None:
            self._default.record(group, type="Warning", reason="GangDegraded", action="Repairing", note=note)

    def gang_repaired(self, group: ObjectReference, note: str) -> None:
        """A gang that had lost members has its minimum again."""
        if self._default is not None:
            self._default.record(group, type="Normal", reason="GangRepaired", action="Repairing", note=note)

    def evicted(self, info: PodInfo, reason: str, message: str, beneficiary: ObjectReference | None) -> None:
        """The pod makes room for others, or its gang is below its minimum."""
        if (recorder := self._of(info)) is not None:
            action = "Preempting" if reason == "Preempted" else "Reclaiming"
            about = of_pod(info)
            recorder.record(about, type="Normal", reason=reason, action=action, note=message, related=beneficiary)

    def room_made(self, beneficiary: ObjectReference, message: str) -> None:
        """Others go for a pod or a gang; the totals."""
        if self._default is not None:
            self._default.record(beneficiary, type="Normal", reason="RoomMade", action="Preempting", note=message)

    def leads(self, lease: ObjectReference, identity: str) -> None:
        """This process has taken the Lease."""
        if self._default is not None:
            note = f"{identity} became leader"
            self._default.record(lease, type="Normal", reason="LeaderElection", action="LeaderElection", note=note)

    def unreadable(self, obj: ObjectReference, why: str, meaning: str) -> None:
        """An object that cannot be read, and what that means."""
        self._on_refused(obj.kind, "UnreadableObject")
        if self._default is not None:
            note = f"{meaning}, as it cannot be read: {why}"
            self._default.record(obj, type="Warning", reason="UnreadableObject", action="Validating", note=note)

    def invalid(self, obj: ObjectReference, note: str) -> None:
        """A setting that cannot be read, or does nothing."""
        self._on_refused(obj.kind, "InvalidAnnotation")
        if self._default is not None:
            self._default.record(obj, type="Warning", reason="InvalidAnnotation", action="Validating", note=note)
