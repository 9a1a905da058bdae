# SPDX-License-Identifier: Apache-2.0
"""Emits the events of gangs: start, refusal, evictions and losses of members. Base class of their status writers.

The event is about the PodGroup of the gang. For a gang without a PodGroup it is about the first of these that exists:
its workload, the controller of its pods (such as a Job), its oldest pod. Such a gang has no status, and koordpy needs
no permission to write the workload. Losses of members, the end of a loss, and evictions are reported on both the
PodGroup and the workload, because alerts show PodGroups, and users look at their workloads.
"""

import abc
from collections.abc import Iterable, Sequence

from koordpy.api.counted_nouns import count_noun
from koordpy.engine.engine_context import Context
from koordpy.engine.evictions.timed_rounds import StaleWatch
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
from koordpy.engine.status.status_patches import differs_in_numbers
from koordpy.plan.gang_repair import bound_text
from koordpy.plan.round_plan import Eviction, GangReport, GangStatus
from koordpy.pods.gang_refs import GangRef, GangSource
from koordpy.preemption.selection.preemption_names import RuleName


class GangWriter(Reconciler):
    """Reports gangs of one source, by `namespace/name`, and marks them for an update of their status."""

    source: GangSource
    """Source of the gangs that this writer reports; it ignores all other gangs."""

    def __init__(self, context: Context, stale: StaleWatch | None = None) -> None:
        """stale: state of gangs that have lost members; None if another writer reports losses of this source."""
        super().__init__(context)
        self._started: dict[str, frozenset[str]] = {}
        """Gang with a reported start -> owners of its pods at that start."""
        self._reports: dict[str, GangReport] = {}
        """Gang -> its report of the last round, if its status depends on it."""
        self._refusals: dict[str, tuple[str, str]] = {}
        """Gang -> reason and message of the last warning event."""
        self._degraded: set[str] = set()
        """Gangs that have lost members, and for which this was reported."""
        self._moving: set[str] = set()
        """Degraded gangs that were evicted to move as a whole, until they have their minimum again."""
        self._repaired: set[str] = set()
        """Gangs with a reported repair, until they are degraded again."""
        self._losses = stale
        if stale is not None:
            stale.changed_listeners.append(self._loss_changed)
            stale.half_over_listeners.append(self._grace_half_over)
        context.feeds.listeners.gang.append(self.changed)

    def changed(self, ref: GangRef) -> None:
        """Called when pods or the object of a gang changed, or when its stale state changed."""
        if ref.source is self.source:
            self.mark(ref.key)

    def verdict(self, report: GangReport, waiting_seconds: float) -> None:
        """Called with the report of a round that tried a gang. waiting_seconds: the gang's waiting time; after it the
        status has the reason WaitingTimeExceeded."""
        if report.source is self.source:
            self._record_report(report, waiting_seconds)
            self.mark(report.name)

    def scheduled(self, report: GangReport) -> None:
        """Called when a gang's Bindings have ended and its minimum is bound. The event is emitted once per run."""
        if report.source is not self.source:
            return
        # an earlier refusal must not be reported again when the gang loses a member
        self._refusals.pop(report.name, None)
        if report.name in self._moving:
            self._report_repaired(report.ref)
        if (about := self._about(report.name)) is None:
            return
        run, told = self._context.state.gangs.gang(report.ref).run.owners, self._started.get(report.name, frozenset())
        self._started[report.name] = run
        if run.isdisjoint(told):
            # the event names the owner as related object: so the start of the next Job is not counted in this series
            owner = self._context.references.owner(report.ref)
            related = owner if owner != about else None
            self._context.announcer.tell(GANG_SCHEDULED, about, scheduled_note(report), related)

    def take_over(self) -> None:
        """Called when this process becomes the leader. Marks running gangs as reported, because the previous leader has
        reported them."""
        state = self._context.state
        for ref, _, need in state.gangs.tallies():
            if ref.source is self.source and (state.gangs.gang(ref).runs(need) or self._was_reported_degraded(ref)):
                self._started[ref.key] = state.gangs.gang(ref).run.owners

    def _was_reported_degraded(self, ref: GangRef) -> bool:
        """Returns True if the status of the gang's object says that it has lost members."""
        return False

    def _loss_changed(self, ref: GangRef) -> None:
        """Called when a gang has lost members that it needs, or is complete again."""
        if ref.source is not self.source or self._losses is None:
            return
        self.changed(ref)
        found, known = self._losses.state(ref) or self._losses.repair(ref), ref.key in self._degraded
        if found is not None:
            self._degraded.add(ref.key)
            self._repaired.discard(ref.key)
            if not known and not self._was_reported_degraded(ref):
                self._report_to_both(ref, GANG_DEGRADED, found.warning(ref.key))
        elif known and not self._report_repaired(ref) and ref.key not in self._moving:
            self._degraded.discard(ref.key)

    def _report_repaired(self, ref: GangRef) -> bool:
        """Emits the event of a repair, once; returns False if the gang has not its minimum."""
        number = self._context.state.gangs.whole(ref)
        if number and ref.key not in self._repaired:
            self._repaired.add(ref.key)
            self._degraded.discard(ref.key)
            self._moving.discard(ref.key)
            self._report_to_both(ref, GANG_REPAIRED, bound_text(number))
        return bool(number)

    def _grace_half_over(self, ref: GangRef) -> None:
        """Called when half of a stale gang's grace period is over: warns again, with the remaining time."""
        if ref.source is self.source and self._losses is not None and (found := self._losses.state(ref)) is not None:
            self._report_to_both(ref, GANG_DEGRADED, found.warning(ref.key, self._context.now()))

    def _report_to_both(self, ref: GangRef, reason: str, note: str) -> None:
        """Emits an event for the gang's object, and for the workload of its pods if that is a different object."""
        about, workload = self._about(ref.key), self._context.references.workload_of(ref)
        for one in dict.fromkeys(filter(None, (about, workload))):
            other = about if one == workload else workload
            self._context.announcer.tell(reason, one, note, other if other != one else None)

    def evicted(self, ref: GangRef, victims: Sequence[Eviction]) -> None:
        """Called with the members of a gang that one plan has evicted."""
        if ref.source is not self.source or self._about(ref.key) is None:
            return
        first, many = victims[0], len(victims)
        others = first.beneficiary not in (None, ref.key)
        gist = f" for {first.beneficiary}" if others else f": {first.message}"
        rules = ", ".join(dict.fromkeys(victim.rule for victim in victims))
        left = len(self._context.state.gangs.gang(ref).live)
        if not left:
            self._started.pop(ref.key, None)
        if first.rule == RuleName.REPAIR and ref.key in self._degraded:
            self._moving.add(ref.key)
        were = "was" if many == 1 else "were"
        text = f"{many} of {count_noun(left + many, 'member')} {were} evicted by rule {rules}{gist}"
        self._report_to_both(ref, GANG_EVICTED, text)
        self._record_eviction(ref, first.reason, text)

    def _record_eviction(self, ref: GangRef, reason: str, text: str) -> None:
        """Records an eviction of members, for writers that show it in the status."""
        return

    def _begins(self, keys: Iterable[str]) -> None:
        """Forgets the start of gangs that have no bound member any more, so that their next start is reported."""
        for key in self._started.keys() & set(keys):
            if not self._context.state.gangs.gang(GangRef.from_key(key, self.source)).present_in_run:
                del self._started[key]

    def _refused(self, key: str, reason: str, message: str) -> None:
        """Emits an event with the reason why a gang waits, unless only numbers differ from the last event."""
        said, about = self._refusals.get(key), self._about(key)
        if about is None or (
            said and said[0] == reason and (said[1] == message or differs_in_numbers(said[1], message))
        ):
            return
        self._refusals[key] = reason, message
        event = INVALID if reason == GangStatus.INVALID.value else GANG_UNSCHEDULABLE
        self._context.announcer.tell(event, about, message)

    def _record_report(self, report: GangReport, waiting_seconds: float) -> None:
        """Stores the report of a round, from which the status is rendered. Arguments as in `verdict`."""
        self._reports[report.name] = report

    def _forget(self, key: str) -> None:
        super()._forget(key)
        self._reports.pop(key, None)
        self._refusals.pop(key, None)
        for known in (self._degraded, self._moving, self._repaired):
            known.discard(key)

    @abc.abstractmethod
    def _about(self, key: str) -> ObjectReference | None:
        """Returns the gang's object; None if it does not exist."""


