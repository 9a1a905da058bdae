# SPDX-License-Identifier: Apache-2.0
"""Client of the Kubernetes API server: reads, writes and watches with typed replies and errors, and a rate limit.

All calls share one aiohttp session. msgspec encodes and decodes bodies directly to and from the structs of
`koordpy.api.objects`. Measured on 2 cores: a Binding takes 0.27 ms with uvloop; kubernetes_asyncio takes 1.2 ms.
"""

import asyncio
import contextlib
import math
import random
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Literal, TypeVar

import aiohttp
import msgspec
import yarl
from yarl import URL

from koordpy.api.bounded_memory import forgotten_by
from koordpy.api.objects import Pod
from koordpy.engine.client.api_errors import ApiError, Unreachable, Untrusted
from koordpy.engine.client.api_replies import Page, Status, reader_of, shown
from koordpy.engine.client.api_resources import PODS
from koordpy.engine.client.complaints import Complaints
from koordpy.engine.client.credentials import ClusterAccess
from koordpy.engine.client.kubeconfig import CredentialError
from koordpy.engine.client.server_trust import refusal
from koordpy.engine.client.token_bucket import UNLIMITED, TokenBucket

T = TypeVar("T")
Body = Any
"""Body of a request: a mapping, a struct of `koordpy.api.objects`, or bytes of JSON."""
Params = Mapping[str, str | int]
PatchKind = Literal["merge", "strategic", "json", "apply"]

PATCH_CONTENT_TYPES: Mapping[str, str] = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}
REQUEST_TIMEOUT_SECONDS = 30.0
CONNECT_TIMEOUT_SECONDS = 10.0
WATCH_BUFFER_BYTES = 4 << 20
"""Size of the buffer for watch data that arrives while the process is busy. The API server ends a watch if its client
reads too slowly."""
MAX_RETRIES_ON_429 = 5
MAX_RETRY_AFTER_SECONDS = 30.0
"""Longest pause after a 429, whatever the server asks for."""


for _name in ("pre_encoded_url", "from_parts"):
    # yarl caches the last 128 paths, so names of deleted pods would stay in memory
    forgotten_by(getattr(getattr(getattr(yarl, "_url", None), _name, None), "cache_clear", lambda: None))


_encoder = msgspec.json.Encoder()


