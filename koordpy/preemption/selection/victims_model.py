# SPDX-License-Identifier: Apache-2.0
"""The choice of victims as a CP-SAT model: which units to evict, such that all members of the preemptor fit afterwards.

Source: docs/rules/preemption.md 6 (2). The model has two groups of variables. One is the number of evicted units of
each kind of victims (`victim_kinds.py`). The other is the number of new pods of each shape on each node
(`count_model.py`). The capacity of nodes links the two groups (`freed_capacity.py`). Limits of rules, gangs and quotas
are linear constraints. Filters that are not sums are not in the model: if the dry run rejects a solution, the reason is
added as a `Cut` or `Need`, and the model is solved again (`victims_levels.py`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import gcd

import numpy as np

from koordpy.placement.problem import Ints, hard_regions
from koordpy.placement.solver.count_model import CountModel
from koordpy.placement.solver.cpsat import cp_model
from koordpy.placement.solver.filling_capacity import FillingCapacity, NodeType
from koordpy.placement.solver.region_cells import CellOptions
from koordpy.placement.solver.staged_model import Stage, Term, linear, span
from koordpy.placement.solver.time_budget import TimeBudget
from koordpy.preemption.selection.freed_capacity import FreedCapacity
from koordpy.preemption.selection.lower_bounds import freed_by
from koordpy.preemption.selection.victim_choice import (
    Choices,
    Crossing,
    Cut,
    Either,
    Layout,
    Limit,
    Need,
    RuntimeSteps,
)
from koordpy.preemption.selection.victim_kinds import kinds_of


class VictimsModel(CountModel):
    """The constraints of a choice, and the sums of its cost levels. The sums are in the attributes `early` (levels 1 to
    6), `priorities` (8), `by_importance` (9) and `later_rule`."""

    def __init__(self, choices: Choices, budget: TimeBudget, most: int | None = None) -> None:
        """most: a priority for a small model, which is solved first: it has only victims up to that priority, and it
        may violate no PodDisruptionBudget. None for a model of all victims."""
        self.choices, self.obeys_budgets = choices, most is not None
        problem = choices.problem
        every: dict[int, list[int]] = {}
        for o, option in enumerate(choices.options):
            if most is None or choices.units[option.unit].priority <= most:
                every.setdefault(option.unit, []).append(o)
        self.kinds = kinds_of(choices, every)
        """First option of a kind -> all options of the kind, the least important first."""
        self.of_unit = {u: options for u, options in every.items() if options[0] in self.kinds}
        """Unit that represents its kind -> its options."""
        self.partial = sum(map(len, every.values())) < len(choices.options)
        """True if victims are left out, or if budgets are hard limits. Then a larger model may have a solution even if
        this one has none."""
        # the placement with all these victims evicted, in the regions that could hold it. Each node is a cell by
        # itself, because victims differ between nodes. Scores of nodes by their number of pods are not used here
        freed = replace(problem, free=freed_by(choices, every), device_costs=None, already_used=None)
        capacity = FillingCapacity(freed, dict(problem.pending_counts))
        fits = capacity.may_fit(problem.hard)
        inside = [domain for _, domain in hard_regions(problem) if fits[domain]]
        keep = np.nonzero(np.isin(problem.tree.domain_of[problem.hard], inside))[0].tolist()
        each = np.arange(len(problem.free))
        super().__init__(capacity, (0, 0), budget=budget, options=CellOptions(keep=keep, alike=each))
        self.wanted = problem.pending_counts
        self.at = {(capacity.shapes[i], cell.nodes[0]): var for cell in self.cells for i, var in cell.pods.items()}
        """(shape, node) -> variable: number of new pods of the shape on the node."""
        for options in self.of_unit.values():
            if len(options) > 1:
                self.model.add_at_most_one(self.taken[o] for o in options)
        self._limits()
        self._blockers()
        self.back = FreedCapacity(self.model, choices, self.capacity, self.at, self.of_unit, self.unit).back
        """Kind of moved pods -> node -> variable: number of its pods that return there; empty if victims are
        evicted."""
        self._together()
        self._levels()

    def _build(self, level: int, domain: int) -> None:
        """Adds the variables `taken` (first option of a kind -> number of units evicted), then those of the counts."""
        self.taken = {o: self.model.new_int_var(0, len(kind), "") for o, kind in self.kinds.items()}
        self._more: dict[tuple[int, int], cp_model.IntVar] = {}
        super()._build(level, domain)

    def _capacity(self, kind: NodeType, pods: Mapping[int, cp_model.IntVar]) -> None:
        """Adds nothing: the capacity of a node depends on the victims (`freed_capacity.py`)."""

    # --- constraints ------------------------------------------------------------------------------------------------

    def unit(self, unit: int, amount: int = 1) -> list[Term]:
        """Returns the terms that a unit adds to a sum if any of its options is chosen; the unit represents all units of
        its kind."""
        return [(self.taken[o], amount) for o in self.of_unit.get(unit, ())]

    def _terms(self, terms: Iterable[tuple[int, int]]) -> list[Term]:
        """Returns (option, amount) pairs as (variable, amount) terms.

        All options of a kind have the same amount, so only the first one is a term: its variable counts them all.
        """
        return [(self.taken[o], amount) for o, amount in terms if amount and o in self.taken]

    def more(self, option: int, number: int) -> cp_model.IntVar:
        """Returns a 0/1 variable that is 1 if more than `number` units of a kind are chosen. option: the first of the
        kind."""
        if len(self.kinds[option]) == 1:
            return self.taken[option]
        known = self._more.get((option, number))
        if known is None:
            known = self._more[option, number] = self.model.new_bool_var("")
            self.model.add(self.taken[option] > number).only_enforce_if(known)
            self.model.add(self.taken[option] <= number).only_enforce_if(~known)
            if self.values:
                self.values.append(int(self.values[self.taken[option].index] > number))
        return known

    def _limits(self) -> None:
        """Adds all limits of the choice."""
        for limit in self.choices.limits:
            self._limit(limit)
        for crossing in self.choices.crossings:
            self._crossing(crossing)
        for either in self.choices.eithers:
            self._either(either)
        for runtime in self.choices.runtimes:
            self._runtime(runtime)
        for one in self.choices.multiples:
            # the members that remain are `times` * k. Only if surplus is evicted, because a gang may violate k already
            times, terms = self.model.new_int_var(0, one.have // one.k + 1, ""), self._terms(one.terms)
            if when := [o for o in one.when if o in self.taken]:
                some = self._any(when)
                self.model.add(linear([*terms, (times, one.k)]) == one.have).only_enforce_if(some)

    def _limit(self, limit: Limit, within: Sequence[cp_model.IntVar] = ()) -> None:
        """Adds a limit. within: 0/1 variables; the limit applies only if all of them are 1. Empty: it always
        applies."""
        total = linear(self._terms(limit.terms))
        when = [o for o in limit.when if o in self.taken]
        if limit.when and not when:
            return
        bounds = [total <= limit.most] if limit.most is not None else []
        bounds += [total >= limit.least] if limit.least is not None else []
        where = [*within, *([self._any(when)] if when else [])]
        for bound in bounds:
            added = self.model.add(bound)
            if where:
                added.only_enforce_if(where)

    def _either(self, either: Either) -> None:
        """Adds: if any option of `when` is chosen, at least one branch is satisfied."""
        holds = []
        for branch in either.branches:
            own = self.model.new_bool_var("")
            for limit in branch.limits:
                self._limit(limit, (own,))
            for crossing in branch.crossings:
                self._crossing(crossing, (own,))
            holds.append(own)
        for o in either.when:
            if o in self.taken:
                self.model.add_bool_or(holds).only_enforce_if(self.more(o, 0))

    def _any(self, options: list[int]) -> cp_model.IntVar:
        """Returns a 0/1 variable that must be 1 if any unit of the given kinds is chosen. Otherwise the solver may
        choose 0 or 1; 1 can only add constraints, so it is never an advantage."""
        if len(options) == 1:
            return self.more(options[0], 0)
        out = self.model.new_bool_var("")
        for o in options:
            self.model.add(self.taken[o] <= 0).only_enforce_if(~out)
        return out

    def _runtime(self, runtime: RuntimeSteps) -> None:
        """Adds: one step is selected, victims in no quota free at least its `from`, and victims in the quota its
        `least`."""
        gives, terms = self._terms(runtime.gives), self._terms(runtime.terms)
        held = []
        for number, (start, least) in enumerate(runtime.steps):
            if span(gives)[1] < start or span(terms)[1] < least:
                continue
            here = self.model.new_bool_var("")
            self.model.add(linear(gives) >= start).only_enforce_if(here)
            self.model.add(linear(terms) >= least).only_enforce_if(here)
            # due to rounding, a larger total can make a runtime one unit smaller, so a later step may need more than
            # this step; then this step may only apply to totals below the start of that later step
            later = next((at for at, more in runtime.steps[number + 1 :] if more > least), None)
            if later is not None:
                self.model.add(linear(gives) < later).only_enforce_if(here)
            held.append(here)
        self.model.add_bool_or(held)

    def _crossing(self, crossing: Crossing, within: Sequence[cp_model.IntVar] = ()) -> None:
        """Adds a crossing: in one resource, the evicted amount without one unit is below the usage above the
        entitlement. within: 0/1 variables; the crossing applies only if all of them are 1. `last` selects the unit that
        is subtracted; the solver selects the largest one if that helps."""
        everyone = dict.fromkeys(o for terms, _ in crossing.resources for o, _ in terms if o in self.taken)
        enough = []
        for terms, room in crossing.resources:
            holds = self.model.new_bool_var("")
            last = {o: self.model.new_bool_var("") for o, _ in terms if o in self.taken}
            for o, var in last.items():
                self.model.add(var <= self.taken[o])
            if last:
                self.model.add_at_most_one(last.values())
            spared = [(last[o], -amount) for o, amount in terms if o in last]
            self.model.add(linear([*self._terms(terms), *spared]) < room).only_enforce_if(holds)
            enough.append(holds)
        for o in everyone:
            self.model.add_bool_or(enough).only_enforce_if(*within, self.more(o, 0))

    def _blockers(self) -> None:
        """Adds: a pod of a shape is placed on a node only if at least one unit of each group of blockers is evicted."""
        for (shape, node), blockers in self.choices.blockers.items():
            if (shape, node) not in self.at:
                continue
            for units in blockers:
                gone = [term for u in units for term in self.unit(u, -self.wanted[shape])]
                self.model.add(linear([(self.at[shape, node], 1), *gone]) <= 0)

    def _together(self) -> None:
        """Adds constraints between members: the hard layer, conditions of device families, affinity and spread."""
        total = sum(self.capacity.wanted)
        if self.problem.hard:
            self._in_one(list(self.inside(self.problem.hard).values()))
        on = self.inside(self.tree.depth)
        for nodes, k in self.choices.lots:
            if here := [term for node in nodes for term in on.get(node, ())]:
                times = self.model.new_int_var(0, total // k, "")
                self.model.add(linear([*here, (times, -k)]) == 0)
        if self.choices.lots:
            listed = {node for nodes, _ in self.choices.lots for node in nodes}
            for node, terms in on.items():
                if node not in listed:
                    self.model.add(linear(terms) == 0)
        if self.choices.one_of:
            self._in_one([[term for node in nodes for term in on.get(node, ())] for nodes in self.choices.one_of])
        if self.choices.ties:
            between = self.interacting()
            for tie in self.choices.ties:
                between.add(tie.interaction, [self._leaving(label) for label in tie.leaving])

    def inside(self, level: int) -> dict[int, list[Term]]:
        """Returns domain of a level -> new pods in it."""
        if level == self.tree.depth:
            return {cell.nodes[0]: cell.total for cell in self.cells}
        return {domain: [(total, 1)] for domain, total in self.totals[level].items()}

    def _in_one(self, parts: list[list[Term]]) -> None:
        """Adds: all new pods are in one of several parts. parts: for each part, the terms of the new pods in it."""
        full = []
        for here in parts:
            full.append(self.model.new_bool_var(""))
            self.model.add(linear([*here, (full[-1], -sum(self.capacity.wanted))]) == 0)
        self.model.add_exactly_one(full)

    def _leaving(self, label: Iterable[tuple[int, int, int]]) -> dict[int, list[Term]]:
        """Returns domain -> terms that count how many pods of the domain leave with the chosen units. label: an entry
        of `Tie.leaving`."""
        out: dict[int, list[Term]] = {}
        for domain, unit, pods in label:
            out.setdefault(domain, []).extend(self.unit(unit, pods))
        return out

    def attracting_away(self, domain_of: Ints) -> dict[int, list[Term]]:
        """Returns domain -> terms of the attracting pods in it that are evicted with the chosen units. domain_of:
        [nodes] domain of each node."""
        return self._leaving(
            (int(domain_of[node]), u, pods) for u in self.of_unit for node, pods in self.choices.units[u].attracts
        )

    def learn(self, refused: Iterable[Cut | Need]) -> None:
        """Adds the cuts and needs of choices that the dry run rejected."""
        for one in refused if self.possible else ():
            if isinstance(one, Need):
                self.need(one)
            else:
                self.cut(one)

    def cut(self, cut: Cut) -> None:
        """Excludes a choice that the dry run rejected."""
        gone = {self.choices.options[o].unit for o in cut.taken}
        # the number of evicted units of some kind differs from that in the rejected choice, or a place of the cut is
        # unused
        changed: list[cp_model.LiteralT] = []
        for o, units in self._kinds_of(cut.relevant_units):
            number = len(gone.intersection(units))
            changed += [self.more(o, number)] if number < len(self.kinds[o]) else []
            changed += [~self.more(o, number - 1)] if number else []
        if not cut.places:
            self.model.add_bool_or(changed)
        for place in cut.places:
            if place in self.at:
                unused = self.model.new_bool_var("")
                self.model.add(self.at[place] <= 0).only_enforce_if(unused)
                self.model.add_bool_or([*changed, unused])

    def need(self, need: Need) -> None:
        """Adds: at least one of the given units is evicted, or the node does not take the load."""
        # the units of a kind are chosen in order, so one of `units` is chosen if the number chosen goes beyond the
        # first of them
        gone = [
            self.more(o, min(n for n, unit in enumerate(units) if unit in need.units))
            for o, units in self._kinds_of(need.units)
        ]
        if need.load is None:
            self.model.add_bool_or(gone)
            return
        less = []
        for shape, pods in need.load.pods:
            var = self.at[shape, need.load.node]
            if pods == 1 and len(need.load.pods) == 1:  # no pod of the shape is allowed: a linear bound is tighter
                self.model.add(linear([(var, 1), *((one, -self.wanted[shape]) for one in gone)]) <= 0)
                return
            less.append(self.model.new_bool_var(""))
            self.model.add(var <= pods - 1).only_enforce_if(less[-1])
        self.model.add_bool_or([*less, *gone])

    def _kinds_of(self, units: Iterable[int]) -> list[tuple[int, list[int]]]:
        """Returns (first option, units) of each kind that contains one of the given units, the least important unit
        first."""
        some = set(units)
        members = ((o, [self.choices.options[one].unit for one in kind]) for o, kind in self.kinds.items())
        return [(o, kind) for o, kind in members if not some.isdisjoint(kind)]

    # --- cost levels ------------------------------------------------------------------------------------------------

    def _levels(self) -> None:
        """Builds the sums of levels 1 to 6 and 8, and the order of units for level 9."""
        choices, model = self.choices, self.model
        units = choices.units
        # level 1: pods above the number that each budget allows; forbidden in a model with a priority limit
        # (`obeys_budgets`)
        violated: list[Term] = []
        for b, allowed in enumerate(choices.budgets):
            covered = [t for u in self.of_unit for i, n in units[u].budgets if i == b for t in self.unit(u, n)]
            most = span(covered)[1]
            if most > allowed and self.obeys_budgets:
                model.add(linear(covered) <= allowed)
                self.partial = True
            elif most > allowed:
                over = model.new_int_var(0, most - allowed, "")
                model.add(linear([*covered, (over, -1)]) <= allowed)
                violated.append((over, 1))
        # level 2: position in `steps` of the highest priority of a victim
        steps = sorted({units[u].priority for u in self.of_unit}) if not self.obeys_budgets else []
        top = model.new_int_var(0, len(steps), "")
        for u in self.of_unit if len(steps) > 1 else ():
            model.add(top >= steps.index(units[u].priority) + 1).only_enforce_if(self._any(self.of_unit[u]))
        # level 6: the shortfall of each quota, in units of the greatest common divisor
        short: list[Term] = []
        step = gcd(*(n for one in choices.shortfalls for n in (one.slack, *(amount for _, amount in one.terms)))) or 1
        for one in choices.shortfalls:
            terms = self._terms(one.terms)
            if (most := span(terms)[1]) > one.slack:
                below = model.new_int_var(0, (most - one.slack) // step, "")
                model.add(linear([*terms, (below, -step)]) <= one.slack)
                short.append((below, 1))
        every = [(u, units[u]) for u in self.of_unit]
        early = [
            ("violations", violated),
            ("highest priority", [(top, 1)] if len(steps) > 1 else []),
            ("gangs broken", [t for u, unit in every if unit.breaks for t in self.unit(u, unit.breaks)]),
            ("accelerators", [t for u, unit in every if unit.devices for t in self.unit(u, unit.devices)]),
            ("pods", [t for u, unit in every for t in self.unit(u, unit.pods)]),
            ("quota shortfall", short),
        ]
        self.early: list[Stage] = [(name, terms, None) for name, terms in early]
        """Levels 1 to 6, which are minimised one after another."""
        self.priorities = [t for u, unit in every if unit.priorities for t in self.unit(u, unit.priorities)]
        ranked = (
            (units[choices.options[one].unit].rank, u, number)
            for u, options in self.of_unit.items()
            for number, one in enumerate(self.kinds[options[0]])
        )
        self.by_importance = [(u, number) for _, u, number in sorted(ranked, reverse=True)]
        """Level 9: (unit that represents the kind, number of less important units of the kind) for each unit, the most
        important first. A unit is evicted if more units of its kind than that number are evicted."""
        self.later_rule = self._terms((o, option.rule) for o, option in enumerate(choices.options))

    # --- result -----------------------------------------------------------------------------------------------------

    @property
    def chosen(self) -> tuple[int, ...]:
        """The chosen options of the current solution: of each kind the least important units."""
        taken = (kind[: self.values[self.taken[o].index]] for o, kind in self.kinds.items())
        return tuple(sorted(one for some in taken for one in some))

    @property
    def layout(self) -> Layout:
        """The placement of new and moved pods in the current solution."""
        places = {place: n for place, var in self.at.items() if (n := self.values[var.index])}
        back = {
            kind: {node: n for node, var in here.items() if (n := self.values[var.index])}
            for kind, here in self.back.items()
        }
        return Layout(places, back)
