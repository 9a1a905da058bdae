"""The least harmful choice of victims by CP-SAT: cost levels 1 to 9 one after the other, each held for the next.

Source: preemption.md 6 (2). A choice that its trial refuses comes back with what is wrong with it, and the
model is asked again.
"""

from collections.abc import Callable, Iterable, Sequence
from math import gcd

from koordpy.planning.limits import LEVEL_9_UNITS, LEVEL_WEIGHT, PRIORITY_PARTS, VICTIM_TRIES
from koordpy.planning.plan import Proof, proof_of
from koordpy.planning.solver.budget import TimeBudget
from koordpy.planning.solver.cpsat import cp_model
from koordpy.planning.solver.staged import Term, hint, linear
from koordpy.planning.solver.victims_bounds import priorities
from koordpy.planning.solver.victims_model import VictimsModel
from koordpy.planning.solver.victims_topology import Stage
from koordpy.planning.victim_selection.choice import Choice, Choices, Cut, Layout, Need

Check = Callable[[tuple[int, ...], Layout], Sequence[Cut | Need]]
"""(options, where everybody goes) -> nothing where the plan holds under all filters, else what is wrong with it."""


def choose(choices: Choices, check: Check, *, most_tries: int = VICTIM_TRIES) -> Choice:
    """The least harmful options with which all members can be placed. most_tries: answers that a check may refuse."""
    watchdog, interrupts = choices.problem.watchdog_seconds, choices.problem.interrupts
    budget = TimeBudget(choices.deterministic_time, watchdog_seconds=watchdog, probing=False, interrupts=interrupts)
    steps = priorities(choices)
    if not steps:
        return Choice((), Proof.INFEASIBLE)
    # the least by levels 1 and 2 is among the first of them that hold a choice
    parts: list[int | None] = [*steps[:PRIORITY_PARTS], None]
    model = VictimsModel(choices, parts.pop(0))
    known: list[Cut | Need] = []
    for _ in range(most_tries):
        found = _Levels(model, budget).best()
        while found is None and model.partial:
            model = VictimsModel(choices, parts.pop(0))
            model.learn(known)
            found = _Levels(model, budget).best()
        if found is None:
            return Choice((), proof_of(placed=False, sure=budget.proven), tuple(budget.runs))
        options, layout, proven = found
        refused = check(options, layout)
        if not refused:
            return Choice(options, proof_of(placed=True, sure=proven), tuple(budget.runs))
        known += refused
        model.learn(refused)
    return Choice((), Proof.UNKNOWN, tuple(budget.runs))


class _Levels:
    """The cost levels of one model, solved anew whenever it has grown."""

    def __init__(self, model: VictimsModel, budget: TimeBudget) -> None:
        self.model, self.budget = model, budget

    def best(self) -> tuple[tuple[int, ...], Layout, bool] | None:
        """(options, where everybody goes, whether levels 1-6 are proven); None where nothing was found."""
        if not self.model.possible:
            return None
        stages = _Stages(self.model.base.clone(), self.budget)
        stages.minimise_all(self.model.early)
        if not stages.values and (stages.impossible or not stages.find()):
            return None
        proven = self.budget.proven
        if self.model.topology is not None:
            stages.minimise_all(self.model.topology.layers())
            level = -stages.value(self.model.topology.new_in_one)
            stages.minimise_all(self.model.topology.later(level))
        stages.minimise("priorities", self.model.priorities)
        self._spare(stages)
        stages.minimise("rules", self.model.later_rule)
        options = tuple(o for o, var in enumerate(self.model.taken) if stages.values[var.index])
        places = {place: n for place, var in self.model.pods.items() if (n := stages.values[var.index])}
        back = {
            kind: {node: n for node, var in here.items() if (n := stages.values[var.index])}
            for kind, here in self.model.back.items()
        }
        return options, Layout(places, back), proven

    def _spare(self, stages: "_Stages") -> None:
        """Level 9: from the most important unit down, each is spared where it can be."""
        order = self.model.by_importance
        at = 0
        while at < len(order) and stages.open:
            taken = [i for i in range(at, len(order)) if stages.value(self.model.unit(order[i]))]
            stop = taken[0] if taken else len(order)
            for u in order[at:stop]:
                stages.fix(self.model.unit(u))
            at = stop
            chunk = order[at : at + LEVEL_9_UNITS]
            terms = [(var, c << (len(chunk) - 1 - i)) for i, u in enumerate(chunk) for var, c in self.model.unit(u)]
            stages.minimise("spare", terms, hold=False)
            for u in chunk:
                stages.fix(self.model.unit(u))
            at += len(chunk)


class _Stages:
    """Solves of one model after another, each holding what the ones before reached."""

    def __init__(self, model: cp_model.CpModel, budget: TimeBudget) -> None:
        self.model, self.budget = model, budget
        self.values: list[int] = []

    @property
    def impossible(self) -> bool:
        """Whether the last solve has shown that there is no solution, or that the model is refused."""
        last = self.budget.runs[-1] if self.budget.runs else None
        return last is not None and (last.status is Proof.INFEASIBLE or bool(last.fault))

    @property
    def open(self) -> bool:
        """Whether there is time left."""
        return self.budget.left > 1e-6

    def _own(self, terms: Iterable[Term]) -> list[Term]:
        return [(self.model.get_int_var_from_proto_index(v.index), c) for v, c in terms]

    def value(self, terms: Iterable[Term]) -> int:
        return sum(self.values[v.index] * c for v, c in terms)

    def find(self) -> bool:
        _, values = self.budget.solve("victims", self.model, linearization=2)
        self.values = values
        return bool(values)

    def fix(self, terms: Sequence[Term]) -> None:
        if terms:
            self.model.add(linear(self._own(terms)) == self.value(terms))

    def minimise(self, name: str, terms: Sequence[Term], *, hold: bool = True) -> None:
        """Brings a sum to its least and holds it there; the current solution stays where time is up."""
        if not terms:
            return
        if self.value(terms) > _low((name, terms, None)):
            self._solve(name, terms)
        if hold:
            self._hold(terms)

    def minimise_all(self, stages: Iterable[Stage]) -> None:
        """The same of sums of which the earlier count more: as many in one solve as their weights allow. Without any
        solution where the first solve gives none."""
        rest = [stage for stage in stages if stage[1]]
        while rest:
            together = 0
            if not self.values or self.value(rest[0][1]) > _low(rest[0]):
                goal: list[Term] = []
                weight = 1
                for _, terms, _ in rest:
                    step = gcd(*(c for _, c in terms)) or 1
                    width = sum(abs(c) for _, c in terms) // step + 1
                    if together and weight * width > LEVEL_WEIGHT:
                        break
                    goal = [*((v, c * width) for v, c in goal), *((v, c // step) for v, c in terms)]
                    weight *= width
                    together += 1
                self._solve(rest[0][0] if self.values else "victims", goal)
                if not self.values:
                    return
            for _, terms, _ in rest[: max(1, together)]:
                self._hold(terms)
            del rest[: max(1, together)]

    def _hold(self, terms: Sequence[Term]) -> None:
        self.model.add(linear(self._own(terms)) <= self.value(terms))

    def _solve(self, name: str, terms: Sequence[Term]) -> None:
        hint(self.model, self.values)
        self.model.minimize(linear(self._own(terms)))
        _, values = self.budget.solve(name, self.model, share=0.6, linearization=2)
        self.model.clear_objective()  # type: ignore[no-untyped-call]
        self.values = values or self.values


def _low(stage: Stage) -> int:
    """What a sum is at least."""
    _, terms, least = stage
    return sum(min(0, c) for _, c in terms) if least is None else least
