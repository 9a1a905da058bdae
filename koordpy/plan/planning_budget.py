# SPDX-License-Identifier: Apache-2.0
"""Limits the time of one live round, and divides its planning time among tenants.

The live scheduler has two kinds of rounds. An ordinary round is short: it places units that fit, and defers units that
need victims, moved units, or the solver. A search is a round of such deferred units only. It runs concurrently with
ordinary rounds, on a separate snapshot and draft (`engine/search_worker.py`), and is never interrupted. Offline rounds
have no budget, so that the same input gives the same plan.
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
    """Returns True if the round must end now. Units that had no turn yet are then deferred, with two exceptions: at
    least one unit is tried, and units of tenants that used less than their part of the time (`shared`) are tried."""
    begins: Callable[[], None] = lambda: None
    """Called before the first unit is tried."""
    gives_back: bool = True
    """True if units of quotas above their runtime may be evicted in this round."""
    clock: Callable[[], float] | None = None
    """Returns the time in seconds; None if attempts are not measured."""
    shared: Callable[[], float] = lambda: inf
    """Returns the seconds of planning that tenants share in equal parts. After them, units of a tenant that has used
    its part are passed over while other tenants wait. Infinite if the time is not shared."""
    came: Callable[[], Mapping[str, int]] = dict
    """Returns namespace -> the highest priority of its pods that were created since the round began."""


class Turn(Protocol):
    """The part of a unit that the division of planning time reads: its namespace and its priority."""

    @property
    def namespace(self) -> str: ...

    @property
    def priority(self) -> int: ...


class RoundShares:
    """Planning time that each tenant used in one round, and the tenants that wait for their turn.

    A tenant is a namespace, or all namespaces that one ElasticQuota lists (`planning.shareBy`).

    The queue order does not divide planning time: one tenant may be first with thousands of units, each of which takes
    long to be refused. So each tenant has an equal part of the first `shared` seconds of a round. After these seconds,
    units of a tenant that used its part are passed over, if another tenant used less and waits: it has units of the
    same or a higher priority that have not had their turn, or that were created during the round. In all other cases
    the queue order decides.
    """

    def __init__(self, units: Iterable[Turn], tenant_of: Callable[[str], str] = str) -> None:
        """units: all units that the round tries. tenant_of: returns the tenant of a namespace."""
        self._of = tenant_of
        self._had: defaultdict[str, float] = defaultdict(float)
        """Tenant -> seconds of planning that it used."""
        self._lasted = 0.0
        """Seconds of planning that all tenants used."""
        self._passed: set[str] = set()
        """Tenants with a unit that was passed over: their later units are passed over, too."""
        self._left: dict[int, Counter[str]] = {}
        """Priority -> tenant -> number of units that have not had their turn."""
        for unit in units:
            self._left.setdefault(unit.priority, Counter())[self._of(unit.namespace)] += 1
        self._tenants = {tenant for left in self._left.values() for tenant in left}

    def take_turn(self, unit: Turn) -> None:
        """Records that a unit has its turn, whether it is tried or passed over."""
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
        # other tenants that wait: with new pods (these tenants also reduce the part of each), and with units left
        others = {self._of(namespace) for namespace, highest in list(came.items()) if highest >= priority}
        if self._had[own] * len(self._tenants | others) < shared:
            return False
        others |= {tenant for level, left in self._left.items() if level >= priority for tenant in left}
        # only a tenant that used less time goes first
        if not any(self._had[other] < self._had[own] for other in others - self._passed):
            return False
        self._passed.add(own)
        return True
