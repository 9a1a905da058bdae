# SPDX-License-Identifier: Apache-2.0
"""A proxy on loopback that passes calls on to an API server and keeps what was asked, in the words of RBAC.

A scheduler whose kubeconfig names the proxy shows every call that it makes, kopf's and its own, with the answer. Plain
HTTP in, so that no certificate has to be made; the caller's token goes on as it is.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import aiohttp
from aiohttp import web

HOP_BY_HOP = {"connection", "host", "transfer-encoding", "content-length", "keep-alive"}
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


@dataclass(frozen=True)
class Call:
    """One request. `resource` is empty where the path names none (/apis, /version); `name` is empty for collections."""

    method: str
    path: str
    status: int
    verb: str
    group: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def refused(self) -> bool:
        return self.status in (401, 403)

    @property
    def right(self) -> tuple[str, str, str]:
        """(group, resource, verb), as a rule names it."""
        return (self.group, self.resource, self.verb)


def call_of(method: str, path: str, *, watch: bool, status: int) -> Call:
    """A request as RBAC sees it."""
    parts = path.strip("/").split("/")
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1] if len(parts) > 1 else "", parts[3:])
    if parts[0] not in ("api", "apis") or not rest:
        return Call(method, path, status, method.lower())
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = (*rest, "", "")[:3]
    if method == "GET":
        verb = "get" if name else "watch" if watch else "list"
    elif method == "DELETE":
        verb = "delete" if name else "deletecollection"
    else:
        verb = VERBS[method]
    resource = f"{plural}/{subresource}" if subresource else plural
    return Call(method, path, status, verb, group, resource, namespace, name)


@dataclass(frozen=True)
class Instead:
    """An answer in place of the server's: `status`, after the call was carried out or without that."""

    status: int
    carried_out: bool = False
    retry_after: int | None = None


Meddler = Callable[[str, str], Awaitable[Instead | None]]
"""(method, path) of a call before it is passed on -> what to answer instead, None for the server's answer."""


class Recorder:
    """`async with` it; `calls` are in the order of their answers. `meddle` hears of each call that writes first."""

    def __init__(self, server: str, ca: Path) -> None:
        self.calls: list[Call] = []
        self.meddle: Meddler | None = None
        self.url = ""
        self._server, self._ca = server, ca
        self._writes: set[asyncio.Task[None]] = set()

    def kubeconfig(self, folder: Path, token: str) -> Path:
        """Writes and returns a kubeconfig that leads here."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "recorded",
            "clusters": [{"name": "recorded", "cluster": {"server": self.url}}],
            "users": [{"name": "account", "user": {"token": token}}],
            "contexts": [{"name": "recorded", "context": {"cluster": "recorded", "user": "account"}}],
        }
        file = folder / "recorded.kubeconfig"
        file.touch(mode=0o600)
        file.write_text(json.dumps(config))
        return file

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=ssl.create_default_context(cafile=str(self._ca))),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        # A watch ends here when its caller goes, not with the next event.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*self._writes, return_exceptions=True)
        await self._runner.cleanup()
        await self._session.close()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        body = await request.read()
        instead = None
        if self.meddle is not None and request.method != "GET":
            instead = await self.meddle(request.method, request.path)
        if instead is not None:
            if instead.carried_out:
                # the call arrives whatever becomes of its caller, who may be dead by now
                write = asyncio.create_task(self._carry_out(request, headers, body))
                self._writes.add(write)
                write.add_done_callback(self._writes.discard)
                await asyncio.shield(write)
            return _answer(instead)
        async with self._session.request(
            request.method, f"{self._server}{request.path_qs}", headers=headers, data=body or None
        ) as answer:
            watch = request.query.get("watch", "") in ("1", "true", "True")
            self.calls.append(call_of(request.method, request.path, watch=watch, status=answer.status))
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response

    async def _carry_out(self, request: web.Request, headers: dict[str, str], body: bytes) -> None:
        url = f"{self._server}{request.path_qs}"
        async with self._session.request(request.method, url, headers=headers, data=body or None) as answer:
            await answer.read()
            self.calls.append(call_of(request.method, request.path, watch=False, status=answer.status))


def _answer(instead: Instead) -> web.Response:
    headers = {"Retry-After": str(instead.retry_after)} if instead.retry_after is not None else {}
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": instead.status, "message": "weather"}
    return web.json_response(status, status=instead.status, headers=headers)
