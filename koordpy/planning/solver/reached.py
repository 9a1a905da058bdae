"""What one region can reach: goals 3 and 4, what a ByCount adds, and the score; and the model that holds it.

Source: gang-network.md sections 5 and 7. A table tells goal 4 where only room matters (`cover`), one measure of room
where its bound is met (`measure`), else a model does.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from koordpy.planning.limits import COVER_ENTRIES, MODEL_VARIABLES
from koordpy.planning.placement.goals import domain_order
from koordpy.planning.placement.problem import Ints, Problem
from koordpy.planning.placement.ties import faults
from koordpy.planning.solver.budget import TimeBudget
from koordpy.planning.solver.cells import lost_score
from koordpy.planning.solver.counts import CountModel
from koordpy.planning.solver.cover import Cover, TooMuchWork
from koordpy.planning.solver.greedy import Greedy
from koordpy.planning.solver.measure import meet_measures
from koordpy.planning.solver.narrow import WHOLE, Narrow, is_large, narrowed
from koordpy.planning.solver.packing import packed
from koordpy.planning.solver.placed import adopt, hint_at, node_pods
from koordpy.planning.solver.regions import Candidate, Region, Regions
from koordpy.planning.solver.room import Room
from koordpy.planning.solver.whole_groups import GroupType

Pods = Mapping[int, Sequence[int]]
"""Node -> pods per shape (positions in Room)."""


@dataclass(slots=True)
class Reached:
    """Goals 3 and 4 of a region, solved; with the rest once that is asked for."""

    pipeline: tuple[int, ...]
    domains: tuple[int, ...]
    counted: tuple[int, ...] = ()
    score: int = 0
    model: CountModel | None = None
    """The CP-SAT model with the values of the solved goals fixed. None where none was built: for a single node, and
    where a cost table or a single-resource bound gave the goals."""
    pods: Pods | None = None
    """A placement that reaches them, where a measure told."""
    least: tuple[int, ...] = ()
    """Lower bound on what a ByCount adds, as far as it is known."""
    rest: bool = True
    """Whether what a ByCount adds and the score are known, too."""


@dataclass(slots=True)
class Found:
    """The region that won, as c."""

    region: Region
    reached: Reached


class Reaching:
    """Solves regions for the pods of given ranks."""

    def __init__(
        self, problem: Problem, ranks: Sequence[int], *, room: Room, types: Sequence[GroupType], budget: TimeBudget
    ) -> None:
        self.problem, self.tree, self.room, self.budget, self.types = problem, problem.tree, room, budget, tuple(types)
        counts = Counter(problem.members[rank].shape for rank in ranks)
        self.counts: Ints = np.array([counts[s] for s in room.shapes], dtype=np.int64)
        self.reference = problem.reference(tuple(ranks))
        table = problem.by_count
        self.aside = table is not None and table.always
        """Whether a ByCount forbids nothing, so that it can wait until goals 3 to 5 are known."""
        wanted = dict(zip(room.shapes, room.wanted, strict=True))
        self.bare = Room(replace(problem, by_count=None), wanted) if self.aside else room
        self.regions = Regions(self.bare.problem, ranks, room=self.bare, counts=self.counts, types=self.types)
        self.bound = self.regions.bound
        cover = Cover(self.bare, self.counts)
        self.cover = cover if not self.types and cover.applies() else None

    def reach(self, candidate: Candidate, best: tuple[object, ...] | None) -> Reached | None:
        """Solves goals 3 and 4 of a region, and the rest where it cannot wait; None when it holds no placement or
        cannot beat the best."""
        if candidate.region[0] == self.tree.depth:
            return self._on_one_node(candidate)
        if self.cover is not None and self.cover.work > 0:
            try:
                return self._by_table(candidate)
            except TooMuchWork:
                self.cover.work = 0
        return self._by_measure(candidate) or self._by_model(candidate, best)

    def _on_one_node(self, candidate: Candidate) -> Reached | None:
        """All pods on one node: sums are exact."""
        node = candidate.region[1]
        shapes = zip(self.room.shapes, self.counts.tolist(), strict=True)
        if faults(self.problem.interactions, {(shape, node): n for shape, n in shapes}):
            return None
        pods = dict(zip(self.room.shapes, self.counts.tolist(), strict=True))
        table = self.problem.by_count
        counted = () if table is None else table.added(node, [pods.get(i, 0) for i in range(len(self.problem.shapes))])
        if counted is None:
            return None
        score = self.regions.most_score(*candidate.region)
        return Reached(candidate.whole_above, candidate.domains_above, counted, score)

    def _by_table(self, candidate: Candidate) -> Reached | None:
        """Goal 4 of a region where only room matters."""
        assert self.cover is not None
        level, domain = candidate.region
        opened = self.cover.least(candidate.region)
        if opened is None:
            return None
        levels = range(level + 1, self.tree.depth + 1)
        below = (self.regions.held(n) + new for n, new in zip(levels, opened, strict=True))
        whole = (*candidate.whole_above, *(0 for _ in levels))
        domains = (*candidate.domains_above, *below)
        score = self.regions.most_score(level, domain)
        return Reached(whole, domains, (), score, rest=not self.aside)

    def _by_measure(self, candidate: Candidate) -> Reached | None:
        """Goal 4 of a large region where the bound of one measure of room is met."""
        problem, region = self.problem, candidate.region
        beyond = self.types or self.bound or problem.multiples or problem.interactions
        if beyond or (problem.by_count and not self.aside) or not is_large(self.room, region):
            return None
        devices = problem.by_count.devices if problem.by_count is not None else None
        met = meet_measures(self.regions, region, devices=devices, budget=self.budget)
        if met is None:
            return None
        whole = tuple(0 for _ in met.domains)
        scored = any(len(np.unique(problem.shapes[s].score)) > 1 for s in self.room.shapes)
        rest, score = not (self.aside or scored), self.regions.most_score(*region)
        return Reached(whole, met.domains, (), score, pods=met.pods, least=met.worth, rest=rest)

    def _by_model(self, candidate: Candidate, best: tuple[object, ...] | None) -> Reached | None:
        """Goals 3 and 4 of a region by a model, and the rest where it cannot wait."""
        level, depth, region = candidate.region[0], self.tree.depth, candidate.region
        guess = self._guess(region)
        pods = packed(self.room, region, self.counts.tolist()) if self.problem.interactions else None
        inside = int((self.tree.domain_of[level] == region[1]).sum())
        if pods and len(self.counts) * inside > MODEL_VARIABLES:
            self.budget.proven = False  # what is packed is found without a model, too
            return None
        part = WHOLE
        if guess is not None:
            opened = {
                n: len({int(d) for d in self.tree.domain_of[n, list(guess)]}) for n in range(level + 1, depth + 1)
            }
            sure = {
                n: k
                for n, k in opened.items()
                if all(opened[m] <= self.regions.fewest(m, region) for m in range(level + 1, n))
            }
            part = self._narrowed(region, guess, sure)
        model = self._model(self.bare, region, part, ordered=guess is None)
        if guess is not None:
            adopt(model, guess)
        else:
            if pods:
                hint_at(model, pods)
            model.find("feasible")
        if not model.values:
            return None
        if not part.exact:
            self.budget.proven = False
        whole = list(candidate.whole_above)
        for n in range(level + 1, depth + 1):
            bound = -self.regions.most_whole(n, region)
            whole.append(model.minimise("pipeline", [(v, -c) for v, c in model.whole(n)], bound=bound))
            if best is not None and tuple(whole) > best[0][:n]:  # type: ignore[index]
                return None
        domains = list(candidate.domains_above)
        for n in range(level + 1, depth + 1):
            held = self.regions.held(n)
            bound = self.regions.fewest(n, region) - held
            domains.append(held + model.minimise("domains", model.opened(n), bound=bound))
            if best is not None and (tuple(whole), tuple(domains)) > (best[0], best[1][:n]):  # type: ignore[index]
                return None
        reached = Reached(tuple(whole), tuple(domains), model=model, rest=False)
        if not self.aside:
            self._rest(reached, region)
        return reached

    def _guess(self, region: Region) -> dict[int, tuple[int, ...]] | None:
        """A placement to begin with, for regions that are too large to be modelled whole."""
        problem = self.problem
        beyond = problem.multiples or problem.interactions or (problem.by_count is not None and not self.aside)
        if beyond or not is_large(self.room, region):
            return None
        return Greedy(self.room, self.counts).fill(region)

    def _narrowed(self, region: Region, pods: Pods, opened: Mapping[int, int]) -> Narrow:
        exact = not self.types and not self.bound
        order = domain_order(self.problem, self.reference, *region)[region[0] + 1].tolist()
        return narrowed(self.room, region, pods, order=order, opened=opened, exact=exact)

    def modelled(self, candidate: Candidate, reached: Reached) -> Found | None:
        """The region with a model of its own nodes that holds all that is reached, the rest solved."""
        region, model = candidate.region, reached.model
        if region[0] == self.tree.depth:  # what was reached may be a twin's, of another kind of node to a ByCount
            alone = self._on_one_node(candidate)
            return None if alone is None else Found(region, alone)
        if reached.rest and model is not None and model.region == region:
            return Found(region, reached)
        if model is not None and model.region != region:  # a twin was solved
            again = self.reach(candidate, None)
            assert again is not None
            return self.modelled(candidate, again)
        if not self.aside and model is not None:
            return Found(region, reached)
        own = self._own_model(candidate, reached)
        if own is None:
            return None
        after = replace(reached, model=own)
        self._rest(after, region)
        return Found(region, after)

    def _own_model(self, candidate: Candidate, reached: Reached) -> CountModel | None:
        """A model with everything in it that is held to goals 3 and 4."""
        region, depth = candidate.region, self.tree.depth
        pods = self._placement(candidate, reached)
        below = range(region[0] + 1, depth + 1)
        opened = {n: reached.domains[n - 1] - self.regions.held(n) for n in below}
        large = not self.types and not self.problem.multiples and is_large(self.room, region)
        part = self._narrowed(region, pods, opened) if large else Narrow(None, opened, True)
        model = self._model(self.room, region, part, ordered=not large)
        for n in below:
            model.hold([(v, -c) for v, c in model.whole(n)], reached.pipeline[n - 1])
            model.hold(model.opened(n), opened[n])
        if large:
            adopt(model, pods)
        else:
            hint_at(model, pods)
            model.find("feasible")
        if model.values and not part.exact:
            self.budget.proven = False
        return model if model.values else None

    def _model(self, room: Room, region: Region, part: Narrow, *, ordered: bool) -> CountModel:
        """Counts in a part of a region, with the domains that are used and the PP groups that are whole."""
        whole_nodes = bool(self.types) and self.regions.most_whole(self.tree.depth, region) > 0
        model = CountModel(
            room,
            region,
            counts=self.counts.tolist(),
            budget=self.budget,
            split=whole_nodes,
            only=part.only,
            opened=part.opened,
            ordered=ordered,
        )
        model.add_used()
        model.add_groups(self.types)
        return model

    def _placement(self, candidate: Candidate, reached: Reached) -> Pods:
        """A placement in the region that reaches goals 3 and 4."""
        if reached.pods is not None:
            return reached.pods
        if reached.model is not None:
            return node_pods(reached.model)
        assert self.cover is not None
        self.cover.work += COVER_ENTRIES  # what was done once within the limits is done again, for the nodes this time
        self.cover.least(candidate.region)
        return self.cover.pods()

    def _rest(self, reached: Reached, region: Region) -> None:
        """Solves what a ByCount adds and the score."""
        model = reached.model
        assert model is not None
        reached.counted = model.least_counted(reached.least)
        bound = -self.regions.most_score(*region)
        reached.score = -model.minimise("score", lost_score(model.problem, self.room.shapes, model.cells), bound=bound)
        reached.rest = True
