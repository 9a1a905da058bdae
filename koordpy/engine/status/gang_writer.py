"""What is told of gangs whichever object says what the gang is: events of their start, of evictions and of losses.

Gangs that no object stands for, by labels or annotations of their pods alone, are told of by events as well: to the
workload, or the controller of the pods, such as a Job, which is where their owner looks; to the oldest pod where there
is none. No right beyond those for events is needed. Such a gang has no status. The loss of members, its end and
evictions are told to the PodGroup and to the workload, because a pager shows the one and an owner looks at the other.
"""

import abc
from collections.abc import Iterable, Sequence

from koordpy.engine.engine_context import Context
from koordpy.engine.evictions.held_rounds import StaleWatch
from koordpy.engine.status.event_recorder import ObjectReference
from koordpy.engine.status.gang_census import REFUSED
from koordpy.engine.status.reconciler import Reconciler
from koordpy.engine.status.scheduler_events import (
    GANG_DEGRADED,
    GANG_EVICTED,
    GANG_REPAIRED,
    GANG_SCHEDULED,
    GANG_UNSCHEDULABLE,
    INVALID,
)
from koordpy.engine.status.status_patches import wobbles
from koordpy.plan.round_plan import Eviction, GangReport, GangStatus
from koordpy.pods.gang_refs import GangRef, GangSource


class GangWriter(Reconciler):
    """Tells of gangs from one source, and has them looked at when something changed."""

    source: GangSource

    def __init__(self, context: Context, stale: StaleWatch | None = None) -> None:
        """stale: knows the gangs that have lost members; None where another writer tells of those of this source."""
        super().__init__(context)
        self._started: dict[str, frozenset[str]] = {}
        """Gangs of whose start was told -> owners of that run."""
        self._reports: dict[str, GangReport] = {}
        """What the last round that tried a gang has said, where its status says that."""
        self._refusals: dict[str, tuple[str, str]] = {}
        """Gang -> reason and message of the last event that was no good news."""
        self._degraded: set[str] = set()
        """Gangs that were told of as degraded, and are."""
        self._losses = stale
        if stale is not None:
            stale.told.append(self._loss_changed)
            stale.half_over.append(self._grace_half_over)
        context.feeds.listeners.gang.append(self.changed)

    def changed(self, ref: GangRef) -> None:
        """Pods or the object of a gang changed, or what is to be said of it."""
        if ref.source is self.source:
            self.mark(ref.key)

    def verdict(self, report: GangReport, waiting_seconds: float) -> None:
        """What a round said about a gang that it tried."""
        if report.source is self.source:
            self._hear(report, waiting_seconds)
            self.mark(report.name)

    def scheduled(self, report: GangReport) -> None:
        """The Bindings of a gang's plan are through and its minimum is bound: told once a run."""
        if report.source is not self.source:
            return
        # what was said of it before must not be told again when it loses a member
        self._refusals.pop(report.name, None)
        if (about := self._about(report.name)) is None:
            return
        run, told = self._context.state.gangs.gang(report.ref).run.owners, self._started.get(report.name, frozenset())
        self._started[report.name] = run
        if run.isdisjoint(told):
            # with the owner, so that the start of the next Job is another event
            owner = self._context.references.owner(report.ref)
            related = owner if owner != about else None
            self._context.announcer.tell(GANG_SCHEDULED, about, scheduled_note(report), related)

    def take_over(self) -> None:
        """Of gangs that had started before this process leads, the leader before it has told."""
        state = self._context.state
        for ref, _, need in state.gangs.tallies():
            if ref.source is self.source and (state.gangs.gang(ref).runs(need) or self._was_told_as_degraded(ref)):
                self._started[ref.key] = state.gangs.gang(ref).run.owners

    def _was_told_as_degraded(self, ref: GangRef) -> bool:
        """Whether the gang's object says that members are lost which it had."""
        return False

    def _loss_changed(self, ref: GangRef) -> None:
        """A gang has lost members that it needs, or is as it should be again."""
        if ref.source is not self.source or self._losses is None:
            return
        self.changed(ref)
        found, known = self._losses.state(ref), ref.key in self._degraded
        if found is not None:
            self._degraded.add(ref.key)
            if not known and not self._was_told_as_degraded(ref):
                self._tell_both(ref, GANG_DEGRADED, found.warning(ref.key))
        elif known:
            self._degraded.discard(ref.key)
            if number := self._context.state.gangs.whole(ref):
                self._tell_both(ref, GANG_REPAIRED, f"{number} members are bound or have Succeeded")

    def _grace_half_over(self, ref: GangRef) -> None:
        if ref.source is self.source and self._losses is not None and (found := self._losses.state(ref)) is not None:
            self._tell_both(ref, GANG_DEGRADED, found.warning(ref.key, self._context.now()))

    def _tell_both(self, ref: GangRef, reason: str, note: str) -> None:
        """Tells the gang's object, and the workload of its pods where that is another."""
        about, workload = self._about(ref.key), self._context.references.workload_of(ref)
        for one in dict.fromkeys(filter(None, (about, workload))):
            other = about if one == workload else workload
            self._context.announcer.tell(reason, one, note, other if other != one else None)

    def evicted(self, ref: GangRef, victims: Sequence[Eviction]) -> None:
        """These members of a gang are being evicted by koordpy."""
        if ref.source is not self.source or self._about(ref.key) is None:
            return
        first, many = victims[0], len(victims)
        others = first.beneficiary not in (None, ref.key)
        gist = f" for {first.beneficiary}" if others else f": {first.message}"
        rules = ", ".join(dict.fromkeys(victim.rule for victim in victims))
        left = len(self._context.state.gangs.gang(ref).standing)
        if not left:
            self._started.pop(ref.key, None)
        text = f"{many} of {left + many} members evicted ({rules}){gist}"
        self._tell_both(ref, GANG_EVICTED, text)
        self._hear_evicted(ref, first.reason, text)

    def _hear_evicted(self, ref: GangRef, reason: str, text: str) -> None:
        """Keeps what was done to members of a gang, where the status says it."""
        return

    def _taken(self, keys: Iterable[str]) -> None:
        for key in self._started.keys() & set(keys):
            if not self._context.state.gangs.gang(GangRef.of(key, self.source)).of_run:
                del self._started[key]

    def _refused(self, key: str, reason: str, message: str) -> None:
        """Tells why a gang waits, unless nothing but counts differs from what was told last."""
        said, about = self._refusals.get(key), self._about(key)
        if about is None or (said and said[0] == reason and (said[1] == message or wobbles(said[1], message))):
            return
        self._refusals[key] = reason, message
        event = INVALID if reason == GangStatus.INVALID.value else GANG_UNSCHEDULABLE
        self._context.announcer.tell(event, about, message)

    def _hear(self, report: GangReport, waiting_seconds: float) -> None:
        self._reports[report.name] = report

    def _forget(self, key: str) -> None:
        super()._forget(key)
        self._reports.pop(key, None)
        self._refusals.pop(key, None)
        self._degraded.discard(key)

    @abc.abstractmethod
    def _about(self, key: str) -> ObjectReference | None:
        """The gang's object; None where it is gone."""


