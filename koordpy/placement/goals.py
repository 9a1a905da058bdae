"""The goals that compare placements, and the hard rules that a placement can break: the specification of every method.

Source: gang-network.md sections 2.6 and 5. `goal_vector` compares placements, `violations` is the check of the
verifier, `slots_by_level` is the count in messages and in best fit. Must not search.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from math import gcd
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from koordpy.placement.member_interactions import faults
from koordpy.placement.problem import Ints, Problem

T = TypeVar("T")
Goal = tuple[Any, ...]
"""Value of one goal: smaller is better; values of one problem are comparable."""


# --- slots ------------------------------------------------------------------------------------------------------


def _cached_per_problem(read: Callable[[Problem, int], T]) -> Callable[[Problem, int], T]:
    """Caches `read(problem, shape)` for as long as the problem lives.

    The keys are weak because a problem refers to a whole snapshot.
    """
    known: WeakKeyDictionary[Problem, dict[int, T]] = WeakKeyDictionary()

    def remembered(problem: Problem, shape: int) -> T:
        found = known.setdefault(problem, {})
        if shape not in found:
            found[shape] = read(problem, shape)
        return found[shape]

    return remembered


@_cached_per_problem
def slots_by_level(problem: Problem, shape: int) -> tuple[Ints, ...]:
    """Returns per level, the cluster first, [domains] usable slots of a shape (section 5).

    Usable slots are the further pods that fit a domain. With multiples: the largest number for which every domain at
    this level and below has a multiple of its members, including bound ones; 0 if there is none. Not limited by the
    size of the unit.
    """
    return tuple(np.where(ok, high, 0) for _, high, _, ok in _progressions(problem, problem.copies_of[shape]))


@_cached_per_problem
def progressions(problem: Problem, shape: int) -> tuple[tuple[Ints, Ints, int, NDArray[np.bool_]], ...]:
    """Returns per level, the cluster first, (low, high, step, possible): the further pods that domains can take.

    They are an arithmetic progression low, low + step, .. high: nodes step by their own multiple, a sum of progressions
    of one step has that step, and a multiple on a domain only thins the progression out.
    """
    return _progressions(problem, problem.slots_of[shape])


def _progressions(problem: Problem, most: Ints) -> tuple[tuple[Ints, Ints, int, NDArray[np.bool_]], ...]:
    """Returns `progressions` with at most `most` ([nodes]) pods on each node."""
    tree, bound = problem.tree, problem.bound_counts
    low, high = np.zeros(len(bound), dtype=np.int64), most
    possible = np.ones(len(bound), dtype=bool)
    step = 1
    out: list[tuple[Ints, Ints, int, NDArray[np.bool_]]] = []
    for number in range(tree.depth, -1, -1):
        level = tree.levels[number]
        if number < tree.depth and len(bound):
            first = np.searchsorted(tree.levels[number + 1].start, level.start)
            low, high = np.add.reduceat(low, first), np.add.reduceat(high, first)
            possible = np.logical_and.reduceat(possible, first)
        elif number < tree.depth:
            low, high, possible = np.zeros((3, len(level)), dtype=np.int64)
            possible = possible.astype(bool)
        k = problem.multiples.get(number, 1)
        if k > 1:
            low, high, step, possible = _with_multiple(low, high, step, possible, k=k, bound=level.sums(bound))
        out.append((low, high, step, possible))
    return tuple(reversed(out))


_FAR = 1 << 38
"""A step larger than every sum of slots: only the first number of such a progression is possible."""


def _with_multiple(
    low: Ints, high: Ints, step: int, possible: NDArray[np.bool_], *, k: int, bound: Ints
) -> tuple[Ints, Ints, int, NDArray[np.bool_]]:
    """Keeps the numbers x of the progression with bound + x a multiple of k."""
    common = gcd(step, k)
    period = k // common
    want = np.mod(-bound - low, k)
    low = low + (want // common) * pow(step // common, -1, period) % period * step
    step = min(step * period, _FAR)
    possible = possible & (want % common == 0) & (low <= high)
    low = np.where(possible, low, 0)
    return low, np.where(possible, low + (high - low) // step * step, low), step, possible


def domain_order(problem: Problem, reference: int, level: int, domain: int) -> dict[int, Ints]:
    """Returns for goal 6, per level below a domain, its domains in the order in which their pod counts are compared."""
    tree, usable = problem.tree, slots_by_level(problem, reference)
    order: dict[int, Ints] = {}
    above = np.array([domain], dtype=np.int64)
    for number in range(level + 1, tree.depth + 1):
        position = np.full(len(tree.levels[number - 1]), -1, dtype=np.int64)
        position[above] = np.arange(len(above))
        parents = position[tree.levels[number].parent]
        inside = np.nonzero(parents >= 0)[0]
        attracted = tree.levels[number].sums(problem.attract)[inside]
        above = inside[np.lexsort((inside, -usable[number][inside], -attracted, parents[inside]))]
        order[number] = above
    return order


# --- members ----------------------------------------------------------------------------------------------------


def core_of(problem: Problem, ranks: Iterable[int]) -> tuple[int, ...] | None:
    """Returns the lowest-ranked `need` pods of each gang among the ranks; None if a gang has fewer than it needs."""
    left = list(problem.needs)
    core = []
    for rank in sorted(ranks):
        gang = problem.members[rank].gang
        if left[gang] > 0:
            left[gang] -= 1
            core.append(rank)
    return None if any(n > 0 for n in left) else tuple(core)


def pipeline_groups(problem: Problem) -> tuple[range, ...]:
    """Returns the runs of PP consecutive positions, surplus members included; empty without pipeline parallelism."""
    size, total = problem.pipeline, len(problem.members)
    if size <= 1:
        return ()
    return tuple(range(at, min(at + size, total)) for at in range(0, total, size))


# --- goals ------------------------------------------------------------------------------------------------------


class Goals:
    """The goals of one problem as functions of a placement (rank -> node), in the order in which they are compared."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.tree = problem.tree
        self._bound = list(problem.bound.values())
        self._groups = pipeline_groups(problem)
        self._attract = [level.sums(problem.attract) for level in problem.tree.levels]

    @property
    def stages(self) -> tuple[Callable[[Mapping[int, int]], Goal], ...]:
        if not self.problem.gather:
            return (
                self.members,
                self.scarce,
                self.fewest_nodes,
                self.counted,
                self.score,
                self.fewest_slots,
                self.names,
            )
        return (
            self.members,
            self.layers,
            self.attraction,
            self.pipeline,
            self.domains,
            self.best_fit,
            self.counted,
            self.score,
            self.inside,
            self.ranks,
        )

    def vector(self, nodes: Mapping[int, int]) -> Goal:
        return tuple(stage(nodes) for stage in self.stages)

    def members(self, nodes: Mapping[int, int]) -> Goal:
        """Goal 0: the core, then the number of members, then their ranks.

        The core of rule (b) is the lowest of all cores, so one order serves both rules.
        """
        core = core_of(self.problem, nodes)
        if core is None:
            raise ValueError("a gang has fewer pods than it needs")
        return core, -len(nodes), tuple(sorted(nodes))

    def layers(self, nodes: Mapping[int, int]) -> Goal:
        """Goal 1: the layer of C, then of c; a deeper level is a lower layer.

        C is the lowest common domain of bound and new members, c that of new members.
        """
        new = list(nodes.values())
        return -self.tree.lowest_common(self._bound + new)[0], -self.tree.lowest_common(new)[0]

    def attraction(self, nodes: Mapping[int, int]) -> Goal:
        """Goal 2: attracting pods in c, its parent, ... the cluster."""
        level, domain = self.tree.lowest_common(list(nodes.values()))
        return tuple(-int(self._attract[n][d]) for n, d in self.tree.upwards(level, domain))

    def pipeline(self, nodes: Mapping[int, int]) -> Goal:
        """Goal 3: PP groups by the level of their lowest common domain, from the cluster down to a node's parent."""
        counts = Counter(level for level in self.group_levels(nodes) if level is not None)
        return tuple(counts[level] for level in range(self.tree.depth)) if self._groups else ()

    def group_levels(self, nodes: Mapping[int, int]) -> tuple[int | None, ...]:
        """Returns the level of the lowest common domain of each PP group's placed members.

        None for a group without any.
        """
        placed = self.placed(nodes)
        held = [[placed[rank] for rank in group if rank in placed] for group in self._groups]
        return tuple(self.tree.lowest_common(group)[0] if group else None for group in held)

    def domains(self, nodes: Mapping[int, int]) -> Goal:
        """Goal 4: number of domains with members, bound and new, from the top layer down to the nodes."""
        columns = self.tree.domain_of[1:, self._bound + list(nodes.values())]
        return tuple(len(set(row.tolist())) for row in columns)

    def best_fit(self, nodes: Mapping[int, int]) -> Goal:
        """Goal 5: usable slots of c, its parent, ... the cluster."""
        usable = slots_by_level(self.problem, self.problem.reference(tuple(sorted(nodes))))
        level, domain = self.tree.lowest_common(list(nodes.values()))
        return tuple(int(usable[n][d]) for n, d in self.tree.upwards(level, domain))

    def counted(self, nodes: Mapping[int, int]) -> Goal:
        """The cost of the nodes used by the pods on each (ByCount), relative to their cost without them."""
        table = self.problem.by_count
        if table is None:
            return ()
        out = [0] * table.width
        for node, pods in _pods_there(self.problem, nodes):
            added = table.added(node, pods)
            if added is None:
                raise ValueError(f"{self.tree.node_names[node]} cannot take its pods")
            out = [total + n for total, n in zip(out, added, strict=True)]
        return tuple(out)

    def score(self, nodes: Mapping[int, int]) -> Goal:
        """The negative total of the scores, because a larger total is better; compared between goals 5 and 6."""
        shapes, members = self.problem.shapes, self.problem.members
        return (-sum(int(shapes[members[rank].shape].score[node]) for rank, node in nodes.items()),)

    def inside(self, nodes: Mapping[int, int]) -> Goal:
        """Goal 6: the path of c, then the counts layer by layer; larger counts are better."""
        new = list(nodes.values())
        level, domain = self.tree.lowest_common(new)
        counts = np.bincount(new, minlength=len(self.problem.free)).astype(np.int64)
        order = domain_order(self.problem, self.problem.reference(tuple(sorted(nodes))), level, domain)
        below = tuple(tuple((-self.tree.levels[n].sums(counts)[o]).tolist()) for n, o in order.items())
        return domain, below

    def ranks(self, nodes: Mapping[int, int]) -> Goal:
        """Goal 7: ring neighbours in different domains, top layer first; then the paths in rank order."""
        return self.crossings(nodes), tuple(nodes[rank] for rank in sorted(nodes))

    def crossings(self, nodes: Mapping[int, int]) -> tuple[int, ...]:
        """Returns per level, from the top layer to the nodes, the number of ring neighbours in different domains."""
        placed = self.placed(nodes)
        ring = self.tree.domain_of[1:, [placed[rank] for rank in sorted(placed)]]
        return tuple(int(n) for n in (ring != np.roll(ring, -1, axis=1)).sum(axis=1))

    def placed(self, nodes: Mapping[int, int]) -> dict[int, int]:
        """Returns rank -> node of all placed members, bound and new."""
        return {**self.problem.bound, **nodes}

    def scarce(self, nodes: Mapping[int, int]) -> Goal:
        """Without a gather goal: new pods on nodes with a scarce resource that these pods do not request."""
        avoided = self.problem.scarce
        return (sum(int(avoided[node]) for node in nodes.values()),) if avoided is not None else ()

    def fewest_nodes(self, nodes: Mapping[int, int]) -> Goal:
        """Without a gather goal: nodes with new pods, and nodes that count as used without one (Problem.standing)."""
        standing = self.problem.standing
        used = set(nodes.values())
        if standing is not None:
            used.update(np.nonzero(standing)[0].tolist())
        return (len(used),)

    def fewest_slots(self, nodes: Mapping[int, int]) -> Goal:
        """Without a gather goal: slots of the reference pod on the nodes with new pods."""
        slots = self.problem.copies_of[self.problem.reference(tuple(sorted(nodes)))]
        return (sum(int(slots[node]) for node in set(nodes.values())),)

    def names(self, nodes: Mapping[int, int]) -> Goal:
        """Without a gather goal: the name ranks of the nodes, for the pods in rank order."""
        return tuple(int(self.problem.name_rank[nodes[rank]]) for rank in sorted(nodes))


