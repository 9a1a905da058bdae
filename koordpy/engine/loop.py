"""The scheduling loop: wake, gather, snapshot, plan in a worker thread, hand on (kube-parity.md section 4).

One round at a time, but for those of pods that come while a search is under way: it pauses for them. A round's Bindings
are under way while the next is planned. Everything but the planner runs on the event loop's thread, which owns the
ClusterState.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from koordpy.cluster.snapshot import Snapshot
from koordpy.engine.context import Context
from koordpy.engine.dispatch import Begun, Dispatcher
from koordpy.engine.evictions.watches import OveruseWatch, StaleWatch
from koordpy.engine.queue import Entry, UnitQueue
from koordpy.engine.round_reservations import RoundReservations
from koordpy.engine.settings import EngineSettings
from koordpy.engine.staleness import Meanwhile
from koordpy.engine.unschedulable import UnschedulableHandler
from koordpy.observe.decisions import DecisionLog
from koordpy.planning.patience import Interrupts, Patience, Pauses
from koordpy.planning.plan import RoundPlan

logger = logging.getLogger(__name__)

Planner = Callable[[Snapshot, frozenset[str], Patience], RoundPlan]
"""Plans the units of these ids on a snapshot, with this patience; called in a worker thread. Only a search that pauses
(`Pauses`) lets another call plan meanwhile."""

IDLE_SECONDS = 60.0
LOOK_SECONDS = 1.0
"""How often the time of day is looked at while something waits for it: a machine that sleeps counts no timer down."""
NOT_LEADING_SECONDS = 0.1
TURNS_TO_SEND = 4
"""Turns of the event loop in which the Bindings of a round are on the wire: the next snapshot, which takes longer than
they do, is taken only then."""
INTERRUPT_SECONDS = 0.01
"""How often it is looked whether a solve is to end, or a search is to pause."""
PAUSE_SECONDS = 0.002
"""How often it is looked whether a search that is to pause does."""
MOST_CARRIED = 4
"""Times `planning.searchSeconds` that a search goes on at most for a unit whose searches were given up, while somebody
came who need not wait for it."""


class Watches:
    """Rounds that are held though no unit is due: for gangs that have lost members, and quotas above their runtime. A
    dry run has none of them: what it decides changes nothing of them."""

    def __init__(self, context: Context, wake: Callable[[], None]) -> None:
        """`wake` is called when one may have become due."""
        settings, self._now = context.settings, context.now
        self._interval = settings.group_status_seconds
        self.stale = StaleWatch(context, wake) if not settings.dry_run else None
        monitors = settings.config.quota.monitor_all_quotas and settings.config.quota.enable_runtime_quota
        self.overuse = OveruseWatch(context, wake) if monitors and not settings.dry_run else None

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            if self.stale is not None:
                self.stale.look()
                self.stale.remind()
            if self.overuse is not None:
                self.overuse.look()
            await asyncio.sleep(self._interval)

    def next_due(self) -> float | None:
        """When a round is to be held, seconds since the epoch; None for never."""
        dues = [*self.stale.due.values()] if self.stale is not None else []
        if self.overuse is not None and (due := self.overuse.next_due()) is not None:
            dues.append(due)
        return min(dues, default=None)

    def due(self) -> bool:
        """Whether a round is to be held now."""
        due = self.next_due()
        return due is not None and due <= self._now()

    def stale_units(self) -> list[str]:
        """Units that the round under way is to try for the sake of their stale gangs."""
        return self.stale.take() if self.stale is not None and self.stale.due else []

    def over_used(self) -> bool:
        """Whether the round under way is for quotas, too."""
        return self.overuse.take() if self.overuse is not None else False


@dataclass(slots=True)
class RoundTime:
    """What one round has used up. Seconds of a clock that stands still while others plan beside it; asked from the
    planner's thread, too."""

    queue: UnitQueue
    clock: Callable[[], float]
    began: float
    pauses: Pauses | None
    part: float
    """Seconds that those who come wait for the round at least."""
    round_seconds: float
    stops: bool
    """Whether all of its units wait for a search, and it ends once its time is used up."""
    patient: bool
    """Whether none of its units is new: they were told once, or have waited before, and go on in the next round."""
    light: bool
    """Whether it is of plain pods alone."""
    first: float = inf
    """When the first unit was tried."""
    over: bool = False

    def now(self) -> float:
        return self.clock() - (self.pauses.seconds if self.pauses is not None else 0.0)

    def begins(self) -> None:
        """The first unit is tried."""
        self.first = self.now()

    def came(self, leaves: float) -> bool:
        """Whether somebody came, and the round has lasted for so many seconds, or for as long as it took to begin: else
        a stream of pods would leave time for nothing else."""
        pauses = self.pauses
        known = self.began if pauses is None or pauses.left else pauses.began
        return self.queue.last_added > known and self.now() - self.first >= max(leaves, self.first - self.began)

    def gives_up(self) -> bool:
        """Whether a search ends for who came: one for a unit that is new later than its round is cut."""
        return self.came(0.0 if self.stops else self.part if self.patient else self.round_seconds)

    def spent(self) -> bool:
        """Whether its time is used up; room is kept from then on, also from who has a round beside it."""
        pauses = self.pauses
        beside_it = pauses is not None and not (pauses.left or pauses.ended)
        self.over = (
            self.over
            or self.now() - self.began >= self.round_seconds
            or (not (self.stops or beside_it) and self.gives_up())
        )
        return self.over

    def cut(self) -> bool:
        """Whether it ends for who came. Rounds of plain pods are as short anyhow."""
        return (self.stops or self.patient or not self.light) and self.came(0.0 if self.stops else self.part)

    def shared(self) -> float:
        """Seconds of planning after which tenants let one another go first."""
        return max(self.part, self.first - self.began)


