"""Gangs that were bound and have lost members: after a grace they give back what they still hold.

Source: preemption.md 7. Looked at when a round has tried everybody: where the missing members got room the gang
is repaired. Nothing is remembered: since when follows from the PodGroup's condition, or from the members that failed.
"""

from collections.abc import Collection
from dataclasses import dataclass

from koordpy.api.config import StaleGangs
from koordpy.api.natural import natural_key
from koordpy.cluster.pods import GangRef, GangSource, PodInfo
from koordpy.cluster.snapshot import Draft, Snapshot
from koordpy.planning.figures import Figures
from koordpy.planning.gangs import Gang, read_gang
from koordpy.planning.grace import began, grace_seconds, since
from koordpy.planning.plan import RejectedPlan
from koordpy.planning.verify.leaving import STALE_GANG, Round, Taken, check_stale, rejection
from koordpy.planning.victim_selection.budgets import budgets_of, forbid
from koordpy.planning.victim_selection.units import protected, terminating, untouchable


@dataclass(frozen=True, slots=True)
class StaleGang:
    """A gang that gives up: its bound members go. `have`: members bound or Succeeded."""

    gang: Gang
    pods: tuple[PodInfo, ...]
    have: int
    seconds: float

    @property
    def text(self) -> str:
        """Of the event on each victim."""
        return f"gang {self.gang.key} has {self.have} of {self.gang.min_member} members for {self.seconds:.0f}s"


@dataclass(frozen=True, slots=True)
class StaleState:
    """A gang that has lost members. `have`: members bound or Succeeded; `grace`: seconds until the others are evicted,
    negative for never; `due`: when it is over, seconds since the epoch, None where that is not known (nothing says
    since when) or never comes."""

    have: int
    min_member: int
    grace: float
    due: float | None

    def text(self, key: str) -> str:
        """Of the PodGroup's condition."""
        return f"gang {key} has {self.have} of {self.min_member} members"

    def warning(self, key: str, now: float | None = None) -> str:
        """Of the events: what comes of it, and when. now: seconds since the epoch, else the grace has just begun."""
        if self.grace < 0:
            return self.text(key)
        left = self.grace if now is None or self.due is None else max(0.0, self.due - now)
        return f"{self.text(key)}; they are evicted in {left:.0f}s unless it has its minimum by then"


def present(gang: Gang, draft: Draft) -> int:
    """Members bound or Succeeded, with what the round binds and evicts."""
    bound = sum(pod.key not in draft.evicted for pod in gang.bound)
    return bound + sum(pod.key in draft.placed for pod in gang.pending) + gang.succeeded


def is_stale(gang: Gang, draft: Draft) -> bool:
    """Strict, with members bound and fewer than its minimum of them. Not one that has as many as when it was whole: its
    minimum was raised since."""
    if not (gang.strict and gang.exists and gang.bound):
        return False
    if gang.derived is not None and gang.by_workload and not (gang.derived.lost and gang.pending):
        return False  # it began smaller, or its controller has not made the others yet
    have = present(gang, draft)
    return have < gang.min_member and not 0 < gang.past.whole <= have


def thinned(ref: GangRef, snapshot: Snapshot) -> bool:
    """Whether a gang may have lost members, by a look that costs little: most gangs have their minimum."""
    bound = sum(pod.bound for pod in snapshot.members.get(ref, ()))
    if not bound:
        return False
    if ref.source is GangSource.GROUP:
        return ref.key in snapshot.pod_groups and bound < snapshot.pod_groups[ref.key].spec.min_member
    if ref.source is GangSource.UPSTREAM:
        upstream = snapshot.upstream_groups.get(ref.key)
        policy = upstream.spec.scheduling_policy.gang if upstream is not None else None
        return policy is not None and bound < policy.min_count
    if (derived := snapshot.derived.get(ref)) is not None:
        return bound < derived.min_member and (derived.lost or not derived.by_workload)
    return True


def stale_state(ref: GangRef, snapshot: Snapshot, settings: StaleGangs) -> StaleState | None:
    """What is to be known of a gang that has lost members on a snapshot; None of any other, of one whose last members
    are ending, and of gangs of other schedulers."""
    names = snapshot.scheduler_names
    if not thinned(ref, snapshot) or not any(pod.pod.spec.scheduler_name in names for pod in snapshot.members[ref]):
        return None
    gang, draft = read_gang(snapshot, ref), Draft(snapshot)
    if not is_stale(gang, draft) or all(terminating(pod) for pod in gang.bound):
        return None
    kept = any(protected(pod) or pod.pod.spec.scheduler_name not in names for pod in gang.standing)
    grace = -1.0 if kept else grace_seconds(gang, snapshot, settings)
    known = began(gang, snapshot)
    if grace < 0 or (known is None and grace > 0):
        due = None
    else:
        due = (snapshot.now if known is None else known) + grace
    return StaleState(present(gang, draft), gang.min_member, grace, due)


def give_up(figures: Figures, *, tried: Collection[str] | None) -> tuple[list[StaleGang], list[RejectedPlan]]:
    """The stale gangs whose grace has passed, whose members leave the draft, and what the independent check refuses.

    tried: ids of the units that the round has tried, None for all; of others nothing can be said.
    """
    settings, snapshot, draft = figures.config.stale_gangs, figures.snapshot, figures.draft
    groups = figures.groups
    out: list[StaleGang] = []
    rejected: list[RejectedPlan] = []
    broken = {pod.gang for pod in draft.evicted.values()}
    refs = [ref for ref in snapshot.members if thinned(ref, snapshot) or ref in broken]
    for ref in sorted(refs, key=lambda ref: (natural_key(ref.namespace), natural_key(ref.name), ref.source.value)):
        gang = groups.gang(ref)
        if not is_stale(gang, draft):
            continue
        unit = groups.unit(ref)
        if tried is not None and unit.pending and unit.id not in tried:
            continue
        waited = snapshot.now - since(gang, snapshot)
        grace = grace_seconds(gang, snapshot, settings)
        pods = tuple(pod for pod in gang.bound if not terminating(pod) and pod.key not in draft.evicted)
        if grace < 0 or waited < grace or not pods or not _may_go(pods, figures):
            continue
        if any(pod.key in draft.placed for pod in gang.pending):  # it has lost others in this very round
            continue
        at = Round(figures, None, budgets_of(draft))
        if faults := check_stale(gang, pods, at):
            rejected.append(rejection(unit.id, faults, [Taken(pods, STALE_GANG)]))
            continue
        for pod in pods:
            draft.evict(pod)
        out.append(StaleGang(gang, pods, present(gang, draft) + len(pods), waited))
    return out, rejected


def _may_go(pods: tuple[PodInfo, ...], figures: Figures) -> bool:
    names = figures.snapshot.scheduler_names
    if any(untouchable(pod) or pod.pod.spec.scheduler_name not in names for pod in pods):
        return False
    return not forbid(budgets_of(figures.draft), pods)
