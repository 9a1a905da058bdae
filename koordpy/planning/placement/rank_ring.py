"""What goal 7 orders: the ring of placed members, the nodes with their numbers of pods, and what each node may hold.

Source: gang-network.md section 5, goal 7. What a node may hold is known as the list of its possible mixtures of shapes,
thinned out by what the other nodes can make up for; so searches see dead ends early.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from koordpy.planning.limits import RANK_KINDS, RANK_MIXTURES
from koordpy.planning.placement.goals import pipeline_groups
from koordpy.planning.placement.problem import Problem

Mixture = tuple[int, ...]


class RankRing:
    """The ring of placed members: bound ones fixed, new ones by the given number of pods per node."""

    def __init__(
        self,
        problem: Problem,
        totals: Mapping[int, int],
        ranks: Sequence[int],
        *,
        crossed: Sequence[int],
        keeps: Callable[[Mapping[int, int]], bool] | None,
    ) -> None:
        self.problem, self.totals = problem, {n: t for n, t in sorted(totals.items()) if t}
        tree = problem.tree
        self.depth = tree.depth
        fixed = problem.bound
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
        self.keeps = keeps
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

    def placed(self, sequence: Sequence[int]) -> dict[int, int]:
        """Rank -> node of the new pods, by the node of each position of the ring."""
        return {r: n for r, n, f in zip(self.ring, sequence, self.forced, strict=True) if f is None}

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
        if len(self.shapes) > RANK_KINDS:
            return None
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
            if len(found) + len(stack) > RANK_MIXTURES:
                return None
            at = len(chosen)
            if at == len(slots) - 1:
                if rest <= slots[at]:
                    mixture = (*chosen, rest)
                    used: Counter[int] = Counter()
                    for n, request in zip(mixture, requests, strict=True):
                        for column, amount in request:
                            used[column] += n * amount
                    # of what nobody here asks for the node may have less than nothing
                    if all(self.problem.free[node, c] >= n for c, n in used.items() if n):
                        found.append(mixture)
            else:
                stack.extend(((*chosen, n), rest - n) for n in range(min(rest, slots[at]) + 1))
        return tuple(found)


def _ends(held: Sequence[Mixture]) -> tuple[Mixture, Mixture]:
    """The least and the most of each shape."""
    columns = list(zip(*held, strict=True))
    return tuple(map(min, columns)), tuple(map(max, columns))
