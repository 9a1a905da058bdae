"""The victim units of a round with their figures, read once and kept true while plans of the round evict.

Thousands of pending pods may ask for victims among thousands of running pods; what a unit holds and where is the same
for all of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Ints
from koordpy.fairness.entitlement_lines import EntitlementLines
from koordpy.gangs.queue_units import Groups
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.resource_amounts import Amounts
from koordpy.preemption.rules.tenant_usage import TenantUsage
from koordpy.preemption.selection.disruption_budgets import Budget, BudgetsLeft
from koordpy.preemption.selection.victim_choice import UnitFigures
from koordpy.preemption.selection.victim_units import Lending, VictimUnit, by_importance, find_candidates

Held = tuple[tuple[int, int], ...]
"""(column, amount) of what is held on a node. Pods with the same requests share one."""
Frees = tuple[tuple[int, Held], ...]
Mask = NDArray[np.bool_]


@dataclass(eq=False)
class Pool:
    """units: alive ones and, once evicted, dead ones (alive false); positions stay."""

    groups: Groups
    draft: Draft
    useless_from: int | None = None
    """Plain pods of this priority and more are left out: no rule could take them."""
    units: list[VictimUnit] = field(default_factory=list)
    lendings: dict[str, list[Lending]] = field(default_factory=dict)
    alive: list[bool] = field(default_factory=list)
    position: dict[int, int] = field(default_factory=dict)
    """id of a unit -> position in `units`."""
    figures: dict[int, UnitFigures] = field(default_factory=dict)
    """What the search has worked out of units, with their ranks of then."""
    _frees: dict[int, Frees] = field(default_factory=dict)
    _held: dict[tuple[tuple[str, int], ...], Held] = field(default_factory=dict)
    """By requests."""
    _holdings: dict[type[EntitlementLines], TenantUsage] = field(default_factory=dict)
    _spent: dict[tuple[frozenset[int], int], Mask] = field(default_factory=dict)
    """By the budgets that allow none, and the number of units; the last one asked for."""

    def __post_init__(self) -> None:
        self._take(self.draft.snapshot.pods.values())

    def _take(self, pods: Iterable[PodInfo]) -> None:
        units, lendings = find_candidates(self.groups, pods, gone=self.draft.evicted, below=self.useless_from)
        for unit in units:
            self.position[id(unit)] = len(self.units)
            self.units.append(unit)
            self.alive.append(True)
        for one in lendings:
            self.lendings.setdefault(one.unit.group_id, []).append(one)
        for known in ("entries", "evictable", "priority", "ranks"):
            self.__dict__.pop(known, None)

    def at(self, unit: VictimUnit) -> int:
        """Position of a unit."""
        return self.position[id(unit)]

    def unit_id(self, i: int) -> str:
        """Id of the unit, as one that waits, that a victim unit's pods belong to."""
        pod = self.units[i].pods[0]
        return self.groups.id_of(pod.gang) if pod.gang is not None else pod.key

    def evicted(self, units: Iterable[VictimUnit]) -> None:
        """Units that a plan of the round takes: they are gone, and what is left of their gangs is looked at anew."""
        changed: dict[str, VictimUnit] = {}
        for unit in units:
            self.alive[self.at(unit)] = False
            if unit.group:
                changed[unit.group] = unit
        for group in changed:
            for i, unit in enumerate(self.units):
                if unit.group == group:
                    self.alive[i] = False
            self.lendings.pop(group, None)
        rest = [pod for unit in changed.values() for pod in unit.pods[:1]]
        if rest:
            self._take(rest)

    def free_of(self, i: int) -> Frees:
        """(node, ((column, amount), ...)) of each node that a unit holds room on."""
        found = self._frees.get(i)
        if found is None:
            found = self._frees[i] = self._read(self.units[i])
        return found

    def _read(self, unit: VictimUnit) -> Frees:
        index = self.draft.snapshot.index
        on: dict[int, list[Held]] = {}
        for pod in unit.pods:
            node = index.get(pod.node)
            if node is not None:
                on.setdefault(node, []).append(self._held_by(pod.requests))
        if len(on) == len(unit.pods):
            return tuple((node, held) for node, [held] in sorted(on.items()))
        return tuple((node, _together(held)) for node, held in sorted(on.items()))

    def _held_by(self, requests: Amounts) -> Held:
        found = self._held.get(key := tuple(requests.items()))
        if found is None:
            found = self._held[key] = tuple(sorted(self.draft.snapshot.vector(requests)))
        return found

    @cached_property
    def entries(self) -> tuple[Ints, Ints, Ints, Ints]:
        """(unit, node, number) of everything that units hold, and by number [columns] how much it is."""
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
        return BudgetsLeft(self.draft.snapshot)

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """PodDisruptionBudgets with what each still allows."""
        return self._budgets.on(self.draft)

    def counting(self, pod: PodInfo) -> tuple[int, ...]:
        """Numbers of the budgets that a pod's eviction counts against."""
        return self._budgets.counting(pod)

    @property
    def spent(self) -> Mask:
        """[units] with a pod that a PodDisruptionBudget covers which allows no eviction any more."""
        budgets = frozenset(b for b, one in enumerate(self.budgets) if not one.allowed)
        key = budgets, len(self.units)
        if key not in self._spent:
            covered = (
                bool(budgets) and not all(budgets.isdisjoint(self.counting(pod)) for pod in unit.pods)
                for unit in self.units
            )
            self._spent = {key: np.fromiter(covered, dtype=bool)}
        return self._spent[key]

    @cached_property
    def evictable(self) -> Mask:
        """[units] without a pod that more than one PodDisruptionBudget covers: the eviction API takes nobody else."""
        if len(self.budgets) < 2:
            return np.ones(len(self.units), dtype=bool)
        return np.array([all(len(self.counting(pod)) < 2 for pod in unit.pods) for unit in self.units], dtype=bool)

    @cached_property
    def priority(self) -> Ints:
        """[units]."""
        return np.array([unit.priority for unit in self.units], dtype=np.int64)

    @cached_property
    def ranks(self) -> list[int]:
        """[units] position in the order of importance; larger is more important."""
        ranks = [0] * len(self.units)
        for below, i in enumerate(by_importance(self.units), start=1):
            ranks[i] = len(ranks) - below
        return ranks

    def relief(self, eligible: NDArray[np.bool_]) -> Ints:
        """[nodes, columns] what the eligible units hold together, each pod once: an upper bound of what they free."""
        counted = self.without_lent(eligible)
        out = np.zeros(self.draft.used.shape, dtype=np.int64)
        units, nodes, numbers, amounts = self.entries
        taken = counted[units]
        np.add.at(out, nodes[taken], amounts[numbers[taken]])
        return out

    def without_lent(self, eligible: NDArray[np.bool_]) -> Mask:
        """Some units without those whose pods go with the core of their gang, so that each pod is in one of them."""
        counted = eligible.copy()
        for lendings in self.lendings.values():
            for one in lendings:
                if one.core is not None and eligible[self.at(one.core)]:
                    for unit in one.surplus:
                        counted[self.at(unit)] = False
        return counted

    def foreign(self, i: int) -> bool:
        """Whether another scheduler's pod is in a unit."""
        names = self.draft.snapshot.scheduler_names
        return any(pod.pod.spec.scheduler_name not in names for pod in self.units[i].pods)

    def holdings(self, lines: EntitlementLines) -> TenantUsage:
        """What the units hold by the parties of some lines."""
        known = self._holdings.get(type(lines))
        if known is None:
            known = self._holdings[type(lines)] = TenantUsage(self.units, self.foreign, lines)
        return known

    def group_units(self, group: str) -> list[int]:
        """Positions of the units of a GangGroup."""
        return [i for i, unit in enumerate(self.units) if self.alive[i] and unit.group == group]


def _together(parts: Iterable[Held]) -> Held:
    sums: dict[int, int] = {}
    for column, amount in chain.from_iterable(parts):
        sums[column] = sums.get(column, 0) + amount
    return tuple(sorted(sums.items()))
