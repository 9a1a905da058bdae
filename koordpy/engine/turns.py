"""Whose units are searched for next: start-time fair queueing of the seconds that searches take, among tenants.

The order of the queue does not part this time: a tenant that holds little comes first with all of its units, and
each may take seconds to be refused. So a tenant that has had its part waits until the others have had theirs.
Within a round the planner does likewise with all planning (`planning/patience.py`).
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol, TypeVar


class Waiting(Protocol):
    """What waits for a search."""

    @property
    def tenant(self) -> str: ...

    @property
    def answered(self) -> float: ...


W = TypeVar("W", bound=Waiting)


class SearchTurns:
    """The seconds that each tenant has had. Owned by the event loop."""

    def __init__(self, clock: Callable[[], float], part_seconds: float) -> None:
        """part_seconds: by how much one tenant may be ahead of another that waits."""
        self._clock, self._part = clock, part_seconds
        self._had: dict[str, float] = {}
        self._least = 0.0
        """What anybody is taken to have had at least: time that was not asked for is not saved up."""
        self._began: dict[str, float] = {}
        """Tenant -> when the sweep over its units began."""

    def took(self, tenant: str, seconds: float) -> None:
        """A search for a unit of a tenant took so long."""
        self._had[tenant] = max(self._had.get(tenant, 0.0), self._least) + seconds

    def next(self, due: Sequence[W]) -> list[W]:
        """Those that may be searched for now: of tenants that have had no more than their part, the units that had
        no answer since the sweep over their tenant began. In a busy cluster the first of the queue are woken all the
        time, and would be searched for again before the last ever are."""
        if not due:
            self._had, self._began, self._least = {}, {}, 0.0
            return []
        of: dict[str, list[W]] = {}
        for one in due:
            of.setdefault(one.tenant, []).append(one)
        had = {tenant: max(self._had.get(tenant, 0.0), self._least) for tenant in of}
        self._least = min(had.values())
        out = []
        for tenant, units in of.items():
            if had[tenant] <= self._least + self._part:
                left = [one for one in units if one.answered < self._began.get(tenant, -inf)]
                if not left:
                    self._began[tenant] = self._clock()
                out += left or units
        return out
