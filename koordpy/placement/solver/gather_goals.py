# SPDX-License-Identifier: Apache-2.0
"""Solver for gangs with a gather goal: places given members close to each other in the network (goals 1 to 7).

Goals and letters are those of `goals.py`. A region is a domain that may become c, the lowest domain that contains all
new pods.

1. Goal 1: levels are tried from the lowest up. The first level with a region that takes all pods is the level of c.
2. Goal 2: the regions of this level are tried in groups of equal attraction, the most attracting group first.
3. Goals 3 to 5, the device costs (`DeviceCosts`) and the score: each region of a group is solved, the region with the
   best bound first (`regions.py`). The search of a group ends when the next bound is worse than the best value found.
4. Goal 6 is solved in the best region only. `rank_order.settle_ranks` decides goal 7.

Source: docs/rules/gang-network.md 5 and 7.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from koordpy.placement.goals import domain_order
from koordpy.placement.member_interactions import faults
from koordpy.placement.problem import Problem
from koordpy.placement.rank_order import assign_groups, settle_ranks
from koordpy.placement.solver.count_model import CountModel
from koordpy.placement.solver.filling_capacity import FillingCapacity
from koordpy.placement.solver.greedy_placement import Greedy
from koordpy.placement.solver.large_regions import is_large, part_of, start_in
from koordpy.placement.solver.region_cells import ALL_NODES, CellOptions
from koordpy.placement.solver.regions import Candidate, Region, Regions, Value
from koordpy.placement.solver.time_budget import TimeBudget
from koordpy.placement.solver.whole_groups import GroupType, group_types


@dataclass(frozen=True, slots=True)
class Reached:
    """The best values that the pods reach in one region."""

    region: Region
    pipeline: tuple[int, ...]
    """Goal 3: for each level, the top layer first, the negated number of whole pipeline groups."""
    domains: tuple[int, ...]
    """Goal 4: for each level, the top layer first, the number of domains with members."""
    counted: tuple[int, ...]
    """Device cost vector of the new pods; empty without device costs."""
    score: int
    """Total score; larger is better."""
    model: CountModel | None = None
    """The solved model, with all goals so far as constraints; None if all pods are on one node, which needs no
    model."""


class Gather:
    """Searches the best placement of given members with a gather goal.

    ranks: members that must all be placed. capacity: capacity of the nodes for exactly these members. budget: solver
    time; `budget.proven` becomes False if a result is not proven to be the best.
    """

    def __init__(
        self, problem: Problem, ranks: Sequence[int], *, capacity: FillingCapacity, budget: TimeBudget
    ) -> None:
        self.problem, self.tree, self.capacity, self.budget, self.ranks = (
            problem,
            problem.tree,
            capacity,
            budget,
            tuple(ranks),
        )
        self.groups: dict[GroupType, list[list[int]]] = group_types(problem, set(ranks), capacity.shapes)
        """Type of pipeline group -> for each group of the type, the ranks of its new members."""
        self.types = tuple(self.groups)
        self.reference = problem.reference(self.ranks)
        self.regions = Regions(problem, ranks, capacity=capacity, types=self.types)

    def solve(self) -> dict[int, int] | None:
        """Returns rank -> node of the best placement found; None if no placement was found.

        None is a proof that there is no placement only if `budget.proven` is still True.
        """
        found = self._best()
        if found is None:
            return None
        pods, whole = self._inside(found)
        held = {node: {s: n for s, n in zip(self.capacity.shapes, own, strict=True) if n} for node, own in pods.items()}
        start = assign_groups(self.problem, held, self.ranks, whole=whole, groups=list(self.groups.values()))
        nodes, proven = settle_ranks(self.problem, start)
        if not proven:
            self.budget.leave_ranks_open()
        return nodes

    def _best(self) -> Reached | None:
        """Returns the result of the region that is best in goals 1 to 5, device costs and score; None if no region
        fits.

        Without bound members, the regions of the hard layer and below are tried. With bound members, goal 1 first
        compares C, the lowest domain that contains all members. So C is tried from the lowest common domain of the
        bound members upwards, up to the hard layer.
        """
        if not self.regions.bound:
            return self._best_in((0, 0), lowest=self.problem.hard)
        level, domain = self.tree.lowest_common(self.regions.bound)
        while level >= self.problem.hard:
            if found := self._best_in((level, domain), lowest=level):
                return found
            domain = int(self.tree.levels[level].parent[domain])
            level -= 1
        return None

    def _best_in(self, outer: Region, *, lowest: int) -> Reached | None:
        """Returns the result of the best region inside a domain, on the given level or below; None if no region fits.

        outer: (level, domain) of the domain. lowest: the highest level (smallest number) that is tried.
        """
        place = self.tree.levels[outer[0]]
        lo, hi = place.start[outer[1]], place.end[outer[1]]
        possible = []
        for level in range(lowest, self.tree.depth + 1):
            starts = self.tree.levels[level].start
            fits = self.capacity.may_fit(level) & (starts >= lo) & (starts < hi)
            regions = np.nonzero(fits)[0].tolist()
            if not regions:
                break
            possible.append((level, regions))
        for level, regions in reversed(possible):
            for equal in self._by_attraction(level, regions):
                if found := self._best_of(level, equal):
                    return found
        return None

    def _by_attraction(self, level: int, domains: Sequence[int]) -> Iterator[list[int]]:
        """Yields the domains of a level in groups that are equal in goal 2, the most attracting group first."""
        sums = [place.sums(self.problem.attract) for place in self.tree.levels[: level + 1]]
        groups: dict[tuple[int, ...], list[int]] = {}
        for domain in domains:
            pull = tuple(-int(sums[n][d]) for n, d in self.tree.upwards(level, domain))
            groups.setdefault(pull, []).append(domain)
        for pull in sorted(groups):
            yield groups[pull]

    def _best_of(self, level: int, domains: Sequence[int]) -> Reached | None:
        """Returns the best result over regions that are equal in goals 1 and 2; None if no region takes the pods.

        Of regions that differ in names only, the naturally first is solved.
        """
        best: Value | None = None
        winner: Reached | None = None
        seen: set[tuple[object, ...]] = set()
        for candidate in sorted((self.regions.candidate(level, d) for d in domains), key=lambda c: c.best):
            if best is not None and candidate.best > best:
                break
            if candidate.key in seen:
                continue
            seen.add(candidate.key)
            found = self._reach(candidate, best)
            if found is None:
                continue
            value = found.pipeline, found.domains, candidate.best_fit, found.counted, -found.score, candidate.region[1]
            if best is None or value < best:
                best, winner = value, found
        return winner

    # --- one region ---------------------------------------------------------------------------------------------

    def _reach(self, candidate: Candidate, best: Value | None) -> Reached | None:
        """Solves goals 3 and 4, the device costs and the score in one region.

        Returns None if no placement is found there, or as soon as the region cannot be better than the best value so
        far. A large region is not modelled as a whole: a placement is found first, and only a part around it is
        modelled.
        """
        region, regions = candidate.region, self.regions
        if region[0] == self.tree.depth:
            return self._on_one_node(candidate)
        # a model of the whole region, or of a part around a first placement
        start = start_in(regions, region, self.budget) if is_large(self.capacity, region) else None
        if start is not None:
            order = domain_order(self.problem, self.reference, *region)[region[0] + 1].tolist()
            keep, exact = part_of(self.capacity, region, start.pods, order)
            if not exact or self.types or regions.bound:
                self.budget.proven = False
            model = self._model(region, CellOptions(keep=keep, ordered=False))
            model.take(start.pods)
        else:
            model = self._model(region)
            if self.problem.interactions:
                model.hint(Greedy(self.capacity).fill(region) or {})
            model.find("feasible")
        if not model.values:
            return None
        # goal 3 level by level, then goal 4 level by level; the region is left once it is worse than `best`
        below = range(region[0] + 1, self.tree.depth + 1)
        whole, domains = list(candidate.whole_above), list(candidate.domains_above)
        for n in below:
            bound = -regions.most_whole(n, region)
            whole.append(model.minimise("pipeline", [(v, -c) for v, c in model.whole(n)], bound=bound))
            if best is not None and tuple(whole) > best[0][:n]:
                return None
        for n in below:
            held = regions.number_with_members(n)
            fewest = start.least[n - 1] if start is not None and start.least else regions.fewest(n, region)
            domains.append(held + model.minimise("domains", model.opened(n), bound=fewest - held))
            if best is not None and (tuple(whole), tuple(domains)) > (best[0], best[1][:n]):
                return None
        counted = model.least_counted(start.value if start is not None else ())
        score = -model.minimise("score", model.lost_score(), bound=-regions.most_score(*region))
        return Reached(region, tuple(whole), tuple(domains), counted, score, model)

    def _on_one_node(self, candidate: Candidate) -> Reached | None:
        """Returns the result with all pods on one node. No model is needed, because sums are exact there.

        None if interactions or the device costs forbid this node.
        """
        node, table = candidate.region[1], self.problem.device_costs
        pods = dict(zip(self.capacity.shapes, self.capacity.wanted, strict=True))
        if faults(self.problem.interactions, {(shape, node): n for shape, n in pods.items()}):
            return None
        counted = () if table is None else table.added(node, [pods.get(i, 0) for i in range(len(self.problem.shapes))])
        if counted is None:
            return None
        score = self.regions.most_score(*candidate.region)
        return Reached(candidate.region, candidate.whole_above, candidate.domains_above, counted, score)

    def _model(self, region: Region, options: CellOptions = ALL_NODES) -> CountModel:
        """Returns the model of a region, with its used domains and whole pipeline groups."""
        if self.types and self.regions.most_whole(self.tree.depth, region) > 0:
            options = replace(options, split=True)
        model = CountModel(self.capacity, region, budget=self.budget, options=options)
        model.add_used()
        model.add_groups(self.types)
        return model

    # --- goal 6 -------------------------------------------------------------------------------------------------

    def _inside(self, found: Reached) -> tuple[dict[int, list[int]], dict[tuple[int, int, int], int]]:
        """Solves goal 6 in the best region: layer by layer, the lexicographically largest counts in `domain_order`.

        Returns (node -> pods per shape position, (index of the group type, level, domain) -> number of whole groups).

        The model of the region counts equal nodes together; that is enough to decide the pods of each domain. The pods
        of each node are then decided by a model with a separate cell per node, limited to the domains with pods.
        """
        (level, domain), model = found.region, found.model
        if model is None:
            return {int(self.tree.levels[level].start[domain]): list(self.capacity.wanted)}, {}
        depth = self.tree.depth
        order = domain_order(self.problem, self.reference, level, domain)
        for n in range(level + 1, depth):
            model.largest("inside", model.domain_totals(n, order[n].tolist()))
        single = self._node_by_node(found, model) if any(len(cell.nodes) > 1 for cell in model.cells) else model
        if single.values:
            single.largest("inside", single.node_totals(order[depth].tolist()))
            model = single
        return model.pods(), model.whole_counts()

    def _node_by_node(self, found: Reached, model: CountModel) -> CountModel:
        """Returns a model of the single nodes of the lowest domains with pods, with all earlier goals as constraints.

        model: the solved model of the region. The returned model has no `values` if no solution is found in time.
        """
        top, depth = found.region[0], self.tree.depth
        place = self.tree.levels[depth - 1]
        lowest = [d for d, var in model.totals[depth - 1].items() if model.value([(var, 1)])]
        keep = [node for d in lowest for node in range(int(place.start[d]), int(place.end[d]))]
        single = self._model(found.region, CellOptions(keep=keep, split=True))
        for n in range(top + 1, depth):
            for domain, var in single.totals[n].items():
                single.model.add(var == model.value([(model.totals[n][domain], 1)]))
        for n in range(top + 1, depth + 1):
            single.hold([(v, -c) for v, c in single.whole(n)], found.pipeline[n - 1])
        single.hold(single.opened(depth), found.domains[depth - 1] - self.regions.number_with_members(depth))
        single.hold_counted(found.counted)
        single.hold(single.lost_score(), -found.score)
        single.hint(model.pods())
        single.find("inside")
        return single
