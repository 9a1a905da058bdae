"""Goal 7 by a walk along the ring, held to a number of crossings per layer.

Source: gang-network.md section 5, goal 7. Ranks are placed one after the other, the naturally smaller node first, so
the first complete sequence within the limits is the naturally smallest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import ge, le

from koordpy.planning.placement.rank_ring import Mixture, RankRing


@dataclass(frozen=True, slots=True)
class _Placed:
    """The first members of the ring in place. sequence: their nodes; left: per domain the members that are to come;
    fresh, begun: per level the domains with no member yet, and with some; rest: node -> new pods that it still takes;
    taken: node -> what it has of each shape; low, high: of each shape what all nodes may hold in the end; runs: per
    level of the ring; common: lowest common level of the last PP group so far; split: groups split at each level or
    above."""

    sequence: tuple[int, ...]
    left: list[int]
    fresh: list[int]
    begun: list[int]
    rest: dict[int, int]
    taken: dict[int, Mixture]
    low: list[int]
    high: list[int]
    runs: list[int]
    common: int
    split: list[int]


class Walk:
    """One depth-first walk along the ring.

    limits: per level of the ring the crossings that are allowed; pack: per level and position, how many stretches from
    there to the end fill a domain alone.
    """

    def __init__(self, ring: RankRing, limits: Sequence[int], pack: Sequence[Sequence[int]]) -> None:
        assert ring.mixtures is not None
        self.ring, self.limits, self.pack, self.mixtures = ring, list(limits), pack, ring.mixtures
        self.steps = 0
        numbers = {key: number for number, key in enumerate(ring.size)}
        self.at = {node: [numbers[n, ring.path[node][n]] for n in ring.levels] for node in ring.nodes}
        """Node -> number of its domain of each level of the ring."""
        self.size = list(ring.size.values())
        self.ranges: dict[tuple[int, Mixture], tuple[Mixture, Mixture] | None] = {}
        self.kind = self._kinds()

    def _kinds(self) -> dict[int, int]:
        """Nodes of one parent and kind that are untouched need not be told apart."""
        ring = self.ring
        fixed = {f for f in ring.forced if f is not None}
        numbers: dict[tuple[object, ...], int] = {}
        signs = {
            node: (
                ring.path[node][-2],
                ring.totals.get(node, 0),
                self.mixtures.get(node),
                node if node in fixed or ring.keeps is not None else -1,
            )
            for node in ring.nodes
        }
        return {node: numbers.setdefault(sign, len(numbers)) for node, sign in signs.items()}

    def _range(self, node: int, taken: Mixture) -> tuple[Mixture, Mixture] | None:
        """What a node may hold in the end at least and at most, given what it has; None when it has too much."""
        key = (node, taken)
        if key not in self.ranges:
            held = [m for m in self.mixtures[node] if all(map(le, taken, m))]
            columns = list(zip(*held, strict=True))
            self.ranges[key] = (tuple(map(min, columns)), tuple(map(max, columns))) if held else None
        return self.ranges[key]

    def _start(self) -> _Placed:
        ring, none = self.ring, (0,) * len(self.ring.shapes)
        whole = [self._range(node, none) for node in ring.totals]
        low, high = ([sum(r[k][i] for r in whole if r) for i in range(len(none))] for k in (0, 1))
        taken, begun = dict.fromkeys(ring.totals, none), [0] * len(ring.levels)
        rest, split = dict(ring.totals), [0] * ring.depth
        return _Placed((), self.size, ring.bins, begun, rest, taken, low, high, begun, ring.depth, split)

    def run(self, most_steps: int) -> tuple[list[int] | None, bool]:
        """(the naturally smallest sequence within the limits, whether it is certain that there is none)."""
        ring, n = self.ring, len(self.ring.ring)
        start = self._start()
        stack = [(start, self._options(start))]
        while stack:
            placed, options = stack[-1]
            if not options:
                stack.pop()
                continue
            self.steps += 1
            if self.steps > max(most_steps, 4 * n):
                return None, False
            if not self.steps % 64:
                ring.problem.interrupts.step()
            after = self._after(placed, options.pop())
            if after is None:
                continue
            if len(after.sequence) < n:
                stack.append((after, self._options(after)))
            elif ring.keeps is None or ring.keeps(ring.placed(after.sequence)):
                return list(after.sequence), False
        return None, True

    def _options(self, placed: _Placed) -> list[int]:
        """Nodes that may come next, the naturally first one last; of untouched like nodes only the first."""
        ring, at = self.ring, len(placed.sequence)
        forced = ring.forced[at]
        if forced is not None:
            return [forced]
        shape, out, seen = ring.shape[at], [], set()
        for node, rest in placed.rest.items():
            if not rest:
                continue
            span = self._range(node, placed.taken[node])
            if span is None or span[1][shape] <= placed.taken[node][shape]:
                continue
            if rest == ring.totals[node]:
                if self.kind[node] in seen:
                    continue
                seen.add(self.kind[node])
            out.append(node)
        return out[::-1]

    def _after(self, placed: _Placed, node: int) -> _Placed | None:
        """The next member on a node; None where the rest cannot be placed any more, or not within the limits."""
        ring, at = self.ring, len(placed.sequence)
        shape, (common, split) = ring.shape[at], self._groups(placed, node)
        if ring.limit is not None and any(n > most for n, most in zip(split, ring.limit, strict=True)):
            return None
        rest, taken, low, high = placed.rest, placed.taken, placed.low, placed.high
        if shape >= 0:
            held = tuple(n + (i == shape) for i, n in enumerate(taken[node]))
            before, after = self._range(node, taken[node]), self._range(node, held)
            if before is None or after is None:
                return None
            low = [n + b - a for n, a, b in zip(low, before[0], after[0], strict=True)]
            high = [n + b - a for n, a, b in zip(high, before[1], after[1], strict=True)]
            if not (all(map(le, low, ring.wanted)) and all(map(ge, high, ring.wanted))):
                return None
            rest, taken = {**rest, node: rest[node] - 1}, {**taken, node: held}
        left, fresh, begun = placed.left.copy(), placed.fresh.copy(), placed.begun.copy()
        for i, number in enumerate(self.at[node]):
            size, left[number] = self.size[number], left[number] - 1
            fresh[i] -= left[number] + 1 == size
            begun[i] += (0 < left[number] < size) - (0 < left[number] + 1 < size)
        last = self.at[placed.sequence[-1]] if placed.sequence else [-1] * len(ring.levels)
        runs = [n + (here != there) for n, here, there in zip(placed.runs, self.at[node], last, strict=True)]
        sequence = (*placed.sequence, node)
        found = _Placed(sequence, left, fresh, begun, rest, taken, low, high, runs, common, split)
        return found if self._promising(found) else None

    def _promising(self, placed: _Placed) -> bool:
        """Whether every level may still end within its limit."""
        done, last = len(placed.sequence), self.ring.forced[-1]
        first, now = self.at[placed.sequence[0]], self.at[placed.sequence[-1]]
        for i, (a, b) in enumerate(zip(first, now, strict=True)):
            begun, fresh = placed.begun[i], placed.fresh[i]
            begun -= 0 < placed.left[b] < self.size[b]
            need = begun + fresh + max(0, fresh - self.pack[i][done])
            ends = last is None or self.at[last][i] == a
            saves = ends and placed.left[a] > 0 and a != b
            saves |= a == b and not begun and not fresh and placed.runs[i] > 1
            if placed.runs[i] + need - saves > self.limits[i]:
                return False
        return True

    def _groups(self, placed: _Placed, node: int) -> tuple[int, list[int]]:
        """`common` and `split` with the next member on a node."""
        ring, at = self.ring, len(placed.sequence)
        if ring.limit is None:
            return placed.common, placed.split
        start = ring.group_start[at]
        if start == at:
            return ring.depth, placed.split
        here, first = ring.path[node], ring.path[placed.sequence[start]]
        same = max(n for n in range(ring.depth + 1) if here[n] == first[n])
        if same >= placed.common:
            return placed.common, placed.split
        return same, [n + (same <= level < placed.common) for level, n in enumerate(placed.split)]
