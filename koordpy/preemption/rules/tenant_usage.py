# SPDX-License-Identifier: Apache-2.0
"""How much each victim unit uses of which tenant's entitlement, computed once a round for all preemptors.

Thousands of units have few different usages. So units with equal usage are a kind, and a condition on units is checked
once for each kind.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from koordpy.fairness.tenant_entitlements import Entitlements, Path, Tenant
from koordpy.pods.resource_amounts import Amounts, add_amounts
from koordpy.preemption.selection.victim_units import VictimUnit


def path_below(path: Path, other: Path) -> Path:
    """Returns the tenants of a path below the lowest common ancestor (LCA) with another path, from the top down."""
    shared = 0
    for a, b in zip(path, other, strict=False):
        if a != b:
            break
        shared += 1
    return path[shared:]


class TenantUsage:
    """Usage of the units of a pool by tenant, for one kind of entitlement."""

    def __init__(self, units: Sequence[VictimUnit], foreign: Callable[[int], bool], entitlements: Entitlements) -> None:
        """units: those of the pool, a list that only grows. foreign: returns True for a unit with pods of another
        scheduler. entitlements: the entitlements, which say what is counted for which tenant."""
        self.units, self.foreign, self.entitlements = units, foreign, entitlements
        self._usage: dict[int, dict[Path, Amounts]] = {}
        self._of_kind: dict[object, dict[Path, Amounts]] = {}
        """Usage by kind of unit: for one pod its owner and requests, else the unit."""
        self._below: dict[Path, dict[int, dict[Tenant, Amounts]]] = {}
        """Cache of `below`: path -> id of a usage mapping -> usage by tenant."""
        self._numbers: dict[object, int] = {}
        """Key of a kind (`kind`) -> its number."""
        self._kind: list[int] = []
        """[units] number of the unit's kind."""
        self._numbered: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        """`_kind` as an array."""
        self._first: list[int] = []
        """Number of a kind -> the first unit of the kind."""

    def usage_of(self, i: int) -> Mapping[Path, Amounts]:
        """Returns path of a tenant (empty for pods without one) -> counted amounts that a unit's pods use there."""
        found = self._usage.get(i)
        if found is None:
            pods = self.units[i].pods
            kind = (pods[0].owner, *pods[0].charged.items()) if len(pods) == 1 else i
            found = self._usage[i] = self._of_kind.setdefault(kind, {})
            for pod in pods if not found else ():
                add_amounts(found.setdefault(self.entitlements.path(pod), {}), self.entitlements.amounts(pod.charged))
        return found

    def below(self, i: int, other: Path) -> Mapping[Tenant, Amounts]:
        """Returns tenant -> amounts that a unit uses in the tenant and below it, for tenants that are not on a path.

        other: the path, usually that of the preemptor.
        """
        memo, usage = self._below.setdefault(other, {}), self.usage_of(i)
        found = memo.get(id(usage))
        if found is None:
            found = memo[id(usage)] = {}
            for path, amounts in usage.items():
                for tenant in path_below(path, other):
                    add_amounts(found.setdefault(tenant, {}), amounts)
        return found

    def kind(self, i: int) -> object:
        """Returns the key of a unit's kind: equal for units with equal usage, all or none with pods of other
        schedulers."""
        usage = tuple(sorted((path, tuple(sorted(amounts.items()))) for path, amounts in self.usage_of(i).items()))
        return usage, self.foreign(i)

    def of_kinds(self, units: NDArray[np.bool_], passes: Callable[[int], bool]) -> NDArray[np.bool_]:
        """Returns the units of a mask that pass a condition. `passes` is called for one unit of each kind."""
        kind = self._kinds()
        wanted = np.zeros(len(self._first), dtype=bool)
        for number in sorted(set(kind[units].tolist())):
            wanted[number] = passes(self._first[number])
        return np.asarray(units & wanted[kind]) if len(wanted) else units.copy()

    def tally(self, mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
        """Returns (a unit of the kind, number of its units) for each kind in a mask."""
        numbers = np.bincount(self._kinds()[mask], minlength=len(self._first)).tolist()
        return [(self._first[kind], number) for kind, number in enumerate(numbers) if number]

    def _kinds(self) -> NDArray[np.int64]:
        """Returns [units]: the number of each unit's kind; units that were added since the last call are numbered."""
        for i in range(len(self._kind), len(self.units)):
            number = self._numbers.setdefault(self.kind(i), len(self._first))
            if number == len(self._first):
                self._first.append(i)
            self._kind.append(number)
        if len(self._numbered) != len(self._kind):
            self._numbered = np.array(self._kind, dtype=np.int64)
        return self._numbered
