# SPDX-License-Identifier: Apache-2.0
"""A CP-SAT model for goals that are compared one after the other: each goal is a stage, with a separate solve.

The optimum of each stage becomes a constraint of the next stage. With one weighted objective over all goals instead, a
missing proof of an unimportant goal would also be missing for the important goals. A stage is not solved if the current
solution already meets a proven bound. Source: docs/rules/gang-network.md 7.
"""

from collections.abc import Iterable, Sequence
from math import gcd

from koordpy.placement.solver.cpsat import Model, cp_model
from koordpy.placement.solver.time_budget import TimeBudget
from koordpy.plan.limits import LEVEL_WEIGHT, STAGE_SHARE
from koordpy.plan.round_plan import Proof

Term = tuple[cp_model.IntVar, int]
"""(variable, factor). A list of terms is their sum."""

Stage = tuple[str, Sequence[Term], int | None]
"""(name, sum to minimise, proven lower bound of it; None if not known)."""


def linear(terms: Iterable[Term]) -> cp_model.LinearExprT:
    """Returns a sum of terms as an expression of CP-SAT."""
    terms = list(terms)
    return cp_model.LinearExpr.weighted_sum([v for v, _ in terms], [c for _, c in terms])


def hint(model: cp_model.CpModel, values: Sequence[int]) -> None:
    """Makes an earlier solution of a model the start of its next solve."""
    model.clear_hints()  # type: ignore[no-untyped-call]
    model.proto.solution_hint.vars.extend(range(len(values)))
    model.proto.solution_hint.values.extend(values)


