"""Who is next: the order of the units of one round (quota-fairness.md section 2, modes gpu-count and off).

gpu-count: a heap of users over a heap of jobs each; the user with the fewest accelerators per weight goes first, and
after every placement the users are compared anew. Priority never matters between users.
"""

import heapq
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from koordpy.api.config import Fairness
from koordpy.api.keys import SYSTEM_PRIORITY_FLOOR
from koordpy.api.natural import natural_key
from koordpy.cluster.quotas import QuotaUse
from koordpy.planning.units import Unit


def _priority(unit: Unit) -> int:
    return max(pod.priority for pod in unit.pending)


def _age(unit: Unit) -> float:
    return min(pod.created for pod in unit.members)


def _name(unit: Unit) -> Any:
    key = unit.plain.key if unit.plain is not None else unit.gangs[0].key
    return tuple(natural_key(part) for part in key.split("/", 1))


def half_bound(unit: Unit) -> bool:
    """Whether a gang of the unit has some members bound, but fewer than its minimum."""
    return any(0 < len(gang.bound) < gang.min_member for gang in unit.gangs)


class Queue:
    """Gives the units one by one; tell it with `placed` what the last one got."""

    def __init__(self, units: list[Unit], *, use: QuotaUse, config: Fairness) -> None:
        """use: what users hold; it grows with the plan."""
        self._use = use
        self._weights = config.weights
        self._first: list[Unit] = sorted((u for u in units if half_bound(u)), key=lambda u: (_age(u), _name(u)))
        rest = [u for u in units if not half_bound(u)]
        system = [u for u in rest if _priority(u) >= SYSTEM_PRIORITY_FLOOR]
        self._first += sorted(system, key=lambda u: (-_priority(u), _age(u), _name(u)))
        rest = [u for u in rest if _priority(u) < SYSTEM_PRIORITY_FLOOR]
        self._jobs: dict[str, list[Any]] = {}
        self._ages: dict[str, list[tuple[float, str]]] = {}
        self._gone: set[str] = set()
        self._got = False
        for unit in rest:
            user = "" if config.mode == "off" else use.quotas.user_of(unit.members[0])
            age = _age(unit)
            self._jobs.setdefault(user, []).append((-_priority(unit), age, _name(unit), unit.id, unit))
            self._ages.setdefault(user, []).append((age, unit.id))
        self._users: list[Any] = []
        for user, jobs in self._jobs.items():
            jobs.sort(reverse=True)
            heapq.heapify(self._ages[user])
            self._push(user)

    def _push(self, user: str) -> None:
        ages = self._ages[user]
        while ages and ages[0][1] in self._gone:
            heapq.heappop(ages)
        if ages:
            heapq.heappush(self._users, (self._ratio(user), ages[0][0], natural_key(user), user))

    def _ratio(self, user: str) -> Any:
        held, weight = self._use.user_devices(user), self._weights.get(user, 1)
        if not held:
            return Fraction(0)
        return Fraction(held) / Fraction(weight) if weight else float("inf")

    def __iter__(self) -> Iterator[Unit]:
        yield from self._first
        while self._users:
            user = heapq.heappop(self._users)[-1]
            jobs = self._jobs[user]
            self._got = False
            while jobs and not self._got:
                unit = jobs.pop()[-1]
                self._gone.add(unit.id)
                yield unit
            self._push(user)

    def placed(self) -> None:
        """The unit that was given last has been placed; the next user's turn follows."""
        self._got = True
