# SPDX-License-Identifier: Apache-2.0
"""Writes the status of Volcano PodGroups: phase, counts, and a condition on the minimum.

Volcano's controllers read this status, which Volcano's scheduler would otherwise write. It is written to groups with at
least one pod of our scheduler names. With `gangs.volcano: take`, groups without a phase or with phase Pending get the
phase Inqueue, because some controllers create pods only after that. A change by another writer remains until koordpy
has another status to write. Source: workloads.md 9.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from koordpy.api.counted_nouns import count_noun
from koordpy.api.owner_objects import WorkloadObject, read_part
from koordpy.api.times import rfc3339
from koordpy.engine.client.api_resources import VOLCANO_GROUPS, Resource
from koordpy.engine.engine_context import Context
from koordpy.engine.status.event_recorder import ObjectReference
from koordpy.engine.status.gang_writer import GangWriter
from koordpy.engine.status.reconciler import StatusWriter
from koordpy.engine.status.status_patches import differs_in_numbers, patch_status
from koordpy.plan.round_plan import GangReport, GangStatus
from koordpy.pods.gang_refs import GangRef, GangSource
from koordpy.workloads.workload_runs import WorkloadPod

# phases, types of conditions, and reasons, in Volcano's words
PENDING, INQUEUE, RUNNING, COMPLETED = "Pending", "Inqueue", "Running", "Completed"
SCHEDULED, UNSCHEDULABLE = "Scheduled", "Unschedulable"
OURS = (SCHEDULED, UNSCHEDULABLE)
"""Types of the conditions that are written; at most one of them is True."""
TOO_FEW, NO_ROOM = "NotEnoughPods", "NotEnoughResources"
COUNTS = ("running", "succeeded", "failed")
"""Fields of the status with numbers of pods."""


@dataclass(frozen=True, slots=True)
class VolcanoStatus:
    """The written parts of a status. reason, message: of the condition that is True; empty if none is."""

    phase: str
    """Phase of the group; empty if the status has none yet."""
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    condition: str = ""
    """Type of the condition that is True: Scheduled or Unschedulable; empty for none."""
    reason: str = ""
    message: str = ""


def wanted_status(least: int, pods: Sequence[WorkloadPod], report: GangReport | None) -> VolcanoStatus:
    """Returns the wanted status of a group.

    least: minMember of the group. pods: its pods, at least one. report: of the last round that tried the gang; None if
    no round has tried it, or if it was scheduled since.
    """
    least = max(1, least)
    succeeded, failed = sum(one.succeeded for one in pods), sum(one.failed for one in pods)
    running = sum(one.bound and not one.leaving and one.pod.status.phase == "Running" for one in pods)
    bound = sum(one.bound and not one.leaving and bool(one.pod.spec.node_name) for one in pods)
    counts = running, succeeded, failed
    if succeeded == len(pods):
        return VolcanoStatus(COMPLETED, *counts, SCHEDULED, SCHEDULED, f"all pods have Succeeded ({succeeded})")
    if bound and bound + succeeded >= least:
        done = f", {succeeded} Succeeded" if succeeded else ""
        return VolcanoStatus(
            RUNNING, *counts, SCHEDULED, SCHEDULED, f"{count_noun(bound, 'pod')} bound{done}, minMember is {least}"
        )
    if report is None or report.status is GangStatus.SCHEDULED:
        return VolcanoStatus(INQUEUE, *counts)
    reason = TOO_FEW if report.status is GangStatus.INCOMPLETE else NO_ROOM
    return VolcanoStatus(INQUEUE, *counts, UNSCHEDULABLE, reason, report.message)


def current_status(group: WorkloadObject) -> tuple[VolcanoStatus, list[Mapping[str, Any]]]:
    """Returns the written parts of a group's status, and all its conditions. Unreadable parts are left out."""
    said = read_part(group.status)
    listed = said.get("conditions")
    conditions = [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
    true = next((c for c in conditions if c.get("type") in OURS and c.get("status") == "True"), {})
    running, succeeded, failed = (n if isinstance(n := said.get(name), int) else 0 for name in COUNTS)
    told = (str(true.get(name, "")) for name in ("type", "reason", "message"))
    phase = said.get("phase")
    return VolcanoStatus(phase if isinstance(phase, str) else "", running, succeeded, failed, *told), conditions


def patch_of(
    wanted: VolcanoStatus, there: VolcanoStatus | None, conditions: Sequence[Mapping[str, Any]], now: float
) -> dict[str, Any]:
    """Returns the changed fields of a status as a merge patch; empty if nothing changed. now: seconds since 1970.

    there: None if the current status is not known. conditions: all current conditions. The patch contains those of
    other writers unchanged, because a merge patch replaces whole lists.
    """
    patch: dict[str, Any] = {
        name: getattr(wanted, name)
        for name in ("phase", *COUNTS)
        if there is None or getattr(wanted, name) != getattr(there, name)
    }
    told = (wanted.condition, wanted.reason, wanted.message)
    if wanted.condition and (there is None or told != (there.condition, there.reason, there.message)):
        made = dict(zip(("type", "reason", "message"), told, strict=True)) | {"status": "True"}
        was = next((one for one in conditions if one.get("type") == wanted.condition), {})
        since = was.get("lastTransitionTime") if was.get("status") == "True" else None
        patch["conditions"] = [_set_false(one, now) for one in conditions if one.get("type") != wanted.condition]
        patch["conditions"].append(made | {"lastTransitionTime": since or rfc3339(now)})
    return patch


def _set_false(condition: Mapping[str, Any], now: float) -> Mapping[str, Any]:
    """Returns the condition with status False if its type is one of `OURS`, else unchanged.

    Called for the conditions that are not set to True, so that at most one condition of `OURS` is True.
    """
    if condition.get("type") not in OURS or condition.get("status") == "False":
        return condition
    return {**condition, "status": "False", "lastTransitionTime": rfc3339(now)}


class VolcanoStatusWriter(GangWriter, StatusWriter[WorkloadObject, VolcanoStatus]):
    """Writes Volcano PodGroups, by `namespace/name`. Their events are emitted by `NamedGangTeller`."""

    source = GangSource.WORKLOAD
    keeps_foreign_changes = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        context.feeds.listeners.volcano_group.append(self.mark)

    def changed(self, ref: GangRef) -> None:
        """Marks the PodGroup of a gang that changed."""
        if ref.source is self.source and (key := _group_of(ref)) in self._context.feeds.volcano.groups:
            self.mark(key)

    def verdict(self, report: GangReport, waiting_seconds: float) -> None:
        """Records the report of a round, if the gang is that of a Volcano PodGroup."""
        derived = self._context.state.gangs.derived.get(report.ref)
        if derived is not None and not derived.by_workload:
            key = _group_of(report.ref)
            self._reports[key] = report
            self.mark(key)

    def take_over(self) -> None:
        """Called when this process becomes the leader: all groups are processed."""
        for key in self._context.feeds.volcano.groups:
            self.mark(key)

    def _find(self, key: str) -> tuple[WorkloadObject, Resource] | None:
        group, resource = self._context.feeds.volcano.groups.get(key), self._context.feeds.served.get(VOLCANO_GROUPS)
        return (group, resource) if group is not None and resource is not None else None

    def _read(self, obj: WorkloadObject) -> VolcanoStatus:
        return current_status(obj)[0]

    def _render(self, key: str, obj: WorkloadObject, there: VolcanoStatus) -> VolcanoStatus | None:
        """Returns the wanted status; None if the group is not ours to write."""
        book = self._context.state.workloads
        found = book.volcano_group(key) if book is not None else None
        group, pods = found if found is not None else (None, [])
        names = self._context.state.scheduler_names
        if group is not None and any(one.pod.spec.scheduler_name in names for one in pods):
            return wanted_status(group.min_member, pods, self._reports.get(key))
        if pods:
            return None
        if self._writes.last(key, obj.metadata.uid)[0] is not None and there.phase != COMPLETED:
            return VolcanoStatus(INQUEUE, condition=there.condition, reason=there.reason, message=there.message)
        if self._context.settings.config.gangs.volcano == "take" and there.phase in ("", PENDING):
            return VolcanoStatus(INQUEUE, *(getattr(there, name) for name in COUNTS))
        return None

    def _differ_in_numbers_only(self, said: VolcanoStatus, wanted: VolcanoStatus) -> bool:
        same = replace(said, message="") == replace(wanted, message="")
        return same and differs_in_numbers(said.message, wanted.message)

    async def _send(
        self, obj: WorkloadObject, resource: Resource, wanted: VolcanoStatus, there: VolcanoStatus | None
    ) -> bool:
        patch = patch_of(wanted, there, current_status(obj)[1], self._context.now())
        return not patch or await patch_status(self._context.client, resource, obj.metadata, patch)

    def _written(self, key: str, said: VolcanoStatus, wanted: VolcanoStatus) -> None:
        if wanted.condition == SCHEDULED:
            self._reports.pop(key, None)  # an old refusal must not be written again when the gang loses a member

    def _about(self, key: str) -> ObjectReference | None:
        """Returns None, because events of derived gangs are emitted by `NamedGangTeller`."""
        return None


def _group_of(ref: GangRef) -> str:
    """Returns `namespace/name` of the PodGroup of a gang. The gang may be the pods of one task of the PodGroup."""
    return f"{ref.namespace}/{ref.name.partition(':')[0]}"
