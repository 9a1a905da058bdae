"""Goal 7 where it has a closed answer: which rank goes to which node when the pods per node are settled.

Source: gang-network.md section 5, goal 7, and the remark below the table. Among equal pods without bound members the
fewest crossings are reached exactly when every domain holds one run of the ring, so whole domains are put in order;
goal 3 decides which orders count, the naturally smallest sequence of paths wins.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from koordpy.planning.goals import Goals, pipeline_groups
from koordpy.planning.problem import Problem

MOST_STEPS = 20_000
"""Steps of the search over orders of whole domains before it gives up."""


def whole_groups(problem: Problem, nodes: Mapping[int, int]) -> tuple[int, ...]:
    """Per level from the top layer to the nodes: PP groups whose placed members lie in one domain of it."""
    levels = [level for level in Goals(problem).group_levels(nodes) if level is not None]
    return tuple(sum(level >= n for level in levels) for n in range(1, problem.tree.depth + 1))


def order_ranks(
    problem: Problem,
    totals: Mapping[int, int],
    ranks: Sequence[int],
    *,
    crossed: Sequence[int] = (),
    score: int | None = None,
) -> dict[int, int] | None:
    """Rank -> node with every domain one run of the ring, or None where no such order is found.

    totals: node -> pods of the given ranks. crossed: goal 3 of the settled counts (Goals.pipeline), which the order
    must reach; empty without PP. score: the total that must be kept where shapes differ. The answer is the best in goal 7. Not for units with bound members.
    """
    if any(n is not None and n >= 0 for m in problem.members if (n := m.node) is not None):
        return None
    plain = [node for node in sorted(totals) for _ in range(totals[node])]
    if not (_fits(problem, ranks, plain) and _keeps(problem, ranks, plain, crossed)):
        found = _Orders(problem, totals, ranks, crossed).search()
        if found is None:
            return None
        plain = found
    nodes = dict(zip(ranks, plain, strict=True))
    return nodes if score is None or Goals(problem).score(nodes) <= (-score,) else None


def _fits(problem: Problem, ranks: Sequence[int], sequence: Sequence[int]) -> bool:
    if len({problem.members[rank].shape for rank in ranks}) == 1:
        return True
    used: Counter[tuple[int, int]] = Counter()
    for rank, node in zip(ranks, sequence, strict=True):
        shape = problem.shapes[problem.members[rank].shape]
        if not shape.allowed[node]:
            return False
        for column, amount in shape.request:
            used[node, column] += amount
    return all(amount <= problem.free[node, column] for (node, column), amount in used.items())


def _keeps(problem: Problem, ranks: Sequence[int], sequence: Sequence[int], crossed: Sequence[int]) -> bool:
    if problem.pipeline <= 1:
        return True
    return Goals(problem).pipeline(dict(zip(ranks, sequence, strict=True))) <= tuple(crossed)


class _Orders:
    """Depth-first search over orders of whole domains, the naturally smaller node first.

    The ring may start inside a domain: the first node's domains may be left early and are completed at the end.
    """

    def __init__(
        self, problem: Problem, totals: Mapping[int, int], ranks: Sequence[int], crossed: Sequence[int]
    ) -> None:
        self.problem, self.ranks = problem, tuple(ranks)
        self.nodes = sorted(node for node, n in totals.items() if n)
        tree = problem.tree
        self.path = {node: tuple(int(d) for d in tree.domain_of[:, node]) for node in self.nodes}
        self.depth = tree.depth
        self.size = Counter({(n, d): 0 for path in self.path.values() for n, d in enumerate(path)})
        for node in self.nodes:
            for n, d in enumerate(self.path[node]):
                self.size[n, d] += totals[node]
        self.left = Counter(self.size)
        self.members = [problem.shapes[problem.members[rank].shape] for rank in self.ranks]
        self.mixed = len({problem.members[rank].shape for rank in self.ranks}) > 1
        self.free = {node: problem.free[node].copy() for node in self.nodes}
        position = {rank: at for at, rank in enumerate(self.ranks)}
        self.group_start: dict[int, int] = {}
        for group in pipeline_groups(problem):
            held = [position[rank] for rank in group if rank in position]
            self.group_start.update(dict.fromkeys(held, held[0]) if held else {})
        # crossed[l]: groups with their lowest domain at level l; up to level l at most the sum may be split so far
        self.limit = np.cumsum(np.array(crossed, dtype=np.int64)) if problem.pipeline > 1 else None

    def search(self) -> list[int] | None:
        sequence: list[int] = []
        low = [self.depth]  # per position: lowest common level of its group so far
        split = [np.zeros(self.depth, dtype=np.int64)]
        options = [self._options(sequence)]
        for _ in range(MOST_STEPS):
            if not options:
                return None
            if not options[-1]:
                options.pop()
                if sequence:
                    self._take(len(sequence) - 1, sequence.pop(), -1)
                    low.pop()
                    split.pop()
                continue
            node = options[-1].pop()
            at = len(sequence)
            if self.mixed and not self._room(at, node):
                continue
            common, crossed = self._groups(sequence, at, node, low[-1], split[-1])
            if self.limit is not None and (crossed > self.limit).any():
                continue
            sequence.append(node)
            self._take(at, node, 1)
            if len(sequence) == len(self.ranks):
                return sequence
            low.append(common)
            split.append(crossed)
            options.append(self._options(sequence))
        return None

    def _groups(
        self, sequence: Sequence[int], at: int, node: int, low: int, split: np.ndarray
    ) -> tuple[int, np.ndarray]:
        """(lowest common level of the group of this position, groups split at each level or above)."""
        if self.limit is None:
            return low, split
        start = self.group_start[at]
        if start == at:
            return self.depth, split
        here, first = self.path[node], self.path[sequence[start]]
        same = max(n for n in range(self.depth + 1) if here[n] == first[n])
        if same >= low:
            return low, split
        split = split.copy()
        split[same:low] += 1
        return same, split

    def _options(self, sequence: Sequence[int]) -> list[int]:
        """Nodes that may come next, the naturally first one last."""
        if not sequence:
            return self.nodes[::-1]
        now, first = self.path[sequence[-1]], self.path[sequence[0]]
        rest = len(self.ranks) - len(sequence)
        out = []
        for node in reversed(self.nodes):
            path = self.path[node]
            if self.left[self.depth, node] and all(
                path[n] == now[n] or (self._may_leave(n, now, first) and self._may_enter(n, path, first, rest))
                for n in range(1, self.depth + 1)
            ):
                out.append(node)
        return out

    def _may_leave(self, level: int, now: tuple[int, ...], first: tuple[int, ...]) -> bool:
        return self.left[level, now[level]] == 0 or now[level] == first[level]

    def _may_enter(self, level: int, path: tuple[int, ...], first: tuple[int, ...], rest: int) -> bool:
        left = self.left[level, path[level]]
        if path[level] == first[level]:
            return left == rest
        return left == self.size[level, path[level]]

    def _room(self, at: int, node: int) -> bool:
        shape = self.members[at]
        return bool(shape.allowed[node]) and all(self.free[node][c] >= amount for c, amount in shape.request)

    def _take(self, at: int, node: int, sign: int) -> None:
        for n, d in enumerate(self.path[node]):
            self.left[n, d] -= sign
        if self.mixed:
            for column, amount in self.members[at].request:
                self.free[node][column] -= sign * amount


def assign_groups(
    problem: Problem,
    pods: Mapping[int, Mapping[int, int]],
    ranks: Sequence[int],
    *,
    whole: Mapping[tuple[int, int, int], int],
    groups: Sequence[Sequence[Sequence[int]]],
) -> dict[int, int]:
    """Rank -> node with given groups whole, the others wherever room is left; goal 7 is not looked at.

    pods: node -> shape -> pods. groups: per group type the ranks of its groups. whole: (type, level, domain) -> groups
    whole in the domain, those in its children included.
    """
    tree = problem.tree
    left = {node: dict(held) for node, held in sorted(pods.items())}
    waiting = [[list(group) for group in reversed(kind)] for kind in groups]
    placed: dict[tuple[int, int, int], int] = {}
    out: dict[int, int] = {}

    def take(members: Sequence[int], nodes: Sequence[int]) -> None:
        for rank in members:
            shape = problem.members[rank].shape
            node = next(n for n in nodes if left[n].get(shape, 0) > 0)
            left[node][shape] -= 1
            out[rank] = node

    for level in range(tree.depth, 0, -1):
        for kind, number, domain in sorted(key for key in whole if key[1] == level):
            done = placed.get((kind, number, domain), 0)
            nodes = [n for n in left if int(tree.domain_of[level, n]) == domain]
            for _ in range(whole[kind, number, domain] - done):
                take(waiting[kind].pop(), nodes)
            above = (kind, level - 1, int(tree.levels[level].parent[domain]))
            placed[above] = placed.get(above, 0) + max(whole[kind, number, domain], done)
    take([rank for rank in ranks if rank not in out], list(left))
    return out
