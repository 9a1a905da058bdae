"""Preemption for one unit as a pipeline: rules -> candidate sets -> filters -> dry run -> check -> result.

    preempt        a unit without capacity -> its outcome; member by member if members preempt individually
    find_plan      preemptor sets: all pending members, then the core
    _try_rules     rules: which victim units may be evicted, step by step (`preemption/rules/rule_steps.py`)
    _try_scenario  filters, then generators, then the check, which decides last
    _generate      the least harmful plan, over all parts of the nodes, that passes its dry run (`select_victims.py`)
    _carry_out     the check, pod by pod, on the draft; a plan that passes stays on the draft

The first plan that passes ends the search. Otherwise the result says why the search ended (`SearchEnd`). Generators
run in the order of `Way`: the table of nodes for a plain pod, counting, CP-SAT, greedy. If the check rejects a plan,
the planner has made a mistake, and the generators after the one of that plan run.
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
from koordpy.preemption.rules.rule_protocol import Law
from koordpy.preemption.rules.rule_steps import closing_reasons, consolidation_steps, limited_steps, rule_steps
from koordpy.preemption.rules.unclaimed_share import unclaimed_share
from koordpy.preemption.rules.victim_rules import steps
from koordpy.preemption.search.candidates import Rules, eligible_under
from koordpy.preemption.search.ending_pods import Awaited, await_ending, waits_on_nominated
from koordpy.preemption.search.preemption_plan import PreemptionPlan, SearchEnd, combined_end
from koordpy.preemption.search.preemption_scenario import PreemptionScenario
from koordpy.preemption.search.preemption_search import PreemptionSearch
from koordpy.preemption.search.preemptor_sets import PreemptorSet, members_preempt_individually
from koordpy.preemption.search.select_victims import select_victims
from koordpy.preemption.selection.preemption_names import NO_GUARD, WAIVABLE, Guard, RuleName, Way
from koordpy.reservations.capacity_view import RELIEVED


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of a search, or of one part of it."""

    end: SearchEnd
    plan: PreemptionPlan | None = None
    """The plan; None if none was found."""
    outcome: PlacedUnit | RejectedUnit | None = None
    """The plan on the draft, or the last plan that the check rejected; None if no plan was checked."""
    reasons: tuple[str, ...] = ()
    """Sentences on the rules that were tried; they follow the count of nodes in the message of a pending pod."""
    runs: tuple[SolverRun, ...] = ()
    withheld: frozenset[Guard] = NO_GUARD
    """Guards that each prevent a plan: without any one of them a plan exists."""
    awaited: Awaited | None = None
    """Nodes that fit the unit once terminating pods have ended, so that nothing is evicted; None for none."""


def preempt(refused: WaitingUnit, now: RoundState, search: PreemptionSearch | None) -> UnitOutcome:
    """Returns the outcome of a unit that found no capacity: with victims, or waiting with the reason.

    now: round state in the view of a unit that starts now. search: None if no pod may be evicted.
    """
    if search is None or (refused.refusal is not None and not refused.refusal.limit_name):
        return refused
    unit = refused.unit
    found = find_plan(unit, now, search)
    if not isinstance(outcome := found.outcome, PlacedUnit):
        return _waiting(refused, found, now)
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
    """Returns the outcome of a unit without a plan."""
    attempt = refused.attempt
    if found.end is SearchEnd.DEFERRED:
        return DeferredUnit(replace(attempt, proof=Proof.UNKNOWN), DeferralReason.SEARCH, refused.refusal)
    if found.awaited is not None:
        now.draft.reserve(found.awaited.nodes)
        text = found.awaited.stable_text if refused.unit.is_gang else found.awaited.text
        return replace(refused, reasons=(text,), awaits=found.awaited.nodes)
    if found.outcome is not None:
        return found.outcome
    proof = Proof.UNKNOWN if not found.end.is_proven else attempt.proof
    attempt = replace(attempt, proof=proof, runs=(*attempt.runs, *found.runs))
    return replace(refused, attempt=attempt, reasons=found.reasons, withheld=found.withheld)


