"""Fewest domains for members of several shapes, exactly and without a solver: a table over what is still to be placed.

Source: gang-network.md section 5, goal 4, and section 7. The table says for every vector of pods per shape what it
costs to have room for at least that many: domains used, layer by layer, packed into one integer. Nodes are looked at
one after the other in tree order, each with its maximal fillings; a domain is paid once, when it is entered. That
serves where the vectors are few; nothing but room may matter (`applies`), the solver decides the rest.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from koordpy.planning.limits import COVER_ENTRIES, COVER_FILLINGS, COVER_STATES
from koordpy.planning.placement.problem import Ints
from koordpy.planning.solver.room import Room, maximal_fillings

_NEVER = 1 << 60


class Cover:
    """Tables for one unit of given counts per shape (positions in Room)."""

    def __init__(self, room: Room, counts: Ints) -> None:
        self.room, self.tree = room, room.tree
        self.counts = [int(n) for n in counts]
        self.states = int(np.prod([n + 1 for n in self.counts], dtype=object))
        self.work = COVER_ENTRIES
        self._held = [level.sums(room.problem.bound_counts) > 0 for level in self.tree.levels]
        self._roomy: list[Any] = [None] * (self.tree.depth + 1)
        self._weights: list[int] = []
        self._steps: dict[tuple[int, ...], Any] = {}
        self._fillings: dict[int, list[tuple[int, ...]]] = {}

    def applies(self) -> bool:
        """Whether only room matters: no multiples, interactions or scores, and the table is not too large."""
        problem = self.room.problem
        return (
            self.states <= COVER_STATES
            and not problem.multiples
            and not problem.interactions
            and problem.by_count is None
            and all(len(np.unique(problem.shapes[s].score)) <= 1 for s in self.room.shapes)
        )

    def least(self, region: tuple[int, int]) -> tuple[int, ...] | None:
        """How many domains new pods open at each level below the region, the fewest, the top level first.

        None where the region has no room. Raises TooMuchWork past the limit.
        """
        tree, depth = self.tree, self.tree.depth
        place = tree.levels[region[0]]
        self.work -= self._work(slice(int(place.start[region[1]]), int(place.end[region[1]])))
        if self.work < 0:
            raise TooMuchWork
        self._weights = [0] * (depth + 1)
        bases, weight = [1] * (depth + 1), 1
        lo, hi = int(place.start[region[1]]), int(place.end[region[1]])
        for level in range(depth, region[0], -1):
            self._weights[level] = weight
            first, last = np.searchsorted(tree.levels[level].start, (lo, hi))
            bases[level] = int(last - first) + 1
            weight *= bases[level]
        if weight >= _NEVER // 2:
            raise TooMuchWork
        start = np.full(self.states, _NEVER, dtype=np.int64)
        start[0] = 0
        end = self._enter(*region, start)
        cost = int(end[-1])
        if cost >= _NEVER:
            return None
        opened = tuple(cost // self._weights[level] % bases[level] for level in range(region[0] + 1, depth + 1))
        self._start, self._end, self._region = start, end, region
        return opened

    def pods(self) -> dict[int, tuple[int, ...]]:
        """Node -> pods per shape of a placement that is as good as the last answer of `least`."""
        found: dict[int, tuple[int, ...]] = {}
        self._leave(*self._region, self._start, self._end, self.states - 1, found)
        return dict(sorted(found.items()))

    def _work(self, nodes: slice) -> int:
        """Entries that are written for some nodes."""
        types, times = np.unique(self.room.type_of[nodes], return_counts=True)
        fillings = sum(len(self._of_type(t)) * n for t, n in zip(types.tolist(), times.tolist(), strict=True))
        return self.states * int(fillings)

    def _price(self, level: int, domain: int) -> int:
        return 0 if self._held[level][domain] else self._weights[level]

    def _enter(self, level: int, domain: int, before: Any) -> Any:
        """The table after a domain."""
        price = self._price(level, domain)
        if level == self.tree.depth:
            after = before
            for filling in self._of_type(int(self.room.type_of[domain])):
                after = np.minimum(after, before[self._step(filling)] + price)
            return after
        table = before + price if price else before
        for child in self._children(level, domain):
            table = self._enter(level + 1, child, table)
        return np.minimum(before, table) if price else table

    def _children(self, level: int, domain: int) -> list[int]:
        children = self.tree.children(level, domain)
        if self._roomy[level + 1] is None:
            self._roomy[level + 1] = self.tree.levels[level + 1].sums(self.room.most) > 0
        return [child for child in children if self._roomy[level + 1][child]]

    def _of_type(self, number: int) -> list[tuple[int, ...]]:
        """Fillings of a type that are maximal among the counts asked for."""
        found = self._fillings.get(number)
        if found is None:
            kind, request = self.room.types[number], self.room.request.tolist()
            fillings = kind.fillings or maximal_fillings(kind.slots, kind.caps, request, most=COVER_FILLINGS)
            if fillings is None:
                raise TooMuchWork
            found = self._fillings[number] = [filling for filling in fillings if any(filling)]
        return found

    def _step(self, filling: tuple[int, ...]) -> Any:
        """[states] where a state comes from when a node takes the filling."""
        found = self._steps.get(filling)
        if found is None:
            found = self._steps[filling] = origins(self.counts, filling)
        return found

    def _leave(
        self, level: int, domain: int, before: Any, after: Any, state: int, pods: dict[int, tuple[int, ...]]
    ) -> int:
        """Follows a state back to before a domain; what its nodes take goes to `pods`."""
        if int(after[state]) == int(before[state]):
            return state
        price = self._price(level, domain)
        if level < self.tree.depth:
            tables = [before + price]
            children = self._children(level, domain)
            for child in children:
                tables.append(self._enter(level + 1, child, tables[-1]))
            for i in range(len(children) - 1, -1, -1):
                state = self._leave(level + 1, children[i], tables[i], tables[i + 1], state, pods)
            return state
        for filling in self._of_type(int(self.room.type_of[domain])):
            origin = int(self._step(filling)[state])
            if int(before[origin]) + price == int(after[state]):
                had, left = self._vector(state), self._vector(origin)
                pods[domain] = tuple(a - b for a, b in zip(had, left, strict=True))
                return origin
        raise AssertionError("a state comes from somewhere")

    def _vector(self, state: int) -> list[int]:
        out = []
        for n in reversed(self.counts):
            out.append(state % (n + 1))
            state //= n + 1
        return out[::-1]


def origins(counts: Sequence[int], filling: Sequence[int]) -> Ints:
    """[vectors of up to so many pods per shape, as numbers] what is still to be placed once a filling is."""
    found = np.zeros(1, dtype=np.int64)
    for n, taken in zip(counts, filling, strict=True):
        found = (found[:, None] * (n + 1) + np.maximum(np.arange(n + 1) - taken, 0)).reshape(-1)
    return found


class TooMuchWork(Exception):
    """The table would take too long; the solver decides."""