def scheduled_note(report: GangReport) -> str:
    """Returns the event text of a gang with its minimum bound."""
    domain = report.domain
    place = f" in {f'{domain[0]} {domain[1]}' if domain[1] else 'the cluster'}" if domain else ""
    remark = f"; {report.remark}" if report.remark else ""
    of_workload = f": {report.origin}" if report.source is GangSource.WORKLOAD else ""
    return f"{report.bound} of {report.members} members bound{place}{of_workload}{remark}"


class NamedGangTeller(GangWriter):
    """Reports gangs that are defined by name in pod labels, or derived from workloads."""

    def __init__(self, context: Context, stale: StaleWatch, source: GangSource = GangSource.NAMED) -> None:
        """source: NAMED or WORKLOAD."""
        self.source = source
        super().__init__(context, stale)

    def _record_report(self, report: GangReport, waiting_seconds: float) -> None:
        """Emits an event for a refusal, because there is no status to write."""
        if report.status not in REFUSED or report.awaits:
            return
        derived = self._context.state.gangs.derived.get(report.ref)
        if derived is not None and derived.is_awaited:
            return  # not worth an event: the workload's controller is still creating pods
        waits = report.status is not GangStatus.INVALID
        of_workload = f"; {report.origin}" if waits and report.source is GangSource.WORKLOAD else ""
        self._refused(report.name, report.status.value, f"{report.message}{of_workload}")

    async def _look(self, key: str) -> bool:
        if self._about(key) is None:
            self._forget(key)
        return True

    def _about(self, key: str) -> ObjectReference | None:
        return self._context.references.named_gang(key, self.source)
