# SPDX-License-Identifier: Apache-2.0
"""Serves the web UI over HTTP: the page, its document, the stream of changes, and explanations of single units.

An error is answered with one line of text. Must not write to the cluster.
"""

import asyncio
import base64
import contextlib
import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from koordpy.api.object_names import split_address
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.api_errors import ApiError, Unreachable
from koordpy.view.live_documents import CHANGE, WHOLE, Event, Feed, NotReadyError, UnknownUnitError
from koordpy.view.view_names import name_of, path_of

DOCUMENT, EVENTS, HELP = "view", "view/events", "view/help"
"""Paths that a scheduler serves below /debug/, and `koordpy view` below /."""
WRITE_SECONDS = 30.0
"""Timeout in seconds for sending to a listener; after it, the listener's connection is closed."""
LISTENERS = 16
"""Maximum number of concurrent listeners; more are rejected."""
CHUNK = 1 << 18
CONNECT_SECONDS = 5.0
SILENT_SECONDS = 60.0
"""Seconds without data after which the connection to a scheduler counts as lost; keep-alives come every 10 seconds."""
LINE_BYTES = 1 << 30
"""Maximum size of an event of a scheduler, in bytes."""
ASK_SECONDS = 5.0
"""Minimum seconds between two requests for a tenant's document."""


class SourceError(Exception):
    """The source has no document; `status` is an HTTP status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Pages:
    """Handlers that answer requests from one source."""

    def __init__(self, source: "Source") -> None:
        self._source, self._listeners = source, 0

    def handlers(self) -> dict[str, Handler]:
        return {DOCUMENT: self.document, EVENTS: self.events, HELP: self.explain}

    async def document(self, request: web.Request) -> web.StreamResponse:
        """Answers with the document, compressed if the client accepts that."""
        response = web.Response(body=await self._asked(self._source.document()), content_type="application/json")
        response.enable_compression()
        return response

    async def explain(self, request: web.Request) -> web.StreamResponse:
        """Answers with the changes that would help the unit in the query parameter `unit`."""
        unit = request.query.get("unit", "")
        return web.Response(body=await self._asked(self._source.explain(unit)), content_type="application/json")

    async def _asked(self, answer: Awaitable[bytes]) -> bytes:
        try:
            return await answer
        except (NotReadyError, UnknownUnitError, SourceError) as fault:
            raise _refused(fault) from None

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Sends server-sent events: first `whole`, then `change`; a comment is a keep-alive."""
        if self._listeners >= LISTENERS:
            raise web.HTTPTooManyRequests(text=f"too many open pages (at most {LISTENERS})\n")
        response: web.StreamResponse | None = None
        self._listeners += 1
        try:
            async with contextlib.aclosing(self._source.events()) as events:
                async for name, body in events:
                    if response is None:
                        response = web.StreamResponse(
                            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
                        )
                        await response.prepare(request)
                    async with asyncio.timeout(WRITE_SECONDS):
                        await _send(response, name, body)
        except (NotReadyError, SourceError) as fault:
            if response is None:
                raise _refused(fault) from None
            await _send(response, "fault", str(fault).encode())
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()  # drops the unsent data
        except ConnectionError:
            pass
        finally:
            self._listeners -= 1
        assert response is not None
        return response


async def _send(response: web.StreamResponse, name: str, body: bytes) -> None:
    if not name:
        await response.write(b": all is well\n\n")
        return
    await response.write(f"event: {name}\ndata: ".encode())
    view = memoryview(body)
    for start in range(0, len(view), CHUNK):
        await response.write(view[start : start + CHUNK])
    await response.write(b"\n\n")


def _refused(fault: Exception) -> web.HTTPException:
    text = f"{fault}\n"
    if isinstance(fault, UnknownUnitError):
        return web.HTTPNotFound(text=text)
    if isinstance(fault, SourceError) and fault.status == 403:
        return web.HTTPForbidden(text=text)
    return web.HTTPBadGateway(text=text) if isinstance(fault, SourceError) else web.HTTPServiceUnavailable(text=text)


# -- the page ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _page() -> tuple[str, str]:
    """Returns the page and its Content-Security-Policy, which allows only the page's own script."""
    text = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'"
    )
    return text.replace("POLICY", policy, 1), policy


def page_with(document: bytes) -> str:
    """Returns the page as one file with an embedded document, which needs no network."""
    inside = document.decode().replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return _page()[0].replace(
        "<!-- DOCUMENT -->", f'<script id="document" type="application/json">{inside}</script>', 1
    )


