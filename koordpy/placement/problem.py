"""The placement problem of one unit as plain numbers: what every method of solving it gets, and what it answers.

Source: gang-network.md sections 2.4-2.7, 4 and 5. A unit is a GangGroup (or one plain pod). The problem knows nothing
of specs: pods of equal shape are one kind, filters have become capacities. Exact methods (the counting shortcut, the
solver, plain enumeration in tests) all take this and give a Solution, so that they can be compared goal by goal.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from koordpy.placement.member_interactions import Interaction
from koordpy.plan.limits import CLASS_FILLINGS, MODEL_NODES, MODEL_PODS, NAMED_VARIABLES
from koordpy.plan.round_plan import Proof, SolverRun
from koordpy.topology.topology_tree import Tree

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Shape:
    """Pods that every filter and score treats alike.

    request: (column of `free`, amount) with amount > 0, column 0 = one pod. allowed: [nodes] 1 where every filter that
    does not depend on room passes. score: [nodes] weighted total, larger is better; compared between goals 5 and 6.
    """

    request: tuple[tuple[int, int], ...]
    allowed: Ints
    score: Ints


@dataclass(frozen=True, slots=True)
class Member:
    """One member of the unit; its rank is its position in Problem.members.

    gang: index into Problem.needs. shape: index into Problem.shapes. node: where it is bound, None while pending;
    -1 = bound to a node that is gone (a member, but in no domain).
    """

    gang: int
    shape: int
    node: int | None = None


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a quota leaves the unit of one resource, 0 or more; amounts: what a pod of each shape takes of it."""

    room: int
    amounts: tuple[int, ...]


Vector = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Devices:
    """A ByCount of which only numbers are known: its vector is (nodes that give two devices and more, devices left on
    the nodes used, pods that ask for two and more). asks: devices per pod of each shape; free: [nodes] devices."""

    asks: tuple[int, ...]
    free: Ints


@dataclass(frozen=True, eq=False)
class ByCount:
    """A cost vector per node that depends on the number of pods of each shape there, and is no sum over the pods.

    kinds: [nodes] number of a node's kind; nodes of one kind cost alike. cost: (kind, pods per shape) -> vector of
    `width` numbers, none negative, None where the node cannot take them so. The vectors of all nodes add up, also of
    those that take none, and the sum that is lexicographically least is best. active: shapes whose number matters; of
    the others only whether any stands on the node. always: whether there is a vector wherever there is room. exact:
    whether all vectors asked for so far are proven the least. devices: where numbers of devices tell
    the vector.
    """

    kinds: Ints
    cost: Callable[[int, tuple[int, ...]], Vector | None]
    width: int
    active: tuple[int, ...] = (0,)
    always: bool = False
    exact: Callable[[], bool] = lambda: True
    devices: Devices | None = None

    def added(self, node: int, pods: Sequence[int]) -> Vector | None:
        """What a node adds with so many pods of each shape, against none; None where it cannot take them so."""
        kind = int(self.kinds[node])
        vector, idle = self.cost(kind, tuple(pods)), self.cost(kind, (0,) * len(pods))
        if vector is None or idle is None:
            return None
        return tuple(a - b for a, b in zip(vector, idle, strict=True))


@dataclass(frozen=True, slots=True)
class Sizes:
    """From which sizes on another method is taken (`limits`); others force a method."""

    model_nodes: int = MODEL_NODES
    class_fillings: int = CLASS_FILLINGS
    model_pods: int = MODEL_PODS
    named_variables: int = NAMED_VARIABLES


