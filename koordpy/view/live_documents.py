"""Where documents come from: a cluster that goes on, told in changes to whoever listens.

One second lies between two changes at least, and more than a hundred times what the last one took, so that watching
costs less than a hundredth of a core however large the cluster is. Listeners share the bytes of the last change. One
that has not taken them in time gets a whole document next, so nothing ever queues up.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Callable

import orjson

from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.engine.scheduler import Scheduler
from koordpy.explain.explanation import explain
from koordpy.gangs.queue_units import Groups
from koordpy.observe.decision_log import DecisionLog
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.planning_round import plan_round
from koordpy.view.document_rows import Document, PlannedPlace, Remarks, help_document
from koordpy.view.view_document import LiveDocument

PACE_SECONDS = 1.0
"""From one change to the next at least."""
PACE = 125.0
"""So many times what the last change took, likewise: 0.8 % of a core."""
WHOLE_PACE = 10.0
"""A whole document, or what would help a unit, is worked out anew after so many times what the last one took."""
STILL_SECONDS = 10.0
"""After so long without a change listeners are told that all is well; so long an answer about a unit holds."""

WHOLE, CHANGE = "whole", "change"
Event = tuple[str, bytes]
"""(whole or change, JSON); ("", b"") for nothing new."""
Teller = Callable[[Snapshot], Remarks]
Taken = tuple[Snapshot, Remarks | Teller]
"""A teller is called in the thread that writes."""


class NotReadyError(Exception):
    """There is nothing to see yet; the message says why."""


class UnknownUnitError(Exception):
    """No such unit waits."""


class Feed:
    """What is seen of one cluster. Owned by one event loop; documents are written in a thread."""

    def __init__(self, take: Callable[[], Taken], config: KoordpyConfiguration, *, pace: float = PACE) -> None:
        """take: called on the loop, a snapshot of this moment. Raises NotReadyError where there is none.
        pace: so many times what a change took lie between it and the next."""
        self._pace = pace
        self._take, self._config = take, config
        self._scene = LiveDocument(config)
        self._serial = 0
        self._change = b""
        self._whole: tuple[int, bytes] = 0, b""
        self._whole_due = 0.0
        self._listeners = 0
        self._news = asyncio.Event()
        self._busy, self._explaining = asyncio.Lock(), asyncio.Lock()
        self._running: asyncio.Task[None] | None = None
        self._looked = -math.inf
        self._cost = 0.0
        """Seconds that the last look took."""
        self._explained: dict[str, tuple[float, bytes]] = {}
        """Unit -> until when an answer holds, and the answer."""
        self._explain_due = 0.0

    async def document(self) -> bytes:
        """Everything as it is now, or was less than a second ago. Raises NotReadyError."""
        await self._look()
        whole = (await self._written())[1]
        self._let_go()
        return whole

    async def explain(self, unit: str) -> bytes:
        """What would help a unit that waits, at most ten seconds old. Raises NotReadyError and UnknownUnitError."""
        async with self._explaining:
            known = self._explained.get(unit)
            if known is not None and time.monotonic() < known[0]:
                return known[1]
            await asyncio.sleep(max(0.0, self._explain_due - time.monotonic()))
            snapshot, _ = self._take()
            began = time.monotonic()
            answer = orjson.dumps(await asyncio.to_thread(help_of, snapshot, self._config, unit))
            now = time.monotonic()
            self._explain_due = now + WHOLE_PACE * (now - began)
            self._explained = {name: one for name, one in self._explained.items() if one[0] > now}
            self._explained[unit] = now + STILL_SECONDS, answer
            return answer

    async def events(self) -> AsyncGenerator[Event, None]:
        """A whole document, then what changes. Raises NotReadyError."""
        await self._look()
        self._cost = 0.0  # of taking in all that was: paid once
        self._listeners += 1
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run(), name="view")
        seen = 0
        try:
            while True:
                news = self._news
                if seen and seen == self._serial:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(STILL_SECONDS):
                            await news.wait()
                if seen and seen == self._serial:
                    yield "", b""
                elif seen and seen == self._serial - 1:
                    seen += 1
                    yield CHANGE, self._change
                else:
                    if self._whole[0] != self._serial:
                        await asyncio.sleep(max(0.0, self._whole_due - time.monotonic()))
                    seen, whole = await self._written()
                    yield WHOLE, whole
        finally:
            self._listeners -= 1
            self._let_go()

    def _let_go(self) -> None:
        """Without a listener nothing is done, and nothing of the cluster is kept."""
        if self._listeners:
            return
        if self._running is not None:
            self._running.cancel()
            self._running = None
        self._scene, self._whole, self._change = LiveDocument(self._config), (0, b""), b""
        self._looked = -math.inf

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(max(PACE_SECONDS, self._pace * self._cost))
            with contextlib.suppress(NotReadyError):
                await self._look()

    async def _look(self) -> None:
        """Takes in what changed, unless that was done within the last second."""
        now = time.monotonic()
        async with self._busy:
            if now - self._looked < PACE_SECONDS:
                return
            began = time.thread_time()
            snapshot, told = self._take()
            taking = time.thread_time() - began
            self._looked = now
            change, writing = await asyncio.to_thread(self._update, snapshot, told)
            self._cost = taking + writing
            if change is not None:
                self._serial += 1
                self._change = change
                self._news.set()
                self._news = asyncio.Event()

    def _update(self, snapshot: Snapshot, told: Remarks | Teller) -> tuple[bytes | None, float]:
        began = time.thread_time()
        change = self._scene.update(snapshot, told if isinstance(told, Remarks) else told(snapshot))
        body = orjson.dumps({**change, "serial": self._serial + 1}) if len(change) > 1 else None
        return body, time.thread_time() - began

    async def _written(self) -> tuple[int, bytes]:
        async with self._busy:
            if self._whole[0] != self._serial:
                began = time.monotonic()
                document: Document = {**self._scene.whole(), "serial": self._serial}
                self._whole = self._serial, await asyncio.to_thread(orjson.dumps, document)
                self._whole_due = time.monotonic() + WHOLE_PACE * (time.monotonic() - began)
            return self._whole


def help_of(snapshot: Snapshot, config: KoordpyConfiguration, unit: str) -> Document:
    """What would help a unit that waits. Raises UnknownUnitError."""
    found = next((one for one in Groups(snapshot, config.gangs, config.stale_gangs).units() if one.id == unit), None)
    if found is None:
        raise UnknownUnitError(f"{unit} does not wait")
    return help_document(explain(snapshot, config, found.pending[0].key))


def planned_by(plan: RoundPlan) -> dict[str, PlannedPlace]:
    """Pod -> where a plan places it; where pods are evicted for it, its nominated node."""
    evicting = {one.unit for one in plan.evictions}
    places = {one.pod_key: PlannedPlace(one.node, one.given, one.unit in evicting) for one in plan.placements}
    return places | {one.pod_key: PlannedPlace(one.node, evicts=one.unit in evicting) for one in plan.nominations}


class Planned:
    """Says of all that waits what a round would do for it; nothing is carried out."""

    def __init__(self, config: KoordpyConfiguration, *, source: str, warnings: tuple[str, ...] = ()) -> None:
        self._config, self._source, self._warnings = config, source, warnings
        self._last: tuple[Snapshot, Remarks] | None = None

    def __call__(self, snapshot: Snapshot) -> Remarks:
        """Plans, unless nothing changed since the last time."""
        if self._last is not None:
            before, told = self._last
            if before.pods == snapshot.pods and before.nodes == snapshot.nodes and before.quotas == snapshot.quotas:
                return told
        decisions = DecisionLog()
        plan = plan_round(snapshot, self._config)
        decisions.record(plan, number=1, at=snapshot.now)
        for unit in dict.fromkeys(eviction.unit for eviction in plan.evictions):
            decisions.evicts(plan, unit, dry_run=True)
        messages = {
            one.unit: f"the next round places {one.line().removeprefix(f'{one.unit}: ')}"
            for one in decisions.kept()
            if one.placed
        }
        told = Remarks(
            source=self._source,
            messages=messages | decisions.messages,
            plans=decisions.kept(),
            planned=planned_by(plan),
            reservation=decisions.reservation,
            warnings=self._warnings,
        )
        self._last = snapshot, told
        return told


def told_by(
    decisions: DecisionLog,
    *,
    source: str,
    states: dict[str, str] | None = None,
    planned: dict[str, PlannedPlace] | None = None,
) -> Remarks:
    """What a decision log adds to a snapshot. planned: pods that were placed on paper alone."""
    return Remarks(
        source=source,
        messages=decisions.messages.copy(),
        states=states or {},
        decisions=decisions.kept(),
        decided=decisions.decided,
        reservation=decisions.reservation,
        planned=planned or {},
    )


def taken_of(scheduler: Scheduler) -> tuple[Snapshot, dict[str, str]]:
    """What a scheduler sees now, and the states of the units in its queue. Raises NotReadyError."""
    if late := scheduler.feeds.out_of_sync():
        raise NotReadyError(f"the cluster is still being read: {late}")
    return scheduler.inspection.seen()


def of_scheduler(scheduler: Scheduler, config: KoordpyConfiguration, *, source: str) -> Feed:
    """What is seen of a running scheduler."""

    def take() -> Taken:
        snapshot, states = taken_of(scheduler)
        return snapshot, told_by(scheduler.decisions, source=source, states=states)

    return Feed(take, config)
