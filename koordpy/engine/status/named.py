"""Events of gangs that no object stands for, by labels or annotations of their pods alone.

They go to the workload, or the controller of the pods, such as a Job, which is where their owner looks; to the oldest
pod where there is none. No right beyond those for events is needed. Such a gang has no status.
"""

from koordpy.cluster.pods import GangSource
from koordpy.engine.status.gangwriter import GangWriter
from koordpy.engine.status.patches import wobbles
from koordpy.engine.status.recorder import ObjectReference
from koordpy.engine.status.writing import Writing
from koordpy.planning.plan import GangReport, GangStatus


class NamedGangTeller(GangWriter):
    """Of gangs by name, or of those that follow from workloads."""

    def __init__(self, writing: Writing, source: GangSource = GangSource.NAMED) -> None:
        self.source = source
        super().__init__(writing)
        self._said: dict[str, tuple[GangStatus, str]] = {}
        """Gang -> status and message of the last event that was no good news."""

    def scheduled(self, report: GangReport) -> None:
        """The Bindings of a gang's plan are through and its minimum is bound."""
        super().scheduled(report)
        self._said.pop(report.name, None)

    def _hear(self, report: GangReport, waiting_seconds: float) -> None:
        if report.status not in (GangStatus.UNSCHEDULABLE, GangStatus.INVALID) or report.awaits:
            return
        book = self._writing.state.workloads
        if book is not None and (derived := book.derived.get(report.ref)) is not None and derived.is_awaited:
            return  # nobody has done anything wrong
        status, message = self._said.get(report.name, (None, ""))
        if status is report.status and (message == report.message or wobbles(message, report.message)):
            return
        about = self._about(report.name)
        if about is None:
            return
        self._said[report.name] = report.status, report.message
        if report.status is GangStatus.INVALID:
            self._writing.announcer.invalid(about, report.message)
        else:
            of_workload = f"; {report.origin}" if report.source is GangSource.WORKLOAD else ""
            self._writing.announcer.gang_unschedulable(about, f"{report.message}{of_workload}")

    async def _look(self, key: str) -> bool:
        if self._about(key) is None:
            self._said.pop(key, None)
        return True

    def _about(self, key: str) -> ObjectReference | None:
        return self._writing.references.named_gang(key, self.source)
