# SPDX-License-Identifier: Apache-2.0
"""Writes the statuses of coscheduling PodGroups, at most once a second and only on change, and emits their events.

The status itself is rendered in `group_status.py`. A PodGroup is ignored if all its pods have other scheduler names.
"""

from collections.abc import Iterable
from math import inf

from koordpy.api.objects import Condition, condition_of
from koordpy.api.pod_groups import PodGroup, PodGroupStatus
from koordpy.api.times import seconds
from koordpy.cache.gang_history import DEGRADED, SCHEDULED, STALE
from koordpy.cache.gang_members import Members
from koordpy.engine.client.api_resources import Resource
from koordpy.engine.engine_context import Context
from koordpy.engine.evictions.timed_rounds import StaleWatch
from koordpy.engine.status.event_recorder import ObjectReference
from koordpy.engine.status.gang_census import REFUSED
from koordpy.engine.status.gang_writer import GangWriter
from koordpy.engine.status.group_status import (
    REPAIRED,
    TIMED_OUT,
    differ_in_numbers_only,
    group_status,
    made_again_until,
    waits_since,
)
from koordpy.engine.status.reconciler import WholeStatusWriter
from koordpy.plan.round_plan import GangReport
from koordpy.pods.gang_refs import GangRef, GangSource
from koordpy.pods.object_book import object_key


class GroupStatusWriter(GangWriter, WholeStatusWriter[PodGroup, PodGroupStatus]):
    """Writer for PodGroups of scheduling.sigs.k8s.io and scheduling.x-k8s.io."""

    source = GangSource.GROUP

    def __init__(self, context: Context, stale: StaleWatch) -> None:
        """stale: state of gangs that have lost members."""
        super().__init__(context, stale)
        self._stale = stale
        self._verdicts: dict[str, tuple[GangReport, float]] = {}
        """Gang -> its report of the last round, and its waiting time in seconds."""
        self._tried: set[str] = set()
        """Gangs that this process has tried in a round."""
        self._evicted: dict[str, tuple[str, str]] = {}
        """Gang -> reason and message of the last eviction of members by koordpy."""
        self._made_again: dict[str, float] = {}
        """Gang with failed pods -> time until which controllers may recreate them, in seconds since 1970."""

    async def flush(self) -> None:
        """Processes marked PodGroups. Updates the state of stale gangs first, so that a loss of members causes one
        write and not two."""
        if self._context.may_write():
            self._stale.look()
        await super().flush()

    def scheduled(self, report: GangReport) -> None:
        """Called when a gang's Bindings have ended and its minimum is bound. An earlier refusal is dropped."""
        super().scheduled(report)
        if report.source is self.source:
            self._tried.add(report.name)
            self._verdicts.pop(report.name, None)

    def _record_eviction(self, ref: GangRef, reason: str, text: str) -> None:
        """Records an eviction for condition DisruptionTarget, if the gang has lost its minimum."""
        group, gang = self._context.state.gangs.groups.get(ref.key), self._context.state.gangs.gang(ref)
        if group is not None and len(gang.live) + gang.succeeded < group.spec.min_member:
            self._evicted[ref.key] = reason, text
            self.mark(ref.key)

    def _was_reported_degraded(self, ref: GangRef) -> bool:
        """Returns True if condition Stale or Degraded of the PodGroup is True."""
        group = self._context.state.gangs.groups.get(ref.key)
        conditions = group.status.conditions if group is not None else ()
        return any(one.type in (STALE, DEGRADED) and one.status == "True" for one in conditions)

    def _record_report(self, report: GangReport, waiting_seconds: float) -> None:
        """Stores the report of a round with the gang's waiting time, and emits the event of a refusal."""
        if self._about(report.name) is None:
            return
        self._tried.add(report.name)
        self._verdicts[report.name] = report, waiting_seconds
        if report.status in REFUSED and not report.awaits:
            self._refused(report.name, report.status.value, report.message)

    def _overdue(self) -> Iterable[str]:
        """Returns gangs with a status that changes only by time: their waiting time has ended, or the time in which
        failed pods may be recreated."""
        now = self._context.now()
        for key, until in list(self._made_again.items()):
            if now >= until:
                del self._made_again[key]
                yield key
        for key, (_, waiting_seconds) in list(self._verdicts.items()):
            group = self._context.state.gangs.groups.get(key)
            if group is None:
                self._forget(key)
                continue
            started, old = group.status.schedule_start_time, condition_of(group.status.conditions, SCHEDULED)
            if not started or old is None or old.status == "True" or old.reason == TIMED_OUT:
                continue
            if now - seconds(started) < waiting_seconds:
                continue
            if now - waits_since(started, self._gang(group)) >= waiting_seconds:
                yield key

    def _forget(self, key: str) -> None:
        super()._forget(key)
        self._tried.discard(key)
        for known in (self._verdicts, self._evicted, self._made_again):
            known.pop(key, None)

    def _gang(self, group: PodGroup) -> Members:
        return self._context.state.gangs.gang(GangRef(group.metadata.namespace, group.metadata.name))

    def _is_ours(self, group: PodGroup) -> bool:
        """Returns True if koordpy schedules members of the group, or has done so."""
        gang, names = self._gang(group), self._context.state.scheduler_names
        if gang.pods:
            return any(pod.pod.spec.scheduler_name in names for pod in gang.pods)
        return object_key(group) in self._tried or condition_of(group.status.conditions, SCHEDULED) is not None

    def _find(self, key: str) -> tuple[PodGroup, Resource] | None:
        group, resource = self._context.state.gangs.groups.get(key), self._context.feeds.groups.resources.get(key)
        return (group, resource) if group is not None and resource is not None and self._is_ours(group) else None

    def _render(self, key: str, obj: PodGroup, there: PodGroupStatus) -> PodGroupStatus:
        """Returns the wanted status. obj: the PodGroup with its current status."""
        gang, now = self._gang(obj), self._context.now()
        if (until := made_again_until(gang)) > now:
            self._made_again[key] = until
        evicted = self._evicted.get(key, ("", ""))
        if len(gang.live) + gang.succeeded >= obj.spec.min_member:
            # the gang is complete again: this eviction is not the cause of a later loss of members
            self._evicted.pop(key, None)
        report, waits = self._verdicts.get(key, (None, inf))
        stale, repair = self._stale.text(key), self._stale.repair(GangRef.from_key(key))
        return group_status(obj, gang, report, waits, stale=stale, repair=repair, evicted=evicted, now=now)

    _differ_in_numbers_only = staticmethod(differ_in_numbers_only)

    def _written(self, key: str, said: PodGroupStatus, wanted: PodGroupStatus) -> None:
        """Emits the event for the end of the waiting time, because no round reports it, and for the repair of a gang
        that only an earlier leader has seen degraded."""
        reasons = [one.reason if one is not None else "" for one in _conditions(DEGRADED, said, wanted)]
        if reasons[0] not in ("", REPAIRED) and reasons[1] == REPAIRED and key not in self._degraded:
            self._report_repaired(GangRef.from_key(key))
        before, after = _conditions(SCHEDULED, said, wanted)
        if after is not None and after.reason == TIMED_OUT and (before is None or before.reason != TIMED_OUT):
            self._refused(key, TIMED_OUT, after.message)

    def _about(self, key: str) -> ObjectReference | None:
        return self._context.references.pod_group(key)


def _conditions(type: str, *statuses: PodGroupStatus) -> list[Condition | None]:
    """Returns the condition of a type in each status; None without it."""
    return [condition_of(status.conditions, type) for status in statuses]
