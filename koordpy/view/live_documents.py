# SPDX-License-Identifier: Apache-2.0
"""Streams the document of a changing cluster to its listeners: a whole document, then changes.

Between two changes there is at least one second, and at least 125 times the time that computing the last change took.
So the stream uses less than a hundredth of a core on clusters of any size. All listeners get the same bytes. A listener
that missed a change gets a whole document next, so nothing is buffered.
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
"""Minimum time between two changes, in seconds."""
PACE = 125.0
"""Minimum time between two changes, as a multiple of the time that the last change took: 0.8 % of a core."""
WHOLE_PACE = 10.0
"""Minimum time between two whole documents, or two explanations, as a multiple of the time that the last one took."""
STILL_SECONDS = 10.0
"""Seconds without a change after which listeners get a keep-alive; also the lifetime of an answer about a unit."""

WHOLE, CHANGE = "whole", "change"
Event = tuple[str, bytes]
"""(`whole` or `change`, JSON); ("", b"") for a keep-alive."""
Teller = Callable[[Snapshot], Remarks]
Taken = tuple[Snapshot, Remarks | Teller]
"""A snapshot with its remarks, or with a function that returns the remarks. The thread that writes the document calls
this function."""


class NotReadyError(Exception):
    """There is no document yet; the message says why."""


class UnknownUnitError(Exception):
    """No pending unit has this name."""


class Feed:
    """The document of one cluster and its changes. Used by one event loop; documents are computed in a thread."""

    def __init__(self, take: Callable[[], Taken], config: KoordpyConfiguration, *, pace: float = PACE) -> None:
        """take: called on the event loop; returns a current snapshot, or raises NotReadyError if there is none. pace:
        minimum time between two changes, as a multiple of the time that the last change took."""
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
        """CPU seconds that the last change took."""
        self._explained: dict[str, tuple[float, bytes]] = {}
        """Unit -> (time until which the answer is valid, the answer)."""
        self._explain_due = 0.0

    async def document(self) -> bytes:
        """Returns a whole document that is less than a second old. Raises NotReadyError."""
        await self._look()
        whole = (await self._written())[1]
        self._let_go()
        return whole

    async def explain(self, unit: str) -> bytes:
        """Returns what would help a pending unit, at most ten seconds old.

        Raises NotReadyError and UnknownUnitError.
        """
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
        """Yields a whole document, then changes. Raises NotReadyError."""
        await self._look()
        self._cost = 0.0  # the first look reads the whole cluster, which happens once
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
        """If there is no listener, ends the stream and drops all data of the cluster."""
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
        """Updates the document, unless the last update was less than a second ago."""
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
    """Returns what would help a pending unit. Raises UnknownUnitError."""
    found = next(
        (
            one
            for one in Groups(snapshot, config.gangs, config.stale_gangs, repair=config.repair).units()
            if one.id == unit
        ),
        None,
    )
    if found is None:
        raise UnknownUnitError(f"{unit} is not pending")
    return help_document(explain(snapshot, config, found.pending[0].key))


def planned_by(plan: RoundPlan) -> dict[str, PlannedPlace]:
    """Returns pod -> its planned node, or its nominated node if pods are evicted for it first."""
    evicting = {one.unit for one in plan.evictions}
    places = {one.pod_key: PlannedPlace(one.node, one.devices, one.unit in evicting) for one in plan.placements}
    return places | {one.pod_key: PlannedPlace(one.node, evicts=one.unit in evicting) for one in plan.nominations}


class Planned:
    """Remarks for a cluster without a scheduler: the decisions that a round would make; nothing is carried out."""

    def __init__(self, config: KoordpyConfiguration, *, source: str, warnings: tuple[str, ...] = ()) -> None:
        self._config, self._source, self._warnings = config, source, warnings
        self._last: tuple[Snapshot, Remarks] | None = None

    def __call__(self, snapshot: Snapshot) -> Remarks:
        """Plans a round; returns the last result if pods, nodes and quotas have not changed."""
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
            one.unit: f"the next round {one.line().removeprefix(f'{one.unit}: ')}"
            for one in decisions.last_decisions()
            if one.placed
        }
        told = Remarks(
            source=self._source,
            messages=messages | decisions.messages,
            plans=decisions.last_decisions(),
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
    """Returns remarks from a decision log. planned: places of pods that were planned but not bound."""
    return Remarks(
        source=source,
        messages=decisions.messages.copy(),
        states=states or {},
        decisions=decisions.last_decisions(),
        decided=decisions.decided,
        reservation=decisions.reservation,
        planned=planned or {},
    )


def taken_of(scheduler: Scheduler) -> tuple[Snapshot, dict[str, str]]:
    """Returns the current snapshot of a scheduler, and the states of the units in its queue. Raises NotReadyError."""
    if late := scheduler.feeds.out_of_sync():
        raise NotReadyError(f"the cluster is still being read: {late}")
    return scheduler.inspection.seen()


def of_scheduler(scheduler: Scheduler, config: KoordpyConfiguration, *, source: str) -> Feed:
    """Returns the feed of a running scheduler."""

    def take() -> Taken:
        snapshot, states = taken_of(scheduler)
        return snapshot, told_by(scheduler.decisions, source=source, states=states)

    return Feed(take, config)