def goal_vector(problem: Problem, nodes: Mapping[int, int]) -> Goal:
    """Returns goals 0-7 of a valid placement (rank -> node of every new pod) in their order; smaller is better.

    Without a gather goal: members, scarce nodes, nodes, score, slots, names (Problem). Raises ValueError if no pod is
    placed or a gang has fewer new pods than it needs.
    """
    if not nodes:
        raise ValueError("no pod is placed")
    return Goals(problem).vector(nodes)


# --- hard rules -------------------------------------------------------------------------------------------------


def violations(problem: Problem, nodes: Mapping[int, int]) -> list[str]:
    """Returns the hard rules that a placement (rank -> node of every new pod) breaks; empty for a valid one."""
    tree, members, found = problem.tree, problem.members, []
    if not nodes:
        return ["no pod is placed"]
    for rank, node in sorted(nodes.items()):
        if not 0 <= rank < len(members) or members[rank].node is not None:
            found.append(f"rank {rank} is not a pending member")
        elif not 0 <= node < len(problem.free):
            found.append(f"rank {rank} is placed on an unknown node")
        elif not problem.shapes[members[rank].shape].allowed[node]:
            found.append(f"rank {rank} is not allowed on {tree.node_names[node]}")
    if found:
        return found
    for node, column, amount in beyond_room(problem, nodes):
        found.append(f"{tree.node_names[node]} has {problem.free[node, column]} of column {column}, {amount} placed")
    for one in problem.allowances:
        taken = sum(one.amounts[members[rank].shape] for rank in nodes)
        if taken > one.room:
            found.append(f"{taken} used of an allowance of {one.room}")
    placed = Counter(members[rank].gang for rank in nodes)
    for gang, need in enumerate(problem.needs):
        if placed[gang] < need:
            found.append(f"gang {gang} needs {need}, {placed[gang]} placed")
    counts = problem.bound_counts + np.bincount(list(nodes.values()), minlength=len(problem.free))
    level, _ = tree.lowest_common(np.nonzero(counts)[0].tolist())
    if level < problem.hard:
        found.append(f"members lie in several domains of {tree.layer_name(problem.hard)}")
    for number, k in sorted(problem.multiples.items()):
        held = tree.levels[number].sums(counts)
        found.extend(
            f"{tree.layer_name(number)} {tree.path(number, int(d))}: {held[d]} is not a multiple of {k}"
            for d in (np.nonzero(held % k)[0] if k > 1 else ())
        )
    return found + faults_together(problem, nodes)


