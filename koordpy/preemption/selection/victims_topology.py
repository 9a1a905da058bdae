# SPDX-License-Identifier: Apache-2.0
"""Cost level 7 of a choice of victims: how well the freed nodes satisfy the gather goal of a gang.

Source: docs/rules/preemption.md 5. The goals are those of a placement (docs/rules/gang-network.md 5): 1 a low common
layer of all members, 2 near pods that attract them, 3 whole pipeline groups, 4 few domains. The variables for used
domains and whole groups are those of every count model (`count_model.py`). A placement tries regions one after another.
This model has a 0/1 variable per layer instead, because the victims decide which region is possible.
"""

import numpy as np

from koordpy.placement.solver.cpsat import cp_model
from koordpy.placement.solver.staged_model import Stage, Term, linear
from koordpy.placement.solver.whole_groups import group_types
from koordpy.preemption.selection.victims_model import VictimsModel


class Topology:
    """Adds the variables of goals 1 to 4 to a model that has a solution, and gives them values in that solution."""

    def __init__(self, model: VictimsModel) -> None:
        self.model, self.tree, problem = model, model.tree, model.problem
        model.add_used(siblings=False)
        model.add_groups(tuple(group_types(problem, problem.pending, model.capacity.shapes)))
        self.domains_with_members = [
            set(np.nonzero(level.sums(problem.bound_counts))[0].tolist()) for level in self.tree.levels
        ]
        """[levels] the domains with bound members."""
        self.levels = range(1, self.tree.depth + 1)
        """All levels below the cluster; the lists with one entry per level start at level 1."""
        self.one = [self._common(level, model.opened(level)) for level in self.levels]
        """[levels] a 0/1 variable that can be 1 only if all new pods are in one domain of the level."""
        self.every = [self._every(level) for level in self.levels]
        """[levels] a 0/1 variable that can be 1 only if all members, new and bound, are in one domain of the level."""
        self.attracted = self._attraction() if problem.attract.any() else []
        """[levels, from the cluster (0) on] variable, at most the number of attracting pods; empty if no pod
        attracts."""
        self._settle()

    def _common(self, level: int, opened: list[Term]) -> cp_model.IntVar:
        """Returns a 0/1 variable that can be 1 only if all new pods are in one domain of a level.

        opened: terms that count the domains with new pods.
        """
        one = self.model.model.new_bool_var("")
        self.model.model.add(linear(opened) <= 1).only_enforce_if(one)
        return one

    def _every(self, level: int) -> cp_model.IntVar:
        """Returns a 0/1 variable that can be 1 only if all members, new and bound, are in one domain of a level."""
        model, held = self.model.model, self.domains_with_members[level]
        if not held:
            return self.one[level - 1]
        every = model.new_bool_var("")
        model.add(linear(self._opened(level)) <= 0).only_enforce_if(every)
        if len(held) > 1:
            model.add(every == 0)
        return every

    def _opened(self, level: int) -> list[Term]:
        """Returns terms that count the domains of a level with new pods and without bound members."""
        return [
            term
            for d, used in self.model.used[level].items()
            if d not in self.domains_with_members[level]
            for term in used
        ]

    def _attraction(self) -> list[cp_model.IntVar]:
        """Returns per level a variable: at most the number of attracting pods that remain in the domain with the new
        pods.

        If several domains have new pods, it is at most the smallest of their numbers.
        """
        attract, tree = self.model.problem.attract, self.tree
        out = []
        for level in range(tree.depth + 1):
            out.append(self.model.model.new_int_var(0, int(attract.sum()), ""))
            sums = tree.levels[level].sums(attract).tolist()
            away = self.model.attracting_away(tree.domain_of[level])
            for domain, used in (self.model.used[level] if level else {0: []}).items():
                bound = self.model.model.add(linear([(out[-1], 1), *away.get(domain, [])]) <= sums[domain])
                if used:
                    bound.only_enforce_if(used[0][0])
        return out

    def _settle(self) -> None:
        """Gives the new variables values in the current solution, so that the next solve can start from it.

        Attraction and whole groups get 0; the solver improves them.
        """
        model = self.model
        model.values += [0] * (len(model.model.proto.variables) - len(model.values))
        for level in self.levels:
            inside = model.inside(level)
            for domain, [(used, _)] in model.used[level].items():
                model.values[used.index] = int(model.value(inside[domain]) > 0)
            model.values[self.one[level - 1].index] = int(model.value(model.opened(level)) <= 1)
            if len(self.domains_with_members[level]) == 1:
                model.values[self.every[level - 1].index] = int(not model.value(self._opened(level)))

    def layers(self) -> list[Stage]:
        """Goal 1: as many layers as possible that all members share, then as many as possible that all new pods
        share."""
        lowest = -sum(bool(self.model.capacity.may_fit(level).any()) for level in self.levels)
        return [("common layer", [(var, -1) for var in some], lowest) for some in (self.every, self.one)]

    def later(self) -> list[Stage]:
        """Goals 2 to 4: attraction, whole pipeline groups, number of domains.

        Attraction is compared from the common layer of the new pods up to the cluster, so goal 1 must be fixed before.
        """
        level = self.model.value((var, 1) for var in self.one)
        out: list[Stage] = [
            ("attraction", [(self.attracted[n], -1)], None) for n in range(level, -1, -1) if self.attracted
        ]
        out += [("pipeline", [(v, -c) for v, c in self.model.whole(n)], None) for n in self.levels]
        return out + [("domains", self._opened(n), None) for n in self.levels]
