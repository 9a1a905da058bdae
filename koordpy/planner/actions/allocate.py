# SPDX-License-Identifier: Apache-2.0
"""Tries the pending units in queue order: the main action of a round.

If a unit lacks capacity, later units of the same equivalence class get its outcome without an attempt. Policies reserve
capacity for units at the head of the queue (`planner/queue/queue_policy.py`). Broken gangs have the first turns. Then,
before any other unit, gangs that stay broken move as a whole or get seats, and hurt members move (docs/rules/repair.md
4), so that no other unit takes the capacity that a running gang needs.
"""

from collections.abc import Hashable, Mapping
from typing import TypeGuard

from koordpy.attempts.unit_attempt import equivalence_class
from koordpy.attempts.unit_outcome import DeferredUnit, PlacedUnit, UnitOutcome, WaitingUnit
from koordpy.gangs.broken_gangs import is_broken, missing_members
from koordpy.gangs.queue_units import Unit
from koordpy.gangs.unit_gates import Gate
from koordpy.plan.round_plan import DeferralReason
from koordpy.planner.actions.move_hurt_members import move_hurt_members
from koordpy.planner.actions.repair import repair
from koordpy.planner.bounded_round import BoundedRound
from koordpy.planner.queue.backfill import Backfill
from koordpy.planner.queue.provisioned_nodes import NewNodes
from koordpy.planner.queue.queue_policy import QueuePolicy
from koordpy.planner.queue.returning_pods import ReturningPods
from koordpy.planner.queue.seats import Seats
from koordpy.planner.queue.starvation import StarvationGuard, starving_beside
from koordpy.planner.queue.unit_order import UnitOrder
from koordpy.planner.round_context import RoundContext
from koordpy.preemption.search.stale_gangs import possibly_stale_gangs

Failures = Mapping[Hashable, WaitingUnit | DeferredUnit]
"""Equivalence class -> the outcome of its first unit that lacked capacity or was deferred to a search."""


def allocate(context: RoundContext) -> None:
    """Tries each due unit in queue order, and adds its outcome to the context."""
    # the queue, the policies that reserve capacity for its head, and the limit of the planning time
    round_state, outcomes = context.round_state, context.outcomes
    units = queued_units(context)
    queue = order_units(units, context)
    context.policies = policies_of(queue, context)
    if context.budget is not None:
        due = (unit for unit in units if context.is_due(unit))
        context.bound = BoundedRound(round_state, context.budget, due)
    # each unit in turn; a unit of a class with a known failure gets that outcome without an attempt
    failures: dict[Hashable, WaitingUnit | DeferredUnit] = {}
    is_turn_of_broken = True
    for unit in queue:
        if is_turn_of_broken and (unit.plain is not None or not is_broken(unit.gangs)):
            is_turn_of_broken = False
            _end_turn_of_broken(context)
        if not is_tried(unit, context):
            continue
        context.take_turn(unit)
        key = failure_key(unit, failures, context)
        if key is not None and key in failures:
            outcomes.append(failures[key].copy_for(unit))
            continue
        outcome = context.attempt(unit)
        for policy in context.policies:
            outcome = policy.settle(unit, outcome)
        outcomes.append(outcome)
        if isinstance(outcome, PlacedUnit):
            queue.placed()
        elif key is not None and holds_for_class(outcome):
            # a later placement may make a follower fit (`retry_followers.py`), so its failure is not shared
            if unit.plain is not None and outcome.refusal is None and round_state.of(unit.plain).follows:
                context.followers.append(len(outcomes) - 1)
            else:
                failures[key] = outcome
    if is_turn_of_broken:
        _end_turn_of_broken(context)


def _end_turn_of_broken(context: RoundContext) -> None:
    """Moves broken gangs without a place for their missing members, reserves seats for gangs that stay broken, then
    moves hurt members."""
    if context.has_broken_units():
        repair(context)
    if context.has_hurt_members():
        for policy in context.policies:
            policy.end_turn_of_broken()
        move_hurt_members(context)


def queued_units(context: RoundContext) -> list[Unit]:
    """Returns the due units, and other units for which a policy may have to reserve capacity.

    With backfill the other units are all pending units, otherwise units that may be starving.
    """
    groups, only, config = context.round_state.groups, context.only, context.round_state.config
    if only is None or config.queue.backfill:
        return groups.units()
    due, after = groups.units(only), config.fairness.starvation_after
    latest = groups.snapshot.now - after
    if after <= 0 or not any(pod.created <= latest for pod in groups.snapshot.pending):
        return due
    return due + starving_beside(groups, only, latest)


def order_units(units: list[Unit], context: RoundContext) -> UnitOrder:
    """Returns the units in the order in which the round tries them."""
    snapshot, config = context.round_state.snapshot, context.round_state.config
    use = context.round_state.draft.quotas
    return UnitOrder(units, use=use, pods=snapshot.pods.values(), config=config.fairness, now=snapshot.now)


def policies_of(queue: UnitOrder, context: RoundContext) -> list[QueuePolicy]:
    """Returns the policies that reserve capacity in the round."""
    round_state, out = context.round_state, list[QueuePolicy]()
    if round_state.config.autoscaling.provisioning.mode != "off" and not (new := NewNodes(round_state)).is_idle:
        out.append(new)
    if round_state.config.queue.backfill:
        out.append(Backfill(round_state, context.ways))
    if queue.starving:
        backfill = next((one for one in out if isinstance(one, Backfill)), None)
        out.append(StarvationGuard(round_state, queue.starving, backfill=backfill))
    groups, snapshot = round_state.groups, round_state.snapshot
    if snapshot.returning:
        out.append(ReturningPods(round_state))
    if snapshot.members and any(missing_members(groups.gang(ref)) for ref in possibly_stale_gangs(snapshot)):
        out.append(Seats(round_state, context.outcomes, out))
    return out


def is_tried(unit: Unit, context: RoundContext) -> bool:
    """Returns True if the round tries a unit: it is due, or a policy demands it.

    The policy may also reserve capacity for the unit in this call.
    """
    if context.is_due(unit):
        return True
    return any(policy.considers(unit) for policy in context.policies)


def failure_key(unit: Unit, failures: Failures, context: RoundContext) -> Hashable | None:
    """Returns the key of the unit's equivalence class; None if the unit cannot share a failure with other units."""
    if context.is_cut and not failures:
        return None  # only a few more units are tried, and no known failure applies to them
    key = equivalence_class(unit, context.round_state)
    for policy in context.policies if key is not None else ():
        key = policy.extend_key(unit, key)
    return key


def holds_for_class(outcome: UnitOutcome) -> TypeGuard[WaitingUnit | DeferredUnit]:
    """Returns True if the outcome applies to every unit of the same equivalence class."""
    match outcome:
        case WaitingUnit():
            return not isinstance(outcome.diagnosis, Gate) and not outcome.awaits
        case DeferredUnit(reason=DeferralReason.SEARCH):
            return True
    return False
