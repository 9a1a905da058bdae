# SPDX-License-Identifier: Apache-2.0
"""Plans one unit, a plain pod or a gang, on the round's draft (`plan_unit`).

The stages: gates, quotas, placement into free capacity, the independent check, preemption, and at last a test that the
plan invalidates no nomination of another pod. A gate ends the attempt. If a quota refuses the unit, or if it finds no
free capacity, preemption may still help. Source: gang-network.md 2.3 to 2.8; for plain pods kube-parity.md 3.
"""

from collections.abc import Callable, Hashable
from dataclasses import replace

from koordpy.api.natural_order import natural_key
from koordpy.api.reading_limits import GANG_KINDS, too_many
from koordpy.attempts.broken_unit import preempt_or_repair
from koordpy.attempts.feasible_nominations import nominations_still_feasible
from koordpy.attempts.filter_errors import find_error
from koordpy.attempts.plan_acceptance import accept
from koordpy.attempts.resources_gate import check_min_resources
from koordpy.attempts.unit_outcome import (
    Attempt,
    BoundUnit,
    DeferredUnit,
    NoCapacity,
    PlacedUnit,
    PreemptingUnit,
    RejectedUnit,
    UnitOutcome,
    WaitingUnit,
)
from koordpy.devices.family_registry import untie
from koordpy.devices.placement_rules import JobPlan
from koordpy.devices.rule_registry import device_gate, hold_returns, place_by_rules, placement_of
from koordpy.fairness.quota_admission import QuotaRefusal
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.gathered_parts import has_parts
from koordpy.gangs.queue_units import Unit
from koordpy.gangs.unit_gates import Gate, gate
from koordpy.placement.problem import Problem, Solution, only_ranks
from koordpy.plan.limits import COUNTED_KINDS
from koordpy.plan.pending_reason import Reason
from koordpy.plan.round_plan import GangStatus, Method, Proof
from koordpy.pods.pod_info import PodInfo
from koordpy.preemption.search.ending_pods import crowds_siblings
from koordpy.preemption.search.preemption_plan import Victim
from koordpy.preemption.search.preemption_search import PreemptionSearch
from koordpy.preemption.search.preemptor_sets import members_preempt_individually
from koordpy.preemption.selection.preemption_names import RuleName
from koordpy.preemption.selection.victim_units import UnitKind, VictimUnit
from koordpy.problems.placement_methods import needs_solver
from koordpy.problems.problem_building import build
from koordpy.problems.unit_placement import Question, place_unit
from koordpy.quota.preemption_history import units_that_gained

PreemptorSource = Callable[[], PreemptionSearch]
"""Returns the round's search for victims. The search is created at the first call."""


def equivalence_class(unit: Unit, round_state: RoundState) -> Hashable | None:
    """Returns the key of a unit's equivalence class: units with equal keys have the same outcome on the same draft.

    If the first unit of a class is refused, the planner copies its outcome to the others (`WaitingUnit.copy_for`) and
    does not plan them. Units of a class have equal requests, constraints, quotas, preemption policies and gang layout.
    None: the unit must be planned by itself, because it has bound members, parts, or members with nodes that depend on
    other pods.
    """
    quotas = round_state.snapshot.quotas
    # the victims that a pod may evict depend on its owner and its preemption policy (preemption.md 1)
    first = unit.members[0]
    owner = quotas.user_of(first), quotas.queue_of(first)
    # units that this unit may not reclaim from, because it was evicted for them (preemption.md 3.6)
    kept_from = (
        units_that_gained(round_state.snapshot.evicted_for, unit.id) if round_state.snapshot.evicted_for else None
    )
    if unit.plain is not None:
        return round_state.key(first), owner, first.preemption_policy, kept_from
    if unit.bound_any or has_parts(unit) or any(round_state.concerned(pod) for pod in unit.pending):
        return None
    position = {gang.ref: i for i, gang in enumerate(unit.gangs)}
    layout = tuple((unit.need(g), g.min_member, g.exists, g.fault, g.wish, g.hard_keys, g.links) for g in unit.gangs)
    resources = tuple(tuple(sorted(gang.min_resources.items())) for gang in unit.gangs)
    members = tuple((position[pod.gang] if pod.gang is not None else 0, round_state.key(pod)) for pod in unit.pending)
    return layout, resources, members, owner, tuple(pod.preemption_policy for pod in unit.pending), kept_from


