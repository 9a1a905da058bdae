"""Goals 1 to 6 for the chosen members: layers bottom-up, regions by what they could reach at best, then staged solves.

Source: gang-network.md sections 5 and 7. Goals 2 and 5 depend on the region alone; goals 3, 4 and the scores are solved
per region, and regions that differ in names only are solved once.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from koordpy.planning.goals import domain_order, pipeline_groups, slots_by_level
from koordpy.planning.problem import Ints, Problem
from koordpy.planning.solver.budget import Budget
from koordpy.planning.solver.counts import CountModel, GroupType, Term
from koordpy.planning.solver.cover import MOST_WORK, Cover, TooMuchWork
from koordpy.planning.solver.greedy import Greedy
from koordpy.planning.solver.room import Room
from koordpy.planning.ties_among import faults

Region = tuple[int, int]

Value = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], int, int]
"""Goals 3, 4 and 5, what a ByCount adds, the negated score and the place in natural order of a region."""
_LEAST = -(1 << 60)


@dataclass(slots=True)
class Reached:
    """Goals 3, 4 and the score of a region, solved, with the model that holds them there."""

    pipeline: tuple[int, ...]
    domains: tuple[int, ...]
    counted: tuple[int, ...]
    score: int
    model: CountModel | None = None
    """None for a single node, where nothing is to be solved, and where a table told the goals."""
    opened: dict[int, int] | None = None
    """Level -> domains that the new pods open, where a table told."""


@dataclass(slots=True)
class Found:
    """The region that won, as c."""

    region: Region
    reached: Reached


@dataclass(frozen=True, slots=True)
class Candidate:
    """A region that may become c: what is known of its goals 3-6 before any solve, and what it could reach at best."""

    best: Value
    region: Region
    best_fit: tuple[int, ...]
    key: tuple[object, ...]
    """Equal for regions whose solved goals are equal."""
    whole_above: tuple[int, ...]
    """Negated number of groups whole at each level down to the region's."""
    domains_above: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Narrow:
    """only: [nodes] that a model may use, None for all; opened: level -> domains that the best opens at most; exact:
    whether nothing is lost by that."""

    only: NDArray[np.bool_] | None
    opened: dict[int, int]
    exact: bool


MOST_NODES = 384
"""Regions with more nodes that have room are modelled in part."""


