# SPDX-License-Identifier: Apache-2.0
"""Chooses which members of a gang are placed, if not all pending members fit (goal 0, docs/rules/gang-network.md
2.6).

The core must be placed: of each gang as many members as it needs, those of lowest rank. As many other members as
possible are added; of equally large selections, the one with the lowest ranks is chosen. If that core does not fit, the
lowest core that fits is taken. Pods of one gang and shape are equal, and of equal pods the lowest ranks are placed
first. So only numbers per gang and shape must be decided. A model decides them that need not place every pod.
"""

from collections import Counter

import numpy as np

from koordpy.placement.goals import core_of
from koordpy.placement.problem import Ints, Problem, hard_regions
from koordpy.placement.solver.count_model import CountModel
from koordpy.placement.solver.cpsat import cp_model
from koordpy.placement.solver.filling_capacity import FillingCapacity
from koordpy.placement.solver.region_cells import CellOptions
from koordpy.placement.solver.staged_model import linear
from koordpy.placement.solver.time_budget import TimeBudget
from koordpy.plan.round_plan import Proof

Kind = tuple[int, int]
"""(gang, shape) of a member."""

Chosen = tuple[tuple[int, ...], int, tuple[int, ...]]
"""A selection of members: (ranks of the core, negated number of members, ranks of all members). The smallest is
best."""


