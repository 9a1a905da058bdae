"""A CP-SAT model that is solved in stages: the optimum of one is a constraint of the next.

Source: gang-network.md section 7, "Order of goals". One big weighted objective can lose the proof, stages keep theirs;
and a stage whose optimum is known by a bound, or met already, is not solved at all.
"""

from collections.abc import Iterable, Sequence

from koordpy.planning.plan import Proof
from koordpy.planning.solver.budget import TimeBudget
from koordpy.planning.solver.cpsat import cp_model

Term = tuple[cp_model.IntVar, int]


def linear(terms: Iterable[Term]) -> cp_model.LinearExprT:
    terms = list(terms)
    return cp_model.LinearExpr.weighted_sum([v for v, _ in terms], [c for _, c in terms])


def hint(model: cp_model.CpModel, values: Sequence[int]) -> None:
    """Makes an earlier solution of a model the one that its next solve begins with."""
    model.clear_hints()  # type: ignore[no-untyped-call]
    model.proto.solution_hint.vars.extend(range(len(values)))
    model.proto.solution_hint.values.extend(values)


class StagedModel:
    """A model with its current solution; values are empty until one is found."""

    def __init__(self, budget: TimeBudget) -> None:
        self.budget = budget
        self.model = cp_model.CpModel()
        self.values: list[int] = []
        self.possible = True
        """Turns false where a constraint cannot hold, whatever the values."""

    def value(self, terms: Iterable[Term]) -> int:
        return sum(self.values[v.index] * c for v, c in terms)

    def find(self, stage: str) -> Proof:
        """Any solution, kept as the current one."""
        if not self.possible:
            return Proof.INFEASIBLE
        proof, values = self.budget.solve(stage, self.model)
        if values:
            self.values = values
        return proof

    def minimise(self, stage: str, terms: Sequence[Term], *, bound: int | None = None) -> int:
        """Brings a sum to its least value, starting at the current solution, and holds it there from then on.

        bound: a proven lower bound; where the current solution meets it nothing is solved, and a better one that meets
        it needs no other proof.
        """
        terms = list(terms)
        current = self.value(terms)
        if terms and (bound is None or current > bound):
            if bound is not None:
                self.model.add(linear(terms) >= bound)
            hint(self.model, self.values)
            self.model.minimize(linear(terms))
            proof, values = self.budget.solve(stage, self.model, share=0.6, linearization=2)
            if proof is Proof.INFEASIBLE:
                self.budget.broken(stage, "a solved model became infeasible")
            self.model.clear_objective()  # type: ignore[no-untyped-call]
            if values:
                self.values = values
                current = self.value(terms)
        if terms:
            self.model.add(linear(terms) <= current)
        return current

    def hold(self, terms: Sequence[Term], most: int) -> None:
        """Keeps a sum at the optimum of an earlier stage."""
        if terms:
            self.model.add(linear(terms) <= most)

    def largest(self, stage: str, order: Sequence[tuple[list[Term], int]]) -> list[int]:
        """Makes the vector of sums lexicographically largest and holds it. order: (sum, proven upper bound)."""
        at, solved = 0, len(self.budget.runs)
        while at < len(order):
            if not self.budget.proven and len(self.budget.runs) > solved:
                # no proof can be had, and the first positions matter most
                break
            terms, most = order[at]
            now = self.value(terms)
            if now == most:
                self.model.add(linear(terms) == now)
                at += 1
                continue
            if now == 0:
                stop = at
                while stop < len(order) and self.value(order[stop][0]) == 0:
                    stop += 1
                zeros = [term for part, _ in order[at:stop] for term in part]
                if self.can(stage, [(v, -c) for v, c in zeros], -1):
                    continue
                self.model.add(linear(zeros) <= 0)
                at = stop
                continue
            weight, stop, parts = 1, at, []
            while stop < len(order) and weight * (order[stop][1] + 1) < 1 << 40 and stop - at < 8:
                weight *= order[stop][1] + 1
                parts.append(order[stop][0])
                stop += 1
            weights, scale = [], 1
            for _, top in reversed(order[at:stop]):
                weights.append(scale)
                scale *= top + 1
            weights.reverse()
            goal = [(v, -c * w) for part, w in zip(parts, weights, strict=True) for v, c in part]
            self.minimise(stage, goal)
            for part in parts:
                self.model.add(linear(part) == self.value(part))
            at = stop
        return [self.value(terms) for terms, _ in order]

    def can(self, stage: str, terms: Sequence[Term], most: int) -> bool:
        """Whether a sum can be at most so much; if so the current solution is one where it is."""
        trial = self.model.clone()
        trial.add(linear([(trial.get_int_var_from_proto_index(v.index), c) for v, c in terms]) <= most)
        _, values = self.budget.solve(stage, trial)
        if values:
            self.values = values
        return bool(values)