def _joined(first: PlacedUnit, second: PlacedUnit) -> PlacedUnit:
    """Joins two plans of one unit on the draft, each for other members, into one outcome."""
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
    """Returns the first plan that frees capacity for all pending members, else for the core, else why there is none.

    placed: pod key -> node position of members that preempted individually just before.
    """
    early = _answer_early(unit, now, search, first=not placed)
    if early is not None:
        return early
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
    withheld = {guard: text for guard in WAIVABLE if (text := _withheld_by(guard, tried, search))}
    share = unclaimed_share(tried[-1].pods, search.round_state, search.shares)
    reasons = (*last.reasons, *withheld.values(), *([f"{share}."] if share else []))
    return replace(last, outcome=refused, reasons=reasons, withheld=last.withheld.union(withheld))


def _answer_early(unit: Unit, now: RoundState, search: PreemptionSearch, *, first: bool) -> SearchResult | None:
    """Returns an answer that needs no search; None if a search must run. first: no member preempted just before."""
    if not now.snapshot.nodes:
        return SearchResult(SearchEnd.NO_CANDIDATES)
    if first and (awaited := await_ending(unit, now)) is not None:
        return SearchResult(SearchEnd.AWAITING, awaited=awaited)
    if any(waits_on_nominated(pod, now) for pod in unit.pending):
        return SearchResult(SearchEnd.NO_RULE)
    if not search.has_open_rule:
        share = unclaimed_share(unit.pending, now, search.shares)
        return SearchResult(SearchEnd.NO_RULE, reasons=(f"{share}.",) if share else ())
    if search.defers:
        return SearchResult(SearchEnd.DEFERRED)
    return None


def _try_rules(preemptors: PreemptorSet, search: PreemptionSearch, refused: RejectedUnit | None) -> SearchResult:
    """Returns the first plan of one preemptor set over the steps of rules.

    refused: outcome with the plans rejected so far; None if no plan was rejected.
    """
    law = search.law(preemptors)
    if not law.admissible:
        return SearchResult(SearchEnd.NO_CANDIDATES, outcome=refused)
    free = search.free_units(preemptors)
    ends: list[SearchEnd] = []
    reasons: dict[str, None] = {}
    runs: tuple[SolverRun, ...] = ()
    for rules in rule_steps(law, free, ends):
        found = _try_scenario(search.scenario(preemptors, law, rules), search, refused)
        if found.end is SearchEnd.FOUND:
            return _with_runs(found, runs)
        runs += found.runs
        ends.append(found.end)
        reasons |= dict.fromkeys(found.reasons)
        refused = found.outcome if isinstance(found.outcome, RejectedUnit) else None
    closing, by_share = closing_reasons(law, free)
    withheld = frozenset((Guard.SHARE,)) if by_share else NO_GUARD
    return SearchResult(combined_end(ends), None, refused, (*reasons, *closing), runs, withheld)


def _try_scenario(scenario: PreemptionScenario, search: PreemptionSearch, refused: RejectedUnit | None) -> SearchResult:
    """Runs filters, generators with their dry runs, and the check on one scenario. refused: as in `_try_rules`."""
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
            # the plan was rejected, but the generator's proof that no better plan exists may still be right
            rejected = (*refused.attempt.rejected, *attempt.rejected)
            proof = Proof.FEASIBLE if isinstance(outcome, PlacedUnit) else attempt.proof
            outcome = replace(outcome, attempt=replace(attempt, proof=proof, rejected=rejected))
        if isinstance(outcome, PlacedUnit):
            return replace(found, outcome=outcome)
        refused, way = outcome, found.plan.way
        ways = ways[ways.index(way) + 1 :] if way in ways else ()
    return SearchResult(SearchEnd.REJECTED, outcome=refused)


