"""The admission webhook's server: TLS from files that are read again when they change.

Source: gpu-topology.md 10 for pods, quota-fairness.md 7 for ElasticQuotas. Every replica answers,
leader or not. The certificate comes from a Secret that the chart makes and mounts, so that koordpy needs no right to
read Secrets.
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
from koordpy.observe.connection_limits import Doors
from koordpy.operator.gpu_injection import answer
from koordpy.operator.quota_hook import QuotaHook

logger = logging.getLogger(__name__)

PATH = "/mutate-pods"
QUOTAS_PATH = "/validate-quotas"
CERTIFICATE, KEY = "tls.crt", "tls.key"
LOOK_SECONDS = 30.0
MOST_BYTES = 8 << 20
LARGE_BYTES = 1 << 16
"""A body above that waits for its turn."""
LARGE_AT_A_TIME = 8
READ_SECONDS = 5.0
"""A body that takes longer is not waited for."""
MOST_SAID = 1000
"""Characters of an answer to a request that is none."""
ODD = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What a body raises that is no review, or one of an object that no API server would send."""


class Webhook:
    """Serves the webhook at an address, with the certificate and key of a folder. resources: what counts as a GPU."""

    def __init__(self, address: str, folder: Path, *, resources: Collection[str]) -> None:
        self._host, self._port = split_address(address)
        self._folder, self._resources = folder, tuple(resources)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._loaded: tuple[int, int] | None = None
        self._runner: web.AppRunner | None = None
        self._doors, self._gate = Doors(self._context), Turnstile(LARGE_AT_A_TIME)
        self._looking: asyncio.Task[None] | None = None
        self.port = 0
        self.quotas: QuotaHook | None = None
        """Who judges ElasticQuotas; without it, and until it is ready, they get no answer."""
        self.on_refused: Callable[[str, str], None] = lambda kind, reason: None
        """Hears of each refusal: the kind, and Forbidden, or BadRequest for what is no review."""

    async def start(self) -> None:
        """Listens. Raises OSError where the address, the certificate or the key cannot be had."""
        self.reload()
        app = web.Application(client_max_size=MOST_BYTES)
        app.router.add_post(PATH, self._mutate)
        app.router.add_post(QUOTAS_PATH, self._validate)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
        await self._runner.setup()
        assert self._runner.server is not None
        self.port = await self._doors.open(self._runner.server, self._host, self._port)
        self._looking = asyncio.create_task(self._look())
        logger.info("admission webhook on port %d", self.port)

    async def stop(self) -> None:
        """Closes the port; requests under way are answered first."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        self._doors.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

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
            async with self._gate.turn(request.remote or ""):  # what is refused is asked of the API server before
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
        """A body; of large ones few are read at a time, addresses by turns, so that they take little memory
        whoever sends them."""
        large = request.content_length is None or request.content_length > LARGE_BYTES
        try:
            async with self._gate.turn(request.remote or "") if large else contextlib.nullcontext():
                async with asyncio.timeout(READ_SECONDS):
                    return await request.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout(text=f"the body did not come within {READ_SECONDS:g} s\n") from None

    def reload(self) -> None:
        """Takes the certificate and key as they are now; connections that are open keep theirs."""
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
                logger.error("the webhook goes on with the certificate it has: %s", fault)
