# SPDX-License-Identifier: Apache-2.0
"""Finds the least harmful choice of victims by CP-SAT: minimises cost levels 1 to 9, one after another.

Each level is fixed at its minimum before the next is minimised (docs/rules/preemption.md 6 (2)). Small models are tried
first: the first has only the victims up to the lowest priority that may suffice, the next those up to the next
priority, and so on. The dry run checks each choice with all filters. If it rejects a choice, the reason is added as a
constraint (`Cut`, `Need`), and the model is solved again.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence

from koordpy.placement.solver.region_cells import TooLarge
from koordpy.placement.solver.time_budget import TimeBudget
from koordpy.plan.limits import EARLY_LEVEL_SHARE, LATE_LEVEL_SHARE, LEVEL_9_UNITS, PRIORITY_PARTS, VICTIM_TRIES
from koordpy.plan.round_plan import Proof, proof_of
from koordpy.preemption.selection.lower_bounds import sums_allow
from koordpy.preemption.selection.victim_choice import Choice, Choices, Cut, Layout, Need
from koordpy.preemption.selection.victims_model import VictimsModel
from koordpy.preemption.selection.victims_topology import Topology

_FIRST = "victims"
"""Name of the first solve, which finds any set of victims."""

Check = Callable[[tuple[int, ...], Layout], Sequence[Cut | Need]]
"""Called with (options, layout): returns an empty sequence if the choice passes its dry run, else the constraints that
exclude it."""


def choose(choices: Choices, check: Check, *, most_tries: int = VICTIM_TRIES) -> Choice:
    """Returns the least harmful options with which all members fit.

    check: the dry run. most_tries: maximum number of rejected choices; after that the result is UNKNOWN.
    """
    watchdog = choices.problem.watchdog_seconds
    budget = TimeBudget(choices.deterministic_time, watchdog_seconds=watchdog, probing=False)
    steps = _priorities(choices)
    if not steps:
        return Choice((), Proof.INFEASIBLE)
    # models of the victims up to a priority, then of the whole problem (None). Levels 1 (no budget is violated) and 2
    # (lowest priority) precede all others, so the optimum is in the first model that has a solution
    parts: list[int | None] = [*steps[:PRIORITY_PARTS], None]
    known: list[Cut | Need] = []
    for _ in range(most_tries):
        found = None
        while found is None:
            try:
                model = VictimsModel(choices, budget, parts[0])
            except TooLarge:
                return Choice((), Proof.UNKNOWN, tuple(budget.runs))
            model.learn(known)
            found = _Levels(model).best()
            if found is None and not model.partial:
                return Choice((), proof_of(placed=False, sure=budget.proven), tuple(budget.runs))
            if found is None:
                del parts[0]
        options, layout, proven = found
        refused = check(options, layout)
        if not refused:
            return Choice(options, proof_of(placed=True, sure=proven), tuple(budget.runs))
        known += refused
    return Choice((), Proof.UNKNOWN, tuple(budget.runs))


def _priorities(choices: Choices) -> list[int]:
    """Returns the priorities of units, ascending, from the lowest one that may suffice.

    A priority does not suffice if all units up to it free too little, by sums alone. Empty: all units together free too
    little.
    """
    units = {option.unit for option in choices.options}
    steps = sorted({choices.units[u].priority for u in units})

    def enough(most: int) -> bool:
        """Returns True if the units of priority `most` or lower free enough, by sums."""
        return sums_allow(choices, (u for u in units if choices.units[u].priority <= most))

    return steps[bisect_left(steps, True, key=enough) :]


class _Levels:
    """Minimises the cost levels of one model, one after another."""

    def __init__(self, model: VictimsModel) -> None:
        self.model, self.budget = model, model.budget

    def best(self) -> tuple[tuple[int, ...], Layout, bool] | None:
        """Returns (options, layout, True if levels 1 to 6 are proven); None if no choice was found."""
        model = self.model
        if not model.possible:
            return None
        # levels 1 to 6; if no solution is found in time, accept any solution
        model.minimise_all(model.early, share=EARLY_LEVEL_SHARE, first=_FIRST)
        if not model.values and not self._impossible:
            model.find(_FIRST, linearization=2)
        if not model.values:
            return None
        # levels 7, 8 and 9, and last the earliest possible rule of each unit; the proof does not cover these
        proven = self.budget.proven
        if model.problem.gather:
            self._gathered(Topology(model))
        model.minimise_all([("priorities", model.priorities, None)], share=LATE_LEVEL_SHARE)
        self._spare()
        model.minimise_all([("rules", model.later_rule, None)])
        return model.chosen, model.layout, proven

    @property
    def _impossible(self) -> bool:
        """True if the last solve has proven that there is no solution, or if CP-SAT has rejected the model as
        invalid."""
        last = self.budget.runs[-1] if self.budget.runs else None
        return last is not None and (last.status is Proof.INFEASIBLE or bool(last.fault))

    def _gathered(self, topology: Topology) -> None:
        """Minimises level 7: the gather goals of the placement.

        Attraction depends on the common layer of the new pods. So if pods attract the preemptor, the layer is fixed
        first.
        """
        goals = topology.layers()
        if topology.attracted:
            self.model.minimise_all(goals, share=LATE_LEVEL_SHARE)
            goals = []
        self.model.minimise_all([*goals, *topology.later()], share=LATE_LEVEL_SHARE)

    def _spare(self) -> None:
        """Minimises level 9: spares each unit if possible, starting with the most important unit.

        One solve decides `LEVEL_9_UNITS` units. Its first unit is the next unit that the current solution evicts.
        """
        model, order = self.model, self.model.by_importance
        at = 0
        while at < len(order) and self.budget.left > 1e-6:
            # units that the current solution spares are fixed as spared, without a solve
            most: dict[int, int] = {}
            while at < len(order) and model.value(model.unit(order[at][0])) <= order[at][1]:
                u, number = order[at]
                most[u] = number
                at += 1
            for u, number in most.items():
                model.hold(model.unit(u), number)
            chunk = [
                [(model.more(o, number), 1) for o in model.of_unit[u]] for u, number in order[at : at + LEVEL_9_UNITS]
            ]
            # weights are powers of two: sparing a unit outweighs sparing all less important units together
            terms = [(var, 1 << (len(chunk) - 1 - i)) for i, taken in enumerate(chunk) for var, _ in taken]
            model.minimise_all([("spare", terms, None)])
            for taken in chunk:
                model.fix(taken)
            at += len(chunk)
