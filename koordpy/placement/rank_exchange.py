# SPDX-License-Identifier: Apache-2.0
"""Local search for the order of ranks (goal 7): exchanges the nodes of pods while neighbours in the ring move closer.

All placed members in rank order form a ring, as in a ring all-reduce. A crossing is a pair of ring neighbours in
different domains of a layer; goal 7 minimises crossings, top layer first (docs/rules/gang-network.md 5). A stretch is a
number of consecutive positions of the ring: a run of pods in one domain, a pipeline group, or a single pod at the end
of a run. The search exchanges the nodes of two stretches of equal length, or of all pods of two sibling nodes. An
exchange is accepted if the order has fewer crossings, or equally many and naturally smaller paths, and if goals 0 to 6
do not become worse. The search ends if no exchange is better, or after `RANK_STEPS` tries. It proves nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations

from koordpy.placement.goals import pipeline_groups
from koordpy.placement.problem import Problem
from koordpy.plan.limits import RANK_STEPS


class RankExchange:
    """The ring of placed members as a list of positions, and the search on it. Bound members keep their nodes.

    nodes: rank -> node of the new pods. split: the value of goal 3 that an order must not exceed (`Goals.pipeline`).
    keeps: returns True if an order (rank -> node) fits the capacity and is as good in goals 0 to 6. It is called only
    if pods of different shapes are exchanged: for equal pods only goal 3 can change, which `split` covers.
    """

    def __init__(
        self,
        problem: Problem,
        nodes: Mapping[int, int],
        *,
        split: tuple[int, ...],
        keeps: Callable[[Mapping[int, int]], bool],
    ) -> None:
        self.problem, self.tree, self.split, self.keeps = problem, problem.tree, split, keeps
        self.ring = sorted([*nodes, *problem.bound])
        self.at = [nodes[rank] if rank in nodes else problem.bound[rank] for rank in self.ring]
        """The node at each position of the ring."""
        self.fixed = [rank in problem.bound for rank in self.ring]
        """[positions] True for a bound member."""
        self.shape = [problem.members[rank].shape for rank in self.ring]
        self.path: dict[int, tuple[int, ...]] = {
            node: tuple(self.tree.domain_of[1:, node].tolist()) for node in set(self.at)
        }
        """Node -> its domain on each level, from the top layer to the node itself."""
        position = {rank: at for at, rank in enumerate(self.ring)}
        on_node = [[position[rank] for rank in group if rank in position] for group in pipeline_groups(problem)]
        self.groups = [group for group in on_node if group]
        """[groups] positions of the placed members of each pipeline group; groups without a placed member are left
        out."""
        self.group_at = {at: number for number, group in enumerate(self.groups) for at in group}
        """Position -> index in `groups`."""
        self.common = [self._common(group) for group in self.groups]
        """[groups] level of the lowest common domain of the group's placed members."""
        self.costs: dict[tuple[int, int], int] = {}
        """Cache of `_crossing`: (node, next node) -> cost."""
        self.tries = 0

    def improved(self) -> dict[int, int]:
        """Returns rank -> node of the new pods after the search."""
        better = len(self.path) > 1
        while better:
            better = False
            for first, second in self._pairs():
                self.tries += 1
                if self.tries > RANK_STEPS:
                    return self._placed()
                better |= self._exchange(first, second)
        return self._placed()

    def _placed(self) -> dict[int, int]:
        return {rank: node for rank, node, fixed in zip(self.ring, self.at, self.fixed, strict=True) if not fixed}

    def _pairs(self) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """Yields pairs of position lists of equal length, to be exchanged.

        Pairs of stretches of the ring come first, long stretches before short ones, then all pods of two sibling nodes.
        """
        number, stretches = len(self.ring), set[tuple[int, int]]()
        for level in range(self.tree.depth):
            begins = [at for at in range(number) if not at or self._domain(at, level) != self._domain(at - 1, level)]
            for begin, end in zip(begins, [*begins[1:], number], strict=True):
                stretches |= {(end - begin, begin), (1, begin), (1, end - 1)}
        stretches |= {(len(group), group[0]) for group in self.groups if group[-1] - group[0] == len(group) - 1}
        # length -> first positions of the stretches without bound members
        starts: dict[int, list[int]] = {}
        for length, begin in sorted(stretches):
            if not any(self.fixed[begin : begin + length]):
                starts.setdefault(length, []).append(begin)
        for length in sorted(starts, reverse=True):
            for first, second in combinations(starts[length], 2):
                if second - first >= length:
                    yield range(first, first + length), range(second, second + length)
        on_node: dict[int, list[int]] = {}
        for at, node in enumerate(self.at):
            on_node.setdefault(node, []).append(at)
        free = [node for node in sorted(on_node) if not any(self.fixed[at] for at in on_node[node])]
        for one, other in combinations(free, 2):
            if self.path[one][:-1] == self.path[other][:-1] and len(on_node[one]) == len(on_node[other]):
                yield min(on_node[one], on_node[other]), max(on_node[one], on_node[other])
                if self.at[on_node[one][0]] != one:
                    # the caller has accepted the exchange
                    on_node[one], on_node[other] = on_node[other], on_node[one]

    def _domain(self, at: int, level: int) -> int:
        return self.path[self.at[at]][level]

    def _exchange(self, first: Sequence[int], second: Sequence[int]) -> bool:
        """Exchanges the nodes of two lists of positions, and returns True if the order is better afterwards.

        If it is not better, restores the order and returns False.
        """
        here, there = [self.at[at] for at in first], [self.at[at] for at in second]
        if here == there:
            return False
        edges = {(at - back) % len(self.at) for at in (*first, *second) for back in (0, 1)}
        before = sum(map(self._crossing, edges))
        self._put(first, there)
        self._put(second, here)
        if (sum(map(self._crossing, edges)), there) < (before, here) and self._holds(first, second):
            return True
        self._put(first, here)
        self._put(second, there)
        return False

    def _put(self, positions: Sequence[int], nodes: Sequence[int]) -> None:
        for at, node in zip(positions, nodes, strict=True):
            self.at[at] = node

    def _crossing(self, at: int) -> int:
        """Returns the cost of a position and the next one in the ring.

        The cost is an integer with one digit per layer, the top layer first: 1 if the two nodes are in different
        domains of the layer. So sums of costs compare like the numbers of crossings per layer.
        """
        pair = self.at[at], self.at[at + 1 - len(self.at)]
        if pair not in self.costs:
            one, other = (self.path[node] for node in pair)
            base = len(self.at) + 1
            apart = (n for n, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
            self.costs[pair] = sum(int(base ** (self.tree.depth - n)) for n in apart)
        return self.costs[pair]

    def _holds(self, first: Sequence[int], second: Sequence[int]) -> bool:
        """Returns True if goals 0 to 6 are not worse after the nodes of two lists of positions have been exchanged."""
        if self.split:
            touched = {self.group_at[at] for at in (*first, *second)}
            common = dict(enumerate(self.common)) | {number: self._common(self.groups[number]) for number in touched}
            levels = list(common.values())
            if tuple(levels.count(level) for level in range(self.tree.depth)) > self.split:
                return False
        if any(self.shape[a] != self.shape[b] for a, b in zip(first, second, strict=True)) and not self.keeps(
            self._placed()
        ):
            return False
        if self.split:
            self.common = levels
        return True

    def _common(self, group: Sequence[int]) -> int:
        return self.tree.lowest_common([self.at[at] for at in group])[0]
