"""Makes the room that a plan with victims needs: nominations first, then the evictions, then the wait for their end.

Sources: kube-parity.md 4.5 and 4.7, preemption.md 4 and 8. Priority preemption marks the victim (DisruptionTarget)
and deletes it; everything else asks the eviction API, and one refusal (429, a PodDisruptionBudget) drops the whole
plan: what is not evicted yet stays. Nothing is bound here. The members are planned anew as the victims end; until
then, or until the longest grace period and a minute have passed, their nomination keeps the room.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from koordpy.api.keys import DEFAULT_SCHEDULER_NAME
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.quotas import Queue
from koordpy.cluster.snapshot import PODS
from koordpy.cluster.state import ClusterState
from koordpy.engine.announce import Announcer
from koordpy.engine.client import ApiClient, ApiError, Unreachable
from koordpy.engine.evictioncalls import Dropped, EvictionCalls
from koordpy.engine.patches import pod_unschedulable, rfc3339
from koordpy.engine.recorder import ObjectReference
from koordpy.observe.metrics import Metrics
from koordpy.planning.plan import Benefit, Eviction, Nomination, Reason
from koordpy.planning.promised import coming_free, parties

logger = logging.getLogger(__name__)

EXTRA_SECONDS = 60.0
"""What the room stays reserved beyond the longest grace period of the victims (preemption.md 4)."""
RESTORED_SECONDS = 90.0
"""The same for nominations that are older than this process."""
CONFIRM_SECONDS = 30.0
PRIORITY = "priority"
OUTDATED = "room came meanwhile"


@dataclass(frozen=True, slots=True)
class EvictionPlan:
    """One unit's victims, and where its members are to go. unit is empty where nobody in particular gains."""

    unit: str
    evictions: tuple[Eviction, ...]
    nominations: tuple[Nomination, ...] = ()
    benefit: Benefit | None = None
    beneficiary: ObjectReference | None = None
    rooms: Callable[[], int] = lambda: 0
    """How often room came: where that changes while the nominations are written, nobody may need to go any more."""
    losers: frozenset[Queue] = frozenset()
    """Quotas and users that its room is reclaimed from: closed to them until it is taken (preemption.md 4)."""


Done = Callable[[EvictionPlan, str], None]
"""Hears how a plan ended: empty where its victims are going, else why it was dropped."""


@dataclass(slots=True)
class _Kept:
    """Room that is kept for a unit. pods: key -> uid of its members; victims: the same of those that go."""

    deadline: float
    pods: dict[str, str]
    victims: dict[str, str] = field(default_factory=dict)
    losers: frozenset[Queue] = frozenset()
    tried: bool = False
    """Whether the unit was planned anew since its victims are gone."""


