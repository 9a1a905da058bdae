# SPDX-License-Identifier: Apache-2.0
"""Faults on purpose: what a real API server does on a bad day, so that clients can be tried against it.

Which requests a fault hits is told by method and path (shell wildcards), how often by a number or by a share drawn
from a seeded generator, so a test that fails fails again.
"""

import asyncio
import random
import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from aiohttp import web

from koordpy.apiserver.api_calls import refusal
from koordpy.apiserver.embedded_server import ApiServer
from koordpy.apiserver.object_store import Store
from koordpy.apiserver.status_errors import StatusError

_WATCHING = re.compile(r"(?:^|&)watch=(?:1|[Tt]rue)(?:&|$)")

Effect = Literal["timeout", "drop", "garbage"]


@dataclass(slots=True)
class InjectedFault:
    """One kind of failure on one route."""

    effect: int | Effect
    """An HTTP status, `timeout` (no answer ever), `drop` (the connection is cut), or `garbage` (200, and a page of
    somebody in between)."""

    method: str = "*"
    path: str = "*"
    times: int | None = None
    """How many requests still fail; None = no end."""

    share: float = 1.0
    after: bool = False
    """The request is carried out first: the client does not learn that it succeeded."""

    retry_after: int | None = None
    message: str = ""
    """Of the answer; empty for one that suits the status."""
    hits: int = field(default=0)
    """How many requests it failed so far."""

    def error(self) -> StatusError:
        """The answer of an HTTP status."""
        code = self.effect
        assert isinstance(code, int)
        verb = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}.get(self.method, "list")
        message = {
            403: f'{self.path} is forbidden: User "koordpy" cannot {verb} resource (injected fault)',
            409: "Operation cannot be fulfilled: the object has been modified (injected fault)",
            429: "The apiserver is currently unable to handle the request (injected fault)",
            410: "The provided resource version is too old (injected fault)",
        }.get(code, "An error on the server has prevented the request from succeeding (injected fault)")
        return StatusError(code, self.message or message, retry_after=self.retry_after)


class Faults:
    """The knobs of one server."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.latency_seconds = 0.0
        """Added to every request but watches."""
        self._rules: list[InjectedFault] = []
        self._random = random.Random(0)
        self._running = asyncio.Event()
        self._running.set()

    @property
    def is_prompt(self) -> bool:
        """Whether no request has to wait."""
        waits = self.latency_seconds or any(one.effect == "timeout" and one.times != 0 for one in self._rules)
        return self._running.is_set() and not waits

    def seed(self, seed: int) -> None:
        """Start the generator of shares anew."""
        self._random = random.Random(seed)

    def fail(
        self,
        effect: int | Effect,
        *,
        method: str = "*",
        path: str = "*",
        times: int | None = None,
        share: float = 1.0,
        after: bool = False,
        retry_after: int | None = None,
        message: str = "",
    ) -> InjectedFault:
        """Let requests of a method and path (wildcards: `*/binding`) fail: the next `times` ones, or a share of all.

        `method` WATCH means watches, which GET does not. Returns the fault, whose `hits` count.
        """
        fault = InjectedFault(effect, method, path, times, share, after, retry_after, message)
        self._rules.append(fault)
        return fault

    def clear(self) -> None:
        """No faults any more; a paused server goes on."""
        self._rules.clear()
        self.latency_seconds = 0.0
        self.resume()

    def pause(self) -> None:
        """Let every request wait until `resume`."""
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    def drop_watches(self, resource: str | None = None, *, abort: bool = False) -> int:
        """End the open watches, of one resource or of all; with `abort` their connections are cut.

        Returns how many there were.
        """
        return self._store.end_watches(resource, abort=abort)

    def expire_versions(self) -> None:
        """Forget all history: watches and continue tokens from before now get 410. Open watches go on."""
        store = self._store
        store.version += 1
        for resource in store.registry:
            shelf = store.shelf(resource)
            shelf.horizon = store.version
            shelf._changes.clear()
        store._pages.clear()

    async def wait(self, *, watch: bool) -> None:
        """What a request waits before it is looked at."""
        if not self._running.is_set():
            await self._running.wait()
        if self.latency_seconds and not watch:
            await asyncio.sleep(self.latency_seconds)

    def drawn(self, method: str, path: str) -> InjectedFault | None:
        """The fault that hits a request, if any."""
        for fault in self._rules:
            if fault.times == 0 or fault.method not in ("*", method) or not fnmatchcase(path, fault.path):
                continue
            if fault.share < 1.0 and self._random.random() >= fault.share:
                continue
            if fault.times is not None:
                fault.times -= 1
            fault.hits += 1
            return fault
        return None


class FaultyServer(ApiServer):
    """An embedded API server that has bad days."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.faults = Faults(self.store)
        self._stopping = asyncio.Event()

    async def start(self, **settings: Any) -> None:
        self._stopping.clear()
        await super().start(**settings)

    async def stop(self) -> None:
        self._stopping.set()
        self.faults.clear()
        await super().stop()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer of one request, faults included."""
        path, _, query = request.raw_path.partition("?")
        watching = request.method == "GET" and _WATCHING.search(query) is not None
        method = "WATCH" if watching else request.method
        await self.faults.wait(watch=watching)
        fault = self.faults.drawn(method, path)
        if fault is None:
            return await super().answer(request)
        if fault.after:
            await super().answer(request)
        return await self._fail(request, fault)

    async def _fail(self, request: web.BaseRequest, fault: InjectedFault) -> web.StreamResponse:
        if fault.effect == "timeout":
            await self._stopping.wait()
        if fault.effect in ("timeout", "drop"):
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=503)
        if fault.effect == "garbage":
            return web.Response(text="<html>Please log in (injected fault)</html>", content_type="text/html")
        return refusal(fault.error())
