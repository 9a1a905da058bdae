# SPDX-License-Identifier: Apache-2.0
"""How much each victim unit uses in each tenant, computed once a round for all preemptors.

Thousands of units have only a few different usages. Units with equal usage form a kind, and a condition on units is
checked once for each kind.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from koordpy.fairness.tenant_entitlements import Entitlements, Path, Tenant
from koordpy.pods.resource_amounts import Amounts, add_amounts
from koordpy.preemption.selection.victim_units import VictimUnit


def path_below(path: Path, other: Path) -> Path:
    """Returns the part of a path below its lowest common ancestor (LCA) with another path, from the top down."""
    shared = 0
    for a, b in zip(path, other, strict=False):
        if a != b:
            break
        shared += 1
    return path[shared:]


class TenantUsage:
    """Usage of the units of a pool by tenant, for one kind of entitlement (quota mins, or fair shares)."""

    def __init__(self, units: Sequence[VictimUnit], foreign: Callable[[int], bool], entitlements: Entitlements) -> None:
        """units: those of the pool, a list that only grows. foreign: returns True if a unit contains a pod of another
        scheduler. entitlements: the mins or shares; they define the tenant of a pod and the resources that are
        counted."""
        self.units, self.foreign, self.entitlements = units, foreign, entitlements
        self._usage: dict[int, dict[Path, Amounts]] = {}
        self._of_kind: dict[object, dict[Path, Amounts]] = {}
        """Cache of `usage_of`. The key of a unit with one pod is the pod's owner and requests; of other units, the
        unit."""
        self._below: dict[Path, dict[int, dict[Tenant, Amounts]]] = {}
        """Cache of `below`: path -> `id()` of a result of `usage_of` -> result of `below`."""
        self._numbers: dict[object, int] = {}
        """Key of a kind (`kind`) -> its number."""
        self._kind: list[int] = []
        """[units] number of the unit's kind."""
        self._numbered: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        """`_kind` as an array."""
        self._first: list[int] = []
        """Number of a kind -> the first unit of the kind."""

    def usage_of(self, i: int) -> Mapping[Path, Amounts]:
        """Returns path of a tenant -> counted amounts that the unit's pods use there; pods without tenant have path
        ()."""
        found = self._usage.get(i)
        if found is None:
            pods = self.units[i].pods
            kind = (pods[0].owner, *pods[0].charged.items()) if len(pods) == 1 else i
            found = self._usage[i] = self._of_kind.setdefault(kind, {})
            for pod in pods if not found else ():
                add_amounts(found.setdefault(self.entitlements.path(pod), {}), self.entitlements.amounts(pod.charged))
        return found

    def below(self, i: int, other: Path) -> Mapping[Tenant, Amounts]:
        """Returns tenant -> amounts that a unit uses in the tenant or below it, for the tenants that are not on the
        path `other`.

        other: usually the path of the preemptor.
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
        """Returns the key of a unit's kind.

        Units with equal keys have equal usage; either all or none contain pods of other schedulers.
        """
        usage = tuple(sorted((path, tuple(sorted(amounts.items()))) for path, amounts in self.usage_of(i).items()))
        return usage, self.foreign(i)

    def of_kinds(self, units: NDArray[np.bool_], passes: Callable[[int], bool]) -> NDArray[np.bool_]:
        """Returns the units of a mask that pass a condition. `passes` is called with one unit of each kind."""
        kind = self._kinds()
        wanted = np.zeros(len(self._first), dtype=bool)
        for number in sorted(set(kind[units].tolist())):
            wanted[number] = passes(self._first[number])
        return np.asarray(units & wanted[kind]) if len(wanted) else units.copy()

    def tally(self, mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
        """Returns (one unit of the kind, number of units of the kind in the mask) for each kind in the mask."""
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
