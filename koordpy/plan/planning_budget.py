# SPDX-License-Identifier: Apache-2.0
"""The time limit of one live round, and how its planning time is divided among tenants.

Live, there are two kinds of rounds. An ordinary round is short: it places what fits, and defers units that need
victims, units to move, or the solver. A search is a round of such units alone. It runs concurrently with ordinary
rounds on a separate snapshot and draft (`engine/search_worker.py`), and is never interrupted. Offline rounds have no
budget, so that the same input gives the same plan.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PlanningBudget:
    """The time limit of one round. The functions are called in the planner's thread; times are seconds of `clock`."""

    searches: bool
    """True for a search. False for an ordinary round, which defers every unit that needs a search."""
    ends: Callable[[], bool]
    """Returns True if the round must end now; units that had no turn are deferred. At least one unit is tried before.
    Units of tenants that used less than their part of the time (`shared`) are still tried."""
    begins: Callable[[], None] = lambda: None
    """Called before the first unit is tried."""
    gives_back: bool = True
    """True if units of quotas above their runtime may be evicted in this round."""
    clock: Callable[[], float] | None = None
    """Returns the time in seconds; None if attempts are not measured."""
    shared: Callable[[], float] = lambda: inf
    """Returns the seconds of planning that tenants share in equal parts. After these, a tenant that used its part is
    passed over while other tenants wait. Infinite: time is not shared."""
    came: Callable[[], Mapping[str, int]] = dict
    """Returns, for the pods created since the round began, namespace -> the highest priority of these pods there."""


class Turn(Protocol):
    """What the division of planning time reads of a unit: its namespace and its priority."""

    @property
    def namespace(self) -> str: ...

    @property
    def priority(self) -> int: ...


class RoundShares:
    """Planning time that each tenant used in one round, and the tenants that wait for their turn.

    A tenant is a namespace, or all namespaces that one ElasticQuota lists (`planning.shareBy`).

    The order of the queue does not divide planning time: a tenant may come first with thousands of units, each of which
    takes long to be refused. So each tenant has an equal part of the first `shared` seconds of a round. After them, a
    tenant that used its part is passed over if other tenants used less and have units of the same or a higher priority.
    These are units that have not had their turn, or that were created during the round. Before that, and if only less
    important units wait, the order of the queue alone decides.
    """

    def __init__(self, units: Iterable[Turn], tenant_of: Callable[[str], str] = str) -> None:
        """units: all units that the round tries. tenant_of: returns the tenant of a namespace."""
        self._of = tenant_of
        self._had: defaultdict[str, float] = defaultdict(float)
        """Tenant -> seconds of planning that it used."""
        self._lasted = 0.0
        """Seconds of planning that all tenants used."""
        self._passed: set[str] = set()
        """Tenants that were passed over once: their later units are passed over, too."""
        self._left: dict[int, Counter[str]] = {}
        """Priority -> tenant -> number of units that have not had their turn."""
        for unit in units:
            self._left.setdefault(unit.priority, Counter())[self._of(unit.namespace)] += 1
        self._tenants = {tenant for left in self._left.values() for tenant in left}

    def take_turn(self, unit: Turn) -> None:
        """Records that a unit has its turn, whatever its outcome."""
        left, own = self._left[unit.priority], self._of(unit.namespace)
        left[own] -= 1
        if not left[own]:
            del left[own]

    def charge(self, unit: Turn, seconds: float) -> None:
        """Charges the time of an attempt to the unit's tenant."""
        self._had[self._of(unit.namespace)] += seconds
        self._lasted += seconds

    def had_part(self, unit: Turn, shared: float) -> bool:
        """Returns True if the unit's tenant has used up its equal part of the shared time.

        Always True if no time is shared. shared: as returned by `PlanningBudget.shared`.
        """
        return shared == inf or self._had[self._of(unit.namespace)] * len(self._tenants) >= shared

    def passes_over(self, unit: Turn, shared: float, came: Mapping[str, int]) -> bool:
        """Returns True if the unit is passed over, because other tenants have used less time and wait.

        shared, came: as returned by the functions of `PlanningBudget`.
        """
        if self._lasted < shared:
            return False
        own, priority = self._of(unit.namespace), unit.priority
        if own in self._passed:
            return True
        # other tenants: first those with new pods, as they also reduce the part of each; then those with units left
        others = {self._of(namespace) for namespace, highest in list(came.items()) if highest >= priority}
        if self._had[own] * len(self._tenants | others) < shared:
            return False
        others |= {tenant for level, left in self._left.items() if level >= priority for tenant in left}
        # a tenant that used as much or more does not go first
        if not any(self._had[other] < self._had[own] for other in others - self._passed):
            return False
        self._passed.add(own)
        return True
