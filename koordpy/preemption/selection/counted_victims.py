# SPDX-License-Identifier: Apache-2.0
"""Counting: the exact least harmful victims without a solver, if all pods to be placed have one shape.

Source: docs/rules/preemption.md 6. It covers the frequent case that each victim unit is on one node, so that each node
can be solved separately:

1. Find the lowest priority such that victims up to it free enough by sums (cost levels 1 and 2).
2. For each node and each number of pods, find the cheapest victims (`node_covers.py`). The cost is one integer that
   contains the cost levels 3 to 5, 8 and 9, so the costs of nodes can be added.
3. Distribute the pods over the nodes at the lowest total cost. Without a gather goal and with convex costs, always take
   the cheapest next pod (a heap). Otherwise use tables of the lowest cost per number of pods, from the nodes up the
   tree of domains (`gathered_victims.py`).
4. Check the limits between units of different nodes (surplus of a gang, quotas, budgets), which steps 1 to 3 ignore. If
   the set satisfies them, it is optimal. If not, the result is None, and CP-SAT decides.
"""

import heapq
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from koordpy.placement.problem import hard_regions
from koordpy.plan.round_plan import Proof
from koordpy.preemption.selection.gathered_victims import Gathered, NodeOffer
from koordpy.preemption.selection.lower_bounds import sums_allow
from koordpy.preemption.selection.node_covers import LEVEL_BITS, Cover, Item, ItemBuilder, NodeCovers, Unwieldy
from koordpy.preemption.selection.victim_choice import Choice, Choices, cost_levels, keeps


def applies(choices: Choices) -> bool:
    """Returns True if counting can decide a choice.

    It can if units of different nodes can be chosen independently, and if all victims would have the same rule.
    """
    problem = choices.problem
    shapes = {problem.members[rank].shape for rank in problem.pending}
    if (
        len(shapes) != 1
        or problem.interactions
        or choices.ties
        or problem.multiples
        or choices.blockers
        or choices.multiples
        or choices.runtimes
        or choices.returns
        or choices.lots
        or choices.one_of
    ):
        return False
    # the amount that victims must return to a quota depends on the victims of all nodes together
    if any(limit.least for limit in choices.limits):
        return False
    if len({option.rule for option in choices.options}) > 1:
        return False
    # the tables of a gather goal cannot represent bound members, attracting pods that are victims, or a partial last
    # group
    if problem.gather and (problem.bound_counts.any() or any(unit.attracts for unit in choices.units)):
        return False
    return problem.pipeline <= 1 or len(problem.pending) % problem.pipeline == 0


def shortcut(choices: Choices) -> Choice | None:
    """Returns the least harmful options with a proof; None if counting does not apply or cannot prove its result."""
    if not applies(choices):
        return None
    try:
        taken = _Search(choices).solve()
    except Unwieldy:
        return None
    if taken is None or not keeps(choices, taken):
        return None
    levels = cost_levels(choices, taken)
    if levels[0] or levels[5]:  # levels 1 and 6 are not minimised, so only 0 is known to be optimal
        return None
    return Choice(tuple(sorted(taken)), Proof.OPTIMAL)


