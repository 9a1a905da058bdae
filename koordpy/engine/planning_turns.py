"""Who is next. Of what is read and written: namespaces by turns. Of searches: start-time fair queueing of the seconds
that they take, among tenants.

The order of the queue does not part this time: a tenant that holds little comes first with all of its units, and
each may take seconds to be refused. So a tenant that has had its part waits until the others have had theirs.
Within a round the planner does likewise with all planning (`plan/planning_budget.py`).
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from math import inf
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class ByTurns(Generic[T]):
    """What waits of each namespace, in its order. However much one has, another's waits for one of it at a time."""

    def __init__(self) -> None:
        self.lines: dict[str, deque[T]] = {}
        """Of namespaces of which something waits; the first is next."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, namespace: str, one: T) -> None:
        self._count += 1
        self.lines.setdefault(namespace, deque()).append(one)

    def next(self) -> T:
        """The next, which waits no more."""
        self._count -= 1
        namespace = next(iter(self.lines))
        line = self.lines.pop(namespace)
        one = line.popleft()
        if line:
            self.lines[namespace] = line
        return one

    def drop(self, least: int) -> T | None:
        """The last of the namespace of which most waits, where that is more than so many; it waits no more."""
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
    """So many at a time, namespaces by turns. Owned by the event loop."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: ByTurns[asyncio.Future[None]] = ByTurns()

    @contextlib.asynccontextmanager
    async def turn(self, namespace: str) -> AsyncGenerator[None]:
        """Waits for a turn, and has it."""
        if self._free:
            self._free -= 1
        else:
            told = asyncio.get_running_loop().create_future()
            self._waiting.add(namespace, told)
            try:
                await told
            except asyncio.CancelledError:
                if told.done() and not told.cancelled():
                    self._next()
                raise
        try:
            yield
        finally:
            self._next()

    def _next(self) -> None:
        while self._waiting.lines:
            told = self._waiting.next()
            if not told.done():
                told.set_result(None)
                return
        self._free += 1


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

    def begin_anew(self) -> None:
        """Nobody waits for a search: what tenants had counts no more."""
        self._had, self._began, self._least = {}, {}, 0.0

    def next(self, due: Sequence[W]) -> list[W]:
        """Of these, not none, those that may be searched for now, one at least: of tenants that have had no more than
        their part, the units that had no answer since the sweep over their tenant began. In a busy cluster the first of
        the queue are woken all the time, and would be searched for again before the last ever are."""
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
