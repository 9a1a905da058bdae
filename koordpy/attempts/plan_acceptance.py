# SPDX-License-Identifier: Apache-2.0
"""Checks the plan of a unit independently of the planner, and puts it on the draft.

Every plan of every method passes through `accept`. The checks of package `verify` read pods and nodes, and share no
arithmetic with the search. A plan that fails its check is a bug of the planner; it is reported and never carried out.
"""

from collections.abc import Mapping, Sequence

from koordpy.attempts.unit_outcome import Attempt, BoundUnit, RejectedUnit
from koordpy.devices.family_registry import allocate, merge_notes
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.plan.round_plan import NOTHING_ALLOCATED, Proof, SolverRun
from koordpy.pods.family_books import NO_DEVICES
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
    preemption: PreemptionPlan | None = None,
) -> BoundUnit | RejectedUnit:
    """Allocates devices for a unit's plan, checks the plan, and puts it on the draft.

    Returns `RejectedUnit` if the check found a fault; the draft is unchanged then. nodes: pod key -> node position.
    proof, runs: of the method that found the plan. notes: pod key -> further annotations of its Binding, beside those
    of its devices. preemption: the preemption plan that the placement belongs to, with its victims already
    off the draft; None without victims.
    """
    # 1. devices of each pod on its node
    names = {key: round_state.snapshot.nodes[node].name for key, node in nodes.items()}
    pods = round_state.snapshot.pods
    allocation = allocate(nodes, round_state) if any(pods[key].asks for key in nodes) else NOTHING_ALLOCATED
    own = merge_notes(allocation.notes, notes) if notes else allocation.notes
    # 2. the check of nodes, devices and gang rules, on the draft without the plan
    faults = [*found(Check.DEVICES, allocation.faults), *check_plan(unit, names, round_state, allocation.devices, own)]
    if faults:
        return rejected_plan(unit, faults, nodes, round_state, runs, preemption)
    # 3. the plan on the draft, and then the check of claims that its pods share
    mark = round_state.draft.mark()
    for key, node in nodes.items():
        pod = pods[key]
        devices = allocation.devices.get(key, NO_DEVICES)
        round_state.draft.assign(pod, node, round_state.claims_at(pod, node), devices)
    faults = check_claims([pods[key] for key in nodes], round_state.draft)
    if faults:
        round_state.draft.undo(mark)
        return rejected_plan(unit, faults, nodes, round_state, runs, preemption)
    round_state.notes.update(own)
    return BoundUnit(Attempt(unit, proof, runs=runs), nodes, own)


def rejected_plan(
    unit: Unit,
    faults: Sequence[PlanFault],
    nodes: Mapping[str, int],
    round_state: RoundState,
    runs: tuple[SolverRun, ...],
    preemption: PreemptionPlan | None,
) -> RejectedUnit:
    """Returns the outcome of a unit with a plan that failed its check, with all data for the log.

    faults: found by the check, at least one. Other arguments as in `accept`.
    """
    preemption = preemption or PreemptionPlan()
    every = [*nodes.items(), *((back.pod.key, back.node) for back in preemption.back)]
    evicted = [EvictedUnit(victim.unit.pods, str(victim.rule)) for victim in preemption.victims]
    names = [(key, round_state.snapshot.nodes[node].name) for key, node in every]
    plan = rejection(unit.id, faults, evicted, names, preemption.way or "")
    return RejectedUnit(Attempt(unit, Proof.UNKNOWN, runs=runs, rejected=(plan,)), "; ".join(faults[:3]))
