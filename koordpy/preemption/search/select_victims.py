# SPDX-License-Identifier: Apache-2.0
"""Selects the least harmful set of victims that passes its dry run (docs/rules/preemption.md 6).

Three methods are tried in this order:

1. Counting (`counted_victims.py`), if it applies.
2. CP-SAT. If the dry run rejects a set, its reason becomes a constraint of the model: a no-good cut, or a list of units
   of which one more must be evicted (`Need`). Then the model is solved again.
3. If CP-SAT proves nothing in time: the cheaper of its best set and a greedy set, each after a reprieve. A reprieve
   spares units, starting with the most important unit, as long as the members still fit.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from koordpy.devices.rule_registry import is_monotone, rules_decide
from koordpy.placement.goals import Goals
from koordpy.plan.limits import (
    ASCEND_VICTIM_TRIES,
    BEST_PLACES_SHARE,
    CLOSING_UNITS,
    REPRIEVE_PODS,
    REPRIEVE_SHARE,
    REPRIEVES,
    VICTIM_TRIALS,
    VICTIM_TRIES,
)
from koordpy.plan.round_plan import Proof, SolverRun
from koordpy.preemption.rules.victim_rules import BY_NAME
from koordpy.preemption.search.candidates import OfferedChoice
from koordpy.preemption.search.dry_run import DryRunResult
from koordpy.preemption.search.preemption_plan import PreemptionPlan, SearchEnd, Victim
from koordpy.preemption.search.preemption_scenario import PreemptionScenario
from koordpy.preemption.selection.counted_victims import shortcut
from koordpy.preemption.selection.lower_bounds import sums_allow
from koordpy.preemption.selection.preemption_names import EVERY_WAY, Way
from koordpy.preemption.selection.reprieve import cheapest, no_good_set, reprieved
from koordpy.preemption.selection.victim_choice import (
    Choice,
    Choices,
    Cut,
    Layout,
    Need,
    cost_levels,
    fewest_pods,
    late_levels,
)


@dataclass(frozen=True, slots=True)
class Selection:
    """Result of the selection: a plan with its cost, or no plan and the reason."""

    end: SearchEnd
    plan: PreemptionPlan | None = None
    """The plan; None if no set of victims was found."""
    cost: tuple[object, ...] = ()
    """All cost levels, comparable with other plans of the scenario; empty without a plan."""
    runs: tuple[SolverRun, ...] = ()
    """Uses of the solver, for metrics."""


class VictimSelection:
    """One selection of victims: the ways of finding a set, its dry runs, and its reprieve."""

    def __init__(self, scenario: PreemptionScenario, found: OfferedChoice, ways: Collection[Way] = EVERY_WAY) -> None:
        """found: the choice of victims as numbers. ways: the ways that may be used."""
        trial, looked_at = scenario.dry_run, scenario.reachable.looked_at
        self.found, self.choices, self.trial, self.ways = found, found.choices, trial, ways
        self.way = Way.COUNTING
        """The way in which the chosen set was found."""
        self.result = DryRunResult()
        """The result of the last dry run in which the members fit."""
        unit, round_state = trial.preemptors.unit, trial.round_state
        self.own_order = rules_decide(unit, round_state)
        """True if a device family's rules place the members themselves (whole blocks of Ascend NPUs)."""
        kinds = [round_state.of(pod) for pod, _ in unit.kinds]
        closing = any(one.pulled for one in kinds)
        if len(self.choices.units) <= CLOSING_UNITS:
            closing = closing or not all(rule.is_monotone for one in kinds for rule in one.rules)
        self.eased = not found.moves and not closing and is_monotone(unit, round_state)
        """True if more evictions never close a node: if a set of victims fails, each of its subsets fails too. False
        for moves, for members with required affinity or spread, which a running pod may satisfy, and for few units if
        members may find a zone that suits them less once more zones are free."""
        pool = trial.pool
        units = enumerate(found.units if looked_at else ())
        self.seen = tuple(n for n, i in units if any(p.key in looked_at for p in pool.units[i].pods))
        """Units of the choice that contain a pod on which a filter of the members depends."""
        self._is_unproven = False
        """True if a dry run found no placement, without a proof that the members do not fit."""
        self._layout = Layout()
        """The solver's layout of the set that was tried last."""

    # --- trials -------------------------------------------------------------------------------------------------------

    def works(self, taken: Sequence[int], layout: Layout | None = None, *, share: float = 1.0) -> bool:
        """Returns True if the members fit once the units of the given options are evicted. Then `result` is the dry
        run.

        layout: the solver's placement, which is tried first; None for no such placement. share: time limit of the dry
        run, as a fraction of the time limit of an ordinary placement.
        """
        units = self.found.of(taken)
        if self.found.moves:
            result = self.trial.place_and_return(units, layout or Layout())
        elif layout is not None and not self.own_order:
            result = self.trial.place(units, layout.places)
            if not result.nodes:
                result = self.trial.place(units)
        else:
            result = self.trial.place(units, share=share)
        self._is_unproven |= not result.sure
        if result.nodes:
            self.result = result
        return bool(result.nodes)

    def refuse(self, taken: tuple[int, ...], layout: Layout) -> Sequence[Cut | Need]:
        """Returns the constraints that exclude a set which fails its dry run; empty if the set passes."""
        self._layout = layout
        if self.works(taken, layout):
            return ()
        every = tuple(range(len(self.choices.units)))
        if self.found.moves:  # the reason of a failure is not known, so only this set is excluded
            return [Cut(frozenset(taken), every)]
        # more evictions may close nodes. If the solver used a closed place, that place is excluded as long as the
        # victims near it are the same; otherwise only this set is excluded
        if not self.eased:
            closed = self.trial.closed_places(self.found.of(taken), layout.places)
            return [Cut(frozenset(taken), self._near(place[1]), (place,)) for place in closed] or [
                Cut(frozenset(taken), every)
            ]
        # more evictions only help: one more unit must be evicted, at an overfull node if there is one
        if not self.own_order:
            number = {i: n for n, i in enumerate(self.found.units)}
            full = self.trial.overfull(self.found.of(taken), layout.places, self.found.units)
            if full:
                return [Need(tuple(number[i] for i in units), load) for load, units in full]
        # every subset of this set fails too, so at least one unit outside it must be evicted
        gone = {
            self.choices.options[o].unit
            for o in no_good_set(self.choices, taken, self._fits, most_trials=VICTIM_TRIALS)
        }
        return [Need(tuple(u for u in every if u not in gone))]

    def _near(self, node: int) -> tuple[int, ...]:
        """Returns the units that may close or open a node if evicted: units on it, and units that filters depend on."""
        seen = set(self.seen)
        units = enumerate(self.choices.units)
        return tuple(u for u, one in units if u in seen or any(at == node for at, _ in one.frees))

    def _fits(self, taken: Sequence[int], *, share: float = 1.0) -> bool:
        """Returns True if the members fit with the given options evicted. share: as for `works`."""
        return self.trial.fits(self.found.of(taken), share)

    # --- the choice ---------------------------------------------------------------------------------------------------

    def choose(self) -> Choice:
        """Returns the least harmful set that passes its dry run, and sets `result`.

        Empty options if there is no such set.
        """
        # 1. counting
        quick = shortcut(self.choices) if Way.COUNTING in self.ways else None
        if quick is not None and self.works(quick.options):
            return quick
        # 2. CP-SAT
        choice = self._by_model() if Way.MODEL in self.ways else Choice((), Proof.UNKNOWN)
        if choice.proof is Proof.OPTIMAL and not self.found.moves and not self.own_order:
            before = self._is_unproven
            # search the best placement with these victims. A placement is known to exist; its quality is not part of
            # the proof
            self.works(choice.options, share=BEST_PLACES_SHARE)
            self._is_unproven = before
        # 3. without a proof: the best set, after a reprieve
        if choice.proof in (Proof.UNKNOWN, Proof.FEASIBLE) and not self.found.moves:
            options = self._unproven(choice)
            if options and self.works(options):
                choice = replace(choice, options=options, proof=Proof.FEASIBLE)
        # 4. also a reprieve if the model may evict too much, because it leaves out nodes that only evictions open
        opens = set(self.seen) & {self.choices.options[o].unit for o in choice.options} and self._opens(choice.options)
        # a smaller set of moves may have been rejected only because of the new nodes that the solver planned
        if opens or (self.found.moves and self._is_unproven):
            tries = iter(range(self._most_tries))
            layout = self._layout if self.found.moves else None

            def enough(fewer: tuple[int, ...]) -> bool:
                """Returns True if fewer options are enough; always False once the maximum number of tries is
                reached."""
                if next(tries, None) is None:
                    return False
                return self.works(fewer, layout) if self.found.moves else self._fits(fewer)

            options = reprieved(self.choices, enough, choice.options)
            if options != choice.options and self.works(options, layout):
                choice = replace(choice, options=options, proof=Proof.FEASIBLE)
        if choice.options and not self.result.nodes:  # the best placement was not found in time: use that of the model
            self.works(choice.options, self._layout)
        if self._is_unproven or (self.own_order and not self.eased):
            # a smaller or cheaper set may have been rejected without a proof
            unsure = {Proof.OPTIMAL: Proof.FEASIBLE, Proof.INFEASIBLE: Proof.UNKNOWN}
            choice = replace(choice, proof=unsure.get(choice.proof, choice.proof))
        return choice

    def _opens(self, taken: Sequence[int]) -> bool:
        """Returns True if evicting some options allows members on nodes that the model leaves out.

        Example: the members' affinity needs the first pod of its kind on another node, and one running pod keeps the
        members from nodes that the model never empties.
        """
        if self.found.moves or self.own_order:
            return False
        return self.trial.opens(self.found.of(taken), self.choices.problem)

    @property
    def _most_tries(self) -> int:
        """Maximum number of dry runs in a reprieve."""
        problem = self.choices.problem
        return max(1, min(REPRIEVES, REPRIEVE_PODS // (len(problem.pending_counts) * len(problem.free))))

    def _by_model(self) -> Choice:
        """Returns the choice by CP-SAT. The solver is imported here, because most rounds do not need it."""
        from koordpy.preemption.selection.victims_levels import choose

        self.way = Way.MODEL
        return choose(self.choices, self.refuse, most_tries=ASCEND_VICTIM_TRIES if self.own_order else VICTIM_TRIES)

    def _unproven(self, found: Choice) -> tuple[int, ...]:
        """Returns the cheaper of the solver's set and the greedy set, each after a reprieve; empty if neither exists.

        found: the solver's result; its options are empty if it found no set. A reprieve makes at most `_most_tries` dry
        runs; units that are not decided by then are evicted.
        """
        tries = 0

        def enough(taken: tuple[int, ...]) -> bool:
            """Returns True if the given options are enough: first by sums, then by a dry run; False once no tries are
            left."""
            nonlocal tries
            if not sums_allow(self.choices, (self.choices.options[o].unit for o in taken)):
                return False
            tries += 1
            if tries > self._most_tries:
                return False
            return self._fits(taken, share=1.0 if tries == 1 and not found.options else REPRIEVE_SHARE)

        best: tuple[object, tuple[int, ...]] | None = None
        for way in (Way.MODEL, Way.GREEDY):
            if way not in self.ways:
                continue
            tries = 0
            start = found.options if way is Way.MODEL else cheapest(self.choices, enough)
            options = reprieved(self.choices, enough, start) if start else ()
            if options:
                cost = cost_levels(self.choices, options), late_levels(self.choices, options)
                if best is None or cost < best[0]:  # type: ignore[operator]
                    best = cost, options
                    self.way = way
        return best[1] if best is not None else ()


def select_victims(scenario: PreemptionScenario, found: OfferedChoice, ways: Collection[Way] = EVERY_WAY) -> Selection:
    """Returns the plan with the least harmful set of victims that passes its dry run."""
    selection = VictimSelection(scenario, found, ways)
    choice = selection.choose()
    result = selection.result
    if not result.nodes or not choice.options:
        end = SearchEnd.BUDGET_USED if choice.proof is Proof.UNKNOWN else SearchEnd.RULED_OUT
        return Selection(end, runs=choice.runs)
    members = scenario.preemptors.unit.members
    plan = PreemptionPlan(
        victims=tuple(_victim(found, o, scenario, result) for o in choice.options),
        nodes=tuple((members[rank].key, node) for rank, node in sorted(result.nodes.items())),
        proof=choice.proof,
        runs=choice.runs,
        bound=None if choice.proof is Proof.OPTIMAL else fewest_pods(found.choices),
        back=result.back,
        notes=result.notes,
        way=selection.way,
    )
    return Selection(SearchEnd.FOUND, plan, _cost(found.choices, choice, result), choice.runs)


def _cost(choices: Choices, choice: Choice, result: DryRunResult) -> tuple[object, ...]:
    """Returns all cost levels as a tuple that is compared in order.

    Its parts are levels 1 to 6, the gather goals of level 7 (may be empty), and levels 8 and 9.
    """
    goals: tuple[object, ...] = ()
    if choices.problem.gather:
        worth, nodes = Goals(choices.problem), dict(result.nodes)
        goals = (worth.layers(nodes), worth.attraction(nodes), worth.pipeline(nodes), worth.domains(nodes))
    return cost_levels(choices, choice.options), goals, late_levels(choices, choice.options)


def _victim(found: OfferedChoice, option: int, scenario: PreemptionScenario, result: DryRunResult) -> Victim:
    """Returns the victim unit of an option, with its rule and the numbers for the message."""
    [i] = found.of([option])
    unit, rule = scenario.pool.units[i], found.rules[found.choices.options[option].rule]
    if rule in BY_NAME:
        why = BY_NAME[rule].why(scenario.rule_inputs, i)
    else:
        keys, nodes = {pod.key for pod in unit.pods}, scenario.round_state.snapshot.nodes
        at = sorted({nodes[one.node].name for one in result.back if one.pod.key in keys})
        why = f"room on {', '.join(at)} was planned for it"
    return Victim(unit, rule, why)