class Evictor:
    """Carries out plans with victims. Owned by the event loop; `run` works until cancelled."""

    def __init__(
        self,
        client: ApiClient,
        state: ClusterState,
        announcer: Announcer,
        *,
        metrics: Metrics,
        may_write: Callable[[], bool],
        wake: Callable[[str, str], None],
        freed: Callable[[], None] = lambda: None,
        returned: Callable[[PodInfo], None] = lambda info: None,
        unit_of: Callable[[str], str | None],
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        extra_seconds: float = EXTRA_SECONDS,
        restored_seconds: float = RESTORED_SECONDS,
        look_seconds: float = 1.0,
    ) -> None:
        """`wake(unit, event)` has a unit tried again; `freed` hears that room is not kept any more; `returned` hears
        of victims that wait for a place after all; `unit_of(pod key)` names the unit that a queued pod is in."""
        self._calls = EvictionCalls(client, may_write=may_write, now=now)
        self._state, self._announcer, self._metrics = state, announcer, metrics
        self._may_write, self._wake, self._unit_of = may_write, wake, unit_of
        self._freed, self._returned = freed, returned
        self._clock, self._now = clock, now
        self._extra_seconds, self._restored_seconds, self._look_seconds = extra_seconds, restored_seconds, look_seconds
        self._jobs: set[asyncio.Task[None]] = set()
        self._begun: dict[str, EvictionPlan] = {}
        """Unit -> its plan, while that is carried out."""
        self._kept: dict[str, _Kept] = {}
        self._clearing: dict[str, asyncio.Event] = {}
        """Pods whose nomination is being cleared at the API server."""
        self._uncleared: dict[str, str] = {}
        """key -> uid of pods where that failed: tried again."""

    @property
    def open(self) -> int:
        """Plans whose evictions are being sent."""
        return len(self._jobs)

    def closed(self) -> dict[str, frozenset[Queue]]:
        """Nominated pod -> quotas and users that its room was reclaimed from, as far as this process knows."""
        out = {one.pod_key: plan.losers for plan in self._begun.values() if plan.losers for one in plan.nominations}
        return out | {key: kept.losers for kept in self._kept.values() if kept.losers for key in kept.pods}

    def submit(self, plan: EvictionPlan, done: Done) -> None:
        """Starts a plan. From now on its room is kept and its victims are seen as going."""
        self._begun[plan.unit] = plan
        now = self._now()
        for one in plan.nominations:
            self._state.foresee_nomination(one.pod_key, one.node)
        for victim in plan.evictions:
            self._state.foresee_end(victim.pod_key, rfc3339(now + timedelta(seconds=victim.grace_seconds)))
        task = asyncio.create_task(self._carry_out(plan, done), name=f"evictions for {plan.unit or 'quotas'}")
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def run(self) -> None:
        """Ends nominations in time, until cancelled; then the evictions that are under way are left as they are."""
        self._restore()
        try:
            while True:
                await asyncio.sleep(self._look_seconds)
                await self._look()
        finally:
            for task in self._jobs:
                task.cancel()
            await asyncio.gather(*self._jobs, return_exceptions=True)

    async def drain(self, seconds: float) -> None:
        """Waits until the plans under way are carried out, at most so long."""
        if self._jobs:
            await asyncio.wait(self._jobs, timeout=seconds)

    # -- one plan -----------------------------------------------------------------------------------------------------

    async def _carry_out(self, plan: EvictionPlan, done: Done) -> None:
        gone: set[str] = set()
        why = ""
        try:
            self._metrics.preemption_attempts.inc()
            await self._clear_lesser(plan)
            rooms = plan.rooms()
            await self._nominate(plan)
            if plan.rooms() != rooms:
                raise Dropped(OUTDATED)
            await self._evict_all(plan, gone)
        except Dropped as dropped:
            why = str(dropped)
        except Exception as error:
            logger.exception("%s: evicting failed", plan.unit)
            why = f"{type(error).__name__}: {error}"
        if gone:
            self._metrics.preemption_victims.observe(len(gone))
        if why:
            logger.warning("%s: its plan with victims is dropped: %s", plan.unit, why)
            await self._withdraw(plan, gone)
        elif plan.nominations:
            longest = max((victim.grace_seconds for victim in plan.evictions), default=0)
            self._kept[plan.unit] = _Kept(
                self._clock() + longest + self._extra_seconds,
                {one.pod_key: one.uid for one in plan.nominations},
                {victim.pod_key: victim.uid for victim in plan.evictions},
                plan.losers,
            )
        if self._begun.get(plan.unit) is plan:
            del self._begun[plan.unit]
        if plan.benefit is not None and plan.beneficiary is not None and not why:
            self._announcer.room_made(plan.beneficiary, plan.benefit.message)
        done(plan, why)

    async def _nominate(self, plan: EvictionPlan) -> None:
        """status.nominatedNodeName of every member, with the condition; before any victim goes."""
        message = plan.benefit.message if plan.benefit is not None else ""

        async def one(nomination: Nomination) -> None:
            if (cleared := self._clearing.get(nomination.pod_key)) is not None:
                # the older write must not be the last
                await cleared.wait()
            self._uncleared.pop(nomination.pod_key, None)
            info = self._waits(nomination)
            body = pod_unschedulable(info.pod, reason=Reason.UNSCHEDULABLE.value, message=message, now=self._now())
            body = body or {"metadata": {"uid": info.uid}, "status": {}}
            body["status"]["nominatedNodeName"] = nomination.node
            if not await self._calls.patch(info, body):
                raise Dropped(f"pod {nomination.pod_key} is gone")

        await self._calls.each(plan.nominations, one)

    def _waits(self, nomination: Nomination) -> PodInfo:
        """A member, as long as it still waits for its room; raises Dropped."""
        info = self._state.pod(nomination.pod_key)
        if info is None or info.uid != nomination.uid or not info.pending:
            raise Dropped(f"pod {nomination.pod_key} is not pending any more")
        if info.nominated_node != nomination.node:
            raise Dropped(f"pod {nomination.pod_key} has lost its room on {nomination.node}")
        return info

    async def _clear_lesser(self, plan: EvictionPlan) -> None:
        """Less important pods that are nominated to the same nodes will not find their room there: with them all of
        their units are planned anew."""
        if not plan.nominations:
            return
        mine = {one.pod_key for one in plan.nominations}
        nodes = {one.node for one in plan.nominations}
        known = [info for key in mine if (info := self._state.pod(key)) is not None]
        least = min((info.priority for info in known), default=0)
        closed, quotas = self.closed(), self._state.quota_view()
        gains = {party for info in known for party in parties(info, quotas)}
        lesser = [
            info
            for info in self._state.nominated()
            if info.nominated_node in nodes
            and info.priority < least
            and info.pending
            and info.key not in mine
            # what was reclaimed from them is closed to them: the plan has left it alone
            and gains.isdisjoint(closed.get(info.key, ()))
        ]
        if not lesser:
            return
        units = {unit: None for info in lesser if (unit := self._unit_of(info.key)) is not None and unit != plan.unit}
        theirs = [info for info in self._state.nominated() if self._unit_of(info.key) in units]
        for unit in units:
            self._kept.pop(unit, None)
        await self._clear({info.key: info for info in (*lesser, *theirs)}.values())
        for unit in units:
            self._wake(unit, "NominationVoid")

    async def _evict_all(self, plan: EvictionPlan, gone: set[str]) -> None:
        refused: list[str] = []

        async def one(eviction: Eviction) -> None:
            if refused:
                return
            try:
                # nobody goes for a unit that does not need it any more
                for nomination in plan.nominations:
                    self._waits(nomination)
                evicted = await self._evict(eviction)
            except Dropped as why:
                refused.append(str(why))
                return
            gone.add(eviction.pod_key)
            if evicted is not None:
                self._metrics.victims.labels(eviction.rule).inc()
                # told of the pod that was evicted: it may be gone already, or another be there under its name
                self._announcer.evicted(evicted, eviction.reason, eviction.message, plan.beneficiary)

        await self._calls.each(plan.evictions, one)
        if refused:
            raise Dropped(refused[0])

    async def _evict(self, eviction: Eviction) -> PodInfo | None:
        """One victim; None where it left its node by itself. Raises Dropped."""
        info = await self._confirmed(eviction)
        if info is None:
            return None
        if eviction.rule == PRIORITY:
            await self._calls.preempt(info, scheduler=next(iter(self._state.scheduler_names), DEFAULT_SCHEDULER_NAME))
        else:
            await self._calls.evict(info)
        return info

    async def _confirmed(self, eviction: Eviction) -> PodInfo | None:
        """The victim, once it is on its node for certain; None where it is gone, or will not be bound at all."""
        until = self._clock() + CONFIRM_SECONDS
        while True:
            info = self._state.pod(eviction.pod_key)
            if info is None or info.uid != eviction.uid or info.finished:
                return None
            if not self._state.assumed_node(eviction.pod_key):
                if not info.node:
                    # its Binding was not sent: it goes on waiting, behind the unit that takes its room
                    self._spare(eviction)
                    return None
                if info.node != eviction.node:
                    raise Dropped(f"pod {eviction.pod_key} is not on {eviction.node} any more")
                return info
            if self._clock() > until:
                raise Dropped(f"pod {eviction.pod_key} was never seen on {eviction.node}")
            await asyncio.sleep(0.02)

    # -- the end of a plan --------------------------------------------------------------------------------------------

    async def _withdraw(self, plan: EvictionPlan, gone: set[str]) -> None:
        """Nobody else goes, and no room is kept."""
        for victim in plan.evictions:
            if victim.pod_key not in gone:
                self._spare(victim)
        members = [self._state.pod(one.pod_key) for one in plan.nominations]
        await self._clear([info for info in members if info is not None])

    def _spare(self, victim: Eviction) -> None:
        """A victim does not go after all. One whose Binding was given up meanwhile waits for a place again."""
        self._state.unforesee(victim.pod_key, victim.uid)
        info = self._state.pod(victim.pod_key)
        if info is not None and info.uid == victim.uid and info.pending and self._unit_of(info.key) is None:
            self._returned(info)

    async def _clear(self, pods: Iterable[PodInfo]) -> None:
        """Takes nominations back, here at once and at the API server as well as that can be done."""

        async def one(info: PodInfo) -> None:
            self._state.foresee_nomination(info.key, "")
            self._uncleared[info.key] = info.uid
            done = self._clearing[info.key] = asyncio.Event()
            try:
                if await self._calls.patch(
                    info, {"metadata": {"uid": info.uid}, "status": {"nominatedNodeName": None}}
                ):
                    self._uncleared.pop(info.key, None)
            except (Dropped, ApiError, Unreachable) as why:
                logger.warning("pod %s: its nomination was not cleared: %s", info.key, why)
            finally:
                done.set()
                if self._clearing.get(info.key) is done:
                    del self._clearing[info.key]

        await self._calls.each([info for info in pods if not info.node and info.key not in self._clearing], one)
        self._freed()

    def _restore(self) -> None:
        """Nominations of pods that another process made: their room is kept for a while."""
        for info in self._state.nominated():
            if info.pending and (unit := self._unit_of(info.key)) is not None and unit not in self._kept:
                deadline = self._clock() + self._restored_seconds
                self._kept[unit] = _Kept(deadline, {})
        for info in self._state.nominated():
            if (unit := self._unit_of(info.key)) is not None and unit in self._kept:
                self._kept[unit].pods[info.key] = info.uid

    async def _look(self) -> None:
        """Ends what is over: units that are bound or gone, and nominations whose time is up."""
        for unit, kept in list(self._kept.items()):
            waiting = self._waiting(kept)
            if not waiting:
                del self._kept[unit]
            elif any(self._is_void(info) for info in waiting) and self._may_write():
                del self._kept[unit]
                logger.info("%s: the room it is nominated to will not come; it is planned anew", unit)
                await self._clear(waiting)
                self._wake(unit, "NominationVoid")
            elif not kept.tried and not self._leaving(kept, waiting):
                # takes its room now, or is refused and gives it back
                kept.tried = True
                self._wake(unit, "VictimsGone")
            elif self._clock() > kept.deadline and self._may_write():
                del self._kept[unit]
                logger.warning("%s: its victims are not gone in time; it is planned anew", unit)
                await self._clear(waiting)
                self._wake(unit, "NominationExpired")
        if self._uncleared and self._may_write():
            there = [(self._state.pod(key), uid) for key, uid in self._uncleared.items()]
            self._uncleared = {}
            await self._clear([info for info, uid in there if info is not None and info.uid == uid and info.pending])

    def _is_void(self, info: PodInfo) -> bool:
        """Whether a pod cannot fit the node it is nominated to even when those that are ending there are gone."""
        node = self._state.node(info.nominated_node)
        if node is None:
            return True
        now = self._now().timestamp()
        count, used = self._state.used(node.name)
        leave = [pod for pod in self._state.leaving(node.name) if coming_free(pod, now)]
        if count - len(leave) >= node.allocatable.get(PODS, 0):
            return True
        for name, amount in info.requests.items():
            room = node.allocatable.get(name, 0) - used.get(name, 0) + sum(p.requests.get(name, 0) for p in leave)
            if amount > max(0, room):
                return True
        return False

    def _waiting(self, kept: _Kept) -> list[PodInfo]:
        pods = [self._state.pod(key) for key in kept.pods]
        return [info for info in pods if info is not None and info.nominated_node and info.uid == kept.pods[info.key]]

    def refused(self, unit: str, pods: Iterable[PodInfo]) -> None:
        """A unit was planned anew and found no place: room that it is nominated to and nobody is leaving is void."""
        kept = self._kept.get(unit)
        if kept is not None and any(self._still_there(key, uid) for key, uid in kept.victims.items()):
            return
        void = [info for info in pods if info.nominated_node and info.pending]
        if any(self._state.leaving(info.nominated_node) for info in void):
            if kept is None:
                deadline = self._clock() + self._restored_seconds
                self._kept[unit] = _Kept(deadline, {info.key: info.uid for info in void})
            return
        if void and self._may_write():
            self._kept.pop(unit, None)
            task = asyncio.create_task(self._clear(void), name=f"void nominations of {unit}")
            self._jobs.add(task)
            task.add_done_callback(self._jobs.discard)

    def _leaving(self, kept: _Kept, waiting: Iterable[PodInfo]) -> bool:
        if kept.victims:
            return any(self._still_there(key, uid) for key, uid in kept.victims.items())
        return any(self._state.leaving(info.nominated_node) for info in waiting)

    def _still_there(self, key: str, uid: str) -> bool:
        info = self._state.pod(key)
        return info is not None and info.uid == uid and not info.finished
