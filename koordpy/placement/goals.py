# SPDX-License-Identifier: Apache-2.0
"""The goals that compare placements of a gang, and the hard rules that a placement can break.

This module is the specification of all placement methods, as code: the table of goals of docs/rules/gang-network.md 5,
and the selection of members of 2.6. Goals are compared lexicographically, from goal 0 to goal 7. `goal_vector` compares
placements, `violations` checks a placement, and `slots_by_level` counts usable slots for messages and for goal 5 (best
fit). Must not search.

Letters as in that table: c is the lowest domain that contains all new pods, C is the lowest domain that contains all
placed members, bound and new.
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
"""Value of one goal; smaller is better, so a number to be maximised is negated. Values of different problems are not
comparable."""


# --- slots ------------------------------------------------------------------------------------------------------


def _cached_per_problem(read: Callable[[Problem, int], T]) -> Callable[[Problem, int], T]:
    """Caches `read(problem, shape)` as long as the problem exists.

    The keys are weak references, because a problem refers to a whole snapshot.
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
    """Returns [levels, the cluster first][domains] the usable slots of a shape (gang-network.md 5).

    Usable slots are the further pods that fit a domain, without regard to the size of the unit. With multiples, they
    are the largest number for which every domain at this level and below has a multiple of its members, bound ones
    included; 0 if there is no such number.
    """
    return tuple(np.where(ok, high, 0) for _, high, _, ok in _progressions(problem, problem.copies_of[shape]))


