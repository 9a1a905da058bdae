"""The condition of scheduling.k8s.io PodGroups: whether their scheduling requirement was ever met (KEP-4671, KEP-5832).

PodGroupInitiallyScheduled is True once minCount pods have a node (with the basic policy, one); True is final.
Until then it is False with reason Unschedulable or SchedulerError, as far as the group was tried. v1alpha2 knows the
condition as PodGroupScheduled, so readers of that version find it under both names.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from koordpy.api.groups import UpstreamPodGroup
from koordpy.cluster.pods import GangRef, GangSource, PodInfo
from koordpy.engine.announce import Announcer, group_reference
from koordpy.engine.client import ApiClient, ApiError, Unreachable
from koordpy.engine.feeds import Feeds
from koordpy.engine.patches import condition_of, condition_patch, patch_conditions, wobbles
from koordpy.engine.recorder import ObjectReference
from koordpy.planning.plan import GangReport, GangStatus

logger = logging.getLogger(__name__)

CONDITION = "PodGroupInitiallyScheduled"
OLDER_NAMES = {"v1alpha2": "PodGroupScheduled"}
"""Version -> the condition's name in it."""


@dataclass(frozen=True, slots=True)
class Said:
    """Status, reason and message of the condition."""

    status: str
    reason: str
    message: str


def conditions_of_version(version: str) -> tuple[str, ...]:
    """Names under which the condition is written to groups of a version, the one that is read back first."""
    return (CONDITION, OLDER_NAMES[version]) if version in OLDER_NAMES else (CONDITION,)


def wanted_condition(group: UpstreamPodGroup, pods: Iterable[PodInfo], report: GangReport | None) -> Said | None:
    """What the condition should say; None where it stays as it is, as it does for ever once it is True."""
    old = condition_of(group.status.conditions, CONDITION)
    if old is not None and old.status == "True":
        return None
    gang = group.spec.scheduling_policy.gang
    need = max(1, gang.min_count) if gang is not None else 1
    have = sum(pod.pod.status.phase == "Succeeded" or (pod.bound and bool(pod.pod.spec.node_name)) for pod in pods)
    if have >= need:
        return Said("True", "Scheduled", f"{have} pods have a node, {need} were needed")
    if report is None or report.status not in (GangStatus.UNSCHEDULABLE, GangStatus.INVALID):
        return None
    reason = "Unschedulable" if report.status is GangStatus.UNSCHEDULABLE else "SchedulerError"
    return Said("False", reason, report.message)


class UpstreamStatusWriter:
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
        self._client, self._feeds, self._announcer = client, feeds, announcer
        self._may_write, self._interval, self._wobble_hold = may_write, interval_seconds, wobble_hold_seconds
        self._clock, self._now = clock, now
        self._dirty: dict[str, None] = {}
        self._reports: dict[str, GangReport] = {}
        self._told: dict[str, tuple[str, Said, float]] = {}
        """Key -> uid, what we wrote last, and when: the watch may not have brought it yet."""
        feeds.listeners.gang.append(self.changed)

    def changed(self, ref: GangRef) -> None:
        """Pods or the object of a gang changed."""
        if ref.source is GangSource.UPSTREAM:
            self._dirty[ref.key] = None

    def verdict(self, report: GangReport, waiting_seconds: float) -> None:
        """What a round said about a gang that it tried."""
        if report.source is GangSource.UPSTREAM:
            self._reports[report.name] = report
            self._dirty[report.name] = None

    def scheduled(self, report: GangReport) -> None:
        """The Bindings of a gang's plan are through and its minimum is bound."""
        if report.source is GangSource.UPSTREAM and (about := self._reference(report.name)) is not None:
            self._announcer.gang_scheduled(about, report)

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            await self.flush()

    async def flush(self) -> None:
        """Writes every condition that is not as it should be."""
        if not self._may_write():
            return
        dirty, self._dirty = list(self._dirty), {}
        for key in dirty:
            await self._write(key)

    async def _write(self, key: str) -> None:
        group, resource = self._feeds.state.upstream_group(key), self._feeds.upstream_resource
        if group is None or resource is None:
            self._reports.pop(key, None)
            self._told.pop(key, None)
            return
        meta = group.metadata
        pods = self._feeds.state.members(GangRef(meta.namespace, meta.name, GangSource.UPSTREAM))
        wanted = wanted_condition(group, pods, self._reports.get(key))
        uid, said, at = self._told.get(key, ("", None, 0.0))
        there = condition_of(group.status.conditions, CONDITION)
        if said is None or uid != meta.uid:
            said, at = (Said(there.status, there.reason, there.message) if there is not None else None), float("-inf")
        if wanted is None or wanted == said or (said is not None and said.status == "True"):
            return
        if (
            said is not None
            and (said.status, said.reason) == (wanted.status, wanted.reason)
            and wobbles(said.message, wanted.message)
            and self._clock() - at < self._wobble_hold
        ):
            self._dirty[key] = None
            return
        try:
            found = await patch_conditions(
                self._client,
                resource,
                name=meta.name,
                namespace=meta.namespace,
                uid=meta.uid,
                conditions=self._bodies(group, wanted, resource.version),
            )
        except (ApiError, Unreachable) as error:
            logger.warning("PodGroup %s: its condition was not written: %s", key, error)
            self._dirty[key] = None
            return
        if not found:
            # gone, which the watch will tell; or others wrote it again and again
            self._dirty[key] = None
        else:
            self.sent += 1
            self._told[key] = (meta.uid, wanted, self._clock())
            self._announce(key, wanted)

    def _bodies(self, group: UpstreamPodGroup, wanted: Said, version: str) -> list[dict[str, Any]]:
        made = []
        for name in conditions_of_version(version):
            body = condition_patch(
                condition_of(group.status.conditions, name),
                type=name,
                status=wanted.status,
                reason=wanted.reason,
                message=wanted.message,
                observed_generation=group.metadata.generation,
                now=self._now(),
            )
            if body is not None:
                made.append(body)
        return made

    def _announce(self, key: str, wanted: Said) -> None:
        about = self._reference(key)
        if about is not None and wanted.status == "False":
            if wanted.reason == "Unschedulable":
                self._announcer.gang_unschedulable(about, wanted.message)
            else:
                self._announcer.invalid(about, wanted.message)

    def _reference(self, key: str) -> ObjectReference | None:
        group, resource = self._feeds.state.upstream_group(key), self._feeds.upstream_resource
        if group is None or resource is None:
            return None
        return group_reference(resource, group.metadata.namespace, group.metadata.name, group.metadata.uid)
