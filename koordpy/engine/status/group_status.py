"""What the status of a PodGroup should be: counts, phase and conditions.

Phases are those of the coscheduling PodGroup: Pending (members are missing), Scheduling, Scheduled, Running, Finished,
Failed. Conditions follow what is: Scheduled is True while the minimum is bound or has Succeeded, Stale while members
are lost, DisruptionTarget since koordpy evicted members until the minimum is bound again. After its waiting time a gang
that never fitted says so; it is never given up (gang-network.md 2.9). PodGroups whose pods name other schedulers are
left alone.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from koordpy.api.objects import Condition, condition_of
from koordpy.api.pod_endings import DISRUPTED
from koordpy.api.pod_groups import PodGroup, PodGroupStatus
from koordpy.api.times import rfc3339, seconds
from koordpy.cache.gang_history import MEMBERS_MISSING, MOST_BESIDE, SCHEDULED, STALE, ended
from koordpy.cache.gang_members import Members
from koordpy.engine.status.status_patches import condition_for, merged_conditions, wobbles
from koordpy.fairness.quota_admission import REFUSING_QUOTA
from koordpy.plan.round_plan import GangReport, GangStatus
from koordpy.pods.pod_info import PodInfo

TIMED_OUT = "WaitingTimeExceeded"
WHOLE, DISBANDED = "MinimumMet", "NoneBound"
COUNTS = ("scheduled", "running", "succeeded", "departed", "failed")
ENDED = ("Finished", "Failed")
MADE_AGAIN_SECONDS = 600.0
"""So long after a failure a controller may make the pod again: the longest back-off of a Job."""


def counts_of(gang: Members) -> dict[str, int]:
    """The counts of a PodGroup's status. A member that has Succeeded had a node; those of an earlier run that are still
    ending are none of this one's."""
    bound = [pod for pod in gang.bound if pod.pod.spec.node_name and pod.controller in gang.run.owners]
    return {
        "scheduled": len(bound) + gang.succeeded,
        "running": sum(pod.pod.status.phase == "Running" for pod in bound),
        "succeeded": gang.succeeded,
        "departed": gang.departed,
        "failed": len(gang.failed),
    }


