# SPDX-License-Identifier: Apache-2.0
"""Preemption for one unit as a pipeline: rules -> candidate sets -> filters -> dry run -> check -> result.

The stages call each other from top to bottom:

    preempt        a unit without capacity -> its outcome; member by member if members preempt individually
    find_plan      preemptor sets (pods for which victims are searched): all pending members, then the core
    _try_rules     which running units may be evicted, step by step (`preemption/rules/rule_steps.py`)
    _try_scenario  one preemptor set under the rules of one step: bounds, then generators, then the check
    _generate      the least harmful plan, over all parts of the nodes, that passes its dry run (`select_victims.py`)
    _carry_out     the independent check on the draft; a plan that passes stays on the draft

The first plan that passes the check ends the search. Otherwise the result says why the search ended (`SearchEnd`). A
generator is a method that proposes victims. Generators run in the order of `Way`: a table of the nodes (for a plain
pod), counting, CP-SAT, greedy. If the check rejects a plan, the planner has a bug; then only the generators that come
after the rejected plan's generator are tried.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from koordpy.attempts.plan_acceptance import accept, rejected_plan
from koordpy.attempts.unit_outcome import (
    BoundUnit,
    DeferredUnit,
    PlacedUnit,
    PreemptingUnit,
    RejectedUnit,
    UnitOutcome,
    WaitingUnit,
)
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.plan.round_plan import DeferralReason, Proof, SolverRun
from koordpy.preemption.rules.plan_guards import PlanGuards
from koordpy.preemption.rules.rule_protocol import RuleInputs
from koordpy.preemption.rules.rule_steps import closing_reasons, consolidation_steps, limited_steps, rule_steps
from koordpy.preemption.rules.unclaimed_share import unclaimed_share
from koordpy.preemption.rules.victim_rules import steps
from koordpy.preemption.search.candidates import Rules, eligible_under
from koordpy.preemption.search.ending_pods import TerminationWait, find_termination_wait, waits_on_nominated
from koordpy.preemption.search.preemption_plan import PreemptionPlan, SearchEnd, combined_end
from koordpy.preemption.search.preemption_scenario import PreemptionScenario
from koordpy.preemption.search.preemption_search import PreemptionSearch
from koordpy.preemption.search.preemptor_sets import PreemptorSet, members_preempt_individually
from koordpy.preemption.search.select_victims import select_victims
from koordpy.preemption.selection.preemption_names import NO_GUARD, WAIVABLE, Guard, RuleName, Way
from koordpy.reservations.capacity_view import AFTER_TERMINATION


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of a search for victims, or of one stage of it."""

    end: SearchEnd
    """Why the search ended."""
    plan: PreemptionPlan | None = None
    """The plan; None if none was found."""
    outcome: PlacedUnit | RejectedUnit | None = None
    """A `PlacedUnit` for the plan that is on the draft, or a `RejectedUnit` with all plans that the check rejected;
    None if no plan was checked."""
    reasons: tuple[str, ...] = ()
    """Sentences on the rules that were tried; they follow the count of nodes in the message of a pending pod."""
    runs: tuple[SolverRun, ...] = ()
    """Runs of CP-SAT."""
    withheld: frozenset[Guard] = NO_GUARD
    """Guards, such as `protection.maxHarm`. Each of them blocks a plan by itself: without it a plan would exist."""
    termination_wait: TerminationWait | None = None
    """Nodes that will fit the unit once terminating pods have ended, so that nothing is evicted; None for none."""


def preempt(refused: WaitingUnit, now: RoundState, search: PreemptionSearch | None) -> UnitOutcome:
    """Returns the outcome of a unit that found no capacity: with victims, or waiting with the reason.

    refused: the outcome without victims. now: round state as a unit sees it that starts now. search: the round's search
    for victims; None if no pod may be evicted. A quota refusal without `limit_name` (the pods name a parent quota, or
    an unreadable one) is returned unchanged, because evictions cannot lift it.
    """
    if search is None or (refused.refusal is not None and not refused.refusal.limit_name):
        return refused
    unit = refused.unit
    found = find_plan(unit, now, search)
    if not isinstance(outcome := found.outcome, PlacedUnit):
        return _waiting(refused, found, now)
    # while members preempt individually, each further pending member gets its own search, until one finds no plan
    while members_preempt_individually(unit):
        more = find_plan(unit, now, search, outcome.nodes)
        if isinstance(more.outcome, PlacedUnit):
            outcome = _joined(outcome, more.outcome)
            continue
        if more.outcome is not None:
            rejected = (*outcome.attempt.rejected, *more.outcome.attempt.rejected)
            outcome = replace(outcome, attempt=replace(outcome.attempt, rejected=rejected))
        break
    return outcome


