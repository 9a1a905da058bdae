"""Goal 7 by search: the least crossings per layer that any order can do with, and the walk that is held to them.

Source: gang-network.md section 5, goal 7. Limits start at a lower bound: a domain that no stretch of the ring can fill
alone takes two runs at least. The work is bounded by a number of steps, never by time.
"""

from collections.abc import Sequence
from itertools import accumulate

from koordpy.planning.limits import RANK_STEPS
from koordpy.planning.placement.rank_ring import RankRing
from koordpy.planning.placement.rank_walk import Walk


class RankSearch:
    """Orders the ring of placed members, bound ones fixed, new ones by the given number of pods per node."""

    def __init__(self, ring: RankRing) -> None:
        self.ring = ring
        self.number = len(self.ring.ring)
        self.long = self.number > ring.problem.sizes.ring_pods
        self.pack: list[list[int]] = []
        self.steps = 0

    # --- lower bounds -------------------------------------------------------------------------------------------

    def _windows(self, level: int) -> tuple[list[list[int]], bool]:
        """(per position of the ring the lengths of stretches from there that fill some domain of the level alone,
        whether every domain is filled by some stretch)."""
        ring, n = self.ring, self.number
        assert ring.mixtures is not None
        inside: dict[int, list[int]] = {}
        for node in ring.nodes:
            inside.setdefault(ring.path[node][level], []).append(node)
        kinds = set()
        for domain, nodes in inside.items():
            held = [ring.mixtures[node] for node in nodes if node in ring.mixtures]
            ranges = tuple(
                (sum(min(m[i] for m in h) for h in held), sum(max(m[i] for m in h) for h in held))
                for i in range(len(ring.shapes))
            )
            bound = sum(f in nodes for f in ring.forced if f is not None)
            kinds.add((ring.size[level, domain], ranges, bound, domain if bound else -1))
        twice = [*range(n), *range(n)]
        before = [[0, *accumulate(ring.shape[at] == i for at in twice)] for i in range(len(ring.shapes))]
        fixed = [0, *accumulate(ring.forced[at] is not None for at in twice)]
        out: list[set[int]] = [set() for _ in range(n)]
        every = True
        for size, spans, bound, domain in kinds:
            here = [
                0,
                *accumulate((f := ring.forced[at]) is not None and ring.path[f][level] == domain for at in twice),
            ]
            fits = [
                start
                for start in range(n)
                if fixed[start + size] - fixed[start] == here[start + size] - here[start] == bound
                and all(lo <= b[start + size] - b[start] <= hi for b, (lo, hi) in zip(before, spans, strict=True))
            ]
            every &= bool(fits)
            for start in fits:
                out[start].add(size)
        return [sorted(lengths) for lengths in out], every

    def _bounds(self) -> list[int] | None:
        """Least crossings per level, with `pack`: stretches that fit from each position on.

        None where it is certain that a long ring has no order of whole domains.
        """
        n, least = self.number, []
        self.pack = []
        for level, bins in zip(self.ring.levels, self.ring.bins, strict=True):
            windows, every = self._windows(level)
            if self.long:
                # around the ring one stretch more may fit than along it
                if not every or _most_windows(windows, n)[0] + 1 < bins:
                    return None
                least.append(bins)
                self.pack.append([bins] * (n + 1))
                continue
            self.pack.append(_most_windows(windows, n))
            around = max(_most_windows(windows[r:] + windows[:r], n)[0] for r in range(n))
            least.append(bins + max(0, bins - around))
        return least

    # --- search -------------------------------------------------------------------------------------------------

    def solve(self) -> tuple[dict[int, int] | None, bool]:
        """(rank -> node of the new pods, proven best in goal 7).

        (None, True): a long ring of which it is proven that it has no order of whole domains; (None, False): given up.
        """
        ring = self.ring
        if ring.mixtures is None:
            return None, False
        if not ring.levels:
            return ring.placed([ring.nodes[0]] * self.number), True
        limits = self._bounds()
        if limits is None:
            return None, True
        found, refuted = self._within(limits)
        if found is not None:
            return ring.placed(found), True
        if self.long:
            return None, refuted
        if self.steps >= RANK_STEPS:
            return None, False
        proven = True
        unlimited = [self.number] * len(limits)
        for i in range(len(limits)):
            found = None
            while found is None:
                if self.steps >= RANK_STEPS:
                    return self._loosely(limits), False
                found, refuted = self._within([*limits[: i + 1], *unlimited[i + 1 :]])
                if found is None:
                    proven &= refuted
                    limits[i] += 1
        return None if found is None else ring.placed(found), proven

    def _loosely(self, limits: Sequence[int]) -> dict[int, int] | None:
        """A good order, soon found: the limits are widened together."""
        for percent in (10, 20, 40, 70, 100, 150, 200):
            found, _ = self._walk([n + n * percent // 100 + 1 for n in limits], RANK_STEPS // 8)
            if found is not None:
                return self.ring.placed(found)
        return None

    def _within(self, limits: Sequence[int]) -> tuple[list[int] | None, bool]:
        """(the naturally smallest sequence with at most so many crossings per level, refuted)."""
        return self._walk(limits, RANK_STEPS // 2 if self.long else RANK_STEPS)

    def _walk(self, limits: Sequence[int], most_steps: int) -> tuple[list[int] | None, bool]:
        walk = Walk(self.ring, limits, self.pack)
        found = walk.run(most_steps)
        self.steps += walk.steps
        return found


def _most_windows(windows: Sequence[Sequence[int]], n: int) -> list[int]:
    """Per position, how many disjoint stretches fit from there to the end."""
    most = [0] * (n + 1)
    for at in range(n - 1, -1, -1):
        most[at] = max([most[at + 1], *(1 + most[at + size] for size in windows[at] if at + size <= n)])
    return most
