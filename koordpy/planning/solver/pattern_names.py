"""Which of equal nodes it is to be: names, where a model counts nodes of a kind together (`patterns`).

Source: gang-network.md section 4, "No gather goal": pod by pod in rank order the naturally first node that leaves the
goals before where they are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from koordpy.planning.placement.problem import Ints
from koordpy.planning.plan import NAMES
from koordpy.planning.solver.cpsat import cp_model
from koordpy.planning.solver.staged import StagedModel, Term, linear


@dataclass(slots=True)
class NodePattern:
    """Nodes of one kind that take the same. pods: per shape (position in Room); costs: what a node adds to the vector
    of the ByCount, against none."""

    pods: tuple[int, ...]
    costs: tuple[int, ...]
    number: cp_model.IntVar


@dataclass(slots=True)
class NodeKind:
    """Nodes that are alike, in the order in which they are taken."""

    nodes: list[int]
    ways: list[NodePattern] = field(default_factory=list)


@dataclass(slots=True)
class _Opened:
    """A node that pods are dealt to. pods: so far; filled: per way of its kind whether it is the one, None where the
    way has too little."""

    kind: NodeKind
    pods: list[int]
    filled: list[cp_model.IntVar | None]


class PatternNames:
    """Deals out pods in rank order, each to the naturally first node that leaves the goals before where they are.

    Untouched nodes of a kind are equal, so only the first of each is asked about; a node that has pods has a 0/1 for
    each way that may be its own.
    """

    def __init__(self, model: StagedModel, kinds: Sequence[NodeKind], name_rank: Ints) -> None:
        """model: with a solution, all goals before the names held; name_rank: [nodes] place in the order of names."""
        self._staged, self.model, self._kinds = model, model.model, kinds
        self._name = name_rank
        self._untouched = [(kind, self._by_name(kind.nodes)) for kind in kinds]
        self._opened: dict[int, _Opened] = {}

    def _by_name(self, nodes: Sequence[int]) -> list[int]:
        """The first last, to be taken off."""
        return sorted(nodes, key=lambda node: int(self._name[node]), reverse=True)

    def deal(self, shapes: Sequence[int]) -> list[int]:
        """The node of each pod, pods by their shapes (positions in Room) in rank order."""
        out = []
        for i in shapes:
            while True:
                takers = sorted(self._takers(i), key=lambda taker: int(self._name[taker[0]]))
                at = next(at for at, (_, terms) in enumerate(takers) if self._staged.value(terms))
                before = [term for _, terms in takers[:at] for term in terms]
                if not before or not self._can(before):
                    break
            out.append(takers[at][0])
            self._put(out[-1], i)
        return out

    def deal_as_found(self, shapes: Sequence[int]) -> list[int]:
        """The same without a question: the naturally first node that the current solution leaves, of the first nodes of
        each kind so many as are used."""
        left = []
        for kind in self._kinds:
            plans = [list(way.pods) for way in kind.ways for _ in range(self._staged.value([(way.number, 1)]))]
            left.append((self._by_name(kind.nodes[: len(plans)]), plans))
        opened: dict[int, list[int]] = {}
        out = []
        for i in shapes:
            here = [node for node, plan in opened.items() if plan[i]]
            there = [(nodes, plans) for nodes, plans in left if any(plan[i] for plan in plans)]
            node = min([*here, *(nodes[-1] for nodes, _ in there)], key=lambda one: int(self._name[one]))
            if node not in opened:
                nodes, plans = next(one for one in there if one[0][-1] == node)
                nodes.pop()
                opened[node] = plans.pop(max(range(len(plans)), key=lambda at: (plans[at][i], plans[at])))
            opened[node][i] -= 1
            out.append(node)
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

    def _left(self, kind: NodeKind, at: int) -> list[Term]:
        """Untouched nodes that are filled in a way."""
        own = [o.filled[at] for o in self._opened.values() if o.kind is kind]
        return [(kind.ways[at].number, 1), *((var, -1) for var in own if var is not None)]

    def _can(self, terms: Sequence[Term]) -> bool:
        """Whether a sum can be above 0; if so the current solution is one where it is, else it is 0 from now on."""
        trial = self.model.clone()
        trial.add(linear([(trial.get_int_var_from_proto_index(v.index), c) for v, c in terms]) >= 1)
        _, values = self._staged.budget.solve(NAMES, trial)
        if values:
            self._staged.values = values
            return True
        self.model.add(linear(terms) == 0)
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
        own = next(
            at for at, way in enumerate(kind.ways) if way.pods[i] and self._staged.value(self._left(kind, at)) > 0
        )
        filled: list[cp_model.IntVar | None] = []
        for at in range(len(kind.ways)):
            filled.append(self.model.new_bool_var(""))
            self._staged.values.append(int(at == own))
        self.model.add_exactly_one([var for var in filled if var is not None])
        opened = self._opened[node] = _Opened(kind, [0] * len(kind.ways[0].pods), filled)
        for at in range(len(kind.ways)):
            self.model.add(linear(self._left(kind, at)) >= 0)
        return opened