@_cached_per_problem
def progressions(problem: Problem, shape: int) -> tuple[tuple[Ints, Ints, int, NDArray[np.bool_]], ...]:
    """Returns, for each level, which numbers of further pods of a shape each domain can take.

    Each entry is (low, high, step, possible); the first entry is the cluster. low, high: [domains] least and largest
    number; step: distance between two numbers, common to the level; possible: [domains] False if no number is possible.

    The possible numbers are always an arithmetic progression. On the level of the nodes, the step is their multiple.
    The sum of progressions with equal step is a progression with that step. A multiple of a domain removes numbers so
    that equal distances remain.
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
"""A step larger than every sum of slots, so that the progression has only its first number."""


def _with_multiple(
    low: Ints, high: Ints, step: int, possible: NDArray[np.bool_], *, k: int, bound: Ints
) -> tuple[Ints, Ints, int, NDArray[np.bool_]]:
    """Returns the progression restricted to the numbers x for which bound + x is a multiple of k."""
    common = gcd(step, k)
    period = k // common
    want = np.mod(-bound - low, k)
    low = low + (want // common) * pow(step // common, -1, period) % period * step
    step = min(step * period, _FAR)
    possible = possible & (want % common == 0) & (low <= high)
    low = np.where(possible, low, 0)
    return low, np.where(possible, low + (high - low) // step * step, low), step, possible


def domain_order(problem: Problem, reference: int, level: int, domain: int) -> dict[int, Ints]:
    """Returns the order in which goal 6 compares the pod counts of the domains below a region. reference: shape by
    which slots are counted. level, domain: the region. The result is level -> domains of that level inside the region,
    in order, for every level below the region. Domains are ordered by the position of their parent, then most
    attracting pods, most slots, natural name."""
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
    """Returns the core: for each gang as many of the lowest `ranks` as it needs; None if a gang has too few of them."""
    left = list(problem.needs)
    core = []
    for rank in sorted(ranks):
        gang = problem.members[rank].gang
        if left[gang] > 0:
            left[gang] -= 1
            core.append(rank)
    return None if any(n > 0 for n in left) else tuple(core)


def pipeline_groups(problem: Problem) -> tuple[range, ...]:
    """Returns the pipeline groups as ranges of ranks; the last one may be shorter. Empty without pipeline groups."""
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
        """The goals in the order in which they are compared; with and without a gather goal these are different
        lists."""
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
        """Returns the values of all goals in order. Of two placements, the one with the smaller vector is better."""
        return tuple(stage(nodes) for stage in self.stages)

    def members(self, nodes: Mapping[int, int]) -> Goal:
        """Goal 0: the ranks of the core, then the negated number of placed members, then the ranks of all placed
        members. Rule 2 of docs/rules/gang-network.md 2.6 requires the core of lowest ranks; if it cannot be placed,
        rule 3 requires the lowest core that can. Comparing cores first satisfies both rules, because no core is lower
        than that of rule 2."""
        core = core_of(self.problem, nodes)
        if core is None:
            raise ValueError("a gang has fewer pods than it needs")
        return core, -len(nodes), tuple(sorted(nodes))

    def layers(self, nodes: Mapping[int, int]) -> Goal:
        """Goal 1: the level of C, then the level of c, both negated, because a deeper level is a lower layer."""
        new = list(nodes.values())
        return -self.tree.lowest_common(self._bound + new)[0], -self.tree.lowest_common(new)[0]

    def attraction(self, nodes: Mapping[int, int]) -> Goal:
        """Goal 2: negated number of attracting pods in c, then in its parent, and so on up to the cluster; more is
        better."""
        level, domain = self.tree.lowest_common(list(nodes.values()))
        return tuple(-int(self._attract[n][d]) for n, d in self.tree.upwards(level, domain))

    def pipeline(self, nodes: Mapping[int, int]) -> Goal:
        """Goal 3: for each level from the cluster to the level above the nodes, the number of pipeline groups with this
        value of `group_levels`."""
        counts = Counter(level for level in self.group_levels(nodes) if level is not None)
        return tuple(counts[level] for level in range(self.tree.depth)) if self._groups else ()

    def group_levels(self, nodes: Mapping[int, int]) -> tuple[int | None, ...]:
        """Returns, for each pipeline group, the level of the lowest domain with all its placed members; None if it has
        none."""
        placed = self.placed(nodes)
        held = [[placed[rank] for rank in group if rank in placed] for group in self._groups]
        return tuple(self.tree.lowest_common(group)[0] if group else None for group in held)

    def domains(self, nodes: Mapping[int, int]) -> Goal:
        """Goal 4: for each level from the top layer down to the nodes, the number of domains with members, bound or
        new."""
        columns = self.tree.domain_of[1:, self._bound + list(nodes.values())]
        return tuple(len(set(row.tolist())) for row in columns)

    def best_fit(self, nodes: Mapping[int, int]) -> Goal:
        """Goal 5 (best fit): usable slots of c, of its parent, and so on up to the cluster; fewer is better."""
        usable = slots_by_level(self.problem, self.problem.reference(tuple(sorted(nodes))))
        level, domain = self.tree.lowest_common(list(nodes.values()))
        return tuple(int(usable[n][d]) for n, d in self.tree.upwards(level, domain))

    def counted(self, nodes: Mapping[int, int]) -> Goal:
        """The device costs: the sum of `DeviceCosts.added` over the nodes with new pods; empty without device costs."""
        table = self.problem.device_costs
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
        """The negated sum of scores. With a gather goal it is compared after goal 5 and the device costs, and before
        goal 6."""
        shapes, members = self.problem.shapes, self.problem.members
        return (-sum(int(shapes[members[rank].shape].score[node]) for rank, node in nodes.items()),)

    def inside(self, nodes: Mapping[int, int]) -> Goal:
        """Goal 6: the index of c, then for each level below c the negated pod counts of its domains in
        `domain_order`."""
        new = list(nodes.values())
        level, domain = self.tree.lowest_common(new)
        counts = np.bincount(new, minlength=len(self.problem.free)).astype(np.int64)
        order = domain_order(self.problem, self.problem.reference(tuple(sorted(nodes))), level, domain)
        below = tuple(tuple((-self.tree.levels[n].sums(counts)[o]).tolist()) for n, o in order.items())
        return domain, below

    def ranks(self, nodes: Mapping[int, int]) -> Goal:
        """Goal 7: `crossings`, then the nodes in rank order. Node indices follow the natural order of paths."""
        return self.crossings(nodes), tuple(nodes[rank] for rank in sorted(nodes))

    def crossings(self, nodes: Mapping[int, int]) -> tuple[int, ...]:
        """Returns, for each level from the top layer to the nodes, the number of ring neighbours in different domains.
        The ring is all placed members in rank order; the last member is the neighbour of the first."""
        placed = self.placed(nodes)
        ring = self.tree.domain_of[1:, [placed[rank] for rank in sorted(placed)]]
        return tuple(int(n) for n in (ring != np.roll(ring, -1, axis=1)).sum(axis=1))

    def placed(self, nodes: Mapping[int, int]) -> dict[int, int]:
        """Returns rank -> node of all placed members, bound and new."""
        return {**self.problem.bound, **nodes}

    def scarce(self, nodes: Mapping[int, int]) -> Goal:
        """Goal without a gather goal: number of new pods on nodes with a scarce resource that these pods do not
        request."""
        avoided = self.problem.scarce
        return (sum(int(avoided[node]) for node in nodes.values()),) if avoided is not None else ()

    def fewest_nodes(self, nodes: Mapping[int, int]) -> Goal:
        """Goal without a gather goal: number of nodes that are used, by a new pod or because `Problem.already_used`
        says so."""
        standing = self.problem.already_used
        used = set(nodes.values())
        if standing is not None:
            used.update(np.nonzero(standing)[0].tolist())
        return (len(used),)

    def fewest_slots(self, nodes: Mapping[int, int]) -> Goal:
        """Goal without a gather goal: sum of the slots, before placing, of the reference shape on the nodes with new
        pods."""
        slots = self.problem.copies_of[self.problem.reference(tuple(sorted(nodes)))]
        return (sum(int(slots[node]) for node in set(nodes.values())),)

    def names(self, nodes: Mapping[int, int]) -> Goal:
        """Goal without a gather goal: the positions of the nodes in the natural order of names, for the pods in rank
        order."""
        return tuple(int(self.problem.name_rank[nodes[rank]]) for rank in sorted(nodes))


def goal_vector(problem: Problem, nodes: Mapping[int, int]) -> Goal:
    """Returns the values of all goals of a valid placement (rank -> node of every new pod); smaller is better. With and
    without a gather goal, the goals differ (`Problem`). Raises ValueError if no pod is placed, or if a gang has fewer
    new pods than it needs."""
    if not nodes:
        raise ValueError("no pod is placed")
    return Goals(problem).vector(nodes)


# --- hard rules -------------------------------------------------------------------------------------------------


def violations(problem: Problem, nodes: Mapping[int, int]) -> list[str]:
    """Returns one sentence per hard rule that a placement (rank -> node of every new pod) breaks; empty if valid."""
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
    # sums on nodes, of quotas and of gangs
    for node, column, amount in beyond_room(problem, nodes):
        free = problem.free[node, column]
        found.append(f"{tree.node_names[node]} has {free} free of resource {column}, {amount} are placed")
    for one in problem.allowances:
        taken = sum(one.amounts[members[rank].shape] for rank in nodes)
        if taken > one.remaining:
            found.append(f"{taken} used of an allowance of {one.remaining}")
    placed = Counter(members[rank].gang for rank in nodes)
    for gang, need in enumerate(problem.needs):
        if placed[gang] < need:
            found.append(f"gang {gang} needs {need}, {placed[gang]} placed")
    # MustGather and podCountMultiple
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
    """Returns (node, column of `free`, amount of the new pods) wherever new pods exceed the free capacity of a node."""
    used: Counter[tuple[int, int]] = Counter()
    for rank, node in nodes.items():
        for column, amount in problem.shapes[problem.members[rank].shape].request:
            used[node, column] += amount
    return [(n, column, amount) for (n, column), amount in sorted(used.items()) if amount > problem.free[n, column]]


def faults_together(problem: Problem, nodes: Mapping[int, int]) -> list[str]:
    """Returns the faults of a placement that concern several pods at once, one sentence each. These are nodes with
    devices that cannot serve all new pods of the node (`DeviceCosts.cost` is None), and interactions that are
    violated."""
    table, held = problem.device_costs, Counter((problem.members[rank].shape, node) for rank, node in nodes.items())
    unserved = [
        f"{problem.tree.node_names[node]} cannot take its pods together"
        for node, pods in (sorted(_pods_there(problem, nodes)) if table is not None else ())
        if table is not None and table.cost(int(table.kinds[node]), pods) is None
    ]
    return unserved + faults(problem.interactions, held)


def _pods_there(problem: Problem, nodes: Mapping[int, int]) -> list[tuple[int, tuple[int, ...]]]:
    """Returns (node, number of new pods there by shape) for each node with new pods."""
    there: dict[int, Counter[int]] = {}
    for rank, node in nodes.items():
        there.setdefault(node, Counter())[problem.members[rank].shape] += 1
    return [(node, tuple(counts[shape] for shape in range(len(problem.shapes)))) for node, counts in there.items()]
