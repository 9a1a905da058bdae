# SPDX-License-Identifier: Apache-2.0
"""Writes the condition of scheduling.k8s.io PodGroups, which says whether their minimum was ever scheduled.

PodGroupInitiallyScheduled becomes True when minCount pods have a node (with the basic policy: one pod), and stays True.
Before that, once a round has tried the group, it is False with the reason of the gang's pending pods (repair.md 1.2).
v1alpha2 names the condition PodGroupScheduled, so groups of that version get the condition under both names. A
controller may create such a PodGroup by default, for pods that koordpy counts in another gang; then the condition shows
the state of that gang. Sources: KEP-4671, KEP-5832.
"""

from typing import Any

from msgspec.structs import replace

from koordpy.api.counted_nouns import count_noun
from koordpy.api.objects import Condition, condition_of
from koordpy.api.pod_groups import UpstreamPodGroup
from koordpy.cache.gang_members import Members
from koordpy.engine.client.api_resources import UPSTREAM_POD_GROUPS, Resource
from koordpy.engine.status.event_recorder import ObjectReference
from koordpy.engine.status.gang_census import REFUSED
from koordpy.engine.status.gang_writer import GangWriter
from koordpy.engine.status.reconciler import StatusWriter
from koordpy.engine.status.scheduler_events import GANG_UNSCHEDULABLE, INVALID
from koordpy.engine.status.status_patches import condition_patch, differs_in_numbers, patch_status
from koordpy.plan.pending_reason import Reason
from koordpy.plan.round_plan import GangReport, GangStatus
from koordpy.pods.gang_refs import GangRef, GangSource

CONDITION = "PodGroupInitiallyScheduled"
OLDER_NAMES = {"v1alpha2": "PodGroupScheduled"}
"""API version -> the condition's name in it."""


def conditions_of_version(version: str) -> tuple[str, ...]:
    """Returns the names under which the condition is written to groups of a version; the first one is read back."""
    return (CONDITION, OLDER_NAMES[version]) if version in OLDER_NAMES else (CONDITION,)


def condition(status: str, reason: str, message: str) -> Condition:
    """Returns the condition with the fields that are compared."""
    return Condition(type=CONDITION, status=status, reason=reason, message=message)


def wanted_condition(
    group: UpstreamPodGroup, members: Members, report: GangReport | None, minimum: int = 0
) -> Condition | None:
    """Returns the wanted condition; None if it stays as it is. A condition that is True stays.

    members, report: of the gang that has the pods of the group. minimum: minMember of that gang, used if the group was
    created by default and so states no minimum.
    """
    old = condition_of(group.status.conditions, CONDITION)
    if old is not None and old.status == "True":
        return None
    gang = group.spec.scheduling_policy.gang
    need = max(1, gang.min_count if gang is not None else minimum)
    have = members.succeeded + sum(bool(pod.pod.spec.node_name) for pod in members.bound)
    if have >= need:
        return condition("True", "Scheduled", f"{count_noun(have, 'pod')} bound, {need} required")
    if report is None or report.status not in REFUSED:
        return None
    wrong = Reason.SCHEDULER_ERROR if report.status is GangStatus.INVALID else Reason.UNSCHEDULABLE
    return condition("False", str(report.reason or wrong), report.message)


class UpstreamStatusWriter(GangWriter, StatusWriter[UpstreamPodGroup, Condition | None]):
    """Writes PodGroups of scheduling.k8s.io."""

    source = GangSource.UPSTREAM
    keeps_foreign_changes = True

    def changed(self, ref: GangRef) -> None:
        """Marks the group of a gang that changed, and groups that were created by default for its pods."""
        super().changed(ref)
        for key in self._context.state.gangs.made_of(ref):
            self.mark(key)

    def verdict(self, report: GangReport, waiting_seconds: float) -> None:
        """Records the report of a round, also for groups that were created by default for the gang's pods."""
        super().verdict(report, waiting_seconds)
        for key in self._context.state.gangs.made_of(report.ref):
            self._reports[key] = report  # a group created by default gets its condition from the gang of its pods
            self.mark(key)

    def _find(self, key: str) -> tuple[UpstreamPodGroup, Resource] | None:
        group, resource = (
            self._context.state.gangs.upstream.get(key),
            self._context.feeds.served.get(UPSTREAM_POD_GROUPS),
        )
        return (group, resource) if group is not None and resource is not None else None

    def _read(self, obj: UpstreamPodGroup) -> Condition | None:
        there = condition_of(obj.status.conditions, CONDITION)
        return condition(there.status, there.reason, there.message) if there is not None else None

    def _render(self, key: str, obj: UpstreamPodGroup, there: Condition | None) -> Condition | None:
        """Returns the wanted condition; None if it stays as it is."""
        last, _ = self._writes.last(key, obj.metadata.uid)
        if last is not None and last.status == "True":
            return None
        gangs, report = self._context.state.gangs, self._reports.get(key)
        if (of_pods := next(iter(gangs.gangs_of_made(key)), None)) is not None:
            derived = gangs.derived.get(of_pods)
            minimum = derived.min_member if derived is not None else gangs.minimum(of_pods) or 0
            return wanted_condition(obj, gangs.gang(of_pods), report, minimum)
        return wanted_condition(obj, gangs.gang(GangRef.from_key(key, self.source)), report)

    def _differ_in_numbers_only(self, said: Condition | None, wanted: Condition | None) -> bool:
        if said is None or wanted is None or (said.status, said.reason) != (wanted.status, wanted.reason):
            return False
        return differs_in_numbers(said.message, wanted.message)

    async def _send(self, obj: UpstreamPodGroup, resource: Resource, wanted: Condition | None, there: Any) -> bool:
        """Writes the condition under all its names. Returns False if the group does not exist any more."""
        assert wanted is not None
        made = (
            condition_patch(
                condition_of(obj.status.conditions, name),
                replace(wanted, type=name, observed_generation=obj.metadata.generation),
                now=self._context.now(),
            )
            for name in conditions_of_version(resource.version)
        )
        status = {"conditions": [body for body in made if body is not None]}
        return await patch_status(self._context.client, resource, obj.metadata, status, kind="strategic")

    def _written(self, key: str, said: Condition | None, wanted: Condition | None) -> None:
        """Emits the event of a refusal, after its condition was written."""
        about = self._about(key)
        if self._context.state.gangs.gangs_of_made(key):
            return  # the workload gets the event
        if about is not None and wanted is not None and wanted.status == "False":
            if self._reports[key].status is GangStatus.INVALID:
                self._context.announcer.tell(INVALID, about, wanted.message)
            elif not self._reports[key].awaits:
                self._context.announcer.tell(GANG_UNSCHEDULABLE, about, wanted.message)

    def _about(self, key: str) -> ObjectReference | None:
        return self._context.references.upstream_group(key)
