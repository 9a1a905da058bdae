# SPDX-License-Identifier: Apache-2.0
"""Finds the node that is cheapest to free for a plain pod, with a cache of the cheapest victims of each node.

A busy cluster has hundreds of plain pods that each evict another pod. Without nominations, and without filters that
depend on other pods, the cheapest victims of a node depend only on the node and on the eligible units. So after a plan,
only the nodes with changed pods or changed eligible units are recomputed. Limits that span nodes, such as quotas,
budgets and gangs, are not checked here; if they forbid the victims, the general search decides.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

from koordpy.feasibility.round_state import RoundState
from koordpy.placement.problem import Problem
from koordpy.pods.pod_info import PodInfo
from koordpy.preemption.search.victim_pool import Mask, Pool
from koordpy.preemption.selection.node_covers import Item, ItemBuilder, NodeCovers, Unwieldy

Answer = tuple[int, int, tuple[int, ...]]
"""The cheapest victims of one node: (highest priority, cost of the other levels, units of the pool)."""


@dataclass
class _UnitTable:
    """The cheapest victims of each node, for one kind of pod under one rule."""

    eligible: Mask
    """The eligible units for which the answers were computed."""
    seen: int = -1
    """Version of the draft for which the answers were computed; -1 if there are none."""
    answers: dict[int, Answer] = field(default_factory=dict)
    """Node position -> answer. A node without an answer cannot be freed."""


class SinglePod:
    """The cheapest victims of each node of a round, for one pool.

    All answers are dropped when the pool gets new units.
    """

    def __init__(self, pool: Pool, round_state: RoundState) -> None:
        self.pool, self.round_state = pool, round_state
        self._tables: dict[Hashable, _UnitTable] = {}
        """Kind of pod (shape, priority, quota, user) and rule -> table."""
        self._size = 0
        """Number of units in the pool when `_on` was built."""
        self._on: dict[int, list[int]] = {}
        """Node position -> units there that are not evicted."""

    def cheapest(self, pod: PodInfo, problem: Problem, rule: str, eligible: Mask) -> Mask | None:
        """Returns [units]: the cheapest units that free a node for one pod.

        A mask without units is a proof that no node can be freed. None means "not decided here": there are too many
        combinations, or the pod may need a victim with an exhausted PodDisruptionBudget, which is never chosen here.
        problem: of this pod alone, without a gather goal. eligible: units that the rule allows.
        """
        if self._size != len(self.pool.units):
            self._read()
        free_to_go = eligible & ~self.pool.without_budget
        quotas = self.round_state.snapshot.quotas
        key = self.round_state.key(pod), pod.priority, quotas.quota_of(pod), quotas.user_of(pod), rule
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = _UnitTable(np.zeros(len(eligible), dtype=bool))
        try:
            self._update(table, problem, free_to_go)
        except Unwieldy:
            del self._tables[key]
            return None
        out = np.zeros(len(eligible), dtype=bool)
        if table.answers:
            out[list(min(table.answers.values())[2])] = True
        elif (free_to_go != eligible).any():
            return None
        return out

    def _update(self, table: _UnitTable, problem: Problem, eligible: Mask) -> None:
        """Recomputes the answers of nodes on which pods of the draft or eligible units have changed."""
        draft, shape = self.round_state.draft, problem.shapes[problem.members[problem.pending[0]].shape]
        nodes = set(np.nonzero(shape.allowed)[0].tolist())
        if table.seen >= 0:
            changed = np.nonzero(table.eligible != eligible)[0].tolist()
            touched = {node for i in changed for node, _ in self.pool.free_of(i)}
            nodes &= touched.union(draft.touched_since(table.seen))
        table.seen, table.eligible = draft.version, eligible
        request, columns = [amount for _, amount in shape.request], [column for column, _ in shape.request]
        builder = ItemBuilder(columns, len(self.pool.units))
        for node in nodes:
            free = [int(problem.free[node, column]) for column in columns]
            answer = self._node(node, free, request, builder, eligible)
            if answer is None:
                table.answers.pop(node, None)
            else:
                table.answers[node] = answer

    def _read(self) -> None:
        """Indexes the units of the pool by node, and drops all answers."""
        self._size = len(self.pool.units)
        self._tables.clear()
        self._on.clear()
        for i, alive in enumerate(self.pool.alive):
            if alive:
                for node, _ in self.pool.free_of(i):
                    self._on.setdefault(node, []).append(i)

    def _node(
        self, node: int, free: list[int], request: list[int], builder: ItemBuilder, eligible: Mask
    ) -> Answer | None:
        """Returns the cheapest victims of one node; None if all eligible units there free too little.

        Units are added by ascending priority until they free enough: the last priority is the lowest possible level 2.
        Of the units up to that priority, the cheapest set by the other levels is chosen. free, request: amounts in the
        order of the builder's columns.
        """
        pool = self.pool
        units = [i for i in self._on.get(node, ()) if eligible[i]]
        gangs: dict[str, int] = {}
        items: list[Item] = []
        whole = list(free)
        order = sorted(units, key=lambda i: pool.units[i].priority)
        for at, i in enumerate(order):
            unit = pool.units[i]
            gang = gangs.setdefault(unit.group, len(gangs)) if unit.group else -1
            items.append(builder.item(i, pool.figures_of(i), node, rank=pool.ranks[i], gang=gang))
            whole = [have + amount for have, amount in zip(whole, items[-1].frees, strict=True)]
            last = at + 1 == len(order) or pool.units[order[at + 1]].priority > unit.priority
            if last and all(have >= asked for have, asked in zip(whole, request, strict=True)):
                lacking = [asked - have for have, asked in zip(free, request, strict=True)]
                found = NodeCovers(items, lacking).rising([lacking])
                if found and found[0][1]:
                    return unit.priority, *found[0]
        return None
