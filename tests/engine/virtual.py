# SPDX-License-Identifier: Apache-2.0
"""Time that passes only when nobody has anything to do, and a network inside the process: for thousands of schedules.

The scheduler, its client and the embedded API server are the real ones. What is left out is sockets: a request is
handed to the server as it would arrive, after a delay and whatever becomes of its sender, and so is its answer. The
planner runs at once, its answer comes later. So one seed is one schedule, whatever else the machine does.
"""

import asyncio
import contextlib
import functools
import gc
import heapq
import random
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from unittest import mock

import aiohttp
import orjson
from multidict import CIMultiDict
from yarl import URL

from koordpy.apiserver.api_calls import call_of
from koordpy.apiserver.embedded_server import ApiServer
from koordpy.apiserver.object_store import Store
from koordpy.apiserver.status_errors import StatusError, no_such_path
from koordpy.apiserver.watch_streams import Stream
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.api_errors import Unreachable
from koordpy.engine.client.credentials import ClusterAccess
from koordpy.observe.metrics import Metrics
from tests.faults import FaultyServer

T = TypeVar("T")
EPOCH_SECONDS = 1_767_225_600.0
"""2026-01-01T00:00:00Z."""
LATEST_SECONDS = 0.05
"""What is sent arrives after this long at the most."""
MANY_TIMERS = 100
"""Of more, those that were cancelled are thrown out once they are half of all."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with a time of its own. `steps` counts its turns, of which `on_step` hears.

    `on_result` hears what a thread has found, and says how much later that is told. What a thread leaves in
    `withhold` keeps its answer back until it is set.
    `on_send` hears of requests that leave a client: (client, method, path, body); `on_reply` of the answers that
    reach it: (client, method, path, status, body).
    `on_request` hears of requests at the API server: (client, method, path, `before` or `after` it is carried out).
    `history` is what came to pass at the API server: (time, request) and (time, change), each in the order of arrival.
    """

    def __init__(self, seed: int) -> None:
        self._passed = 0.0
        self.dice = random.Random(seed)
        self.steps = 0
        self.on_step: Callable[[int], None] | None = None
        self.on_request: Callable[[Wire, str, str, str], None] | None = None
        self.on_result: Callable[[Any], float] | None = None
        self.withhold: threading.Event | None = None
        self.on_send: Callable[[Wire, str, str, bytes | None], None] | None = None
        self.on_reply: Callable[[Wire, str, str, int, bytes], None] | None = None
        self.history: list[tuple[Any, ...]] = []
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        """Its own: of all that there are, most are of loops that have ended."""
        super().__init__()
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._passed

    def wall(self) -> float:
        """Epoch seconds."""
        return EPOCH_SECONDS + self._passed

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Calls it now; the answer takes its time."""
        future: asyncio.Future[T] = self.create_future()
        late = 0.0
        try:
            result = func(*args)
        except Exception as error:
            settle: Callable[[], None] = lambda error=error: future.done() or future.set_exception(error)  # noqa: E731
        else:
            settle = lambda: future.done() or future.set_result(result)  # noqa: E731
            late = self.on_result(result) if self.on_result is not None else 0.0
        hold, self.withhold = self.withhold, None

        def tell() -> None:
            if hold is not None and not hold.is_set():
                self.call_later(0.001, tell)
            else:
                settle()

        self.call_later(late + self.dice.choice((0.0, 0.002, 0.02)) * self.dice.random(), tell)
        return future

    def create_task(self, coro: Coroutine[Any, Any, T], **named: Any) -> asyncio.Task[T]:  # type: ignore[override]
        task = super().create_task(coro, **named)
        self.tasks.add(task)
        return task

    def _run_once(self) -> None:
        """One turn, as the base class takes it but for what comes from outside, which nothing does: the time until the
        next timer has passed at once."""
        self.steps += 1
        if self.on_step is not None:
            self.on_step(self.steps)
        timers: list[asyncio.TimerHandle] = self._scheduled
        ready: deque[asyncio.Handle] = self._ready
        if len(timers) > MANY_TIMERS and self._timer_cancelled_count > len(timers) / 2:
            timers = self._scheduled = [one for one in timers if not self._forgotten(one)]
            heapq.heapify(timers)
            self._timer_cancelled_count = 0
        else:
            while timers and timers[0]._cancelled:
                self._timer_cancelled_count -= 1
                heapq.heappop(timers)._scheduled = False
        if not ready and not self._stopping:
            assert timers, "everybody waits for ever"
            self._passed += max(0.0, timers[0]._when - self._passed)
        until = self._passed + self._clock_resolution
        while timers and timers[0]._when < until:
            due = heapq.heappop(timers)
            due._scheduled = False
            ready.append(due)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()
        handle = None  # type: ignore[assignment]

    @staticmethod
    def _forgotten(timer: asyncio.TimerHandle) -> bool:
        """Whether a timer is cancelled; then it is no longer among the timers."""
        if timer._cancelled:
            timer._scheduled = False
        return timer._cancelled


def run(schedule: Callable[[VirtualLoop], Coroutine[Any, Any, T]], seed: int) -> T:
    """Runs one schedule from its beginning to its end."""
    random.seed(seed)  # jitter of back-offs
    loop = VirtualLoop(seed)
    try:
        return loop.run_until_complete(schedule(loop))
    finally:
        loop.run_until_complete(_end(loop))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


@contextlib.contextmanager
def one_after_the_other() -> Iterator[None]:
    """For many schedules in a row: looking for garbage, above all among the modules, takes a quarter of their time,
    making metrics anew a tenth; all of them count in the same."""
    threshold = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, *threshold[1:])
    try:
        with mock.patch("koordpy.engine.scheduler.Metrics", functools.cache(Metrics)):
            yield
    finally:
        gc.set_threshold(*threshold)
        gc.unfreeze()


async def _end(loop: VirtualLoop) -> None:
    """Cancels what is left."""
    left = {task for task in loop.tasks if not task.done()} - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


@contextlib.asynccontextmanager
async def virtual_server(seed: int) -> AsyncIterator[FaultyServer]:
    """An API server in virtual time that listens nowhere."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    server = FaultyServer(store=Store(clock=loop.wall, seed=seed))
    server.store.listeners.append(
        lambda shelf, change: loop.history.append((loop.time(), change.kind, shelf, change.entry.raw))
    )
    try:
        yield server
    finally:
        await server.stop()


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of what waits for nobody: a task would take three turns of the loop for it."""
    try:
        work.send(None)
    except StopIteration as done:
        return cast(T, done.value)
    raise AssertionError("it waits")


class _Request:
    """What the server's handlers read of a request."""

    def __init__(self, method: str, url: URL, data: bytes | None, content_type: str) -> None:
        self.method, self.url, self.raw_path = method, url, url.raw_path_qs
        self.headers = {"Content-Type": content_type, "Accept": "application/json"}
        self.transport = SimpleNamespace(abort=self._abort)
        self.dropped = False
        self.data = data or b""

    async def read(self) -> bytes:
        return self.data

    def _abort(self) -> None:
        self.dropped = True


