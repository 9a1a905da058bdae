# SPDX-License-Identifier: Apache-2.0
"""Holds the search that runs in parallel with ordinary rounds, if there is one.

An ordinary round only places what fits into free capacity, because that is fast. It defers units that need victims,
units to move, or the solver. A search plans these units in a separate thread, on a separate snapshot and draft. It is
never paused or interrupted, and ordinary rounds go on. There is one search at a time. Once it has ended, the scheduling
loop carries its plan out between two rounds. Each unit's part of the plan is checked against the state of that moment
first (`staleness.py`): against changes of the cluster, and against placements of the rounds since the snapshot.

The states of a unit (`queue_entry.PendingSearch`):

| state | meaning | next state |
|---|---|---|
| queued | a round found no placement, and deferred the unit | running, by turns of tenants (`planning_turns.py`) |
| running | the search under way has taken the unit | done, stale; queued if the time was up before its turn |
| done | carried out, or refused until a change may help | an ordinary round |
| stale | a change has invalidated the plan | withheld, after the first search; alone, after further ones |
| withheld | queued, ahead of other units; the nodes of its last plan are reserved (1) | running, by itself |
| alone | withheld; ordinary rounds wait for its search, so that its plan stays valid (2) | running, by itself |

(1) By `RoundReservations.withhold`, from units of no higher priority, until a search has decided the unit.
(2) If the cluster itself changes, the unit is searched once more.

A change of the unit itself returns it to an ordinary round from any state except running. The time of one search is
`planning.roundSeconds`, but at least one unit is decided, however long that takes. Owned by the event loop.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from koordpy.cache.snapshot import Snapshot
from koordpy.engine.dispatch import RoundInput
from koordpy.plan.round_plan import RoundPlan

STALE_BEFORE_ALONE = 2
"""Number of a unit's stale plans from which on ordinary rounds wait for its search. The first stale plan only reserves
the unit's nodes, because waiting delays all other units."""


@dataclass(frozen=True, slots=True)
class Search:
    """A search that runs, or that has ended."""

    input: RoundInput
    planning: asyncio.Future[RoundPlan]
    """The plan; done once the search has ended."""
    number: int
    """Number of the search's round in the decision log."""


class SearchWorker:
    """The search under way, if there is one."""

    def __init__(self, on_ended: Callable[[], None]) -> None:
        """on_ended: called when a search has ended."""
        self._on_ended = on_ended
        self.search: Search | None = None
        """The search that runs, or one with a plan that is not carried out yet; None for none."""

    @property
    def has_ended(self) -> bool:
        """True if the plan of a search waits to be carried out."""
        return self.search is not None and self.search.planning.done()

    @property
    def runs_alone(self) -> bool:
        """True if ordinary rounds have to wait for the search under way."""
        entries = self.search.input.entries.values() if self.search is not None else ()
        return any(one.search is not None and one.search.stale_plans >= STALE_BEFORE_ALONE for one in entries)

    def start(self, search: Search) -> None:
        """Stores a search that has just begun. No search may be stored."""
        assert self.search is None
        self.search = search
        search.planning.add_done_callback(lambda _: self._on_ended())

    async def wait(self) -> None:
        """Waits until the search under way has ended."""
        if self.search is not None:
            await asyncio.wait((self.search.planning,))

    def end(self) -> Search:
        """Removes and returns the search that has ended, so that the next one may begin."""
        assert self.search is not None
        search, self.search = self.search, None
        return search

    def note_placements(self, plan: RoundPlan, snapshot: Snapshot) -> None:
        """Records the placements of an ordinary round, because the running search's snapshot does not have them."""
        assert self.search is not None
        self.search.input.concurrent.add(plan, snapshot)
