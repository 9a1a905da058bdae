"""Victims for single pods by priority, where nothing but the node decides: one answer per node, kept between pods.

A busy cluster sees hundreds of plain pods that each preempt somebody. Without quotas, budgets, share lines and filters
that look at other pods a node's cheapest victims depend on the node alone, so that after each plan only the nodes it
touched are looked at anew. Where a gang's surplus would be exceeded, or sets are unwieldy, the general search decides.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

from koordpy.cluster.pods import PodInfo
from koordpy.planning.figures import Figures
from koordpy.planning.placement.problem import Problem
from koordpy.planning.victim_selection.cover import Item, Unwieldy, covers
from koordpy.planning.victim_selection.units import UnitKind
from koordpy.planning.victims.pool import Pool

_FIELD = 64
_SHIFT = 1 << 31

Answer = tuple[int, int, tuple[int, ...]]
"""(highest priority, cost of the other levels, units of the pool)."""


@dataclass
class _UnitTable:
    """Answers of one kind of pod, current up to a version of the draft."""

    seen: int = -1
    answers: dict[int, Answer] = field(default_factory=dict)


class SinglePod:
    """The answers of a round. Holds for one pool; a pool that reads gangs anew starts it over."""

    def __init__(self, pool: Pool, figures: Figures) -> None:
        self.pool, self.figures = pool, figures
        self._tables: dict[Hashable, _UnitTable] = {}
        self._size = 0
        self._on: dict[int, list[int]] = {}

    def find(self, pod: PodInfo, problem: Problem) -> tuple[int, ...] | None:
        """The cheapest set of victim units for one pod; an empty tuple where no node can be freed for it.

        problem: of the pod alone, without a gather goal. None where the pod has a feature that this method does not
        model: the caller then takes another one.
        """
        if self._size != len(self.pool.units):
            self._read()
        key = self.figures.key(pod), pod.priority
        table = self._tables.setdefault(key, _UnitTable())
        draft = self.figures.draft
        shape = problem.shapes[problem.members[problem.pending[0]].shape]
        if table.seen < 0:
            nodes = np.nonzero(shape.allowed)[0].tolist()
        else:
            nodes = [node for node in draft.touched_since(table.seen) if shape.allowed[node]]
        table.seen = draft.version
        request = [amount for _, amount in shape.request]
        columns = [column for column, _ in shape.request]
        try:
            for node in nodes:
                free = [int(problem.free[node, column]) for column in columns]
                answer = self._node(node, free, request, columns, pod.priority)
                if answer is None:
                    table.answers.pop(node, None)
                else:
                    table.answers[node] = answer
        except Unwieldy:
            del self._tables[key]
            return None
        if not table.answers:
            return ()
        best = min(table.answers.values())[2]
        return best if self._lends(best) else None

    def _read(self) -> None:
        self._size = len(self.pool.units)
        self._tables.clear()
        self._on.clear()
        for i, alive in enumerate(self.pool.alive):
            if alive:
                for node, _ in self.pool.free_of(i):
                    self._on.setdefault(node, []).append(i)

    def _node(self, node: int, free: list[int], request: list[int], columns: list[int], priority: int) -> Answer | None:
        """The cheapest set of one node, by the lowest priority that is enough."""
        pool = self.pool
        units = [i for i in self._on.get(node, ()) if pool.alive[i] and pool.units[i].priority < priority]
        gangs: dict[str, int] = {}
        items: list[Item] = []
        whole = list(free)
        order = sorted(units, key=lambda i: pool.units[i].priority)
        for at, i in enumerate(order):
            unit = pool.units[i]
            held = dict(next(amounts for n, amounts in pool.free_of(i) if n == node))
            frees = tuple(held.get(column, 0) for column in columns)
            gang = gangs.setdefault(unit.group, len(gangs)) if unit.group else -1
            items.append(Item(i, frees, self._cost(i), gang, unit.kind is UnitKind.CORE))
            whole = [have + amount for have, amount in zip(whole, frees, strict=True)]
            last = at + 1 == len(order) or pool.units[order[at + 1]].priority > unit.priority
            if last and all(have >= asked for have, asked in zip(whole, request, strict=True)):
                found = covers(free, request, items, 1)
                if len(found) > 1 and found[1][1]:
                    return unit.priority, found[1][0], found[1][1]
        return None

    def _cost(self, i: int) -> int:
        unit = self.pool.units[i]
        cost = unit.breaks << _FIELD | unit.devices
        cost = cost << _FIELD | len(unit.pods)
        cost = cost << _FIELD | (unit.priorities + _SHIFT * len(unit.pods))
        return cost << len(self.pool.units) | 1 << self.pool.ranks[i]

    def _lends(self, taken: tuple[int, ...]) -> bool:
        """Whether the surplus of every gang allows what is taken, and nothing is counted twice."""
        pool = self.pool
        groups = Counter(pool.units[i].group for i in taken if pool.units[i].group)
        for group in groups:
            for lending in pool.lendings.get(group, ()):
                core = lending.core is not None and pool.at(lending.core) in taken
                lent = sum(pool.at(unit) in taken for unit in lending.surplus)
                if lent > (0 if core else lending.most):
                    return False
        return True
