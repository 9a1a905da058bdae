"""Nodes that are alike counted by what they take: for large clusters whose nodes are worth something by their pods.

Source: gpu-topology.md 5 (b) to (f) and gang-network.md section 4, without a gather goal. A model with every
node in it (`counts`) has a 0/1 for each way to fill each node; here a number says how many nodes of a kind are filled
in a way, so that equal nodes are no different solutions. Sums bound the fewest nodes so closely, mostly, that few ways
remain: what a node leaves over, no other could take.
"""

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from koordpy.planning.limits import (
    PATTERN_FILLINGS,
    PATTERN_NAMED_VARIABLES,
    PATTERN_TRIES,
    PATTERN_WAYS,
    PATTERN_WAYS_COUNTED,
)
from koordpy.planning.placement.problem import Ints, Problem
from koordpy.planning.plan import NAMES, Proof
from koordpy.planning.solver.budget import TimeBudget
from koordpy.planning.solver.counted import Fits
from koordpy.planning.solver.pattern_names import NodeKind, NodePattern, PatternNames
from koordpy.planning.solver.room import Room
from koordpy.planning.solver.staged import StagedModel, Term, linear

Fillings = dict[int, list[tuple[int, ...]]]
"""Type of a node -> pods per shape of each way to fill it."""


def pays(problem: Problem, room: Room, nodes: Sequence[int]) -> bool:
    """Whether nodes are so many that equal ones are better counted together, and nothing tells them apart."""
    if problem.by_count is None or problem.interactions or problem.multiples or problem.hard:
        return False
    ways = np.prod(np.minimum(room.slots[:, list(nodes)], PATTERN_FILLINGS) + 1, axis=0)
    return int(np.minimum(ways, PATTERN_FILLINGS).sum()) > PATTERN_WAYS_COUNTED


