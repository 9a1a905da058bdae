"""Nodes that are alike counted by what they take: for large clusters whose nodes are worth something by their pods.

Source: gpu-topology.md section 5 (b) to (f) and gang-network.md section 4, without a gather goal. A model with every
node in it (`counts`) has a 0/1 for each way to fill each node; here a number says how many nodes of a kind are filled
in a way, so that equal nodes are no different solutions. Sums bound the fewest nodes so closely, mostly, that few ways
remain: what a node leaves over, no other could take.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from ortools.sat.python import cp_model

from koordpy.planning.plan import Proof
from koordpy.planning.problem import Ints, Problem
from koordpy.planning.solver.budget import Budget
from koordpy.planning.solver.counted import Fits
from koordpy.planning.solver.room import Room

MANY_WAYS = 1_500
"""Ways to fill all nodes one by one from which on equal nodes are counted together."""
_MOST_WAYS = 12_000
"""Variables of one model; beyond, nodes that differ in their scores alone are counted together, too."""
_MOST_FILLINGS = 500
_TRIES = 3
_NAMED_VARIABLES = 1_000
"""Variables up to which the names are decided by the model, too: a solve or two for each pod."""
Term = tuple[cp_model.IntVar, int]
Fillings = dict[int, list[tuple[int, ...]]]
"""Type of a node -> pods per shape of each way to fill it."""


@dataclass(slots=True)
class _Way:
    """Nodes of one kind that take the same. pods: per shape (position in Room); costs: what a node adds to the vector
    of the ByCount, against none."""

    pods: tuple[int, ...]
    costs: tuple[int, ...]
    number: cp_model.IntVar


@dataclass(slots=True)
class _Kind:
    """Nodes that are alike, in the order in which they are taken."""

    nodes: list[int]
    ways: list[_Way] = field(default_factory=list)


def pays(problem: Problem, room: Room, nodes: Sequence[int]) -> bool:
    """Whether nodes are so many that equal ones are better counted together, and nothing tells them apart."""
    if problem.by_count is None or problem.interactions or problem.multiples or problem.hard:
        return False
    ways = np.prod(np.minimum(room.slots[:, list(nodes)], _MOST_FILLINGS) + 1, axis=0)
    return int(np.minimum(ways, _MOST_FILLINGS).sum()) > MANY_WAYS


class Patterns:
    """Searches the best nodes for the pods of given ranks. counts: pods per shape position."""

    def __init__(self, problem: Problem, ranks: Sequence[int], *, room: Room, counts: Ints, budget: Budget) -> None:
        self.problem, self.ranks, self.room, self.budget = problem, tuple(ranks), room, budget
        self.counts = [int(n) for n in counts]
        self.model = cp_model.CpModel()
        self.values: list[int] = []
        self._reference = problem.slots_of[problem.reference(self.ranks)]
        self._fine = True
        self._kinds: list[_Kind] = []
        self._known: dict[tuple[int, tuple[int, ...]], tuple[int, ...] | None] = {}

    def solve(self, nodes: Sequence[int]) -> dict[int, int] | None:
        """Rank -> node, out of the given nodes; None where nothing is found, or where it does not pay."""
        fillings = self._fillings(nodes)
        if fillings is None:
            return None
        groups = self._groups(nodes, fine=True)
        if sum(len(fillings[int(self.room.type_of[group[0]])]) for group in groups) > _MOST_WAYS:
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
        if self._fine and len(self.model.proto.variables) <= _NAMED_VARIABLES:
            return _Names(self, self._kinds).deal(self.ranks)
        self.budget.proven = False  # the names
        return self._named()

    def _with_fewest_nodes(self, nodes: Sequence[int], groups: Sequence[list[int]], fillings: Fillings) -> bool:
        """Finds the fewest nodes and leaves a model that holds to them. The bounds that sums give are tried first: with
        so few nodes most ways to fill one leave too little to the others."""
        standing = self.problem.standing
        there = int(standing[list(nodes)].sum()) if standing is not None else 0
        fewest = max(0 if there else 1, self._least(nodes) - there)
        for most in range(fewest, fewest + _TRIES):
            self._build(groups, fillings, most=most + there)
            opened = self._opened()
            self.model.add(_sum(opened) <= most)
            proof, self.values = self.budget.solve("nodes", self.model, share=0.3, linearization=2)
            if self.values:
                return True
            if proof is not Proof.INFEASIBLE:
                return False
        self._build(groups, fillings, most=len(self.ranks))
        return self._minimise("nodes", self._opened())

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
            if np.prod([n + 1 for n in most], dtype=np.float64) > 100 * _MOST_FILLINGS:
                return None
            found = [
                pods for pods in product(*(range(n + 1) for n in most)) if any(pods) and fits(dict(enumerate(pods)))
            ]
            if len(found) > _MOST_FILLINGS:
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
        self.model, self._kinds = cp_model.CpModel(), []
        request = np.concatenate((self.room.request, np.ones((len(self.counts), 1), dtype=np.int64)), axis=1)
        taken: list[list[Term]] = [[] for _ in self.counts]
        used = {pods: np.array(pods, dtype=np.int64) @ request for ways in fillings.values() for pods in ways}
        largest = np.max(list(used.values()), axis=0)
        least = np.array(self.counts, dtype=np.int64) @ request - (most - 1) * largest
        for nodes in groups:
            kind = _Kind(nodes)
            for pods in fillings[int(self.room.type_of[nodes[0]])]:
                times = min(len(nodes), *(n // k for n, k in zip(self.counts, pods, strict=True) if k))
                if not times or not bool((used[pods] >= least).all()):
                    continue
                costs = self._costs(nodes[0], pods)
                if costs is not None:
                    number = self.model.new_int_var(0, times, "")
                    kind.ways.append(_Way(pods, costs, number))
                    for i, k in enumerate(pods):
                        if k:
                            taken[i].append((number, k))
            if kind.ways:
                self.model.add(_sum((way.number, 1) for way in kind.ways) <= len(nodes))
                self._kinds.append(kind)
        for terms, wanted in zip(taken, self.counts, strict=True):
            self.model.add(_sum(terms) == wanted)

    def _all(self) -> Iterator[tuple[_Kind, _Way]]:
        return ((kind, way) for kind in self._kinds for way in kind.ways)

    def _loss(self, kind: _Kind, way: _Way) -> int:
        shapes = self.problem.shapes
        node = kind.nodes[0]
        return -sum(k * int(shapes[s].score[node]) for s, k in zip(self.room.shapes, way.pods, strict=True))

    # -- solving ------------------------------------------------------------------------------------------------------

    def _minimise(self, stage: str, terms: Sequence[Term]) -> bool:
        """Brings a sum to its least value and holds it there; whether any solution is known."""
        terms = [term for term in terms if term[1]]
        if self.values and all(c > 0 for _, c in terms) and not any(self.values[v.index] for v, _ in terms):
            for var, _ in terms:
                self.model.add(var == 0)
            return True
        self.model.clear_hints()  # type: ignore[no-untyped-call]
        for index, value in enumerate(self.values):
            self.model.add_hint(self.model.get_int_var_from_proto_index(index), value)
        if terms:
            self.model.minimize(_sum(terms))
        if terms or not self.values:
            _, values = self.budget.solve(stage, self.model, share=0.5, linearization=2)
            self.values = values or self.values
        self.model.clear_objective()  # type: ignore[no-untyped-call]
        if not self.values:
            return False
        if terms:
            self.model.add(_sum(terms) <= sum(self.values[v.index] * c for v, c in terms))
        return True

    # -- names --------------------------------------------------------------------------------------------------------

    def _named(self) -> dict[int, int]:
        """Pod by pod in rank order the naturally first node, out of those that the numbers leave."""
        left = [
            (kind.nodes, [list(way.pods) for way in kind.ways for _ in range(self.values[way.number.index])])
            for kind in self._kinds
        ]
        left = [(list(nodes), plans) for nodes, plans in left if plans]
        name = self.problem.name_rank
        for nodes, plans in left:
            # of the best scored so many as are used, in the order of names
            nodes[:] = sorted(nodes[: len(plans)], key=lambda node: int(name[node]), reverse=True)
        shape_at = {shape: i for i, shape in enumerate(self.room.shapes)}
        opened: dict[int, list[int]] = {}
        out: dict[int, int] = {}
        for rank in self.ranks:
            i = shape_at[self.problem.members[rank].shape]
            here = [node for node, plan in opened.items() if plan[i]]
            there = [(nodes, plans) for nodes, plans in left if any(plan[i] for plan in plans)]
            node = min([*here, *(nodes[-1] for nodes, _ in there)], key=lambda one: int(name[one]))
            if node not in opened:
                nodes, plans = next(one for one in there if one[0][-1] == node)
                nodes.pop()
                best = max(range(len(plans)), key=lambda at: (plans[at][i], plans[at]))
                opened[node] = plans.pop(best)
            opened[node][i] -= 1
            out[rank] = node
        return out


@dataclass(slots=True)
class _Opened:
    """A node that pods are dealt to. pods: so far; filled: per way of its kind whether it is the one, None where the
    way has too little."""

    kind: _Kind
    pods: list[int]
    filled: list[cp_model.IntVar | None]


class _Names:
    """Deals out pods in rank order, each to the naturally first node that leaves the goals before where they are.

    Untouched nodes of a kind are equal, so only the first of each is asked about; a node that has pods has a 0/1 for
    each way that may be its own.
    """

    def __init__(self, owner: Patterns, kinds: Sequence[_Kind]) -> None:
        self._owner, self.model = owner, owner.model
        name = owner.problem.name_rank
        self._untouched = [(kind, sorted(kind.nodes, key=lambda node: int(name[node]), reverse=True)) for kind in kinds]
        self._opened: dict[int, _Opened] = {}
        self._name = name

    def deal(self, ranks: Sequence[int]) -> dict[int, int]:
        """Rank -> node."""
        owner = self._owner
        shape_at = {shape: i for i, shape in enumerate(owner.room.shapes)}
        out = {}
        for rank in ranks:
            i = shape_at[owner.problem.members[rank].shape]
            while True:
                takers = sorted(self._takers(i), key=lambda taker: int(self._name[taker[0]]))
                at = next(at for at, (_, terms) in enumerate(takers) if self._value(terms))
                before = [term for _, terms in takers[:at] for term in terms]
                if not before or not self._can(before):
                    break
            node = takers[at][0]
            self._put(node, i)
            out[rank] = node
        return out

    def _takers(self, i: int) -> Iterator[tuple[int, list[Term]]]:
        """Nodes that may take a further pod of a shape, and a sum that is above 0 where one does."""
        for node, opened in self._opened.items():
            ways = zip(opened.filled, opened.kind.ways, strict=True)
            terms = [(var, 1) for var, way in ways if var is not None and way.pods[i] > opened.pods[i]]
            if terms:
                yield node, terms
        for kind, nodes in self._untouched:
            terms = [term for at, way in enumerate(kind.ways) if way.pods[i] for term in self._left(kind, at)]
            if nodes and terms:
                yield nodes[-1], terms

    def _left(self, kind: _Kind, at: int) -> list[Term]:
        """Untouched nodes that are filled in a way."""
        own = [o.filled[at] for o in self._opened.values() if o.kind is kind]
        return [(kind.ways[at].number, 1), *((var, -1) for var in own if var is not None)]

    def _value(self, terms: Sequence[Term]) -> int:
        return sum(self._owner.values[var.index] * factor for var, factor in terms)

    def _can(self, terms: Sequence[Term]) -> bool:
        """Whether a sum can be above 0; if so the current solution is one where it is, else it is 0 from now on."""
        trial = self.model.clone()
        trial.add(_sum([(trial.get_int_var_from_proto_index(v.index), c) for v, c in terms]) >= 1)
        _, values = self._owner.budget.solve("names", trial)
        if values:
            self._owner.values = list(values)
            return True
        self.model.add(_sum(terms) == 0)
        return False

    def _put(self, node: int, i: int) -> None:
        opened = self._opened.get(node)
        if opened is None:
            opened = self._open(node, i)
        opened.pods[i] += 1
        for at, way in enumerate(opened.kind.ways):
            var = opened.filled[at]
            if var is not None and way.pods[i] < opened.pods[i]:
                self.model.add(var == 0)
                opened.filled[at] = None

    def _open(self, node: int, i: int) -> _Opened:
        """Makes an untouched node one of its own. In the current solution it takes a way that has the pod."""
        kind, nodes = next((kind, nodes) for kind, nodes in self._untouched if nodes and nodes[-1] == node)
        nodes.pop()
        own = next(at for at, way in enumerate(kind.ways) if way.pods[i] and self._value(self._left(kind, at)) > 0)
        filled: list[cp_model.IntVar | None] = []
        for at in range(len(kind.ways)):
            filled.append(self.model.new_bool_var(""))
            self._owner.values.append(int(at == own))
        self.model.add_exactly_one([var for var in filled if var is not None])
        opened = self._opened[node] = _Opened(kind, [0] * len(kind.ways[0].pods), filled)
        for at in range(len(kind.ways)):
            self.model.add(_sum(self._left(kind, at)) >= 0)
        return opened


def _sum(terms: Iterator[Term] | Sequence[Term]) -> cp_model.LinearExprT:
    terms = list(terms)
    return cp_model.LinearExpr.weighted_sum([v for v, _ in terms], [c for _, c in terms])
