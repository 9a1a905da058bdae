# SPDX-License-Identifier: Apache-2.0
"""Goal 7: decides which rank gets which node, once the number of pods of each shape on each node is decided.

Members in rank order exchange data with their neighbours, as in a ring all-reduce. So neighbours should be close in the
network (docs/rules/gang-network.md 5). Three methods are tried in this order:

1. Natural order: the used nodes in natural order of their paths, each filled with the next ranks; O(ranks).
2. For equal pods with pipeline groups and no bound member: an order of whole domains (`whole_domains`).
3. A bounded local search (`rank_exchange`). It starts from the better of two orders: each pod on the node nearest to
   the node of the previous rank, or the order with whole pipeline groups (`assign_groups`).

An order is proven best if each domain with members has one run of consecutive ranks, because no order has fewer
crossings. The natural order of names, which decides between equally good orders, is not part of the proof.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from koordpy.placement.goals import Goals, beyond_room, faults_together
from koordpy.placement.problem import Problem
from koordpy.placement.rank_exchange import RankExchange
from koordpy.placement.whole_domains import WholeDomains


def settle_ranks(problem: Problem, start: Mapping[int, int]) -> tuple[dict[int, int], bool]:
    """Returns (rank -> node, True if the order is proven best in goal 7).

    start: a placement (rank -> node) that is best in goals 0 to 6. The result has the same number of pods of each shape
    per node, and is as good in these goals.
    """
    goals, ranks = Goals(problem), sorted(start)
    score, counted, split = goals.score(start), goals.counted(start), goals.pipeline(start)
    alike = _are_exchangeable(problem, start)

    def keeps(nodes: Mapping[int, int]) -> bool:
        """Returns True if the order fits the capacity of every node and is as good as the start in goals 0 to 6."""
        shapes = problem.shapes
        if not all(shapes[problem.members[rank].shape].allowed[node] for rank, node in nodes.items()):
            return False
        if beyond_room(problem, nodes) or goals.pipeline(nodes) > split:
            return False
        same = alike or (goals.score(nodes) <= score and goals.counted(nodes) == counted)
        return same and (alike or not faults_together(problem, nodes))

    if ordered := _closed_form(problem, ranks, Counter(start.values()), keeps):
        return ordered, True
    return _searched(problem, start, keeps)


def rank_counts(problem: Problem, ranks: Sequence[int], counts: Mapping[int, int]) -> tuple[dict[int, int], bool]:
    """Returns the result of `settle_ranks` for pods of one shape, from the number of pods per node.

    counts: node -> pods. For equal pods, goals 0 to 6 depend on the counts alone, with one exception: the order must
    keep as many pipeline groups whole as the counts allow.
    """
    # (group type 0, level, domain) -> whole groups; `split`: goal 3 of an order that keeps all these groups whole
    tree, size, whole = problem.tree, problem.pipeline, dict[tuple[int, int, int], int]()
    per_node = np.zeros(len(problem.free), dtype=np.int64)
    per_node[list(counts)] = list(counts.values())
    for level in range(1, tree.depth + 1) if size > 1 else ():
        sums = tree.levels[level].sums(per_node)
        whole |= {(0, level, d): int(sums[d]) // size for d in np.nonzero(sums >= size)[0].tolist()}
    most = [
        -(-len(ranks) // size),
        *(sum(n for (_, at, _), n in whole.items() if at == level + 1) for level in range(tree.depth)),
    ]
    split = tuple(above - below for above, below in pairwise(most)) if size > 1 else ()

    def keeps(nodes: Mapping[int, int]) -> bool:
        """Returns True if the order has as many whole pipeline groups on every level as the counts allow."""
        return size == 1 or Goals(problem).pipeline(nodes) <= split

    if ordered := _closed_form(problem, ranks, counts, keeps):
        return ordered, True
    shape = problem.members[ranks[0]].shape
    runs = [ranks[at : at + size] for at in range(0, len(ranks), size)] if size > 1 else []
    held = {node: {shape: n} for node, n in sorted(counts.items())}
    return _searched(problem, assign_groups(problem, held, ranks, whole=whole, groups=[runs]), keeps)


def _closed_form(
    problem: Problem, ranks: Sequence[int], counts: Mapping[int, int], keeps: Callable[[Mapping[int, int]], bool]
) -> dict[int, int] | None:
    """Returns rank -> node in which every domain is one run of the ring, by methods 1 and 2; None if neither applies.

    With bound members, the result is None, except if all new pods are on one node: then all orders are equal. keeps:
    returns True if an order is as good in goals 0 to 6.
    """
    if problem.bound:
        return dict.fromkeys(ranks, *counts) if len(counts) == 1 else None
    natural = dict(zip(ranks, [node for node in sorted(counts) for _ in range(counts[node])], strict=True))
    if keeps(natural):
        return natural
    equal = len(ranks) == len(problem.members) and len({member.shape for member in problem.members}) == 1
    if not equal or problem.pipeline == 1 or len(ranks) % problem.pipeline:
        return None
    whole = WholeDomains(problem, counts).find()
    return None if whole is None else dict(zip(ranks, whole, strict=True))


def _searched(
    problem: Problem, start: Mapping[int, int], keeps: Callable[[Mapping[int, int]], bool]
) -> tuple[dict[int, int], bool]:
    """Returns (rank -> node by the local search, True if it is proven best).

    The search starts from the better of two orders.
    """
    goals = Goals(problem)
    split, nearest = goals.pipeline(start), _nearest_to_the_last(problem, start)
    first = min((order for order in (nearest, dict(start)) if goals.pipeline(order) <= split), key=goals.ranks)
    nodes = RankExchange(problem, first, split=split, keeps=keeps).improved()
    return nodes, goals.crossings(nodes) == tuple(n if n > 1 else 0 for n in goals.domains(nodes))


def _are_exchangeable(problem: Problem, start: Mapping[int, int]) -> bool:
    """Returns True if exchanging the nodes of any two pods changes no goal except goal 7.

    This is so for one shape, or if all shapes have equal scores on the nodes used and no rule concerns other pods.
    """
    shapes = sorted({problem.members[rank].shape for rank in start})
    if len(shapes) == 1:
        return True
    rows = np.stack([problem.shapes[s].score[sorted(set(start.values()))] for s in shapes])
    return not problem.interactions and problem.device_costs is None and bool((rows == rows[0]).all())


def _nearest_to_the_last(problem: Problem, start: Mapping[int, int]) -> dict[int, int]:
    """Returns rank -> node with the same number of pods of each shape per node as `start`.

    Each pod gets the node that shares the lowest domain with the node of the previous rank, among the nodes with places
    left for its shape; if there are several, the naturally first. O(ranks x log nodes).
    """
    tree, bound = problem.tree, problem.bound
    left = Counter((problem.members[rank].shape, node) for rank, node in start.items())
    nodes_of: dict[int, list[int]] = {}
    for shape, node in sorted(left):
        nodes_of.setdefault(shape, []).append(node)
    out: dict[int, int] = {}
    last = next((bound[rank] for rank in sorted(bound)), 0)
    for rank in sorted([*start, *bound]):
        if rank in bound:
            last = bound[rank]
            continue
        shape = problem.members[rank].shape
        nodes = nodes_of[shape]
        at = bisect_left(nodes, last)
        level = max(tree.lowest_common([last, node])[0] for node in nodes[max(at - 1, 0) : at + 1])
        first = int(tree.levels[level].start[tree.domain_of[level, last]])
        last = out[rank] = last if level == tree.depth else nodes[bisect_left(nodes, first)]
        left[shape, last] -= 1
        if not left[shape, last]:
            nodes.remove(last)
    return out


def assign_groups(
    problem: Problem,
    pods: Mapping[int, Mapping[int, int]],
    ranks: Sequence[int],
    *,
    whole: Mapping[tuple[int, int, int], int],
    groups: Sequence[Sequence[Sequence[int]]],
) -> dict[int, int]:
    """Returns rank -> node with as many whole pipeline groups in each domain as `whole` requires. Ignores goal 7.

    A group is whole in a domain if all its members are there. Members of other groups get the remaining places.

    pods: node -> shape -> number of pods to place there. groups: for each group type (index), the ranks of each group
    of the type. whole: (type, level, domain) -> number of groups that are whole in the domain, including groups that
    are whole in one of its children.
    """
    tree = problem.tree
    # `left`: places not used yet; `waiting`: groups not assigned yet; `placed`: number of groups whole in children
    left = {node: dict(held) for node, held in sorted(pods.items())}
    waiting = [[list(group) for group in reversed(kind)] for kind in groups]
    placed: dict[tuple[int, int, int], int] = {}
    out: dict[int, int] = {}

    def take(members: Sequence[int], nodes: Sequence[int]) -> None:
        """Assigns members to the first of these nodes with a place for their shape."""
        for rank in members:
            shape = problem.members[rank].shape
            node = next(n for n in nodes if left[n].get(shape, 0) > 0)
            left[node][shape] -= 1
            out[rank] = node

    # from the nodes upwards: assign the groups that are whole in a domain but in none of its children
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
