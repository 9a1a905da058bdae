# SPDX-License-Identifier: Apache-2.0
"""An API server that says what a test tells it to, faults of the protocol included."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.credentials import ClusterAccess

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Seen:
    verb: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class ScriptedServer:
    """`on("LIST", path, replies...)` queues replies; the last one is given again and again.

    Verbs are HTTP methods, but LIST and WATCH for a GET with limit and with watch.
    """

    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    scripts: dict[tuple[str, str], list[Handler]] = field(default_factory=dict)

    def on(self, verb: str, path: str, *replies: Handler) -> None:
        self.scripts.setdefault((verb, path), []).extend(replies)

    def sent(self, verb: str) -> list[Seen]:
        return [request for request in self.seen if request.verb == verb]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        verb = request.method
        if verb == "GET" and "watch" in request.query:
            verb = "WATCH"
        elif verb == "GET" and "limit" in request.query:
            verb = "LIST"
        text = await request.text()
        body = json.loads(text) if text else None
        self.seen.append(Seen(verb, request.path, dict(request.query), dict(request.headers), body))
        script = self.scripts.get((verb, request.path))
        if not script:
            return await status(404, "NotFound", "not in the script")(request)
        reply = script.pop(0) if len(script) > 1 else script[0]
        return await reply(request)


@asynccontextmanager
async def scripted_server() -> AsyncIterator[ScriptedServer]:
    server = ScriptedServer()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    server.url = f"http://127.0.0.1:{port}"
    try:
        yield server
    finally:
        await runner.cleanup()


def client_of(server: ScriptedServer, **options: Any) -> ApiClient:
    return ApiClient(ClusterAccess(server.url), **{"qps": 0, **options})


def reply(body: Any, code: int = 200, headers: dict[str, str] | None = None) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=code, headers=headers)

    return handler


def text(body: str, code: int = 200) -> Handler:
    """What a proxy in between may say in the API server's place."""

    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(text=body, status=code, content_type="text/html")

    return handler


def status(code: int, reason: str = "", message: str = "", headers: dict[str, str] | None = None) -> Handler:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message, "details": {"kind": "pods"}}
    return reply(body, code, headers)


def listing(*items: dict[str, Any], version: str = "10", token: str = "") -> Handler:
    return reply({"kind": "List", "metadata": {"resourceVersion": version, "continue": token}, "items": list(items)})


def drop(after: Callable[[], None] | None = None) -> Handler:
    """Carries out `after`, then cuts the connection without a reply."""

    async def handler(request: web.Request) -> web.StreamResponse:
        if after is not None:
            after()
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    return handler


def event(kind: str, obj: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": obj}, separators=(",", ":")).encode() + b"\n"


def watching(*chunks: bytes, then: str = "hold") -> Handler:
    """A watch that sends chunks as they are; then it holds still, ends in order, or is cut off."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        if then == "hold":
            await asyncio.sleep(30)
        elif then == "cut":
            assert request.transport is not None
            request.transport.abort()
        return response

    return handler


def pod(name: str, version: str, *, uid: str = "", node: str = "", **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid or f"uid-{name}",
            "resourceVersion": version,
            **metadata,
        },
        "spec": {"nodeName": node, "containers": [{"name": "main"}]} if node else {"containers": [{"name": "main"}]},
    }


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Waits for something that will come true; fails the test if it does not, with time to spare for a busy machine."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - conditions are plain functions
            await asyncio.sleep(0.005)