class Pacing:
    """The patience of each round: whether it searches, when it is cut, and whom it pauses for
    (`planning/patience.py`)."""

    def __init__(self, queue: UnitQueue, settings: EngineSettings, clock: Callable[[], float]) -> None:
        self._queue, self._settings, self._clock = queue, settings, clock

    def of(self, entries: list[Entry], began: float, *, alone: bool = True, beside: bool = False) -> Patience:
        """Of a round of those that are new alone: what fits beside the room of those that wait is placed. Of others:
        while units wait for a search, what is due besides is only placed; they are searched for when nothing is.

        alone: whether nothing else is decided in the round. beside: whether it is one beside a search.
        """
        queue, config = self._queue, self._settings.config
        taken, keeps = {entry.unit for entry in entries}, config.planning.search_seconds
        waiting = queue.behind() if beside or queue.ahead else queue.deferred()
        if beside:
            waiting += [entry for entry in queue.in_flight() if entry.unit not in taken]
        stops = bool(entries) and all(entry.deferred is not None for entry in entries)
        searches = stops or not (waiting or beside)
        carried = [entry for entry in entries if entry.is_carried(keeps)]
        time = RoundTime(
            queue,
            self._clock,
            began,
            Pauses(began) if searches and alone and self._may_pause(entries, carried, stops=stops) else None,
            part=self._settings.newcomer_seconds,
            round_seconds=config.planning.round_seconds,
            stops=stops,
            patient=not stops and not any(entry.is_new for entry in entries),
            light=all(entry.light for entry in entries),
        )
        return Patience(
            searches=searches,
            spent=time.spent,
            stops=stops,
            begins=time.begins,
            cut=time.cut,
            waiting=frozenset(entry.unit for entry in waiting),
            lapsed=frozenset(
                entry.unit
                for entry in (*entries, *waiting)
                if any(since is not None and began - since >= keeps for since in (entry.deferred, entry.kept_off))
            ),
            over=queue.planned.over({entry.tenant for entry in entries}),
            interrupts=Interrupts(time.gives_up),
            pauses=time.pauses,
            clock=time.now,
            shared=time.shared,
            came=lambda: queue.came,
            # else in a stream of pods nobody would ever be searched for
            firm={
                entry.unit: Interrupts(partial(time.came, min(entry.interrupted, MOST_CARRIED * keeps)))
                for entry in carried
            },
        )

    def _may_pause(self, entries: list[Entry], carried: list[Entry], *, stops: bool) -> bool:
        """Whether a round that searches may let others plan beside it.

        What is placed beside a search that is carried through would have it begun again.
        """
        if self._settings.config.queue.backfill or len(carried) == len(entries):
            return False
        # many that are soon placed are; those who come would have what they could use kept from them meanwhile
        short = all(entry.light for entry in entries)
        # a plan that was overtaken once would be again and again, of units that need no search
        again = any(entry.overtaken for entry in entries)
        return stops or len(entries) == 1 or not (short or again)