def phase_of(gang: Members, counts: Mapping[str, int], *, need: int, now: float) -> str:
    """The phase that a gang's pods amount to.

    A failure counts where nobody takes its place: not that of a pod that was evicted, or is being deleted, nor as long
    as its controller may make it again.
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
    """Until when failed pods may be made again, seconds since the epoch; 0 where nobody does so."""
    ends = [max(ended(pod).at, pod.created) for pod in _failures(gang) if pod.controller]
    return max(ends) + MADE_AGAIN_SECONDS if ends else 0.0


def _failures(gang: Members) -> list[PodInfo]:
    return [pod for pod in gang.failed if not _ended_from_outside(pod)]


def _ended_from_outside(pod: PodInfo) -> bool:
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
    evicted: tuple[str, str],
    now: float,
) -> PodGroupStatus:
    """The whole status of a PodGroup as it should be.

    report: what the last round said about the gang, whose members wait so long together.
    stale: how many members a gang has left that has lost some of those it needs; evicted: what koordpy did to members,
    reason and message; empty where it did nothing.
    """
    before, need = group.status, max(1, group.spec.min_member)
    counts = counts_of(gang)
    phase = phase_of(gang, counts, need=need, now=now)
    if not gang.pods and before.phase in ENDED:
        # its pods were cleaned up after the end
        phase, counts = before.phase, {name: getattr(before, name) for name in COUNTS}
    started = before.schedule_start_time or ""
    if not started and report is not None and report.status is not GangStatus.INCOMPLETE:
        started = rfc3339(now)
    occupied_by, uid = _occupied(group, gang)
    conditions = (
        _scheduled(group, gang, counts, report, waiting_seconds, started, now=now),
        _staleness(group, gang, stale),
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
    """Owners of the members by name, and the controllers whose members `succeeded` counts: one, or those that ran
    beside one another."""
    owners = {
        f"{pod.namespace}/{owner.name}"
        for pod in gang.pods
        for owner in pod.pod.metadata.owner_references
        if owner.name
    }
    run = gang.run.owners
    told = len(run) == 1 or (run <= gang.past.beside and len(run) <= MOST_BESIDE and "" not in run)
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
    """None where it stays as it is."""
    have, least = counts["scheduled"], group.spec.min_member
    old = condition_of(group.status.conditions, SCHEDULED)
    if have >= max(1, least):
        return condition_for(
            group, SCHEDULED, "True", SCHEDULED, f"{have} members have a node or have Succeeded, minMember is {least}"
        )
    told = report.message if report is not None and report.status is not GangStatus.SCHEDULED else ""
    reason = report.status.value if report is not None and told else GangStatus.INCOMPLETE.value
    text = f"{have} of minMember {least} members are bound or have Succeeded"
    if not any(not pod.finished and not pod.pod.spec.node_name for pod in gang.pods):
        # nobody is left to be tried, so no round says anything
        reason, told = GangStatus.INCOMPLETE.value, "no other waits" if gang.pods else "no pod names the group"
        return condition_for(group, SCHEDULED, "False", reason, f"{text}; {told}")
    if have:
        return condition_for(group, SCHEDULED, "False", reason, f"{text}; {told}" if told else text)
    if not told:
        # not tried yet
        return (
            condition_for(group, SCHEDULED, "False", reason, text) if old is not None and old.status == "True" else None
        )
    if started and now - waits_since(started, gang) >= waiting_seconds:
        told = f"no place in {waiting_seconds:g} s; still tried; {told}"
        reason = TIMED_OUT
    return condition_for(group, SCHEDULED, "False", reason, told)


def waits_since(started: str, gang: Members) -> float:
    """Since when the members wait, seconds since the epoch: those of an earlier run waited for something else."""
    return max(seconds(started), min((pod.created for pod in gang.pending), default=0.0))


def _staleness(group: PodGroup, gang: Members, text: str) -> Condition | None:
    """Since when a gang lacks members is its condition's lastTransitionTime (preemption.md 7)."""
    old = condition_of(group.status.conditions, STALE)
    if text:
        return condition_for(group, STALE, "True", MEMBERS_MISSING, text)
    if old is None:
        return None
    if not gang.bound:
        if old.status == "True":
            return condition_for(group, STALE, "False", DISBANDED, f"{old.message}; none of them is bound any more")
        if old.reason == WHOLE and gang.present < group.spec.min_member:
            return condition_for(group, STALE, "False", DISBANDED, "none of its members is bound any more")
        return None
    if old.status != "True" and (old.reason == WHOLE or not gang.runs(group.spec.min_member)):
        return None
    text = f"{gang.present} members are bound or have Succeeded, minMember is {group.spec.min_member}"
    return condition_for(group, STALE, "False", WHOLE, text)


def _disruption(group: PodGroup, evicted: tuple[str, str], *, met: bool) -> Condition | None:
    """What koordpy did to members stays said until the gang has its minimum again."""
    old = condition_of(group.status.conditions, DISRUPTED)
    if any(evicted) and not met:
        return condition_for(group, DISRUPTED, "True", *evicted)
    if old is None or old.status != "True" or not met:
        return None
    return condition_for(group, DISRUPTED, "False", WHOLE, f"its minimum is bound again; before: {old.message}")


def only_wobbles(said: PodGroupStatus, wanted: PodGroupStatus) -> bool:
    """Whether nothing but counts in messages is to be changed, other than those of a quota: they are what its team acts
    on."""
    if replace(wanted, conditions=[]) != replace(said, conditions=[]):
        return False
    for condition in wanted.conditions:
        before = condition_of(said.conditions, condition.type)
        if before is None or (before.status, before.reason) != (condition.status, condition.reason):
            return False
        if before.message != condition.message and (
            REFUSING_QUOTA in condition.message or not wobbles(before.message, condition.message)
        ):
            return False
    return True
