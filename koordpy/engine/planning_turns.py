# SPDX-License-Identifier: Apache-2.0
"""Fairness between tenants in the live scheduler, so that one tenant's load does not delay the others.

`ByTurns` and `Turnstile` serve namespaces in turn, for events, status writes and watch lines. `SearchTurns` divides
search time between tenants by start-time fair queueing: a tenant that has used its share of search time waits until
other tenants have used theirs. The queue order alone does not divide the time, because all units of a tenant with low
usage are first in it, and each of them may need seconds. Within a round the planner divides all planning time by the
same rule (`plan/planning_budget.py`).
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from math import inf
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class ByTurns(Generic[T]):
    """A queue per namespace, served in turn: an item waits for at most one item of each other namespace at a time."""

    def __init__(self) -> None:
        self.lines: dict[str, deque[T]] = {}
        """Namespace -> its waiting items. The first namespace is served next."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, namespace: str, one: T) -> None:
        """Adds an item as the last one of its namespace."""
        self._count += 1
        self.lines.setdefault(namespace, deque()).append(one)

    def next(self) -> T:
        """Removes and returns the next item. The queue must not be empty."""
        self._count -= 1
        namespace = next(iter(self.lines))
        line = self.lines.pop(namespace)
        one = line.popleft()
        if line:
            self.lines[namespace] = line
        return one

    def drop(self, least: int) -> T | None:
        """Removes and returns the last item of the namespace with the most items; None if it has `least` or fewer."""
        namespace = max(self.lines, key=lambda name: len(self.lines[name]))
        line = self.lines[namespace]
        if len(line) <= least:
            return None
        self._count -= 1
        one = line.pop()
        if not line:
            del self.lines[namespace]
        return one


class Turnstile:
    """A semaphore that namespaces pass in turn. Owned by the event loop."""

    def __init__(self, most: int) -> None:
        """most: maximum number of tasks inside `turn` at a time."""
        self._free = most
        """Number of free places."""
        self._waiting: ByTurns[asyncio.Future[None]] = ByTurns()
        """Futures of the tasks that wait for a place; one is completed when its task gets a place."""

    @contextlib.asynccontextmanager
    async def turn(self, namespace: str) -> AsyncGenerator[None]:
        """Waits for a place, and occupies it within the context."""
        if self._free:
            self._free -= 1
        else:
            told = asyncio.get_running_loop().create_future()
            self._waiting.add(namespace, told)
            try:
                await told
            except asyncio.CancelledError:
                if told.done() and not told.cancelled():
                    # this task got the place just before it was cancelled: pass the place on
                    self._next()
                raise
        try:
            yield
        finally:
            self._next()

    def _next(self) -> None:
        """Passes a free place to the next waiting task, or frees it if no task waits."""
        while self._waiting.lines:
            told = self._waiting.next()
            if not told.done():
                told.set_result(None)
                return
        self._free += 1


class Waiting(Protocol):
    """A unit that waits for a search, such as `queue_entry.Entry`."""

    @property
    def tenant(self) -> str:
        """The tenant to which the unit's search time is charged."""
        ...

    @property
    def answered_at(self) -> float:
        """Clock time at which the unit's last attempt ended; -inf before the first."""
        ...


W = TypeVar("W", bound=Waiting)


class SearchTurns:
    """Search time used by each tenant. Owned by the event loop."""

    def __init__(self, clock: Callable[[], float], part_seconds: float) -> None:
        """part_seconds: seconds by which the search time of a tenant may exceed that of another tenant that waits."""
        self._clock, self._part = clock, part_seconds
        self._had: dict[str, float] = {}
        """Tenant -> seconds of search time that are charged to it."""
        self._least = 0.0
        """Lower bound of the charged seconds of every tenant: the virtual time of start-time fair queueing. Because of
        it a tenant without waiting units saves up no search time."""
        self._began: dict[str, float] = {}
        """Tenant -> clock time at which the current pass over its waiting units began. In a pass each unit is searched
        at most once."""

    def took(self, tenant: str, seconds: float) -> None:
        """Charges the search time of one unit to its tenant."""
        self._had[tenant] = max(self._had.get(tenant, 0.0), self._least) + seconds

    def reset(self) -> None:
        """Resets the used time of all tenants. Called when no unit waits for a search."""
        self._had, self._began, self._least = {}, {}, 0.0

    def next(self, due: Sequence[W]) -> list[W]:
        """Returns the units that the next search may take, at least one. `due` must not be empty.

        Selects the tenants that have used at most `part_seconds` more than the tenant with the least time. For each of
        them, returns the units that the tenant's current pass has not answered yet; after a pass, all units, for a new
        pass. Without passes, units that are woken often would be searched again and again, and the last units never.
        """
        of: dict[str, list[W]] = {}
        for one in due:
            of.setdefault(one.tenant, []).append(one)
        had = {tenant: max(self._had.get(tenant, 0.0), self._least) for tenant in of}
        self._least = min(had.values())
        out = []
        for tenant, units in of.items():
            if had[tenant] <= self._least + self._part:
                left = [one for one in units if one.answered_at < self._began.get(tenant, -inf)]
                if not left:
                    self._began[tenant] = self._clock()
                out += left or units
        return out
