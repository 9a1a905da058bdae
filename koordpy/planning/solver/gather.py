"""Goals 1 to 6 for the chosen members: layers bottom-up, regions by what they could reach at best, then staged solves.

Source: gang-network.md sections 5 and 7. Goals 2 and 5 depend on the region alone (`regions`); goals 3 and 4 are solved
per region (`reached`); what a ByCount adds and the scores only between the regions that are best in these.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from koordpy.planning.placement.goals import domain_order
from koordpy.planning.placement.problem import Problem
from koordpy.planning.solver.budget import TimeBudget
from koordpy.planning.solver.inside import Held, settle_inside
from koordpy.planning.solver.placed import node_pods
from koordpy.planning.solver.reached import Found, Reached, Reaching
from koordpy.planning.solver.regions import Candidate, Region
from koordpy.planning.solver.room import Room
from koordpy.planning.solver.whole_groups import GroupType, group_types


class Gather:
    """Searches the best counts per node for the pods of given ranks."""

    def __init__(self, problem: Problem, ranks: Sequence[int], *, room: Room, budget: TimeBudget) -> None:
        self.problem, self.tree, self.room, self.budget = problem, problem.tree, room, budget
        self.groups: dict[GroupType, list[list[int]]] = group_types(problem, set(ranks), room.shapes)
        self.types = tuple(self.groups)
        self.reaching = Reaching(problem, ranks, room=room, types=self.types, budget=budget)
        self.counts, self.regions = self.reaching.counts, self.reaching.regions
        self.whole: dict[tuple[int, int, int], int] = {}
        """(type, level, domain) -> groups whole there, once goal 6 is settled."""

    def group_ranks(self) -> list[list[list[int]]]:
        """Per group type the new ranks of its groups."""
        return list(self.groups.values())

    def solve(self) -> Found | None:
        """The best region in goals 1 to 5 with its solved model; None where nothing fits."""
        top: Region = (0, 0)
        if self.regions.bound:
            level, domain = self.tree.lowest_common(self.regions.bound)
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
            if best is not None and (candidate.best[:3] if self.reaching.aside else candidate.best) > best:
                break
            if candidate.key not in seen:
                seen[candidate.key] = self.reaching.reach(candidate, best)
            reached = seen[candidate.key]
            if reached is None:
                continue
            value: tuple[object, ...] = (reached.pipeline, reached.domains, candidate.best_fit)
            if not self.reaching.aside:
                value = (*value, reached.counted, -reached.score, candidate.region[1])
            if best is None or value < best:
                best, winners = value, [(candidate, reached)]
            elif value == best:
                winners.append((candidate, reached))
        if not winners:
            return None
        if self.reaching.aside:
            return self._by_the_rest(winners)
        candidate, reached = winners[0]
        return self.reaching.modelled(candidate, reached)

    def _by_the_rest(self, equal: Sequence[tuple[Candidate, Reached]]) -> Found | None:
        """The best in what a ByCount adds and in the score, of regions that are equal in goals 1 to 5."""
        best: tuple[object, ...] | None = None
        winner: tuple[Candidate, Reached] | None = None
        seen: dict[object, Reached | None] = {}
        for candidate, reached in equal:
            level, domain = candidate.region
            key = int(self.room.twins[level][domain]), candidate.key[1:]
            if key not in seen:
                found = self.reaching.modelled(candidate, reached)
                seen[key] = None if found is None else found.reached
            after = seen[key]
            if after is None:
                continue
            value = after.counted, -after.score
            if best is None or value < best:
                best, winner = value, (candidate, after)
        return None if winner is None else self.reaching.modelled(*winner)

    # --- goal 6 -------------------------------------------------------------------------------------------------

    def inside(self, found: Found) -> dict[int, list[int]]:
        """Goal 6 in the chosen region: node -> pods per shape position."""
        (level, domain), reached = found.region, found.reached
        if reached.model is None:
            return {int(self.tree.levels[level].start[domain]): self.counts.tolist()}
        order = domain_order(self.problem, self.reaching.reference, level, domain)
        held = Held(reached.pipeline, reached.domains, reached.score)
        model = settle_inside(reached.model, order, held, counts=self.counts, types=self.types)
        self.whole = model.whole_counts()
        return node_pods(model)