def _with_runs(found: SearchResult, before: tuple[SolverRun, ...]) -> SearchResult:
    """Returns the result with the solver runs of earlier steps added."""
    if not before or found.outcome is None:
        return found
    attempt = replace(found.outcome.attempt, runs=(*before, *found.outcome.attempt.runs))
    return replace(found, outcome=replace(found.outcome, attempt=attempt))


def _generate(scenario: PreemptionScenario, ways: Sequence[Way]) -> SearchResult:
    """Returns the least harmful plan of a generator that passes its dry run. ways: generators that may run."""
    if Way.NODE in ways and (least := scenario.cheapest_node()) is not None:
        if not eligible_under(least).any():
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
    """Checks a plan and puts it on the draft. A rejected plan leaves no change on the draft."""
    now, nodes = search.now, dict(plan.nodes)
    if faults := search.faults(unit, plan):
        return rejected_plan(unit, faults, nodes, now, plan.runs, plan)
    draft, needless = now.draft, bool(search.needless(unit, plan))
    mark = draft.mark()
    for victim in plan.victims:
        draft.evict_all(victim.unit.pods)
    outcome = accept(unit, nodes, now.of_view(RELIEVED), plan.proof, plan.runs, plan.notes, plan)
    if isinstance(outcome, BoundUnit) and (faults := search.faults_of_returns(plan)):
        outcome = rejected_plan(unit, faults, nodes, now, plan.runs, plan)
    if isinstance(outcome, RejectedUnit):
        draft.undo(mark)
        return outcome
    search.record_evictions(plan.victims)
    if needless:
        search.not_minimal.append(unit.id)
    for back in plan.back:
        draft.assign(back.pod, back.node, given=back.given)
    attempt = outcome.attempt if plan.way is None else replace(outcome.attempt, method=f"victims-{plan.way}")
    if not plan.victims:
        return replace(outcome, attempt=attempt)
    return PreemptingUnit(attempt, outcome.nodes, plan.victims, plan.back, plan.bound, outcome.notes)


# --- plans that a guard withholds -------------------------------------------------------------------------------------


def _withheld_by(guard: Guard, tried: Sequence[PreemptorSet], search: PreemptionSearch) -> str:
    """Returns a sentence on the plan that a guard prevents for the preemptor sets, tried one after the other; empty if
    there is no plan without the guard either."""
    seen = set[frozenset[bytes]]()
    for preemptors in tried:
        guards = PlanGuards(preemptors.unit, preemptors.pods, search.config)
        kinds = frozenset(pod.shape for pod in preemptors.pods)
        if not guards.may_withhold(guard) or (len(preemptors.pods) == 1 and kinds in seen):
            continue
        seen.add(kinds)
        law = search.law(preemptors, frozenset((guard,)))
        if not law.admissible:
            continue
        free = search.free_units(preemptors)
        by_rules = steps(law, free) if guard is not Guard.ENTITLEMENT else []
        for rules in (*consolidation_steps(law, free), *by_rules, *limited_steps(law, free)):
            if not _makes_a_difference(guard, guards, law, rules, search):
                continue  # the guard makes no difference in this step
            scenario = search.scenario(preemptors, law, rules)
            plan = _generate(scenario, search.ways).plan if scenario.bound() is None else None
            if plan is not None and guard is Guard.ENTITLEMENT:
                return f"{law.entitlement.refusal([search.pool.at(one.unit) for one in plan.victims])}."
            if plan is not None:
                return law.protection.withheld(guard, [(one.rule, one.unit) for one in plan.victims], search.config)
    return ""


def _makes_a_difference(guard: Guard, guards: PlanGuards, law: Law, rules: Rules, search: PreemptionSearch) -> bool:
    """True if a guard makes a difference to a step."""
    if guard is Guard.ENTITLEMENT:
        moving = rules.get(RuleName.CONSOLIDATION)
        return moving is not None and bool((moving & ~law.entitlement.undisturbed(moving)).any())
    return guards.bears(guard, rules, search.pool)
