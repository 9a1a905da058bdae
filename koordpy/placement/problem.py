# SPDX-License-Identifier: Apache-2.0
"""The placement problem of one unit: the input of every placement method; a `Solution` is the result.

The problem contains plain numbers only: no pod specs, labels or node objects. Pods of one shape are equal. The filters
of kube-scheduler have become capacities (`free`) and masks (`Shape.allowed`). Counting, the solver, and the enumeration
in the tests all solve a `Problem`, so that their results can be compared goal by goal.

Words used here: a *node* is an index into the nodes of the tree, a *rank* an index into `Problem.members`, a *shape* an
index into `Problem.shapes`, a *column* an index of a resource in `free`. A *level* is a layer of the tree as a number:
level 0 is the cluster, level `tree.depth` the nodes. Source: docs/rules/gang-network.md 2.4 to 2.7, 4 and 5.
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
    """Equivalence class of pods: each filter and each score gives the same result for all pods of the class."""

    request: tuple[tuple[int, int], ...]
    """((column of `Problem.free`, amount of one pod), ...) with amounts above 0. Column 0 counts pods, so its amount is
    1."""
    allowed: Ints
    """[nodes] 1 if all filters that do not depend on free capacity pass, else 0."""
    score: Ints
    """[nodes] weighted sum of the scores of a pod on the node; larger is better.

    With a gather goal it is compared after goal 5 and before goal 6.
    """


@dataclass(frozen=True, slots=True)
class Member:
    """One member of the unit; its rank is its position in Problem.members."""

    gang: int
    """Index into Problem.needs."""
    shape: int
    """Index into Problem.shapes."""
    node: int | None = None
    """Node to which the member is bound; None while it is pending.

    -1 for a member that is neither on a known node nor to be placed: its node is missing in the snapshot, or
    `only_ranks` has left the member out. Such a member keeps its rank, but is in no domain.
    """


@dataclass(frozen=True, slots=True)
class Allowance:
    """The amount of one resource that a quota still admits for the unit, whatever the nodes of its pods are."""

    remaining: int
    """Remaining amount, 0 or more."""
    amounts: tuple[int, ...]
    """[shapes] the amount that one pod requests."""


Vector = tuple[int, ...]
"""Cost of one node: numbers of 0 or more, compared lexicographically; smaller is better."""


@dataclass(frozen=True, eq=False)
class Devices:
    """Numbers of devices from which a model can compute the vector of `DeviceCosts` without calling `DeviceCosts.cost`.

    The vector is then (number of nodes on which the new pods use two or more devices, devices left free on the nodes
    with new pods, number of pods that request two or more devices).
    """

    asks: tuple[int, ...]
    """[shapes] the devices that one pod requests."""
    free: Ints
    """[nodes] free devices."""


@dataclass(frozen=True, eq=False)
class DeviceCosts:
    """The device goal: a cost vector for each node, which depends on the number of pods of each shape on it.

    Two GPU pods on a node may cost more or less than twice one pod, because they compete for the best sets of GPUs. So
    the cost is not a sum over pods. The vectors of all nodes are added up, including nodes without a new pod; the
    lexicographically least sum is best.
    """

    kinds: Ints
    """[nodes] number of a node's kind; nodes of one kind have equal costs."""
    cost: Callable[[int, tuple[int, ...]], Vector | None]
    """Called with (kind, pods per shape): returns a vector of `width` numbers of 0 or more; None if the node cannot
    take these pods."""
    width: int
    """Length of every vector."""
    active: tuple[int, ...] = (0,)
    """Shapes that change the vector by their number of pods. Of each other shape, only its presence on the node
    matters."""
    always: bool = False
    """True if `cost` is never None for pods that fit the free capacity, so that it forbids no placement."""
    exact: Callable[[], bool] = lambda: True
    """Returns True if all vectors computed so far are proven to be the least possible."""
    devices: Devices | None = None
    """Numbers of devices, if the vector depends on nothing else; else None."""

    def added(self, node: int, pods: Sequence[int]) -> Vector | None:
        """Returns the cost of a node with new pods minus its cost without new pods; a component may be negative.

        pods: number of new pods per shape. None if the node cannot take these pods.
        """
        kind = int(self.kinds[node])
        vector, idle = self.cost(kind, tuple(pods)), self.cost(kind, (0,) * len(pods))
        if vector is None or idle is None:
            return None
        return tuple(a - b for a, b in zip(vector, idle, strict=True))


@dataclass(frozen=True, slots=True)
class Sizes:
    """Problem sizes above which another method or a partial model is used. `plan.limits` explains each of them.

    They are fields of the problem, so that tests can force a method on a small problem.
    """

    model_nodes: int = MODEL_NODES
    class_fillings: int = CLASS_FILLINGS
    model_pods: int = MODEL_PODS
    named_variables: int = NAMED_VARIABLES


