"""Goal 4 by one measure of room alone: a bound that no placement beats, and the nodes on which it may be met.

Whatever pods of several shapes a region takes, they take at least so much of each resource, and so many pods of each
shape. A placement opens no fewer domains than the best way to find that much of one of them, lexicographically, and for
one measure counting is exact (gang-network.md section 7). Where all pods then go onto the nodes that were found, goal 4
is settled without a solver.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from koordpy.planning.counting import Counted, count
from koordpy.planning.problem import ByCount, Ints, Member, Problem, Shape

MOST_UNITS = 2048
"""A measure is counted in at most so many units; larger amounts are rounded in favour of the bound."""


@dataclass(frozen=True, slots=True)
class Least:
    """domains: of each level, the top layer first, that hold members; nodes: those that hold new
    pods, with what they give; worth: with `left` the nodes that give two and more, and what is left on nodes used."""

    domains: tuple[int, ...]
    nodes: Mapping[int, int]
    worth: tuple[int, ...] = ()


def least_domains(
    problem: Problem, region: tuple[int, int], room: Ints, need: int, *, left: bool = False
) -> Least | None:
    """The fewest domains that have `need` of `room` ([nodes]) inside a region; None where it has not so much.

    Only for units without bound members: beside them a lower c comes before fewer domains.

    left: of the ways that are best the one with fewest nodes that give two and more, then with least left on its nodes.
    """
    tree, scale = problem.tree, -(-need // MOST_UNITS)
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
    if not isinstance(found, Counted):
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