class _Answer:
    """What the client reads of an answer."""

    def __init__(self, request: "_Request", status: int, headers: Any, body: bytes, content: Any = None) -> None:
        self.status, self.headers, self._body, self.content = status, headers, body, content
        self.method, self.url = request.method, request.url

    async def read(self) -> bytes:
        return self._body

    def release(self) -> None:
        if self.content is not None:
            self.content.close()


def _settle(reply: "asyncio.Future[T]", answer: T) -> None:
    """The first answer counts."""
    if not reply.done():
        reply.set_result(answer)


class _Watched:
    """The body of a watch; chunks are late in their order."""

    def __init__(self, wire: "Wire", server: ApiServer, raw_path: str) -> None:
        call = call_of(server.store.registry, raw_path)
        if call is None:
            raise no_such_path()
        self._wire, self._stream = wire, Stream(server.store, call, bookmark_seconds=10.0)
        self._chunks = self._stream.chunks()

    async def readany(self) -> bytes:
        try:
            chunk = await anext(self._chunks, b"")
            await asyncio.sleep(self._wire.delay())
        except asyncio.CancelledError:
            await self._chunks.aclose()
            raise
        if self._wire.cut or (not chunk and self._stream.aborted):
            raise aiohttp.ClientPayloadError("cut")
        return chunk

    def close(self) -> None:
        self._stream.close()


