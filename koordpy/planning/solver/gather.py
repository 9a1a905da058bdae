"""Goals 1 to 6 for the chosen members: layers bottom-up, regions by what they could reach at best, then staged solves.

Source: gang-network.md sections 5 and 7. Goals 2 and 5 depend on the region alone (`regions`); goals 3 and 4 are solved
per region, by a table where only room matters (`cover`), where one measure of room tells them (`measure`), else by a
model; what a ByCount adds and the scores only between the regions that are best in these.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from koordpy.planning.goals import domain_order, pipeline_groups
from koordpy.planning.problem import Ints, Problem
from koordpy.planning.solver.budget import Budget
from koordpy.planning.solver.cells import lost_score
from koordpy.planning.solver.counts import CountModel
from koordpy.planning.solver.cover import MOST_WORK, Cover, TooMuchWork
from koordpy.planning.solver.greedy import Greedy
from koordpy.planning.solver.inside import Held, settle_inside
from koordpy.planning.solver.measure import meet_measures
from koordpy.planning.solver.narrow import WHOLE, Narrow, is_large, narrowed
from koordpy.planning.solver.regions import Candidate, Region, Regions
from koordpy.planning.solver.room import Room
from koordpy.planning.solver.whole_groups import GroupType
from koordpy.planning.ties_among import faults

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
    """Holds all that is reached; None for a single node, where nothing is to be solved, and where a table or a measure
    told the goals."""
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


class Gather:
    """Searches the best counts per node for the pods of given ranks."""

    def __init__(self, problem: Problem, ranks: Sequence[int], *, room: Room, budget: Budget) -> None:
        self.problem, self.tree, self.room, self.budget = problem, problem.tree, room, budget
        counts = Counter(problem.members[rank].shape for rank in ranks)
        self.counts: Ints = np.array([counts[s] for s in room.shapes], dtype=np.int64)
        self.reference = problem.reference(tuple(ranks))
        self.groups: dict[GroupType, list[list[int]]] = self._group_types(set(ranks))
        self.types = tuple(self.groups)
        table = problem.by_count
        self.aside = table is not None and table.always
        """Whether a ByCount forbids nothing, so that it can wait until goals 3 to 5 are known."""
        wanted = dict(zip(room.shapes, room.wanted, strict=True))
        self.bare = Room(replace(problem, by_count=None), wanted) if self.aside else room
        self.regions = Regions(self.bare.problem, ranks, room=self.bare, counts=self.counts, types=self.types)
        self.bound = self.regions.bound
        cover = Cover(self.bare, self.counts)
        self.cover = cover if not self.types and cover.applies() else None
        self.whole: dict[tuple[int, int, int], int] = {}
        """(type, level, domain) -> groups whole there, once goal 6 is settled."""

    def _group_types(self, ranks: set[int]) -> dict[GroupType, list[list[int]]]:
        """PP groups of more than one placed member by what they are made of: the new ranks of each."""
        problem = self.problem
        found: dict[tuple[tuple[int, ...], Region | None], list[list[int]]] = {}
        for group in pipeline_groups(problem):
            new = [rank for rank in group if rank in ranks]
            nodes = [n for rank in group if (n := problem.members[rank].node) is not None and n >= 0]
            if new and len(new) + len(nodes) > 1:
                shapes = Counter(problem.members[rank].shape for rank in new)
                anchor = self.tree.lowest_common(nodes) if nodes else None
                found.setdefault((tuple(shapes[s] for s in self.room.shapes), anchor), []).append(new)
        return {GroupType(pods, anchor, len(groups)): groups for (pods, anchor), groups in found.items()}

    def group_ranks(self) -> list[list[list[int]]]:
        """Per group type the new ranks of its groups."""
        return list(self.groups.values())

    def solve(self) -> Found | None:
        """The best region in goals 1 to 5 with its solved model; None where nothing fits."""
        top: Region = (0, 0)
        if self.bound:
            level, domain = self.tree.lowest_common(self.bound)
            if level < self.problem.hard:
                return None
            while level >= self.problem.hard:
                if found := self._inside((level, domain), lowest=level):
                    return found
                domain = int(self.tree.levels[level].parent[domain])
                level -= 1
            return None
        return self._inside(top, lowest=self.problem.hard)

    def _inside(self, outer: Region, *, lowest: int) -> Found | None:
        """The best c inside a domain, at the given level or below."""
        place = self.tree.levels[outer[0]]
        lo, hi = place.start[outer[1]], place.end[outer[1]]
        possible = []
        for level in range(lowest, self.tree.depth + 1):
            starts = self.tree.levels[level].start
            fits = self.room.could(level, self.counts) & (starts >= lo) & (starts < hi)
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
        """Regions of equal goal 2, the most attracting first."""
        sums = [place.sums(self.problem.attract) for place in self.tree.levels[: level + 1]]
        groups: dict[tuple[int, ...], list[int]] = {}
        for domain in domains:
            pull = tuple(-int(sums[n][d]) for n, d in self.regions.upwards(level, domain))
            groups.setdefault(pull, []).append(domain)
        for pull in sorted(groups):
            yield groups[pull]

    # --- regions of one level -----------------------------------------------------------------------------------

    def _best_of(self, level: int, domains: Sequence[int]) -> Found | None:
        """The best of regions that are equal in goals 1 and 2."""
        best: tuple[object, ...] | None = None
        winners: list[tuple[Candidate, Reached]] = []
        seen: dict[tuple[object, ...], Reached | None] = {}
        for candidate in sorted((self.regions.candidate(level, d) for d in domains), key=lambda c: c.best):
            if best is not None and (candidate.best[:3] if self.aside else candidate.best) > best:
                break
            if candidate.key not in seen:
                seen[candidate.key] = self._reach(candidate, best)
            reached = seen[candidate.key]
            if reached is None:
                continue
            value: tuple[object, ...] = (reached.pipeline, reached.domains, candidate.best_fit)
            if not self.aside:
                value = (*value, reached.counted, -reached.score, candidate.region[1])
            if best is None or value < best:
                best, winners = value, [(candidate, reached)]
            elif value == best:
                winners.append((candidate, reached))
        if not winners:
            return None
        if self.aside:
            return self._by_the_rest(winners)
        candidate, reached = winners[0]
        return self._modelled(candidate, reached)

    def _by_the_rest(self, equal: Sequence[tuple[Candidate, Reached]]) -> Found | None:
        """The best in what a ByCount adds and in the score, of regions that are equal in goals 1 to 5."""
        best: tuple[object, ...] | None = None
        winner: tuple[Candidate, Reached] | None = None
        seen: dict[object, Reached | None] = {}
        for candidate, reached in equal:
            level, domain = candidate.region
            key = int(self.room.twins[level][domain]), candidate.key[1:]
            if key not in seen:
                found = self._modelled(candidate, reached)
                seen[key] = None if found is None else found.reached
            after = seen[key]
            if after is None:
                continue
            value = after.counted, -after.score
            if best is None or value < best:
                best, winner = value, (candidate, after)
        return None if winner is None else self._modelled(*winner)

    # --- one region ---------------------------------------------------------------------------------------------

    def _reach(self, candidate: Candidate, best: tuple[object, ...] | None) -> Reached | None:
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
        whole_nodes = bool(self.types) and self.regions.most_whole(depth, region) > 0
        guess = self._guess(region)
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
        model = CountModel(
            self.bare,
            region,
            counts=self.counts.tolist(),
            budget=self.budget,
            split=whole_nodes,
            only=part.only,
            opened=part.opened,
            ordered=guess is None,
        )
        model.add_used()
        model.add_groups(self.types)
        if guess is not None:
            model.adopt(guess)
        else:
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

    # --- the rest of a region -----------------------------------------------------------------------------------

    def _modelled(self, candidate: Candidate, reached: Reached) -> Found | None:
        """The region with a model of its own nodes that holds all that is reached, the rest solved."""
        region, model = candidate.region, reached.model
        if region[0] == self.tree.depth:  # what was reached may be a twin's, of another kind of node to a ByCount
            alone = self._on_one_node(candidate)
            return None if alone is None else Found(region, alone)
        if reached.rest and model is not None and model.region == region:
            return Found(region, reached)
        if model is not None and model.region != region:  # a twin was solved
            again = self._reach(candidate, None)
            assert again is not None
            return self._modelled(candidate, again)
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
        whole_nodes = bool(self.types) and self.regions.most_whole(depth, region) > 0
        model = CountModel(
            self.room,
            region,
            counts=self.counts.tolist(),
            budget=self.budget,
            split=whole_nodes,
            only=part.only,
            opened=part.opened,
            ordered=not large,
        )
        model.add_used()
        model.add_groups(self.types)
        for n in below:
            model.hold([(v, -c) for v, c in model.whole(n)], reached.pipeline[n - 1])
            model.hold(model.opened(n), opened[n])
        if large:
            model.adopt(pods)
        else:
            model.start_from(pods)
            model.find("feasible")
        if model.values and not part.exact:
            self.budget.proven = False
        return model if model.values else None

    def _placement(self, candidate: Candidate, reached: Reached) -> Pods:
        """A placement in the region that reaches goals 3 and 4."""
        if reached.pods is not None:
            return reached.pods
        if reached.model is not None:
            return reached.model.node_pods()
        assert self.cover is not None
        self.cover.work += MOST_WORK  # what was done once within the limits is done again, for the nodes this time
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

    # --- goal 6 -------------------------------------------------------------------------------------------------

    def inside(self, found: Found) -> dict[int, list[int]]:
        """Goal 6 in the chosen region: node -> pods per shape position."""
        (level, domain), reached = found.region, found.reached
        if reached.model is None:
            return {int(self.tree.levels[level].start[domain]): self.counts.tolist()}
        order = domain_order(self.problem, self.reference, level, domain)
        held = Held(reached.pipeline, reached.domains, reached.score)
        model = settle_inside(reached.model, order, held, counts=self.counts, types=self.types)
        self.whole = model.whole_counts()
        return model.node_pods()
