# SPDX-License-Identifier: Apache-2.0
"""The loop of the node agent: reads the GPUs, decides on their health, and writes the Device.

One pass of the loop is called a look. The next look follows when the driver reports an error, when a look is requested,
or when the poll interval is over. The driver is called in a separate thread, because an NVML call may block for
seconds. Rules: gpu-topology.md 9.
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
"""Default seconds between two looks."""
SLICE_SECONDS = 1.0
"""Maximum seconds of one driver call that waits for events."""
REFRESH_SECONDS = 300.0
"""Seconds after which the Device is written even if nothing changed, to undo changes by other writers."""
CHECK_SECONDS = 15.0
"""Seconds between two checks whether the Device was deleted. It is deleted with its Node, which may be recreated."""
NODE_SECONDS = 1.0
"""Seconds until a missing Node (deleted, or not yet registered) is looked up again."""
NOT_FOUND = 404
"""HTTP status code of an object that does not exist."""


class NodeAgent:
    """The agent of one node. `run` is the loop; `look` is one pass without the write to the API server."""

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
        """backend: source of facts about the GPUs. book: health of the GPUs. delivery: way in which containers get GPUs
        (`foreign`, `env`, `device-plugin`). measure: returns the content of the measurement file; None if there is no
        file. looked: called after each look, even if the Device cannot be written. obstacle: returns why the device
        plugin cannot deliver GPUs; empty if it can. held: returns GPU key -> reason why a healthy GPU must not be
        used."""
        self.node, self.backend, self.book = node, backend, book
        self.delivery, self._measure, self.looked, self.obstacle = delivery, measure, looked, obstacle
        self.unavailable = held
        self._before: Mapping[tuple[str, str], str] = {}
        """(GPU key, GPU key) -> link class in the last report; used for GPUs that have vanished."""
        self.undeliverable = ""
        """Why GPUs cannot be delivered to containers, as in the condition DeliveryUnavailable; empty if they can."""
        self.unwritten = "not written yet"
        """Why the Device does not show the last look; empty if the Device shows it."""
        self.look_requested = asyncio.Event()
        """Set to request a look before the poll interval is over."""
        self._published = asyncio.Condition()
        """Notified after each look once the Device is up to date, even if nothing had to be written."""
        self._watching = False
        """True after the first look: later errors of the driver make GPUs unhealthy instead of ending the agent."""
        self.eventful = False
        """True if the driver reported events in the last look."""

    def look(self, *, timeout: float = 0.0) -> Report:
        """Polls the GPUs and the errors, and returns the report. timeout: seconds to wait for events.

        Raises BackendError only at the first look. Later, if the driver does not answer, all GPUs become unhealthy.
        """
        if not self._watching:  # the backend must know the GPUs before it can register for events
            self.backend.gpus()
        events = self._events(timeout)
        gpus = self._asked(self.backend.gpus)
        self._watching = True
        self.eventful = bool(events)
        self.book.poll(gpus, events)
        report = self._report_or_unhealthy()
        self._before = report.matrix.cells()
        return report

    def _events(self, timeout: float) -> Sequence[XidEvent] | None:
        """Returns the driver's events; None if the driver does not answer.

        Waits in slices of `SLICE_SECONDS`, so that `look_requested` is noticed.
        """
        left = timeout
        while True:
            began = time.monotonic()
            part = min(SLICE_SECONDS, left)
            events = self._asked(self.backend.health_events, part)
            left -= part
            # a backend without events returns at once
            waited = time.monotonic() - began >= part / 2
            if events or events is None or left <= 0 or not waited or self.look_requested.is_set():
                return events

    def _asked(self, call: Callable[P, Sequence[T]], *args: P.args, **given: P.kwargs) -> Sequence[T] | None:
        """Returns the driver's answer to a call; None if it does not answer. Raises BackendError only at the first
        look."""
        try:
            return call(*args, **given)
        except BackendError as fault:
            if not self._watching:
                raise
            logger.error("%s", fault)
            return None

    def _report_or_unhealthy(self) -> Report:
        """Returns the report. If the driver stops answering, all GPUs in it are unhealthy."""
        try:
            return self._report()
        except BackendError as fault:
            logger.error("%s", fault)
            self.book.poll(None, ())
            return self._report(asked=False)

    def _report(self, *, asked: bool = True) -> Report:
        """Returns the report from the current health. Raises BackendError.

        asked: False to make the report without calls to the driver, because the driver does not answer.
        """
        measured = self._measure()
        return make_report(
            self.node,
            self.backend,
            self.book,
            delivery=self.delivery,
            measured=self.backend.measured() if measured is None else measured,
            before=self._before,
            undeliverable=self.undeliverable,
            held=self.unavailable(),
            asked=asked,
        )

    async def run(self, publisher: DevicePublisher, *, once: bool = False, poll: float = POLL_SECONDS) -> None:
        """Looks and writes until it is cancelled; with `once` a single time. poll: seconds between two looks.

        Raises BackendError at the start, and with `once` also ApiError and Unreachable. Later errors are logged, and
        the loop tries again.
        """
        self.book.remember(await self._known(publisher, once=once))
        timeout, requested = 0.0, False
        written = checked = time.monotonic()
        while True:
            started, again = time.monotonic(), poll
            # from time to time forget the last write, so that the complete Device is written again
            if started - written > REFRESH_SECONDS:
                publisher.forget()
                written = started
            report = await asyncio.to_thread(self.look, timeout=timeout)
            self.looked(self.book)
            # write the Device, with the current reason why GPUs cannot be delivered
            try:
                lacking = await publisher.lacks_runtime() if self.delivery == ENV else self.obstacle()
                if lacking != self.undeliverable:
                    self.undeliverable, self.unwritten = lacking, "not written yet"
                    report = await asyncio.to_thread(self._report_or_unhealthy)
                if requested or started - checked > CHECK_SECONDS:
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
            # the next look: at once after events, else when a look is requested or the poll interval is over
            if not self.eventful:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.look_requested.wait(), max(0.0, started + again - time.monotonic()))
            requested = self.look_requested.is_set()
            timeout = 0.0 if requested else again
            self.look_requested.clear()

    async def wait_until_reported(self, undeliverable: str) -> None:
        """Waits until the Device shows this reason why GPUs cannot be delivered. undeliverable: empty if they can."""
        async with self._published:
            await self._published.wait_for(lambda: self.undeliverable == undeliverable and not self.unwritten)

    async def _known(self, publisher: DevicePublisher, *, once: bool) -> list[MachineGpu]:
        """Returns the GPUs that an earlier agent reported since the node's last boot.

        Waits until the API server answers; with `once` it does not wait.
        """
        while True:
            try:
                return await publisher.reported_before(self.backend.boot())
            except (ApiError, Unreachable) as fault:
                if once:
                    raise
                logger.warning("Device %s: %s", self.node, fault)
                await asyncio.sleep(POLL_SECONDS / 5)
