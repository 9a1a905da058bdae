# SPDX-License-Identifier: Apache-2.0
"""Serves the HTTP endpoints of the process: health, metrics, configuration and debugging (kube-parity.md 5).

Callables provide the health checks and the documents. This module only serves them.
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
from koordpy.observe.connection_limits import ConnectionLimiter
from koordpy.observe.metrics import CONTENT_TYPE, Metrics

logger = logging.getLogger(__name__)

Check = Callable[[], str]
"""Returns the reason why the check fails; empty if it passes."""
Guard = Callable[[web.Request], Awaitable[str]]
"""Returns the reason why a request may not read /debug and /configz; empty if it may. The guard is needed because these
show the workloads of all tenants."""

METRICS_SECONDS = 1.0
"""Minimum time in seconds between two renderings of the metrics; requests in between get the same text."""
SHOWING = 4
"""Maximum number of concurrent requests for /debug and /configz; more are rejected."""
SHOW_SECONDS = 60.0
"""Timeout of one answer in seconds, so that a slow client does not block other requests."""
CHUNK = 1 << 18
"""Bytes of an answer that are written at once."""


async def from_loopback(request: web.Request) -> str:
    """Allows requests over the loopback interface only, as `kubectl port-forward` sends them."""
    try:
        local = ip_address(request.remote or "").is_loopback
    except ValueError:
        local = False
    return "" if local else "only served on the loopback interface: use kubectl port-forward (see debugAccess)"


class HealthServer:
    """Serves /healthz, /livez, /readyz, /debug with the list of /debug/NAME, and optionally /metrics and /configz.

    Port 0 means a free port.
    """

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
        """guard: decides which requests may read /debug and /configz. handlers: /debug pages with a separate handler.

        The callables in `configuration` and `debug` are called on the event loop. They return plain values, bytes that
        are JSON, or a function that returns one of these; the function is called in a thread, and its result encoded
        there.
        """
        self._host, self._port = split_address(address)
        self._metrics, self._live, self._ready = metrics, dict(live), dict(ready)
        self._configuration, self._debug = configuration, dict(debug or {})
        self._handlers = dict(handlers or {})
        self._guard = guard
        self._rendered = (-METRICS_SECONDS, b"")
        self._showing, self._waiting = asyncio.Lock(), 0
        self._limiter = ConnectionLimiter()
        self.port = 0

    async def start(self) -> None:
        """Listens on the address. Raises OSError if it cannot be used."""
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
        self.port = await self._limiter.serve(app, self._host, self._port, shutdown_timeout=0.5, keepalive_timeout=15.0)
        logger.info(
            "health checks%s are served on port %d", " and metrics" if self._metrics is not None else "", self.port
        )

    async def stop(self) -> None:
        """Closes the port."""
        await self._limiter.stop()

    async def _alive(self, request: web.Request) -> web.Response:
        # the answer proves that the event loop is running
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
            raise web.HTTPNotFound(text=f"no page /debug/{name}; pages:\n{self._pages()}")
        return await self._show(show, request)

    async def _show(self, show: Callable[[], Any], request: web.Request) -> web.StreamResponse:
        """Answers one request at a time, in chunks, because the answer can have tens of megabytes on a large
        cluster."""
        await self._let_in(request)
        if self._waiting >= SHOWING:
            raise web.HTTPTooManyRequests(text=f"{request.path}: too many concurrent requests\n")
        self._waiting += 1
        response: web.StreamResponse | None = None
        try:
            async with self._showing, asyncio.timeout(SHOW_SECONDS):
                # encoding a large snapshot takes long, so it runs outside of the event loop, which binds pods
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
                raise  # the answer has begun, so the connection can only be closed
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