class StagedModel:
    """A model with its current solution, which each stage replaces by a better one.

    values: [variables by index] value in the current solution; empty until a solution is found.
    """

    def __init__(self, budget: TimeBudget) -> None:
        self.budget = budget
        self.model = Model()
        self.values: list[int] = []
        self.possible = True
        """False if a constraint cannot be satisfied by any values, so that no solve is necessary."""

    def value(self, terms: Iterable[Term]) -> int:
        """Returns the value of a sum in the current solution."""
        return sum(self.values[v.index] * c for v, c in terms)

    def find(self, stage: str, *, linearization: int = 1) -> Proof:
        """Finds any solution, makes it the current one, and returns the proof. stage: name for the record of solves."""
        if not self.possible:
            return Proof.INFEASIBLE
        proof, values = self.budget.solve(stage, self.model, linearization=linearization)
        if values:
            self.values = values
        return proof

    def minimise(self, stage: str, terms: Sequence[Term], *, bound: int | None = None) -> int:
        """Minimises a sum, starting at the current solution, makes the value found an upper limit, and returns it.

        bound: a proven lower bound; None if not known. Nothing is solved if the current solution meets the bound. The
        bound is also a constraint, so that a solution that meets it is proven without further search.
        """
        terms = list(terms)
        current = self.value(terms)
        if terms and (bound is None or current > bound):
            if bound is not None:
                self.model.add(linear(terms) >= bound)
            self._minimise(stage, terms)
            current = self.value(terms)
        self.hold(terms, current)
        return current

    def minimise_all(self, stages: Iterable[Stage], *, share: float = STAGE_SHARE, first: str = "") -> None:
        """Minimises several sums lexicographically, and makes the values found upper limits.

        Each solve minimises as many sums as possible at once, weighted so that an earlier sum always decides; the
        weights must stay below `LEVEL_WEIGHT`. If there is no current solution, the first solve searches one; if it
        finds none, the method ends.

        share: maximum fraction of the remaining time for one solve. first: name of the solve that finds the first
        solution; by default the name of its stage.
        """
        rest = [stage for stage in stages if stage[1]]
        while rest:
            together = 0
            if not self.values or self.value(rest[0][1]) > _low(rest[0]):
                goal: list[Term] = []
                weight = 1
                for _, terms, _ in rest:
                    step = gcd(*(c for _, c in terms)) or 1
                    low, high = span(terms)
                    width = (high - low) // step + 1
                    if together and weight * width > LEVEL_WEIGHT:
                        break
                    goal = [*((v, c * width) for v, c in goal), *((v, c // step) for v, c in terms)]
                    weight *= width
                    together += 1
                self._minimise(first if first and not self.values else rest[0][0], goal, share)
                if not self.values:
                    return
            for _, terms, _ in rest[: max(1, together)]:
                self.hold(terms, self.value(terms))
            del rest[: max(1, together)]

    def _minimise(self, stage: str, terms: Sequence[Term], share: float = STAGE_SHARE) -> None:
        """Runs one solve for the least value of a sum. If it finds no solution, the current solution stays."""
        self.model.minimize(linear(terms))
        hint(self.model, self.values)
        proof, values = self.budget.solve(stage, self.model, share=share, linearization=2)
        if proof is Proof.INFEASIBLE and self.values:
            self.budget.broken(stage, "a solved model became infeasible")
        self.model.clear_objective()  # type: ignore[no-untyped-call]
        self.values = values or self.values

    def hold(self, terms: Sequence[Term], most: int) -> None:
        """Limits a sum to at most `most`. The caller passes the optimum of an earlier stage."""
        if terms:
            self.model.add(linear(terms) <= most)

    def fix(self, terms: Sequence[Term]) -> None:
        """Fixes a sum to its current value."""
        if terms:
            self.model.add(linear(terms) == self.value(terms))

    def largest(self, stage: str, order: Sequence[tuple[list[Term], int]]) -> list[int]:
        """Makes a vector of sums lexicographically largest, fixes it, and returns its values.

        order: for each position (sum, proven upper bound of it); sums are 0 or more. Positions are solved 8 at a time.
        If several consecutive positions are 0 in the current solution, one solve decides whether any of them can be
        above 0.
        """
        at, solved = 0, len(self.budget.runs)
        while at < len(order):
            if not self.budget.proven and len(self.budget.runs) > solved:
                # a proof is no longer possible; the first positions matter most, so the others stay as they are
                break
            terms, most = order[at]
            now = self.value(terms)
            if now == most:
                self.model.add(linear(terms) == now)
                at += 1
                continue
            if now == 0:  # includes all following positions that are 0
                stop = at
                while stop < len(order) and self.value(order[stop][0]) == 0:
                    stop += 1
                zeros = [term for part, _ in order[at:stop] for term in part]
                if self.can(stage, [(v, -c) for v, c in zeros], -1):
                    continue
                self.model.add(linear(zeros) <= 0)
                at = stop
                continue
            part = order[at : at + 8]  # few positions per solve, to keep their combined weights small
            self.minimise_all((stage, [(v, -c) for v, c in terms], -most) for terms, most in part)
            for terms, _ in part:
                self.fix(terms)
            at += len(part)
        return [self.value(terms) for terms, _ in order]

    def can(self, stage: str, terms: Sequence[Term], most: int) -> bool:
        """Returns True if a sum can be at most `most`; then the current solution is replaced by one with such a sum.

        False if it cannot, and also if the solver's time ran out.
        """
        return self.ask(stage, terms, most) in (Proof.OPTIMAL, Proof.FEASIBLE)

    def ask(self, stage: str, terms: Sequence[Term], most: int, *, share: float = 1.0) -> Proof:
        """Returns the proof whether a sum can be at most `most`: FEASIBLE, INFEASIBLE, or UNKNOWN if the time ran out.

        If a solution is found, it becomes the current one. The limit does not become a constraint. share: maximum
        fraction of the remaining time.
        """
        trial = self.model.clone()
        trial.add(linear((trial.get_int_var_from_proto_index(v.index), c) for v, c in terms) <= most)
        proof, values = self.budget.solve(stage, trial, share=share)
        if values:
            self.values = values
        return proof


def _low(stage: Stage) -> int:
    """Returns a lower bound of the sum of a stage: its proven bound, else the bound that follows from its variables."""
    _, terms, least = stage
    return span(terms)[0] if least is None else least


def span(terms: Sequence[Term]) -> tuple[int, int]:
    """Returns (least, largest) possible value of a sum, from the bounds of its variables."""
    ends = [(0, c) if v.is_boolean else (v.domain.min() * c, v.domain.max() * c) for v, c in terms]
    return sum(map(min, ends)), sum(map(max, ends))
