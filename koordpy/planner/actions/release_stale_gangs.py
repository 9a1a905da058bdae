# SPDX-License-Identifier: Apache-2.0
"""Evicts the remaining members of stale gangs after a grace period. A stale gang has lost members that it needs.

Sources: docs/rules/preemption.md 7, and for GangGroups docs/rules/repair.md 4.3. The action runs after the units were
tried, because a gang is repaired if its missing members got nodes in this round. A round has no memory of stale gangs:
the start of the grace period is read from the PodGroup's condition, or from the members that failed
(`preemption/search/stale_gangs.py`).
"""

from koordpy.api.natural_order import natural_key
from koordpy.attempts.unit_outcome import DeferredUnit
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.broken_gangs import missing_members
from koordpy.gangs.gang_settings import Gang
from koordpy.gangs.queue_units import Unit
from koordpy.gangs.stale_grace import grace_seconds, since
from koordpy.planner.round_context import RoundContext
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import PodInfo
from koordpy.preemption.search.stale_gangs import is_stale, possibly_stale_gangs, present
from koordpy.preemption.selection.disruption_budgets import budgets_of, forbid
from koordpy.preemption.selection.victim_units import terminating, untouchable
from koordpy.report.eviction_words import stale_evictions
from koordpy.verify.eviction_check import STALE_GANG, EvictedUnit, Round, check_stale, rejection


def release_stale_gangs(context: RoundContext) -> None:
    """Evicts the members of stale gangs after their grace period, together with the other gangs of their GangGroup.

    A gang with pending members is evicted only if the round has tried these members. If the independent check rejects
    the plan, nothing is evicted and the rejected plan is recorded.
    """
    round_state = context.round_state
    draft, groups = round_state.draft, round_state.groups
    tried = {one.unit.id for one in context.outcomes if not isinstance(one, DeferredUnit)}
    evicted = {pod.gang for pod in draft.evicted.values() if pod.gang is not None}
    refs = {*possibly_stale_gangs(round_state.snapshot), *evicted}
    units: dict[str, Unit] = {}
    for ref in sorted(refs, key=lambda ref: (natural_key(ref.namespace), natural_key(ref.name), ref.source.value)):
        if is_stale(groups.gang(ref), draft):
            unit = groups.unit(ref)
            units.setdefault(unit.id, unit)
    for unit in units.values():
        if context.only is not None and unit.pending and unit.id not in tried:
            continue
        _release(unit, context)


def _release(unit: Unit, context: RoundContext) -> None:
    """Evicts the bound members of a unit with a stale gang, if the grace periods of all its broken gangs are over."""
    round_state, draft = context.round_state, context.round_state.draft
    stale = [gang for gang in unit.gangs if is_stale(gang, draft) and _is_over(gang, round_state)]
    if not _broken_gangs(unit, round_state) <= {gang.ref for gang in stale}:
        return
    by_gang = {
        gang.key: (gang, tuple(pod for pod in gang.bound if not terminating(pod) and pod.key not in draft.evicted))
        for gang in unit.gangs
    }
    pods = tuple(pod for _, own in by_gang.values() for pod in own)
    if not stale or not pods or not _is_evictable(pods, round_state):
        return
    if any(pod.key in draft.placed for gang in stale for pod in gang.pending):  # became stale in this round
        return
    if faults := check_stale(stale, unit, pods, Round(round_state, None, budgets_of(draft))):
        context.rejected.append(rejection(unit.id, faults, [EvictedUnit(pods, STALE_GANG)]))
        return
    texts = {gang.key: _text(gang, round_state) for gang in stale}
    draft.evict_all(pods)
    for gang, own in by_gang.values():
        cause = gang if gang.key in texts else stale[0]
        context.evictions += stale_evictions(cause, own, texts[cause.key], unit)


def _broken_gangs(unit: Unit, round_state: RoundState) -> set[GangRef]:
    """Returns the gangs of a unit that are broken with the placements and evictions of the draft."""
    snapshot, draft = round_state.snapshot, round_state.draft
    placed = {key: snapshot.nodes[node].name for key, node in draft.placed.items()}
    return {gang.ref for gang in unit.with_bound(placed, draft.evicted).gangs if missing_members(gang)}


def _is_over(gang: Gang, round_state: RoundState) -> bool:
    """Returns True if the grace period of a stale gang is over."""
    snapshot, config = round_state.snapshot, round_state.config
    grace = grace_seconds(gang, snapshot, config.stale_gangs, config.repair)
    return 0 <= grace <= snapshot.now - since(gang, snapshot)


def _text(gang: Gang, round_state: RoundState) -> str:
    """Returns the text for the events on the evicted members of a stale gang."""
    waited = round_state.snapshot.now - since(gang, round_state.snapshot)
    return f"gang {gang.key} has {present(gang, round_state.draft)} of {gang.min_member} members for {waited:.0f}s"


def _is_evictable(pods: tuple[PodInfo, ...], round_state: RoundState) -> bool:
    """Returns True if all members may be evicted together.

    No member may be protected or of another scheduler, and no PodDisruptionBudget may be exceeded.
    """
    names = round_state.snapshot.scheduler_names
    if any(untouchable(pod) or pod.pod.spec.scheduler_name not in names for pod in pods):
        return False
    return not forbid(budgets_of(round_state.draft), pods)