class Patterns:
    """Searches the best nodes for the pods of given ranks. counts: pods per shape position."""

    def __init__(self, problem: Problem, ranks: Sequence[int], *, room: Room, counts: Ints, budget: TimeBudget) -> None:
        self.problem, self.ranks, self.room, self.budget = problem, tuple(ranks), room, budget
        self.counts = [int(n) for n in counts]
        self.model = StagedModel(budget)
        self._reference = problem.copies_of[problem.reference(self.ranks)]
        self._fine = True
        self._kinds: list[NodeKind] = []
        self._known: dict[tuple[int, tuple[int, ...]], tuple[int, ...] | None] = {}

    def solve(self, nodes: Sequence[int]) -> dict[int, int] | None:
        """Rank -> node, out of the given nodes; None where nothing is found, or where it does not pay."""
        fillings = self._fillings(nodes)
        if fillings is None:
            return None
        groups = self._groups(nodes, fine=True)
        if sum(len(fillings[int(self.room.type_of[group[0]])]) for group in groups) > PATTERN_WAYS:
            self._fine = False
            groups = self._groups(nodes, fine=False)
        if not self._with_fewest_nodes(nodes, groups, fillings):
            return None
        assert self.problem.by_count is not None
        for i in range(self.problem.by_count.width):
            self._minimise("counted", [(way.number, way.costs[i]) for _, way in self._all()])
        if self._fine:
            self._minimise("score", [(way.number, self._loss(kind, way)) for kind, way in self._all()])
            self._minimise("slots", [(way.number, int(self._reference[kind.nodes[0]])) for kind, way in self._all()])
        shapes = [self.room.shapes.index(self.problem.members[rank].shape) for rank in self.ranks]
        names = PatternNames(self.model, self._kinds, self.problem.name_rank)
        if self._fine and len(self.model.model.proto.variables) <= PATTERN_NAMED_VARIABLES:
            return dict(zip(self.ranks, names.deal(shapes), strict=True))
        if not self._fine:
            self.budget.proven = False  # scores and slots are left out
        self.budget.leave_open(NAMES)
        return dict(zip(self.ranks, names.deal_as_found(shapes), strict=True))

    def _minimise(self, stage: str, terms: Sequence[Term]) -> None:
        """The next goal; nothing is solved where it is as low as it can be."""
        terms = [term for term in terms if term[1]]
        self.model.minimise(stage, terms, bound=0 if all(factor > 0 for _, factor in terms) else None)

    def _with_fewest_nodes(self, nodes: Sequence[int], groups: Sequence[list[int]], fillings: Fillings) -> bool:
        """Finds the fewest nodes and leaves a model that holds to them. The bounds that sums give are tried first: with
        so few nodes most ways to fill one leave too little to the others."""
        standing = self.problem.standing
        there = int(standing[list(nodes)].sum()) if standing is not None else 0
        fewest = max(0 if there else 1, self._least(nodes) - there)
        for most in range(fewest, fewest + PATTERN_TRIES):
            self._build(groups, fillings, most=most + there)
            opened = self._opened()
            self.model.hold(opened, most)
            proof, self.model.values = self.budget.solve("nodes", self.model.model, share=0.3, linearization=2)
            if self.model.values:
                return True
            if proof is not Proof.INFEASIBLE:
                return False
        self._build(groups, fillings, most=len(self.ranks))
        self.model.find("feasible")
        if self.model.values:
            self._minimise("nodes", self._opened())
        return bool(self.model.values)

    def _opened(self) -> list[Term]:
        standing = self.problem.standing
        return [(way.number, 1) for kind, way in self._all() if standing is None or not standing[kind.nodes[0]]]

    def _least(self, nodes: Sequence[int]) -> int:
        """A lower bound on the nodes: so many of the largest hold the pods, each resource and shape by itself."""
        room, at, counts = self.room, list(nodes), np.array(self.counts, dtype=np.int64)
        asked = [
            *zip(room.caps[at].T, counts @ room.request, strict=True),
            *zip(room.slots[:, at], counts, strict=True),
        ]
        asked.append((room.most[at], counts.sum()))
        return max(int(np.searchsorted(np.cumsum(np.sort(have)[::-1]), wanted)) + 1 for have, wanted in asked)

    # -- building -----------------------------------------------------------------------------------------------------

    def _fillings(self, nodes: Sequence[int]) -> Fillings | None:
        """The ways to fill each type; None where they are too many."""
        room = self.room
        request = {i: room.request[i].tolist() for i in range(len(room.shapes))}
        out: Fillings = {}
        for node in nodes:
            type_of = int(room.type_of[node])
            if type_of in out:
                continue
            kind = room.types[type_of]
            fits = Fits(kind.caps, request)
            most = [min(slots, n) for slots, n in zip(kind.slots, self.counts, strict=True)]
            if np.prod([n + 1 for n in most], dtype=np.float64) > 100 * PATTERN_FILLINGS:
                return None
            found = [
                pods for pods in product(*(range(n + 1) for n in most)) if any(pods) and fits(dict(enumerate(pods)))
            ]
            if len(found) > PATTERN_FILLINGS:
                return None
            out[type_of] = found
        return out

    def _costs(self, node: int, pods: tuple[int, ...]) -> tuple[int, ...] | None:
        """What pods on a node add to the vector; None where it cannot take them so."""
        table = self.problem.by_count
        assert table is not None
        kind = int(table.kinds[node])
        if (kind, pods) not in self._known:
            idle = table.cost(kind, (0,) * len(self.problem.shapes))
            vector = table.cost(kind, self._whole(pods))
            assert idle is not None
            known = None if vector is None else tuple(a - b for a, b in zip(vector, idle, strict=True))
            self._known[kind, pods] = known
        return self._known[kind, pods]

    def _whole(self, pods: Sequence[int]) -> tuple[int, ...]:
        out = [0] * len(self.problem.shapes)
        for shape, number in zip(self.room.shapes, pods, strict=True):
            out[shape] = number
        return tuple(out)

    def _groups(self, nodes: Sequence[int], *, fine: bool) -> list[list[int]]:
        """Nodes that are alike: to all goals but the names, or, where those are too many, to those before the score."""
        at = np.array(nodes, dtype=np.int64)
        scores = np.stack([self.problem.shapes[s].score[at] for s in self.room.shapes])
        columns = [self.room.type_of[at]]
        if fine:
            columns += [*scores, self._reference[at]]
        which = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1].reshape(-1)
        order = np.lexsort((self.problem.name_rank[at], -scores.sum(axis=0), which))
        groups: dict[int, list[int]] = {}
        for i in order.tolist():
            groups.setdefault(int(which[i]), []).append(int(at[i]))
        return list(groups.values())

    def _build(self, groups: Sequence[list[int]], fillings: Fillings, *, most: int) -> None:
        """most: nodes that are used at most; a way that leaves more than the others could take is left out."""
        self.model, self._kinds = StagedModel(self.budget), []
        request = np.concatenate((self.room.request, np.ones((len(self.counts), 1), dtype=np.int64)), axis=1)
        taken: list[list[Term]] = [[] for _ in self.counts]
        used = {pods: np.array(pods, dtype=np.int64) @ request for ways in fillings.values() for pods in ways}
        largest = np.max(list(used.values()), axis=0)
        least = np.array(self.counts, dtype=np.int64) @ request - (most - 1) * largest
        for nodes in groups:
            kind = NodeKind(nodes)
            for pods in fillings[int(self.room.type_of[nodes[0]])]:
                times = min(len(nodes), *(n // k for n, k in zip(self.counts, pods, strict=True) if k))
                if not times or not bool((used[pods] >= least).all()):
                    continue
                costs = self._costs(nodes[0], pods)
                if costs is not None:
                    number = self.model.model.new_int_var(0, times, "")
                    kind.ways.append(NodePattern(pods, costs, number))
                    for i, k in enumerate(pods):
                        if k:
                            taken[i].append((number, k))
            if kind.ways:
                self.model.model.add(linear((way.number, 1) for way in kind.ways) <= len(nodes))
                self._kinds.append(kind)
        for terms, wanted in zip(taken, self.counts, strict=True):
            self.model.model.add(linear(terms) == wanted)

    def _all(self) -> Iterator[tuple[NodeKind, NodePattern]]:
        return ((kind, way) for kind in self._kinds for way in kind.ways)

    def _loss(self, kind: NodeKind, way: NodePattern) -> int:
        shapes = self.problem.shapes
        node = kind.nodes[0]
        return -sum(k * int(shapes[s].score[node]) for s, k in zip(self.room.shapes, way.pods, strict=True))

    # -- solving ------------------------------------------------------------------------------------------------------
