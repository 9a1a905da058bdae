"""Makes the room that a plan with victims needs: nominations first, then the evictions.

Sources: kube-parity.md 4.5 and 4.7, preemption.md 4 and 8. Priority preemption marks the victim (DisruptionTarget)
and deletes it; everything else asks the eviction API, and one refusal (429, a PodDisruptionBudget) drops the whole
plan: what is not evicted yet stays. Nothing is bound here. The members are planned anew as the victims end; until
then, or until the longest grace period and a minute have passed, their nomination keeps the room (`nominations.py`).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import is_

from koordpy.api.keys import DEFAULT_SCHEDULER_NAME
from koordpy.api.times import rfc3339
from koordpy.engine.engine_context import Context, begin
from koordpy.engine.evictions.eviction_calls import Dropped, EvictionCalls, Wanted
from koordpy.engine.evictions.nominations import Nominations
from koordpy.engine.status.event_recorder import ObjectReference
from koordpy.engine.status.scheduler_events import ROOM_MADE
from koordpy.engine.status.status_patches import pod_unschedulable
from koordpy.plan.round_plan import Benefit, Eviction, Nomination, Reason
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import PodInfo
from koordpy.preemption.selection.preemption_names import RuleName
from koordpy.quota.quota_book import ShareQueue
from koordpy.reservations.reservation_ledger import parties

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
CONFIRM_SECONDS = 30.0
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
    overtaken: Callable[[], str] = lambda: ""
    """What has become of the nodes and chips that the members are to get; empty where nothing has. Cheap while neither
    changes."""
    losers: frozenset[ShareQueue] = frozenset()
    """Quotas and users that its room is reclaimed from: closed to them until it is taken (preemption.md 4)."""
    beside: frozenset[str] = frozenset()
    """Pods that get room by other units of the same round: it is made beside theirs, and may count on their victims."""


Done = Callable[[EvictionPlan, str], None]
"""Hears how a plan ended: empty where its victims are going, else why it was dropped."""


class Evictor:
    """Carries out plans with victims. Owned by the event loop; `run` works until cancelled."""

    def __init__(self, context: Context, gang_evicted: Callable[[GangRef, Sequence[Eviction]], None]) -> None:
        """`gang_evicted` hears which members of a gang one plan has evicted."""
        self._calls, self._gang_evicted = EvictionCalls(context), gang_evicted
        self._feeds, self._state = context.feeds, context.state
        self._announcer, self._metrics = context.announcer, context.metrics
        self._unit_of = context.queue.unit_of
        self._clock, self._now = context.clock, context.now
        self._extra_seconds = context.settings.nomination_extra_seconds
        self.nominations = Nominations(context, self._calls)
        self.open = self.nominations.tasks
        """Plans whose evictions are being sent, and void nominations that are being cleared."""

    def submit(self, plan: EvictionPlan, done: Done) -> None:
        """Starts a plan. From now on its room is kept and its victims are seen as going."""
        now = self._now()
        for one in plan.nominations:
            self._state.foresee_nomination(one.pod_key, one.node, plan.losers)
        for victim in plan.evictions:
            self._state.foresee_end(victim.pod_key, rfc3339(now + victim.grace_seconds))
        begin(self._carry_out(plan, done), f"evictions for {plan.unit or 'quotas'}", self.open)

    async def run(self) -> None:
        """Ends nominations in time, until cancelled; then the evictions that are under way are left as they are."""
        self.nominations.restore()
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                await self.nominations.look()
        finally:
            jobs = list(self.open)
            for task in jobs:
                task.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    async def drain(self, seconds: float) -> None:
        """Waits until the plans under way are carried out, at most so long."""
        if self.open:
            await asyncio.wait(self.open, timeout=seconds)

    # -- one plan -----------------------------------------------------------------------------------------------------

    async def _carry_out(self, plan: EvictionPlan, done: Done) -> None:
        gone: set[str] = set()
        broken: dict[GangRef, list[Eviction]] = {}
        why = ""
        try:
            self._metrics.preemption_attempts.inc()
            await self._clear_lesser(plan)
            rooms = plan.rooms()
            await self._nominate(plan)
            if plan.rooms() != rooms:
                raise Dropped(OUTDATED)
            await self._evict_all(plan, gone, broken)
        except Dropped as dropped:
            why = str(dropped)
        except Exception as error:
            logger.exception("%s: evicting failed", plan.unit)
            why = f"{type(error).__name__}: {error}"
        if gone:
            self._metrics.preemption_victims.observe(len(gone))
        if why:
            before = f"; evicted before: {', '.join(sorted(gone))}" if gone else ""
            logger.warning("%s: its plan with victims is dropped: %s%s", plan.unit, why, before)
            await self._withdraw(plan, gone)
        elif plan.nominations:
            longest = max((victim.grace_seconds for victim in plan.evictions), default=0)
            self.nominations.reserve(
                plan.unit,
                [(one.pod_key, one.uid, one.node) for one in plan.nominations],
                self._clock() + longest + self._extra_seconds,
                {victim.pod_key: victim.uid for victim in plan.evictions},
            )
        for ref, victims in broken.items():
            self._gang_evicted(ref, victims)
        if plan.benefit is not None and plan.beneficiary is not None and not why:
            self._announcer.tell(ROOM_MADE, plan.beneficiary, plan.benefit.message)
        done(plan, why)

    async def _nominate(self, plan: EvictionPlan) -> None:
        """status.nominatedNodeName of every member, with the condition; before any victim goes."""
        message = plan.benefit.message if plan.benefit is not None else ""

        async def one(nomination: Nomination) -> None:
            await self.nominations.before_writing(nomination.pod_key)
            info = self._waits(nomination)
            status = pod_unschedulable(info.pod, reason=Reason.UNSCHEDULABLE.value, message=message, now=self._now())
            if not await self._calls.patch(info, {**status, "nominatedNodeName": nomination.node}):
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
        kept, quotas = self._state.reservations(), self._state.quota_view()
        gains = {party for info in known for party in parties(info, quotas)}
        lesser = [
            info
            for info in self._state.nominated()
            if info.nominated_node in nodes
            and info.priority < least
            and info.pending
            and info.key not in mine
            and info.key not in plan.beside
            # what was reclaimed from them is closed to them: the plan has left it alone
            and gains.isdisjoint(kept[info.key].losers)
        ]
        if not lesser:
            return
        others = (self._unit_of[info.key] for info in lesser if info.key in self._unit_of)
        units = dict.fromkeys(unit for unit in others if unit != plan.unit)
        theirs = [info for info in self._state.nominated() if self._unit_of.get(info.key) in units]
        await self.nominations.give_up(units, {info.key: info for info in (*lesser, *theirs)}.values())

    async def _evict_all(self, plan: EvictionPlan, gone: set[str], broken: dict[GangRef, list[Eviction]]) -> None:
        refused: list[str] = []
        keys = [one.pod_key for one in plan.nominations]
        waiting: list[PodInfo] = []

        def wanted() -> None:
            # nobody goes for a unit that does not need it any more, or that gains nothing by it
            if why := plan.overtaken():
                raise Dropped(f"overtaken_{why}")
            if len(waiting) < len(keys) or not all(map(is_, map(self._state.pod, keys), waiting)):
                waiting[:] = map(self._waits, plan.nominations)

        async def one(eviction: Eviction) -> None:
            if refused:
                return
            try:
                wanted()
                evicted = await self._evict(eviction, wanted)
            except Dropped as why:
                refused.append(str(why))
                return
            gone.add(eviction.pod_key)
            if eviction.yields:
                self._state.yields.add(eviction.yields, eviction.unit, self._now())
            if evicted is not None:
                if evicted.gang is not None:
                    broken.setdefault(evicted.gang, []).append(eviction)
                self._metrics.victims.labels(eviction.rule).inc()
                # told of the pod that was evicted: it may be gone already, or another be there under its name
                self._announcer.tell(eviction.reason, evicted, eviction.message, plan.beneficiary)

        await self._calls.each(plan.evictions, one)
        if refused:
            raise Dropped(refused[0])

    async def _evict(self, eviction: Eviction, wanted: Wanted) -> PodInfo | None:
        """One victim; None where it left its node by itself. Raises Dropped.

        One that the API server says is gone leaves its room here and now: the watch tells of hundreds of ends half a
        second later.
        """
        info = await self._confirmed(eviction)
        if info is None:
            return None
        if eviction.rule == RuleName.PRIORITY:
            name = next(iter(self._state.scheduler_names), DEFAULT_SCHEDULER_NAME)
            if await self._calls.preempt(info, scheduler=name, wanted=wanted):
                self._feeds.pods.ended(info.key, info.uid)
        else:
            await self._calls.evict(info, wanted=wanted)
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
        await self.nominations.clear([info for info in members if info is not None])

    def _spare(self, victim: Eviction) -> None:
        """A victim does not go after all. One whose Binding was given up meanwhile waits for a place again."""
        self._state.unforesee(victim.pod_key, victim.uid)
        info = self._state.pod(victim.pod_key)
        if info is not None and info.uid == victim.uid and info.pending and info.key not in self._unit_of:
            self._feeds.pods.enqueue(info, event="BindFailure")
