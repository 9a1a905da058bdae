"""The least harmful choice of victims by CP-SAT: cost levels 1 to 9 one after the other, each held for the next.

Source: preemption.md 6 (2). A choice that its trial refuses comes back with what is wrong with it, and the
model is asked again.
"""

from collections.abc import Callable, Sequence

from koordpy.planning.limits import EARLY_LEVEL_SHARE, LATE_LEVEL_SHARE, LEVEL_9_UNITS, PRIORITY_PARTS, VICTIM_TRIES
from koordpy.planning.plan import Proof, proof_of
from koordpy.planning.solver.budget import TimeBudget
from koordpy.planning.solver.staged import StagedModel
from koordpy.planning.solver.victims_bounds import priorities
from koordpy.planning.solver.victims_model import VictimsModel
from koordpy.planning.victim_selection.choice import Choice, Choices, Cut, Layout, Need

_FIRST = "victims"
"""What the solve is called that finds any victims at all."""

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
        stages = StagedModel(self.budget, self.model.base)
        stages.minimise_all(self.model.early, share=EARLY_LEVEL_SHARE, first=_FIRST, least=self.model.least)
        if not stages.values and (self._impossible or not self._any(stages)):
            return None
        proven = self.budget.proven
        if self.model.topology is not None:
            bounds = self.model.bounds_of(o for o, var in enumerate(self.model.taken) if stages.values[var.index])
            stages.minimise_all(self.model.topology.layers(bounds), share=LATE_LEVEL_SHARE)
            level = -stages.value(self.model.topology.new_in_one)
            stages.minimise_all(self.model.topology.later(level, bounds), share=LATE_LEVEL_SHARE)
        stages.minimise_all([("priorities", self.model.priorities, None)], share=LATE_LEVEL_SHARE)
        self._spare(stages)
        stages.minimise_all([("rules", self.model.later_rule, None)])
        options = tuple(o for o, var in enumerate(self.model.taken) if stages.values[var.index])
        places = {place: n for place, var in self.model.pods.items() if (n := stages.values[var.index])}
        back = {
            kind: {node: n for node, var in here.items() if (n := stages.values[var.index])}
            for kind, here in self.model.back.items()
        }
        return options, Layout(places, back), proven

    @property
    def _impossible(self) -> bool:
        """Whether the last solve has shown that there is no solution, or that the model is refused."""
        last = self.budget.runs[-1] if self.budget.runs else None
        return last is not None and (last.status is Proof.INFEASIBLE or bool(last.fault))

    def _any(self, stages: StagedModel) -> bool:
        stages.find(_FIRST, linearization=2)
        return bool(stages.values)

    def _spare(self, stages: StagedModel) -> None:
        """Level 9: from the most important unit down, each is spared where it can be."""
        order = self.model.by_importance
        at = 0
        while at < len(order) and self.budget.left > 1e-6:
            taken = [i for i in range(at, len(order)) if stages.value(self.model.unit(order[i]))]
            stop = taken[0] if taken else len(order)
            for u in order[at:stop]:
                stages.fix(self.model.unit(u))
            at = stop
            chunk = order[at : at + LEVEL_9_UNITS]
            terms = [(var, c << (len(chunk) - 1 - i)) for i, u in enumerate(chunk) for var, c in self.model.unit(u)]
            stages.minimise_all([("spare", terms, None)])
            for u in chunk:
                stages.fix(self.model.unit(u))
            at += len(chunk)