def plan_unit(
    unit: Unit, round_state: RoundState, preemptor: PreemptorSource | None = None, *, defers: bool = False
) -> UnitOutcome:
    """Plans one unit on the draft, as a whole or not at all: into free capacity, else into capacity of victims.

    The draft keeps the plan only of a `PlacedUnit`. preemptor: None if no pod may be evicted for the unit. defers: True
    if a unit that needs the solver is left to the search worker; its outcome is then a `DeferredUnit`.
    """
    draft = round_state.draft
    protects = draft.has_nominations or draft.nominated
    nominated = nominations_still_feasible(unit, round_state) if protects else frozenset()
    mark = draft.mark()
    outcome = plan_in_free_capacity(unit, round_state, preemptor, defers=defers)
    # victims cannot help a unit that a gate blocks
    if preemptor is not None and isinstance(outcome, WaitingUnit) and not isinstance(outcome.diagnosis, Gate):
        outcome = preempt_or_repair(outcome, round_state, preemptor())
    if isinstance(outcome, PlacedUnit):
        return protect_nominations(outcome, nominated, mark, round_state, preemptor)
    return outcome


def plan_in_free_capacity(
    unit: Unit, round_state: RoundState, preemptor: PreemptorSource | None, *, defers: bool
) -> UnitOutcome:
    """Places one unit into free capacity, after its gates and quotas.

    Ascend NPUs have placement rules for whole jobs; a job that requests them is placed by these rules. All other units
    are placed by filters and scores. preemptor: used by device rules that move running members of a job; None if no pod
    may be evicted.
    """
    if (gate := find_gate(unit, round_state)) is not None:
        return WaitingUnit(Attempt(unit, Proof.UNKNOWN), gate)
    asks = any(pod.asks for pod in unit.pending)
    if asks and (error := find_error(unit, round_state)) is not None:
        return WaitingUnit(Attempt(unit, Proof.UNKNOWN), error)
    if (refusal := refuse_by_quota(unit, round_state)) is not None:
        return WaitingUnit(Attempt(unit, Proof.INFEASIBLE), refusal)
    if (plan := plan_job(unit, round_state)) is not None:
        return accept_job(unit, plan, round_state, preemptor).name_method(Method.RULES)
    outcome = place_freely(unit, round_state, defers=defers)
    if not (asks and isinstance(outcome, WaitingUnit) and isinstance(outcome.diagnosis, NoCapacity)):
        return outcome
    # try again without the device allocations of claims that no pod uses and that tie the unit to certain nodes
    mark = round_state.draft.mark()
    if untie(unit.pending, round_state.draft):
        again = place_freely(unit, round_state, defers=defers)
        if isinstance(again, BoundUnit):
            return again
        round_state.draft.undo(mark)
    return outcome


def place_freely(unit: Unit, round_state: RoundState, *, defers: bool) -> UnitOutcome:
    """Places a unit into free capacity: a plain pod by scores, a gang by solving its placement problem."""
    if unit.plain is not None:
        return place_pod(unit, unit.plain, round_state)
    return place_members(unit, round_state, defers=defers)


# --- gates and quotas -------------------------------------------------------------------------------------------------


def find_gate(unit: Unit, round_state: RoundState) -> Gate | None:
    """Returns the gate that blocks a unit before quotas and nodes are checked; None for no gate."""
    evicted = round_state.draft.evicted
    if unit.plain is not None:
        return device_gate(unit, round_state) if unit.plain.extended else None
    if evicted and any(pod.key in evicted for pod in unit.members):
        text = f"gang {unit.group_id}: members are evicted in this round; the next round plans the gang again"
        return Gate(text, GangStatus.UNSCHEDULABLE)
    if found := gate(unit, round_state.groups) or device_gate(unit, round_state):
        return found
    return check_min_resources(unit, round_state) if any(gang.min_resources for gang in unit.gangs) else None


def refuse_by_quota(unit: Unit, round_state: RoundState) -> QuotaRefusal | None:
    """Returns the refusal of the first quota that does not admit the unit.

    None if all quotas admit it, or if there are no quotas.
    """
    use = round_state.draft.quotas
    return round_state.admission.refusal(unit, use) if use.quotas.tree.quotas else None


