# SPDX-License-Identifier: Apache-2.0
"""Stale gangs: gangs that run with fewer members than they need, for example because a pod failed.

A stale gang holds capacity without making progress. After a grace period the action
`planner/actions/release_stale_gangs.py` evicts its remaining members (docs/rules/preemption.md 7). Until then the live
scheduler reports the state of the gang in a condition and in events.
"""

from dataclasses import dataclass

from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import StaleGangs
from koordpy.config.node_failures import Repair
from koordpy.gangs.broken_gangs import repair_policy
from koordpy.gangs.gang_reading import read_gang
from koordpy.gangs.gang_settings import Gang
from koordpy.gangs.stale_grace import began, grace_seconds, regather_grace
from koordpy.pods.gang_refs import GangRef, GangSource
from koordpy.preemption.selection.victim_units import protected, terminating


@dataclass(frozen=True, slots=True)
class StaleState:
    """How many members a stale gang has, and when it is evicted or moved."""

    have: int
    """Number of members bound or Succeeded."""
    min_member: int
    grace: float
    """Seconds until the remaining members are evicted; negative for never."""
    due: float | None
    """End of the grace period in seconds since the epoch; None if it never ends, or if its start is unknown."""
    moves: float | None = None
    """When a gang with the repair policy `regather` moves as a whole, in the form of `due` (docs/rules/repair.md
    4.3)."""
    move_grace: float = -1.0
    """Seconds until then; negative for a gang that is never moved."""

    @property
    def length(self) -> float:
        """Seconds from the loss until the gang is evicted or moved; negative for never."""
        return self.grace if self.grace >= 0 else self.move_grace

    @property
    def next_round(self) -> float | None:
        """The earlier of `due` and `moves`; None if both are None."""
        return min((at for at in (self.due, self.moves) if at is not None), default=None)

    def text(self, key: str) -> str:
        """Returns the message of the PodGroup's condition. key: of the gang."""
        return f"gang {key} has {self.have} of {self.min_member} members"

    def warning(self, key: str, now: float | None = None) -> str:
        """Returns the message of the gang's events: what will happen, and when.

        now: seconds since the epoch; None if the grace period has just begun.
        """
        if self.length < 0:
            return self.text(key)
        end = self.next_round
        left = self.length if now is None or end is None else max(0.0, end - now)
        if self.move_grace < 0:
            return f"{self.text(key)}; they are evicted in {left:.0f}s unless it has its minimum by then"
        otherwise = ", else they are evicted" if self.grace >= 0 else ""
        move = f"in {left:.0f}s it is moved as a whole if it fits elsewhere{otherwise}"
        return f"{self.text(key)}; {move}, unless it has its minimum by then"


def present(gang: Gang, draft: Draft) -> int:
    """Returns the number of members that are bound or Succeeded, on the draft.

    Pods on lost nodes count until they are deleted: if such a node returns before that, the gang is not evicted
    (docs/rules/repair.md 4.1).
    """
    bound = sum(pod.key not in draft.evicted for pod in gang.bound)
    bound += sum(pod.pod.metadata.deletion_timestamp is None for pod in gang.lost)
    return bound + sum(pod.key in draft.placed for pod in gang.pending) + gang.succeeded


def is_stale(gang: Gang, draft: Draft) -> bool:
    """Returns True if a strict gang has bound members, but fewer than its minimum.

    Three exceptions return False. The gang has as many members as when it last had its minimum: then minMember was
    raised. The gang is derived from a workload, and no member was lost or none is pending. The gang has an unsupported
    setting: koordpy does not evict the bound pods of such a gang.
    """
    if not (gang.strict and gang.exists and gang.bound) or gang.unsupported_field:
        return False
    if (
        gang.workload_gang is not None
        and gang.by_workload
        and not (gang.workload_gang.has_lost_members and gang.pending)
    ):
        return False  # the workload started with fewer members, or its controller has not created the missing pods yet
    have = present(gang, draft)
    return have < gang.min_member and not 0 < gang.past.whole <= have


def may_be_stale(ref: GangRef, snapshot: Snapshot) -> bool:
    """Returns False if a gang is certainly not stale. A cheap check, which excludes most gangs."""
    bound = sum(pod.bound and not pod.lost for pod in snapshot.members.get(ref, ()))
    if not bound:
        return False
    if ref.source is GangSource.GROUP:
        return ref.key in snapshot.pod_groups and bound < snapshot.pod_groups[ref.key].spec.min_member
    if ref.source is GangSource.UPSTREAM:
        upstream = snapshot.upstream_groups.get(ref.key)
        policy = upstream.spec.scheduling_policy.gang if upstream is not None else None
        return policy is not None and bound < policy.min_count
    if (derived := snapshot.workload_gangs.get(ref)) is not None:
        return bound < derived.min_member and (derived.has_lost_members or not derived.by_workload)
    return True


class _PossiblyStaleGangs(tuple[GangRef, ...]):
    """The gangs of a snapshot that may be stale."""


def possibly_stale_gangs(snapshot: Snapshot) -> tuple[GangRef, ...]:
    """Returns the gangs for which `may_be_stale`; computed once for each snapshot. O(pods of gangs)."""
    known = snapshot.memo.get(_PossiblyStaleGangs)
    if not isinstance(known, _PossiblyStaleGangs):
        known = snapshot.memo[_PossiblyStaleGangs] = _PossiblyStaleGangs(
            ref for ref in snapshot.members if may_be_stale(ref, snapshot)
        )
    return known


def stale_state(ref: GangRef, snapshot: Snapshot, settings: StaleGangs, repair: Repair) -> StaleState | None:
    """Returns the state of a stale gang; None for a gang that is not stale.

    None also for a gang of another scheduler, and for a gang with no bound member except terminating ones.
    """
    names = snapshot.scheduler_names
    if not may_be_stale(ref, snapshot) or not any(
        pod.pod.spec.scheduler_name in names for pod in snapshot.members[ref]
    ):
        return None
    gang, draft = read_gang(snapshot, ref), Draft(snapshot)
    if not is_stale(gang, draft) or all(terminating(pod) for pod in gang.bound):
        return None
    kept = any(protected(pod) or pod.pod.spec.scheduler_name not in names for pod in gang.live)
    grace = -1.0 if kept else grace_seconds(gang, snapshot, settings, repair)
    gathers = not kept and repair_policy(gang, snapshot, repair) == "regather"
    moves = regather_grace(gang, snapshot, settings) if gathers else -1.0
    known, now = began(gang, snapshot), snapshot.now
    due, moved = _end(grace, known, now), _end(moves, known, now)
    return StaleState(present(gang, draft), gang.min_member, grace, due, moved, moves)


def _end(grace: float, known: float | None, now: float) -> float | None:
    """Returns the end of a grace period in seconds since the epoch; None if it never ends or has no known start.

    grace: seconds; negative for a period that never ends; 0 ends now even without a known start. known: the start of
    the period; None if unknown.
    """
    if grace < 0 or (known is None and grace > 0):
        return None
    return (now if known is None else known) + grace
