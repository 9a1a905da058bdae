# SPDX-License-Identifier: Apache-2.0
"""Evicts the remaining members of stale gangs after a grace period. A stale gang has lost members that it needs.

Source: docs/rules/preemption.md 7. The action runs after the units were tried, because a gang is repaired if its
missing members got nodes in this round. A round has no memory of stale gangs: the start of the grace period is read
from the PodGroup's condition, or from the members that failed (`preemption/search/stale_gangs.py`).
"""

from koordpy.api.natural_order import natural_key
from koordpy.attempts.unit_outcome import DeferredUnit
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.stale_grace import grace_seconds, since
from koordpy.planner.round_context import RoundContext
from koordpy.pods.pod_info import PodInfo
from koordpy.preemption.search.stale_gangs import is_stale, possibly_stale_gangs, present
from koordpy.preemption.selection.disruption_budgets import budgets_of, forbid
from koordpy.preemption.selection.victim_units import terminating, untouchable
from koordpy.report.eviction_words import stale_evictions
from koordpy.verify.eviction_check import STALE_GANG, EvictedUnit, Round, check_stale, rejection


def release_stale_gangs(context: RoundContext) -> None:
    """Evicts the members of stale gangs after their grace period.

    A gang with pending members is evicted only if the round has tried these members. If the independent check rejects
    the plan, nothing is evicted and the rejected plan is recorded.
    """
    round_state = context.round_state
    settings, snapshot, draft, groups = (
        round_state.config.stale_gangs,
        round_state.snapshot,
        round_state.draft,
        round_state.groups,
    )
    tried = {one.unit.id for one in context.outcomes if not isinstance(one, DeferredUnit)}
    evicted = {pod.gang for pod in draft.evicted.values() if pod.gang is not None}
    refs = {*possibly_stale_gangs(snapshot), *evicted}
    for ref in sorted(refs, key=lambda ref: (natural_key(ref.namespace), natural_key(ref.name), ref.source.value)):
        gang = groups.gang(ref)
        if not is_stale(gang, draft):
            continue
        unit = groups.unit(ref)
        if context.only is not None and unit.pending and unit.id not in tried:
            continue
        waited = snapshot.now - since(gang, snapshot)
        grace = grace_seconds(gang, snapshot, settings, round_state.config.repair)
        pods = tuple(pod for pod in gang.bound if not terminating(pod) and pod.key not in draft.evicted)
        if grace < 0 or waited < grace or not pods or not _is_evictable(pods, round_state):
            continue
        if any(pod.key in draft.placed for pod in gang.pending):  # the gang became stale in this round
            continue
        at = Round(round_state, None, budgets_of(draft))
        if faults := check_stale(gang, pods, at):
            context.rejected.append(rejection(unit.id, faults, [EvictedUnit(pods, STALE_GANG)]))
            continue
        draft.evict_all(pods)
        have = present(gang, draft) + len(pods)
        text = f"gang {gang.key} has {have} of {gang.min_member} members for {waited:.0f}s"
        context.evictions += stale_evictions(gang, pods, text)


def _is_evictable(pods: tuple[PodInfo, ...], round_state: RoundState) -> bool:
    """Returns True if all members may be evicted together.

    No member may be protected or of another scheduler, and no PodDisruptionBudget may be exceeded.
    """
    names = round_state.snapshot.scheduler_names
    if any(untouchable(pod) or pod.pod.spec.scheduler_name not in names for pod in pods):
        return False
    return not forbid(budgets_of(round_state.draft), pods)
