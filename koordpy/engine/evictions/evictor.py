# SPDX-License-Identifier: Apache-2.0
"""Carries out plans with victims: writes nominations first, then evicts the victims.

A victim by the rule `priority` gets the condition DisruptionTarget and is deleted, as in kube-scheduler. Victims by all
other rules are evicted with the eviction API. If the API refuses an eviction (429, a PodDisruptionBudget), the rest of
the plan is dropped.

This module binds nothing: the preemptors are planned again once the victims have ended. Until then their nominations
reserve the capacity, at most for the longest grace period of a victim and a minute (`nominations.py`).
Sources: kube-parity.md 4.5 and 4.7, preemption.md 4 and 8.
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
from koordpy.plan.pending_reason import Reason, written
from koordpy.plan.round_plan import Benefit, Eviction, Placement
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import PodInfo
from koordpy.preemption.selection.preemption_names import RuleName
from koordpy.quota.quota_book import ShareQueue
from koordpy.reservations.reservation_ledger import tenants_of

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Interval of the checks for nominations that have ended."""
CONFIRM_SECONDS = 30.0
"""Maximum time to wait until the watch shows the Binding of a victim that is still assumed."""
_LOST = {"node": "a node of the plan was removed or changed"}
"""What a plan has lost (`PlanGround.lost`) -> its text in messages. A word that is not listed is the name of a device
family."""
OUTDATED = "capacity was freed while the plan was made"
"""Reason of a dropped plan that may not need its victims any more. Its unit is planned again without a back-off."""


@dataclass(frozen=True, slots=True)
class EvictionPlan:
    """One unit's victims, and the nodes of its members."""

    unit: str
    """Id of the preemptor's unit; empty for evictions of quotas above their runtime."""
    evictions: tuple[Eviction, ...]
    nominations: tuple[Placement, ...] = ()
    """Members of the unit with their nominated nodes; empty if the evictions are not for the benefit of a pod."""
    benefit: Benefit | None = None
    """Totals of the plan, for the condition of the members and the event; None without a preemptor."""
    beneficiary: ObjectReference | None = None
    """Object that the events on victims name as the cause, such as the preemptor; None if they name none."""
    capacity_changes: Callable[[], int] = lambda: 0
    """Returns a counter that increases when capacity is freed. If it changes while nominations are written, the plan is
    dropped, because its victims may be unnecessary. A function that returns a constant disables this check."""
    stale_reason: Callable[[], str] = lambda: ""
    """Returns what the plan has lost: `node` or the name of a device family; empty if its nodes and devices are as
    planned. Cheap while they do not change."""
    losers: frozenset[ShareQueue] = frozenset()
    """Quotas and users that lose capacity by the plan. They may not use that capacity before the unit does
    (preemption.md 4)."""
    nominated_now: frozenset[str] = frozenset()
    """Keys of pods that were nominated for other units of the same round. The plan counts these pods on their nodes, so
    their nominations do not conflict with it."""


Done = Callable[[EvictionPlan, str], None]
"""Called when a plan has ended; the text is empty if its victims are terminating, else it says why it was dropped."""


