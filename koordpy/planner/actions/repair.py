# SPDX-License-Identifier: Apache-2.0
"""Repairs broken gangs by moving them as a whole, if there was no place for their missing members (repair.md 4.3).

The action runs after the broken gangs were tried: a gang with a place for its missing members was repaired by that. It
runs before other units are tried, so that they do not take the capacity. It applies to a unit if each of its broken
gangs has the policy `regather` and has been stale for longer than its grace. The grace is that of stale gangs, but here
members are evicted only if all members have new nodes. A plan replaces the unit's outcome (waiting). If there is no
plan, the gang stays stale, and the action `release_stale_gangs` follows at the end of the round.
"""

from dataclasses import replace

from koordpy.attempts.plan_acceptance import accept, rejected_plan
from koordpy.attempts.unit_outcome import BoundUnit, PreemptingUnit, RejectedUnit, WaitingUnit
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.broken_gangs import missing_members, repair_policy
from koordpy.gangs.gang_settings import Gang
from koordpy.gangs.queue_units import Unit
from koordpy.gangs.stale_grace import regather_grace, since
from koordpy.gangs.unit_gates import Gate
from koordpy.plan.round_plan import Proof
from koordpy.planner.queue.queue_policy import closing_all
from koordpy.planner.round_context import RoundContext
from koordpy.pods.pod_info import PodInfo
from koordpy.preemption.search.preemption_plan import PreemptionPlan, Victim
from koordpy.preemption.search.regather import place_again
from koordpy.preemption.search.stale_gangs import is_stale, present
from koordpy.preemption.selection.disruption_budgets import budgets_of, forbid
from koordpy.preemption.selection.preemption_names import RuleName
from koordpy.preemption.selection.victim_units import UnitKind, VictimUnit, untouchable
from koordpy.verify.eviction_check import Round, check_moved


def repair(context: RoundContext) -> None:
    """Moves the broken gangs of waiting units as a whole, if their policy and grace allow it."""
    for i, outcome in enumerate(context.outcomes):
        if not isinstance(outcome, WaitingUnit) or isinstance(outcome.diagnosis, Gate):
            continue
        unit = outcome.unit
        if unit.bound_any and context.is_due(unit) and _may_move(unit, context.round_state):
            context.outcomes[i] = _moved(outcome, context) or outcome


def _may_move(unit: Unit, round_state: RoundState) -> bool:
    """Returns True if the unit has a broken gang, and all its broken gangs are to be moved now."""
    broken = [gang for gang in unit.gangs if missing_members(gang)]
    return bool(broken) and all(_is_due(gang, round_state) for gang in broken)


def _is_due(gang: Gang, round_state: RoundState) -> bool:
    """Returns True if a broken gang has the policy `regather`, and its grace is over."""
    snapshot, config = round_state.snapshot, round_state.config
    if repair_policy(gang, snapshot, config.repair) != "regather" or not is_stale(gang, round_state.draft):
        return False
    grace = regather_grace(gang, snapshot, config.stale_gangs)
    return 0 <= grace <= snapshot.now - since(gang, snapshot)


def _moved(waiting: WaitingUnit, context: RoundContext) -> PreemptingUnit | None:
    """Returns the outcome of a unit that is moved; None if it cannot be moved. In that case the draft is unchanged."""
    unit, round_state = waiting.unit, context.round_state
    draft = round_state.draft
    live = tuple(pod for pod in unit.members if pod.bound)
    if not are_evictable(live, round_state):
        return None
    victims = (Victim(VictimUnit(UnitKind.BROKEN, live, unit.group_id), RuleName.REPAIR, _why(unit, round_state)),)
    faults = check_moved(unit, live, Round(round_state, None, budgets_of(draft)))
    mark = draft.mark()
    draft.evict_all(live)
    with closing_all(context.policies, unit, unit.members):
        found = place_again(unit, round_state)
    if found is None:
        draft.undo(mark)
        return None
    nodes = dict(found.nodes)
    plan = PreemptionPlan(victims, tuple(nodes.items()), Proof.FEASIBLE, back=found.back)
    outcome: BoundUnit | RejectedUnit = (
        rejected_plan(unit, faults, nodes, round_state, (), plan)
        if faults
        else accept(found.placed_unit, nodes, found.round_state, Proof.FEASIBLE, (), preemption=plan)
    )
    if isinstance(outcome, RejectedUnit):
        draft.undo(mark)
        context.rejected += outcome.attempt.rejected
        return None
    attempt = replace(waiting.attempt, unit=found.unit, proof=Proof.FEASIBLE)
    return PreemptingUnit(attempt, outcome.nodes, victims, found.back, notes=outcome.notes)


def are_evictable(pods: tuple[PodInfo, ...], round_state: RoundState) -> bool:
    """Returns True if all members may be evicted together.

    No member may be protected, terminating, of another scheduler or evicted already, and no PodDisruptionBudget may be
    exceeded.
    """
    names, gone = round_state.snapshot.scheduler_names, round_state.draft.evicted
    if any(untouchable(pod) or pod.pod.spec.scheduler_name not in names or pod.key in gone for pod in pods):
        return False
    return not forbid(budgets_of(round_state.draft), pods)


def _why(unit: Unit, round_state: RoundState) -> str:
    """Returns the text for the events on the evicted members."""
    gang = next(gang for gang in unit.gangs if missing_members(gang))
    waited = round_state.snapshot.now - since(gang, round_state.snapshot)
    return f"it has {present(gang, round_state.draft)} of {gang.min_member} members for {waited:.0f}s"
