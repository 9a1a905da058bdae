# SPDX-License-Identifier: Apache-2.0
"""The pool: all victim units of a round with the capacity that each uses, computed once for all preemptors.

Thousands of pending pods may search for victims among thousands of running pods. The nodes and amounts of a unit are
the same for all of these searches. The pool is updated when a plan of the round evicts units. A mask [units] is a
boolean array over the units of the pool.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Ints
from koordpy.fairness.tenant_entitlements import Entitlements
from koordpy.gangs.queue_units import Groups
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.resource_amounts import Amounts
from koordpy.preemption.rules.tenant_usage import TenantUsage
from koordpy.preemption.selection.disruption_budgets import Budget, BudgetsLeft
from koordpy.preemption.selection.victim_choice import UnitFigures
from koordpy.preemption.selection.victim_units import GangLimit, VictimUnit, by_importance, find_candidates

Held = tuple[tuple[int, int], ...]
"""((column, amount), ...): what one or more pods use on a node. Pods with equal requests share one tuple."""
Frees = tuple[tuple[int, Held], ...]
"""((node, amounts that a unit uses there), ...) for each node with pods of the unit."""
Mask = NDArray[np.bool_]
"""[units] True for the selected units of the pool, by position."""


@dataclass(eq=False)
class Pool:
    """The victim units of a round. A unit is identified by its position in `units`, which never changes.

    An evicted unit stays in the list, and its `alive` becomes False.
    """

    groups: Groups
    draft: Draft
    useless_from: int | None = None
    """Plain pods of this priority or higher are left out, because no rule allows them; None for no limit."""
    units: list[VictimUnit] = field(default_factory=list)
    gang_limits: dict[str, list[GangLimit]] = field(default_factory=dict)
    """Id of a GangGroup -> limits between the units of each of its gangs."""
    alive: list[bool] = field(default_factory=list)
    """[units] False for a unit that a plan of the round has evicted, or that other units have replaced."""
    position: dict[int, int] = field(default_factory=dict)
    """`id()` of a unit object -> position in `units`."""
    _figures: dict[int, UnitFigures] = field(default_factory=dict)
    """Cache of `figures_of`. The ranks in it may be out of date; `ranks` has the current ones."""
    _frees: dict[int, Frees] = field(default_factory=dict)
    """Cache of `free_of`."""
    _by_requests: dict[tuple[tuple[str, int], ...], Held] = field(default_factory=dict)
    """Cache: requests of a pod by resource -> requests by column."""
    _holdings: dict[type[Entitlements], TenantUsage] = field(default_factory=dict)
    """Cache of `tenant_usage`, by kind of entitlement."""
    _spent: dict[tuple[frozenset[int], int], Mask] = field(default_factory=dict)
    """Cache of `without_budget`: (positions of exhausted budgets, number of units) -> mask; holds only the last
    result."""

    def __post_init__(self) -> None:
        self._add_units(self.draft.snapshot.pods.values())

    def _add_units(self, pods: Iterable[PodInfo]) -> None:
        """Adds the victim units of the given bound pods and of their GangGroups. Drops the cached arrays over all
        units."""
        units, gang_limits = find_candidates(self.groups, pods, gone=self.draft.evicted, below=self.useless_from)
        for unit in units:
            self.position[id(unit)] = len(self.units)
            self.units.append(unit)
            self.alive.append(True)
        for one in gang_limits:
            self.gang_limits.setdefault(one.unit.group_id, []).append(one)
        for known in ("entries", "evictable", "priority", "ranks"):
            self.__dict__.pop(known, None)

    def position_of(self, unit: VictimUnit) -> int:
        """Returns the position of a unit in the pool."""
        return self.position[id(unit)]

    def unit_id(self, i: int) -> str:
        """Returns the id of the queue unit that the pods of a victim unit belong to."""
        pod = self.units[i].pods[0]
        return self.groups.id_of(pod.gang) if pod.gang is not None else pod.key

    def evicted(self, units: Iterable[VictimUnit]) -> None:
        """Marks units as evicted by a plan of the round.

        The other units of their GangGroups are replaced, because the gangs have fewer members now.
        """
        changed: dict[str, VictimUnit] = {}
        for unit in units:
            self.alive[self.position_of(unit)] = False
            if unit.group:
                changed[unit.group] = unit
        for group in changed:
            for i, unit in enumerate(self.units):
                if unit.group == group:
                    self.alive[i] = False
            self.gang_limits.pop(group, None)
        rest = [pod for unit in changed.values() for pod in unit.pods[:1]]
        if rest:
            self._add_units(rest)

    def free_of(self, i: int) -> Frees:
        """Returns (node, ((column, amount), ...)) for each node on which a unit uses capacity."""
        found = self._frees.get(i)
        if found is None:
            found = self._frees[i] = self._read(self.units[i])
        return found

    def figures_of(self, i: int) -> UnitFigures:
        """Returns the numbers of a unit that do not depend on the preemptor: amounts, priority, cost."""
        found, rank = self._figures.get(i), self.ranks[i]
        if found is None:
            unit = self.units[i]
            covered = [b for pod in unit.pods for b in self.budgets_of(pod)]
            found = self._figures[i] = UnitFigures(
                frees=self.free_of(i),
                priority=unit.priority,
                pods=len(unit.pods),
                devices=unit.devices,
                priorities=unit.priorities,
                rank=rank,
                breaks=unit.breaks,
                budgets=tuple(sorted(Counter(covered).items())) if covered else (),
            )
        elif found.rank != rank:
            found = self._figures[i] = replace(found, rank=rank)
        return found

    def _read(self, unit: VictimUnit) -> Frees:
        """Computes `free_of` for a unit; pods on nodes that the snapshot does not contain are left out."""
        index = self.draft.snapshot.index
        on: dict[int, list[Held]] = {}
        for pod in unit.pods:
            node = index.get(pod.node)
            if node is not None:
                on.setdefault(node, []).append(self._amounts_of(pod.requests))
        if len(on) == len(unit.pods):
            return tuple((node, held) for node, [held] in sorted(on.items()))
        return tuple((node, _sum_amounts(held)) for node, held in sorted(on.items()))

    def _amounts_of(self, requests: Amounts) -> Held:
        """Returns the requests of a pod by column."""
        found = self._by_requests.get(key := tuple(requests.items()))
        if found is None:
            found = self._by_requests[key] = tuple(sorted(self.draft.snapshot.vector(requests)))
        return found

    @cached_property
    def entries(self) -> tuple[Ints, Ints, Ints, Ints]:
        """What all living units use, as four arrays: unit, node, row, and amounts [rows, columns].

        The first three arrays have one entry for each unit and node of the unit. Units with equal amounts share a row.
        """
        numbers: dict[Held, int] = {}
        rows = [
            (i, node, numbers.setdefault(held, len(numbers)))
            for i in range(len(self.units))
            if self.alive[i]
            for node, held in self.free_of(i)
        ]
        amounts = np.zeros((len(numbers), self.draft.used.shape[1]), dtype=np.int64)
        for held, number in numbers.items():
            for column, amount in held:
                amounts[number, column] = amount
        table = np.array(rows, dtype=np.int64).reshape(-1, 3)
        return table[:, 0], table[:, 1], table[:, 2], amounts

    @cached_property
    def _budgets(self) -> BudgetsLeft:
        """The PodDisruptionBudgets of the snapshot, with the pods that each covers."""
        return BudgetsLeft(self.draft.snapshot)

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """PodDisruptionBudgets of the snapshot, each with the number of pods that may still be evicted on the current
        draft."""
        return self._budgets.on(self.draft)

    def budgets_of(self, pod: PodInfo) -> tuple[int, ...]:
        """Returns the positions in `budgets` of the PodDisruptionBudgets that a pod's eviction counts against."""
        return self._budgets.budgets_of(pod)

    @property
    def without_budget(self) -> Mask:
        """[units] True for a unit with a pod under an exhausted PodDisruptionBudget, which allows no more evictions."""
        budgets = frozenset(b for b, one in enumerate(self.budgets) if not one.allowed)
        key = budgets, len(self.units)
        if key not in self._spent:
            covered = (
                bool(budgets) and not all(budgets.isdisjoint(self.budgets_of(pod)) for pod in unit.pods)
                for unit in self.units
            )
            self._spent = {key: np.fromiter(covered, dtype=bool)}
        return self._spent[key]

    @cached_property
    def evictable(self) -> Mask:
        """[units] True if no pod of the unit is covered by more than one PodDisruptionBudget.

        The eviction API rejects a pod that several budgets cover.
        """
        if len(self.budgets) < 2:
            return np.ones(len(self.units), dtype=bool)
        return np.array([all(len(self.budgets_of(pod)) < 2 for pod in unit.pods) for unit in self.units], dtype=bool)

    @cached_property
    def priority(self) -> Ints:
        """[units] priority of each unit."""
        return np.array([unit.priority for unit in self.units], dtype=np.int64)

    @cached_property
    def ranks(self) -> list[int]:
        """[units] rank in the order of importance; a larger rank is more important."""
        ranks = [0] * len(self.units)
        for below, i in enumerate(by_importance(self.units), start=1):
            ranks[i] = len(ranks) - below
        return ranks

    def freed_by(self, eligible: NDArray[np.bool_]) -> Ints:
        """Returns [nodes, columns]: the amounts that evicting all eligible units frees, each pod counted once."""
        counted = self.without_lent(eligible)
        out = np.zeros(self.draft.used.shape, dtype=np.int64)
        units, nodes, numbers, amounts = self.entries
        taken = counted[units]
        np.add.at(out, nodes[taken], amounts[numbers[taken]])
        return out

    def without_lent(self, eligible: NDArray[np.bool_]) -> Mask:
        """Returns `eligible` without surplus units of gangs with an eligible core, so that each pod is in one unit
        only."""
        counted = eligible.copy()
        for gang_limits in self.gang_limits.values():
            for one in gang_limits:
                if one.core is not None and eligible[self.position_of(one.core)]:
                    for unit in one.surplus:
                        counted[self.position_of(unit)] = False
        return counted

    def foreign(self, i: int) -> bool:
        """Returns True if a unit contains a pod of another scheduler."""
        return _is_foreign(self.units, self.draft.snapshot.scheduler_names, i)

    def tenant_usage(self, entitlements: Entitlements) -> TenantUsage:
        """Returns the usage of the units by tenant, for one kind of entitlement (quota mins, or shares)."""
        known = self._holdings.get(type(entitlements))
        if known is None:
            # not a method of the pool: the cycle would keep the snapshot until a garbage collection
            foreign = partial(_is_foreign, self.units, self.draft.snapshot.scheduler_names)
            known = self._holdings[type(entitlements)] = TenantUsage(self.units, foreign, entitlements)
        return known

    def group_units(self, group: str) -> list[int]:
        """Returns the positions of the living units of a GangGroup. group: its id."""
        return [i for i, unit in enumerate(self.units) if self.alive[i] and unit.group == group]


def _sum_amounts(parts: Iterable[Held]) -> Held:
    """Returns the sum of several pods' amounts, by column."""
    sums: dict[int, int] = {}
    for column, amount in chain.from_iterable(parts):
        sums[column] = sums.get(column, 0) + amount
    return tuple(sorted(sums.items()))


def _is_foreign(units: Sequence[VictimUnit], names: Collection[str], i: int) -> bool:
    """Returns True if a unit contains a pod of a scheduler that is not in `names`."""
    return any(pod.pod.spec.scheduler_name not in names for pod in units[i].pods)
