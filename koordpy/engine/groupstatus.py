"""The status of PodGroups: counts, phase and the condition Scheduled, at most once a second and only on change.

Phases are those of the coscheduling PodGroup: Pending (members are missing), Scheduling, Scheduled, Running, Finished,
Failed. After its waiting time a gang that never fitted gets a Warning event and says so in its condition; it is never
given up (gang-network.md 2.9).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from koordpy.api.groups import PodGroup
from koordpy.api.objects import Condition
from koordpy.cluster.pods import GangRef, GangSource, PodInfo, seconds
from koordpy.engine.announce import Announcer, group_reference
from koordpy.engine.client import ApiClient, ApiError, Unreachable
from koordpy.engine.feeds import Feeds
from koordpy.engine.patches import condition_of, merged_conditions, patch_status, rfc3339, wobbles
from koordpy.engine.resources import POD_GROUPS
from koordpy.planning.plan import GangReport, GangStatus
from koordpy.planning.victims.stale import CONDITION as STALE

logger = logging.getLogger(__name__)

SCHEDULED = "Scheduled"
TIMED_OUT = "WaitingTimeExceeded"
MISSING, COMPLETE = "MembersMissing", "NotStale"
TRUSTED_SECONDS = 10.0
"""How long our last write counts for more than what the watch says."""
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


class GroupStatusWriter:
    """Writes what changed, gathered over `interval_seconds`."""

    def __init__(
        self,
        client: ApiClient,
        feeds: Feeds,
        announcer: Announcer,
        *,
        may_write: Callable[[], bool],
        interval_seconds: float = 1.0,
        wobble_hold_seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.sent = 0
        self.stale: Callable[[str], str] = lambda key: ""
        """What is to be said of a gang that has lost members; empty of others."""
        self._client, self._feeds, self._announcer = client, feeds, announcer
        self._may_write, self._interval, self._wobble_hold = may_write, interval_seconds, wobble_hold_seconds
        self._clock, self._now = clock, now
        self._dirty: dict[str, None] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._sent: dict[str, tuple[str, dict[str, Any]]] = {}
        self._wrote_at: dict[str, float] = {}
        self._announced: dict[str, tuple[str, str]] = {}
        feeds.listeners.gang.append(self.changed)

    def changed(self, ref: GangRef) -> None:
        """Pods or the object of a gang changed."""
        if ref.source is GangSource.GROUP:
            self._dirty[ref.key] = None

    def verdict(self, report: GangReport, waiting_seconds: float) -> None:
        """What a round said about a gang that it tried."""
        if report.source is GangSource.GROUP and report.name in self._feeds.group_resources:
            self._verdicts[report.name] = Verdict(report, waiting_seconds)
            self._dirty[report.name] = None
            if report.status in (GangStatus.UNSCHEDULABLE, GangStatus.INVALID):
                self._announce(report.name, report.status.value, report.message)

    def scheduled(self, report: GangReport) -> None:
        """The Bindings of a gang's plan are through and its minimum is bound."""
        group = self._feeds.state.pod_group(report.name) if report.source is GangSource.GROUP else None
        if group is not None and (resource := self._feeds.group_resources.get(report.name)) is not None:
            meta = group.metadata
            self._announced.pop(report.name, None)
            self._announcer.gang_scheduled(group_reference(resource, meta.namespace, meta.name, meta.uid), report)

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            await self.flush()

    async def flush(self) -> None:
        """Writes every status that is not as it should be."""
        if not self._may_write():
            return
        self._look_at_waiting()
        dirty, self._dirty = list(self._dirty), {}
        gate = asyncio.Semaphore(16)

        async def write(key: str) -> None:
            async with gate:
                await self._write(key)

        if dirty:
            await asyncio.gather(*map(write, dirty))

    def _look_at_waiting(self) -> None:
        """Gangs whose waiting time has run out since they were last looked at."""
        now = self._now().timestamp()
        for key, verdict in list(self._verdicts.items()):
            group = self._feeds.state.pod_group(key)
            if group is None:
                for known in (self._verdicts, self._sent, self._wrote_at, self._announced):
                    known.pop(key, None)
                continue
            started, old = group.status.schedule_start_time, condition_of(group.status.conditions, SCHEDULED)
            if not started or old is None or old.status == "True" or old.reason == TIMED_OUT:
                continue
            if now - seconds(started) >= verdict.waiting_seconds:
                self._dirty[key] = None

    async def _write(self, key: str) -> None:
        group, resource = self._feeds.state.pod_group(key), self._feeds.group_resources.get(key)
        if group is None or resource is None:
            return
        meta = group.metadata
        pods = self._feeds.state.members(GangRef(meta.namespace, meta.name))
        there = seen = current_status(group)
        uid, sent = self._sent.get(key, ("", {}))
        if uid == meta.uid and self._clock() - self._wrote_at[key] < TRUSTED_SECONDS:
            # the watch may not have brought our last write yet: what it said stands
            there = sent
            group = msgspec.structs.replace(group, status=msgspec.convert(sent, type(group.status)))
        wanted = group_status(group, pods, self._verdicts.get(key), stale=self.stale(key), now=self._now())
        if wanted == there:
            if seen != wanted:
                # not our last write, or undone by an earlier one that came late: looked at until the watch shows it
                self._dirty[key] = None
            return
        if self._held(key, wanted, there):
            return
        changed = {name: value for name, value in wanted.items() if value != there.get(name)}
        try:
            found = await patch_status(self._client, resource, name=meta.name, namespace=meta.namespace, status=changed)
        except (ApiError, Unreachable) as error:
            logger.warning("PodGroup %s: its status was not written: %s", key, error)
            self._dirty[key] = None
            return
        if not found:
            # gone, which the watch will tell; or others wrote it again and again
            self._dirty[key] = None
        else:
            self.sent += 1
            self._sent[key], self._wrote_at[key] = (meta.uid, wanted), self._clock()
            said = condition_of(group.status.conditions, SCHEDULED)
            condition = next((c for c in wanted.get("conditions", ()) if c["type"] == SCHEDULED), None)
            if (
                condition is not None
                and condition["reason"] == TIMED_OUT
                and (said is None or said.reason != TIMED_OUT)
            ):
                self._announce(key, TIMED_OUT, condition["message"])

    def _held(self, key: str, wanted: dict[str, Any], sent: dict[str, Any]) -> bool:
        """Whether only counts in a message changed, and too shortly after the last write."""
        if {**wanted, "conditions": None} != {**sent, "conditions": None}:
            return False
        old = {c["type"]: c for c in sent.get("conditions", ())}
        for condition in wanted.get("conditions", ()):
            before = old.get(condition["type"])
            if before is None or (before["status"], before["reason"]) != (condition["status"], condition["reason"]):
                return False
            if before["message"] != condition["message"] and not wobbles(before["message"], condition["message"]):
                return False
        if self._clock() - self._wrote_at.get(key, float("-inf")) >= self._wobble_hold:
            return False
        self._dirty[key] = None
        return True

    def _announce(self, key: str, reason: str, message: str) -> None:
        said = self._announced.get(key)
        if said is not None and said[0] == reason and (said[1] == message or wobbles(said[1], message)):
            return
        self._announced[key] = (reason, message)
        group = self._feeds.state.pod_group(key)
        if group is not None:
            resource = self._feeds.group_resources.get(key, POD_GROUPS)
            meta = group.metadata
            reference = group_reference(resource, meta.namespace, meta.name, meta.uid)
            if reason == GangStatus.INVALID.value:
                self._announcer.invalid(reference, message)
            else:
                self._announcer.gang_unschedulable(reference, message)
