# SPDX-License-Identifier: Apache-2.0
"""Finds new nodes for running members of one unit: of a whole broken gang, or of members with unhealthy devices.

Regather moves a whole broken gang, because its missing members fit nowhere beside the live ones. All live members are
evicted and placed again together with pending members. They may use free capacity and the capacity that they use now;
no other pod is evicted. The plan must place every live member and at least minMember members. First all pending members
are tried, then only those that the gang lacks. Members with unhealthy devices move alone, and the other members stay.
Reservations, quotas and gates apply as to a new gang. Source: docs/rules/repair.md 4.1 and 4.3.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec.structs import replace as changed

from koordpy.devices.rule_registry import deal_returning, device_gate, place_returning
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.broken_gangs import missing_members
from koordpy.gangs.queue_units import Unit
from koordpy.gangs.unit_gates import gate
from koordpy.pods.family_books import NO_DEVICES
from koordpy.pods.pod_info import PodInfo
from koordpy.preemption.search.relocation import Back, as_pending
from koordpy.problems.problem_building import build
from koordpy.problems.unit_placement import Question, place_unit
from koordpy.verify.plan_check import check_returns


@dataclass(frozen=True, slots=True)
class Regathered:
    """The new nodes of the members of a unit that moves."""

    unit: Unit
    """The unit with its moved members pending again, and without the pending members that get no node."""
    placed_unit: Unit
    """The same unit with the moved members bound to their new nodes."""
    back: tuple[Back, ...]
    """The moved members as they will be recreated, with their new nodes. They are on the draft."""
    nodes: Mapping[str, int]
    """Pod key -> node position of the members that were pending before. They are not on the draft yet."""
    round_state: RoundState
    """The round state of the draft in which the moved members are placed."""


def place_again(unit: Unit, round_state: RoundState) -> Regathered | None:
    """Returns the new nodes of all members of a unit with a broken gang; None if they do not fit.

    Expects a draft from which the live members are evicted. On success, their new placements stay on the draft.
    """
    live = tuple(pod for pod in unit.members if pod.bound)
    for others in (unit.pending, _missing(unit)):
        mark = round_state.draft.mark()
        found = _place_with(unit, live, others, round_state, spares=False)
        if found is not None:
            return found
        round_state.draft.undo(mark)
    return None


def place_beside(unit: Unit, moved: Sequence[PodInfo], round_state: RoundState) -> Regathered | None:
    """Returns the new nodes of the given bound members of a unit; None if not all of them fit.

    The other members stay. Expects a draft from which the moved members are evicted. On success, their new placements
    stay on the draft. Spare nodes may be used.
    """
    return _place_with(unit, moved, (), round_state, spares=True)


def _missing(unit: Unit) -> tuple[PodInfo, ...]:
    """Returns the pending members that regather must place.

    Of each broken gang these are as many as it lacks, of the lowest ranks; of other gangs all pending members.
    """
    left = {gang.ref: missing_members(gang) or len(gang.pending) for gang in unit.gangs}
    out = []
    for pod in unit.pending:
        if pod.gang is not None and left[pod.gang] > 0:
            left[pod.gang] -= 1
            out.append(pod)
    return tuple(out)


def _place_with(
    unit: Unit, moving: Sequence[PodInfo], others: Sequence[PodInfo], round_state: RoundState, *, spares: bool
) -> Regathered | None:
    """Places the bound members that move and some pending members (`others`) together; None if not all of them fit.

    spares: True if spare nodes may be used.
    """
    live = {pod.key: _recreated(pod, round_state) for pod in moving}
    chosen = {pod.key for pod in others}
    if any(missing_members(gang) > sum(pod.key in chosen for pod in gang.pending) for gang in unit.gangs):
        return None
    again = unit.with_changes(lambda pod: live.get(pod.key, pod if pod.bound or pod.key in chosen else None))
    whole = Unit(again.id, tuple(replace(gang, stale_minimum=len(gang.pending)) for gang in again.gangs))
    state = round_state.of_changed(whole)
    state.inputs.repairs = lambda pod: spares
    if gate(whole, round_state.groups) is not None or device_gate(whole, state) is not None:
        return None
    use = round_state.draft.quotas
    if use.quotas.tree.quotas and state.admission.refusal(whole, use) is not None:
        return None
    nodes = _nodes_of(whole, state)
    if nodes is None:
        return None
    moved = [pod for pod in whole.members if pod.key in live]
    names = round_state.snapshot.nodes
    if check_returns([(pod, names[nodes[pod.key]].name) for pod in whole.pending], state):
        return None
    dealt = deal_returning([(pod, nodes[pod.key]) for pod in moved], state)
    if dealt is None:
        return None
    back = tuple(Back(pod, nodes[pod.key], dealt.get(pod.key, NO_DEVICES)) for pod in moved)
    for one in back:
        round_state.draft.assign(one.pod, one.node, devices=one.devices)
    placed_unit = again.with_bound({one.pod.key: names[one.node].name for one in back})
    return Regathered(whole, placed_unit, back, {key: nodes[key] for key in nodes if key in chosen}, state)


def _recreated(pod: PodInfo, round_state: RoundState) -> PodInfo:
    """Returns a moved member as its controller recreates it: pending, in the same gang."""
    return changed(as_pending(pod, round_state), gang=pod.gang, index=pod.index, made_group=pod.made_group)


def _nodes_of(unit: Unit, round_state: RoundState) -> dict[str, int] | None:
    """Returns pod key -> node position of all pending members; None if a member has no node.

    Nodes are found by the rules of a device family if they apply, else by the planner's placement. The draft stays as
    it is.
    """
    nodes: dict[str, int] = {}
    for pods, found in place_returning(unit.pending, round_state):
        if len(found) < len(pods):
            return None
        nodes.update({pod.key: found[pod.key] for pod in pods})
    if len(nodes) == len(unit.pending):
        return nodes
    if nodes:
        return None  # the device family places only some of the members
    problem = build(unit, round_state)
    wanted = [sum(pod.gang == gang.ref for pod in unit.pending) for gang in unit.gangs]
    solution = place_unit(unit, replace(problem, needs=tuple(wanted)), round_state, Question.BEST)
    nodes = {unit.members[rank].key: node for rank, node in solution.nodes.items()}
    return nodes if len(nodes) == len(unit.pending) else None