class _Search:
    """One search by counting. A node is its position, an option its position in `Choices.options`."""

    def __init__(self, choices: Choices) -> None:
        self.choices, self.problem = choices, choices.problem
        # of the pods, which all have one shape: number, shape, requested columns and amounts; and `free`
        # [nodes][columns]
        self.number = len(self.problem.pending)
        self.shape = self.problem.members[self.problem.pending[0]].shape
        self.shape_requested = self.problem.shapes[self.shape]
        self.columns = [column for column, _ in self.shape_requested.request]
        self.request = [amount for _, amount in self.shape_requested.request]
        self.free: list[list[int]] = self.problem.free[:, self.columns].tolist()
        self.regions = [domain for _, domain in hard_regions(self.problem)]

    # --- which units may be used ------------------------------------------------------------------------------------

    def _usable(self) -> tuple[list[int], list[int]]:
        """Returns (options of units on one node, options of units on several nodes).

        Left out are options that a limit or a PodDisruptionBudget forbids even alone, and options with units that free
        nothing.
        """
        closed = {
            option
            for limit in self.choices.limits
            if limit.most is not None and not limit.when
            for option, amount in limit.terms
            if amount > limit.most
        }
        single: list[int] = []
        wide: list[int] = []
        for o, option in enumerate(self.choices.options):
            unit = self.choices.units[option.unit]
            if o in closed or not unit.frees:
                continue
            if unit.budgets and any(pods > self.choices.budgets[b] for b, pods in unit.budgets):
                continue
            (single if len(unit.frees) == 1 else wide).append(o)
        return single, wide

    def _fits(self, options: Iterable[int]) -> bool:
        """Returns True if all of these options together free enough by sums.

        A pod that is both in the core and in a surplus unit may be counted twice, so only False is a proof.
        """
        return sums_allow(self.choices, [self.choices.options[o].unit for o in options])

    def _priority(self, option: int) -> int:
        """Returns the priority of an option's unit."""
        return self.choices.units[self.choices.options[option].unit].priority

    def solve(self) -> list[int] | None:
        """Returns the chosen options; None if no set is found, or if the set is not proven to be the least harmful."""
        single, wide = self._usable()
        # `top`: the lowest priority such that units of one node up to it free enough
        steps = sorted({self._priority(o) for o in single})
        low, high = 0, len(steps)
        while low < high:
            middle = (low + high) // 2
            if self._fits(o for o in single if self._priority(o) <= steps[middle]):
                high = middle
            else:
                low = middle + 1
        if low == len(steps):
            return None
        top = steps[low]
        # units on several nodes are not counted here. If they could give a better set, nothing is proven: a set with a
        # lower priority, or a set of the same priority that breaks no more gangs
        cheaper = [o for o in wide if self._priority(o) < top]
        if cheaper and self._fits([o for o in (*single, *wide) if self._priority(o) < top]):
            return None
        others = [o for o in wide if self._priority(o) <= top]
        if any(not self.choices.units[self.choices.options[o].unit].breaks for o in others):
            return None
        usable = [o for o in single if self._priority(o) <= top]
        found = self._choose(usable)
        if found is None or (others and any(self._unit(o).breaks for o in found)):
            return None
        return found

    def _unit(self, option: int) -> Any:
        """Returns the numbers of an option's unit."""
        return self.choices.units[self.choices.options[option].unit]

    # --- per node ---------------------------------------------------------------------------------------------------

    def _choose(self, usable: list[int]) -> list[int] | None:
        """Returns the least harmful of the usable options; None if all of them free too little."""
        # level 9 has one bit per option in a cost; its position is the rank of the option's unit by importance
        order = sorted(usable, key=lambda o: self._unit(o).rank)
        rank, width = {o: i for i, o in enumerate(order)}, len(order)
        self.late = width + LEVEL_BITS
        """Number of low bits of a cost, below levels 3 to 5. They hold level 9 (`width` bits) and, above it, level
        8."""
        # the options of each node as items with the amounts that they free
        gangs = self._gangs()
        on: dict[int, list[Item]] = {}
        builder = ItemBuilder(self.columns, width)
        for o in usable:
            unit = self._unit(o)
            node = unit.frees[0][0]
            on.setdefault(node, []).append(builder.item(o, unit, node, rank=rank[o], gang=gangs.get(o, -1)))
        # per node, the lowest cost of 0, 1, 2, ... pods; then the pods are distributed over the nodes
        nodes: dict[int, NodeOffer] = {}
        for node in filter(self.shape_requested.allowed.__getitem__, self._usable_nodes(on)):
            found = self._covers(node, on.get(node, []))
            if len(found) > 1:
                costs, every = zip(*found, strict=True)
                nodes[node] = NodeOffer(costs, every)
        if not nodes:
            return None
        if not self.problem.gather and all(_convex(one.costs) for one in nodes.values()):
            return self._cheapest_steps(nodes)
        return Gathered(self.problem, self.regions, nodes, self.number, late=self.late).solve()

    def _gangs(self) -> dict[int, int]:
        """Returns option -> number of its gang; empty if no option is a core.

        The core and the surplus of a gang exclude each other, so their items need the same number. They are found by
        the limit in which they occur together.
        """
        gangs: dict[int, int] = {}
        cores = {o for o in range(len(self.choices.options)) if self._unit(o).breaks}
        if cores:
            for number, limit in enumerate(self.choices.limits):
                if any(o in cores for o, _ in limit.terms):
                    for o, _ in limit.terms:
                        gangs[o] = number
            for number, o in enumerate(sorted(cores)):
                gangs.setdefault(o, len(self.choices.limits) + number)
        return gangs

    def _usable_nodes(self, on: Iterable[int]) -> list[int]:
        """Returns the nodes that have capacity, or units that may be evicted."""
        return sorted({*on, *np.nonzero(self.problem.slots_of[self.shape])[0].tolist()})

    def _covers(self, node: int, items: list[Item]) -> list[Cover]:
        """Returns the cheapest covers of one node for 0, 1, 2, ... pods: sets of victims that free enough for them."""
        free = self.free[node]
        whole = [have + sum(item.frees[c] for item in items) for c, have in enumerate(free)]
        number = max(0, min(self.number, *(have // amount for have, amount in zip(whole, self.request, strict=True))))

        def lacking(pods: int) -> list[int]:
            """Returns the amount of each requested resource that must be freed for the given pods."""
            return [pods * asked - have if pods else 0 for have, asked in zip(free, self.request, strict=True)]

        return NodeCovers(items, lacking(number)).rising([lacking(pods) for pods in range(number + 1)])

    # --- over nodes -------------------------------------------------------------------------------------------------

    def _cheapest_steps(self, nodes: dict[int, NodeOffer]) -> list[int] | None:
        """Returns the options of the lowest total cost, if the costs of every node are convex.

        Convex: each further pod on a node costs at least as much as the pod before. So taking the cheapest next pod,
        with a heap, gives the lowest total. Returns None if all nodes together take too few pods.
        """
        heap = [(one.costs[1] - one.costs[0], node, 1) for node, one in nodes.items()]
        heapq.heapify(heap)
        counts: dict[int, int] = {}
        for _ in range(self.number):
            if not heap:
                return None
            _, node, m = heapq.heappop(heap)
            counts[node] = m
            costs = nodes[node].costs
            if m + 1 < len(costs):
                heapq.heappush(heap, (costs[m + 1] - costs[m], node, m + 1))
        return [o for node, m in counts.items() for o in nodes[node].taken[m]]


def _convex(costs: Sequence[int]) -> bool:
    """Returns True if each increase of the costs is at least as large as the increase before."""
    return all(b - a <= c - b for a, b, c in zip(costs, costs[1:], costs[2:], strict=False))
