"""The agent's loop: look, judge, write; again when the driver reports an error or the poll interval is over.

Source: gpu-topology.md 9. The driver is asked in a thread of its own: a call of NVML may block for seconds.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from koordpy.agent.device_report import ENV, FOREIGN, Report, make_report
from koordpy.agent.gpu_facts import BackendError, GpuBackend, MachineGpu, XidEvent
from koordpy.agent.gpu_health import HealthBook
from koordpy.agent.publisher import DevicePublisher
from koordpy.engine.client.api_errors import ApiError, Unreachable

logger = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

POLL_SECONDS = 10.0
SLICE_SECONDS = 1.0
"""Longest call of the driver that waits for events."""
REFRESH_SECONDS = 300.0
"""A Device that others changed is as it should be again after so long."""
CHECK_SECONDS = 15.0
"""A Device that is gone is written again after so long: it goes with its Node, also where that is added again."""
NODE_SECONDS = 1.0
"""A Node that is not there, because it was deleted or is yet to be registered, is looked for again after so long."""
NOT_FOUND = 404


class NodeAgent:
    """One node's agent. measure: gives the measurement file's content, None without one; looked: told after each look,
    whether the Device could be written or not; obstacle: why the device plugin cannot deliver now, empty where it can;
    held: GPU -> why it may not be given away though it is healthy.
    """

    def __init__(
        self,
        node: str,
        backend: GpuBackend,
        book: HealthBook,
        *,
        delivery: str = FOREIGN,
        measure: Callable[[], Any] = lambda: None,
        looked: Callable[[HealthBook], None] = lambda book: None,
        obstacle: Callable[[], str] = lambda: "",
        held: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.node, self.backend, self.book = node, backend, book
        self.delivery, self._measure, self.looked, self.obstacle = delivery, measure, looked, obstacle
        self.held = held
        self._before: Mapping[tuple[str, str], str] = {}
        self.undeliverable = ""
        self.unwritten = "not written yet"
        """Why the Device does not say what was seen last; empty where it does."""
        self.stirred = asyncio.Event()
        """Set by whoever knows of something to report before the next look is due."""
        self._published = asyncio.Condition()
        self._watching = False
        self.eventful = False
        """Whether the last look ended because something happened."""

    def look(self, *, timeout: float = 0.0) -> Report:
        """One poll: GPUs and errors are taken in, and the report is made. Raises BackendError at the first look only:
        later a driver that does not answer makes the GPUs unhealthy."""
        if not self._watching:  # before the events are registered, the GPUs must be known
            self.backend.gpus()
        events = self._events(timeout)
        gpus = self._asked(self.backend.gpus)
        self._watching = True
        self.eventful = bool(events)
        self.book.poll(gpus, events)
        try:
            report = self._report()
        except BackendError as fault:
            logger.error("%s", fault)
            self.book.poll(None, ())
            report = self._report(asked=False)
        self._before = report.matrix.cells()
        return report

    def _events(self, timeout: float) -> Sequence[XidEvent] | None:
        """What the driver reports, waited for in slices, so that a stir or the end of the agent is not kept waiting."""
        left = timeout
        while True:
            began = time.monotonic()
            part = min(SLICE_SECONDS, left)
            events = self._asked(self.backend.health_events, part)
            left -= part
            # backends that know of no events answer at once
            waited = time.monotonic() - began >= part / 2
            if events or events is None or left <= 0 or not waited or self.stirred.is_set():
                return events

    def _asked(self, call: Callable[P, Sequence[T]], *args: P.args, **given: P.kwargs) -> Sequence[T] | None:
        """What the driver says; None where it does not answer. Raises BackendError at the first look."""
        try:
            return call(*args, **given)
        except BackendError as fault:
            if not self._watching:
                raise
            logger.error("%s", fault)
            return None

    def _report(self, *, asked: bool = True) -> Report:
        measured = self._measure()
        return make_report(
            self.node,
            self.backend,
            self.book,
            delivery=self.delivery,
            measured=self.backend.measured() if measured is None else measured,
            before=self._before,
            undeliverable=self.undeliverable,
            held=self.held(),
            asked=asked,
        )

    async def run(self, publisher: DevicePublisher, *, once: bool = False, poll: float = POLL_SECONDS) -> None:
        """Looks and writes until it is cancelled, once with `once`. Raises BackendError at the start, and with `once`
        also ApiError and Unreachable; later all of them are logged and tried again."""
        self.book.remember(await self._known(publisher, once=once))
        timeout, stirred = 0.0, False
        written = checked = time.monotonic()
        while True:
            started, again = time.monotonic(), poll
            if started - written > REFRESH_SECONDS:
                publisher.forget()
                written = started
            report = await asyncio.to_thread(self.look, timeout=timeout)
            self.looked(self.book)
            try:
                lacking = await publisher.lacks_runtime() if self.delivery == ENV else self.obstacle()
                if lacking != self.undeliverable:
                    self.undeliverable = lacking
                    report = await asyncio.to_thread(self._report)
                if stirred or started - checked > CHECK_SECONDS:
                    checked = started
                    await publisher.check()
                if await publisher.publish(report):
                    logger.info("Device %s written, %d GPUs", self.node, len(report.device["spec"]["devices"]))
                self.unwritten = ""
                async with self._published:
                    self._published.notify_all()
            except (ApiError, Unreachable) as fault:
                if once:
                    raise
                logger.warning("Device %s: %s", self.node, fault)
                publisher.forget()
                self.unwritten = str(fault)
                if isinstance(fault, ApiError) and fault.status == NOT_FOUND:
                    again = min(again, NODE_SECONDS)
            if once:
                return
            if not self.eventful:  # backends without events answer at once
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.stirred.wait(), max(0.0, started + again - time.monotonic()))
            stirred = self.stirred.is_set()
            timeout = 0.0 if stirred else again
            self.stirred.clear()

    async def told(self, undeliverable: str) -> None:
        """Waits until the Device says why GPUs cannot be delivered."""
        async with self._published:
            await self._published.wait_for(lambda: self.undeliverable == undeliverable and not self.unwritten)

    async def _known(self, publisher: DevicePublisher, *, once: bool) -> list[MachineGpu]:
        while True:
            try:
                return await publisher.reported_before(self.backend.boot())
            except (ApiError, Unreachable) as fault:
                if once:
                    raise
                logger.warning("Device %s: %s", self.node, fault)
                await asyncio.sleep(POLL_SECONDS / 5)
