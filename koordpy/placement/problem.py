"""The placement problem of one unit as plain numbers: the input and the result of every placement method.

Source: gang-network.md sections 2.4-2.7, 4 and 5. A unit is a GangGroup or one plain pod. The problem contains no pod
specs: pods of one shape are equal, and filters have become capacities. Counting, the solver and plain enumeration (in
tests) all take a Problem and return a Solution, so that their results can be compared goal by goal.
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
    """Equivalence class of pods: every filter and score treats them alike."""

    request: tuple[tuple[int, int], ...]
    """(column of `free`, amount) with amount > 0; column 0 counts pods, one each."""
    allowed: Ints
    """[nodes] 1 where every filter passes that does not depend on free capacity, else 0."""
    score: Ints
    """[nodes] weighted total, larger is better; compared between goals 5 and 6."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member of the unit; its rank is its position in Problem.members."""

    gang: int
    """Index into Problem.needs."""
    shape: int
    """Index into Problem.shapes."""
    node: int | None = None
    """Node that it is bound to; None while it is pending; -1 if its node is not in the snapshot (a member, but in no
    domain)."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """Limit of a quota for the unit and one resource."""

    room: int
    """Remaining amount, 0 or more."""
    amounts: tuple[int, ...]
    """Request of a pod of each shape."""


Vector = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Devices:
    """A ByCount that depends only on numbers of devices.

    Its vector is (nodes used by pods with two or more devices, devices left free on the nodes used, pods that request
    two or more).
    """

    asks: tuple[int, ...]
    """Devices per pod of each shape."""
    free: Ints
    """[nodes] free devices."""


@dataclass(frozen=True, eq=False)
class ByCount:
    """A cost vector per node that depends on the number of pods of each shape there and is not a sum over the pods.

    The vectors of all nodes are added up, including nodes without a new pod; the lexicographically least sum is best.
    """

    kinds: Ints
    """[nodes] number of a node's kind; nodes of one kind have equal costs."""
    cost: Callable[[int, tuple[int, ...]], Vector | None]
    """(kind, pods per shape) -> vector of `width` numbers of 0 or more; None if the node cannot take these pods."""
    width: int
    active: tuple[int, ...] = (0,)
    """Shapes for which the number of pods matters; of the other shapes only their presence on the node matters."""
    always: bool = False
    """True if every number of pods within the capacity has a vector."""
    exact: Callable[[], bool] = lambda: True
    """Returns True if all vectors computed so far are proven the least."""
    devices: Devices | None = None
    """Numbers of devices, if the vector depends only on these; else None."""

    def added(self, node: int, pods: Sequence[int]) -> Vector | None:
        """Returns the cost that a node adds with these pods of each shape, relative to none.

        None if it cannot take them.
        """
        kind = int(self.kinds[node])
        vector, idle = self.cost(kind, tuple(pods)), self.cost(kind, (0,) * len(pods))
        if vector is None or idle is None:
            return None
        return tuple(a - b for a, b in zip(vector, idle, strict=True))


@dataclass(frozen=True, slots=True)
class Sizes:
    """Problem sizes at which another method is used (defaults in `limits`); tests force a method with other sizes."""

    model_nodes: int = MODEL_NODES
    class_fillings: int = CLASS_FILLINGS
    model_pods: int = MODEL_PODS
    named_variables: int = NAMED_VARIABLES


