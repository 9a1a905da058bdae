"""Cost level 7 of a choice of victims: goals 1 to 4 of the placement that it makes room for.

Source: preemption.md 5, gang-network.md section 5. Sums over domains on top of the pods per shape and node; PP
groups are counted where no member is bound (a group is then a run of equal length), as in gang-network.md section 7.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from koordpy.planning.placement.problem import Problem
from koordpy.planning.solver.cpsat import cp_model
from koordpy.planning.solver.staged import Stage, Term, linear
from koordpy.planning.solver.victims_bounds import Bounds


class Topology:
    """Adds what goals 1 to 4 count to a model. attracted: node -> (sum that leaves with the victims there)."""

    def __init__(
        self,
        model: cp_model.CpModel,
        problem: Problem,
        *,
        pods: Mapping[tuple[int, int], cp_model.IntVar],
        leaving: Mapping[int, Sequence[Term]],
        bounds: Bounds,
    ) -> None:
        self.model, self.problem, self.tree = model, problem, problem.tree
        self.total = len(problem.pending)
        self.pods_in: list[dict[int, list[Term]]] = [{} for _ in self.tree.levels]
        shapes: list[dict[int, list[tuple[int, cp_model.IntVar]]]] = [{} for _ in self.tree.levels]
        for (shape, node), var in pods.items():
            for level in range(self.tree.depth + 1):
                domain = int(self.tree.domain_of[level, node])
                self.pods_in[level].setdefault(domain, []).append((var, 1))
                shapes[level].setdefault(domain, []).append((shape, var))
        self.used: list[dict[int, cp_model.IntVar]] = []
        for level in range(self.tree.depth + 1):
            here = {domain: model.new_bool_var("") for domain in shapes[level]}
            for one in bounds.measures:
                room = np.minimum(self.tree.levels[level].sums(one.have), one.number).tolist()
                for domain, inside in shapes[level].items():
                    terms = [(var, n) for shape, var in inside if (n := one.takes.get(shape, 0))]
                    model.add(linear([*terms, (here[domain], -room[domain])]) <= 0)
            self.used.append(here)
        self.held = [
            {d for d, n in enumerate(level.sums(problem.bound_counts).tolist()) if n} for level in self.tree.levels
        ]
        self._common()
        self._attraction(leaving)
        self._groups()

    def _common(self) -> None:
        """Per level a 0/1: all new pods, and all members, lie in one domain of it."""
        self.new_in_one: list[Term] = []
        self.all_in_one: list[Term] = []
        for level in range(1, self.tree.depth + 1):
            used = self.used[level]
            one = self.model.new_bool_var("")
            self.model.add(linear((v, 1) for v in used.values()) <= 1).only_enforce_if(one)
            self.new_in_one.append((one, -1))
            held = self.held[level]
            every = self.model.new_bool_var("")
            if len(held) > 1:
                self.model.add(every == 0)
            elif held:
                outside = [(v, 1) for d, v in used.items() if d not in held]
                if outside:
                    self.model.add(linear(outside) <= 0).only_enforce_if(every)
            else:
                self.model.add(every == one)
            self.all_in_one.append((every, -1))

    def _attraction(self, leaving: Mapping[int, Sequence[Term]]) -> None:
        """Per level: attracting pods in the used domain, at most; of use where one domain is used."""
        attract = self.problem.attract
        self.attracted: list[cp_model.IntVar] = []
        if not attract.any():
            return
        most = int(attract.sum())
        for level in range(self.tree.depth + 1):
            var = self.model.new_int_var(0, most, "")
            sums = self.tree.levels[level].sums(attract).tolist()
            away: dict[int, list[Term]] = {}
            for node, terms in leaving.items():
                away.setdefault(int(self.tree.domain_of[level, node]), []).extend(terms)
            for domain, used in self.used[level].items():
                self.model.add(linear([(var, 1), *away.get(domain, [])]) <= sums[domain]).only_enforce_if(used)
            self.attracted.append(var)

    def _groups(self) -> None:
        """Per level the PP groups that are whole in one domain of it, the short one included."""
        problem = self.problem
        self.whole: list[list[Term]] = []
        size = problem.pipeline
        if size <= 1 or problem.bound_counts.any():
            return
        number, rest = divmod(self.total, size)
        above: dict[int, tuple[cp_model.IntVar, cp_model.IntVar]] | None = None
        for level in range(1, self.tree.depth + 1):
            here: dict[int, tuple[cp_model.IntVar, cp_model.IntVar]] = {}
            for domain, inside in self.pods_in[level].items():
                groups = self.model.new_int_var(0, number, "")
                short = self.model.new_bool_var("")
                if not rest:
                    self.model.add(short == 0)
                self.model.add(linear([(groups, size), (short, rest), *((v, -c) for v, c in inside)]) <= 0)
                here[domain] = groups, short
            if above is not None:
                for parent, (groups, short) in above.items():
                    below = [pair for d, pair in here.items() if int(self.tree.levels[level].parent[d]) == parent]
                    self.model.add(linear([*((g, 1) for g, _ in below), (groups, -1)]) <= 0)
                    for _, one in below:
                        self.model.add(one <= short)
            self.model.add(linear((s, 1) for _, s in here.values()) <= 1)
            self.model.add(linear((g, 1) for g, _ in here.values()) <= number)
            self.whole.append([term for g, s in here.values() for term in ((g, -1), (s, -1))])
            above = here

    def layers(self, bounds: Bounds) -> list[Stage]:
        """Goal 1: the layer of C, then of c. bounds: of what there is still to choose from."""
        least = -sum(bool(bounds.holds(level).any()) for level in range(1, self.tree.depth + 1))
        return [("common layer", self.all_in_one, least), ("common layer", self.new_in_one, least)]

    def later(self, level: int, bounds: Bounds) -> list[Stage]:
        """Goals 2 to 4 where c is a domain of the level. bounds: as in `layers`."""
        out: list[Stage] = [
            ("attraction", [(self.attracted[n], -1)], None) for n in range(level, -1, -1) if self.attracted
        ]
        out += [("pipeline", terms, None) for terms in self.whole]
        for number in range(1, self.tree.depth + 1):
            held = self.held[number]
            opened = [(v, 1) for d, v in self.used[number].items() if d not in held]
            out.append(("domains", opened, 0 if held else bounds.fewest(number, level)))
        return out
