"""Goal 7 by a search along the ring, held to a number of crossings per layer.

Source: gang-network.md section 5, goal 7. Ranks are placed one after the other, the naturally smaller node first, so
the first complete sequence within the limits is the naturally smallest. Limits start at a lower bound: a domain that no
stretch of the ring can fill alone takes two runs at least. What a node may hold is known as the list of its possible
mixtures of shapes, so dead ends show early. The work is bounded by a number of steps, never by time.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from koordpy.planning.goals import pipeline_groups
from koordpy.planning.problem import Problem

MOST_STEPS = 15_000
"""Of one walk; no further walk begins after as many."""
MOST_MIXTURES = 400
MOST_RING = 80
"""Longer rings are only tried at one run per domain."""

Mixture = tuple[int, ...]


class RankSearch:
    """Orders the ring of placed members, bound ones fixed, new ones by the given number of pods per node."""

    def __init__(
        self,
        problem: Problem,
        totals: Mapping[int, int],
        ranks: Sequence[int],
        *,
        crossed: Sequence[int],
        score: int | None,
    ) -> None:
        self.problem, self.totals = problem, {n: t for n, t in sorted(totals.items()) if t}
        tree = problem.tree
        self.depth = tree.depth
        fixed = {r: m.node for r, m in enumerate(problem.members) if m.node is not None and m.node >= 0}
        self.ring = sorted([*ranks, *fixed])
        self.forced = [fixed.get(rank) for rank in self.ring]
        self.nodes = sorted({*self.totals, *fixed.values()})
        self.path = {n: tuple(int(d) for d in tree.domain_of[:, n]) for n in self.nodes}
        self.shapes = sorted({problem.members[r].shape for r in ranks})
        position = {s: i for i, s in enumerate(self.shapes)}
        self.shape = [
            -1 if f is not None else position[problem.members[r].shape]
            for r, f in zip(self.ring, self.forced, strict=True)
        ]
        self.wanted = [self.shape.count(i) for i in range(len(self.shapes))]
        self.score = score if score is not None and self._scores_differ() else None
        self.size = Counter[tuple[int, int]]()
        held = Counter(fixed.values())
        for node in self.nodes:
            for n, d in enumerate(self.path[node]):
                self.size[n, d] += self.totals.get(node, 0) + held[node]
        levels = range(1, self.depth + 1)
        bins = {n: len({self.path[v][n] for v in self.nodes}) for n in levels}
        self.levels = [n for n in levels if bins[n] > 1 and (n == self.depth or bins[n] < bins[n + 1])]
        self.bins = [bins[n] for n in self.levels]
        self.group_start = self._group_starts()
        self.limit = np.cumsum(np.array(crossed, dtype=np.int64)) if problem.pipeline > 1 else None
        self.mixtures = self._mixtures()
        self.steps = 0

    def _scores_differ(self) -> bool:
        rows = [[int(self.problem.shapes[s].score[n]) for s in self.shapes] for n in self.totals]
        return len(self.shapes) > 1 and any(len(set(row)) > 1 for row in rows)

    def _group_starts(self) -> list[int]:
        """Per position of the ring the position of the first placed member of its PP group."""
        starts = list(range(len(self.ring)))
        at = {rank: i for i, rank in enumerate(self.ring)}
        for group in pipeline_groups(self.problem):
            held = [at[rank] for rank in group if rank in at]
            for i in held:
                starts[i] = held[0]
        return starts

    # --- what nodes may hold ------------------------------------------------------------------------------------

    def _mixtures(self) -> dict[int, tuple[Mixture, ...]] | None:
        """Node -> the mixtures of shapes that it may hold in some assignment; None where there are too many."""
        known: dict[tuple[object, ...], tuple[Mixture, ...] | None] = {}
        out: dict[int, tuple[Mixture, ...]] = {}
        for node, total in self.totals.items():
            slots = tuple(min(total, int(self.problem.slots_of[s][node])) for s in self.shapes)
            key = (total, slots, tuple(self.problem.free[node].tolist()) if len(slots) > 1 else ())
            if key not in known:
                known[key] = self._node_mixtures(node, total, slots)
            found = known[key]
            if found is None:
                return None
            out[node] = found
        return out if len(self.shapes) == 1 else self._possible(out)

    def _possible(self, out: dict[int, tuple[Mixture, ...]]) -> dict[int, tuple[Mixture, ...]] | None:
        """The mixtures that the other nodes can make up for; None where a node is left with none."""
        shapes = range(len(self.shapes))
        ends = {node: _ends(held) for node, held in out.items()}
        low = [sum(least[i] for least, _ in ends.values()) for i in shapes]
        high = [sum(most[i] for _, most in ends.values()) for i in shapes]
        changed = True
        while changed:
            changed = False
            for node, held in out.items():
                least, most = ends[node]
                spare = [(self.wanted[i] - high[i] + most[i], self.wanted[i] - low[i] + least[i]) for i in shapes]
                kept = tuple(m for m in held if all(lo <= n <= hi for n, (lo, hi) in zip(m, spare, strict=True)))
                if not kept:
                    return None
                if len(kept) < len(held):
                    out[node], changed = kept, True
                    after = ends[node] = _ends(kept)
                    for i in shapes:
                        low[i] += after[0][i] - least[i]
                        high[i] += after[1][i] - most[i]
        return out

    def _node_mixtures(self, node: int, total: int, slots: Mixture) -> tuple[Mixture, ...] | None:
        requests = [self.problem.shapes[s].request for s in self.shapes]
        found: list[Mixture] = []
        stack: list[tuple[Mixture, int]] = [((), total)]
        while stack:
            chosen, rest = stack.pop()
            if len(found) + len(stack) > MOST_MIXTURES:
                return None
            at = len(chosen)
            if at == len(slots) - 1:
                if rest <= slots[at]:
                    mixture = (*chosen, rest)
                    used: Counter[int] = Counter()
                    for n, request in zip(mixture, requests, strict=True):
                        for column, amount in request:
                            used[column] += n * amount
                    if all(self.problem.free[node, c] >= n for c, n in used.items()):
                        found.append(mixture)
            else:
                stack.extend(((*chosen, n), rest - n) for n in range(min(rest, slots[at]) + 1))
        return tuple(found)

    # --- lower bounds -------------------------------------------------------------------------------------------

    def _windows(self, level: int) -> list[list[int]]:
        """Per position of the ring, the lengths of stretches from there that fill some domain of the level alone."""
        assert self.mixtures is not None
        n = len(self.ring)
        kinds = set()
        for domain in {self.path[v][level] for v in self.nodes}:
            inside = [v for v in self.nodes if self.path[v][level] == domain]
            ranges = []
            for i in range(len(self.shapes)):
                held = [self.mixtures[v] for v in inside if v in self.mixtures]
                ranges.append((sum(min(m[i] for m in h) for h in held), sum(max(m[i] for m in h) for h in held)))
            bound = sum(f in inside for f in self.forced if f is not None)
            kinds.add((self.size[level, domain], tuple(ranges), bound, domain if bound else -1))
        out: list[list[int]] = []
        for start in range(n):
            lengths = set()
            for size, spans, bound, domain in kinds:
                stretch = [(start + i) % n for i in range(size)]
                fixed = [f for i in stretch if (f := self.forced[i]) is not None]
                if len(fixed) != bound or any(self.path[f][level] != domain for f in fixed):
                    continue
                have = Counter(self.shape[i] for i in stretch)
                if all(lo <= have[i] <= hi for i, (lo, hi) in enumerate(spans)):
                    lengths.add(size)
            out.append(sorted(lengths))
        return out

    def _bounds(self) -> list[int]:
        """Least crossings per level, and `self.pack` for the rest of the ring from each position on."""
        n = len(self.ring)
        least = []
        self.pack: list[list[int]] = []
        for level, bins in zip(self.levels, self.bins, strict=True):
            if n > MOST_RING:
                least.append(bins)
                self.pack.append([bins] * (n + 1))
                continue
            windows = self._windows(level)
            self.pack.append(_most_windows(windows, n))
            around = max(_most_windows(windows[r:] + windows[:r], n)[0] for r in range(n))
            least.append(bins + max(0, bins - around))
        return least

    # --- search -------------------------------------------------------------------------------------------------

    def solve(self) -> tuple[dict[int, int] | None, bool]:
        """(rank -> node of the new pods, proven), or (None, False)."""
        if self.mixtures is None:
            return None, False
        if not self.levels:
            return self._ranked([self.nodes[0]] * len(self.ring)), True
        limits = self._bounds()
        found, _ = self._within(limits)
        if found is not None:
            return self._ranked(found), True
        if len(self.ring) > MOST_RING or self.steps >= MOST_STEPS:
            return None, False
        proven = True
        unlimited = [len(self.ring)] * len(limits)
        for i in range(len(limits)):
            found = None
            while found is None:
                if self.steps >= MOST_STEPS:
                    return self._loosely(limits), False
                found, refuted = self._within([*limits[: i + 1], *unlimited[i + 1 :]])
                if found is None:
                    proven &= refuted
                    limits[i] += 1
        return None if found is None else self._ranked(found), proven

    def _loosely(self, limits: Sequence[int]) -> dict[int, int] | None:
        """A good order, soon found: the limits are widened together."""
        for percent in (10, 20, 40, 70, 100, 150, 200):
            found, _ = _Walk(self, [n + n * percent // 100 + 1 for n in limits]).run(MOST_STEPS // 8)
            if found is not None:
                return self._ranked(found)
        return None

    def least_crossings(self) -> dict[int, int]:
        """Level -> lower bound on ring neighbours in different domains."""
        return {} if self.mixtures is None else dict(zip(self.levels, self._bounds(), strict=True))

    def _ranked(self, sequence: Sequence[int]) -> dict[int, int]:
        return {r: n for r, n, f in zip(self.ring, sequence, self.forced, strict=True) if f is None}

    def _within(self, limits: Sequence[int]) -> tuple[list[int] | None, bool]:
        """(the naturally smallest sequence with at most so many crossings per level, refuted)."""
        return _Walk(self, limits).run(MOST_STEPS if len(self.ring) <= MOST_RING else MOST_STEPS // 4)


def _ends(held: Sequence[Mixture]) -> tuple[Mixture, Mixture]:
    """The least and the most of each shape."""
    columns = list(zip(*held, strict=True))
    return tuple(map(min, columns)), tuple(map(max, columns))


def _most_windows(windows: Sequence[Sequence[int]], n: int) -> list[int]:
    """Per position, how many disjoint stretches fit from there to the end."""
    most = [0] * (n + 1)
    for at in range(n - 1, -1, -1):
        most[at] = max([most[at + 1], *(1 + most[at + size] for size in windows[at] if at + size <= n)])
    return most


class _Walk:
    """One depth-first walk along the ring."""

    def __init__(self, search: RankSearch, limits: Sequence[int]) -> None:
        assert search.mixtures is not None
        self.search, self.limits = search, list(limits)
        self.mixtures = search.mixtures
        self.levels = search.levels
        self.sequence: list[int] = []
        self.size = {key: n for key, n in search.size.items() if key[0] in search.levels}
        self.left = dict(self.size)
        self.begun = dict.fromkeys(self.levels, 0)
        """Level -> domains with some members, waiting for more; `fresh`: those with none yet."""
        self.fresh = dict(zip(self.levels, search.bins, strict=True))
        self.taken: dict[int, Mixture] = {node: (0,) * len(search.shapes) for node in search.totals}
        self.ranges: dict[tuple[int, Mixture], tuple[Mixture, Mixture] | None] = {}
        self.mixed = len(search.shapes) > 1
        self.memory: set[tuple[object, ...]] = set()
        self.memorise = search.limit is None and search.score is None
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
                node if node in fixed or search.score is not None else -1,
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
            search.steps += 1
            if steps > max(most_steps, 4 * n):
                return None, False
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
                if search.score is None or self._score() >= search.score:
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
        for node in search.totals:
            taken = self.taken[node]
            if sum(taken) == search.totals[node]:
                continue
            span = self._range(node)
            if span is None or span[1][shape] <= taken[shape]:
                continue
            if not any(taken):
                if self.kind[node] in seen:
                    continue
                seen.add(self.kind[node])
            out.append(node)
        return out[::-1]

    def _runs(self, node: int, before: Sequence[int]) -> list[int]:
        if not self.sequence:
            return [1] * len(self.levels)
        path, last = self.search.path[node], self.search.path[self.sequence[-1]]
        return [n + (path[level] != last[level]) for n, level in zip(before, self.levels, strict=True)]

    def _promising(self, runs: Sequence[int]) -> bool:
        """Whether every level may still end within its limit."""
        search, at = self.search, len(self.sequence)
        first, now = search.path[self.sequence[0]], search.path[self.sequence[-1]]
        for i, level in enumerate(self.levels):
            begun, fresh = self.begun[level], self.fresh[level]
            here = self.left[level, now[level]]
            begun -= 0 < here < self.size[level, now[level]]
            need = begun + fresh + max(0, fresh - search.pack[i][at])
            a, b = first[level], now[level]
            last = search.forced[-1]
            ends = last is None or search.path[last][level] == a
            saves = (ends and self.left[level, a] > 0 and a != b) or (
                a == b and not begun and not fresh and runs[i] > 1
            )
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
            if any(lo > n or hi < n for lo, n, hi in zip(self.low, search.wanted, self.high, strict=True)):
                self._shift(after, before)
                self.taken[node] = taken
                return False
        elif shape >= 0:
            self.taken[node] = (self.taken[node][0] + 1,)
        self.sequence.append(node)
        self._move(node, 1)
        return True

    def _move(self, node: int, sign: int) -> None:
        """Counts one member in or out of the node's domains."""
        path = self.search.path[node]
        for level in self.levels:
            key = (level, path[level])
            before, size = self.left[key], self.size[key]
            after = self.left[key] = before - sign
            self.fresh[level] += (after == size) - (before == size)
            self.begun[level] += (0 < after < size) - (0 < before < size)

    def _shift(self, before: tuple[Mixture, Mixture], after: tuple[Mixture, Mixture]) -> None:
        for i in range(len(self.low)):
            self.low[i] += after[0][i] - before[0][i]
            self.high[i] += after[1][i] - before[1][i]

    def _untake(self) -> None:
        node = self.sequence.pop()
        shape = self.search.shape[len(self.sequence)]
        self._move(node, -1)
        if shape >= 0:
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

    def _score(self) -> int:
        search = self.search
        problem, members = search.problem, search.problem.members
        placed = zip(search.ring, self.sequence, search.forced, strict=True)
        return sum(int(problem.shapes[members[r].shape].score[n]) for r, n, f in placed if f is None)
