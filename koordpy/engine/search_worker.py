# SPDX-License-Identifier: Apache-2.0
"""Manages the search: planning in parallel with ordinary rounds, for units that need victims, moved units or the
solver.

An ordinary round only places units that fit into free capacity, because that is fast, and defers the other units. A
search plans deferred units in a separate thread, on a separate snapshot and draft, while ordinary rounds continue.
There is one search at a time, and it is never interrupted. When it has ended, the scheduling loop carries its plan out
between two rounds. Before that, each unit's part of the plan is checked (`staleness.py`) against changes of the cluster
and placements of ordinary rounds since the search's snapshot.

The states of a unit (`queue_entry.PendingSearch`):

| state | meaning | next state |
|---|---|---|
| queued | a round found no placement, and deferred the unit | running, by turns of tenants (`planning_turns.py`) |
| running | the current search has taken the unit | done, stale; queued if the search's time was over before its turn |
| done | its plan is carried out, or it is refused until a change may help | an ordinary round |
| stale | a change has invalidated the plan | withheld, after the first search; alone, after further ones |
| withheld | queued, ahead of other units; the nodes of its last plan are reserved (1) | running, by itself |
| alone | withheld; ordinary rounds wait for its search, so that its plan stays valid (2) | running, by itself |

(1) `RoundReservations.withhold` closes the nodes to units of the same or lower priority until a search has decided.
(2) If the cluster itself changes, the unit is searched once more.

A change of the unit itself returns it to an ordinary round from any state except running. A search starts no further
unit after `planning.roundSeconds`, but it decides at least one unit. Owned by the event loop.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from koordpy.cache.snapshot import Snapshot
from koordpy.engine.dispatch import RoundInput
from koordpy.plan.round_plan import RoundPlan

STALE_BEFORE_ALONE = 2
"""Number of a unit's stale plans from which on ordinary rounds wait for its search. After the first stale plan only the
unit's nodes are reserved, because waiting rounds delay all other units."""


@dataclass(frozen=True, slots=True)
class Search:
    """A search that runs, or one that has ended with a plan that is not carried out yet."""

    input: RoundInput
    planning: asyncio.Future[RoundPlan]
    """The plan; done once the search has ended."""
    number: int
    """Number of the search's round in the decision log."""


class SearchWorker:
    """Holds the current search, if there is one."""

    def __init__(self, on_ended: Callable[[], None]) -> None:
        """on_ended: called when a search has ended."""
        self._on_ended = on_ended
        self.search: Search | None = None
        """The search that runs, or has ended with a plan that is not carried out yet; None for none."""

    @property
    def has_ended(self) -> bool:
        """True if a search has ended, and its plan is not carried out yet."""
        return self.search is not None and self.search.planning.done()

    @property
    def runs_alone(self) -> bool:
        """True if ordinary rounds have to wait for the current search."""
        entries = self.search.input.entries.values() if self.search is not None else ()
        return any(one.search is not None and one.search.stale_plans >= STALE_BEFORE_ALONE for one in entries)

    def start(self, search: Search) -> None:
        """Stores a search that has just begun. Must not be called while another search is stored."""
        assert self.search is None
        self.search = search
        search.planning.add_done_callback(lambda _: self._on_ended())

    async def wait(self) -> None:
        """Waits until the current search has ended."""
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
