"""A placement that is good and soon found, before any solve: what is kept where the solver finds nothing in its time.

Source: gang-network.md section 7: the best found is used when the limit is reached. Nodes are filled one after the
other, the roomiest domains first, each with the filling that uses most of what the unit is short of.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from koordpy.planning.placement.problem import Ints
from koordpy.planning.solver.room import Room


class Greedy:
    """Fills regions with given counts per shape (positions in Room). It looks at room alone."""

    def __init__(self, room: Room, counts: Ints) -> None:
        self.room, self.tree = room, room.tree
        self.counts = [int(n) for n in counts]

    def fill(self, region: tuple[int, int]) -> dict[int, tuple[int, ...]] | None:
        """Node -> pods per shape; None where this way finds no place for all."""
        place = self.tree.levels[region[0]]
        nodes = slice(int(place.start[region[1]]), int(place.end[region[1]]))
        room = np.maximum(self.room.caps[nodes].sum(axis=0), 1)
        price = (self.room.request / room).max(axis=1)
        worth = np.minimum(self.room.slots.T * price, 1).sum(axis=1) + (self.room.caps / room).sum(axis=1)
        worth = np.where(self.room.most > 0, worth, 0)
        order = list(self._nodes(*region, worth=worth))
        return self._by_worth(order, price) or self._by_size(order, price)

    def _nodes(self, level: int, domain: int, *, worth: Any) -> Iterator[int]:
        """Nodes below a domain, those of the roomiest domains first."""
        if level == self.tree.depth:
            yield domain
            return
        below, children = self.tree.levels[level + 1], self.tree.children(level, domain)
        before = np.concatenate(
            ([0.0], np.cumsum(worth[int(below.start[children.start]) : int(below.end[children[-1]])]))
        )
        first = int(below.start[children.start])
        sums = {c: round(float(before[below.end[c] - first] - before[below.start[c] - first]), 9) for c in children}
        for child in sorted(children, key=lambda c: (-sums[c], c)):
            if sums[child] > 0:
                yield from self._nodes(level + 1, child, worth=worth)

    def _by_worth(self, order: list[int], price: Any) -> dict[int, tuple[int, ...]] | None:
        """Each node takes the filling of the greatest price."""
        left, out = list(self.counts), dict[int, tuple[int, ...]]()
        for node in order:
            kind = self.room.types[self.room.type_of[node]]
            if kind.fillings is None:
                return None
            fillings = [tuple(map(min, filling, left)) for filling in kind.fillings]
            taken = max(fillings, key=lambda f: (sum(n * p for n, p in zip(f, price, strict=True)), f))
            if any(taken):
                out[node] = taken
                left = [have - n for have, n in zip(left, taken, strict=True)]
                if not any(left):
                    return out
        return None

    def _by_size(self, order: list[int], price: Any) -> dict[int, tuple[int, ...]] | None:
        """Shape by shape, the dearest first, each on the first nodes that have room."""
        caps = self.room.caps.copy()
        out: dict[int, list[int]] = {}
        for shape in sorted(range(len(self.counts)), key=lambda i: (-price[i], i)):
            left, request = self.counts[shape], self.room.request[shape]
            asked = request > 0
            for node in order:
                if not left:
                    break
                fit = min(left, int(self.room.slots[shape][node]), int((caps[node][asked] // request[asked]).min()))
                if fit > 0:
                    caps[node] -= fit * request
                    out.setdefault(node, [0] * len(self.counts))[shape] = fit
                    left -= fit
            if left:
                return None
        return {node: tuple(pods) for node, pods in out.items()}
