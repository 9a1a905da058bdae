"""The part of a large region that is modelled.

A model of thousands of nodes is built and presolved in seconds. Once it is known how many domains the best placement
opens, of domains alike no more are needed; where that still leaves too many, the first in goal 6's order are taken, and
the answer is no longer proven.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from koordpy.planning.limits import MODEL_NODES
from koordpy.planning.solver.room import Room


@dataclass(frozen=True, slots=True)
class Narrow:
    """only: [nodes] that a model may use, None for all; opened: level -> domains that the best opens at most; exact:
    whether nothing is lost by that."""

    only: NDArray[np.bool_] | None
    opened: Mapping[int, int]
    exact: bool


WHOLE = Narrow(None, {}, True)


def is_large(room: Room, region: tuple[int, int]) -> bool:
    """Whether a region has too many nodes with room to be modelled whole."""
    place = room.tree.levels[region[0]]
    nodes = slice(int(place.start[region[1]]), int(place.end[region[1]]))
    return int((room.most[nodes] > 0).sum()) > MODEL_NODES


def narrowed(
    room: Room,
    region: tuple[int, int],
    nodes: Collection[int],
    *,
    order: Sequence[int],
    opened: Mapping[int, int],
    exact: bool,
) -> Narrow:
    """What a placement uses, then the first domains in goal 6's order.

    nodes: of the placement; order: the domains right below the region; opened: level -> domains that the best opens at
    most, as far as it is known; exact: whether domains alike may be left out.
    """
    tree, level = room.tree, region[0] + 1
    own = {int(d) for d in tree.domain_of[level, list(nodes)]}
    twins = opened.get(level, len(order))
    alike: Counter[int] = Counter()
    only = np.zeros(len(room.most), dtype=bool)
    left = MODEL_NODES
    place = tree.levels[level]
    for domain in sorted(order, key=lambda d: d not in own):
        inside = slice(int(place.start[domain]), int(place.end[domain]))
        sign = int(room.signatures[level][domain])
        number = int((room.most[inside] > 0).sum())
        if not number or (alike[sign] >= twins and domain not in own):
            continue
        alike[sign] += 1
        if domain not in own and number > left:
            exact = False
            continue
        left -= number
        only[inside] = True
    return Narrow(only, opened if exact else {}, exact)