class Wire(ApiClient):
    """A client whose requests reach an API server in this process. `cut` parts it from the server."""

    def __init__(self, server: FaultyServer, *, timeout_seconds: float = 2.0) -> None:
        super().__init__(ClusterAccess("http://inside"), qps=0, timeout_seconds=timeout_seconds)
        self._server = server
        self._loop = asyncio.get_running_loop()
        assert isinstance(self._loop, VirtualLoop)
        self._dice = random.Random(self._loop.dice.random())
        self._under_way: dict[_Request, asyncio.Future[_Answer | None]] = {}
        self.latest_seconds = LATEST_SECONDS
        self.cut = False
        self.dead = False
        """Its process is killed: nothing is sent any more, nothing comes back."""

    @property
    def busy(self) -> bool:
        """Whether answers are waited for."""
        return any(not reply.done() for reply in self._under_way.values())

    def delay(self) -> float:
        """How long something is on its way: mostly next to nothing."""
        shade = self._dice.random()
        return 0.0005 if shade < 0.7 else self.latest_seconds * (shade - 0.7)

    async def _send(
        self,
        method: str,
        url: URL,
        data: bytes | None,
        content_type: str,
        limits: aiohttp.ClientTimeout,
        *,
        rejected: bool,
    ) -> Any:
        watching = "watch=true" in url.raw_query_string
        if self.dead:
            await asyncio.Event().wait()
        if self._loop.on_send is not None:
            self._loop.on_send(self, method, url.path, data)
        if self.cut:
            await asyncio.sleep(self.delay())
            raise Unreachable(f"{method} {url.path}: cut", sent=False)
        request = _Request(method, url, data, content_type)
        reply: asyncio.Future[_Answer | None] = self._loop.create_future()
        # what is sent arrives, whatever becomes of the sender
        self._under_way[request] = reply
        self._loop.call_later(self.delay(), self._arrive, request, reply, watching)
        patience = self._loop.call_later(limits.total, _settle, reply, None) if limits.total else None
        try:
            answer = await reply
        finally:
            if patience is not None:
                patience.cancel()
        if answer is None:
            raise Unreachable(f"{method} {url.path}: no answer")
        if request.dropped or self.cut:
            raise Unreachable(f"{method} {url.path}: dropped")
        if self._loop.on_reply is not None and not watching:
            self._loop.on_reply(self, method, url.path, answer.status, await answer.read())
        return answer

    def _arrive(self, request: _Request, reply: "asyncio.Future[_Answer | None]", watching: bool) -> None:
        self._loop.history.append((self._loop.time(), request.method, request.raw_path, request.data))
        if watching:
            self._deliver(request, reply, self._serve_watch(request))
            return
        self._tell(request, "before")
        work = self._server.answer(request)  # type: ignore[arg-type]
        if self._server.faults.is_prompt:
            self._answered(request, reply, at_once(work))
            return
        task = self._loop.create_task(work)
        task.add_done_callback(lambda done: done.cancelled() or self._answered(request, reply, done.result()))

    def _answered(self, request: _Request, reply: "asyncio.Future[_Answer | None]", answer: Any) -> None:
        body = bytes(answer.body or b"")
        self._tell(request, "after")
        self._deliver(request, reply, _Answer(request, answer.status, answer.headers, body))

    def _tell(self, request: _Request, moment: str) -> None:
        if self._loop.on_request is not None:
            self._loop.on_request(self, request.method, request.raw_path.partition("?")[0], moment)

    def _deliver(self, request: _Request, reply: "asyncio.Future[_Answer | None]", answer: _Answer) -> None:
        del self._under_way[request]
        self._loop.call_later(self.delay(), _settle, reply, answer)

    def _serve_watch(self, request: _Request) -> _Answer:
        fault = self._server.faults.drawn("WATCH", request.raw_path.partition("?")[0])
        try:
            if fault is not None:
                raise fault.error() if isinstance(fault.effect, int) else StatusError(503, "dropped (injected fault)")
            return _Answer(request, 200, {}, b"", _Watched(self, self._server, request.raw_path))
        except StatusError as error:
            return _Answer(request, error.code, CIMultiDict(), orjson.dumps(error.status()))
