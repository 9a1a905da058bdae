# SPDX-License-Identifier: Apache-2.0
"""Sends Kubernetes events (events.k8s.io/v1) with a bounded queue and a rate limit, after pending Bindings.

Equal events are counted in a series: the first event creates an Event object, and repetitions patch its count at most
every six minutes, as client-go does. Events beyond the limits are dropped and counted. Source: kube-parity.md 4.6.
"""

import asyncio
import contextlib
import logging
import random
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec

from koordpy.api.objects import ObjectMeta
from koordpy.api.times import micro_time
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.api_errors import ApiError, Unreachable
from koordpy.engine.client.api_resources import EVENTS, Resource
from koordpy.engine.client.token_bucket import TokenBucket
from koordpy.engine.planning_turns import ByTurns
from koordpy.engine.watching.watch_lines import Names
from koordpy.observe.message_rates import Lately
from koordpy.pods.pod_info import PodInfo

logger = logging.getLogger(__name__)

NOTE_BYTES = 1024
"""Maximum length of an event's note, by the API."""
SERIES_REFRESH_SECONDS = 360.0
"""Minimum interval of two writes of one series, as in client-go."""
HOLD_SECONDS = 5.0
"""Maximum delay of an event while more urgent writes are pending."""
HOLD_STEP_SECONDS = 0.05
"""Interval at which a delayed event checks whether more urgent writes are still pending."""
SERIES_KEPT = 8192
"""Maximum number of remembered series; the least recent ones are forgotten."""
QUEUE_LENGTH = 8192
"""Maximum number of queued series."""
WARNINGS_A_MINUTE = 25
"""Limit of different warnings per object and minute, as in kube-scheduler's events."""
WORKERS = 4
"""Maximum number of parallel writes of events."""
EventType = Literal["Normal", "Warning"]


