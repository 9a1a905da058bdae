"""The counting shortcut: exact victims for pods of one shape, if every unit is on one node.

Source: preemption.md 6. Constraints between units of different nodes (surplus of a gang, quotas, budgets with some
allowance) are ignored at first; if the least harmful set satisfies them, it is optimal. Levels 1 and 2 follow from the
units that may be used. The other levels are one integer per set that adds up over nodes: gangs broken, accelerators,
pods, priorities, and level 9 as a power of two per unit. Nodes are combined by min-plus tables along the tree
(`gathered_victims.py`), or by a convex merge if that suffices. The amount that a full quota must get back is a second
number to reach.
"""

import heapq
from collections.abc import Iterable, Sequence
from math import gcd
from typing import Any

import numpy as np

from koordpy.placement.problem import hard_regions
from koordpy.plan.limits import COUNTED_VICTIMS_STATES, COUNTED_VICTIMS_STEPS
from koordpy.plan.round_plan import Proof
from koordpy.preemption.selection.gathered_victims import Gathered, NodeOffer
from koordpy.preemption.selection.lower_bounds import sums_allow
from koordpy.preemption.selection.node_covers import LEVEL_BITS, Item, NodeCovers, Unwieldy, packed
from koordpy.preemption.selection.victim_choice import Choice, Choices, cost_levels, keeps

Options = tuple[int, ...]
Amounts = tuple[int, ...]
Link = Any
"""(previous link, options), or None."""


def applies(choices: Choices) -> bool:
    """Returns True if units of different nodes can be chosen independently."""
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
    demands = [limit for limit in choices.limits if limit.least]
    if len(demands) > 1 or (demands and (demands[0].when or demands[0].most is not None or problem.gather)):
        return False
    if len({option.rule for option in choices.options}) > 1:
        return False
    if problem.gather and (problem.bound_counts.any() or any(unit.attracts for unit in choices.units)):
        return False
    return problem.pipeline <= 1 or len(problem.pending) % problem.pipeline == 0


def shortcut(choices: Choices) -> Choice | None:
    """Returns the least harmful options, proven; None if the method does not apply or cannot prove its answer."""
    if not applies(choices):
        return None
    try:
        taken = _Search(choices).solve()
    except Unwieldy:
        return None
    if taken is None or not keeps(choices, taken):
        return None
    levels = cost_levels(choices, taken)
    if levels[0] or levels[5]:
        return None
    return Choice(tuple(sorted(taken)), Proof.OPTIMAL)


