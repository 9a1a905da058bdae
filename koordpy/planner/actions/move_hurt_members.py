# SPDX-License-Identifier: Apache-2.0
"""Moves members that use unhealthy devices (hurt members), with `repair.sickDevices: evict` (docs/rules/repair.md 4.1).

The action runs after the broken gangs were tried, and before other units. The hurt members of a gang are evicted
together, if the same plan has new nodes for all of them beside the other members of the unit. They may use free
capacity and the capacity that they use now; no other pod is evicted. Members of units with a broken gang, and of gangs
with the policy `wait`, are not moved. The device of a hurt member counts as used until the member has ended.
"""

from koordpy.api.natural_order import natural_key
from koordpy.gangs.broken_gangs import is_broken, repair_policy, sick_holders
from koordpy.gangs.gang_settings import Gang
from koordpy.gangs.queue_units import Unit
from koordpy.planner.actions.repair import are_evictable
from koordpy.planner.queue.queue_policy import closing_all
from koordpy.planner.round_context import RoundContext
from koordpy.pods.pod_info import PodInfo
from koordpy.preemption.search.regather import place_beside
from koordpy.preemption.selection.disruption_budgets import budgets_of
from koordpy.preemption.selection.victim_units import terminating
from koordpy.report.eviction_words import hurt_evictions
from koordpy.verify.eviction_check import REPAIR, EvictedUnit, Round, check_hurt, rejection
from koordpy.verify.plan_check import check_gathered
from koordpy.verify.plan_check import found as found_by
from koordpy.verify.plan_fault import Check


def move_hurt_members(context: RoundContext) -> None:
    """Evicts the hurt members of each due unit, if new nodes are found for them."""
    round_state = context.round_state
    groups, draft, snapshot = round_state.groups, round_state.draft, round_state.snapshot
    sick = sick_holders(snapshot)
    refs = {pod.gang for key in sick if (pod := snapshot.pods.get(key)) is not None and pod.gang is not None}
    order = sorted(refs, key=lambda ref: (natural_key(ref.namespace), natural_key(ref.name), ref.source.value))
    placed = {key: snapshot.nodes[node].name for key, node in draft.placed.items()}
    for unit in {groups.id_of(ref): groups.unit(ref) for ref in order}.values():
        if context.is_due(unit):
            _move_unit(unit.with_bound(placed, draft.evicted), sick, context)


def _move_unit(unit: Unit, sick: frozenset[str], context: RoundContext) -> None:
    """Evicts the hurt members of each gang of a unit. unit: with the placements of this round."""
    if is_broken(unit.gangs):
        return
    for gang in unit.gangs:
        hurt = _hurt_members(gang, sick, context)
        if hurt and are_evictable(hurt, context.round_state):
            unit = _move(unit, gang, hurt, context) or unit


def _move(unit: Unit, gang: Gang, hurt: tuple[PodInfo, ...], context: RoundContext) -> Unit | None:
    """Evicts the hurt members of one gang, if all of them get new nodes. Returns the unit with the members on their new
    nodes; None if they stay."""
    round_state = context.round_state
    draft, names = round_state.draft, round_state.snapshot.nodes
    faults = check_hurt(unit, hurt, Round(round_state, None, budgets_of(draft)))
    mark = draft.mark()
    draft.evict_all(hurt)
    with closing_all(context.policies, unit, hurt):
        found = place_beside(unit, hurt, round_state)
    returns = {one.pod.key: names[one.node].name for one in found.back} if found is not None else {}
    if found is not None:
        faults += found_by(Check.GANG, check_gathered(found.unit, returns, found.round_state))
    if found is None or faults:
        draft.undo(mark)
        if faults:
            context.rejected.append(rejection(unit.id, faults, [EvictedUnit(hurt, REPAIR)], [*returns.items()]))
        return None
    context.evictions += hurt_evictions(gang, hurt, unit.id, returns)
    return found.placed_unit


def _hurt_members(gang: Gang, sick: frozenset[str], context: RoundContext) -> tuple[PodInfo, ...]:
    """Returns a gang's hurt members that are not terminating; none with the policy `wait`."""
    snapshot, draft = context.round_state.snapshot, context.round_state.draft
    if repair_policy(gang, snapshot, context.round_state.config.repair) == "wait":
        return ()
    return tuple(pod for pod in gang.bound if pod.key in sick and not terminating(pod) and pod.key not in draft.placed)
