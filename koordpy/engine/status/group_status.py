# SPDX-License-Identifier: Apache-2.0
"""Renders the status of a PodGroup of coscheduling: counts, phase and conditions. A pure function of the gang's state.

Phases are those of the coscheduling plugin: Pending (members are missing), Scheduling, Scheduled, Running, Finished,
Failed. There are four conditions:
- Scheduled is True while the minimum is bound or has Succeeded. A gang that is not placed within its waiting time gets
  the reason WaitingTimeExceeded; it is still tried (gang-network.md 2.9).
- Stale is True while the gang is stale: it needs members that it has lost.
- Degraded is True while the gang is broken; its message says which members are missing and where they have capacity.
- DisruptionTarget is True from an eviction by koordpy until the minimum is bound again.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from koordpy.api.objects import Condition, condition_of
from koordpy.api.pod_endings import DISRUPTED
from koordpy.api.pod_groups import PodGroup, PodGroupStatus
from koordpy.api.times import rfc3339, seconds
from koordpy.cache.gang_history import (
    DEGRADED,
    MAX_JOINT_OWNERS,
    MEMBERS_MISSING,
    SCHEDULED,
    STALE,
    to_ended_member,
)
from koordpy.cache.gang_members import Members
from koordpy.engine.status.status_patches import condition_for, differs_in_numbers, merged_conditions
from koordpy.fairness.quota_admission import REFUSING_QUOTA
from koordpy.plan.gang_repair import GangRepair, bound_text
from koordpy.plan.round_plan import GangReport, GangStatus
from koordpy.pods.pod_info import PodInfo
from koordpy.report.eviction_words import MOVED

TIMED_OUT = "WaitingTimeExceeded"
"""Reason of Scheduled=False after the waiting time."""
WHOLE, DISBANDED = "MinimumMet", "NoneBound"
"""Reasons with which the condition Stale becomes False: the gang has its minimum again; it has no bound member left."""
REPAIRED = "Repaired"
"""Reason with which the condition Degraded becomes False."""
COUNTS = ("scheduled", "running", "succeeded", "departed", "failed")
"""Fields of the status with numbers of members. `departed`: Succeeded members with deleted pods."""
ENDED = ("Finished", "Failed")
"""Phases that stay after the pods of the gang are deleted."""
MADE_AGAIN_SECONDS = 600.0
"""Seconds after a failure within which a controller may recreate the pod: the longest back-off of a Job."""


def counts_of(gang: Members) -> dict[str, int]:
    """Returns the counts of a PodGroup's status by field name (`COUNTS`). A member that has Succeeded counts as
    scheduled. Terminating members of an earlier run are not counted."""
    bound = [pod for pod in gang.bound if pod.pod.spec.node_name and pod.controller in gang.run.owners]
    return {
        "scheduled": len(bound) + gang.succeeded,
        "running": sum(pod.pod.status.phase == "Running" for pod in bound),
        "succeeded": gang.succeeded,
        "departed": gang.deleted_succeeded,
        "failed": len(gang.failed),
    }


def phase_of(gang: Members, counts: Mapping[str, int], *, need: int, now: float) -> str:
    """Returns the phase of a gang. counts: by `counts_of`. need: minMember. now: seconds since 1970.

    The phase is Failed only if the gang needs the failed pods and they will not be replaced. A pod does not count as
    failed if it was evicted or is being deleted, or while its controller may recreate it.
    """
    running, succeeded, live = counts["running"], counts["succeeded"], len(gang.members)
    if succeeded >= need and not live:
        return "Finished"
    if running + succeeded >= need and gang.bound:
        return "Running"
    if counts["scheduled"] >= need and gang.bound:
        return "Scheduled"
    if live + succeeded >= need:
        return "Scheduling"
    failed = len(_failures(gang))
    lost = failed and failed + live + succeeded >= need and now >= made_again_until(gang)
    return "Failed" if lost else "Pending"


def made_again_until(gang: Members) -> float:
    """Returns the time until which failed pods may be recreated, in seconds since 1970; 0 if none will be."""
    ends = [max(to_ended_member(pod).ended_at, pod.created) for pod in _failures(gang) if pod.controller]
    return max(ends) + MADE_AGAIN_SECONDS if ends else 0.0


def _failures(gang: Members) -> list[PodInfo]:
    """Returns the failed pods of a gang, without pods that were evicted, preempted or deleted."""
    return [pod for pod in gang.failed if not _ended_from_outside(pod)]


def _ended_from_outside(pod: PodInfo) -> bool:
    """Returns True if a pod was evicted, preempted or deleted."""
    return bool(pod.pod.metadata.deletion_timestamp) or any(
        (said.type, said.status) == (DISRUPTED, "True") for said in pod.pod.status.conditions
    )


def group_status(
    group: PodGroup,
    gang: Members,
    report: GangReport | None,
    waiting_seconds: float,
    *,
    stale: str,
    repair: GangRepair | None,
    evicted: tuple[str, str],
    now: float,
) -> PodGroupStatus:
    """Returns the whole status of a PodGroup.

    report: the gang's report of the last round; None before the first. waiting_seconds: the gang's waiting time. stale:
    message for condition Stale; empty if the gang is not stale. repair: the missing members of a broken gang; None if
    the gang is not broken. evicted: reason and message of the last eviction of members by koordpy; two empty texts for
    none. now: seconds since 1970.
    """
    before, need = group.status, max(1, group.spec.min_member)
    counts = counts_of(gang)
    phase = phase_of(gang, counts, need=need, now=now)
    if not gang.pods and before.phase in ENDED:
        # the gang has ended and its pods were deleted: phase and counts stay
        phase, counts = before.phase, {name: getattr(before, name) for name in COUNTS}
    started = before.schedule_start_time or ""
    if not started and report is not None and report.status is not GangStatus.INCOMPLETE:
        started = rfc3339(now)
    occupied_by, uid = _occupied(group, gang)
    conditions = (
        _scheduled(group, gang, counts, report, waiting_seconds, started, now=now),
        _staleness(group, gang, stale),
        _degradation(group, gang, repair),
        _disruption(group, evicted, met=counts["scheduled"] >= need),
    )
    return PodGroupStatus(
        phase=phase,
        **counts,
        schedule_start_time=started or None,
        occupied_by=occupied_by,
        occupied_by_uid=uid,
        conditions=merged_conditions(before.conditions, [one for one in conditions if one is not None], now=now),
    )


def _occupied(group: PodGroup, gang: Members) -> tuple[str, str]:
    """Returns the values of occupiedBy and occupiedByUid.

    occupiedBy: `namespace/name` of the pods' owners. occupiedByUid: uids of the controllers of the current run, so that
    a later process knows to which run the counts belong. It is empty if the pods have several controllers that did not
    run at the same time. While the gang has no pods, both keep their values.
    """
    owners = {
        f"{pod.namespace}/{owner.name}"
        for pod in gang.pods
        for owner in pod.pod.metadata.owner_references
        if owner.name
    }
    run = gang.run.owners
    told = len(run) == 1 or (run <= gang.past.joint_owners and len(run) <= MAX_JOINT_OWNERS and "" not in run)
    uid = ",".join(sorted(run)) if told and run else "" if run else group.status.occupied_by_uid
    return ",".join(sorted(owners)) or group.status.occupied_by, uid


def _scheduled(
    group: PodGroup,
    gang: Members,
    counts: Mapping[str, int],
    report: GangReport | None,
    waiting_seconds: float,
    started: str,
    *,
    now: float,
) -> Condition | None:
    """Returns the condition Scheduled; None if it stays as it is. Arguments as in `group_status`.

    started: scheduleStartTime (RFC 3339); empty if no round has tried the gang with all its members.
    """
    have, least = counts["scheduled"], group.spec.min_member
    old = condition_of(group.status.conditions, SCHEDULED)
    if have >= max(1, least):
        return condition_for(
            group,
            SCHEDULED,
            "True",
            SCHEDULED,
            f"{bound_text(have)}, minMember is {least}",
        )
    told = report.message if report is not None and report.status is not GangStatus.SCHEDULED else ""
    reason = report.status.value if report is not None and told else GangStatus.INCOMPLETE.value
    text = f"{have} of {least} required members (minMember) are bound or have Succeeded"
    if not any(not pod.finished and not pod.pod.spec.node_name for pod in gang.pods):
        # no pending pod, so no round reports on the gang
        reason, told = (
            GangStatus.INCOMPLETE.value,
            "no other pod is pending" if gang.pods else "no pod references the PodGroup",
        )
        return condition_for(group, SCHEDULED, "False", reason, f"{text}; {told}")
    if have:
        return condition_for(group, SCHEDULED, "False", reason, f"{text}; {told}" if told else text)
    if not told:
        # not tried by a round yet
        return (
            condition_for(group, SCHEDULED, "False", reason, text) if old is not None and old.status == "True" else None
        )
    if started and now - waits_since(started, gang) >= waiting_seconds:
        told = f"not placed within {waiting_seconds:g} s, still retrying: {told}"
        reason = TIMED_OUT
    return condition_for(group, SCHEDULED, "False", reason, told)


def waits_since(started: str, gang: Members) -> float:
    """Returns the time since which the pending members wait, in seconds since 1970.

    started: scheduleStartTime. If the gang runs again, so that all pending members were created later, it is the time
    of their creation.
    """
    return max(seconds(started), min((pod.created for pod in gang.pending), default=0.0))


def _staleness(group: PodGroup, gang: Members, text: str) -> Condition | None:
    """Returns the condition Stale; None if it stays as it is. text: its message; empty if the gang is not stale.

    The grace period begins at the lastTransitionTime of the condition (preemption.md 7).
    """
    old = condition_of(group.status.conditions, STALE)
    if text:
        return condition_for(group, STALE, "True", MEMBERS_MISSING, text)
    if old is None:
        return None
    if not gang.bound:
        if old.status == "True":
            return condition_for(group, STALE, "False", DISBANDED, f"{old.message}; no member is bound any more")
        if old.reason == WHOLE and gang.present < group.spec.min_member:
            return condition_for(group, STALE, "False", DISBANDED, "no member is bound any more")
        return None
    if old.status != "True" and (old.reason == WHOLE or not gang.runs(group.spec.min_member)):
        return None
    text = f"{bound_text(gang.present)}, minMember is {group.spec.min_member}"
    return condition_for(group, STALE, "False", WHOLE, text)


def _degradation(group: PodGroup, gang: Members, repair: GangRepair | None) -> Condition | None:
    """Returns the condition Degraded; None if it stays as it is (repair.md 4.5).

    A gang that moves as a whole has no bound member in between, and is repaired when it has its minimum again.
    """
    old = condition_of(group.status.conditions, DEGRADED)
    whole = not gang.bound or gang.runs(group.spec.min_member)
    if repair is not None and not whole:
        return condition_for(group, DEGRADED, "True", MEMBERS_MISSING, repair.text)
    if old is None or not whole:
        return None
    if old.status != "True" and not (old.reason == DISBANDED and gang.bound and _moves(group)):
        return None
    text = f"{bound_text(gang.present)}, minMember is {group.spec.min_member}"
    return condition_for(group, DEGRADED, "False", REPAIRED if gang.bound else DISBANDED, text)


def _moves(group: PodGroup) -> bool:
    """Returns True if the last eviction of the gang's members was a move to other nodes."""
    said = condition_of(group.status.conditions, DISRUPTED)
    return said is not None and (said.status, said.reason) == ("True", MOVED)


def _disruption(group: PodGroup, evicted: tuple[str, str], *, met: bool) -> Condition | None:
    """Returns the condition DisruptionTarget; None if it stays as it is. met: True if the gang has its minimum."""
    old = condition_of(group.status.conditions, DISRUPTED)
    if any(evicted) and not met:
        return condition_for(group, DISRUPTED, "True", *evicted)
    if old is None or old.status != "True" or not met:
        return None
    return condition_for(group, DISRUPTED, "False", WHOLE, f"minMember is reached again (before: {old.message})")


def differ_in_numbers_only(said: PodGroupStatus, wanted: PodGroupStatus) -> bool:
    """Returns True if two statuses differ only in numbers within messages. In the message of a quota refusal, changed
    numbers count as a difference, because the quota's team acts on them."""
    if replace(wanted, conditions=[]) != replace(said, conditions=[]):
        return False
    for condition in wanted.conditions:
        before = condition_of(said.conditions, condition.type)
        if before is None or (before.status, before.reason) != (condition.status, condition.reason):
            return False
        if before.message != condition.message and (
            REFUSING_QUOTA in condition.message or not differs_in_numbers(before.message, condition.message)
        ):
            return False
    return True