class _Search:
    """One search for the least harmful options of a choice."""

    def __init__(self, choices: Choices) -> None:
        self.choices, self.problem = choices, choices.problem
        self.number = len(self.problem.pending)
        self.shape = self.problem.members[self.problem.pending[0]].shape
        self.asked = self.problem.shapes[self.shape]
        self.columns = [column for column, _ in self.asked.request]
        self.request = [amount for _, amount in self.asked.request]
        self.free: list[list[int]] = self.problem.free[:, self.columns].tolist()
        self.regions = [domain for _, domain in hard_regions(self.problem)]
        asked = [limit for limit in choices.limits if limit.least]
        self.least = asked[0].least or 0 if asked else 0
        """Amount that the victims must give back to a quota of the preemptor."""
        self.gives: dict[int, int] = {}
        for o, amount in asked[0].terms if asked else ():
            self.gives[o] = self.gives.get(o, 0) + amount

    # --- which units may be used ------------------------------------------------------------------------------------

    def _usable(self) -> tuple[list[int], list[int]]:
        """Returns options of units on one node, and on several nodes, that no limit and no budget forbids alone."""
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
        """Returns True if sums allow the choice of all of these; a pod may be counted twice."""
        options = list(options)
        if self.least and sum(self.gives.get(o, 0) for o in options) < self.least:
            return False
        return sums_allow(self.choices, (self.choices.options[o].unit for o in options))

    def _priority(self, option: int) -> int:
        return self.choices.units[self.choices.options[option].unit].priority

    def solve(self) -> list[int] | None:
        """Returns the chosen options; None if nothing is found or proven."""
        single, wide = self._usable()
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
        cheaper = [o for o in wide if self._priority(o) < top]
        if cheaper and self._fits([o for o in (*single, *wide) if self._priority(o) < top]):
            return None
        beside = [o for o in wide if self._priority(o) <= top]
        if any(not self.choices.units[self.choices.options[o].unit].breaks for o in beside):
            return None
        usable = [o for o in single if self._priority(o) <= top]
        found = self._choose(usable)
        if found is None or (beside and any(self._unit(o).breaks for o in found)):
            return None
        return found

    def _unit(self, option: int) -> Any:
        return self.choices.units[self.choices.options[option].unit]

    # --- per node ---------------------------------------------------------------------------------------------------

    def _choose(self, usable: list[int]) -> list[int] | None:
        """Returns the least harmful of the usable options: covers per node, combined over nodes."""
        order = sorted(usable, key=lambda o: self._unit(o).rank)
        rank, width = {o: i for i, o in enumerate(order)}, len(order)
        self.late = width + LEVEL_BITS
        """Number of bits below levels 3 to 5: level 9, then the priorities."""
        gangs, cores = self._gangs()
        on: dict[int, list[Item]] = {}
        known: dict[tuple[tuple[int, int], ...], Amounts] = {}
        for o in usable:
            unit = self._unit(o)
            node, amounts = unit.frees[0]
            if (frees := known.get(amounts)) is None:
                held = dict(amounts)
                frees = known[amounts] = tuple([held.get(column, 0) for column in self.columns])
            cost = packed(
                breaks=unit.breaks,
                devices=unit.devices,
                pods=unit.pods,
                priorities=unit.priorities,
                rank=rank[o],
                width=width,
            )
            item = Item(o, (*frees, self.gives.get(o, 0)), cost, gangs.get(o, -1), o in cores)
            on.setdefault(node, []).append(item)
        if self.least:
            return self._solve_with_give_back(on) if not cores.intersection(usable) else None
        nodes: dict[int, NodeOffer] = {}
        for node in filter(self.asked.allowed.__getitem__, self._usable_nodes(on)):
            found = [(cost, taken) for _, _, cost, taken in self._offers(node, on.get(node, []), 1, 0)]
            if found:
                costs, every = zip((0, ()), *found, strict=True)
                nodes[node] = NodeOffer(costs, every)
        if not nodes:
            return None
        if not self.problem.gather and all(_convex(one.costs) for one in nodes.values()):
            return self._cheapest_steps(nodes)
        return Gathered(self.problem, self.regions, nodes, self.number, late=self.late).solve()

    def _gangs(self) -> tuple[dict[int, int], set[int]]:
        """Returns option -> number of its gang, if a core is among the options; and the cores.

        Gangs are found by their limits.
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
        return gangs, cores

    # --- victims that give back to a quota --------------------------------------------------------------------------

    def _solve_with_give_back(self, on: dict[int, list[Item]]) -> list[int] | None:
        """Returns the options of the least sum over nodes if the victims must also give back to a quota."""
        step = gcd(*(item.frees[-1] for items in on.values() for item in items))
        if not step:
            return None
        wanted = -(-self.least // step)
        states = (self.number + 1) * (wanted + 1)
        if states * len(on) > COUNTED_VICTIMS_STATES:
            raise Unwieldy
        known: dict[tuple[int, int], tuple[int, Link]] = {(0, 0): (0, None)}
        steps = 0
        for node in self._usable_nodes(on):
            offers = self._offers(node, on.get(node, []), step, wanted)
            steps += len(known) * len(offers)
            if steps > COUNTED_VICTIMS_STEPS:
                raise Unwieldy
            after = dict(known)
            for (pods, back), (cost, link) in known.items():
                for more, gives, price, taken in offers:
                    key = min(self.number, pods + more), min(wanted, back + gives)
                    total = cost + price
                    if pods + more <= self.number and (key not in after or total < after[key][0]):
                        after[key] = total, (link, taken)
            known = after
        best = known.get((self.number, wanted))
        if best is None:
            return None
        out: list[int] = []
        link = best[1]
        while link is not None:
            link, taken = link
            out += taken
        return out

    def _usable_nodes(self, on: Iterable[int]) -> list[int]:
        """Returns the nodes that have capacity, or units that may be evicted."""
        return sorted({*on, *np.nonzero(self.problem.slots_of[self.shape])[0].tolist()})

    def _offers(self, node: int, items: list[Item], step: int, wanted: int) -> list[tuple[int, int, int, Options]]:
        """Returns (pods, steps given back, cost, options) of one node, without the empty offer.

        wanted: maximum steps.
        """
        free = self.free[node]
        whole = [have + sum(item.frees[c] for item in items) for c, have in enumerate(free)]
        number = min(self.number, *(have // amount for have, amount in zip(whole, self.request, strict=True)))
        number = max(0, number) if self.asked.allowed[node] else 0
        most = min(wanted, sum(item.frees[-1] for item in items) // step)

        def lacking(pods: int, back: int) -> list[int]:
            asked = (pods * asked - have if pods else 0 for have, asked in zip(free, self.request, strict=True))
            return [*asked, back * step]

        covers = NodeCovers(items, lacking(number, most))
        return [
            (pods, back, *found)
            for back in range(most + 1)
            for pods, found in enumerate(covers.rising(lacking(pods, back) for pods in range(number + 1)))
            if pods or back
        ]

    # --- over nodes -------------------------------------------------------------------------------------------------

    def _cheapest_steps(self, nodes: dict[int, NodeOffer]) -> list[int] | None:
        """Returns the options of the least sum over nodes with convex costs: the cheapest steps."""
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
    return all(b - a <= c - b for a, b, c in zip(costs, costs[1:], costs[2:], strict=False))
