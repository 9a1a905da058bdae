# SPDX-License-Identifier: Apache-2.0
"""Wakes units that wait for nodes once other pods have used up their quota.

An autoscaler adds nodes for a unit as long as its condition says Unschedulable, but a unit that its quota refuses does
not need them. Such a unit must be tried again, so that it gets the reason QuotaExceeded (repair.md 1.2). Usage grows
with every Binding, so it is not compared with each unit: each limit of a quota has a heap of the amounts that units
would add to it (`QuotaNeed`), the largest first. A look costs O(owners of pods + limits with units), plus O(log units)
for each unit that it wakes.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import inf

from koordpy.cache.cluster_state import ClusterState
from koordpy.engine.queue_entry import State
from koordpy.engine.scheduling_queue import UnitQueue
from koordpy.plan.quota_needs import QuotaNeed

PAUSE_SECONDS = 1.0
"""Least time between two looks."""
MOST_AT_ONCE = 1000
"""Number of units that one look wakes at most. The next look wakes further ones."""
SPARE_ENTRIES = 1000
"""Number of entries of units that do not wait any more for which the heaps are not created again."""

_Limit = tuple[str, bool, str]
"""Quota, whether it is the min for non-preemptible pods, and resource."""


class QuotaWatch:
    """Knows which units wait for nodes, and what they would add to their quotas. Owned by the event loop."""

    def __init__(self, state: ClusterState, queue: UnitQueue) -> None:
        self._state, self._queue, self._clock = state, queue, queue.clock
        self.needs: dict[str, Sequence[QuotaNeed]] = {}
        """Unit -> what it would add to its quotas."""
        self._heaps: dict[_Limit, list[tuple[int, str]]] = {}
        """Limit -> heap of (amount less than 0, unit). May have entries of units that do not wait any more."""
        self._entries = 0
        """Number of entries of the heaps; an upper limit after a look."""
        self._most = SPARE_ENTRIES
        """Number of entries from which on the heaps are created again, twice that of the last time."""
        self.woken: set[str] = set()
        """Units that a look has woken and that were not tried since."""
        self._marks: object = None
        """`ClusterState.quota_marks` at the last look; None if a look is necessary in any case."""
        self._looked = -inf
        """Clock time of the last look."""

    def settled(self, unit: str, needs: Sequence[QuotaNeed]) -> None:
        """Records the end of a unit's attempt. needs: what a unit that waits for nodes would add to its quotas; empty
        for any other unit.

        A unit that a look has woken, and that still waits for nodes, is not watched until it is tried once more.
        Otherwise it would be tried at each look if its quota admitted it after all.
        """
        known = self.needs.get(unit, ())
        if unit in self.woken:
            self.woken.discard(unit)
            needs = ()
        if not needs:
            self.needs.pop(unit, None)
        elif known != needs:
            self.needs[unit] = needs
            self._marks = None
            for need in needs:
                heappush(self._heaps.setdefault(need[:3], []), (-need.amount, unit))
            self._entries += len(needs)
            if self._entries > self._most:
                self._rebuild()

    def next_look(self) -> float | None:
        """Returns the clock time of the next look; None if usage has not changed since the last one."""
        if not self.needs or self._marks == self._state.quota_marks:
            return None
        return self._looked + PAUSE_SECONDS

    def look(self) -> None:
        """Wakes the units that a limit of their quotas does not admit any more, if a look is due."""
        at = self.next_look()
        if at is None or at > self._clock():
            return
        self._looked, self._marks = self._clock(), self._state.quota_marks
        quotas = self._state.quota_view()
        left = MOST_AT_ONCE
        for limit, heap in list(self._heaps.items()):
            name, rigid, resource = limit
            quota = quotas.tree.quotas.get(name)
            if quota is None:
                continue  # the units are tried again because it is gone
            most, used = (quota.min, quotas.rigid_used) if rigid else (quota.max, quotas.used)
            free = most.get(resource, 0) - used.get(name, {}).get(resource, 0)
            while heap and -heap[0][0] > max(0, free) and left:
                amount, unit = heappop(heap)
                left -= self._wake(unit, QuotaNeed(*limit, -amount))
            if not heap:
                del self._heaps[limit]
        if not left:
            self._marks = None

    def _wake(self, unit: str, need: QuotaNeed) -> bool:
        """Wakes a unit if it waits for nodes with this need. Returns True if it is woken."""
        if need not in self.needs.get(unit, ()):
            return False
        del self.needs[unit]
        entry = self._queue.entries.get(unit)
        if entry is None or entry.state is not State.UNSCHEDULABLE:
            return False  # it is tried soon, and settles again
        self.woken.add(unit)
        self._queue.touch(unit, "QuotaUsed")
        return True

    def forget(self) -> None:
        """Forgets units that are not in the queue any more."""
        there = self._queue.entries
        self.needs = {unit: needs for unit, needs in self.needs.items() if unit in there}
        self.woken &= there.keys()
        self._rebuild()

    def _rebuild(self) -> None:
        """Creates the heaps without entries of units that do not wait any more."""
        self._heaps = {}
        for unit, needs in self.needs.items():
            for need in needs:
                self._heaps.setdefault(need[:3], []).append((-need.amount, unit))
        self._entries = sum(map(len, self._heaps.values()))
        self._most = 2 * self._entries + SPARE_ENTRIES
        for heap in self._heaps.values():
            heapify(heap)
