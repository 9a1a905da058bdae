"""The choice of victims as a CP-SAT model: which options are chosen, such that all members fit afterwards.

Source: preemption.md 6 (2). Units that are equal in all numbers but their rank are a kind (`victim_kinds.py`), with one
integer variable. The rest is the model that counts pods per shape and node (`count_model.py`). Capacity of nodes is in
`freed_capacity.py`. Results of filters that are no sums are added as cuts and needs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import gcd

import numpy as np

from koordpy.placement.problem import Ints, hard_regions
from koordpy.placement.solver.count_model import CountModel
from koordpy.placement.solver.cpsat import cp_model
from koordpy.placement.solver.region_room import FillingCapacity, NodeType
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
    """The constraints of a choice; `early` and the later attributes are the sums of the cost levels."""

    def __init__(self, choices: Choices, budget: TimeBudget, most: int | None = None) -> None:
        """most: highest priority of the victims in the model, which then must not exceed any PodDisruptionBudget; None
        for all."""
        self.choices, self.kept = choices, most is not None
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
        """True if victims are left out, or if budgets are hard limits: a larger model may have other choices."""
        # scores of nodes by their number of pods do not matter for victims
        freed = replace(problem, free=freed_by(choices, every), by_count=None, standing=None)
        room = FillingCapacity(freed, dict(problem.wanted))
        fits = room.could(problem.hard)
        inside = [domain for _, domain in hard_regions(problem) if fits[domain]]
        keep = np.nonzero(np.isin(problem.tree.domain_of[problem.hard], inside))[0].tolist()
        each = np.arange(len(problem.free))
        super().__init__(room, (0, 0), budget=budget, keep=keep, alike=each)
        self.wanted = problem.wanted
        self.at = {(room.shapes[i], cell.nodes[0]): var for cell in self.cells for i, var in cell.pods.items()}
        for options in self.of_unit.values():
            if len(options) > 1:
                self.model.add_at_most_one(self.taken[o] for o in options)
        self._limits()
        self._blockers()
        self.back = FreedCapacity(self.model, choices, self.room, self.at, self.of_unit, self.unit).back
        self._together()
        self._levels()

    def _build(self, level: int, domain: int) -> None:
        self.taken = {o: self.model.new_int_var(0, len(kind), "") for o, kind in self.kinds.items()}
        self._more: dict[tuple[int, int], cp_model.IntVar] = {}
        super()._build(level, domain)

    def _capacity(self, kind: NodeType, pods: Mapping[int, cp_model.IntVar]) -> None:
        """Adds nothing: the capacity of a node depends on the victims (`freed_capacity.py`)."""

    # --- constraints ------------------------------------------------------------------------------------------------

    def unit(self, unit: int, amount: int = 1) -> list[Term]:
        """Returns the terms that a unit, with all of its kind, adds to a sum if any of its options is chosen."""
        return [(self.taken[o], amount) for o in self.of_unit.get(unit, ())]

    def _terms(self, terms: Iterable[tuple[int, int]]) -> list[Term]:
        return [(self.taken[o], amount) for o, amount in terms if amount and o in self.taken]

    def more(self, option: int, number: int) -> cp_model.IntVar:
        """Returns a variable: more than `number` units of a kind are chosen."""
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
            # a gang that violates its multiple already need not satisfy it
            times, terms = self.model.new_int_var(0, one.have // one.k + 1, ""), self._terms(one.terms)
            if when := [o for o in one.when if o in self.taken]:
                some = self._any(when)
                self.model.add(linear([*terms, (times, one.k)]) == one.have).only_enforce_if(some)

    def _limit(self, limit: Limit, within: Sequence[cp_model.IntVar] = ()) -> None:
        """within: literals under which the limit applies."""
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
        """Adds: one branch is satisfied if any option of `when` is chosen."""
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
        """Returns a variable that is true if any of some kinds is chosen; it may be true otherwise."""
        if len(options) == 1:
            return self.more(options[0], 0)
        out = self.model.new_bool_var("")
        for o in options:
            self.model.add(self.taken[o] <= 0).only_enforce_if(~out)
        return out

    def _runtime(self, runtime: RuntimeSteps) -> None:
        """Adds: one step applies, so that the total freed reaches it, and the quota gets back what it needs then."""
        gives, terms = self._terms(runtime.gives), self._terms(runtime.terms)
        held = []
        for number, (start, least) in enumerate(runtime.steps):
            if span(gives)[1] < start or span(terms)[1] < least:
                continue
            here = self.model.new_bool_var("")
            self.model.add(linear(gives) >= start).only_enforce_if(here)
            self.model.add(linear(terms) >= least).only_enforce_if(here)
            # with a larger total a runtime may be one unit smaller: then the step ends where the next one begins
            later = next((at for at, more in runtime.steps[number + 1 :] if more > least), None)
            if later is not None:
                self.model.add(linear(gives) < later).only_enforce_if(here)
            held.append(here)
        self.model.add_bool_or(held)

    def _crossing(self, crossing: Crossing, within: Sequence[cp_model.IntVar] = ()) -> None:
        """within: literals under which the crossing applies."""
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
        """Adds: a pod is placed only if a unit of each of its blockers is evicted."""
        for (shape, node), blockers in self.choices.blockers.items():
            if (shape, node) not in self.at:
                continue
            for units in blockers:
                gone = [term for u in units for term in self.unit(u, -self.wanted[shape])]
                self.model.add(linear([(self.at[shape, node], 1), *gone]) <= 0)

    def _together(self) -> None:
        """Adds constraints between members: the hard layer, regions, affinity and spread."""
        total = sum(self.room.wanted)
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
        """Adds: all pods are in one part."""
        full = []
        for here in parts:
            full.append(self.model.new_bool_var(""))
            self.model.add(linear([*here, (full[-1], -sum(self.room.wanted))]) == 0)
        self.model.add_exactly_one(full)

    def _leaving(self, label: Iterable[tuple[int, int, int]]) -> dict[int, list[Term]]:
        """Returns domain -> pods that are subtracted there with the chosen units."""
        out: dict[int, list[Term]] = {}
        for domain, unit, pods in label:
            out.setdefault(domain, []).extend(self.unit(unit, pods))
        return out

    def attracting_away(self, domain_of: Ints) -> dict[int, list[Term]]:
        """Returns domain -> pods that attract the preemptor and are evicted with the chosen units.

        domain_of: [nodes].
        """
        return self._leaving(
            (int(domain_of[node]), u, pods) for u in self.of_unit for node, pods in self.choices.units[u].attracts
        )

    def learn(self, refused: Iterable[Cut | Need]) -> None:
        """Excludes what checks rejected."""
        for one in refused if self.possible else ():
            if isinstance(one, Need):
                self.need(one)
            else:
                self.cut(one)

    def cut(self, cut: Cut) -> None:
        """Excludes an assignment that a check rejected."""
        gone = {self.choices.options[o].unit for o in cut.taken}
        changed: list[cp_model.LiteralT] = []
        for o, units in self._kinds_of(cut.among):
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
        """Adds: one of some units must be evicted first."""
        # units of a kind are chosen in order, so the first of these decides
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
            if pods == 1 and len(need.load.pods) == 1:
                self.model.add(linear([(var, 1), *((one, -self.wanted[shape]) for one in gone)]) <= 0)
                return
            less.append(self.model.new_bool_var(""))
            self.model.add(var <= pods - 1).only_enforce_if(less[-1])
        self.model.add_bool_or([*less, *gone])

    def _kinds_of(self, units: Iterable[int]) -> list[tuple[int, list[int]]]:
        """Returns (first option, units) of each kind with one of some units, the least important first."""
        some = set(units)
        members = ((o, [self.choices.options[one].unit for one in kind]) for o, kind in self.kinds.items())
        return [(o, kind) for o, kind in members if not some.isdisjoint(kind)]

    # --- cost levels ------------------------------------------------------------------------------------------------

    def _levels(self) -> None:
        """Builds the sums of levels 1 to 6 and 8."""
        choices, model = self.choices, self.model
        units = choices.units
        violated: list[Term] = []
        for b, allowed in enumerate(choices.budgets):
            covered = [t for u in self.of_unit for i, n in units[u].budgets if i == b for t in self.unit(u, n)]
            most = span(covered)[1]
            if most > allowed and self.kept:
                model.add(linear(covered) <= allowed)
                self.partial = True
            elif most > allowed:
                over = model.new_int_var(0, most - allowed, "")
                model.add(linear([*covered, (over, -1)]) <= allowed)
                violated.append((over, 1))
        steps = sorted({units[u].priority for u in self.of_unit}) if not self.kept else []
        top = model.new_int_var(0, len(steps), "")
        for u in self.of_unit if len(steps) > 1 else ():
            model.add(top >= steps.index(units[u].priority) + 1).only_enforce_if(self._any(self.of_unit[u]))
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
        self.priorities = [t for u, unit in every if unit.priorities for t in self.unit(u, unit.priorities)]
        ranked = (
            (units[choices.options[one].unit].rank, u, number)
            for u, options in self.of_unit.items()
            for number, one in enumerate(self.kinds[options[0]])
        )
        self.by_importance = [(u, number) for _, u, number in sorted(ranked, reverse=True)]
        """(unit that represents its kind, number of less important units of the kind) for all units, most important
        first."""
        self.later_rule = self._terms((o, option.rule) for o, option in enumerate(choices.options))

    # --- result -----------------------------------------------------------------------------------------------------

    @property
    def chosen(self) -> tuple[int, ...]:
        """The chosen options."""
        taken = (kind[: self.values[self.taken[o].index]] for o, kind in self.kinds.items())
        return tuple(sorted(one for some in taken for one in some))

    @property
    def layout(self) -> Layout:
        """The placement of new and moved pods."""
        places = {place: n for place, var in self.at.items() if (n := self.values[var.index])}
        back = {
            kind: {node: n for node, var in here.items() if (n := self.values[var.index])}
            for kind, here in self.back.items()
        }
        return Layout(places, back)