class ObjectReference(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The object that an event is about, or related to."""

    api_version: str
    kind: str
    name: str = ""
    namespace: str = ""
    uid: str = ""


def of_pod(info: PodInfo) -> ObjectReference:
    """Returns the reference of a pod."""
    return ObjectReference("v1", "Pod", info.name, info.namespace, info.uid)


def of_object(resource: Resource, meta: ObjectMeta | Names) -> ObjectReference:
    """Returns the reference of an object of a served resource."""
    namespace = meta.namespace if resource.namespaced else ""
    return ObjectReference(resource.api_version, resource.kind, meta.name, namespace, meta.uid)


class _Key(NamedTuple):
    """Identity of a series: events with equal fields are counted in one series."""

    regarding: ObjectReference
    related: ObjectReference | None
    type: EventType
    reason: str
    action: str
    note: str


@dataclass(slots=True)
class _Series:
    """Equal events about one object."""

    name: str
    """Name of the Event object."""
    count: int
    """Number of events so far."""
    sent_count: int
    """Value of `count` when the series was last sent; 0 if it was not sent yet."""
    last_seen: float
    """Time of the last event, in seconds since 1970."""
    sent_at: float
    """Clock time of the last write; -inf before the first."""
    queued: bool
    """True if the series is in the queue."""
    due: float = 0.0
    """Clock time from which the event is sent even if more urgent writes are pending."""


def cut_note(note: str) -> str:
    """Returns the note in at most 1024 bytes of UTF-8, cut between characters; "..." marks a cut."""
    encoded = note.encode("utf-8", "replace")
    if len(encoded) <= NOTE_BYTES:
        return encoded.decode("utf-8")
    return encoded[: NOTE_BYTES - 3].decode("utf-8", "ignore") + "..."


class _Line(asyncio.Queue[_Key]):
    """The queue of events. Namespaces are served in turn, so that events of one namespace do not delay the others."""

    def _init(self, maxsize: int) -> None:
        self._queue: ByTurns[_Key] = ByTurns()

    def qsize(self) -> int:
        """Returns the number of queued events. Overridden, because `ByTurns` replaces the queue's deque."""
        return len(self._queue)

    def _put(self, item: _Key) -> None:
        self._queue.add(item.regarding.namespace, item)

    def _get(self) -> _Key:
        return self._queue.next()

    def make_room(self, namespace: str) -> _Key | None:
        """Removes and returns the last event of the namespace with the most events, to make room for an event of
        `namespace`. None if no namespace has more events than `namespace` itself."""
        dropped = self._queue.drop(len(self._queue.lines.get(namespace, ())))
        if dropped is not None:
            self.task_done()
        return dropped


class EventRecorder:
    """Accepts events at any time; `run()` sends them. Events beyond the queue's limit are dropped and counted.

    The recorder's rate limit is separate from the client's, so that events never delay a Binding.
    """

    def __init__(
        self,
        client: ApiClient,
        *,
        controller: str,
        qps: float,
        burst: int,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        busy: Callable[[], bool] = lambda: False,
        on_lost: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """controller: the schedulerName; the reporting instance is `schedulerName-hostname`. busy: returns True if
        Bindings or conditions are pending, which are sent first. on_lost: called with the reason if an event is not
        sent: queue_full, too_many (warnings about one object), or failed."""
        self._busy, self._on_lost = busy, on_lost
        self.sent = 0
        """Number of writes that the API server accepted."""
        self._client, self._clock, self._now = client, clock, now
        self._controller = controller
        self._instance = f"{controller}-{socket.gethostname()}"[:128]
        self._bucket = TokenBucket(qps, burst)
        self._queue = _Line(QUEUE_LENGTH)
        self._series: OrderedDict[_Key, _Series] = OrderedDict()
        """Identity -> series; the series with the latest event is last."""
        self._warned = Lately(WARNINGS_A_MINUTE)

    def record(
        self,
        regarding: ObjectReference,
        *,
        type: EventType,
        reason: str,
        action: str,
        note: str,
        related: ObjectReference | None = None,
    ) -> None:
        """Records an event; an event equal to an earlier one is counted in its series. Never blocks, never raises."""
        key, now = _Key(regarding, related, type, reason, action, cut_note(note)), self._now()
        series = self._series.get(key)
        if series is None:
            if type == "Warning" and not self._warned.lets(regarding, self._clock()):
                self._on_lost("too_many")
                return
            series = _Series(_new_name(regarding), 0, 0, now, float("-inf"), queued=False)
            self._series[key] = series
            if len(self._series) > SERIES_KEPT:
                self._series.popitem(last=False)
        else:
            self._series.move_to_end(key)
        series.count += 1
        series.last_seen = now
        self._queue_if_due(key, series)

    async def run(self) -> None:
        """Sends recorded events until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._work())
            group.create_task(self._refresh())

    async def drain(self, seconds: float) -> None:
        """Waits at most `seconds` until the queue is empty. Called at shutdown."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._queue.join(), seconds)

    def refresh_due(self) -> None:
        """Queues series with new events, if their last refresh is long enough ago."""
        for key, series in list(self._series.items()):
            if series.count > series.sent_count:
                self._queue_if_due(key, series)

    def forget(self, there: Callable[[Hashable], bool]) -> None:
        """Forgets series that have ended, and series of deleted objects.

        there: returns True if an object exists. Unsent warnings about a deleted object are dropped; unsent events about
        actions on it are still sent.
        """
        ended = self._clock() - SERIES_REFRESH_SECONDS
        self._warned.forget(there, self._clock())
        for key, series in list(self._series.items()):
            # told: every event of the series was sent; vain: a warning, useless once its object is deleted
            told = not series.queued and series.count == series.sent_count
            vain = key.type == "Warning" and key.action in ("Scheduling", "Validating")
            if (told and series.sent_at < ended) or ((told or vain) and not there(key.regarding)):
                del self._series[key]

    # -- implementation -----------------------------------------------------------------------------------------------

    def _queue_if_due(self, key: _Key, series: _Series) -> None:
        """Queues a series, unless it is queued already or was sent a short time ago. If the queue is full, an event is
        dropped."""
        if series.queued or self._clock() - series.sent_at < SERIES_REFRESH_SECONDS:
            return
        if self._queue.full():
            self._on_lost("queue_full")
            lost = self._queue.make_room(key.regarding.namespace) or key
            if (left := self._series.get(lost)) is not None:
                left.queued = False
                if left.sent_count == 0:
                    # the series was never sent, so it is forgotten: the next equal event begins a new series
                    del self._series[lost]
            if lost is key:
                return
        self._queue.put_nowait(key)
        series.queued, series.due = True, self._clock() + HOLD_SECONDS

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(SERIES_REFRESH_SECONDS / 6)
            self.refresh_due()

    async def _work(self) -> None:
        """Sends queued events, one at a time, until cancelled."""
        while True:
            key = await self._queue.get()
            try:
                if (series := self._series.get(key)) is not None and series.queued:
                    await self._wait_for_bindings(series)
                    await self._send(key, series)
            except Exception as error:  # any failure to send an event is only logged
                self._on_lost("failed")
                known = isinstance(error, ApiError | Unreachable)
                logger.debug(
                    "event %s on %s not recorded: %s", key.reason, key.regarding.name, error, exc_info=not known
                )
            finally:
                self._queue.task_done()

    async def _wait_for_bindings(self, series: _Series) -> None:
        """Waits while Bindings are pending: the API server is a tenth faster without events between them."""
        while self._busy() and self._clock() < series.due:  # noqa: ASYNC110 - not an event
            await asyncio.sleep(HOLD_STEP_SECONDS)

    async def _send(self, key: _Key, series: _Series) -> None:
        """Sends a series: creates its Event object, or patches the count. Raises as the client does."""
        series.queued, series.sent_at = False, self._clock()
        before, series.sent_count = series.sent_count, series.count
        namespace = key.regarding.namespace or "default"
        if before:
            seen = {"count": series.count, "lastObservedTime": micro_time(series.last_seen)}
            try:
                path = EVENTS.path(namespace, series.name)
                content_type = "application/merge-patch+json"
                await self._client.request(
                    "PATCH", path, body={"series": seen}, content_type=content_type, bucket=self._bucket
                )
                self.sent += 1
                return
            except ApiError as error:
                if error.status != 404:
                    raise
                # the server deletes events after an hour; the series continues in a new object
                series.name = _new_name(key.regarding)
        await self._client.request("POST", EVENTS.path(namespace), body=self._body(key, series), bucket=self._bucket)
        self.sent += 1

    def _body(self, key: _Key, series: _Series) -> dict[str, Any]:
        """Returns a new Event object."""
        body: dict[str, Any] = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": series.name, "namespace": key.regarding.namespace or "default"},
            "eventTime": micro_time(series.last_seen),
            "reportingController": self._controller,
            "reportingInstance": self._instance,
            "type": key.type,
            "reason": key.reason,
            "action": key.action,
            "regarding": key.regarding,
            "note": key.note,
        }
        if key.related is not None:
            body["related"] = key.related
        if series.count > 1:
            body["series"] = {"count": series.count, "lastObservedTime": micro_time(series.last_seen)}
        return body


def _new_name(regarding: ObjectReference) -> str:
    return f"{regarding.name[:200].rstrip('-.')}.{random.getrandbits(64):016x}"
