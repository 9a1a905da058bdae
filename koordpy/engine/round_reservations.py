"""Room that is promised from one round to the next, though nothing of it is written at the API server.

A unit that waits for pods which are ending anyhow, or behind which small jobs are let through, keeps that room while it
is not tried itself: each snapshot is told of it. Nominations, which are written, are the evictor's (`nominations.py`).
"""

from dataclasses import replace

from koordpy.cluster.reservations import Reservation
from koordpy.cluster.snapshot import Snapshot
from koordpy.engine.wakeups import Wake
from koordpy.engine.watching.feeds import Feeds
from koordpy.planning.plan import Nomination, PromisedStart, RoundPlan


class RoundReservations:
    """What the last rounds have promised. Owned by the event loop."""

    def __init__(self, feeds: Feeds) -> None:
        self._queue = feeds.queue
        self._awaiting: dict[str, list[Nomination]] = {}
        """Unit -> room that it waits for, as its last attempt has found."""
        self._reservation: PromisedStart | None = None
        feeds.listeners.pod_gone.append(self._pod_gone)

    def told(self, snapshot: Snapshot, tried: frozenset[str]) -> Snapshot:
        """A snapshot that knows what is promised to units that are not tried in this round; what those that are tried
        wait for is found anew."""
        moved = False
        for unit, known in list(self._awaiting.items()):
            there = [snapshot.pods.get(one.pod_key) for one in known]
            if any(info is None or not info.pending for info in there):
                del self._awaiting[unit]
            elif any(self._queue.unit_of.get(one.pod_key) not in (unit, None) for one in known):
                # a member is of another gang by now, which has been promised nothing
                del self._awaiting[unit]
                moved = True
        if moved:
            self._queue.wake_waiting(Wake.ROOM, "AwaitedRoomGivenUp", planned=tried)
        awaited = [one for unit, known in self._awaiting.items() if unit not in tried for one in known]
        if not awaited:
            return snapshot
        written, none = snapshot.reservations, Reservation("")
        kept = {one.pod_key: replace(written.get(one.pod_key, none), node=one.node) for one in awaited}
        return replace(snapshot, reservations={**written, **kept})

    def found(self, plan: RoundPlan) -> None:
        """Keeps what a round has found for those that it tried."""
        given_up: set[tuple[str, str]] = set()
        for tried in plan.units:
            given_up |= {(one.pod_key, one.node) for one in self._awaiting.pop(tried.unit, ())}
        for one in plan.awaiting:
            self._awaiting.setdefault(one.unit, []).append(one)
            given_up.discard((one.pod_key, one.node))
        taken = {one.node for one in plan.placements}
        for cut in plan.deferred:
            # it did not count while it was looked for anew, and would come back once who has it now goes for others
            if any(one.node in taken for one in self._awaiting.get(cut.unit, ())):
                given_up |= {(one.pod_key, one.node) for one in self._awaiting.pop(cut.unit)}
        given_up -= {(one.pod_key, one.node) for one in plan.placements}
        if given_up:
            planned = {tried.unit for tried in plan.units}
            self._queue.wake_waiting(Wake.ROOM, "AwaitedRoomGivenUp", planned=planned)

    def reserve(self, now: PromisedStart | None) -> None:
        """The room behind which others are let through is this from now on."""
        before, self._reservation = self._reservation, now
        if before is not None and (now is None or now.unit != before.unit):
            self._queue.broadcast(Wake.ROOM, "ReservationGone")

    def _pod_gone(self, key: str) -> None:
        """Room that was kept for a pod is free for others when it will not come."""
        if self._reservation is not None and key in self._reservation.nodes:
            self.reserve(None)
        if any(one.pod_key == key for known in self._awaiting.values() for one in known):
            self._queue.broadcast(Wake.ROOM, "AwaitedRoomGivenUp")
