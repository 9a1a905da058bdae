"""Goal 7: which rank goes to which node when the pods per node are settled.

Source: gang-network.md section 5, goal 7, and the remark below the table. Three ways, the first that serves: natural
path order; a search along the ring that is held to a lower bound of crossings (`rank_search`), exact wherever the bound
is met, as it is when every domain can hold one run, or where every smaller one is refuted; else an order that keeps the
goals before (`assign_groups`).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from koordpy.planning.placement.goals import Goals, beyond_room, faults_together
from koordpy.planning.placement.problem import Problem
from koordpy.planning.placement.rank_ring import RankRing
from koordpy.planning.placement.rank_search import RankSearch


def settle_ranks(problem: Problem, start: Mapping[int, int]) -> tuple[dict[int, int], bool]:
    """(the best assignment in goal 7 with the pods per node, goal 3 and score of one that is best in goals 0 to 6, rank
    -> node; whether it is proven best).

    Where the search gives up, the better of its order and the start serves.
    """
    goals, ranks = Goals(problem), sorted(start)
    score, counted = goals.score(start), goals.counted(start)

    def keeps(nodes: Mapping[int, int]) -> bool:
        same = goals.score(nodes) <= score and goals.counted(nodes) == counted
        return same and not faults_together(problem, nodes)

    alike, crossed = _exchangeable(problem, start), goals.pipeline(start)
    ordered, proven = _order(problem, Counter(start.values()), ranks, crossed, keeps=None if alike else keeps)
    return _better(problem, ordered, start), proven


def rank_counts(problem: Problem, ranks: Sequence[int], counts: Mapping[int, int]) -> tuple[dict[int, int], bool]:
    """The same for equal pods with a gather goal, by the pods per node."""
    tree, size, whole = problem.tree, problem.pipeline, dict[tuple[int, int, int], int]()
    per_node = np.zeros(len(problem.free), dtype=np.int64)
    per_node[list(counts)] = list(counts.values())
    for level in range(1, tree.depth + 1) if size > 1 else ():
        sums = tree.levels[level].sums(per_node)
        whole |= {(0, level, d): int(sums[d]) // size for d in np.nonzero(sums >= size)[0].tolist()}
    groups = -(-len(ranks) // size)
    most = [groups, *(sum(n for (_, at, _), n in whole.items() if at == level) for level in range(1, tree.depth + 1))]
    crossed = [above - below for above, below in pairwise(most)] if size > 1 else []
    ordered, proven = _order(problem, counts, ranks, crossed)
    if ordered is not None and proven:
        return ordered, True  # before a start is made, which takes longer
    shape = problem.members[ranks[0]].shape
    runs = [ranks[at : at + size] for at in range(0, len(ranks), size)] if size > 1 else []
    held = {node: {shape: n} for node, n in sorted(counts.items())}
    start = assign_groups(problem, held, ranks, whole=whole, groups=[runs])
    return _better(problem, ordered, start), proven


def _better(problem: Problem, ordered: dict[int, int] | None, start: Mapping[int, int]) -> dict[int, int]:
    """The better order of two; none was found where the first is None."""
    goals = Goals(problem)
    return ordered if ordered is not None and goals.ranks(ordered) <= goals.ranks(start) else dict(start)


def _order(
    problem: Problem,
    totals: Mapping[int, int],
    ranks: Sequence[int],
    crossed: Sequence[int],
    *,
    keeps: Callable[[Mapping[int, int]], bool] | None = None,
) -> tuple[dict[int, int] | None, bool]:
    """(rank -> node, proven best in goal 7), or (None, False) where the search gives up.

    totals: node -> pods of the given ranks. crossed: goal 3 of the settled counts (Goals.pipeline), which must be kept;
    empty without PP. keeps: whether an order leaves the other goals where they are, asked of whole orders; needed where
    shapes differ in more than their room.
    """
    if len(totals) == 1:
        return dict.fromkeys(ranks, *totals), True
    plain = [node for node in sorted(totals) for _ in range(totals[node])]
    if not problem.bound and _fits(problem, ranks, plain):
        nodes = dict(zip(ranks, plain, strict=True))
        whole = problem.pipeline <= 1 or Goals(problem).pipeline(nodes) <= tuple(crossed)
        if whole and (keeps is None or keeps(nodes)):
            return nodes, True
    return RankSearch(RankRing(problem, totals, ranks, crossed=crossed, keeps=keeps)).solve()


def _exchangeable(problem: Problem, start: Mapping[int, int]) -> bool:
    """Whether pods may change places wherever there is room: nothing but their order changes."""
    shapes = sorted({problem.members[rank].shape for rank in start})
    if len(shapes) == 1:
        return True
    rows = np.stack([problem.shapes[s].score[sorted(set(start.values()))] for s in shapes])
    return not problem.interactions and problem.by_count is None and bool((rows == rows[0]).all())


def _fits(problem: Problem, ranks: Sequence[int], sequence: Sequence[int]) -> bool:
    if len({problem.members[rank].shape for rank in ranks}) == 1:
        return True
    placed = dict(zip(ranks, sequence, strict=True))
    may = all(problem.shapes[problem.members[rank].shape].allowed[node] for rank, node in placed.items())
    return may and not beyond_room(problem, placed)


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
