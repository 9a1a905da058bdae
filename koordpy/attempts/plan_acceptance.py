"""Checks the plan of a unit independently and puts it on the draft."""

from collections.abc import Mapping, Sequence

from koordpy.attempts.unit_outcome import Attempt, BoundUnit, RejectedUnit
from koordpy.devices.family_registry import give, merged
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.plan.round_plan import NOTHING_ALLOCATED, Proof, SolverRun
from koordpy.pods.family_books import NOTHING_GIVEN
from koordpy.preemption.search.preemption_plan import PreemptionPlan
from koordpy.verify.eviction_check import EvictedUnit, rejection
from koordpy.verify.plan_check import check_claims, check_plan, found
from koordpy.verify.plan_fault import Check, PlanFault


def accept(
    unit: Unit,
    nodes: dict[str, int],
    round_state: RoundState,
    proof: Proof,
    runs: tuple[SolverRun, ...],
    notes: Mapping[str, Mapping[str, str]] | None = None,
    relief: PreemptionPlan | None = None,
) -> BoundUnit | RejectedUnit:
    """Checks a unit's plan independently and puts it on the draft.

    nodes: pod key -> node position. notes: pod key -> annotations of its Binding. relief: the preemption plan that the
    placement belongs to, with its victims already off the draft; None without victims.
    """
    names = {key: round_state.snapshot.nodes[node].name for key, node in nodes.items()}
    pods = round_state.snapshot.pods
    given = give(nodes, round_state) if any(pods[key].asks for key in nodes) else NOTHING_ALLOCATED
    own = merged(given.notes, notes) if notes else given.notes
    faults = [*found(Check.DEVICES, given.faults), *check_plan(unit, names, round_state, given.given, own)]
    if faults:
        return rejected_plan(unit, faults, nodes, round_state, runs, relief)
    mark = round_state.draft.mark()
    for key, node in nodes.items():
        pod = pods[key]
        allocation = given.given.get(key, NOTHING_GIVEN)
        round_state.draft.assign(pod, node, round_state.claims_at(pod, node), allocation)
    faults = check_claims([pods[key] for key in nodes], round_state.draft)
    if faults:
        round_state.draft.undo(mark)
        return rejected_plan(unit, faults, nodes, round_state, runs, relief)
    round_state.notes.update(own)
    return BoundUnit(Attempt(unit, proof, runs=runs), nodes, own)


def rejected_plan(
    unit: Unit,
    faults: Sequence[PlanFault],
    nodes: Mapping[str, int],
    round_state: RoundState,
    runs: tuple[SolverRun, ...],
    relief: PreemptionPlan | None,
) -> RejectedUnit:
    """Returns the outcome of a unit with a plan that failed its check."""
    relief = relief or PreemptionPlan()
    every = [*nodes.items(), *((back.pod.key, back.node) for back in relief.back)]
    evicted = [EvictedUnit(victim.unit.pods, str(victim.rule)) for victim in relief.victims]
    names = [(key, round_state.snapshot.nodes[node].name) for key, node in every]
    plan = rejection(unit.id, faults, evicted, names, relief.way or "")
    return RejectedUnit(Attempt(unit, Proof.UNKNOWN, runs=runs, rejected=(plan,)), "; ".join(faults[:3]))