class SchedulingLoop:
    """Runs rounds until cancelled."""

    def __init__(
        self,
        context: Context,
        planner: Planner,
        dispatcher: Dispatcher,
        *,
        refusals: UnschedulableHandler,
        promises: RoundReservations,
        watches: Watches,
        due: asyncio.Event,
        busy: Callable[[], bool],
        decisions: DecisionLog,
    ) -> None:
        """`due` is set when something may have become due. `busy`: whether Bindings are under way, so that rounds may
        take more plain pods."""
        self.rounds = 0
        self.last_turn = context.clock()
        self._feeds, self._state, self._queue = context.feeds, context.state, context.queue
        self._planner, self._dispatcher, self._refusals, self._promises = planner, dispatcher, refusals, promises
        self._watches, self._due, self._busy, self._may_write = watches, due, busy, context.may_write
        self._metrics, self._decisions, self._settings = context.metrics, decisions, context.settings
        self._clock, self._now = context.clock, context.now
        self._pacing = Pacing(self._queue, self._settings, self._clock)
        self._executor = ThreadPoolExecutor(2, thread_name_prefix="planner")
        self._light_seconds = 0.0
        """What an ordinary pod took in the last round of such pods alone."""
        self._forgets = False
        """Whether a round is to be held, if only for nobody (`forget`)."""
        self._alone = 0
        """Rounds that take one unit each: after the planner has failed, so that one bad unit holds up no other."""

    async def run(self) -> None:
        """Runs rounds until cancelled; a round that fails is logged and its units back off."""
        try:
            while True:
                self.last_turn = self._clock()
                self._decisions.release(self._now())
                self._queue.poll()
                if self._feeds.is_regroup_due(self._now()):
                    self._feeds.regroup(self._now())
                if not (self._settings.dry_run or self._may_write()):
                    # the lease ran out while the machine slept: nothing planned now would be sent, and the end is near
                    await asyncio.sleep(NOT_LEADING_SECONDS)
                elif self._queue.ready() or self._watches.due() or self._forgets:
                    await self._gather()
                    await self.round()
                else:
                    await self._wait()
        finally:
            self._executor.shutdown(wait=False, cancel_futures=True)

    def forget(self) -> None:
        """Has a round held, if only for nobody: until then the last one is remembered, and what the planner knew."""
        self._forgets = True
        self._due.set()

    async def _wait(self) -> None:
        self._due.clear()
        due = self._queue.next_due()
        pause = IDLE_SECONDS if due is None else min(IDLE_SECONDS, max(0.001, due - self._clock()))
        for told in (self._watches.next_due(), self._decisions.next_due(), self._feeds.regroup_due()):
            if told is not None:
                pause = min(pause, LOOK_SECONDS, max(0.001, told - self._now()))
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._due.wait()

    async def _gather(self) -> None:
        """Waits a moment while pods pour in, so that a gang is not planned once for each member."""
        quiet, began = self._settings.quiet_seconds, self._clock()
        until = began + self._settings.max_gather_seconds
        while (now := self._clock()) < until and now - self._queue.last_added < quiet:  # noqa: ASYNC110 - not an event
            await asyncio.sleep(quiet)

    # -- a round ------------------------------------------------------------------------------------------------------

    async def round(self) -> None:
        """Plans what is due and hands it on (`dispatch.py`)."""
        self._queue.poll()
        self._feeds.pods.foreign.clear()
        # gangs that are to be given up unless they find room now: tried again if they have somebody to place
        stale = self._watches.stale_units()
        for unit in stale:
            self._queue.hurry(unit, "StaleGang")
        over = self._watches.over_used()
        begun = self._begin()
        if not (begun.entries or stale or over or self._forgets):
            return
        self._forgets = False
        self._alone = max(0, self._alone - 1)
        entries, began = [*begun.entries.values()], self._clock()
        patience = replace(self._pacing.of(entries, began, alone=not (stale or over)), gives_back=over)
        if await self._plan(begun, patience, also=stale) is not None:
            self._queue.took(self._clock() - began - (patience.pauses.seconds if patience.pauses is not None else 0.0))

    def _begin(self, *, beside: bool = False) -> Begun:
        """The moment on which a round plans, and the units that it takes. beside: those that are new alone, while
        another is under way."""
        began, now = self._clock(), self._now()
        self._feeds.regroup(now)
        snapshot = self._state.snapshot(now)
        foreign, assumed = len(self._feeds.pods.foreign), self._refusals.round_begins()
        if self._feeds.names.refresh(snapshot):
            self._queue.regroup(self._unit_now)
        # with backfill the room that those who wait could use is known only when all of them were planned
        newcomers = not self._settings.config.queue.backfill
        entries = self._queue.take(
            light_pods=self._light_pods(), alone=self._alone > 0, newcomers=newcomers, beside=beside
        )
        return Begun({entry.unit: entry for entry in entries}, snapshot, began, foreign, assumed)

    async def _plan(self, begun: Begun, patience: Patience, *, also: Iterable[str] = ()) -> RoundPlan | None:
        """Plans what a round has taken and hands it on; None where the planner failed. also: units that are tried
        besides."""
        entries = [*begun.entries.values()]
        self.rounds += 1
        number, ids = self.rounds, frozenset((*begun.entries, *also))
        snapshot = self._promises.told(begun.snapshot, ids)
        began, pauses = self._clock(), patience.pauses
        planned = await self._planned(snapshot, ids, patience, begun.meanwhile)
        try:
            plan = planned.result()
        except Exception as error:
            logger.exception("planning failed for %d units", len(entries))
            self._planner_failed(entries, error)
            return None
        seconds = self._clock() - began - (pauses.seconds if pauses is not None else 0.0)
        if entries and all(entry.light for entry in entries):
            self._light_seconds = seconds / max(1, sum(entry.load for entry in entries))
        self._metrics.planned(plan, seconds=seconds)
        self._metrics.snapshot_age.observe(self._clock() - begun.began)
        self._decisions.record(plan, number=number, at=self._now())
        self._dispatcher.apply(plan, replace(begun, snapshot=snapshot), seconds=seconds, cut=patience.cut())
        self._promises.reserve(plan.reservation)
        for _ in range(TURNS_TO_SEND if plan.placements else 0):
            await asyncio.sleep(0)
        return plan

    async def _planned(
        self, snapshot: Snapshot, ids: frozenset[str], patience: Patience, meanwhile: Meanwhile
    ) -> asyncio.Future[RoundPlan]:
        """The planner's answer or failure, after rounds beside it for those who came while it searched."""
        pauses = patience.pauses

        def plan() -> RoundPlan:
            with pauses.planning() if pauses is not None else nullcontext():
                return self._planner(snapshot, ids, patience)

        planning = asyncio.get_running_loop().run_in_executor(self._executor, plan)
        goes_on, more = -inf, False
        while not (await asyncio.wait((planning,), timeout=INTERRUPT_SECONDS))[0]:
            patience.look()
            if pauses is None or self._clock() < goes_on or not (more or self._queue.last_added > pauses.began):
                continue
            if self._queue.new():
                lasted = await self._beside(planning, patience, pauses, meanwhile)
                more = bool(self._queue.new())
                # as long again: else a stream of pods would leave time for nothing else
                goes_on = self._clock() + lasted
        return planning

    async def _beside(
        self, planning: asyncio.Future[RoundPlan], searching: Patience, pauses: Pauses, meanwhile: Meanwhile
    ) -> float:
        """A round of those who came, while a search pauses for it, or is ended. Returns the seconds that it took."""
        await self._gather()
        began, taken = self._clock(), False
        pauses.hold()
        try:
            while not (planning.done() or (taken := pauses.take())):
                searching.look()
                await asyncio.wait((planning,), timeout=PAUSE_SECONDS)
            began = self._clock()
            if taken and (begun := self._begin(beside=True)).entries:
                pauses.began = begun.began
                entries = [*begun.entries.values()]
                patience = replace(self._pacing.of(entries, begun.began, beside=True), gives_back=False)
                plan = await self._plan(begun, patience)
                if plan is not None:
                    meanwhile.add(plan, begun.snapshot)
                    # a round that stops has a bound of its own
                    pauses.left |= bool(plan.deferred) and not searching.stops
        finally:
            lasted = self._clock() - began if taken else 0.0
            pauses.go_on(taken, lasted)
        return lasted

    def _light_pods(self) -> int:
        """Of how many ordinary pods a round takes what they cost: no more than was planned in time the last time."""
        settings = self._settings
        most = settings.most_light_pods if self._busy() else settings.first_light_pods
        if self._light_seconds <= 0.0:
            return most
        return min(most, max(settings.least_light_pods, int(settings.newcomer_seconds / self._light_seconds)))

    def _unit_now(self, key: str) -> str | None:
        info = self._state.pod(key)
        return self._feeds.names.of_pod(info) if info is not None and info.pending else None

    def _planner_failed(self, entries: list[Entry], error: Exception) -> None:
        if len(entries) > 1:
            self._alone = len(entries)
            for entry in entries:
                self._queue.settle_again(entry)
            return
        for entry in entries:
            self._refusals.planner_failed(entry, error)
