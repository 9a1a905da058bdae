# SPDX-License-Identifier: Apache-2.0
"""Reservations that this process remembers from one round to the next without writing them to the API server.

There are four kinds:
- Nodes for a unit that waits for terminating pods, or that has a stale plan. Rounds that do not plan this unit get
  them in their snapshot, as if the unit's pods were nominated there.
- Nodes for the successors of moved pods. Rounds get them in their snapshot, too.
- The promised start of a starving unit, and the seats of broken gangs. They are only remembered here, so that other
  units wake when they end.

Nominations at the API server are handled by `evictions/nominations.py`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from koordpy.cache.reservations import Reservation, ReturningPod, nomination, returning_holder
from koordpy.cache.snapshot import Snapshot
from koordpy.engine.wakeups import Wake
from koordpy.engine.watching.feeds import Feeds
from koordpy.plan.gang_repair import KeptSeats
from koordpy.plan.round_plan import Eviction, Placement, PromisedStart, RoundPlan
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import PodInfo


class RoundReservations:
    """Reservations of recent rounds. Owned by the event loop."""

    def __init__(self, feeds: Feeds) -> None:
        self._queue = feeds.queue
        self.awaiting: dict[str, list[Reservation]] = {}
        """Unit -> reservations of nodes for its members, as its last attempt has left them."""
        self._terminating: dict[str, dict[str, str]] = {}
        """Unit in `awaiting` -> key and uid of the terminating pods that its reservations may depend on."""
        self.promised_start: PromisedStart | None = None
        """The start that the last round has promised to a starving unit; None if it has promised none."""
        self.seats: Mapping[str, KeptSeats] = {}
        """Broken gang -> its seats in the last round."""
        self.returning: dict[str, ReturningPod] = {}
        """uid of a moved pod -> the record with its planned node."""
        feeds.listeners.pod_gone.append(self._pod_gone)
        feeds.listeners.gang.append(self._gang_changed)

    def add_to(self, snapshot: Snapshot, tried: frozenset[str]) -> Snapshot:
        """Returns the snapshot with the reservations of waiting units, except units that this round plans.

        First drops reservations that are not needed or not possible any more: a pod of the unit was deleted, bound or
        moved to another unit, or the eviction of a terminating pod was cancelled. Nodes of moved pods (`returning`) are
        added, too. tried: ids of the units that this round plans.
        """
        if self.returning:
            self._drop_returned(snapshot)
            snapshot = replace(snapshot, returning=tuple(self.returning.values()))
        given_up = False  # True if a reservation of a pod that is still pending has ended
        for unit, known in list(self.awaiting.items()):
            pods = [snapshot.pods.get(one.holder) for one in known]
            if any(info is None or not info.pending for info in pods):
                del self.awaiting[unit]
            elif any(self._queue.unit_of.get(one.holder) not in (unit, None) for one in known):
                # a member belongs to another unit now, which has no reservation
                del self.awaiting[unit]
                given_up = True
            elif any(_stays(snapshot.pods.get(key), uid) for key, uid in self._terminating.get(unit, {}).items()):
                # the pod is not terminating any more, so its capacity is not freed
                del self.awaiting[unit]
                given_up = True
        self._terminating = {unit: pods for unit, pods in self._terminating.items() if unit in self.awaiting}
        if given_up:
            self._queue.wake_waiting(Wake.CAPACITY_FREED, "AwaitedRoomGivenUp", planned=tried)
        awaited = [one for unit, known in self.awaiting.items() if unit not in tried for one in known]
        if not awaited:
            return snapshot
        # if the pod also has a nomination at the API server, its capacity is closed to that nomination's losers
        written = snapshot.reservations
        losers = {key: one.losers for key, one in written.items()}
        reserved = {one.holder: replace(one, losers=losers.get(one.holder, frozenset())) for one in awaited}
        return replace(snapshot, reservations={**written, **reserved})

    def keep(self, plan: RoundPlan, snapshot: Snapshot) -> None:
        """Records the reservations that a round has made for its units, in place of their earlier ones."""
        # (pod key, node) of reservations that ended, so that their capacity may help other units
        given_up: set[tuple[str, str]] = set()
        for tried in plan.units:
            given_up |= {(one.holder, one.node) for one in self.awaiting.pop(tried.unit, ())}
        for one in plan.awaiting_nominations:
            self.awaiting.setdefault(one.unit, []).append(nomination(one.pod_key, one.node))
            given_up.discard((one.pod_key, one.node))
        if plan.awaiting_nominations:
            ending = [pod for pod in snapshot.pods.values() if pod.bound and pod.pod.metadata.deletion_timestamp]
            for unit in {one.unit for one in plan.awaiting_nominations}:
                self._terminating[unit] = _terminating_for(self.awaiting[unit], ending, snapshot)
        used_nodes = {one.node for one in plan.placements}
        for cut in plan.deferred:
            # The round took the unit but did not decide it, and did not respect its reservation. If another unit has
            # got one of the reserved nodes, the reservation ends.
            if any(one.node in used_nodes for one in self.awaiting.get(cut.unit, ())):
                given_up |= {(one.holder, one.node) for one in self.awaiting.pop(cut.unit)}
        given_up -= {(one.pod_key, one.node) for one in plan.placements}
        if given_up:
            planned = {tried.unit for tried in plan.units}
            self._queue.wake_waiting(Wake.CAPACITY_FREED, "AwaitedRoomGivenUp", planned=planned)

    def withhold(self, unit: str, plan: RoundPlan, placements: Sequence[Placement]) -> None:
        """Reserves the nodes of a stale plan for its unit, until a later search has decided that unit (`keep`)."""
        nominated = [one for one in plan.nominations if one.unit == unit]
        self.awaiting[unit] = [nomination(one.pod_key, one.node) for one in nominated or placements]
        self._terminating.pop(unit, None)

    def promise(self, now: PromisedStart | None) -> None:
        """Remembers the start that the last round has promised; None if it has promised none."""
        before, self.promised_start = self.promised_start, now
        if before is not None and (now is None or now.unit != before.unit):
            self._queue.broadcast(Wake.CAPACITY_FREED, "ReservationGone")

    def keep_returns(
        self, evictions: Sequence[Eviction], nominated: Iterable[Placement], snapshot: Snapshot, extra_seconds: float
    ) -> None:
        """Keeps the planned nodes of moved pods until their successors are bound, at most until `extra_seconds` after
        the end of their grace period.

        nominated: pending pods of the same plan. Pending members of a gang that moves have to wait for the successors,
        so their nodes are reserved as long.
        """
        until = snapshot.now + max((one.grace_seconds for one in evictions), default=0) + extra_seconds
        places = [(one.pod_key, one.returns_to, one.returning_devices) for one in evictions if one.returns_to]
        holders = {returning_holder(snapshot.pods[key]) for key, *_ in places if key in snapshot.pods}
        places += [(one.pod_key, one.node, one.devices) for one in nominated] if places else []
        for key, node, devices in places:
            pod = snapshot.pods.get(key)
            if pod is not None and returning_holder(pod) in holders:
                self.returning[pod.uid] = ReturningPod(pod.uid, pod, node, snapshot.now, until, devices)

    def _drop_returned(self, snapshot: Snapshot) -> None:
        """Drops moved pods after a cancelled eviction, after their time limit, or after their successors are bound."""
        now, bound = snapshot.now, Counter[str]()
        since = min(one.since for one in self.returning.values())
        for pod in snapshot.pods.values():
            if pod.bound and pod.created >= int(since):
                bound[returning_holder(pod)] += 1
        for uid, one in list(self.returning.items()):
            known = snapshot.pods.get(one.pod.key)
            stays = known is not None and _stays(known, uid)
            if stays or one.until <= now or bound[one.holder] > 0:
                bound[one.holder] -= not stays
                del self.returning[uid]

    def keep_seats(self, seats: Mapping[str, KeptSeats]) -> None:
        """Remembers the seats of the last round by gang. Wakes waiting units if a gang has lost its seats."""
        before, self.seats = self.seats, seats
        if before.keys() - seats.keys():
            self._queue.broadcast(Wake.CAPACITY_FREED, "SeatsEnded")

    def end_due(self, now: float) -> None:
        """Wakes waiting units if the time limit of a gang's seats (repair.md 4.4) or of a moved pod's node has passed.

        now: seconds since 1970.
        """
        over = [uid for uid, one in self.returning.items() if one.until <= now]
        for uid in over:
            del self.returning[uid]
        if over:
            self._queue.broadcast(Wake.CAPACITY_FREED, "ReturnsEnded")
        if any(kept.until <= now for kept in self.seats.values()):
            self.keep_seats({gang: kept for gang, kept in self.seats.items() if kept.until > now})

    def _gang_changed(self, ref: GangRef) -> None:
        """Wakes waiting units when a gang with seats changes: it may need fewer seats, or none."""
        if ref.key in self.seats:
            self._queue.broadcast(Wake.CAPACITY_FREED, "SeatsChanged")

    def next_due(self) -> float | None:
        """Returns the next time limit of seats or nodes of moved pods, in seconds since 1970; None for none."""
        ends = [*(kept.until for kept in self.seats.values()), *(one.until for one in self.returning.values())]
        return min(ends, default=None)

    def _pod_gone(self, key: str) -> None:
        """Wakes units that were blocked by the reservation of a deleted pod."""
        if self.promised_start is not None and key in self.promised_start.nodes:
            self.promise(None)
        if any(one.holder == key for known in self.awaiting.values() for one in known):
            self._queue.broadcast(Wake.CAPACITY_FREED, "AwaitedRoomGivenUp")


def _terminating_for(places: Sequence[Reservation], ending: Iterable[PodInfo], snapshot: Snapshot) -> dict[str, str]:
    """Returns key -> uid of the terminating pods that free the capacity or the quota of the given reservations.

    These are the terminating pods on the reserved nodes, and those in the quota trees of the reservations' holders.
    places: the reservations of one unit. ending: all terminating pods of the snapshot.
    """
    quotas = snapshot.quotas
    # the first quota of a path identifies its tree; pods without a quota have an empty path
    nodes = {one.node for one in places}
    trees = {quotas.tree.path(quotas.quota_of(snapshot.pods[one.holder]))[:1] for one in places} - {()}
    return {
        pod.key: pod.uid
        for pod in ending
        if pod.node in nodes or (trees and quotas.tree.path(quotas.quota_of(pod))[:1] in trees)
    }


def _stays(pod: PodInfo | None, uid: str) -> bool:
    """Returns True if a pod was terminating and now stays on its node, because its eviction was cancelled. None: the
    pod does not exist."""
    return pod is not None and pod.uid == uid and pod.bound and not pod.pod.metadata.deletion_timestamp
