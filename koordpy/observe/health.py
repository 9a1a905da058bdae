"""The HTTP endpoints of the process (kube-parity.md section 5): health, metrics, configuration, debugging.

What is healthy and what can be shown is told by callables: the rooms above know, this one only serves.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from aiohttp import web

from koordpy.api.names import split_address
from koordpy.observe.metrics import CONTENT_TYPE, Metrics

logger = logging.getLogger(__name__)

Check = Callable[[], str]
"""Returns what is wrong, or the empty string."""


class HealthServer:
    """Serves /healthz /livez /readyz /metrics /configz, /debug/NAME, and /debug, which lists these; port 0 takes a free
    port."""

    def __init__(
        self,
        address: str,
        *,
        metrics: Metrics,
        live: Mapping[str, Check],
        ready: Mapping[str, Check],
        configuration: Callable[[], Any],
        debug: Mapping[str, Callable[[], Any]],
    ) -> None:
        """`configuration` and `debug` callables return plain values, bytes that are JSON already, or a callable that
        gives such. They are called on the event loop, what they return is called and encoded in a thread."""
        self._host, self._port = split_address(address)
        self._metrics, self._live, self._ready = metrics, dict(live), dict(ready)
        self._configuration, self._debug = configuration, dict(debug)
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self) -> None:
        """Listens. Raises OSError where the address cannot be had."""
        app = web.Application()
        app.router.add_get("/healthz", self._alive)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._render)
        app.router.add_get("/configz", self._configz)
        app.router.add_get("/debug", self._list_debug)
        app.router.add_get("/debug/{name:.*}", self._debugged)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()
        self.port = int(self._runner.addresses[0][1])
        logger.info("health and metrics on port %d", self.port)

    async def stop(self) -> None:
        """Closes the port."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _alive(self, request: web.Request) -> web.Response:
        # answering is the proof: the event loop turns
        return web.Response(text="ok\n")

    async def _livez(self, request: web.Request) -> web.Response:
        return _verdict(self._live, "livez", verbose="verbose" in request.query)

    async def _readyz(self, request: web.Request) -> web.Response:
        return _verdict(self._ready, "readyz", verbose="verbose" in request.query)

    async def _render(self, request: web.Request) -> web.Response:
        body = self._metrics.render()
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def _configz(self, request: web.Request) -> web.Response:
        return await _json(self._configuration())

    async def _debugged(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if not name:
            return await self._list_debug(request)
        show = self._debug.get(name)
        if show is None:
            raise web.HTTPNotFound(text=f"no /debug/{name}; there is\n{self._pages()}")
        return await _json(show())

    async def _list_debug(self, request: web.Request) -> web.Response:
        return web.Response(text=self._pages())

    def _pages(self) -> str:
        return "".join(f"/debug/{name}\n" for name in sorted(self._debug))


def _verdict(checks: Mapping[str, Check], name: str, *, verbose: bool) -> web.Response:
    found = {check: ask() for check, ask in checks.items()}
    failed = any(found.values())
    if not failed and not verbose:
        return web.Response(text="ok\n")
    lines = [f"[-]{check} failed: {wrong}" if wrong else f"[+]{check} ok" for check, wrong in found.items()]
    lines.append(f"{name} check {'failed' if failed else 'passed'}")
    return web.Response(status=503 if failed else 200, text="\n".join(lines) + "\n")


async def _json(value: Any) -> web.Response:
    # a snapshot of a large cluster takes a while to encode: not on the loop that binds pods
    return web.Response(body=await asyncio.to_thread(_encode, value), content_type="application/json")


def _encode(value: Any) -> bytes:
    if callable(value):
        value = value()
    return value if isinstance(value, bytes) else orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)