def plan_job(unit: Unit, round_state: RoundState) -> JobPlan | None:
    """Returns the plan of a job by the placement rules of its devices (Ascend NPUs); None for any other unit."""
    return place_by_rules(unit, round_state) if any(pod.extended for pod in unit.pending) else None


# --- nodes, check and draft -------------------------------------------------------------------------------------------


def place_pod(unit: Unit, pod: PodInfo, round_state: RoundState) -> WaitingUnit | BoundUnit | RejectedUnit:
    """Places a plain pod by filters and scores, as kube-scheduler does."""
    node = choose_node(pod, round_state)
    if node is None:
        return WaitingUnit(Attempt(unit, Proof.INFEASIBLE, Method.SCORES), NoCapacity())
    return accept(unit, {pod.key: node}, round_state, Proof.OPTIMAL, ()).name_method(Method.SCORES)


def choose_node(pod: PodInfo, round_state: RoundState) -> int | None:
    """Returns the node for a plain pod, as a position in the snapshot; None if no node has a slot.

    The nominated node is chosen if it fits. Otherwise the order is: highest total score, fewest free slots, natural
    order of names (kube-parity.md 3, 4.5). If the pod requests devices with placement rules, these rules choose.
    """
    nominated = round_state.snapshot.index.get(pod.nominated_node) if pod.nominated_node else None
    if nominated is not None and round_state.of(pod).slots[nominated] > 0:
        return nominated
    family = placement_of(pod) if pod.extended else None
    return family.choose_node(pod, round_state) if family is not None else round_state.of(pod).best_node()


def place_members(unit: Unit, round_state: RoundState, *, defers: bool) -> UnitOutcome:
    """Places the members of a gang unit: builds the placement problem, solves it, and checks the solution.

    The problem has the unit and the draft as arrays (`placement/problem.py`). Most problems are solved exactly by
    counting, all others by CP-SAT.
    """
    if defers and len(unit.kinds) > COUNTED_KINDS:
        return DeferredUnit(Attempt(unit, Proof.UNKNOWN))
    problem = build(unit, round_state)
    if fault := too_many(len(problem.shapes), GANG_KINDS, "kinds of pods"):
        gate = Gate(f"gang {unit.group_id}: {fault}", GangStatus.INVALID)
        return WaitingUnit(Attempt(unit, Proof.UNKNOWN), gate)
    if defers and needs_solver(problem):
        return DeferredUnit(Attempt(unit, Proof.UNKNOWN))
    best = solve_problem(unit, problem, round_state)
    attempt = Attempt(unit, best.proof, Method.SOLVER if best.runs else Method.COUNTING, best.runs)
    if not best.placed:
        refusal = round_state.admission.core_refusal(unit, round_state.draft.quotas)
        return WaitingUnit(attempt, refusal or NoCapacity())
    nodes = {unit.members[rank].key: node for rank, node in sorted(best.nodes.items())}
    if any(pod.nominated_node for pod in unit.pending) and crowds_siblings(unit, nodes, round_state):
        return WaitingUnit(replace(attempt, proof=Proof.UNKNOWN), NoCapacity())
    return accept(unit, nodes, round_state, best.proof, best.runs).name_method(attempt.method)


def solve_problem(unit: Unit, problem: Problem, round_state: RoundState) -> Solution:
    """Returns nodes for the members of a unit.

    A unit without a gang (a GPU group, gpu-topology.md 5) is placed member by member, in order. If the members of a
    gang preempt individually, nominated members are placed first. Otherwise a less important member might get the node
    that was freed for a nominated member, and would be evicted for it again.
    """
    if not unit.is_gang:
        return place_unit(unit, problem, round_state, Question.IN_ORDER)
    nominated = {rank for rank in problem.pending if unit.members[rank].nominated_node}
    if nominated and len(nominated) < len(problem.pending) and members_preempt_individually(unit):
        found = place_unit(unit, only_ranks(problem, nominated), round_state, Question.BEST)
        if found.placed:
            return found
    return place_unit(unit, problem, round_state, Question.BEST)


# --- jobs with device placement rules ---------------------------------------------------------------------------------