def beyond_room(problem: Problem, nodes: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """Returns (node, column, amount placed) wherever the amount placed exceeds the free capacity."""
    used: Counter[tuple[int, int]] = Counter()
    for rank, node in nodes.items():
        for column, amount in problem.shapes[problem.members[rank].shape].request:
            used[node, column] += amount
    return [(n, column, amount) for (n, column), amount in sorted(used.items()) if amount > problem.free[n, column]]


def faults_together(problem: Problem, nodes: Mapping[int, int]) -> list[str]:
    """Returns the faults of a placement that concern several pods at once: devices of a node, and interactions."""
    table, held = problem.by_count, Counter((problem.members[rank].shape, node) for rank, node in nodes.items())
    unserved = [
        f"{problem.tree.node_names[node]} cannot take its pods together"
        for node, pods in (sorted(_pods_there(problem, nodes)) if table is not None else ())
        if table is not None and table.cost(int(table.kinds[node]), pods) is None
    ]
    return unserved + faults(problem.interactions, held)


def _pods_there(problem: Problem, nodes: Mapping[int, int]) -> list[tuple[int, tuple[int, ...]]]:
    """Returns (node, pods of each shape there) for each node with new pods."""
    there: dict[int, Counter[int]] = {}
    for rank, node in nodes.items():
        there.setdefault(node, Counter())[problem.members[rank].shape] += 1
    return [(node, tuple(counts[shape] for shape in range(len(problem.shapes)))) for node, counts in there.items()]
