"""Placement without a gather goal: fewest nodes, scores, fewest free slots, natural names.

Source: gang-network.md section 4, "No gather goal". Bound siblings and PP play no part.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from koordpy.planning.placement.goals import Goals, faults_together
from koordpy.planning.placement.problem import Ints, Problem, hard_regions
from koordpy.planning.plan import NAMES, Proof
from koordpy.planning.solver.budget import TimeBudget
from koordpy.planning.solver.cells import lost_score
from koordpy.planning.solver.counts import CountModel
from koordpy.planning.solver.patterns import Patterns, pays
from koordpy.planning.solver.placed import hint_at, node_pods
from koordpy.planning.solver.room import Room
from koordpy.planning.solver.staged import Term


class Plain:
    """Searches the best nodes for the pods of given ranks without a gather goal."""

    def __init__(self, problem: Problem, ranks: Sequence[int], *, room: Room, budget: TimeBudget) -> None:
        self.problem, self.ranks, self.room, self.budget = problem, tuple(ranks), room, budget
        self.shape_at = {s: i for i, s in enumerate(room.shapes)}
        counts = [0] * len(room.shapes)
        for rank in ranks:
            counts[self.shape_at[problem.members[rank].shape]] += 1
        self.counts = np.array(counts, dtype=np.int64)

    def solve(self) -> dict[int, int] | None:
        """Rank -> node; None where nothing fits."""
        level = self.problem.hard
        fits = self.room.could(level, self.counts)
        regions = [region for region in hard_regions(self.problem) if fits[region[1]]]
        if len(self.ranks) == 1:
            return self._one_pod(regions)
        if len(regions) == 1 and (placed := self._by_patterns(regions[0])) is not None:
            return placed
        best: tuple[tuple[int, ...], dict[int, int]] | None = None
        for region in regions:
            found = self._in_region(region)
            if found is not None and (best is None or found[0] < best[0]):
                best = found
        return None if best is None else best[1]

    def could(self) -> Proof:
        """Whether the pods fit at all: FEASIBLE, INFEASIBLE or UNKNOWN."""
        fits = self.room.could(self.problem.hard, self.counts)
        proofs = {Proof.INFEASIBLE}
        for region in hard_regions(self.problem):
            if fits[region[1]]:
                room = self._first_room()
                reference = np.zeros(len(self.problem.free), dtype=np.int64)
                model = self._model(region, self._like(region, reference, limit=len(self.ranks), room=room), room=room)
                proofs.add(model.find("feasible"))
        if proofs & {Proof.OPTIMAL, Proof.FEASIBLE}:
            return Proof.FEASIBLE
        return Proof.UNKNOWN if Proof.UNKNOWN in proofs else Proof.INFEASIBLE

    def _one_pod(self, regions: Sequence[tuple[int, int]]) -> dict[int, int] | None:
        problem, rank = self.problem, self.ranks[0]
        shape = problem.members[rank].shape
        slots, score = problem.slots_of[shape], problem.shapes[shape].score
        inside = np.zeros(len(slots), dtype=bool)
        for level, domain in regions:
            inside |= problem.tree.domain_of[level] == domain
        nodes = np.nonzero(inside & self.room.could(problem.tree.depth, self.counts))[0]
        possible = [node for node in nodes.tolist() if not faults_together(problem, {rank: node})]
        if not possible:
            return None
        goals = Goals(problem)

        def value(node: int) -> tuple[object, ...]:
            at = {rank: node}
            counted = goals.counted(at)
            return goals.fewest_nodes(at), counted, -score[node], slots[node], problem.name_rank[node]

        return {rank: min(possible, key=value)}

    def _by_patterns(self, region: tuple[int, int]) -> dict[int, int] | None:
        """Where equal nodes are many; None elsewhere, and where that finds nothing."""
        place = self.problem.tree.levels[region[0]]
        inside = np.arange(int(place.start[region[1]]), int(place.end[region[1]]))
        nodes = inside[self.room.most[inside] > 0].tolist()
        if not pays(self.problem, self.room, nodes):
            return None
        counts = self.counts
        return Patterns(self.problem, self.ranks, room=self.room, counts=counts, budget=self.budget).solve(nodes)

    def _in_region(self, region: tuple[int, int]) -> tuple[tuple[int, ...], dict[int, int]] | None:
        problem, depth = self.problem, self.problem.tree.depth
        reference = problem.copies_of[problem.reference(self.ranks)]
        room = self._first_room()
        first = self._like(region, np.zeros_like(reference), limit=len(self.ranks), room=room)
        model = self._model(region, first, room=room)
        model.find("feasible")
        if not model.values:
            return None
        standing = int(problem.standing.sum()) if problem.standing is not None else 0
        nodes = model.minimise("nodes", model.opened(depth), bound=self._fewest(region))
        pods = node_pods(model)
        single = self._model(region, self._like(region, reference, limit=max(1, nodes + standing)))
        single.hold(single.opened(depth), nodes)
        hint_at(single, pods)
        single.find("score")
        if not single.values and room is not self.room:
            self.budget.proven = False  # what nodes are worth by their pods is left out
        model = single if single.values else model
        counted = model.least_counted()
        score = model.minimise("score", lost_score(problem, self.room.shapes, model.cells))
        slots = model.minimise("slots", self._slots(model, reference))
        names = self._names(model)
        return (nodes, *counted, score, slots, *(int(problem.name_rank[names[r]]) for r in self.ranks)), names

    def _fewest(self, region: tuple[int, int]) -> int:
        """Lower bound on the nodes that are opened: each measure of room by itself, the largest nodes first."""
        room, place = self.room, self.problem.tree.levels[region[0]]
        inside = np.arange(int(place.start[region[1]]), int(place.end[region[1]]))
        there = self.problem.standing
        stands = there[inside] > 0 if there is not None else np.zeros(len(inside), dtype=bool)
        asked = [(room.most, int(self.counts.sum())), *zip(room.slots, self.counts.tolist(), strict=True)]
        asked += zip(room.caps.T, (self.counts @ room.request).tolist(), strict=True)
        fewest = 0
        for have, wanted in asked:
            sizes = have[inside]
            rest = wanted - int(sizes[stands].sum())
            if rest > 0:
                fewest = max(fewest, int(np.searchsorted(np.cumsum(np.sort(sizes[~stands])[::-1]), rest)) + 1)
        return fewest

    def _first_room(self) -> Room:
        """For the fewest nodes alone: what nodes are worth by their pods makes no difference, if it forbids nothing."""
        table = self.problem.by_count
        if table is None or not table.always:
            return self.room
        return Room(replace(self.problem, by_count=None), dict(zip(self.room.shapes, self.room.wanted, strict=True)))

    def _model(self, region: tuple[int, int], keep: Sequence[int], *, room: Room | None = None) -> CountModel:
        room = room or self.room
        model = CountModel(room, region, counts=self.counts.tolist(), budget=self.budget, split=True, keep=keep)
        model.add_used(siblings=False)
        return model

    def _like(self, region: tuple[int, int], sort: Ints, *, limit: int, room: Room | None = None) -> list[int]:
        """The nodes of a region that may be used: of nodes that hold the same and equal in `sort`, as many as limited.

        Left out are nodes that so many others beat in the scores of all shapes, or equal there with the lesser name.
        Multiples tie nodes to their domains, so with them all nodes count.
        """
        problem, room = self.problem, room or self.room
        place = problem.tree.levels[region[0]]
        inside = np.arange(int(place.start[region[1]]), int(place.end[region[1]]))
        inside = inside[room.most[inside] > 0]
        if problem.multiples:
            return [int(n) for n in inside]
        keep: list[int] = []
        groups = np.unique(np.stack([room.type_of[inside], sort[inside]], axis=1), axis=0, return_inverse=True)[1]
        scores = np.stack([problem.shapes[s].score for s in room.shapes], axis=1)
        for number in range(int(groups.max()) + 1 if len(inside) else 0):
            nodes = inside[groups.reshape(-1) == number]
            order = np.lexsort((problem.name_rank[nodes], -scores[nodes].sum(axis=1)))
            chosen: list[int] = []
            for node in nodes[order].tolist():
                # those before in this order have the larger total, so only they can beat it
                if len(chosen) < limit or int((scores[chosen] >= scores[node]).all(axis=1).sum()) < limit:
                    chosen.append(node)
            keep += chosen
        return sorted(keep)

    def _slots(self, model: CountModel, reference: np.ndarray) -> list[Term]:
        terms = [(v, c * int(reference[cell.nodes[0]])) for cell in model.cells for v, c in cell.used]
        return [term for term in terms if term[1]]

    def _names(self, model: CountModel) -> dict[int, int]:
        """Pod by pod in rank order the naturally first node that leaves room for the others."""
        name = self.problem.name_rank
        at = [
            sorted((c for c in model.cells if i in c.pods), key=lambda c: int(name[c.nodes[0]]))
            for i in range(len(self.room.shapes))
        ]
        done: dict[tuple[int, int], int] = {}
        first = [0] * len(self.room.shapes)
        out: dict[int, int] = {}
        for rank in self.ranks:
            i = self.shape_at[self.problem.members[rank].shape]
            while True:
                place = next(
                    p for p, c in enumerate(at[i]) if model.value([(c.pods[i], 1)]) > done.get((i, c.nodes[0]), 0)
                )
                before = at[i][first[i] : place]
                taken = sum(done.get((i, c.nodes[0]), 0) for c in before)
                if not before or not model.can(NAMES, [(c.pods[i], -1) for c in before], -taken - 1):
                    break
            first[i] = place
            cell = at[i][place]
            done[i, cell.nodes[0]] = done.get((i, cell.nodes[0]), 0) + 1
            model.model.add(cell.pods[i] >= done[i, cell.nodes[0]])
            out[rank] = cell.nodes[0]
        return out
