"""Goal 4 by one measure of room alone: a bound that no placement beats, and the nodes on which it may be met.

Whatever pods of several shapes a region takes, they take at least so much of each resource, and so many pods of each
shape. A placement opens no fewer domains than the best way to find that much of one of them, lexicographically, and for
one measure counting is exact (gang-network.md section 7). Where all pods then go onto the nodes that were found, goal 4
is settled without a solver.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from koordpy.planning.limits import MEASURE_UNITS, MEASURES
from koordpy.planning.placement.counting import NodeCounts, count
from koordpy.planning.placement.problem import ByCount, Devices, Ints, Member, Problem, Shape
from koordpy.planning.solver.budget import TimeBudget
from koordpy.planning.solver.counts import CountModel
from koordpy.planning.solver.placed import node_pods
from koordpy.planning.solver.regions import Regions
from koordpy.planning.solver.room import Room


@dataclass(frozen=True, slots=True)
class Least:
    """domains: of each level, the top layer first, that hold members; nodes: those that hold new
    pods, with what they give; worth: with `left` the nodes that give two and more, and what is left on nodes used."""

    domains: tuple[int, ...]
    nodes: Mapping[int, int]
    worth: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Met:
    """A placement in a region that no other beats in goal 4.

    pods: node -> pods per shape (positions in Room); worth: as in `Least`, a lower bound for all that are as good.
    """

    domains: tuple[int, ...]
    pods: Mapping[int, Sequence[int]]
    worth: tuple[int, ...]


def meet_measures(
    regions: Regions, region: tuple[int, int], *, devices: Devices | None, budget: TimeBudget
) -> Met | None:
    """A placement in a region that meets the bound of one of its tightest measures; None where none is found."""
    measures = regions.measures()
    tight = sorted(measures, key=lambda one: regions.fewest_by([one], region), reverse=True)
    asks = None if devices is None else np.array([devices.asks[shape] for shape in regions.room.shapes], dtype=np.int64)
    found = []
    for per_node, need in tight[:MEASURES]:
        left = asks is not None and _is_of(asks, per_node, regions.room)
        least = least_domains(regions.problem, region, per_node, need, left=left)
        if least is None:
            return None
        found.append(least)
    best = max(found, key=lambda one: (one.domains, one.worth))
    pods = _onto(regions, region, best, asks if best.worth else None, budget)
    if pods is None:
        return None
    domains = tuple(len(set(row.tolist())) for row in regions.tree.domain_of[1:, list(pods)])
    return Met(domains, pods, best.worth) if domains == best.domains else None


def _is_of(asks: Ints, per_node: Ints, room: Room) -> bool:
    """Whether a measure is the one of the devices that pods ask for."""
    columns = np.nonzero((room.request == asks[:, None]).all(axis=0))[0]
    return any((room.caps[:, c] == per_node).all() for c in columns.tolist())


def _onto(
    regions: Regions, region: tuple[int, int], least: Least, asks: Ints | None, budget: TimeBudget
) -> Mapping[int, Sequence[int]] | None:
    """All pods onto the nodes that a measure found, where each gives as much as it found, else anyhow."""
    room = regions.room
    only = np.zeros(len(room.most), dtype=bool)
    only[list(least.nodes)] = True
    for exactly in (False,) if asks is None else (True, False):
        model = CountModel(
            room, region, counts=regions.counts.tolist(), budget=budget, only=only, ordered=False, split=exactly
        )
        if exactly and asks is not None:
            for cell in model.cells:
                given = [(var, int(asks[i])) for i, var in cell.pods.items()]
                model.hold(given, least.nodes[cell.nodes[0]])
                model.hold([(var, -ask) for var, ask in given], -least.nodes[cell.nodes[0]])
        model.find("measure")
        if model.values:
            return node_pods(model)
    return None


def least_domains(
    problem: Problem, region: tuple[int, int], room: Ints, need: int, *, left: bool = False
) -> Least | None:
    """The fewest domains that have `need` of `room` ([nodes]) inside a region; None where it has not so much.

    Only for units without bound members: beside them a lower c comes before fewer domains.

    left: of the ways that are best the one with fewest nodes that give two and more, then with least left on its nodes.
    """
    tree, scale = problem.tree, -(-need // MEASURE_UNITS)
    units = -(-need // scale)
    place = tree.levels[region[0]]
    allowed = np.zeros(len(room), dtype=np.int64)
    allowed[int(place.start[region[1]]) : int(place.end[region[1]])] = 1
    caps = -(-room // scale)
    shape = Shape(((0, 1),), allowed, np.zeros(len(room), dtype=np.int64))
    one = Problem(
        tree=tree,
        free=caps[:, None],
        shapes=(shape,),
        members=(Member(0, 0),) * units,
        needs=(units,),
        attract=np.zeros_like(problem.attract),
        name_rank=problem.name_rank,
        by_count=_what_is_left(caps) if left and scale == 1 else None,
    )
    found = count(one)
    if not isinstance(found, NodeCounts):
        return None
    nodes = dict(sorted(found.counts.items()))
    domains = tuple(len(set(row.tolist())) for row in tree.domain_of[1:, list(nodes)])
    given = nodes.values()
    exact = left and scale == 1
    worth = (sum(n > 1 for n in given), sum(int(room[node]) for node in nodes) - need) if exact else ()
    return Least(domains, nodes, worth)


def _what_is_left(caps: Ints) -> ByCount:
    sizes, kinds = np.unique(caps, return_inverse=True)

    def cost(kind: int, counts: tuple[int, ...]) -> tuple[int, ...]:
        return (int(counts[0] > 1), int(sizes[kind]) - counts[0]) if counts[0] else (0, 0)

    return ByCount(kinds.reshape(-1).astype(np.int64), cost, 2, always=True)