class MemberSearch:
    """Searches which pending members can be placed together, in a domain of the hard layer.

    capacity: capacity of the nodes for all pending members. budget: solver time.
    """

    def __init__(self, problem: Problem, *, capacity: FillingCapacity, budget: TimeBudget) -> None:
        self.problem, self.capacity, self.budget = problem, capacity, budget
        self.kinds: dict[Kind, list[int]] = {}
        """Kind -> ranks of its pending members, ascending."""
        for rank in problem.pending:
            member = problem.members[rank]
            self.kinds.setdefault((member.gang, member.shape), []).append(rank)

    def choose(self) -> tuple[int, ...] | None:
        """Returns the ranks to place; None if no core fits."""
        core = core_of(self.problem, self.problem.pending)
        if core is None:
            return None
        size = Counter(self._kind(rank) for rank in core)
        chosen = self._best(size)
        if chosen is None and self._other_cores():
            chosen = self._best(None)
        return None if chosen is None else chosen[2]

    def _kind(self, rank: int) -> Kind:
        member = self.problem.members[rank]
        return member.gang, member.shape

    def _other_cores(self) -> bool:
        """Returns True if the core of some gang could have other numbers of pods per shape."""
        shapes = Counter(gang for gang, _ in self.kinds)
        pending = Counter(self.problem.members[rank].gang for rank in self.problem.pending)
        return any(n > 1 and 0 < self.problem.needs[gang] < pending[gang] for gang, n in shapes.items())

    def _best(self, core: Counter[Kind] | None) -> Chosen | None:
        """Returns the best selection over all domains of the hard layer; None if no core fits any domain.

        core: number of core members of each kind; None to choose the core as well.
        """
        least = self._shape_counts(core or Counter())
        level = self.problem.hard
        fits, most = self.capacity.may_take(level, least), self.capacity.most_in(level)
        best: Chosen | None = None
        seen = set()
        regions = [r for r in hard_regions(self.problem) if fits[r[1]]]
        for region in sorted(regions, key=lambda r: (-int(most[r[1]]), r[1])):
            key = (int(self.capacity.twins[level][region[1]]), self._residues(region))
            if key in seen or (best is not None and core is not None and -int(most[region[1]]) > best[1]):
                continue
            seen.add(key)
            chosen = self._in_region(region, core=core, best=best)
            if chosen is not None and (best is None or chosen < best):
                best = chosen
        return best

    def _residues(self, region: tuple[int, int]) -> tuple[int, ...]:
        """Returns, for each multiple above a region, the remainder of the bound members of that domain divided by the
        multiple."""
        tree, bound = self.problem.tree, self.problem.bound_counts
        node = int(tree.levels[region[0]].start[region[1]])
        return tuple(
            int(tree.levels[n].sums(bound)[tree.domain_of[n, node]]) % k
            for n, k in sorted(self.problem.multiples.items())
            if n < region[0]
        )

    def _shape_counts(self, kinds: Counter[Kind]) -> Ints:
        """Returns [shape positions] number of members, from the number of members of each kind."""
        shapes = Counter[int]()
        for (_, shape), n in kinds.items():
            shapes[shape] += n
        return np.array([shapes[s] for s in self.capacity.shapes], dtype=np.int64)

    def _in_region(self, region: tuple[int, int], *, core: Counter[Kind] | None, best: Chosen | None) -> Chosen | None:
        """Returns the best selection that fits a region; None if no core fits, or if it cannot be better than `best`.

        core: as for `_best`. The stages: any placement; the lowest core, if the core is to be chosen; the most members;
        the lowest ranks.
        """
        # variables: `placed` members per kind; if the core is to be chosen, also `first`: core members per kind
        model = CountModel(self.capacity, region, budget=self.budget, options=CellOptions(every=False))
        placed, first = {}, {}
        for kind, ranks in self.kinds.items():
            least = 0 if core is None else core[kind]
            placed[kind] = model.model.new_int_var(least, len(ranks), "")
            if core is None:
                first[kind] = model.model.new_int_var(0, len(ranks), "")
                model.model.add(first[kind] <= placed[kind])
        for i, shape in enumerate(self.capacity.shapes):
            terms = [(v, 1) for kind, v in placed.items() if kind[1] == shape]
            model.model.add(linear([*terms, (model.shape_totals[i], -1)]) == 0)
        model.model.add(linear((v, 1) for v in placed.values()) >= self.problem.core_size)
        for one in self.problem.allowances:
            model.model.add(linear((v, one.amounts[shape]) for (_, shape), v in placed.items()) <= one.remaining)
        for gang, need in enumerate(self.problem.needs if core is None else ()):
            model.model.add(linear((v, 1) for kind, v in first.items() if kind[0] == gang) == need)
        if model.find("members") is not Proof.OPTIMAL and not model.values:
            return None
        # each stage ends the search of the region if it is worse than `best`
        if core is None:
            core_ranks = self._lowest(model, first)
            if best is not None and core_ranks > best[0]:
                return None
        else:
            core_ranks = tuple(sorted(r for kind, n in core.items() for r in self.kinds[kind][:n]))
        most = int(self.capacity.most_in(region[0])[region[1]])
        total = model.minimise("members", [(v, -1) for v in placed.values()], bound=-most)
        if best is not None and (core_ranks, total) > best[:2]:
            return None
        return core_ranks, total, self._lowest(model, placed)

    def _lowest(self, model: CountModel, numbers: dict[Kind, cp_model.IntVar]) -> tuple[int, ...]:
        """Fixes the number of members of each kind so that the ranks are lexicographically lowest; returns the ranks.

        For each rank in order, the solver is asked if the member can be chosen in addition. low, high: bounds of the
        number of members of each kind.
        """
        low = dict.fromkeys(numbers, 0)
        high = {kind: len(ranks) for kind, ranks in self.kinds.items()}
        order = sorted((rank, kind, at) for kind, ranks in self.kinds.items() for at, rank in enumerate(ranks))
        for _, kind, at in order:
            if at < low[kind] or at >= high[kind]:
                continue
            number = numbers[kind]
            if model.value([(number, 1)]) > at or model.can("members", [(number, -1)], -at - 1):
                low[kind] = at + 1
                model.model.add(number >= at + 1)
            else:
                high[kind] = at
                model.model.add(number <= at)
        return tuple(sorted(rank for kind, n in low.items() for rank in self.kinds[kind][:n]))