def _waiting(refused: WaitingUnit, found: SearchResult, now: RoundState) -> UnitOutcome:
    """Returns the outcome of a unit for which no plan was found: deferred, waiting, or rejected."""
    attempt = refused.attempt
    if found.end is SearchEnd.DEFERRED:
        return DeferredUnit(replace(attempt, proof=Proof.UNKNOWN), DeferralReason.SEARCH, refused.refusal)
    if found.termination_wait is not None:
        now.draft.reserve(found.termination_wait.nodes)
        text = found.termination_wait.stable_text if refused.unit.is_gang else found.termination_wait.text
        return replace(refused, reasons=(text,), awaits=found.termination_wait.nodes)
    if found.outcome is not None:
        return found.outcome
    proof = Proof.UNKNOWN if not found.end.is_proven else attempt.proof
    attempt = replace(attempt, proof=proof, runs=(*attempt.runs, *found.runs))
    return replace(refused, attempt=attempt, reasons=found.reasons, withheld=found.withheld)


def _joined(first: PlacedUnit, second: PlacedUnit) -> PlacedUnit:
    """Joins two plans of one unit, for different members, into one outcome. The proof is the weaker of the two."""
    proof = first.attempt.proof if second.attempt.proof is Proof.OPTIMAL else second.attempt.proof
    rejected = (*first.attempt.rejected, *second.attempt.rejected)
    attempt = replace(second.attempt, proof=proof, rejected=rejected)
    nodes, notes = {**first.nodes, **second.nodes}, {**first.notes, **second.notes}
    preempting = [one for one in (first, second) if isinstance(one, PreemptingUnit)]
    if not preempting:
        return BoundUnit(attempt, nodes, notes)
    victims = tuple(victim for one in preempting for victim in one.victims)
    back = tuple(one for plan in preempting for one in plan.back)
    return PreemptingUnit(attempt, nodes, victims, back, preempting[-1].least, notes)


# --- the pipeline -----------------------------------------------------------------------------------------------------


def find_plan(
    unit: Unit, now: RoundState, search: PreemptionSearch, placed: Mapping[str, int] | None = None
) -> SearchResult:
    """Returns the first plan that frees capacity for all pending members, or else for the core.

    If there is none, the result says why. placed: pod key -> node position of members that preempted individually
    just before; None for none.
    """
    early = _answer_early(unit, now, search, first=not placed)
    if early is not None:
        return early
    # `last`: the result to report if no set has a plan: the first undecided one, else that of the last set
    last: SearchResult | None = None
    refused: RejectedUnit | None = None
    tried: list[PreemptorSet] = []
    for preemptors in search.preemptor_sets(unit, placed or {}):
        found = _try_rules(preemptors, search, refused)
        if found.end is SearchEnd.FOUND:
            return found
        tried.append(preemptors)
        refused = found.outcome if isinstance(found.outcome, RejectedUnit) else None
        last = found if last is None or last.end.is_proven else last
    if last is None:
        return SearchResult(SearchEnd.NO_CANDIDATES)
    # no plan: find out whether one of the protections blocked it
    withheld = {guard: text for guard in WAIVABLE if (text := _withheld_by(guard, tried, search))}
    share = unclaimed_share(tried[-1].pods, search.round_state, search.entitlements.shares)
    reasons = (*last.reasons, *withheld.values(), *([f"{share}."] if share else []))
    return replace(last, outcome=refused, reasons=reasons, withheld=last.withheld.union(withheld))


def _answer_early(unit: Unit, now: RoundState, search: PreemptionSearch, *, first: bool) -> SearchResult | None:
    """Returns a result that needs no search; None if a search must run.

    No search is needed if there are no nodes, if terminating pods will free enough capacity, if the unit waits for its
    own victims, if no rule may evict a pod, or if searches are left to the search worker. first: True if no member of
    the unit has preempted individually just before.
    """
    if not now.snapshot.nodes:
        return SearchResult(SearchEnd.NO_CANDIDATES)
    if first and (awaited := find_termination_wait(unit, now)) is not None:
        return SearchResult(SearchEnd.AWAITING, termination_wait=awaited)
    if any(waits_on_nominated(pod, now) for pod in unit.pending if pod.nominated_node):
        return SearchResult(SearchEnd.NO_RULE)
    if not search.has_open_rule:
        share = unclaimed_share(unit.pending, now, search.entitlements.shares)
        return SearchResult(SearchEnd.NO_RULE, reasons=(f"{share}.",) if share else ())
    if search.defers:
        return SearchResult(SearchEnd.DEFERRED)
    return None


