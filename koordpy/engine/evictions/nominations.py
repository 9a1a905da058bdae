# SPDX-License-Identifier: Apache-2.0
"""Tracks nominations (status.nominatedNodeName) from the eviction of their victims until they end.

A nomination reserves capacity on a node for a pod. It ends when the pod is bound, when the node cannot hold the pod any
more, or at its time limit. The cache has a nomination from the decision on, before it is written to the API server, and
drops it before the write that clears it (`cache/expected_pods.py`). Nominations that an earlier process has written end
after `RESTORED_SECONDS`. Sources: kube-parity.md 4.5, preemption.md 4.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from koordpy.cache.reservations import Reservation, nomination
from koordpy.cache.snapshot import PODS
from koordpy.engine.client.api_errors import ApiError, Unreachable
from koordpy.engine.engine_context import Context, begin
from koordpy.engine.evictions.eviction_calls import Dropped, EvictionCalls
from koordpy.engine.wakeups import Wake
from koordpy.pods.pod_info import PodInfo
from koordpy.reservations.reservation_ledger import frees_capacity

logger = logging.getLogger(__name__)

RESTORED_SECONDS = 90.0
"""Time limit of nominations that an earlier process has written, from the start of this process on."""

Members = dict[str, Reservation]
"""Pod key -> reservation of each nominated member of a unit."""


class Nominations:
    """The reservations of nominated pods, by unit. Owned by the event loop."""

    def __init__(self, context: Context, calls: EvictionCalls) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        """Tasks that clear nominations. The evictor adds its own tasks to the set."""
        self._state, self._queue, self._calls = context.state, context.queue, calls
        self._may_write, self._clock, self._now = context.may_write, context.clock, context.now
        self.reserved: dict[str, Members] = {}
        """Id of a unit -> reservations of its nominated members."""
        self._planned_again: set[str] = set()
        """Ids of units that were queued again after their victims had ended, so that this happens once."""
        self._clearing: dict[str, asyncio.Event] = {}
        """Key of a pod -> event that is set when the write that clears its nomination has ended."""
        self._uncleared: dict[str, str] = {}
        """Key -> uid of pods with a nomination that could not be cleared yet; tried again."""

    def reserve(
        self, unit: str, members: Iterable[tuple[str, str, str]], until: float, victims: Mapping[str, str]
    ) -> None:
        """Records the nominations of a unit in place of its earlier ones.

        members: (pod key, uid, node). until: time limit, on the process's clock. victims: key -> uid of the pods that
        are evicted for the unit.
        """
        self.reserved[unit] = {
            key: replace(nomination(key, node), uid=uid, until=until, victims=victims) for key, uid, node in members
        }
        self._planned_again.discard(unit)

    def _forget(self, unit: str) -> None:
        """Removes the record of a unit's nominations, without clearing them at the API server."""
        self.reserved.pop(unit, None)
        self._planned_again.discard(unit)

    async def before_writing(self, key: str) -> None:
        """Waits until an older write to the pod's nomination has ended, so that the new write comes last."""
        if (cleared := self._clearing.get(key)) is not None:
            await cleared.wait()
        self._uncleared.pop(key, None)

    async def give_up(self, units: Iterable[str], pods: Iterable[PodInfo]) -> None:
        """Clears the nominations of less important units, because a plan uses their capacity. These units are planned
        again."""
        units = list(units)
        for unit in units:
            logger.info("%s: its nominations are cleared for a more important unit; planned again", unit)
            self._forget(unit)
        await self.clear(pods)
        for unit in units:
            self._queue.touch(unit, "NominationVoid")

    async def clear(self, pods: Iterable[PodInfo]) -> None:
        """Clears nominations in the cache at once, then at the API server. Failed writes are repeated by `look`."""

        async def one(info: PodInfo) -> None:
            """Clears the nomination of one pod, after an earlier write to it has ended."""
            if (earlier := self._clearing.get(info.key)) is not None:
                # a nomination may have been written after the earlier call was sent
                await earlier.wait()
            self._state.foresee_nomination(info.key, "")
            self._uncleared[info.key] = info.uid
            done = self._clearing[info.key] = asyncio.Event()
            try:
                if await self._calls.patch(info, {"nominatedNodeName": None}):
                    self._uncleared.pop(info.key, None)
            except (Dropped, ApiError, Unreachable) as why:
                logger.warning("pod %s: its nomination was not cleared: %s", info.key, why)
            finally:
                done.set()
                if self._clearing.get(info.key) is done:
                    del self._clearing[info.key]

        await self._calls.each([info for info in pods if not info.node], one)
        self._queue.broadcast(Wake.CAPACITY_FREED, "NominationEnd")

    def restore(self) -> None:
        """Records the nominations that an earlier process has written to pods."""
        until = self._clock() + RESTORED_SECONDS
        for info in self._state.nominated():
            if (unit := self._queue.unit_of.get(info.key)) is not None:
                self.reserved.setdefault(unit, {})[info.key] = _restored(info, until)

    async def look(self) -> None:
        """Checks all nominations. Wakes units after their victims have ended. Clears nominations that have expired, or
        that the node cannot hold any more (`_is_void`)."""
        for unit, members in list(self.reserved.items()):
            if self.reserved.get(unit) is not members:
                # this unit's nominations were cleared or replaced while the loop cleared those of another unit
                continue
            waiting = self._waiting(members)
            if not waiting:
                self._forget(unit)
                # the capacity reserved for the unit in its quota can be lent to other quotas again (lend_runtimes.py)
                self._queue.broadcast(Wake.DEMAND_FELL, "NominationEnd")
            elif any(self._is_void(info) for info in waiting) and self._may_write():
                self._forget(unit)
                logger.info("%s: its nominated nodes will not have enough capacity; planned again", unit)
                await self.clear(waiting)
                self._queue.touch(unit, "NominationVoid")
            elif unit not in self._planned_again and not self._terminating(members, waiting):
                # the next round binds the unit, or refuses it and clears its nominations
                self._planned_again.add(unit)
                self._queue.touch(unit, "VictimsGone")
            elif self._clock() > max(one.until for one in members.values()) and self._may_write():
                self._forget(unit)
                logger.warning("%s: its victims did not end in time; planned again", unit)
                await self.clear(waiting)
                self._queue.touch(unit, "NominationExpired")
        if self._uncleared and self._may_write():
            there = [(self._state.pod(key), uid) for key, uid in self._uncleared.items()]
            self._uncleared = {}
            await self.clear([info for info, uid in there if info is not None and info.uid == uid and info.pending])

    def refused(self, unit: str, pods: Iterable[PodInfo]) -> None:
        """Clears the nominations of a unit that was planned again without success. Keeps them while its victims, or
        other pods on the nominated nodes, are terminating or still have devices. pods: members that stay pending."""
        members = self.reserved.get(unit)
        if members is not None and self._has_victims(members):
            return
        void = [info for info in pods if info.nominated_node and info.pending]
        if any(self._has_leaving(info.nominated_node) for info in void):
            if members is None:
                until = self._clock() + RESTORED_SECONDS
                self.reserved[unit] = {info.key: _restored(info, until) for info in void}
            return
        if void and self._may_write():
            self._forget(unit)
            begin(self.clear(void), f"void nominations of {unit}", self.tasks)

    def _is_void(self, info: PodInfo) -> bool:
        """Returns True if a pod will not fit its nominated node even after all terminating pods there have ended."""
        node = self._state.nodes.get(info.nominated_node)
        if node is None:
            return True
        now = self._now()
        count, used = self._state.usage.usage_of(node.name)
        terminating = [pod for pod in self._state.leaving(node.name) if frees_capacity(pod, now)]
        if count - len(terminating) >= node.allocatable.get(PODS, 0):
            return True
        for name, amount in info.requests.items():
            free = node.allocatable.get(name, 0) - used.get(name, 0) + sum(p.requests.get(name, 0) for p in terminating)
            if amount > max(0, free):
                return True
        return False

    def _waiting(self, members: Members) -> list[PodInfo]:
        """Returns the members that still have a nomination, which ends when the pod is bound."""
        pods = [self._state.pod(key) for key in members]
        return [info for info in pods if info is not None and info.nominated_node and info.uid == members[info.key].uid]

    def _terminating(self, members: Members, waiting: Iterable[PodInfo]) -> bool:
        """Returns True if victims still exist, or still have devices. If an earlier process has evicted them, they are
        not known; then every terminating pod on a nominated node counts as a victim."""
        if any(one.victims for one in members.values()):
            return self._has_victims(members)
        return any(self._has_leaving(info.nominated_node) for info in waiting)

    def _has_victims(self, members: Members) -> bool:
        """Returns True if a pod that was evicted for the unit still exists, or is gone but still has devices."""
        victims = {key: uid for one in members.values() for key, uid in one.victims.items()}
        there = [(self._state.pod(key), uid) for key, uid in victims.items()]
        if any(info is not None and info.uid == uid and not info.finished for info, uid in there):
            return True
        return self._comes_free(pods=set(victims.values()))

    def _has_leaving(self, node: str) -> bool:
        """Returns True if a pod on a node is terminating, or pods that are gone still have devices of the node."""
        return bool(self._state.leaving(node)) or self._comes_free(node=node)

    def _comes_free(self, *, pods: Collection[str] = (), node: str = "") -> bool:
        """Returns True if devices come free without evictions: they are allocated to pods that are gone. pods, node: as
        in `FamilyBook.device_users`."""
        books = (book for book in self._state.families.values() if not book.is_idle)
        every = [set(users) for book in books for users in book.device_users(pods=pods, node=node)]
        alive = {info.uid for info in self._state.pods()} if every else set()
        return any(alive.isdisjoint(users) for users in every)


def _restored(info: PodInfo, until: float) -> Reservation:
    """Returns the reservation of a pod with a nomination that was read from the API server."""
    return replace(nomination(info.key, info.nominated_node), uid=info.uid, until=until)
