"""Goal 7 by a walk along the ring, held to a number of crossings per layer.

Source: gang-network.md section 5, goal 7. Ranks are placed one after the other, the naturally smaller node first, so
the first complete sequence within the limits is the naturally smallest.
"""

from collections.abc import Sequence
from operator import ge, le

import numpy as np

from koordpy.planning.placement.rank_ring import Mixture, RankRing


class Walk:
    """One depth-first walk along the ring.

    limits: per level of the ring the crossings that are allowed; pack: per level and position, how many stretches from
    there to the end fill a domain alone.
    """

    def __init__(self, search: RankRing, limits: Sequence[int], pack: Sequence[Sequence[int]]) -> None:
        assert search.mixtures is not None
        self.search, self.limits, self.pack = search, list(limits), pack
        self.steps = 0
        self.mixtures = search.mixtures
        self.levels = search.levels
        self.sequence: list[int] = []
        numbers = {key: number for number, key in enumerate(search.size)}
        self.at = {node: [numbers[n, search.path[node][n]] for n in self.levels] for node in search.nodes}
        """Node -> number of its domain of each level of the ring."""
        self.size = list(search.size.values())
        """Per domain its members; `left`: those that are not placed yet."""
        self.left = list(self.size)
        self.begun = [0] * len(self.levels)
        """Per level the domains with some members, waiting for more; `fresh`: those with none yet."""
        self.fresh = list(search.bins)
        self.taken: dict[int, Mixture] = {node: (0,) * len(search.shapes) for node in search.totals}
        self.rest = dict(search.totals)
        """Node -> new pods that it still takes."""
        self.ranges: dict[tuple[int, Mixture], tuple[Mixture, Mixture] | None] = {}
        self.mixed = len(search.shapes) > 1
        self.memory: set[tuple[object, ...]] = set()
        self.memorise = search.limit is None and search.keeps is None
        whole = [self._range(node) for node in search.totals]
        self.low = [sum(r[0][i] for r in whole if r) for i in range(len(search.shapes))]
        self.high = [sum(r[1][i] for r in whole if r) for i in range(len(search.shapes))]
        self.kind = self._kinds()

    def _kinds(self) -> dict[int, int]:
        """Nodes of one parent and kind that are untouched need not be told apart."""
        search = self.search
        fixed = {f for f in search.forced if f is not None}
        numbers: dict[tuple[object, ...], int] = {}
        signs = {
            node: (
                search.path[node][-2],
                search.totals.get(node, 0),
                self.mixtures.get(node),
                node if node in fixed or search.keeps is not None else -1,
            )
            for node in search.nodes
        }
        return {node: numbers.setdefault(sign, len(numbers)) for node, sign in signs.items()}

    def _range(self, node: int) -> tuple[Mixture, Mixture] | None:
        """What a node may hold in the end at least and at most, given what it has; None when it has too much."""
        key = (node, self.taken[node])
        if key not in self.ranges:
            held = [m for m in self.mixtures[node] if all(a <= b for a, b in zip(key[1], m, strict=True))]
            shapes = range(len(key[1]))
            self.ranges[key] = (
                (tuple(min(m[i] for m in held) for i in shapes), tuple(max(m[i] for m in held) for i in shapes))
                if held
                else None
            )
        return self.ranges[key]

    def run(self, most_steps: int) -> tuple[list[int] | None, bool]:
        search, n = self.search, len(self.search.ring)
        runs: list[list[int]] = [[0] * len(self.levels)]
        low, split = [search.depth], [np.zeros(search.depth, dtype=np.int64)]
        options = [self._options()]
        steps = 0
        while options:
            if not options[-1]:
                options.pop()
                if self.sequence:
                    if self.memorise:
                        self.memory.add(self._state(runs[-1]))
                    self._untake()
                    runs.pop()
                    low.pop()
                    split.pop()
                continue
            steps += 1
            self.steps += 1
            if steps > max(most_steps, 4 * n):
                return None, False
            if not steps % 64:
                search.problem.interrupts.step()
            node = options[-1].pop()
            common, crossed = self._groups(node, low[-1], split[-1])
            if search.limit is not None and (crossed > search.limit).any():
                continue
            here = self._runs(node, runs[-1])
            if not self._take(node):
                continue
            if not self._promising(here) or (self.memorise and self._state(here) in self.memory):
                self._untake()
                continue
            if len(self.sequence) == n:
                if search.keeps is None or search.keeps(search.placed(self.sequence)):
                    return list(self.sequence), False
                self._untake()
                continue
            runs.append(here)
            low.append(common)
            split.append(crossed)
            options.append(self._options())
        return None, True

    def _options(self) -> list[int]:
        """Nodes that may come next, the naturally first one last; of untouched like nodes only the first."""
        search, at = self.search, len(self.sequence)
        forced = search.forced[at]
        if forced is not None:
            return [forced]
        shape, out, seen = search.shape[at], [], set()
        for node, rest in self.rest.items():
            if not rest:
                continue
            span = self._range(node)
            if span is None or span[1][shape] <= self.taken[node][shape]:
                continue
            if rest == search.totals[node]:
                if self.kind[node] in seen:
                    continue
                seen.add(self.kind[node])
            out.append(node)
        return out[::-1]

    def _runs(self, node: int, before: Sequence[int]) -> list[int]:
        if not self.sequence:
            return [1] * len(self.levels)
        last = self.at[self.sequence[-1]]
        return [n + (here != there) for n, here, there in zip(before, self.at[node], last, strict=True)]

    def _promising(self, runs: Sequence[int]) -> bool:
        """Whether every level may still end within its limit."""
        done, last = len(self.sequence), self.search.forced[-1]
        first, now = self.at[self.sequence[0]], self.at[self.sequence[-1]]
        for i, (a, b) in enumerate(zip(first, now, strict=True)):
            begun, fresh = self.begun[i], self.fresh[i]
            begun -= 0 < self.left[b] < self.size[b]
            need = begun + fresh + max(0, fresh - self.pack[i][done])
            ends = last is None or self.at[last][i] == a
            saves = (ends and self.left[a] > 0 and a != b) or (a == b and not begun and not fresh and runs[i] > 1)
            if runs[i] + need - saves > self.limits[i]:
                return False
        return True

    def _take(self, node: int) -> bool:
        """Puts the next member on a node; false (and nothing changed) where the rest cannot be placed any more."""
        search = self.search
        shape = search.shape[len(self.sequence)]
        if shape >= 0 and self.mixed:
            before = self._range(node)
            taken = self.taken[node]
            self.taken[node] = tuple(n + (i == shape) for i, n in enumerate(taken))
            after = self._range(node)
            if before is None or after is None:
                self.taken[node] = taken
                return False
            self._shift(before, after)
            if not (all(map(le, self.low, search.wanted)) and all(map(ge, self.high, search.wanted))):
                self._shift(after, before)
                self.taken[node] = taken
                return False
        elif shape >= 0:
            self.taken[node] = (self.taken[node][0] + 1,)
        self.sequence.append(node)
        self._move(node, 1)
        if shape >= 0:
            self.rest[node] -= 1
        return True

    def _move(self, node: int, sign: int) -> None:
        """Counts one member in or out of the node's domains."""
        for i, number in enumerate(self.at[node]):
            before, size = self.left[number], self.size[number]
            after = self.left[number] = before - sign
            self.fresh[i] += (after == size) - (before == size)
            self.begun[i] += (0 < after < size) - (0 < before < size)

    def _shift(self, before: tuple[Mixture, Mixture], after: tuple[Mixture, Mixture]) -> None:
        for i in range(len(self.low)):
            self.low[i] += after[0][i] - before[0][i]
            self.high[i] += after[1][i] - before[1][i]

    def _untake(self) -> None:
        node = self.sequence.pop()
        shape = self.search.shape[len(self.sequence)]
        self._move(node, -1)
        if shape >= 0:
            self.rest[node] += 1
            before = self._range(node)
            self.taken[node] = tuple(n - (i == shape) for i, n in enumerate(self.taken[node]))
            after = self._range(node)
            if self.mixed and before is not None and after is not None:
                self._shift(before, after)

    def _groups(self, node: int, low: int, split: np.ndarray) -> tuple[int, np.ndarray]:
        """(lowest common level of this position's PP group so far, groups split at each level or above)."""
        search, at = self.search, len(self.sequence)
        if search.limit is None:
            return low, split
        start = search.group_start[at]
        if start == at:
            return search.depth, split
        here, first = search.path[node], search.path[self.sequence[start]]
        same = max(n for n in range(search.depth + 1) if here[n] == first[n])
        if same >= low:
            return low, split
        split = split.copy()
        split[same:low] += 1
        return same, split

    def _state(self, runs: Sequence[int]) -> tuple[object, ...]:
        """What decides about the rest, like nodes of one parent not told apart."""
        first, now = self.sequence[0], self.sequence[-1]
        held = sorted((self.kind[n], self.taken.get(n, ()), n == first, n == now) for n in self.search.nodes)
        return len(self.sequence), tuple(runs), tuple(held)