async def _show_page(_: web.Request) -> web.Response:
    text, policy = _page()
    headers = {
        "Content-Security-Policy": f"{policy}; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    return web.Response(text=text, content_type="text/html", headers=headers)


@web.middleware
async def _local_names(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Rejects requests for a host name that is not loopback.

    Otherwise a foreign web page could read the cluster by DNS rebinding.
    """
    host = request.url.host or ""
    with contextlib.suppress(ValueError):
        if ip_address(host).is_loopback:
            return await handler(request)
    if host == "localhost":
        return await handler(request)
    raise web.HTTPForbidden(text=f"host name {host} is not allowed: use 127.0.0.1 or localhost\n")


@contextlib.asynccontextmanager
async def page_of(source: "Source", address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    """Serves the page on a loopback address, and yields its URL. Port 0 means a free port.

    Raises ValueError if the address is not on the loopback interface, OSError if it cannot be used.
    """
    given, port = split_address(address)
    host = given or ""
    try:
        local = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        raise ValueError(
            f"{address} is not on the loopback interface: use ssh -L or kubectl port-forward for access from elsewhere"
        )
    app = web.Application(middlewares=[_local_names])
    app.router.add_get("/", _show_page)
    for path, handler in Pages(source).handlers().items():
        app.router.add_get(f"/{path}", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        name = f"[{host}]" if ":" in host else host
        yield f"http://{name}:{int(runner.addresses[0][1])}/"
    finally:
        await runner.cleanup()


# -- a remote scheduler -----------------------------------------------------------------------------------------------


class Upstream:
    """Source that forwards the documents of a scheduler at /debug/view; `async with` opens and closes its
    connections."""

    def __init__(self, address: str, *, token: str = "") -> None:
        self._address = address
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Upstream":
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENT_SECONDS)
        self._session = aiohttp.ClientSession(headers=self._headers, timeout=timeout, read_bufsize=CHUNK)
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def document(self) -> bytes:
        async with self._asked(DOCUMENT) as response:
            return await response.read()

    async def explain(self, unit: str) -> bytes:
        async with self._asked(HELP, unit=unit) as response:
            return await response.read()

    async def events(self) -> AsyncGenerator[Event, None]:
        async with self._asked(EVENTS) as response:
            name, rest = "", bytearray()
            async for piece in response.content.iter_any():
                rest += piece
                if len(rest) > LINE_BYTES:
                    raise SourceError(502, f"scheduler at {self._address} sends an endless event")
                if piece.find(b"\n") < 0:
                    continue
                *lines, tail = bytes(rest).split(b"\n")
                rest = bytearray(tail)
                for line in lines:
                    field, _, value = line.partition(b": ")
                    if field == b"event":
                        name = value.decode(errors="replace")
                    elif field == b"data" and name in (WHOLE, CHANGE):
                        yield name, value
                    elif field == b"data":
                        raise SourceError(502, value.decode(errors="replace"))
                    elif line.startswith(b":"):
                        yield "", b""
        raise SourceError(502, f"scheduler at {self._address} has closed the connection")

    @contextlib.asynccontextmanager
    async def _asked(self, path: str, **query: str) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session is not None
        try:
            async with self._session.get(f"http://{self._address}/debug/{path}", params=query) as response:
                if response.status == 200:
                    yield response
                    return
                said = (await response.content.read(500)).decode(errors="replace").strip().partition("\n")[0]
                if response.status == 404 and path != HELP:
                    said = "it serves no view: it runs with --no-view, or its version is too old"
                status = 403 if response.status in (401, 403) else 502
                raise SourceError(status, f"scheduler at {self._address}: {said or response.reason}")
        except TimeoutError:
            raise SourceError(502, f"scheduler at {self._address}: no answer in time") from None
        except aiohttp.ClientPayloadError:
            raise SourceError(502, f"scheduler at {self._address} has closed the connection") from None
        except (aiohttp.ClientError, ValueError) as fault:
            why = getattr(fault, "strerror", None) or str(fault) or type(fault).__name__
            raise SourceError(502, f"scheduler at {self._address} cannot be reached: {why}") from None


# -- the view of one namespace ----------------------------------------------------------------------------------------


class TenantView:
    """Source for a user with rights in one namespace: asks the scheduler through the API server.

    The scheduler filters the documents (`operator/tenant_api.py`), so this class never has data of other tenants.
    """

    def __init__(self, client: ApiClient, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self._serial = 0

    async def document(self) -> bytes:
        found = await self._asked()
        if found is None:
            raise NotReadyError("the page is not ready yet: try again in a moment")
        return found[0]

    async def explain(self, unit: str) -> bytes:
        """Returns the changes that would help a pending unit. Raises UnknownUnitError."""
        gangs = unit.startswith("gang:")
        _, _, name = unit.removeprefix("gang:").partition(",")[0].partition("@")[0].partition("/")
        if not name or unit.startswith("gpus:"):
            raise UnknownUnitError(f"{unit} is not pending")
        found = await self._get("explanations", name_of("podgroup" if gangs else "pod", name))
        explained, place = found["explanation"] or {}, found["queue"] or {}
        queue = explained.get("queue") or {}
        return orjson.dumps(
            {
                "message": explained.get("message", ""),
                "help": explained.get("wouldFitIf", []),
                "domains": [
                    [one[key] for key in ("layer", "name", "slots", "needed", "chosen")]
                    for one in explained.get("domains", [])
                ],
                "place": place.get("place"),
                "held": queue.get("held", {}),
                "share": queue.get("share", {}),
            }
        )

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yields a whole document whenever it has changed, else a keep-alive."""
        before: object = None
        while True:
            found = await self._asked()
            yield (WHOLE, found[0]) if found is not None and found[1] != before else ("", b"")
            before = found[1] if found is not None else before
            await asyncio.sleep(ASK_SECONDS)

    async def _asked(self) -> tuple[bytes, dict[str, Any]] | None:
        """Returns (document as JSON, document without its time); None if the scheduler has not prepared it yet."""
        page: dict[str, Any] | None = (await self._get("pages"))["page"]
        if page is None:
            return None
        self._serial += 1
        body = orjson.dumps({**page, "serial": self._serial})
        return body, {key: value for key, value in page.items() if key != "taken"}

    async def _get(self, resource: str, name: str = "current") -> dict[str, Any]:
        path = path_of(quote(self._namespace, safe=""), resource, quote(name, safe=""))
        try:
            found = await self._client.get(path, type=dict[str, Any])
        except ApiError as fault:
            if fault.status == 404 and resource == "explanations":
                raise UnknownUnitError(fault.message) from None
            raise SourceError(403 if fault.status in (401, 403) else 502, fault.message or str(fault)) from None
        except Unreachable as fault:
            raise SourceError(502, str(fault)) from None
        report: dict[str, Any] = found["report"]
        return report


Source = Feed | Upstream | TenantView
"""Source of the page's documents."""