class Evictor:
    """Carries out plans with victims. Owned by the event loop; `run` works until cancelled."""

    def __init__(
        self,
        context: Context,
        gang_evicted: Callable[[GangRef, Sequence[Eviction]], None],
        victim_evicted: Callable[[Eviction], None],
    ) -> None:
        """gang_evicted: called with a gang, and the evictions of its members by one plan. victim_evicted: called with
        each eviction."""
        self._calls, self._gang_evicted = EvictionCalls(context), gang_evicted
        self._victim_evicted = victim_evicted
        self._feeds, self._state = context.feeds, context.state
        self._announcer, self._metrics = context.announcer, context.metrics
        self._unit_of = context.queue.unit_of
        self._clock, self._now = context.clock, context.now
        self._extra_seconds = context.settings.nomination_extra_seconds
        self._reason = written(Reason.WAITING_FOR_TERMINATION, context.settings.config.autoscaling.reasons)
        self.nominations = Nominations(context, self._calls)
        self.open = self.nominations.tasks
        """Tasks that send evictions of plans, or clear void nominations."""

    def submit(self, plan: EvictionPlan, done: Done) -> None:
        """Starts a plan. At once the capacity on its nodes is reserved, and its victims count as terminating."""
        now = self._now()
        for one in plan.nominations:
            self._state.foresee_nomination(one.pod_key, one.node, plan.losers)
        for victim in plan.evictions:
            self._state.foresee_end(victim.pod_key, rfc3339(now + victim.grace_seconds))
        begin(self._carry_out(plan, done), f"evictions for {plan.unit or 'quotas'}", self.open)

    async def run(self) -> None:
        """Checks nominations periodically until cancelled. Cancelling also cancels evictions in progress."""
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
        """Waits until the plans in progress have ended, at most `seconds`."""
        if self.open:
            await asyncio.wait(self.open, timeout=seconds)

    # -- one plan -----------------------------------------------------------------------------------------------------

    async def _carry_out(self, plan: EvictionPlan, done: Done) -> None:
        """Carries out one plan, and calls `done`. An error drops the rest of the plan."""
        gone: set[str] = set()
        by_gang: dict[GangRef, list[Eviction]] = {}
        why = ""
        # nominations first, so that no other unit gets the capacity of an evicted victim
        try:
            self._metrics.preemption_attempts.inc()
            await self._clear_less_important(plan)
            capacity_changes = plan.capacity_changes()
            await self._nominate(plan)
            if plan.capacity_changes() != capacity_changes:
                raise Dropped(OUTDATED)
            await self._evict_all(plan, gone, by_gang)
        except Dropped as dropped:
            why = str(dropped)
        except Exception as error:
            logger.exception("%s: evictions failed", plan.unit)
            why = f"{type(error).__name__}: {error}"
        if gone:
            self._metrics.preemption_victims.observe(len(gone))
        # nominations of a dropped plan are cleared; otherwise they reserve the capacity until the unit is bound
        if why:
            before = f"; already evicted: {', '.join(sorted(gone))}" if gone else ""
            logger.warning("%s: preemption cancelled: %s%s", plan.unit, why, before)
            await self._withdraw(plan, gone)
        elif plan.nominations:
            longest = max((victim.grace_seconds for victim in plan.evictions), default=0)
            self.nominations.reserve(
                plan.unit,
                [(one.pod_key, one.uid, one.node) for one in plan.nominations],
                self._clock() + longest + self._extra_seconds,
                {victim.pod_key: victim.uid for victim in plan.evictions},
            )
        for ref, victims in by_gang.items():
            self._gang_evicted(ref, victims)
        if plan.benefit is not None and plan.beneficiary is not None and not why:
            self._announcer.tell(ROOM_MADE, plan.beneficiary, plan.benefit.message)
        done(plan, why)

    async def _nominate(self, plan: EvictionPlan) -> None:
        """Writes status.nominatedNodeName and the condition of every member, before any victim is evicted."""
        message = plan.benefit.message if plan.benefit is not None else ""

        async def one(nomination: Placement) -> None:
            await self.nominations.before_writing(nomination.pod_key)
            info = self._waits(nomination)
            status = pod_unschedulable(info.pod, reason=self._reason.value, message=message, now=self._now())
            if not await self._calls.patch(info, {**status, "nominatedNodeName": nomination.node}):
                raise Dropped(f"pod {nomination.pod_key} does not exist any more")

        await self._calls.each(plan.nominations, one)

    def _waits(self, nomination: Placement) -> PodInfo:
        """Returns a member if it is still pending with its nomination; raises Dropped otherwise."""
        info = self._state.pod(nomination.pod_key)
        if info is None or info.uid != nomination.uid or not info.pending:
            raise Dropped(f"pod {nomination.pod_key} is not pending any more")
        if info.nominated_node != nomination.node:
            raise Dropped(f"pod {nomination.pod_key} is not nominated to {nomination.node} any more")
        return info

    async def _clear_less_important(self, plan: EvictionPlan) -> None:
        """Clears nominations of pods with a lower priority on the plan's nodes, because the plan uses their capacity.

        Each affected unit is planned again as a whole. Two kinds of nominations are not cleared, because the plan does
        not use their capacity: nominations of the same round (`nominated_now`), and nominations with capacity that is
        closed to the plan's quotas and users.
        """
        if not plan.nominations:
            return
        members = {one.pod_key for one in plan.nominations}
        nodes = {one.node for one in plan.nominations}
        known = [info for key in members if (info := self._state.pod(key)) is not None]
        least = min((info.priority for info in known), default=0)
        reservations, quotas = self._state.reservations(), self._state.quota_view()
        gains = {tenant for info in known for tenant in tenants_of(info, quotas)}
        less_important = [
            info
            for info in self._state.nominated()
            if info.nominated_node in nodes
            and info.priority < least
            and info.pending
            and info.key not in members
            and info.key not in plan.nominated_now
            # capacity reclaimed from this unit's quota or user is closed to it, so the plan does not use it
            and gains.isdisjoint(reservations[info.key].losers)
        ]
        if not less_important:
            return
        others = (self._unit_of[info.key] for info in less_important if info.key in self._unit_of)
        units = dict.fromkeys(unit for unit in others if unit != plan.unit)
        of_units = [info for info in self._state.nominated() if self._unit_of.get(info.key) in units]
        await self.nominations.give_up(units, {info.key: info for info in (*less_important, *of_units)}.values())

    async def _evict_all(self, plan: EvictionPlan, gone: set[str], by_gang: dict[GangRef, list[Eviction]]) -> None:
        """Evicts all victims in parallel. Raises Dropped after the first refusal; later evictions are then not sent.

        gone: the keys of evicted victims, and of victims that left their nodes by themselves, are added. by_gang: for
        each gang its evictions are added.
        """
        refused: list[str] = []
        keys = [one.pod_key for one in plan.nominations]
        waiting: list[PodInfo] = []

        def wanted() -> None:
            # Raises Dropped if the plan has lost nodes or devices, or if a member is no longer pending with its
            # nomination. `waiting` has the members as last checked: without a change the check costs nothing.
            if why := plan.stale_reason():
                raise Dropped(_LOST.get(why, f"planned devices ({why}) are no longer available"))
            if len(waiting) < len(keys) or not all(map(is_, map(self._state.pod, keys), waiting)):
                waiting[:] = map(self._waits, plan.nominations)

        async def one(eviction: Eviction) -> None:
            """Evicts one victim, unless another one was refused."""
            if refused:
                return
            try:
                wanted()
                evicted = await self._evict(eviction, wanted)
            except Dropped as why:
                refused.append(str(why))
                return
            gone.add(eviction.pod_key)
            if eviction.victim_unit:
                self._state.preemption_history.add(eviction.victim_unit, eviction.unit, self._now())
            if evicted is not None:
                if evicted.gang is not None:
                    by_gang.setdefault(evicted.gang, []).append(eviction)
                self._metrics.victims.labels(eviction.rule).inc()
                self._victim_evicted(eviction)
                # the event names the evicted pod by uid: it may be removed already, or replaced by a pod of the same
                # name
                self._announcer.tell(eviction.reason, evicted, eviction.message, plan.beneficiary)

        await self._calls.each(plan.evictions, one)
        if refused:
            raise Dropped(refused[0])

    async def _evict(self, eviction: Eviction, wanted: Wanted) -> PodInfo | None:
        """Evicts one victim and returns it; None if the victim left its node by itself. Raises Dropped.

        If the reply shows that the victim does not exist any more, its capacity is freed at once. With hundreds of
        victims the watch shows the deletion up to half a second later.
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
        """Returns the victim once the watch shows it on its node; None if it was deleted, or will not be bound at all.

        Raises Dropped if it is on another node, or if its Binding is not confirmed in time.
        """
        until = self._clock() + CONFIRM_SECONDS
        while True:
            info = self._state.pod(eviction.pod_key)
            if info is None or info.uid != eviction.uid or info.finished:
                return None
            if not self._state.assumed_node(eviction.pod_key):
                if not info.node:
                    # its Binding was not sent: the pod stays pending, and the preemptors use the capacity
                    self._cancel_eviction(eviction)
                    return None
                if info.node != eviction.node:
                    raise Dropped(f"pod {eviction.pod_key} is not on {eviction.node} any more")
                return info
            if self._clock() > until:
                raise Dropped(f"the Binding of pod {eviction.pod_key} to {eviction.node} was not confirmed in time")
            await asyncio.sleep(0.02)

    # -- the end of a plan --------------------------------------------------------------------------------------------

    async def _withdraw(self, plan: EvictionPlan, gone: set[str]) -> None:
        """Ends a dropped plan: its remaining victims are not evicted, and its nominations are cleared."""
        for victim in plan.evictions:
            if victim.pod_key not in gone:
                self._cancel_eviction(victim)
        members = [self._state.pod(one.pod_key) for one in plan.nominations]
        await self.nominations.clear([info for info in members if info is not None])

    def _cancel_eviction(self, victim: Eviction) -> None:
        """Ends the expectation that a victim terminates. A victim that was not bound returns to the queue.

        Listeners are called for its gang: without the expectation, a gang with only terminating members may be broken.
        """
        self._state.unforesee(victim.pod_key, victim.uid)
        info = self._state.pod(victim.pod_key)
        if info is None or info.uid != victim.uid:
            return
        if info.pending and info.key not in self._unit_of:
            self._feeds.pods.enqueue(info, event="BindFailure")
        if info.gang is not None:
            for listener in self._feeds.listeners.gang:
                listener(info.gang)
