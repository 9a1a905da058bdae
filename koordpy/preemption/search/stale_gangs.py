# SPDX-License-Identifier: Apache-2.0
"""Stale gangs: gangs that have lost members which they need, for example because a pod failed.

Such a gang holds capacity without running. After a grace period its remaining members are evicted (preemption.md 7) by
the action `planner/actions/release_stale_gangs.py`. Until then the live scheduler reports its state.
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
    """The state of a gang that has lost members."""

    have: int
    """Number of members bound or Succeeded."""
    min_member: int
    grace: float
    """Seconds until the remaining members are evicted; negative for never."""
    due: float | None
    """End of the grace period in seconds since the epoch; None if it never ends, or if its start is unknown."""
    moves: float | None = None
    """Time from which a gang with the repair policy `regather` moves as a whole, like `due` (repair.md 4.3)."""

    @property
    def next_round(self) -> float | None:
        """The earlier of `due` and `moves`; None for neither."""
        return min((at for at in (self.due, self.moves) if at is not None), default=None)

    def text(self, key: str) -> str:
        """Returns the message of the PodGroup's condition."""
        return f"gang {key} has {self.have} of {self.min_member} members"

    def warning(self, key: str, now: float | None = None) -> str:
        """Returns the message of the events: the consequence and its time.

        now: seconds since the epoch; None if the grace period has just begun.
        """
        if self.grace < 0:
            return self.text(key)
        left = self.grace if now is None or self.due is None else max(0.0, self.due - now)
        return f"{self.text(key)}; they are evicted in {left:.0f}s unless it has its minimum by then"


def present(gang: Gang, draft: Draft) -> int:
    """Returns the number of members that are bound or Succeeded, with placements and evictions of the draft.

    Pods on lost nodes count until they are deleted: a node that comes back in time costs no gang (repair.md 4.1).
    """
    bound = sum(pod.key not in draft.evicted for pod in gang.bound)
    bound += sum(pod.pod.metadata.deletion_timestamp is None for pod in gang.lost)
    return bound + sum(pod.key in draft.placed for pod in gang.pending) + gang.succeeded


def is_stale(gang: Gang, draft: Draft) -> bool:
    """Returns True if a strict gang has bound members, but fewer than its minimum.

    Returns False for a gang with as many members as when it last had its minimum, because minMember was raised since.
    Returns False also for an unsupported gang, because koordpy does not evict the bound pods of such a gang.
    """
    if not (gang.strict and gang.exists and gang.bound) or gang.unsupported_field:
        return False
    if (
        gang.workload_gang is not None
        and gang.by_workload
        and not (gang.workload_gang.has_lost_members and gang.pending)
    ):
        return False  # it began smaller, or its controller has not created the other pods yet
    have = present(gang, draft)
    return have < gang.min_member and not 0 < gang.past.whole <= have


def thinned(ref: GangRef, snapshot: Snapshot) -> bool:
    """Returns False if a gang certainly is not stale: a cheap check that leaves out most gangs."""
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


class _Thinned(tuple[GangRef, ...]):
    """The gangs of a snapshot that may be stale."""


def thinned_gangs(snapshot: Snapshot) -> tuple[GangRef, ...]:
    """Returns the gangs that may be stale; computed once for each snapshot. O(pods of gangs)."""
    known = snapshot.memo.get(_Thinned)
    if not isinstance(known, _Thinned):
        known = snapshot.memo[_Thinned] = _Thinned(ref for ref in snapshot.members if thinned(ref, snapshot))
    return known


def stale_state(ref: GangRef, snapshot: Snapshot, settings: StaleGangs, repair: Repair) -> StaleState | None:
    """Returns the state of a gang that has lost members; None for a gang that is not stale.

    Returns None also for a gang without a bound member that is not terminating, and for gangs of other schedulers.
    """
    names = snapshot.scheduler_names
    if not thinned(ref, snapshot) or not any(pod.pod.spec.scheduler_name in names for pod in snapshot.members[ref]):
        return None
    gang, draft = read_gang(snapshot, ref), Draft(snapshot)
    if not is_stale(gang, draft) or all(terminating(pod) for pod in gang.bound):
        return None
    kept = any(protected(pod) or pod.pod.spec.scheduler_name not in names for pod in gang.live)
    grace = -1.0 if kept else grace_seconds(gang, snapshot, settings, repair)
    gathers = not kept and repair_policy(gang, snapshot, repair) == "regather"
    moves = regather_grace(gang, snapshot, settings) if gathers else -1.0
    known, now = began(gang, snapshot), snapshot.now
    return StaleState(present(gang, draft), gang.min_member, grace, _end(grace, known, now), _end(moves, known, now))


def _end(grace: float, known: float | None, now: float) -> float | None:
    """Returns the end of a grace in seconds since the epoch; None for none. known: its start; None if unknown."""
    if grace < 0 or (known is None and grace > 0):
        return None
    return (now if known is None else known) + grace
