"""Room that is kept by nominations while victims end: until it is taken, comes to nothing, or its time is up.

Sources: kube-parity.md 4.5, preemption.md 4. A nomination is status.nominatedNodeName at the API server, and counts
here from the moment it is decided (`cluster/expected.py`). One that is taken back ends here at once, and at the API
server as well as that can be done. Nominations that another process made are kept for a while, too.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from koordpy.cluster.pods import PodInfo
from koordpy.cluster.snapshot import PODS
from koordpy.engine.apiserver.client import ApiError, Unreachable
from koordpy.engine.context import Context, begin
from koordpy.engine.evictions.calls import Dropped, EvictionCalls
from koordpy.engine.wakeups import Wake
from koordpy.planning.nominated_capacity import coming_free

logger = logging.getLogger(__name__)

RESTORED_SECONDS = 90.0
"""How long the room of nominations is kept that are older than this process."""


@dataclass(slots=True)
class Kept:
    """Room that is kept for a unit until a deadline. pods: key -> uid of its members; victims: of those that go."""

    deadline: float
    pods: dict[str, str]
    victims: dict[str, str] = field(default_factory=dict)
    tried: bool = False
    """Whether the unit was planned anew since its victims are gone."""


class Nominations:
    """Units and the room that is kept for them. Owned by the event loop."""

    def __init__(self, context: Context, calls: EvictionCalls) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        """Void nominations that are being cleared."""
        self._state, self._queue, self._calls = context.state, context.queue, calls
        self._may_write, self._clock, self._now = context.may_write, context.clock, context.now
        self.kept: dict[str, Kept] = {}
        """Unit whose victims are going -> the room that is kept for it."""
        self._clearing: dict[str, asyncio.Event] = {}
        """Pods whose nomination is being cleared at the API server."""
        self._uncleared: dict[str, str] = {}
        """key -> uid of pods where that failed: tried again."""

    async def before_writing(self, key: str) -> None:
        """A pod is about to be nominated: waits for an older write, which must not be the last."""
        if (cleared := self._clearing.get(key)) is not None:
            await cleared.wait()
        self._uncleared.pop(key, None)

    async def give_up(self, units: Iterable[str], pods: Iterable[PodInfo]) -> None:
        """The room of units is for others: their pods' nominations are taken back, and they are planned anew."""
        units = list(units)
        for unit in units:
            logger.info("%s: a more important unit takes the room it is nominated to; it is planned anew", unit)
            self.kept.pop(unit, None)
        await self.clear(pods)
        for unit in units:
            self._queue.touch(unit, "NominationVoid")

    async def clear(self, pods: Iterable[PodInfo]) -> None:
        """Takes nominations back, here at once and at the API server as well as that can be done."""

        async def one(info: PodInfo) -> None:
            if (earlier := self._clearing.get(info.key)) is not None:
                # a nomination may have been written after that one was sent
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
        self._queue.broadcast(Wake.ROOM, "NominationEnd")

    def restore(self) -> None:
        """Nominations of pods that another process made: their room is kept for a while."""
        deadline = self._clock() + RESTORED_SECONDS
        for info in self._state.nominated():
            if (unit := self._queue.unit_of.get(info.key)) is not None:
                self.kept.setdefault(unit, Kept(deadline, {})).pods[info.key] = info.uid

    async def look(self) -> None:
        """Ends what is over: units that are bound or gone, and nominations whose time is up."""
        for unit, kept in list(self.kept.items()):
            if self.kept.get(unit) is not kept:
                # given up, or kept anew, while another's nominations were cleared
                continue
            waiting = self._waiting(kept)
            if not waiting:
                del self.kept[unit]
                # a quota that was promised to it lends again what others ask for in vain (planning/queue/lending.py)
                self._queue.broadcast(Wake.ASKED, "NominationEnd")
            elif any(self._is_void(info) for info in waiting) and self._may_write():
                del self.kept[unit]
                logger.info("%s: the room it is nominated to will not come; it is planned anew", unit)
                await self.clear(waiting)
                self._queue.touch(unit, "NominationVoid")
            elif not kept.tried and not self._leaving(kept, waiting):
                # takes its room now, or is refused and gives it back
                kept.tried = True
                self._queue.touch(unit, "VictimsGone")
            elif self._clock() > kept.deadline and self._may_write():
                del self.kept[unit]
                logger.warning("%s: its victims are not gone in time; it is planned anew", unit)
                await self.clear(waiting)
                self._queue.touch(unit, "NominationExpired")
        if self._uncleared and self._may_write():
            there = [(self._state.pod(key), uid) for key, uid in self._uncleared.items()]
            self._uncleared = {}
            await self.clear([info for info, uid in there if info is not None and info.uid == uid and info.pending])

    def refused(self, unit: str, pods: Iterable[PodInfo]) -> None:
        """A unit was planned anew and found no place: room that it is nominated to and nobody is leaving is void."""
        kept = self.kept.get(unit)
        if kept is not None and any(self._still_there(key, uid) for key, uid in kept.victims.items()):
            return
        void = [info for info in pods if info.nominated_node and info.pending]
        if any(self._state.leaving(info.nominated_node) for info in void):
            if kept is None:
                deadline = self._clock() + RESTORED_SECONDS
                self.kept[unit] = Kept(deadline, {info.key: info.uid for info in void})
            return
        if void and self._may_write():
            self.kept.pop(unit, None)
            begin(self.clear(void), f"void nominations of {unit}", self.tasks)

    def _is_void(self, info: PodInfo) -> bool:
        """Whether a pod cannot fit the node it is nominated to even when those that are ending there are gone."""
        node = self._state.nodes.get(info.nominated_node)
        if node is None:
            return True
        now = self._now()
        count, used = self._state.usage.held(node.name)
        leave = [pod for pod in self._state.leaving(node.name) if coming_free(pod, now)]
        if count - len(leave) >= node.allocatable.get(PODS, 0):
            return True
        for name, amount in info.requests.items():
            room = node.allocatable.get(name, 0) - used.get(name, 0) + sum(p.requests.get(name, 0) for p in leave)
            if amount > max(0, room):
                return True
        return False

    def _waiting(self, kept: Kept) -> list[PodInfo]:
        pods = [self._state.pod(key) for key in kept.pods]
        return [info for info in pods if info is not None and info.nominated_node and info.uid == kept.pods[info.key]]

    def _leaving(self, kept: Kept, waiting: Iterable[PodInfo]) -> bool:
        if kept.victims:
            return any(self._still_there(key, uid) for key, uid in kept.victims.items())
        return any(self._state.leaving(info.nominated_node) for info in waiting)

    def _still_there(self, key: str, uid: str) -> bool:
        info = self._state.pod(key)
        return info is not None and info.uid == uid and not info.finished