def scheduled_note(report: GangReport) -> str:
    """What is said of a gang that has its minimum bound."""
    place = f" in {report.domain[1] or 'the cluster'} ({report.domain[0]})" if report.domain else ""
    remark = f"; {report.remark}" if report.remark else ""
    of_workload = f": {report.origin}" if report.source is GangSource.WORKLOAD else ""
    return f"{report.bound} of {report.members} members bound{place}{of_workload}{remark}"


class NamedGangTeller(GangWriter):
    """Of gangs by name, or of those that follow from workloads."""

    def __init__(self, context: Context, stale: StaleWatch, source: GangSource = GangSource.NAMED) -> None:
        self.source = source
        super().__init__(context, stale)

    def _hear(self, report: GangReport, waiting_seconds: float) -> None:
        if report.status not in REFUSED or report.awaits:
            return
        derived = self._context.state.gangs.derived.get(report.ref)
        if derived is not None and derived.is_awaited:
            return  # nobody has done anything wrong
        waits = report.status is GangStatus.UNSCHEDULABLE
        of_workload = f"; {report.origin}" if waits and report.source is GangSource.WORKLOAD else ""
        self._refused(report.name, report.status.value, f"{report.message}{of_workload}")

    async def _look(self, key: str) -> bool:
        if self._about(key) is None:
            self._forget(key)
        return True

    def _about(self, key: str) -> ObjectReference | None:
        return self._context.references.named_gang(key, self.source)
