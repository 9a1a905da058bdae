# SPDX-License-Identifier: Apache-2.0
"""Serves the admission webhook over TLS, with files that are reloaded when they change.

Every replica answers, leader or not. The certificate comes from a Secret that the chart creates and mounts, so that
koordpy needs no right to read Secrets. Rules: gpu-topology.md 10 for pods, quota-fairness.md 7 for ElasticQuotas.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from koordpy.api.object_names import split_address
from koordpy.engine.client.api_errors import ApiError, Unreachable
from koordpy.engine.planning_turns import Turnstile
from koordpy.observe.connection_limits import ConnectionLimiter
from koordpy.operator.gpu_injection import answer
from koordpy.operator.quota_hook import QuotaHook

logger = logging.getLogger(__name__)

PATH = "/mutate-pods"
QUOTAS_PATH = "/validate-quotas"
CERTIFICATE, KEY = "tls.crt", "tls.key"
LOOK_SECONDS = 30.0
"""Seconds between two checks of the certificate files."""
MOST_BYTES = 8 << 20
"""Maximum size of a body in bytes."""
LARGE_BYTES = 1 << 16
"""Size in bytes from which a body counts as large, and is read only when it is its turn."""
LARGE_AT_A_TIME = 8
"""Number of large bodies that are read at the same time."""
KEEP_SECONDS = 3630.0
"""Seconds that a connection stays open without a request. Longer than the API server's limit, so that the API server
does not send a request on a connection that is being closed."""
READ_SECONDS = 5.0
"""Timeout for reading a body, in seconds."""
MOST_SAID = 1000
"""Maximum length of the error for an invalid request, in characters."""
ODD = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors that a body causes if it is not a review, or has an object that no API server would send."""


class Webhook:
    """Serves the webhook at an address, with the certificate and key in a folder."""

    def __init__(self, address: str, folder: Path, *, resources: Collection[str]) -> None:
        """resources: names of the GPU resources."""
        self._host, self._port = split_address(address)
        self._folder, self._resources = folder, tuple(resources)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._loaded: tuple[int, int] | None = None
        self._limiter, self._gate = ConnectionLimiter(self._context), Turnstile(LARGE_AT_A_TIME)
        self._looking: asyncio.Task[None] | None = None
        self.port = 0
        self.quotas: QuotaHook | None = None
        """Reviews ElasticQuotas; until it is set and ready, such requests get status 503."""
        self.on_refused: Callable[[str, str], None] = lambda kind, reason: None
        """Called for each rejection with the kind and the reason: Forbidden, or BadRequest for an invalid review."""

    async def start(self) -> None:
        """Listens. Raises OSError if the address, the certificate or the key is unusable."""
        self.reload()
        app = web.Application(client_max_size=MOST_BYTES)
        app.router.add_post(PATH, self._mutate)
        app.router.add_post(QUOTAS_PATH, self._validate)
        self.port = await self._limiter.serve(
            app, self._host, self._port, shutdown_timeout=2.0, keepalive_timeout=KEEP_SECONDS
        )
        self._looking = asyncio.create_task(self._look())
        logger.info("the admission webhook is served on port %d", self.port)

    async def stop(self) -> None:
        """Answers open requests, and closes the port."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        await self._limiter.stop()

    async def _mutate(self, request: web.Request) -> web.Response:
        review = await self._read(request)
        try:
            body = answer(review, self._resources)
        except ODD as fault:
            raise self._odd("Pod", fault) from None
        return self._answered("Pod", body)

    async def _validate(self, request: web.Request) -> web.Response:
        if self.quotas is None or not self.quotas.ready:
            raise web.HTTPServiceUnavailable(text="the caches are not in sync yet\n")
        review = await self._read(request)
        try:
            async with self._gate.turn(request.remote or ""):  # a rejection lists all quotas from the API server
                body = await self.quotas.answer(review)
        except ODD as fault:
            raise self._odd("ElasticQuota", fault) from None
        except (ApiError, Unreachable) as error:
            raise web.HTTPServiceUnavailable(text=f"{error}\n") from None
        return self._answered("ElasticQuota", body)

    def _answered(self, kind: str, body: dict[str, Any]) -> web.Response:
        if not body["response"]["allowed"]:
            self.on_refused(kind, "Forbidden")
        return web.Response(body=orjson.dumps(body), content_type="application/json")

    def _odd(self, kind: str, fault: Exception) -> web.HTTPBadRequest:
        self.on_refused(kind, "BadRequest")
        return web.HTTPBadRequest(text=f"{fault}"[:MOST_SAID] + "\n")

    async def _read(self, request: web.Request) -> bytes:
        """Reads a body. To bound the memory, only a few large bodies are read at the same time, in turns by client
        address."""
        large = request.content_length is None or request.content_length > LARGE_BYTES
        try:
            async with self._gate.turn(request.remote or "") if large else contextlib.nullcontext():
                async with asyncio.timeout(READ_SECONDS):
                    return await request.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout(text=f"no complete body within {READ_SECONDS:g} s\n") from None

    def reload(self) -> None:
        """Reloads the certificate and key if the files have changed. Open connections keep the old ones. Raises
        OSError."""
        certificate, key = self._folder / CERTIFICATE, self._folder / KEY
        stamp = (certificate.stat().st_mtime_ns, key.stat().st_mtime_ns)
        if stamp != self._loaded:
            try:
                self._context.load_cert_chain(str(certificate), str(key))
            except ssl.SSLError as fault:
                raise OSError(f"{self._folder}: {CERTIFICATE} and {KEY} cannot be used: {fault}") from None
            self._loaded = stamp

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                self.reload()
            except OSError as fault:
                logger.error("the webhook keeps its current certificate: %s", fault)
