"""The HTTP endpoints of the process (kube-parity.md section 5): health, metrics, configuration, debugging.

What is healthy and what can be shown is told by callables: the rooms above know, this one only serves.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from ipaddress import ip_address
from typing import Any

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from koordpy.api.object_names import split_address
from koordpy.observe.connection_limits import Doors
from koordpy.observe.metrics import CONTENT_TYPE, Metrics

logger = logging.getLogger(__name__)

Check = Callable[[], str]
"""Returns what is wrong, or the empty string."""
Guard = Callable[[web.Request], Awaitable[str]]
"""Why a request may not see /debug and /configz, which show what tenants run; the empty string where it may."""

METRICS_SECONDS = 1.0
"""Metrics are rendered so often at most, whoever asks."""
SHOWING = 4
"""Requests for /debug and /configz that may wait for one another; more are turned away."""
SHOW_SECONDS = 60.0
"""A reader that takes longer for one answer is let go, for those who wait."""
CHUNK = 1 << 18


async def from_loopback(request: web.Request) -> str:
    """Lets in who comes over the loopback interface, as `kubectl port-forward` does."""
    try:
        local = ip_address(request.remote or "").is_loopback
    except ValueError:
        local = False
    return "" if local else "only over the loopback interface, as kubectl port-forward does (debugAccess)"


class HealthServer:
    """Serves /healthz /livez /readyz, /debug/NAME, /debug, which lists these, and /metrics and /configz where these are
    given; port 0 takes a free port."""

    def __init__(
        self,
        address: str,
        *,
        live: Mapping[str, Check],
        ready: Mapping[str, Check],
        metrics: Metrics | None = None,
        configuration: Callable[[], Any] | None = None,
        debug: Mapping[str, Callable[[], Any]] | None = None,
        handlers: Mapping[str, Handler] | None = None,
        guard: Guard = from_loopback,
    ) -> None:
        """guard: who may see /debug and /configz. `configuration` and `debug` callables return plain values, bytes that
        are JSON already, or a callable that gives such. They are called on the event loop, what they return is called
        and encoded in a thread. handlers: pages of /debug that answer for themselves."""
        self._host, self._port = split_address(address)
        self._metrics, self._live, self._ready = metrics, dict(live), dict(ready)
        self._configuration, self._debug = configuration, dict(debug or {})
        self._handlers = dict(handlers or {})
        self._guard = guard
        self._rendered = (-METRICS_SECONDS, b"")
        self._showing, self._waiting = asyncio.Lock(), 0
        self._runner: web.AppRunner | None = None
        self._doors = Doors()
        self.port = 0

    async def start(self) -> None:
        """Listens. Raises OSError where the address cannot be had."""
        app = web.Application()
        app.router.add_get("/healthz", self._alive)
        app.router.add_get("/livez", partial(_verdict, self._live))
        app.router.add_get("/readyz", partial(_verdict, self._ready))
        if self._metrics is not None:
            app.router.add_get("/metrics", self._render)
        if self._configuration is not None:
            app.router.add_get("/configz", partial(self._show, self._configuration))
        app.router.add_get("/debug", self._list_debug)
        app.router.add_get("/debug/{name:.*}", self._debugged)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5, keepalive_timeout=15.0)
        await self._runner.setup()
        assert self._runner.server is not None
        self.port = await self._doors.open(self._runner.server, self._host, self._port)
        logger.info("health%s on port %d", " and metrics" if self._metrics is not None else "", self.port)

    async def stop(self) -> None:
        """Closes the port."""
        self._doors.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _alive(self, request: web.Request) -> web.Response:
        # answering is the proof: the event loop turns
        return web.Response(text="ok\n")

    async def _render(self, request: web.Request) -> web.Response:
        assert self._metrics is not None
        if time.monotonic() - self._rendered[0] >= METRICS_SECONDS:
            self._rendered = time.monotonic(), self._metrics.render()
        return web.Response(body=self._rendered[1], headers={"Content-Type": CONTENT_TYPE})

    async def _debugged(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if not name:
            return await self._list_debug(request)
        if (handler := self._handlers.get(name)) is not None:
            await self._let_in(request)
            return await handler(request)
        show = self._debug.get(name)
        if show is None:
            raise web.HTTPNotFound(text=f"no /debug/{name}; there is\n{self._pages()}")
        return await self._show(show, request)

    async def _show(self, show: Callable[[], Any], request: web.Request) -> web.StreamResponse:
        """One answer at a time, in pieces: that of a large cluster has tens of megabytes."""
        await self._let_in(request)
        if self._waiting >= SHOWING:
            raise web.HTTPTooManyRequests(text=f"{request.path}: others are being answered\n")
        self._waiting += 1
        response: web.StreamResponse | None = None
        try:
            async with self._showing, asyncio.timeout(SHOW_SECONDS):
                # a snapshot of a large cluster takes a while to encode: not on the loop that binds pods
                body = memoryview(await asyncio.to_thread(_encode, show()))
                response = web.StreamResponse(headers={"Content-Type": "application/json"})
                response.content_length = len(body)
                await response.prepare(request)
                for start in range(0, len(body), CHUNK):
                    await response.write(body[start : start + CHUNK])
                await response.write_eof()
                return response
        except TimeoutError:
            if response is not None:
                raise  # the answer has begun: all that is left is to close the connection
            raise web.HTTPServiceUnavailable(text=f"{request.path}: not ready within {SHOW_SECONDS:g} s\n") from None
        finally:
            self._waiting -= 1

    async def _let_in(self, request: web.Request) -> None:
        if wrong := await self._guard(request):
            raise web.HTTPForbidden(text=f"{request.path}: {wrong}\n")

    async def _list_debug(self, request: web.Request) -> web.Response:
        return web.Response(text=self._pages())

    def _pages(self) -> str:
        return "".join(f"/debug/{name}\n" for name in sorted((*self._debug, *self._handlers)))


async def _verdict(checks: Mapping[str, Check], request: web.Request) -> web.Response:
    found, name = {check: ask() for check, ask in checks.items()}, request.path.removeprefix("/")
    failed = any(found.values())
    if not failed and "verbose" not in request.query:
        return web.Response(text="ok\n")
    lines = [f"[-]{check} failed: {wrong}" if wrong else f"[+]{check} ok" for check, wrong in found.items()]
    lines.append(f"{name} check {'failed' if failed else 'passed'}")
    return web.Response(status=503 if failed else 200, text="\n".join(lines) + "\n")


def _encode(value: Any) -> bytes:
    if callable(value):
        value = value()
    return value if isinstance(value, bytes) else orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)