@dataclass(frozen=True, eq=False)
class Problem:
    """One unit on one snapshot.

    Goals without a gather goal, in this order: members, fewest pods on scarce nodes, fewest nodes, largest total score,
    fewest slots on the nodes used, then for the pods in rank order the naturally smallest node names (name_rank). Bound
    siblings and pipeline (PP) groups are ignored then.
    """

    tree: Tree
    free: Ints
    """[nodes, resources] free capacity before any member is placed, use of bound members subtracted; may be
    negative."""
    shapes: tuple[Shape, ...]
    members: tuple[Member, ...]
    needs: tuple[int, ...]
    """Per gang, pending members that a plan must place (2.4)."""
    attract: Ints
    """[nodes] pods that are bound members or have the network-topology-selector value of a planned pod (goal 2)."""
    name_rank: Ints
    """[nodes] position in the natural order of names."""
    gather: bool = True
    """True with a gather goal; without one there are no hard layer and no multiples."""
    hard: int = 0
    """Deepest level with MustGather, 0 without one; a hard layer implies every layer above."""
    multiples: Mapping[int, int] = field(default_factory=dict)
    """Level -> podCountMultiple k > 1."""
    pipeline: int = 1
    """Pods per pipeline (PP) group, 1 without groups."""
    deterministic_time: float = 2.0
    """Limit of all solves together, in CP-SAT's units."""
    watchdog_seconds: float = 10.0
    """Limit of wall time for one solve."""
    interactions: tuple[Interaction, ...] = ()
    """Affinity, anti-affinity, spread and one-domain rules among the planned pods, checked on the final placement."""
    allowances: tuple[Allowance, ...] = ()
    """Limits on the total request of the planned pods, independent of their nodes."""
    by_count: ByCount | None = None
    """An additional goal: before the score with a gather goal, else after the fewest nodes."""
    standing: Ints | None = None
    """[nodes] 1 for nodes that count as used without a new pod if there is no gather goal (gpu-topology.md 5 (b))."""
    scarce: Ints | None = None
    """[nodes] 1 for nodes that pods of the unit avoid (kube-parity.md 3); None without such nodes, and with a gather
    goal."""
    alone: tuple[Ints, ...] = ()
    """Per shape [nodes] copies of one pod that ports, spread and (anti-)affinity admit there one after the other; empty
    if no shape has such rules."""
    copies: tuple[Ints, ...] = ()
    """copies_of the whole problem if this problem is a part of it; else empty."""
    sizes: Sizes = Sizes()

    @cached_property
    def pending(self) -> tuple[int, ...]:
        """Ranks of the pending members."""
        return tuple(rank for rank, member in enumerate(self.members) if member.node is None)

    @cached_property
    def wanted(self) -> Mapping[int, int]:
        """Shape -> number of its pending members."""
        return Counter(self.members[rank].shape for rank in self.pending)

    @cached_property
    def asked(self) -> Mapping[int, int]:
        """Column of `free` -> total request of all pending members."""
        out = Counter[int]()
        for shape, number in self.wanted.items():
            out.update({column: number * amount for column, amount in self.shapes[shape].request})
        return out

    @cached_property
    def bound(self) -> Mapping[int, int]:
        """Rank -> node of each bound member with a node in the snapshot."""
        nodes = ((rank, member.node) for rank, member in enumerate(self.members))
        return {rank: node for rank, node in nodes if node is not None and node >= 0}

    @cached_property
    def bound_counts(self) -> Ints:
        """[nodes] number of bound members."""
        nodes = np.fromiter(self.bound.values(), dtype=np.int64, count=len(self.bound))
        return np.bincount(nodes, minlength=len(self.free)).astype(np.int64)

    @cached_property
    def slots_of(self) -> tuple[Ints, ...]:
        """Per shape: [nodes] further pods that fit the free capacity, not limited by the size of the unit.

        An upper bound for every search: interactions may admit fewer, depending on the nodes of the other members.
        """
        return tuple(slots(self.free, shape) for shape in self.shapes)

    @cached_property
    def copies_of(self) -> tuple[Ints, ...]:
        """Slots as section 5 counts them, per shape: [nodes] further copies of one pod that fit one after the other."""
        if self.copies:
            return self.copies
        if not self.alone:
            return self.slots_of
        return tuple(np.minimum(room, own) for room, own in zip(self.slots_of, self.alone, strict=True))

    @cached_property
    def core_size(self) -> int:
        """Number of pods that a plan must place: the sum of the needs, at least one."""
        return max(1, sum(self.needs))

    def allowed(self, ranks: Iterable[int]) -> bool:
        """Returns True if every allowance has enough left for the given members."""
        shapes = [self.members[rank].shape for rank in ranks] if self.allowances else []
        return all(sum(one.amounts[shape] for shape in shapes) <= one.room for one in self.allowances)

    def most_of(self, shape: int) -> int:
        """Returns how many pods of one shape alone the allowances admit; at most the number of pending members."""
        return min(
            [len(self.pending), *(one.room // one.amounts[shape] for one in self.allowances if one.amounts[shape])]
        )

    def reference(self, ranks: tuple[int, ...] | None = None) -> int:
        """Returns the reference shape of the given members: fewest slots in the cluster, ties by lowest rank.

        ranks: None for all pending members.
        """
        shapes = [self.members[rank].shape for rank in (self.pending if ranks is None else ranks)]
        return min(dict.fromkeys(shapes), key=lambda shape: int(self.copies_of[shape].sum()), default=0)


def slots(free: Ints, shape: Shape) -> Ints:
    """Returns [nodes] how many further pods of a shape fit on each node."""
    room = None
    for column, amount in shape.request:
        fits = np.floor_divide(free[:, column], amount)
        room = fits if room is None else np.minimum(room, fits)
    if room is None:
        raise ValueError("a shape must request at least one pod")
    return np.asarray(np.maximum(room, 0) * shape.allowed, dtype=np.int64)


def hard_regions(problem: Problem) -> list[tuple[int, int]]:
    """Returns the (level, domain) pairs of the hard layer that may contain the unit; the cluster without a hard layer.

    With bound members it is their domain alone; empty if bound members are in several domains.
    """
    level = problem.hard
    domains = {int(problem.tree.domain_of[level, n]) for n in problem.bound.values()}
    if len(domains) > 1:
        return []
    return [(level, d) for d in (domains or range(len(problem.tree.levels[level])))]


def only_ranks(problem: Problem, ranks: Collection[int]) -> Problem:
    """Returns the problem with only these pending members. The other pending members stay members, but have no node."""
    kept = frozenset(ranks)
    if kept.issuperset(problem.pending):
        return problem
    members = tuple(
        replace(member, node=-1) if member.node is None and rank not in kept else member
        for rank, member in enumerate(problem.members)
    )
    return replace(problem, members=members)


def with_column(problem: Problem, room: Ints, asks: Mapping[int, int]) -> Problem:
    """Returns the problem with one more resource. room: [nodes] free amount of it; asks: shape -> request of a pod."""
    column = problem.free.shape[1]
    shapes = tuple(
        replace(shape, request=(*shape.request, (column, asks[i]))) if asks.get(i) else shape
        for i, shape in enumerate(problem.shapes)
    )
    return replace(problem, free=np.concatenate([problem.free, room[:, None]], axis=1), shapes=shapes)


def at_most(problem: Problem, most: Mapping[int, Mapping[int, int]]) -> Problem:
    """Returns the problem with a limit on pods of a shape per node: shape -> node -> pods.

    The limit is 0 on nodes that are not listed. Shapes that are not listed have no limit.
    """
    for shape, nodes in most.items():
        room = np.zeros(len(problem.free), dtype=np.int64)
        room[list(nodes)] = list(nodes.values())
        problem = with_column(problem, room, {shape: 1})
    return problem


@dataclass(frozen=True, slots=True)
class Solution:
    """Answer to a Problem."""

    nodes: Mapping[int, int]
    """Rank -> node of every newly placed member; empty if there is no plan."""
    proof: Proof
    runs: tuple[SolverRun, ...] = ()

    @property
    def placed(self) -> bool:
        return bool(self.nodes)