class Gather:
    """Searches the best counts per node for the pods of given ranks."""

    def __init__(self, problem: Problem, ranks: Sequence[int], *, room: Room, budget: Budget) -> None:
        self.problem, self.tree, self.room, self.budget = problem, problem.tree, room, budget
        counts = Counter(problem.members[rank].shape for rank in ranks)
        self.counts: Ints = np.array([counts[s] for s in room.shapes], dtype=np.int64)
        self.reference = problem.reference(tuple(ranks))
        self.usable = slots_by_level(problem, self.reference)
        self.bound = np.nonzero(problem.bound_counts)[0].tolist()
        self.held = [set(level.tolist()) for level in self.tree.domain_of[:, self.bound]]
        self.groups: dict[GroupType, list[list[int]]] = self._group_types(set(ranks))
        self.types = tuple(self.groups)
        cover = Cover(room, self.counts)
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

    def _by_attraction(self, level: int, regions: Sequence[int]) -> Iterator[list[int]]:
        """Regions of equal goal 2, the most attracting first."""
        sums = [place.sums(self.problem.attract) for place in self.tree.levels[: level + 1]]
        groups: dict[tuple[int, ...], list[int]] = {}
        for domain in regions:
            pull = tuple(-int(sums[n][d]) for n, d in self._upwards(level, domain))
            groups.setdefault(pull, []).append(domain)
        for pull in sorted(groups):
            yield groups[pull]

    def _upwards(self, level: int, domain: int) -> list[Region]:
        node = int(self.tree.levels[level].start[domain])
        return [(n, int(self.tree.domain_of[n, node])) for n in range(level, -1, -1)]

    # --- regions of one level -----------------------------------------------------------------------------------

    def _best_of(self, level: int, regions: Sequence[int]) -> Found | None:
        best: Value | None = None
        winner: tuple[Candidate, Reached] | None = None
        seen: dict[tuple[object, ...], Reached | None] = {}
        for candidate in sorted((self._candidate(level, d) for d in regions), key=lambda c: c.best):
            if best is not None and candidate.best >= best:
                break
            if candidate.key not in seen:
                seen[candidate.key] = self._reach(candidate, best)
            reached = seen[candidate.key]
            if reached is None:
                continue
            value = (
                reached.pipeline,
                reached.domains,
                candidate.best_fit,
                reached.counted,
                -reached.score,
                candidate.region[1],
            )
            if best is None or value < best:
                best, winner = value, (candidate, reached)
        if winner is None:
            return None
        candidate, reached = winner
        if reached.opened is not None:
            return self._modelled(candidate, reached)
        if (
            reached.model is not None and reached.model.region != candidate.region
        ):  # a twin was solved; the winner's own nodes are wanted
            again = self._reach(candidate, None)
            assert again is not None
            reached = again
        return Found(candidate.region, reached)

    def _candidate(self, level: int, domain: int) -> Candidate:
        tree = self.tree
        path = self._upwards(level, domain)
        best_fit = tuple(int(self.usable[n][d]) for n, d in path)
        above = dict(path)
        common = [(t, level if t.anchor is None else self._common_level(t.anchor, above)) for t in self.types]
        whole_above = tuple(-sum(t.count for t, at in common if at >= n) for n in range(1, level + 1))
        domains_above = tuple(len(self.held[n] | {above[n]}) if self.bound else 1 for n in range(1, level + 1))
        whole_below, domains_below = [], []
        for n in range(level + 1, tree.depth + 1):
            whole_below.append(-self._most_whole(n, (level, domain)))
            domains_below.append(self._fewest(n, (level, domain)))
        key = (
            int(self.room.twins[level][domain]),
            whole_above,
            domains_above,
            tuple(self._residue(n, d) for n, d in path[1:] if n in self.problem.multiples),
            domain if any(t.anchor is not None for t in self.types) else -1,
        )
        best = (
            (*whole_above, *whole_below),
            (*domains_above, *domains_below),
            best_fit,
            self._least_counted,
            -self._most_score(level, domain),
        )
        return Candidate((*best, domain), (level, domain), best_fit, key, whole_above, domains_above)

    @property
    def _least_counted(self) -> tuple[int, ...]:
        """Lower bound on what a ByCount adds."""
        table = self.problem.by_count
        return (_LEAST,) * table.width if table is not None else ()

    def _residue(self, level: int, domain: int) -> int:
        place = self.tree.levels[level]
        held = int(self.problem.bound_counts[place.start[domain] : place.end[domain]].sum())
        return held % self.problem.multiples[level]

    def _common_level(self, anchor: Region, path: Mapping[int, int]) -> int:
        """Level of the lowest domain that holds both an anchor and the region with the given path."""
        level, domain = anchor
        while path.get(level) != domain:
            domain = int(self.tree.levels[level].parent[domain])
            level -= 1
        return level

    def _children_at(self, level: int, region: Region) -> slice:
        """Domains of a level that lie in the region."""
        outer, starts = self.tree.levels[region[0]], self.tree.levels[level].start
        lo, hi = outer.start[region[1]], outer.end[region[1]]
        return slice(int(np.searchsorted(starts, lo)), int(np.searchsorted(starts, hi)))

    def _most_whole(self, level: int, region: Region) -> int:
        """Upper bound on the groups whole in domains of a level inside the region."""
        total = 0
        inside = self._children_at(level, region)
        for group in self.types:
            most = np.full(inside.stop - inside.start, group.count, dtype=np.int64)
            for i, n in enumerate(group.pods):
                if n:
                    most = np.minimum(most, self.tree.levels[level].sums(self.room.slots[i])[inside] // n)
            total += min(group.count, int(most.sum()))
        return total

    def _fewest(self, level: int, region: Region) -> int:
        """Lower bound on the domains of a level that hold members when the region takes all new pods."""
        inside = self._children_at(level, region)
        place = self.tree.levels[level]
        held = place.sums(self.problem.bound_counts) > 0
        outside = int(held.sum())
        fewest = 0
        wanted = [(self.room.most, int(self.counts.sum()))]
        wanted += [(self.room.slots[i], n) for i, n in enumerate(self.counts.tolist())]
        wanted += [(self.room.caps[:, c], n) for c, n in enumerate((self.counts @ self.room.request).tolist())]
        for per_node, n in wanted:
            sizes = place.sums(per_node)[inside]
            rest = n - int(sizes[held[inside]].sum())
            if rest > 0:
                sums = np.cumsum(np.sort(sizes[~held[inside]])[::-1])
                fewest = max(fewest, int(np.searchsorted(sums, rest)) + 1)
        return outside + fewest

    def _most_score(self, level: int, domain: int) -> int:
        """Upper bound on the total score."""
        place, total = self.tree.levels[level], 0
        lo, hi = int(place.start[domain]), int(place.end[domain])
        for i, n in enumerate(self.counts.tolist()):
            slots = self.room.slots[i][lo:hi]
            score = self.problem.shapes[self.room.shapes[i]].score[lo:hi]
            order = np.argsort(-score, kind="stable")
            before = np.cumsum(slots[order]) - slots[order]
            total += int((np.clip(n - before, 0, slots[order]) * score[order]).sum())
        return total

    # --- one region ---------------------------------------------------------------------------------------------

    def _reach(self, candidate: Candidate, best: Value | None) -> Reached | None:
        """Solves goals 3, 4 and the score of a region; None when it holds no placement or cannot beat the best."""
        level, depth = candidate.region[0], self.tree.depth
        if level == depth:  # sums are exact on one node
            shapes = zip(self.room.shapes, self.counts.tolist(), strict=True)
            if faults(self.problem.interactions, {(shape, candidate.region[1]): n for shape, n in shapes}):
                return None
            counted = self._counted_on(candidate.region[1])
            if counted is None:
                return None
            score = self._most_score(*candidate.region)
            return Reached(candidate.whole_above, candidate.domains_above, counted, score, None)
        if self.cover is not None and self.cover.work > 0:
            try:
                return self._by_table(candidate)
            except TooMuchWork:
                self.cover.work = 0
        whole_nodes = bool(self.types) and self._most_whole(depth, candidate.region) > 0
        guess = self._guess(candidate.region)
        narrow = self._narrow(candidate.region, guess) if guess is not None else _Narrow(None, {}, True)
        model = CountModel(
            self.room,
            candidate.region,
            counts=self.counts.tolist(),
            budget=self.budget,
            split=whole_nodes,
            only=narrow.only,
            opened=narrow.opened,
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
        if not narrow.exact:
            self.budget.proven = False
        whole = list(candidate.whole_above)
        for n in range(level + 1, depth + 1):
            bound = -self._most_whole(n, candidate.region)
            whole.append(model.minimise("pipeline", [(v, -c) for v, c in model.whole(n)], bound=bound))
            if best is not None and whole > list(best[0][:n]):
                return None
        domains = list(candidate.domains_above)
        for n in range(level + 1, depth + 1):
            held = int((self.tree.levels[n].sums(self.problem.bound_counts) > 0).sum())
            bound = self._fewest(n, candidate.region) - held
            domains.append(held + model.minimise("domains", model.opened(n), bound=bound))
            if best is not None and (tuple(whole), domains) > (best[0], list(best[1][:n])):
                return None
        counted = model.least_counted()
        bound = -self._most_score(*candidate.region)
        score = -model.minimise("score", self._score(model), bound=bound)
        return Reached(tuple(whole), tuple(domains), counted, score, model)

    def _counted_on(self, node: int) -> tuple[int, ...] | None:
        """What a ByCount adds where all pods go to one node; None where it cannot take them."""
        table = self.problem.by_count
        if table is None:
            return ()
        counts = dict(zip(self.room.shapes, self.counts.tolist(), strict=True))
        shapes = range(len(self.problem.shapes))
        kind = int(table.kinds[node])
        vector = table.cost(kind, tuple(counts.get(shape, 0) for shape in shapes))
        idle = table.cost(kind, (0,) * len(shapes))
        if vector is None or idle is None:
            return None
        return tuple(a - b for a, b in zip(vector, idle, strict=True))

    def _guess(self, region: Region) -> dict[int, tuple[int, ...]] | None:
        """A placement to begin with, for regions that are too large to be modelled whole."""
        problem = self.problem
        beyond = problem.multiples or problem.interactions or problem.by_count is not None
        if beyond or not self._large(region):
            return None
        return Greedy(self.room, self.counts).fill(region)

    def _large(self, region: Region) -> bool:
        place = self.tree.levels[region[0]]
        nodes = slice(int(place.start[region[1]]), int(place.end[region[1]]))
        return int((self.room.most[nodes] > 0).sum()) > MOST_NODES

    def _narrow(
        self, region: Region, guess: Mapping[int, tuple[int, ...]], known: Mapping[int, int] | None = None
    ) -> _Narrow:
        """The part of a large region that is modelled: what the first placement uses, then the first in goal 6's order.

        It is exact where only domains are left out of which the placement uses fewer than there are others alike.
        """
        tree, level = self.tree, region[0] + 1
        opened = dict(known or {})
        for n in range(level, tree.depth + 1) if known is None else ():
            opened[n] = len({int(d) for d in tree.domain_of[n, list(guess)]})
            if opened[n] > self._fewest(n, region):
                break
        exact = not self.types and not self.bound
        order = domain_order(self.problem, self.reference, *region)[level].tolist()
        own = {int(d) for d in tree.domain_of[level, list(guess)]}
        alike: Counter[int] = Counter()
        only = np.zeros(len(self.problem.free), dtype=bool)
        left = MOST_NODES
        place = tree.levels[level]
        for domain in sorted(order, key=lambda d: d not in own):
            nodes = slice(int(place.start[domain]), int(place.end[domain]))
            sign = int(self.room.signatures[level][domain])
            number = int((self.room.most[nodes] > 0).sum())
            if not number or (alike[sign] >= opened[level] and domain not in own):
                continue
            alike[sign] += 1
            if domain not in own and number > left:
                exact = False
                continue
            left -= number
            only[nodes] = True
        return _Narrow(only, opened if exact else {}, exact)

    def _by_table(self, candidate: Candidate) -> Reached | None:
        """Goal 4 of a region where only room matters."""
        assert self.cover is not None
        level, domain = candidate.region
        opened = self.cover.least(candidate.region)
        if opened is None:
            return None
        levels = range(level + 1, self.tree.depth + 1)
        held = [int((self.tree.levels[n].sums(self.problem.bound_counts) > 0).sum()) for n in levels]
        domains = (*candidate.domains_above, *(a + b for a, b in zip(held, opened, strict=True)))
        score = self._most_score(level, domain)
        whole = (*candidate.whole_above, *(0 for _ in levels))
        return Reached(whole, domains, (), score, opened=dict(zip(levels, opened, strict=True)))

    def _modelled(self, candidate: Candidate, reached: Reached) -> Found | None:
        """The model of a region whose goal 4 a table told, held to it."""
        assert self.cover is not None and reached.opened is not None
        self.cover.work += MOST_WORK  # what was done once within the limits is done again, for the nodes this time
        self.cover.least(candidate.region)
        pods = self.cover.pods()
        large = self._large(candidate.region)
        narrow = self._narrow(candidate.region, pods, reached.opened) if large else _Narrow(None, reached.opened, True)
        model = CountModel(
            self.room,
            candidate.region,
            counts=self.counts.tolist(),
            budget=self.budget,
            only=narrow.only,
            opened=narrow.opened,
            ordered=not large,
        )
        model.add_used()
        for level, number in reached.opened.items():
            model.hold(model.opened(level), number)
        if large:
            model.adopt(pods)
        else:
            model.start_from(pods)
            model.find("feasible")
        if not model.values:
            return None
        if not narrow.exact:
            self.budget.proven = False
        reached.model = model
        return Found(candidate.region, reached)

    def _score(self, model: CountModel) -> list[Term]:
        """The negated total score."""
        scores = [self.problem.shapes[s].score for s in self.room.shapes]
        terms = [(var, -int(scores[i][cell.nodes[0]])) for cell in model.cells for i, var in cell.pods.items()]
        return [term for term in terms if term[1]]

    # --- goal 6 -------------------------------------------------------------------------------------------------

    def inside(self, found: Found) -> dict[int, list[int]]:
        """Goal 6 in the chosen region: node -> pods per shape position."""
        (level, domain), model, depth = found.region, found.reached.model, self.tree.depth
        if model is None:
            return {int(self.tree.levels[level].start[domain]): self.counts.tolist()}
        order = domain_order(self.problem, self.reference, level, domain)
        for n in range(level + 1, depth):
            model.largest("inside", model.domain_totals(n, order[n].tolist()))
        if any(len(cell.nodes) > 1 for cell in model.cells):
            single = self._single_nodes(found, model)
            if single is None:
                self.whole = model.whole_counts()
                return model.node_pods()
            model = single
        model.largest("inside", model.node_totals(order[depth].tolist()))
        self.whole = model.whole_counts()
        return model.node_pods()

    def _single_nodes(self, found: Found, model: CountModel) -> CountModel | None:
        """The same solution node by node, only below the lowest domains that hold pods; None if the limit is met."""
        depth, level, reached = self.tree.depth, found.region[0], found.reached
        lowest = [d for d, var in model.totals[depth - 1].items() if model.value([(var, 1)])]
        place = self.tree.levels[depth - 1]
        keep = [node for d in lowest for node in range(int(place.start[d]), int(place.end[d]))]
        single = CountModel(
            self.room, model.region, counts=self.counts.tolist(), budget=self.budget, split=True, keep=keep
        )
        single.add_used()
        single.add_groups(self.types)
        cp = single.model
        for n in range(level + 1, depth):
            for d, var in single.totals[n].items():
                cp.add(var == model.value([(model.totals[n][d], 1)]))
        for n in range(level + 1, depth + 1):
            single.hold([(v, -c) for v, c in single.whole(n)], reached.pipeline[n - 1])
        held = int((self.problem.bound_counts > 0).sum())
        single.hold(single.opened(depth), reached.domains[depth - 1] - held)
        single.hold(self._score(single), -reached.score)
        single.start_from(model.node_pods())
        single.find("inside")
        return single if single.values else None
