# SPDX-License-Identifier: Apache-2.0
"""The scheduling loop: plans all due units in rounds, as kube-scheduler plans one pod per cycle (kube-parity.md 4).

The steps of a round are: wait for a due unit, wait for further new pods, take a snapshot, plan in a worker thread,
carry the plan out. Ordinary rounds follow one another. In parallel, one search plans the units that need victims or the
solver (`search_worker.py`). The Bindings of a round are in flight while the next round is planned. Everything except
the planner runs on the event loop's thread, which owns the ClusterState.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from koordpy.api.counted_nouns import count_noun
from koordpy.cache.snapshot import Snapshot
from koordpy.engine.dispatch import Dispatcher, RoundInput
from koordpy.engine.engine_context import Context
from koordpy.engine.evictions.timed_rounds import Watches
from koordpy.engine.round_budget import round_budget, search_budget
from koordpy.engine.round_reservations import RoundReservations
from koordpy.engine.search_worker import Search, SearchWorker
from koordpy.engine.unschedulable import UnschedulableHandler
from koordpy.observe.decision_log import DecisionLog
from koordpy.plan.planning_budget import PlanningBudget
from koordpy.plan.round_plan import RoundPlan

logger = logging.getLogger(__name__)

Planner = Callable[[Snapshot, frozenset[str], PlanningBudget], RoundPlan]
"""Plans the units with these ids on a snapshot. Called in worker threads: a round and a search may run in parallel."""

IDLE_SECONDS = 60.0
"""Maximum sleep of the loop. /livez reports a stuck loop after twice that (`inspection.STUCK_SECONDS`)."""
LOOK_SECONDS = 1.0
"""Maximum sleep while the loop waits for a wall-clock time, because timers do not run while the machine is
suspended."""
NOT_LEADING_SECONDS = 0.1
"""Pause of the loop after the lease has expired and before the process exits."""
TURNS_TO_SEND = 4
"""Number of turns of the event loop between a round and the next snapshot. In these turns the workers send the round's
Bindings. Taking a snapshot blocks the event loop, and would delay them."""


class SchedulingLoop:
    """Runs rounds until cancelled."""

    def __init__(
        self,
        context: Context,
        planner: Planner,
        dispatcher: Dispatcher,
        *,
        refusals: UnschedulableHandler,
        reservations: RoundReservations,
        watches: Watches,
        due: asyncio.Event,
        busy: Callable[[], bool],
        decisions: DecisionLog,
        on_planned: Callable[[RoundPlan], None] | None = None,
    ) -> None:
        """on_planned: called with each plan before it is carried out; None for no call. due: set when a unit or a timed
        check may have become due. busy: returns True if Bindings are in flight, so that rounds may take more plain
        pods."""
        self.rounds = 0
        """Number of rounds and searches so far."""
        self.last_turn = context.clock()
        """Clock time at which the loop last looked for work; `inspection.py` detects a stuck loop by it."""
        self._feeds, self._state, self._queue = context.feeds, context.state, context.queue
        self._planner, self._dispatcher, self._refusals = planner, dispatcher, refusals
        self._reservations, self._quotas = reservations, refusals.quota_watch
        self._watches, self._due, self._busy, self._may_write = watches, due, busy, context.may_write
        self._metrics, self._decisions, self._settings = context.metrics, decisions, context.settings
        self._on_planned = on_planned
        self._clock, self._now = context.clock, context.now
        self._executor = ThreadPoolExecutor(2, thread_name_prefix="planner")
        self._light_seconds = 0.0
        """Seconds per light pod (`QueuedPod.light`) in the last round that had light pods only; 0 before the first."""
        self._forgets = False
        """True if a round must run even if no unit is due, so that memory is freed (`forget`)."""
        self._searches = SearchWorker(due.set)
        self._single = Counter[bool]()
        """Number of the next searches (key True) and of the next rounds (key False) that plan only one unit each. After
        an error of the planner in a round with several units, it is set to their number, to find the faulty unit."""

    async def run(self) -> None:
        """Runs rounds until cancelled. An error of the planner is logged, and does not end the loop."""
        try:
            while True:
                self.last_turn = self._clock()
                self._decisions.release(self._now())
                if self._reservations.seats or self._reservations.returning:
                    self._reservations.end_due(self._now())
                self._queue.poll()
                if self._quotas.needs:
                    self._quotas.look()
                if self._feeds.is_regroup_due(self._now()):
                    self._feeds.regroup(self._now())
                if not (self._settings.dry_run or self._may_write()):
                    # the lease expired, for example while the machine was suspended: the process is about to exit
                    await asyncio.sleep(NOT_LEADING_SECONDS)
                # a search first: start one, carry an ended one out, or wait for one that must run alone
                elif self._searches.search is None and self._queue.has_searches():
                    self._start_search()
                elif self._searches.search is not None and self._searches.has_ended:
                    await self._end_search()
                elif self._searches.search is not None and self._searches.runs_alone:
                    await self._searches.wait()
                # an ordinary round: for due units, for timed checks (stale gangs, quotas), or to free memory
                elif self._queue.ready() or (self._is_watching() and self._watches.due()) or self._forgets:
                    await self._gather()
                    await self.round()
                else:
                    await self._wait()
        finally:
            self._executor.shutdown(wait=False, cancel_futures=True)

    @property
    def seats(self) -> int:
        """Number of missing members of broken gangs that have a seat."""
        return self._watches.stale.seats if self._watches.stale is not None else 0

    def forget(self) -> None:
        """Requests a round even if no unit is due, because each round releases the last plan and the planner's
        caches."""
        self._forgets = True
        self._due.set()

    def _is_watching(self) -> bool:
        """Returns True if rounds may be due without a due unit (`Watches`), for example for a stale gang or a quota
        above its runtime."""
        watches = self._watches
        due = watches.stale is not None and bool(watches.stale.due or watches.stale.unseated)
        always = watches.overuse is not None or watches.hurt is not None
        return due or always or self._feeds.state.nodes.may_lose_nodes

    async def _wait(self) -> None:
        """Sleeps until `due` is set, or until the next known time: the end of a back-off, a timed round, delayed log
        lines, or gangs that change by time."""
        self._due.clear()
        pause = IDLE_SECONDS
        for at in (self._queue.next_due(), self._quotas.next_look() if self._quotas.needs else None):
            if at is not None:
                pause = min(pause, max(0.001, at - self._clock()))
        watched = self._watches.next_due() if self._is_watching() else None
        has_ends = self._reservations.seats or self._reservations.returning
        seats = self._reservations.next_due() if has_ends else None
        for at in (watched, self._decisions.next_due(), self._feeds.regroup_due(), seats):
            if at is not None:
                pause = min(pause, LOOK_SECONDS, max(0.001, at - self._now()))
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._due.wait()

    async def _gather(self) -> None:
        """Waits until no pod was created for `quiet_seconds`, at most `max_gather_seconds`.

        Otherwise a gang would be planned once for each member that its controller creates.
        """
        quiet, began = self._settings.quiet_seconds, self._clock()
        until = began + self._settings.max_gather_seconds
        while (now := self._clock()) < until and now - self._queue.last_added < quiet:  # noqa: ASYNC110 - not an event
            await asyncio.sleep(quiet)

    # -- rounds and searches ------------------------------------------------------------------------------------------

    async def round(self) -> None:
        """Plans the units that are due, and carries the plan out (`dispatch.py`).

        Besides the queue's units, a round handles stale gangs and quotas above their runtime (`timed_rounds.py`).
        """
        self._queue.poll()
        # The round evicts a stale gang if its missing members do not fit. So its pending pods must be planned in this
        # round, whatever the state of the unit in the queue.
        watching = self._is_watching()
        stale = self._watches.stale_units() if watching else []
        for unit in stale:
            self._queue.hurry(unit, "StaleGang")
        over = watching and self._watches.over_used()
        round_input = self._take(also=stale)
        if not (round_input.entries or stale or over or self._forgets):
            return
        self._forgets = False
        budget = round_budget(self._queue, self._settings, self._clock, gives_back=over)
        planning, number = self._plan(round_input, budget, also=stale)
        await asyncio.wait((planning,))
        await self._carry_out(round_input, planning, number)

    def _start_search(self) -> None:
        """Starts a search for units that wait for one."""
        round_input = self._take(searches=True)
        if not round_input.entries:
            return  # GangGroups changed with the snapshot, and an ordinary round tries the new units first
        planning, number = self._plan(round_input, search_budget(self._settings, self._clock))
        self._searches.start(Search(round_input, planning, number))

    async def _end_search(self) -> None:
        search = self._searches.end()
        await self._carry_out(search.input, search.planning, search.number)

    def _take(self, *, searches: bool = False, also: Iterable[str] = ()) -> RoundInput:
        """Takes a snapshot and the units of a round or search.

        also: ids of further units that the round plans, although they need not be in the queue (stale gangs).
        """
        began, now = self._clock(), self._now()
        if self._searches.search is None:
            # only without a running search, which refers to positions in this list (`RoundInput.foreign`)
            self._feeds.pods.foreign.clear()
        self._feeds.regroup(now)
        snapshot = self._state.snapshot(now)
        foreign, assumed = len(self._feeds.pods.foreign), self._refusals.round_begins()
        if self._feeds.names.refresh(snapshot):
            # GangGroups changed, so pods may belong to other units
            self._queue.regroup(self._unit_now)
        single = self._single[searches] > 0
        self._single[searches] -= single  # True is 1
        if searches:
            entries = self._queue.take_searches(alone=single)
        else:
            entries = self._queue.take(light_pods=self._light_pods(), alone=single)
        by_unit = {entry.unit: entry for entry in entries}
        if self._reservations.awaiting or self._reservations.returning:
            snapshot = self._reservations.add_to(snapshot, frozenset((*by_unit, *also)))
        return RoundInput(by_unit, snapshot, began, foreign, assumed, searches=searches)

    def _plan(
        self, round_input: RoundInput, budget: PlanningBudget, *, also: Iterable[str] = ()
    ) -> tuple[asyncio.Future[RoundPlan], int]:
        """Starts planning in a worker thread. Returns the future plan and the number of the round."""
        self.rounds += 1
        units = frozenset((*round_input.entries, *also))
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._executor, self._planner, round_input.snapshot, units, budget), self.rounds

    async def _carry_out(self, round_input: RoundInput, planning: asyncio.Future[RoundPlan], number: int) -> None:
        """Carries out a finished plan, or handles the error that its planner raised."""
        entries = [*round_input.entries.values()]
        try:
            plan = planning.result()
        except Exception as error:
            logger.exception("planning failed for %s", count_noun(len(entries), "unit"))
            self._planner_failed(round_input, error)
            return
        seconds = self._clock() - round_input.began
        if not round_input.searches and entries and all(entry.light for entry in entries):
            self._light_seconds = seconds / max(1, sum(entry.load for entry in entries))
        self._metrics.planned(plan, seconds=seconds)
        self._metrics.snapshot_age.observe(seconds)
        self._decisions.record(plan, number=number, at=self._now())
        if self._on_planned is not None:
            self._on_planned(plan)
        if self._searches.search is not None:
            # an ordinary round ended while a search runs, and the search's snapshot does not have its placements
            self._searches.note_placements(plan, round_input.snapshot)
        self._dispatcher.apply(plan, round_input, seconds=seconds)
        if plan.reservation is not self._reservations.promised_start:
            self._reservations.promise(plan.reservation)
        if plan.seats or self._reservations.seats:
            self._reservations.keep_seats(plan.seats)
            if self._watches.stale is not None:
                self._watches.stale.keep_seats(plan.seats)
        for _ in range(TURNS_TO_SEND if plan.placements else 0):
            await asyncio.sleep(0)

    def _light_pods(self) -> int:
        """Returns the limit of light pods in a round, as a sum of `QueuedPod.load` (1 for an ordinary pod).

        The limit follows from the speed of the last round, so that a round takes about `newcomer_seconds`. It is lower
        while no Binding is in flight, so that Bindings start early.
        """
        settings = self._settings
        most = settings.most_light_pods if self._busy() else settings.first_light_pods
        if self._light_seconds <= 0.0:
            return most
        return min(most, max(settings.least_light_pods, int(settings.newcomer_seconds / self._light_seconds)))

    def _unit_now(self, key: str) -> str | None:
        """Returns the id of the unit that a pod belongs to now; None if the pod is not pending any more."""
        info = self._state.pod(key)
        return self._feeds.names.of_pod(info) if info is not None and info.pending else None

    def _planner_failed(self, round_input: RoundInput, error: Exception) -> None:
        """Handles an error that the planner raised.

        If the round had one unit, the unit gets the error as its condition, and waits for its back-off. If it had
        several, any of them may have caused the error: all are queued again, and the next rounds plan one unit each.
        """
        entries = [*round_input.entries.values()]
        if len(entries) == 1:
            self._refusals.planner_failed(entries[0], error)
            return
        self._single[round_input.searches] = len(entries)
        for entry in entries:
            if round_input.searches:
                self._queue.settle_for_search(entry)
            else:
                self._queue.settle_again(entry)
