"""The condition of scheduling.k8s.io PodGroups: whether their scheduling requirement was ever met (KEP-4671, KEP-5832).

PodGroupInitiallyScheduled is True once minCount pods have a node (with the basic policy, one); True is final.
Until then it is False with reason Unschedulable or SchedulerError, as far as the group was tried. v1alpha2 knows the
condition as PodGroupScheduled, so readers of that version find it under both names.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from koordpy.api.groups import UpstreamPodGroup
from koordpy.cluster.pods import GangRef, GangSource, PodInfo
from koordpy.engine.status.gangwriter import GangStatusWriter
from koordpy.engine.status.patches import condition_of, condition_patch, patch_conditions, wobbles
from koordpy.engine.status.recorder import ObjectReference
from koordpy.engine.status.writing import LastWrites, Writing
from koordpy.planning.plan import GangReport, GangStatus

CONDITION = "PodGroupInitiallyScheduled"
OLDER_NAMES = {"v1alpha2": "PodGroupScheduled"}
"""Version -> the condition's name in it."""


@dataclass(frozen=True, slots=True)
class UpstreamCondition:
    """Status, reason and message of the condition."""

    status: str
    reason: str
    message: str


def conditions_of_version(version: str) -> tuple[str, ...]:
    """Names under which the condition is written to groups of a version, the one that is read back first."""
    return (CONDITION, OLDER_NAMES[version]) if version in OLDER_NAMES else (CONDITION,)


def wanted_condition(
    group: UpstreamPodGroup, pods: Iterable[PodInfo], report: GangReport | None
) -> UpstreamCondition | None:
    """What the condition should say; None where it stays as it is, as it does for ever once it is True."""
    old = condition_of(group.status.conditions, CONDITION)
    if old is not None and old.status == "True":
        return None
    gang = group.spec.scheduling_policy.gang
    need = max(1, gang.min_count) if gang is not None else 1
    have = sum(pod.pod.status.phase == "Succeeded" or (pod.bound and bool(pod.pod.spec.node_name)) for pod in pods)
    if have >= need:
        return UpstreamCondition("True", "Scheduled", f"{have} pods have a node, {need} were needed")
    if report is None or report.status not in (GangStatus.UNSCHEDULABLE, GangStatus.INVALID):
        return None
    reason = "Unschedulable" if report.status is GangStatus.UNSCHEDULABLE else "SchedulerError"
    return UpstreamCondition("False", reason, report.message)


class UpstreamStatusWriter(GangStatusWriter):
    """Of PodGroups of scheduling.k8s.io."""

    source = GangSource.UPSTREAM
    statuses = "podgroups.scheduling.k8s.io/status"

    def __init__(self, writing: Writing) -> None:
        super().__init__(writing)
        self._reports: dict[str, GangReport] = {}
        self._writes: LastWrites[UpstreamCondition] = LastWrites(writing.clock)

    def _hear(self, report: GangReport, waiting_seconds: float) -> None:
        self._reports[report.name] = report

    async def _write(self, key: str) -> bool:
        group, resource = self._writing.state.upstream_group(key), self._writing.feeds.upstream_resource
        if group is None or resource is None:
            self._reports.pop(key, None)
            self._writes.forget(key)
            return True
        meta = group.metadata
        pods = self._writing.state.members(GangRef(meta.namespace, meta.name, GangSource.UPSTREAM))
        wanted = wanted_condition(group, pods, self._reports.get(key))
        there = condition_of(group.status.conditions, CONDITION)
        said = self._writes.last(key, meta.uid)
        if said is None and there is not None:
            said = UpstreamCondition(there.status, there.reason, there.message)
        if wanted is None or wanted == said or (said is not None and said.status == "True"):
            return True
        if (
            said is not None
            and (said.status, said.reason) == (wanted.status, wanted.reason)
            and wobbles(said.message, wanted.message)
            and self._writes.age(key, meta.uid) < self._writing.settings.wobble_hold_seconds
        ):
            return False
        found = await patch_conditions(
            self._writing.client,
            resource,
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            conditions=self._bodies(group, wanted, resource.version),
        )
        if not found:
            # gone, which the watch will tell; or others wrote it again and again
            return False
        self.sent += 1
        self._writes.note(key, meta.uid, wanted)
        self._announce(key, wanted)
        return True

    def _bodies(self, group: UpstreamPodGroup, wanted: UpstreamCondition, version: str) -> list[dict[str, Any]]:
        made = []
        for name in conditions_of_version(version):
            body = condition_patch(
                condition_of(group.status.conditions, name),
                type=name,
                status=wanted.status,
                reason=wanted.reason,
                message=wanted.message,
                observed_generation=group.metadata.generation,
                now=self._writing.now(),
            )
            if body is not None:
                made.append(body)
        return made

    def _announce(self, key: str, wanted: UpstreamCondition) -> None:
        about = self._about(key)
        if about is not None and wanted.status == "False":
            if wanted.reason != "Unschedulable":
                self._writing.announcer.invalid(about, wanted.message)
            elif not self._reports[key].awaits:
                self._writing.announcer.gang_unschedulable(about, wanted.message)

    def _about(self, key: str) -> ObjectReference | None:
        return self._writing.references.upstream_group(key)