def _try_rules(preemptors: PreemptorSet, search: PreemptionSearch, refused: RejectedUnit | None) -> SearchResult:
    """Returns the first plan of one preemptor set. Tries the steps, which are sets of rules, one after the other.

    refused: outcome with the plans that the check has rejected so far; None if it has rejected none.
    """
    # the inputs of the rules: quotas, shares and priorities for this preemptor set
    rule_inputs = search.rule_inputs(preemptors)
    if not rule_inputs.admissible:
        return SearchResult(SearchEnd.NO_CANDIDATES, outcome=refused)
    # units that may be evicted for this set before any rule is applied; `rule_steps` reads `ends` between its steps
    free = search.free_units(preemptors)
    ends: list[SearchEnd] = []
    reasons: dict[str, None] = {}
    runs: tuple[SolverRun, ...] = ()
    for rules in rule_steps(rule_inputs, free, ends):
        found = _try_scenario(search.scenario(preemptors, rule_inputs, rules), search, refused)
        if found.end is SearchEnd.FOUND:
            return _with_runs(found, runs)
        runs += found.runs
        ends.append(found.end)
        reasons |= dict.fromkeys(found.reasons)
        refused = found.outcome if isinstance(found.outcome, RejectedUnit) else None
    closing, by_share = closing_reasons(rule_inputs, free)
    withheld = frozenset((Guard.SHARE,)) if by_share else NO_GUARD
    return SearchResult(combined_end(ends), None, refused, (*reasons, *closing), runs, withheld)


def _try_scenario(scenario: PreemptionScenario, search: PreemptionSearch, refused: RejectedUnit | None) -> SearchResult:
    """Returns the first plan of one scenario that passes the check. refused: as in `_try_rules`.

    A scenario is one preemptor set with the victims that the rules of one step allow.
    """
    # sums may show that all possible victims together free too little
    if (bound := scenario.bound()) is not None:
        return SearchResult(bound[0], outcome=refused, reasons=tuple(filter(None, bound[1:])))
    ways = tuple(search.ways)
    while ways:
        found = _generate(scenario, ways)
        if found.plan is None:
            return replace(found, outcome=refused)
        outcome = _carry_out(scenario.preemptors.unit, found.plan, search)
        attempt = outcome.attempt
        if refused is not None:
            # the plan was rejected, but the proof of its generator that no better plan exists may still be correct
            rejected = (*refused.attempt.rejected, *attempt.rejected)
            proof = Proof.FEASIBLE if isinstance(outcome, PlacedUnit) else attempt.proof
            outcome = replace(outcome, attempt=replace(attempt, proof=proof, rejected=rejected))
        if isinstance(outcome, PlacedUnit):
            return replace(found, outcome=outcome)
        # the check rejected the plan: only the generators after the one that found it are tried
        refused, way = outcome, found.plan.way
        ways = ways[ways.index(way) + 1 :] if way in ways else ()
    return SearchResult(SearchEnd.REJECTED, outcome=refused)


def _with_runs(found: SearchResult, before: tuple[SolverRun, ...]) -> SearchResult:
    """Returns the result with the solver runs of earlier steps added to its outcome."""
    if not before or found.outcome is None:
        return found
    attempt = replace(found.outcome.attempt, runs=(*before, *found.outcome.attempt.runs))
    return replace(found, outcome=replace(found.outcome, attempt=attempt))


def _generate(scenario: PreemptionScenario, ways: Sequence[Way]) -> SearchResult:
    """Returns the least harmful plan that passes its dry run. ways: generators that may run.

    For a plain pod the table of nodes comes first: it has the cheapest victims of each node. If these victims pass the
    dry run, that plan is returned. Otherwise, and for gangs, the other generators run on each part of the nodes, and
    the plan with the lowest cost is returned.
    """
    if Way.NODE in ways and (least := scenario.cheapest_node()) is not None:
        if not eligible_under(least).any():
            # the table proves that no node can be freed for the pod
            return SearchResult(SearchEnd.RULED_OUT)
        selection = select_victims(scenario, scenario.candidates(scenario.reachable.problem, least), (Way.COUNTING,))
        if selection.plan is not None:
            return SearchResult(SearchEnd.FOUND, selection.plan, runs=selection.runs)
    best: tuple[object, PreemptionPlan] | None = None
    ends, runs, reasons = list[SearchEnd](), list[SolverRun](), list[str]()
    for candidates in scenario.parts():
        if (bound := scenario.bound_of(candidates)) is not None:
            ends.append(bound[0])
            reasons += filter(None, bound[1:])
            continue
        selection = select_victims(scenario, candidates, ways)
        ends.append(selection.end)
        runs += selection.runs
        if selection.plan is not None and (best is None or selection.cost < best[0]):  # type: ignore[operator]
            best = selection.cost, selection.plan
    if best is not None:
        return SearchResult(SearchEnd.FOUND, replace(best[1], runs=tuple(runs)), runs=tuple(runs))
    return SearchResult(combined_end(ends), runs=tuple(runs), reasons=tuple(reasons[:1]))


