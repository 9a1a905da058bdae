"""What a choice of victims is as a CP-SAT model: which options are taken, and that all members fit once they are gone.

Source: preemption.md 6 (2). One 0/1 per option, pods per shape and node; what sums cannot say of filters comes
back as a cut or a need.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import permutations

from koordpy.planning.placement.problem import Problem, hard_regions
from koordpy.planning.solver.cpsat import cp_model
from koordpy.planning.solver.interacting import Interacting
from koordpy.planning.solver.room import implied_by
from koordpy.planning.solver.staged import Stage, Term, linear
from koordpy.planning.solver.victims_bounds import Bounds, LeastPrice, freed_by, held_bounds, wanted_of
from koordpy.planning.solver.victims_topology import Topology
from koordpy.planning.victim_selection.choice import Choices, Crossing, Cut, MovedKind, Need, Rejoin


class VictimsModel:
    """The model of all that must hold; `early` and what follows are the sums of the cost levels."""

    def __init__(self, choices: Choices, most: int | None = None) -> None:
        """most: the highest priority of whom is looked at, no PodDisruptionBudget exceeded; everybody, by default."""
        self.choices, self.kept = choices, most is not None
        self.problem: Problem = choices.problem
        self.base = cp_model.CpModel()
        self.possible = True
        self.taken = [self.base.new_bool_var("") for _ in choices.options]
        self.of_unit: dict[int, list[int]] = {}
        self.closed = {
            o for o, one in enumerate(choices.options) if most is not None and choices.units[one.unit].priority > most
        }
        for o, option in enumerate(choices.options):
            if o not in self.closed:
                self.of_unit.setdefault(option.unit, []).append(o)
        self.partial = bool(self.closed)
        """Whether somebody is left out, or a budget might else be exceeded: there may be other choices."""
        for options in self.of_unit.values():
            if len(options) > 1:
                self.base.add_at_most_one(self.taken[o] for o in options)
        self._limits()
        self._pods()
        self._room()
        self._domains()
        self._levels()
        self.topology = self._topology() if self.problem.gather and self.possible else None

    # --- what must hold ---------------------------------------------------------------------------------------------

    def unit(self, unit: int, amount: int = 1) -> list[Term]:
        """What a unit adds to a sum where any option takes it."""
        return [(self.taken[o], amount) for o in self.of_unit.get(unit, ())]

    def bounds_of(self, taken: Iterable[int]) -> Bounds:
        """What may still be had by choices that are held to what some options cost."""
        units = [self.choices.options[o].unit for o in taken]
        return held_bounds(self.choices, self.of_unit, units, self.wanted)

    def least(self, goal: Iterable[Term]) -> int | None:
        """What a sum is at least that no part of lowers."""
        prices = Counter[int]()
        for var, price in goal:
            prices[var.index] += price
        table = LeastPrice(self.choices, self.bounds, self.wanted, self.of_unit)
        return table.of(lambda u: min(prices[self.taken[o].index] for o in self.of_unit[u]))

    def _terms(self, terms: Iterable[tuple[int, int]]) -> list[Term]:
        return [(self.taken[o], amount) for o, amount in terms if amount and o not in self.closed]

    def _limits(self) -> None:
        for limit in self.choices.limits:
            total = linear(self._terms(limit.terms))
            when = [self.taken[o] for o in limit.when if o not in self.closed]
            if limit.when and not when:
                continue
            bounds = [total <= limit.most] if limit.most is not None else []
            bounds += [total >= limit.least] if limit.least is not None else []
            where = self._any(when) if when else None
            for bound in bounds:
                added = self.base.add(bound)
                if where is not None:
                    added.only_enforce_if(where)
        for crossing in self.choices.crossings:
            self._crossing(crossing)
        for one in self.choices.multiples:
            # of a gang that has fewer than a multiple already, nobody has to go for that
            times, terms = self.base.new_int_var(0, one.have // one.k + 1, ""), self._terms(one.terms)
            if terms:
                some = self._any([var for var, _ in terms])
                self.base.add(linear([*terms, (times, one.k)]) == one.have).only_enforce_if(some)

    def _any(self, some: list[cp_model.IntVar]) -> cp_model.IntVar:
        """True at least where any of some is."""
        if len(some) == 1:
            return some[0]
        out = self.base.new_bool_var("")
        for var in some:
            self.base.add_implication(var, out)
        return out

    def _crossing(self, crossing: Crossing) -> None:
        everyone = dict.fromkeys(o for terms, _ in crossing.resources for o, _ in terms if o not in self.closed)
        enough = []
        for terms, room in crossing.resources:
            holds = self.base.new_bool_var("")
            last = {o: self.base.new_bool_var("") for o, _ in terms if o not in self.closed}
            for o, var in last.items():
                self.base.add_implication(var, self.taken[o])
            if last:
                self.base.add_at_most_one(last.values())
            spared = [(last[o], -amount) for o, amount in terms if o in last]
            self.base.add(linear([*self._terms(terms), *spared]) < room).only_enforce_if(holds)
            enough.append(holds)
        for o in everyone:
            self.base.add_bool_or(enough).only_enforce_if(self.taken[o])

    def _pods(self) -> None:
        """Pods per shape and node, every member on one."""
        problem = self.problem
        self.wanted = wanted = wanted_of(problem)
        relief: dict[int, list[tuple[int, dict[int, int]]]] = {}
        for u, unit in enumerate(self.choices.units):
            if u in self.of_unit:
                for node, amounts in unit.frees:
                    relief.setdefault(node, []).append((u, dict(amounts)))
        self.relief = relief
        self.bounds = Bounds(problem, freed_by(self.choices, self.of_unit), wanted)
        able = self.bounds.holds(problem.hard)[problem.tree.domain_of[problem.hard]]
        self.pods: dict[tuple[int, int], cp_model.IntVar] = {}
        for shape, number in wanted.items():
            room = self.bounds.slots[shape] * able
            for node in room.nonzero()[0].tolist():
                self.pods[shape, node] = self.base.new_int_var(0, int(room[node]), "")
            here = [(var, 1) for (s, _), var in self.pods.items() if s == shape]
            if not here:
                self.possible = False
                return
            self.base.add(linear(here) == number)
        for (shape, node), blockers in self.choices.blockers.items():
            if (shape, node) not in self.pods:
                continue
            for units in blockers:
                gone = [term for u in units for term in self.unit(u, -wanted[shape])]
                self.base.add(linear([(self.pods[shape, node], 1), *gone]) <= 0)

    def _room(self) -> None:
        """No node is asked for more of a resource than it has free and gets back; others are not looked at, nor those
        that never bind where another does not."""
        problem = self.problem
        loads: dict[int, list[tuple[cp_model.IntVar, tuple[tuple[int, int], ...], int]]] = {}
        for (shape, node), var in self.pods.items():
            loads.setdefault(node, []).append((var, problem.shapes[shape].request, int(self.bounds.slots[shape][node])))
        self._returns(loads)
        times = _implied([request for load in loads.values() for _, request, _ in load])
        for node, load in loads.items():
            implied: set[int] = set()
            columns = sorted({column for _, request, _ in load for column, _ in request})
            for column in columns:
                asked = [(var, amount) for var, request, _ in load for c, amount in request if c == column]
                most = sum(amount * number for _, request, number in load for c, amount in request if c == column)
                free = int(problem.free[node, column])
                if most <= free:
                    continue
                if any(
                    other not in implied
                    and (column, other) in times
                    and self._looser(node, column, other, *times[column, other])
                    for other in columns
                ):
                    implied.add(column)
                    continue
                relief = self.relief.get(node, ())
                freed = [t for u, frees in relief for t in self.unit(u, -frees.get(column, 0)) if t[1]]
                if free >= 0:
                    self.base.add(linear([*asked, *freed]) <= free)
                    continue
                some = self.base.new_bool_var("")
                for var, _ in asked:
                    self.base.add(var <= 0).only_enforce_if(~some)
                self.base.add(linear([*asked, *freed]) <= free).only_enforce_if(some)

    def _looser(self, node: int, column: int, other: int, weight: int, each: int) -> bool:
        """Whether a node has weight / each times as much of one column as of another, whoever goes."""
        rooms = [dict(enumerate(self.problem.free[node].tolist())), *(frees for _, frees in self.relief.get(node, ()))]
        return self.problem.free[node, column] >= 0 and all(
            room.get(column, 0) * each >= room.get(other, 0) * weight for room in rooms
        )

    def _returns(self, loads: dict[int, list[tuple[cp_model.IntVar, tuple[tuple[int, int], ...], int]]]) -> None:
        """Pods of one kind that come back, by node: whose they are makes no difference to the room."""
        moved: dict[MovedKind, list[Term]] = {}
        for u, parts in enumerate(self.choices.returns):
            for part in parts if u in self.of_unit else ():
                moved.setdefault(part.kind, []).extend(self.unit(u, part.pods))
        self.back: dict[MovedKind, dict[int, cp_model.IntVar]] = {}
        for kind, terms in moved.items():
            most = sum(pods for _, pods in terms)
            here = self.back[kind] = {node: self.base.new_int_var(0, most, "") for node in kind.nodes}
            self.base.add(linear([*((var, 1) for var in here.values()), *((var, -pods) for var, pods in terms)]) == 0)
            for node, var in here.items():
                loads.setdefault(node, []).append((var, kind.request, most))
        for one in self.choices.rejoins:
            self._rejoin(one)

    def _rejoin(self, one: Rejoin) -> None:
        """Where any of a group moves, its members stand together in the end as they have to."""
        coming = [
            (node, var) for kind, here in self.back.items() if kind.group == one.group for node, var in here.items()
        ]
        if not coming:
            return
        moved = self.base.new_bool_var("")
        for unit in dict.fromkeys(u for _, units in one.members for u in units):
            for var, _ in self.unit(unit):
                self.base.add_implication(var, moved)
        leaves = [(node, [term for u in units for term in self.unit(u)]) for node, units in one.members]
        for domains in one.common:
            found = dict.fromkeys(d for node, _ in (*coming, *leaves) if (d := int(domains[node])) >= 0)
            chosen = {d: self.base.new_bool_var("") for d in found}
            self.base.add_exactly_one(chosen.values())
            for node, gone in leaves:
                here = [(chosen[d], 1)] if (d := int(domains[node])) >= 0 else []
                self.base.add(linear([*gone, *here]) >= 1).only_enforce_if(moved)
            for node, var in coming:
                if (d := int(domains[node])) >= 0:
                    self.base.add(var == 0).only_enforce_if(~chosen[d])
                else:
                    self.base.add(var == 0)
        for domains, k in one.multiples:
            inside: dict[int, list[Term]] = {}
            for node, var in coming:
                inside.setdefault(int(domains[node]), []).append((var, 1))
            for node, gone in leaves:
                inside.setdefault(int(domains[node]), []).extend((var, -c) for var, c in gone)
            for d, terms in inside.items():
                stood = sum(int(domains[node]) == d for node, _ in leaves)
                times = self.base.new_int_var(0, (stood + len(one.members)) // k + 1, "")
                self.base.add(linear([*terms, (times, -k)]) == -stood).only_enforce_if(moved)

    def _domains(self) -> None:
        """The hard layer, multiples of the beneficiary, and what members ask of each other."""
        problem, tree = self.problem, self.problem.tree
        total = sum(self.wanted.values())
        regions = hard_regions(problem)
        if not regions:
            self.possible = False
        elif problem.hard:
            used = {int(tree.domain_of[problem.hard, node]) for _, node in self.pods}
            known = {d: self.base.new_bool_var("") for _, d in regions if d in used}
            whole: dict[tuple[int, int], list[Term]] = {(s, d): [] for s in self.wanted for d in known}
            for (shape, node), var in self.pods.items():
                domain = int(tree.domain_of[problem.hard, node])
                if domain in known:
                    whole[shape, domain].append((var, 1))
                else:
                    self.base.add(var == 0)
            for (shape, domain), here in whole.items():
                self.base.add(linear([*here, (known[domain], -self.wanted[shape])]) == 0)
            self.base.add_exactly_one(known.values())
        for level, k in problem.multiples.items():
            held = tree.levels[level].sums(problem.bound_counts)
            inside: dict[int, list[Term]] = {}
            for (_, node), var in self.pods.items():
                inside.setdefault(int(tree.domain_of[level, node]), []).append((var, 1))
            for domain, have in enumerate(held.tolist()):
                if domain in inside:
                    times = self.base.new_int_var(0, (have + total) // k + 1, "")
                    self.base.add(linear([*inside[domain], (times, -k)]) == -have)
                elif have % k:
                    self.possible = False
        self._regions()
        if problem.interactions or self.choices.ties:
            places: dict[int, dict[int, list[Term]]] = {}
            for (shape, node), var in self.pods.items():
                places.setdefault(node, {})[shape] = [(var, 1)]
            between = Interacting(self.base, list(places.items()), most=self.wanted)
            between.add(problem.interactions)
            for tie in self.choices.ties:
                between.add_one(tie.interaction, [self._leaving(label) for label in tie.leaving])

    def _leaving(self, label: Iterable[tuple[int, int, int]]) -> dict[int, list[Term]]:
        """Domain -> pods that leave it with the units taken."""
        out: dict[int, list[Term]] = {}
        for domain, unit, pods in label:
            out.setdefault(domain, []).extend(self.unit(unit, pods))
        return out

    def _regions(self) -> None:
        """Sets of nodes that take pods in multiples, or of which one takes them all."""
        total = sum(self.wanted.values())
        on: dict[int, list[Term]] = {}
        for (_, node), var in self.pods.items():
            on.setdefault(node, []).append((var, 1))
        listed = set[int]()
        for nodes, k in self.choices.lots:
            listed |= set(nodes)
            here = [term for node in nodes for term in on.get(node, ())]
            if here:
                times = self.base.new_int_var(0, total // k, "")
                self.base.add(linear([*here, (times, -k)]) == 0)
        if self.choices.lots:
            for node, terms in on.items():
                if node not in listed:
                    self.base.add(linear(terms) == 0)
        if self.choices.one_of:
            full = []
            for nodes in self.choices.one_of:
                here = [term for node in nodes for term in on.get(node, ())]
                full.append(self.base.new_bool_var(""))
                self.base.add(linear([*here, (full[-1], -total)]) == 0)
            self.base.add_exactly_one(full)

    def learn(self, refused: Iterable[Cut | Need]) -> None:
        """Rules out what checks refused."""
        for one in refused if self.possible else ():
            if isinstance(one, Need):
                self.need(one)
            else:
                self.cut(one)

    def cut(self, cut: Cut) -> None:
        """Forbids what a check refused."""
        chosen = {self.choices.options[o].unit for o in cut.taken}
        changed: list[Term] = []
        base = 0
        for u in cut.among:
            if u in chosen:
                changed += self.unit(u, -1)
                base += 1
            else:
                changed += self.unit(u, 1)
        if not cut.places:
            self.base.add(linear(changed) >= 1 - base)
            return
        for place in cut.places:
            if place in self.pods:
                number = self.wanted[place[0]]
                scaled = [(var, -c * number) for var, c in changed]
                self.base.add(linear([(self.pods[place], 1), *scaled]) <= number * base)

    def need(self, need: Need) -> None:
        """Some unit has to go first."""
        gone = [self.taken[o] for u in need.units for o in self.of_unit.get(u, ())]
        if need.load is None:
            self.base.add_bool_or(gone)
            return
        less = []
        for shape, pods in need.load.pods:
            var = self.pods[shape, need.load.node]
            if pods == 1 and len(need.load.pods) == 1:
                self.base.add(linear([(var, 1), *((one, -self.wanted[shape]) for one in gone)]) <= 0)
                return
            less.append(self.base.new_bool_var(""))
            self.base.add(var <= pods - 1).only_enforce_if(less[-1])
        self.base.add_bool_or([*less, *gone])

    # --- what it costs ----------------------------------------------------------------------------------------------

    def _levels(self) -> None:
        """The sums of levels 1 to 6 and 8."""
        choices, base = self.choices, self.base
        units = choices.units
        violated: list[Term] = []
        for b, allowed in enumerate(choices.budgets):
            covered = [t for u in self.of_unit for i, n in units[u].budgets if i == b for t in self.unit(u, n)]
            most = sum(c for _, c in covered)
            if most > allowed and self.kept:
                base.add(linear(covered) <= allowed)
                self.partial = True
            elif most > allowed:
                over = base.new_int_var(0, most, "")
                base.add(linear([*covered, (over, -1)]) <= allowed)
                violated.append((over, 1))
        steps = sorted({units[u].priority for u in self.of_unit})
        top = base.new_int_var(0, len(steps), "")
        for u in self.of_unit:
            step = steps.index(units[u].priority) + 1
            base.add(linear([*self.unit(u, step), (top, -1)]) <= 0)
        short: list[Term] = []
        for one in choices.shortfalls:
            most = sum(amount for _, amount in one.terms)
            if most > one.slack:
                below = base.new_int_var(0, most, "")
                base.add(linear([*self._terms(one.terms), (below, -1)]) <= one.slack)
                short.append((below, 1))
        every = [(u, units[u]) for u in self.of_unit]
        early = [
            ("violations", violated),
            ("highest priority", [(top, 1)] if len(steps) > 1 and not self.kept else []),
            ("gangs broken", [t for u, unit in every if unit.breaks for t in self.unit(u, unit.breaks)]),
            ("accelerators", [t for u, unit in every if unit.devices for t in self.unit(u, unit.devices)]),
            ("pods", [t for u, unit in every for t in self.unit(u, unit.pods)]),
            ("quota shortfall", short),
        ]
        self.early: list[Stage] = [(name, terms, None) for name, terms in early]
        self.priorities = [t for u, unit in every if unit.priorities for t in self.unit(u, unit.priorities)]
        self.by_importance = [u for u, _ in sorted(every, key=lambda pair: -pair[1].rank)]
        self.later_rule = self._terms((o, option.rule) for o, option in enumerate(choices.options))

    def _topology(self) -> Topology:
        leaving: dict[int, list[Term]] = {}
        for u in self.of_unit:
            for node, pods in self.choices.units[u].attracts:
                leaving.setdefault(node, []).extend(self.unit(u, pods))
        return Topology(self.base, self.problem, pods=self.pods, leaving=leaving, bounds=self.bounds)


def _implied(requests: Iterable[tuple[tuple[int, int], ...]]) -> dict[tuple[int, int], tuple[int, int]]:
    """(column, other) -> what pods ask of a column at most, as a part of what they ask of the other (`implied_by`)."""
    every = [dict(request) for request in dict.fromkeys(requests)]
    columns = sorted({column for request in every for column in request})
    out = {}
    for column, other in permutations(columns, 2):
        times = implied_by([r.get(column, 0) for r in every], [r.get(other, 0) for r in every])
        if times is not None:
            out[column, other] = times
    return out