@dataclass(frozen=True, eq=False)
class Problem:
    """The placement problem of one unit on one snapshot.

    With a gather goal, placements are compared by goals 0 to 7 (`goals.Goals`). Without a gather goal the order is:
    members, fewest pods on scarce nodes, fewest nodes, least device costs, largest total score, fewest slots on the
    nodes used, then for the pods in rank order the naturally smallest node names. Without a gather goal, distance in
    the network does not matter, so running members and pipeline groups are ignored.
    """

    tree: Tree
    free: Ints
    """[nodes, resources] free capacity before any pending member is placed.

    The requests of running pods are subtracted, including bound members. Negative on an overcommitted node.
    """
    shapes: tuple[Shape, ...]
    members: tuple[Member, ...]
    """All members of the unit in rank order, bound and pending."""
    needs: tuple[int, ...]
    """[gangs] the number of pending members that a plan must place (gang-network.md 2.4)."""
    attract: Ints
    """[nodes] number of running pods that attract the unit (goal 2).

    These are bound members, and pods with the network-topology-selector of a planned pod.
    """
    name_rank: Ints
    """[nodes] position in the natural order of node names."""
    gather: bool = True
    """True with a gather goal. Without one, the problem has no hard layer and no multiples."""
    hard: int = 0
    """Deepest level with MustGather: all bound and new members must be in one domain of it. 0 (the cluster) without
    MustGather."""
    multiples: Mapping[int, int] = field(default_factory=dict)
    """Level -> podCountMultiple k > 1: each domain of the level must have a multiple of k members, bound and new."""
    pipeline: int = 1
    """Members per pipeline group; 1 without pipeline groups."""
    deterministic_time: float = 2.0
    """Limit of all solves together, in CP-SAT's units of deterministic time."""
    watchdog_seconds: float = 10.0
    """Limit of wall time in seconds for one solve, for work that the deterministic clock does not count."""
    interactions: tuple[Interaction, ...] = ()
    """Affinity, anti-affinity, spread and one-domain rules among the planned pods, checked on the final placement."""
    allowances: tuple[Allowance, ...] = ()
    """Limits on the total request of the planned pods, independent of their nodes."""
    device_costs: DeviceCosts | None = None
    """The device goal, which is compared directly before the score; None without device costs."""
    already_used: Ints | None = None
    """[nodes] 1 for a node that the goal "fewest nodes" counts as used even without a new pod (gpu-topology.md 5 (b)).

    None without such nodes. Only without a gather goal.
    """
    scarce: Ints | None = None
    """[nodes] 1 for a node with a scarce resource, which pods that do not request it should avoid (kube-parity.md 3).

    None if there are no such nodes, and with a gather goal.
    """
    copies_by_rules: tuple[Ints, ...] = ()
    """[shapes][nodes] number of copies of one pod that host ports, spread and (anti-)affinity admit on the node, if
    only copies of this pod are placed, one after the other. Empty if no shape has such rules."""
    copies: tuple[Ints, ...] = ()
    """`copies_of` of the original problem, if this problem was derived from a larger one; else empty."""
    sizes: Sizes = Sizes()

    @cached_property
    def pending(self) -> tuple[int, ...]:
        """Ranks of the pending members."""
        return tuple(rank for rank, member in enumerate(self.members) if member.node is None)

    @cached_property
    def pending_counts(self) -> Mapping[int, int]:
        """Shape -> number of its pending members."""
        return Counter(self.members[rank].shape for rank in self.pending)

    @cached_property
    def total_demand(self) -> Mapping[int, int]:
        """Total demand: column of `free` -> sum of the requests of all pending members."""
        out = Counter[int]()
        for shape, number in self.pending_counts.items():
            out.update({column: number * amount for column, amount in self.shapes[shape].request})
        return out

    @cached_property
    def bound(self) -> Mapping[int, int]:
        """Rank -> node of each bound member with a node in the snapshot."""
        nodes = ((rank, member.node) for rank, member in enumerate(self.members))
        return {rank: node for rank, node in nodes if node is not None and node >= 0}

    @cached_property
    def bound_counts(self) -> Ints:
        """[nodes] number of bound members of the unit on the node."""
        nodes = np.fromiter(self.bound.values(), dtype=np.int64, count=len(self.bound))
        return np.bincount(nodes, minlength=len(self.free)).astype(np.int64)

    @cached_property
    def slots_of(self) -> tuple[Ints, ...]:
        """[shapes][nodes] number of further pods that fit the free capacity, not limited by the size of the unit.

        An upper bound for every search: interactions may admit fewer pods, depending on the nodes of the other members.
        """
        return tuple(slots(self.free, shape) for shape in self.shapes)

    @cached_property
    def copies_of(self) -> tuple[Ints, ...]:
        """[shapes][nodes] slots as the goals count them (gang-network.md 5): copies of one pod that fit one after the
        other.

        Unlike `slots_of`, host ports, spread and (anti-)affinity of the pod towards its copies are respected.
        """
        if self.copies:
            return self.copies
        if not self.copies_by_rules:
            return self.slots_of
        return tuple(np.minimum(room, own) for room, own in zip(self.slots_of, self.copies_by_rules, strict=True))

    @cached_property
    def core_size(self) -> int:
        """Number of pods that a plan must place: the sum of `needs`, but at least one."""
        return max(1, sum(self.needs))

    def allowed(self, ranks: Iterable[int]) -> bool:
        """Returns True if the total request of the given members is within every allowance."""
        shapes = [self.members[rank].shape for rank in ranks] if self.allowances else []
        return all(sum(one.amounts[shape] for shape in shapes) <= one.remaining for one in self.allowances)

    def most_of(self, shape: int) -> int:
        """Returns the number of pods that the allowances admit if all are of one shape; at most its pending members."""
        return min(
            [len(self.pending), *(one.remaining // one.amounts[shape] for one in self.allowances if one.amounts[shape])]
        )

    def reference(self, ranks: tuple[int, ...] | None = None) -> int:
        """Returns the reference shape of the given members: the shape with the fewest slots in the cluster.

        If several shapes have equally few slots, it is the shape of the lowest rank. ranks: None for all pending
        members.
        """
        shapes = [self.members[rank].shape for rank in (self.pending if ranks is None else ranks)]
        return min(dict.fromkeys(shapes), key=lambda shape: int(self.copies_of[shape].sum()), default=0)


def slots(free: Ints, shape: Shape) -> Ints:
    """Returns [nodes] how many pods of a shape fit the free capacity of the node; 0 if they are not allowed
    there."""
    room = None
    for column, amount in shape.request:
        fits = np.floor_divide(free[:, column], amount)
        room = fits if room is None else np.minimum(room, fits)
    if room is None:
        raise ValueError("a shape must request at least one pod")
    return np.asarray(np.maximum(room, 0) * shape.allowed, dtype=np.int64)


def hard_regions(problem: Problem) -> list[tuple[int, int]]:
    """Returns the (level, domain) pairs of the hard layer in which the unit may be placed.

    Without a hard layer, it is only the cluster. With bound members, it is only the domain that contains them. Empty if
    bound members are in several domains, because then no placement satisfies MustGather.
    """
    level = problem.hard
    domains = {int(problem.tree.domain_of[level, n]) for n in problem.bound.values()}
    if len(domains) > 1:
        return []
    return [(level, d) for d in (domains or range(len(problem.tree.levels[level])))]


def only_ranks(problem: Problem, ranks: Collection[int]) -> Problem:
    """Returns the problem of placing only the given pending members.

    The other pending members get node -1 and keep their ranks, so that pipeline groups are the same.
    """
    kept = frozenset(ranks)
    if kept.issuperset(problem.pending):
        return problem
    members = tuple(
        replace(member, node=-1) if member.node is None and rank not in kept else member
        for rank, member in enumerate(problem.members)
    )
    return replace(problem, members=members)


def with_column(problem: Problem, room: Ints, asks: Mapping[int, int]) -> Problem:
    """Returns the problem with one more resource.

    room: [nodes] free amount of the resource. asks: shape -> amount that one pod requests.
    """
    column = problem.free.shape[1]
    shapes = tuple(
        replace(shape, request=(*shape.request, (column, asks[i]))) if asks.get(i) else shape
        for i, shape in enumerate(problem.shapes)
    )
    return replace(problem, free=np.concatenate([problem.free, room[:, None]], axis=1), shapes=shapes)


def at_most(problem: Problem, most: Mapping[int, Mapping[int, int]]) -> Problem:
    """Returns the problem with a limit on the number of pods of a shape per node.

    most: shape -> node -> limit; the limit is 0 on nodes that are not listed. Shapes that are not listed have no limit.
    """
    for shape, nodes in most.items():
        room = np.zeros(len(problem.free), dtype=np.int64)
        room[list(nodes)] = list(nodes.values())
        problem = with_column(problem, room, {shape: 1})
    return problem


def without_nodes(problem: Problem, nodes: Collection[int]) -> Problem:
    """Returns the problem in which no pod is allowed on the given nodes."""
    out = []
    for shape in problem.shapes:
        allowed = shape.allowed.copy()
        allowed[list(nodes)] = 0
        out.append(replace(shape, allowed=allowed))
    return replace(problem, shapes=tuple(out))


@dataclass(frozen=True, slots=True)
class Solution:
    """Answer to a Problem."""

    nodes: Mapping[int, int]
    """Rank -> node of every newly placed member; empty if there is no plan."""
    proof: Proof
    """OPTIMAL or FEASIBLE if `nodes` is a plan; INFEASIBLE or UNKNOWN if it is empty."""
    runs: tuple[SolverRun, ...] = ()
    """The solves of CP-SAT that led to the answer, in order; empty if no solve was necessary."""

    @property
    def placed(self) -> bool:
        """True if there is a placement."""
        return bool(self.nodes)