def _carry_out(unit: Unit, plan: PreemptionPlan, search: PreemptionSearch) -> PlacedUnit | RejectedUnit:
    """Checks a plan and puts it on the draft. A rejected plan leaves no change on the draft.

    Returns a `BoundUnit` for a plan without victims.
    """
    # 1. checks before any change: the victims, and whether each of them is necessary
    now, nodes = search.now, dict(plan.nodes)
    if faults := search.faults(unit, plan):
        return rejected_plan(unit, faults, nodes, now, plan.runs, plan)
    draft, needless = now.draft, bool(search.needless(unit, plan))
    # 2. evictions and placements; `accept` checks the placements
    mark = draft.mark()
    for victim in plan.victims:
        draft.evict_all(victim.unit.pods)
    outcome = accept(unit, nodes, now.of_view(AFTER_TERMINATION), plan.proof, plan.runs, plan.notes, plan)
    if isinstance(outcome, BoundUnit) and (faults := search.faults_of_returns(plan)):
        outcome = rejected_plan(unit, faults, nodes, now, plan.runs, plan)
    if isinstance(outcome, RejectedUnit):
        draft.undo(mark)
        return outcome
    # 3. the plan is valid: victims that are only moved get their new nodes on the draft
    search.record_evictions(plan.victims)
    if needless:
        search.not_minimal.append(unit.id)
    for back in plan.back:
        draft.assign(back.pod, back.node, devices=back.devices)
    attempt = outcome.attempt if plan.way is None else replace(outcome.attempt, method=f"victims-{plan.way}")
    if not plan.victims:
        return replace(outcome, attempt=attempt)
    return PreemptingUnit(attempt, outcome.nodes, plan.victims, plan.back, plan.bound, outcome.notes)


# --- plans that a guard withholds -------------------------------------------------------------------------------------


def _withheld_by(guard: Guard, tried: Sequence[PreemptorSet], search: PreemptionSearch) -> str:
    """Returns a sentence on the plan that a guard blocks; empty if there is no plan without the guard either.

    Searches again as if the guard were off. The plan that is found is only reported, never carried out. tried: the
    preemptor sets in order; the first set with such a plan gives the sentence.
    """
    seen = set[frozenset[bytes]]()
    for preemptors in tried:
        guards = PlanGuards(preemptors.unit, preemptors.pods, search.config)
        kinds = frozenset(pod.shape for pod in preemptors.pods)
        if not guards.may_withhold(guard) or (len(preemptors.pods) == 1 and kinds in seen):
            # the guard cannot block a plan here, or a single member of the same shape was tried already
            continue
        seen.add(kinds)
        rule_inputs = search.rule_inputs(preemptors, frozenset((guard,)))
        if not rule_inputs.admissible:
            continue
        free = search.free_units(preemptors)
        by_rules = steps(rule_inputs, free) if guard is not Guard.ENTITLEMENT else []
        for rules in (*consolidation_steps(rule_inputs, free), *by_rules, *limited_steps(rule_inputs, free)):
            if not _makes_a_difference(guard, guards, rule_inputs, rules, search):
                continue  # the guard makes no difference in this step
            scenario = search.scenario(preemptors, rule_inputs, rules)
            plan = _generate(scenario, search.ways).plan if scenario.bound() is None else None
            if plan is not None and guard is Guard.ENTITLEMENT:
                return (
                    f"{rule_inputs.entitlement.refusal([search.pool.position_of(one.unit) for one in plan.victims])}."
                )
            if plan is not None:
                return rule_inputs.protection.withheld(
                    guard, [(one.rule, one.unit) for one in plan.victims], search.config
                )
    return ""


def _makes_a_difference(
    guard: Guard, guards: PlanGuards, rule_inputs: RuleInputs, rules: Rules, search: PreemptionSearch
) -> bool:
    """Returns True if a step might have a plan without the guard that it does not have with it.

    rules: the rules of the step, each with the units that it may evict.
    """
    if guard is Guard.ENTITLEMENT:
        moving = rules.get(RuleName.CONSOLIDATION)
        return moving is not None and bool((moving & ~rule_inputs.entitlement.undisturbed(moving)).any())
    return guards.limits_step(guard, rules, search.pool)