@dataclass(frozen=True, eq=False)
class Problem:
    """One unit on one snapshot.

    free: [nodes, resources] room before any member is placed, bound members' use taken off already; may be negative.
    needs: per gang, pending members that a plan must place (2.4). hard: deepest level with MustGather, 0 for none (a
    hard layer implies every layer above). multiples: level -> k > 1. pipeline: PP group size, 1 for none.
    attract: [nodes] pods that are bound members or carry a planned pod's network-topology-selector (goal 2).
    gather: whether a gather goal exists; without one there are no hard layer and no multiples, and the order is:
    members, fewest pods on scarce nodes, fewest nodes, largest total score, fewest slots on the nodes used, then for
    the pods in rank order the naturally smallest node names (name_rank); bound siblings and PP play no part.
    interactions: what the planned pods ask of each other's places in the end.
    allowances: what the planned pods may take together, wherever they stand.
    by_count: one goal more: before the score with a gather goal, else after the fewest nodes. standing: [nodes] nodes
    that count as used without any new pod where there is no gather goal (gpu-topology.md 5 (b)). scarce: [nodes] 1
    where pods of the unit prefer not to stand (kube-parity.md 3); None without such nodes, and with a gather goal.
    alone: per shape [nodes] copies of one pod that ports, spread and (anti-)affinity let there one after the other;
    empty where no shape has such rules.
    copies: copies_of the problem that this one is a part of; empty where it is no part.
    """

    tree: Tree
    free: Ints
    shapes: tuple[Shape, ...]
    members: tuple[Member, ...]
    needs: tuple[int, ...]
    attract: Ints
    name_rank: Ints
    gather: bool = True
    hard: int = 0
    multiples: Mapping[int, int] = field(default_factory=dict)
    pipeline: int = 1
    deterministic_time: float = 2.0
    watchdog_seconds: float = 10.0
    interactions: tuple[Interaction, ...] = ()
    allowances: tuple[Allowance, ...] = ()
    by_count: ByCount | None = None
    standing: Ints | None = None
    scarce: Ints | None = None
    alone: tuple[Ints, ...] = ()
    copies: tuple[Ints, ...] = ()
    sizes: Sizes = Sizes()

    @cached_property
    def pending(self) -> tuple[int, ...]:
        """Ranks of the pending members."""
        return tuple(rank for rank, member in enumerate(self.members) if member.node is None)

    @cached_property
    def wanted(self) -> Mapping[int, int]:
        """Shape -> pending members of it."""
        return Counter(self.members[rank].shape for rank in self.pending)

    @cached_property
    def asked(self) -> Mapping[int, int]:
        """Column of `free` -> what all pending members take of it."""
        out = Counter[int]()
        for shape, number in self.wanted.items():
            out.update({column: number * amount for column, amount in self.shapes[shape].request})
        return out

    @cached_property
    def bound(self) -> Mapping[int, int]:
        """Rank -> node of the bound members whose node is there."""
        nodes = ((rank, member.node) for rank, member in enumerate(self.members))
        return {rank: node for rank, node in nodes if node is not None and node >= 0}

    @cached_property
    def bound_counts(self) -> Ints:
        """[nodes] bound members."""
        nodes = np.fromiter(self.bound.values(), dtype=np.int64, count=len(self.bound))
        return np.bincount(nodes, minlength=len(self.free)).astype(np.int64)

    @cached_property
    def slots_of(self) -> tuple[Ints, ...]:
        """Per shape: [nodes] further pods that there is room for; not capped by the unit's size. What interactions let
        there depends on where the others stand, so this is the bound of every search."""
        return tuple(slots(self.free, shape) for shape in self.shapes)

    @cached_property
    def copies_of(self) -> tuple[Ints, ...]:
        """The slots of section 5, per shape: [nodes] further copies that fit, alone, one after the other."""
        if self.copies:
            return self.copies
        if not self.alone:
            return self.slots_of
        return tuple(np.minimum(room, own) for room, own in zip(self.slots_of, self.alone, strict=True))

    @cached_property
    def core_size(self) -> int:
        """Pods one plan must place: the sum of the needs, at least one."""
        return max(1, sum(self.needs))

    def allowed(self, ranks: Iterable[int]) -> bool:
        """Whether every allowance has room for the given members."""
        shapes = [self.members[rank].shape for rank in ranks] if self.allowances else []
        return all(sum(one.amounts[shape] for shape in shapes) <= one.room for one in self.allowances)

    def most_of(self, shape: int) -> int:
        """Pods of one shape, and of no other, that the allowances take; at most the pending members."""
        return min(
            [len(self.pending), *(one.room // one.amounts[shape] for one in self.allowances if one.amounts[shape])]
        )

    def reference(self, ranks: tuple[int, ...] | None = None) -> int:
        """Reference shape of the given (default: pending) members: fewest slots in the cluster, ties lowest rank."""
        shapes = [self.members[rank].shape for rank in (self.pending if ranks is None else ranks)]
        return min(dict.fromkeys(shapes), key=lambda shape: int(self.copies_of[shape].sum()), default=0)


def slots(free: Ints, shape: Shape) -> Ints:
    """[nodes] how many further pods of a shape fit on each node."""
    room = None
    for column, amount in shape.request:
        fits = np.floor_divide(free[:, column], amount)
        room = fits if room is None else np.minimum(room, fits)
    if room is None:
        raise ValueError("a shape asks for one pod at least")
    return np.asarray(np.maximum(room, 0) * shape.allowed, dtype=np.int64)


def hard_regions(problem: Problem) -> list[tuple[int, int]]:
    """The domains of the hard layer (the cluster without one) that may hold the unit, bound members looked at."""
    level = problem.hard
    domains = {int(problem.tree.domain_of[level, n]) for n in problem.bound.values()}
    if len(domains) > 1:
        return []
    return [(level, d) for d in (domains or range(len(problem.tree.levels[level])))]


def only_ranks(problem: Problem, ranks: Collection[int]) -> Problem:
    """The same with no other pending members than these: the rest are members that stand nowhere."""
    kept = frozenset(ranks)
    if kept.issuperset(problem.pending):
        return problem
    members = tuple(
        replace(member, node=-1) if member.node is None and rank not in kept else member
        for rank, member in enumerate(problem.members)
    )
    return replace(problem, members=members)


def with_column(problem: Problem, room: Ints, asks: Mapping[int, int]) -> Problem:
    """The same with one resource more. room: [nodes] what there is of it; asks: shape -> what a pod takes."""
    column = problem.free.shape[1]
    shapes = tuple(
        replace(shape, request=(*shape.request, (column, asks[i]))) if asks.get(i) else shape
        for i, shape in enumerate(problem.shapes)
    )
    return replace(problem, free=np.concatenate([problem.free, room[:, None]], axis=1), shapes=shapes)


def at_most(problem: Problem, most: Mapping[int, Mapping[int, int]]) -> Problem:
    """The same with no more pods of a shape on a node than said: shape -> node -> pods, none elsewhere. Shapes that are
    not named are left as they are."""
    for shape, nodes in most.items():
        room = np.zeros(len(problem.free), dtype=np.int64)
        room[list(nodes)] = list(nodes.values())
        problem = with_column(problem, room, {shape: 1})
    return problem


@dataclass(frozen=True, slots=True)
class Solution:
    """Answer to a Problem. nodes: rank -> node of every newly placed member; empty where there is no plan."""

    nodes: Mapping[int, int]
    proof: Proof
    runs: tuple[SolverRun, ...] = ()

    @property
    def placed(self) -> bool:
        return bool(self.nodes)
