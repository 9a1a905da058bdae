"""The status of PodGroups: counts, phase and the condition Scheduled, at most once a second and only on change.

Phases are those of the coscheduling PodGroup: Pending (members are missing), Scheduling, Scheduled, Running, Finished,
Failed. After its waiting time a gang that never fitted gets a Warning event and says so in its condition; it is never
given up (gang-network.md 2.9).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from koordpy.api.groups import PodGroup
from koordpy.api.objects import Condition
from koordpy.cluster.pods import GangRef, GangSource, PodInfo, seconds
from koordpy.engine.evictions.stalegangs import StaleWatch
from koordpy.engine.status.gangwriter import GangStatusWriter
from koordpy.engine.status.patches import condition_of, merged_conditions, patch_status, rfc3339, wobbles
from koordpy.engine.status.recorder import ObjectReference
from koordpy.engine.status.writing import LastWrites, Writing
from koordpy.planning.plan import GangReport, GangStatus
from koordpy.planning.victims.stale import CONDITION as STALE

SCHEDULED = "Scheduled"
TIMED_OUT = "WaitingTimeExceeded"
MISSING, COMPLETE = "MembersMissing", "NotStale"
COUNTS = ("scheduled", "running", "succeeded", "failed")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the last round said about a gang."""

    report: GangReport
    waiting_seconds: float


def phase_of(group: PodGroup, counts: Mapping[str, int], *, members: int) -> str:
    """The phase that counts of a gang's pods amount to. `members` counts every pod that names it."""
    need = max(1, group.spec.min_member)
    running, succeeded, failed = counts["running"], counts["succeeded"], counts["failed"]
    if not members and group.status.phase in ("Finished", "Failed"):
        # its pods were cleaned up after the end
        return group.status.phase
    if succeeded >= need:
        return "Finished"
    if failed and failed + running + succeeded >= need:
        return "Failed"
    if running + succeeded >= need:
        return "Running"
    if counts["scheduled"] + succeeded >= need:
        return "Scheduled"
    return "Scheduling" if members >= need else "Pending"


def group_status(
    group: PodGroup, pods: Iterable[PodInfo], verdict: Verdict | None, *, stale: str = "", now: datetime
) -> dict[str, Any]:
    """The whole status of a PodGroup as it should be; fields that are empty are left out. `stale`: how many members a
    gang has left that has lost some of those it needs."""
    known = list(pods)
    counts = {
        "scheduled": sum(pod.bound and bool(pod.pod.spec.node_name) for pod in known),
        "running": sum(pod.pod.status.phase == "Running" for pod in known),
        "succeeded": sum(pod.pod.status.phase == "Succeeded" for pod in known),
        "failed": sum(pod.pod.status.phase == "Failed" for pod in known),
    }
    if not known and group.status.phase in ("Finished", "Failed"):
        counts = {name: getattr(group.status, name) for name in COUNTS}
    status: dict[str, Any] = {"phase": phase_of(group, counts, members=len(known)), **counts}
    started = group.status.schedule_start_time
    if started or (verdict is not None and verdict.report.status is not GangStatus.INCOMPLETE):
        status["scheduleStartTime"] = started or rfc3339(now)
    owners = {
        f"{pod.namespace}/{owner.name}" for pod in known for owner in pod.pod.metadata.owner_references if owner.name
    }
    if owners or group.status.occupied_by:
        status["occupiedBy"] = ",".join(sorted(owners)) or group.status.occupied_by
    waiting = any(not pod.finished and not pod.pod.spec.node_name for pod in known)
    condition = _condition(group, counts, verdict, status.get("scheduleStartTime", ""), waiting=waiting, now=now)
    changed = [one for one in (condition, _staleness(group, stale)) if one is not None]
    conditions = merged_conditions(group.status.conditions, changed, now=now)
    if conditions:
        status["conditions"] = conditions
    return status


def _condition(
    group: PodGroup,
    counts: Mapping[str, int],
    verdict: Verdict | None,
    started: str,
    *,
    waiting: bool,
    now: datetime,
) -> Condition | None:
    bound, need = counts["scheduled"] + counts["succeeded"], max(1, group.spec.min_member)
    old = condition_of(group.status.conditions, SCHEDULED)
    if bound >= need:
        if old is not None and old.status == "True":
            return None
        return _made(group, "True", SCHEDULED, f"{bound} members have a node, minMember is {group.spec.min_member}")
    if not waiting and (bound if old is None else old.status != "True"):
        # nobody is left to be tried, so no round says it
        text = f"{bound} of minMember {group.spec.min_member} members are bound, no other exists"
        return _made(group, "False", GangStatus.INCOMPLETE.value, text)
    if verdict is None or verdict.report.status is GangStatus.SCHEDULED:
        return None
    reason, message = verdict.report.status.value, verdict.report.message
    if bound:
        message = f"{bound} of minMember {group.spec.min_member} members are bound; {message}".rstrip("; ")
    elif started and now.timestamp() - seconds(started) >= verdict.waiting_seconds:
        reason = TIMED_OUT
        message = f"no place in {verdict.waiting_seconds:g} s; still tried; {message}".rstrip("; ")
    return _made(group, "False", reason, message)


def _staleness(group: PodGroup, text: str) -> Condition | None:
    """Since when a gang lacks members is its condition's lastTransitionTime (preemption.md 7)."""
    old = condition_of(group.status.conditions, STALE)
    if text:
        return _made(group, "True", MISSING, text, type=STALE)
    if old is None or old.status != "True":
        return None
    return _made(group, "False", COMPLETE, "", type=STALE)


