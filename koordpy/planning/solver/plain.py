"""Placement without a gather goal: fewest nodes, scores, fewest free slots, natural names.

Source: gang-network.md section 4, "No gather goal". Bound siblings and PP play no part.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from koordpy.planning.placement.goals import Goals, faults_together
from koordpy.planning.placement.problem import Ints, Problem, hard_regions
from koordpy.planning.plan import Proof
from koordpy.planning.solver.budget import TimeBudget
from koordpy.planning.solver.counts import CountModel
from koordpy.planning.solver.dealing import LeastNames, deal
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

    def _in_region(self, region: tuple[int, int]) -> tuple[tuple[int, ...], dict[int, int]] | None:
        problem, depth = self.problem, self.problem.tree.depth
        reference = problem.copies_of[problem.reference(self.ranks)]
        room = self._first_room()
        first = self._like(region, np.zeros_like(reference), limit=len(self.ranks), room=room)
        model = self._model(region, first, room=room, alike=room.type_of)
        model.find("feasible")
        if not model.values:
            return None
        standing = int(problem.standing.sum()) if problem.standing is not None else 0
        nodes = model.minimise("nodes", model.opened(depth), bound=self._fewest(region))
        pods = model.pods()
        most = max(1, nodes + standing)
        keep = self._like(region, reference, limit=most)
        single = self._model(region, keep, most_nodes=most)
        single.hold(single.opened(depth), nodes)
        single.hint(pods)
        single.find("score")
        if not single.values and room is not self.room:
            self.budget.proven = False  # what nodes are worth by their pods is left out
        model = single if single.values else model
        counted = model.least_counted()
        score = model.minimise("score", model.lost_score())
        slots = model.minimise("slots", self._slots(model, reference))
        names = self._deal(region, model.pods())
        variables = sum(len(cell.nodes) * (len(cell.pods) + len(cell.used)) for cell in model.cells)
        if model is single and self.budget.proven and variables <= problem.sizes.named_variables:
            each = self._model(region, keep, most_nodes=most, alike=np.arange(len(reference)))
            each.hold(each.opened(depth), nodes)
            each.hold_counted(counted)
            each.hold(each.lost_score(), score)
            each.hold(self._slots(each, reference), slots)
            start = [names[rank] for rank in self.ranks]
            names = dict(zip(self.ranks, LeastNames(each, problem.name_rank).deal(self._asked(), start), strict=True))
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

    def _model(
        self,
        region: tuple[int, int],
        keep: Sequence[int],
        *,
        room: Room | None = None,
        most_nodes: int | None = None,
        alike: Ints | None = None,
    ) -> CountModel:
        """most_nodes, alike: as in `CountModel`."""
        problem, counts = self.problem, self.counts.tolist()
        model = CountModel(
            room or self.room,
            region,
            counts=counts,
            budget=self.budget,
            split=bool(problem.multiples or problem.interactions),
            keep=keep,
            most_nodes=most_nodes,
            alike=alike,
        )
        model.add_used(siblings=False)
        for cell in model.cells:
            model.use(cell)  # slots count on nodes that stand for bound pods, too
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

    def _deal(self, region: tuple[int, int], pods: Mapping[int, Sequence[int]]) -> dict[int, int]:
        """Rank -> node by the pods of each node. Nodes alike change places, but where multiples tie them to domains."""
        problem = self.problem
        alike = self.room.signatures[problem.tree.depth]
        kinds: dict[int, tuple[list[int], list[Sequence[int]]]] = {}
        place = problem.tree.levels[region[0]]
        for node in range(int(place.start[region[1]]), int(place.end[region[1]])):
            nodes, plans = kinds.setdefault(-1 - node if problem.multiples else int(alike[node]), ([], []))
            nodes.append(node)
            if node in pods:
                plans.append(pods[node])
        return dict(zip(self.ranks, deal(list(kinds.values()), self._asked(), problem.name_rank), strict=True))

    def _asked(self) -> list[int]:
        """Shape position of each pod in rank order."""
        return [self.shape_at[self.problem.members[rank].shape] for rank in self.ranks]