def accept_job(unit: Unit, plan: JobPlan, round_state: RoundState, preemptor: PreemptorSource | None) -> UnitOutcome:
    """Checks the plan of a job with device placement rules, and puts it on the draft."""
    if not plan.nodes:
        refusal = round_state.admission.core_refusal(unit, round_state.draft.quotas)
        attempt = Attempt(unit, plan.proof, Method.RULES, plan.runs)
        return WaitingUnit(attempt, refusal or NoCapacity(plan.remark))
    if plan.evicted:
        return move_members(unit, plan, round_state, preemptor)
    outcome = accept(unit, dict(plan.nodes), round_state, plan.proof, plan.runs, plan.notes)
    return replace(outcome, remark=plan.remark) if isinstance(outcome, BoundUnit) else outcome


def move_members(
    unit: Unit, plan: JobPlan, round_state: RoundState, preemptor: PreemptorSource | None
) -> WaitingUnit | PreemptingUnit | RejectedUnit:
    """Evicts running members, so that they and the pending members are placed together (ascend.md 5.3)."""
    if preemptor is None:
        return WaitingUnit(Attempt(unit, Proof.INFEASIBLE), NoCapacity(plan.remark))
    draft = round_state.draft
    mark = draft.mark()
    draft.evict_all(plan.evicted)
    outcome = accept(unit, dict(plan.nodes), round_state, plan.proof, plan.runs, plan.notes)
    if isinstance(outcome, RejectedUnit):
        draft.undo(mark)
        return outcome
    hold_returns(unit, plan.returns, round_state)
    victim = Victim(VictimUnit(UnitKind.BROKEN, plan.evicted, unit.group_id), RuleName.STALE_GANG, plan.moved)
    preemptor().reread()
    return PreemptingUnit(outcome.attempt, outcome.nodes, (victim,), notes=outcome.notes, remark=plan.remark)


# --- nominations of other pods ----------------------------------------------------------------------------------------


def protect_nominations(
    outcome: PlacedUnit,
    nominated: frozenset[tuple[str, tuple[str, ...]]],
    mark: int,
    round_state: RoundState,
    preemptor: PreemptorSource | None,
) -> UnitOutcome:
    """Undoes a plan that would invalidate the nomination of another pod, and returns a `WaitingUnit` instead.

    Otherwise victims would be evicted for that pod again, or each of the two units would wait for the other. A plan
    that invalidates no nomination is returned as it is; if it has victims, its pods are marked as nominated.

    nominated: nominations that were feasible before the plan, as (pod key, filters). mark: the draft's mark before the
    plan.
    """
    unit, draft = outcome.unit, round_state.draft
    closed = nominated - nominations_still_feasible(unit, round_state) if nominated else frozenset()
    if isinstance(outcome, PreemptingUnit):
        # The unit is not bound in this round. A more important nominated pod starts before it and is not affected, so
        # only pods that must yield to the unit count.
        closed = frozenset(one for one in closed if yields_to(round_state.snapshot.pods[one[0]], outcome))
    if not closed:
        if isinstance(outcome, PreemptingUnit):
            draft.nominate(outcome.nodes)
        return outcome
    draft.undo(mark)
    if isinstance(outcome, PreemptingUnit) and preemptor is not None:
        preemptor().reread()
    # a unit that was about to use its own reservation keeps it while it waits
    promised = isinstance(outcome, BoundUnit) and any(round_state.reservations.has(pod) for pod in unit.pending)
    awaits = outcome.nodes if promised else {}
    draft.reserve(awaits, waits_for={pod for pod, _ in closed})
    key, plugins = min(closed, key=lambda one: natural_key(one[0]))
    text = f"placing it would block the nominated pod {key}"
    refusal = f"0/{len(round_state.snapshot.nodes)} nodes are available: {text}."
    blocked = Gate(refusal, GangStatus.UNSCHEDULABLE, Reason.HELD_BACK, plugins)
    return WaitingUnit(Attempt(unit, Proof.UNKNOWN, rejected=outcome.attempt.rejected), blocked, awaits=awaits)


def yields_to(pod: PodInfo, outcome: PreemptingUnit) -> bool:
    """Returns True if the capacity that victims free for a unit is closed to a pod, because the pod's priority is not
    higher, or because the capacity is reclaimed (`ClosedTo.RANK`)."""
    most = max(one.priority for one in outcome.unit.pending if one.key in outcome.nodes)
    reclaimed = any(victim.rule in (RuleName.QUOTA, RuleName.FAIR_SHARE) for victim in outcome.victims)
    return reclaimed or pod.priority <= most