def _made(group: PodGroup, status: str, reason: str, message: str, *, type: str = SCHEDULED) -> Condition:
    generation = group.metadata.generation
    return Condition(type=type, status=status, reason=reason, message=message, observed_generation=generation)


def current_status(group: PodGroup) -> dict[str, Any]:
    """The status that a PodGroup has, in the form of `group_status`."""
    there = group.status
    status: dict[str, Any] = {"phase": there.phase, **{name: getattr(there, name) for name in COUNTS}}
    if there.schedule_start_time:
        status["scheduleStartTime"] = there.schedule_start_time
    if there.occupied_by:
        status["occupiedBy"] = there.occupied_by
    if there.conditions:
        status["conditions"] = merged_conditions(there.conditions, [], now=datetime.fromtimestamp(0, UTC))
    return status


class GroupStatusWriter(GangStatusWriter):
    """Of PodGroups of scheduling.sigs.k8s.io and scheduling.x-k8s.io."""

    source = GangSource.GROUP

    def __init__(self, writing: Writing, stale: StaleWatch) -> None:
        """`stale` says what is to be said of gangs that have lost members."""
        super().__init__(writing)
        self._stale = stale
        self._verdicts: dict[str, Verdict] = {}
        self._writes: LastWrites[dict[str, Any]] = LastWrites(writing.clock)
        self._announced: dict[str, tuple[str, str]] = {}
        stale.told.append(self.changed)

    def scheduled(self, report: GangReport) -> None:
        """The Bindings of a gang's plan are through and its minimum is bound."""
        super().scheduled(report)
        if report.source is self.source:
            # what was said of it before must not be told again when it loses a member
            self._verdicts.pop(report.name, None)
            self._announced.pop(report.name, None)

    def _hear(self, report: GangReport, waiting_seconds: float) -> None:
        if self._about(report.name) is None:
            return
        self._verdicts[report.name] = Verdict(report, waiting_seconds)
        if report.status in (GangStatus.UNSCHEDULABLE, GangStatus.INVALID):
            self._announce(report.name, report.status.value, report.message)

    def _overdue(self) -> Iterable[str]:
        """Gangs whose waiting time has run out since they were last looked at."""
        now = self._writing.now().timestamp()
        for key, verdict in list(self._verdicts.items()):
            group = self._writing.state.pod_group(key)
            if group is None:
                self._forget(key)
                continue
            started, old = group.status.schedule_start_time, condition_of(group.status.conditions, SCHEDULED)
            if not started or old is None or old.status == "True" or old.reason == TIMED_OUT:
                continue
            if now - seconds(started) >= verdict.waiting_seconds:
                yield key

    def _forget(self, key: str) -> None:
        self._writes.forget(key)
        for known in (self._verdicts, self._announced):
            known.pop(key, None)

    async def _write(self, key: str) -> bool:
        group, resource = self._writing.state.pod_group(key), self._writing.feeds.groups.resources.get(key)
        if group is None or resource is None:
            self._forget(key)
            return True
        meta = group.metadata
        pods = self._writing.state.members(GangRef(meta.namespace, meta.name))
        there = seen = current_status(group)
        if (sent := self._writes.trusted(key, meta.uid)) is not None:
            there = sent
            group = msgspec.structs.replace(group, status=msgspec.convert(sent, type(group.status)))
        now = self._writing.now()
        wanted = group_status(group, pods, self._verdicts.get(key), stale=self._stale.text(key), now=now)
        if wanted == there:
            # else not our last write, or undone by an earlier one that came late: looked at until the watch shows it
            return seen == wanted
        if (
            _only_wobbles(wanted, there)
            and self._writes.age(key, meta.uid) < self._writing.settings.wobble_hold_seconds
        ):
            return False
        changed = {name: value for name, value in wanted.items() if value != there.get(name)}
        client = self._writing.client
        if not await patch_status(client, resource, name=meta.name, namespace=meta.namespace, status=changed):
            # gone, which the watch will tell; or others wrote it again and again
            return False
        self.sent += 1
        self._writes.note(key, meta.uid, wanted)
        said = condition_of(group.status.conditions, SCHEDULED)
        condition = next((c for c in wanted.get("conditions", ()) if c["type"] == SCHEDULED), None)
        if condition is not None and condition["reason"] == TIMED_OUT and (said is None or said.reason != TIMED_OUT):
            self._announce(key, TIMED_OUT, condition["message"])
        return True

    def _about(self, key: str) -> ObjectReference | None:
        return self._writing.references.pod_group(key)

    def _announce(self, key: str, reason: str, message: str) -> None:
        said, about = self._announced.get(key), self._about(key)
        if said is not None and said[0] == reason and (said[1] == message or wobbles(said[1], message)):
            return
        self._announced[key] = (reason, message)
        if about is not None and reason == GangStatus.INVALID.value:
            self._writing.announcer.invalid(about, message)
        elif about is not None:
            self._writing.announcer.gang_unschedulable(about, message)


def _only_wobbles(wanted: Mapping[str, Any], there: Mapping[str, Any]) -> bool:
    """Whether nothing but counts in messages is to be changed."""
    if {**wanted, "conditions": None} != {**there, "conditions": None}:
        return False
    old = {c["type"]: c for c in there.get("conditions", ())}
    for condition in wanted.get("conditions", ()):
        before = old.get(condition["type"])
        if before is None or (before["status"], before["reason"]) != (condition["status"], condition["reason"]):
            return False
        if before["message"] != condition["message"] and not wobbles(before["message"], condition["message"]):
            return False
    return True