class ApiClient:
    """One API server. Use as `async with ApiClient(access) as client`, or call `close()`.

    Writes and lists pass a token bucket of `qps` and `burst` (0 or less: no limit); watches and gets do not. Every
    method raises ApiError or Unreachable. After a 401 the credentials are read again, and the call is repeated once. A
    call that gets a 429 is repeated after Retry-After, a limited number of times. A POST is never repeated, because it
    may not be idempotent; its caller decides what to do.
    """

    def __init__(
        self,
        access: ClusterAccess,
        *,
        qps: float = 200.0,
        burst: int = 400,
        timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """sleep: function that waits for the rate limit and between tries; tests replace it."""
        self.access = access
        self.complaints = Complaints(access)
        """Reports problems that all calls have in common: certificate, credentials, permissions."""
        self.bucket = TokenBucket(qps, burst, sleep=sleep)
        self.may_repeat: Callable[[], bool] = lambda: True
        """Called before a write is repeated after a 429. If it returns False, the write is not repeated."""
        self.on_answer: Callable[[str, str, float], None] = lambda method, code, seconds: None
        """Called for every request with its method, the status of the reply (`<error>` without one), and the seconds
        until the reply began."""
        self._sleep = sleep
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=CONNECT_TIMEOUT_SECONDS)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "ApiClient":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def complained(self, error: Exception, verbs: str, resource: str) -> bool:
        """Returns True if `complaints` logs this failure, so that the caller need not. verbs, resource: of the refused
        call, as in a Role."""
        if isinstance(error, Untrusted):
            self.complaints.distrust(str(error))
            return True
        return isinstance(error, ApiError) and self.complaints.take(error, verbs, resource)

    async def close(self) -> None:
        """Closes the connections; watches in progress end with Unreachable."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    # -- reads --------------------------------------------------------------------------------------------------------

    async def get(self, path: str, *, type: type[T]) -> T:
        """Gets one object, decoded as `type` (`dict[str, Any]` for the whole object)."""
        value: T = self._decode(await self.request("GET", path, bucket=UNLIMITED), type, path)
        return value

    async def get_or_none(self, path: str, *, type: type[T]) -> T | None:
        """Gets one object; None for a 404."""
        try:
            return await self.get(path, type=type)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def read_pod(self, namespace: str, name: str) -> Pod | None:
        """Returns the current pod of a name, with any uid; None if there is none.

        Callers delete or bind pods because of the reply. Therefore a reply with another object, for example from a
        proxy's cache, raises ApiError.
        """
        pod = await self.get_or_none(PODS.path(namespace, name), type=Pod)
        meta = pod.metadata if pod is not None else None
        if meta is not None and (not meta.uid or (meta.namespace, meta.name) != (namespace, name)):
            text = (
                f"requested pod {namespace}/{name}, the reply is about {meta.namespace}/{meta.name}, uid {meta.uid!r}"
            )
            raise ApiError(200, "Undecodable", text)
        return pod

    async def list_page(
        self, path: str, *, type: type[T], limit: int = 500, continue_token: str = "", params: Params | None = None
    ) -> Page[T]:
        """Returns one page of a list. An expired continue token raises ApiError with status 410."""
        query: dict[str, str | int] = {**(params or {}), "limit": limit}
        if continue_token:
            query["continue"] = continue_token
        page = self._decode(await self.request("GET", path, params=query), Page[msgspec.Raw], path)
        items = page.items if type is msgspec.Raw else [self._decode(one, type, path) for one in page.items or ()]
        return Page(page.metadata, items)

    async def watch(
        self,
        path: str,
        *,
        resource_version: str,
        timeout_seconds: int = 300,
        stall_seconds: float = 330.0,
    ) -> AsyncGenerator[list[bytes], None]:
        """Watches a collection. Yields batches of whole lines, each a JSON event, as they arrive.

        Ends when the server ends the watch. Raises ApiError if the server refuses it, and Unreachable if the connection
        breaks or is silent for `stall_seconds`. An incomplete last line is dropped, because its event is sent again.
        """
        query: Params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": timeout_seconds,
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_SECONDS, sock_read=stall_seconds)
        response = await self._respond("GET", path, params=query, limits=timeout)
        try:
            if response.status != 200:
                raise self._error(response, await response.read())
            pending: list[bytes] = []
            while chunk := await self._read(response.content.readany(), f"watch {path}"):
                end = chunk.rfind(b"\n")
                if end < 0:
                    pending.append(chunk)
                    continue
                pending.append(chunk[:end])
                whole = b"".join(pending) if len(pending) > 1 else pending[0]
                pending = [chunk[end + 1 :]] if end + 1 < len(chunk) else []
                yield whole.split(b"\n")
        finally:
            # the body is not read to its end, so release() closes the connection
            response.release()

    # -- writes -------------------------------------------------------------------------------------------------------

    async def post(
        self, path: str, body: Body, *, type: type[T] | None = None, bucket: TokenBucket | None = None
    ) -> T | None:
        """Posts an object. Returns the reply decoded as `type`; None without a type. bucket: as in `request`."""
        reply = await self.request("POST", path, body=body, bucket=bucket)
        return self._decode(reply, type, path) if type is not None else None

    async def put(self, path: str, body: Body, *, type: type[T] | None = None) -> T | None:
        """Replaces a whole object; returns as `post`. A stale resourceVersion raises ApiError with status 409."""
        reply = await self.request("PUT", path, body=body)
        return self._decode(reply, type, path) if type is not None else None

    async def patch(
        self,
        path: str,
        body: Body,
        *,
        kind: PatchKind = "merge",
        field_manager: str = "koordpy",
        type: type[T] | None = None,
    ) -> T | None:
        """Patches an object; returns as `post`. Kind `apply` is a server-side apply with force."""
        params: Params = {"fieldManager": field_manager, "force": "true"} if kind == "apply" else {}
        reply = await self.request("PATCH", path, body=body, content_type=PATCH_CONTENT_TYPES[kind], params=params)
        return self._decode(reply, type, path) if type is not None else None

    async def delete(self, path: str, *, uid: str = "") -> bytes:
        """Deletes an object. Returns the object in its last state, or a Status, as bytes.

        uid: the uid that the object must have, else ApiError with status 409 is raised; empty for any.
        """
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid:
            body["preconditions"] = {"uid": uid}
        return await self.request("DELETE", path, body=body)

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Body | None = None,
        params: Params | None = None,
        content_type: str = "application/json",
        bucket: TokenBucket | None = None,
    ) -> bytes:
        """Sends any request, returns the body of the reply. bucket: rate limit of this call; None for the client's."""
        data = body if body is None or isinstance(body, bytes) else _encoder.encode(body)
        retries = 0 if method == "POST" else MAX_RETRIES_ON_429
        while True:
            await (bucket or self.bucket).take()
            response = await self._respond(
                method, path, params=params, data=data, content_type=content_type, limits=self._timeout
            )
            try:
                reply = await self._read(response.read(), f"{method} {path}")
            finally:
                # if the body was not read, release() closes the connection
                response.release()
            if response.status < 300:
                if not reply.startswith(b"{"):
                    # for example a proxy's login page: the request may have reached the API server or not
                    raise Unreachable(f"{method} {path}: the reply is not from the API server: {shown(reply)}")
                return reply
            error = self._error(response, reply)
            if error.status != 429 or retries == 0:
                raise error
            retries -= 1
            pause = min(error.retry_after if error.retry_after is not None else 1.0, MAX_RETRY_AFTER_SECONDS)
            await self._sleep(pause * random.uniform(1.0, 1.2))
            if method != "GET" and not self.may_repeat():
                raise error

    # -- implementation -----------------------------------------------------------------------------------------------

    async def _respond(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        data: bytes | None = None,
        content_type: str = "application/json",
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        """Returns the response with an unread body; the caller releases it."""
        # names of objects need no quoting, and checking it would take a tenth of a Binding's time
        url = URL(self.access.server + path, encoded=True)
        if params:
            url = url.with_query(params)
        response = await self._send(method, url, data, content_type, limits, rejected=False)
        if response.status == 401:
            response.release()
            response = await self._send(method, url, data, content_type, limits, rejected=True)
        return response

    async def _send(
        self,
        method: str,
        url: URL,
        data: bytes | None,
        content_type: str,
        limits: aiohttp.ClientTimeout,
        *,
        rejected: bool,
    ) -> aiohttp.ClientResponse:
        """Sends one request with credentials. rejected: True if the last credentials got a 401. Raises Unreachable."""
        try:
            headers = dict(await self.access.headers(rejected))
        except CredentialError as error:
            # an exec plugin may work again later, so callers treat its failure as an unreachable server
            raise Unreachable(f"{method} {url.path}: {error}", sent=False) from error
        if data is not None:
            headers["Content-Type"] = content_type
        asked = self._open_session().request(
            method, url, data=data, headers=headers, timeout=limits, allow_redirects=False,
            proxy=self.access.proxy, server_hostname=self.access.server_hostname,
        )  # fmt: skip
        code, began = "<error>", time.monotonic()
        try:
            if limits.total is not None:
                response = await asked
            else:  # the response to a watch must begin in time, too, although its body has no limit
                async with asyncio.timeout(self._timeout.total):
                    response = await asked
            code = str(response.status)
            return response
        except aiohttp.ClientConnectorCertificateError as error:
            raise Untrusted(self._distrust(error), sent=False) from error
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unreachable(f"{method} {url.path}: {_error_text(error)}", sent=False) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"{method} {url.path}: {_error_text(error)}") from error
        finally:
            self.on_answer(method, code, time.monotonic() - began)

    def _distrust(self, error: aiohttp.ClientConnectorCertificateError) -> str:
        """Returns why the server's certificate is not trusted."""
        fault, access = error.certificate_error, self.access
        if isinstance(fault, ssl.SSLCertVerificationError):
            return refusal(fault, access.ssl_context, access.host, access.source)
        return _error_text(error)

    def _open_session(self) -> aiohttp.ClientSession:
        """Returns the session of all calls, created on first use."""
        if self._session is None:
            connector = aiohttp.TCPConnector(
                # no limit of connections: each watch occupies one for minutes, and the binder limits its own requests
                limit=0,
                ssl=self.access.ssl_context if self.access.ssl_context is not None else True,
                socket_factory=_keepalive_socket,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                # decompressing a list costs more than a fast network saves
                headers={"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "koordpy"},
                read_bufsize=WATCH_BUFFER_BYTES,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    async def _read(self, reading: Awaitable[bytes], what: str) -> bytes:
        try:
            return await reading
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"{what}: {_error_text(error)}") from error

    def _error(self, response: aiohttp.ClientResponse, body: bytes) -> ApiError:
        """Returns the error that a reply describes, with its Retry-After as `retry_after`."""
        try:
            status = reader_of(Status)(body)
        except ValueError:
            # a proxy replied with HTML or plain text
            status = Status(message=shown(body))
        retry_after: float | None = None
        with contextlib.suppress(KeyError, ValueError):
            said = float(response.headers["Retry-After"])
            retry_after = max(0.0, said) if math.isfinite(said) else None
        if retry_after is None and status.details and isinstance(status.details.get("retryAfterSeconds"), int):
            retry_after = float(status.details["retryAfterSeconds"])
        return ApiError(response.status, status.reason, status.message, retry_after=retry_after)

    def _decode(self, body: bytes | msgspec.Raw, kind: Any, path: str) -> Any:
        try:
            return reader_of(kind)(body)
        except ValueError as error:
            raise ApiError(200, "Undecodable", f"{path}: {error}") from error


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _keepalive_socket(address: tuple[Any, ...]) -> socket.socket:
    """Returns a socket that detects a lost peer within half a minute, even while a watch is silent."""
    family, kind, protocol = address[:3]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)
    return made
