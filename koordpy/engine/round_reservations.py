"""Reservations that are known from one round to the next and not written at the API server.

A unit that waits for terminating pods, or that had a plan which no longer holds, keeps its places while it is not tried
itself: each snapshot gets them as nominations. The same process remembers the unit with a promised start. Nominations
that are written are watched by the evictor (`nominations.py`).
"""

from collections.abc import Sequence
from dataclasses import replace

from koordpy.cache.reservations import Reservation, nomination
from koordpy.cache.snapshot import Snapshot
from koordpy.engine.wakeups import Wake
from koordpy.engine.watching.feeds import Feeds
from koordpy.plan.round_plan import Placement, PromisedStart, RoundPlan
from koordpy.pods.pod_info import PodInfo


class RoundReservations:
    """What the last rounds have reserved. Owned by the event loop."""

    def __init__(self, feeds: Feeds) -> None:
        self._queue = feeds.queue
        self.awaiting: dict[str, list[Reservation]] = {}
        """Unit -> the places that it waits for, as its last attempt has found."""
        self._terminating: dict[str, dict[str, str]] = {}
        """Unit in `awaiting` -> key and uid of the terminating pods that its places may depend on."""
        self.promised: PromisedStart | None = None
        """The promised start of the last round; None for none."""
        feeds.listeners.pod_gone.append(self._pod_gone)

    def add_to(self, snapshot: Snapshot, tried: frozenset[str]) -> Snapshot:
        """Returns the snapshot with the places of waiting units that are not tried in this round; the places of those
        that are tried are found anew."""
        given_up = False
        for unit, known in list(self.awaiting.items()):
            there = [snapshot.pods.get(one.holder) for one in known]
            if any(info is None or not info.pending for info in there):
                del self.awaiting[unit]
            elif any(self._queue.unit_of.get(one.holder) not in (unit, None) for one in known):
                # a member is in another gang by now, for which nothing is reserved
                del self.awaiting[unit]
                given_up = True
            elif any(_stays(snapshot.pods.get(key), uid) for key, uid in self._terminating.get(unit, {}).items()):
                # the plan that was to evict it was dropped: its capacity does not come free
                del self.awaiting[unit]
                given_up = True
        self._terminating = {unit: pods for unit, pods in self._terminating.items() if unit in self.awaiting}
        if given_up:
            self._queue.wake_waiting(Wake.ROOM, "AwaitedRoomGivenUp", planned=tried)
        awaited = [one for unit, known in self.awaiting.items() if unit not in tried for one in known]
        if not awaited:
            return snapshot
        written = snapshot.reservations
        losers = {key: one.losers for key, one in written.items()}
        kept = {one.holder: replace(one, losers=losers.get(one.holder, frozenset())) for one in awaited}
        return replace(snapshot, reservations={**written, **kept})

    def keep(self, plan: RoundPlan, snapshot: Snapshot) -> None:
        """Keeps the places that a round has found on a snapshot for the units that it tried."""
        given_up: set[tuple[str, str]] = set()
        for tried in plan.units:
            given_up |= {(one.holder, one.node) for one in self.awaiting.pop(tried.unit, ())}
        for one in plan.awaiting:
            self.awaiting.setdefault(one.unit, []).append(nomination(one.pod_key, one.node))
            given_up.discard((one.pod_key, one.node))
        for unit in {one.unit for one in plan.awaiting}:
            self._terminating[unit] = _terminating_for(self.awaiting[unit], snapshot)
        taken = {one.node for one in plan.placements}
        for cut in plan.deferred:
            # it did not count while it was looked for anew, and would come back once its new holder leaves
            if any(one.node in taken for one in self.awaiting.get(cut.unit, ())):
                given_up |= {(one.holder, one.node) for one in self.awaiting.pop(cut.unit)}
        given_up -= {(one.pod_key, one.node) for one in plan.placements}
        if given_up:
            planned = {tried.unit for tried in plan.units}
            self._queue.wake_waiting(Wake.ROOM, "AwaitedRoomGivenUp", planned=planned)

    def withhold(self, unit: str, plan: RoundPlan, placements: Sequence[Placement]) -> None:
        """Reserves the nodes of a stale plan for its unit, until a later search has decided that unit (`keep`)."""
        nominated = [one for one in plan.nominations if one.unit == unit]
        self.awaiting[unit] = [nomination(one.pod_key, one.node) for one in nominated or placements]
        self._terminating.pop(unit, None)

    def promise(self, now: PromisedStart | None) -> None:
        """Remembers the promised start of the last round; None for none."""
        before, self.promised = self.promised, now
        if before is not None and (now is None or now.unit != before.unit):
            self._queue.broadcast(Wake.ROOM, "ReservationGone")

    def _pod_gone(self, key: str) -> None:
        """Wakes units that the reservation of a pod that is gone was closed to."""
        if self.promised is not None and key in self.promised.nodes:
            self.promise(None)
        if any(one.holder == key for known in self.awaiting.values() for one in known):
            self._queue.broadcast(Wake.ROOM, "AwaitedRoomGivenUp")


def _terminating_for(places: Sequence[Reservation], snapshot: Snapshot) -> dict[str, str]:
    """Returns key and uid of the terminating pods on the nodes of some places, or in the quota trees of their pods."""
    quotas = snapshot.quotas
    nodes = {one.node for one in places}
    trees = {quotas.tree.path(quotas.quota_of(snapshot.pods[one.holder]))[:1] for one in places} - {()}
    return {
        pod.key: pod.uid
        for pod in snapshot.pods.values()
        if pod.bound
        and pod.pod.metadata.deletion_timestamp
        and (pod.node in nodes or quotas.tree.path(quotas.quota_of(pod))[:1] in trees)
    }


def _stays(pod: PodInfo | None, uid: str) -> bool:
    """Returns True if a pod that was seen terminating is on its node and is not terminating any more."""
    return pod is not None and pod.uid == uid and pod.bound and not pod.pod.metadata.deletion_timestamp
