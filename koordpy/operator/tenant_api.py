# SPDX-License-Identifier: Apache-2.0
"""Serves the aggregated API `view.koordpy.io`, with which tenants ask the scheduler through the API server.

The API server authenticates the user, checks by RBAC that the user may `get` the resource, and forwards the request
with its front proxy's certificate. This server accepts only that certificate (`front_proxy.py`). It answers for a
namespace only if a SubjectAccessReview says that the user may `get pods` there. The namespace of the review and that of
the answer come from one parsed path. Every replica answers from its caches, the leader and standbys.

`plan/limits.py` limits the requests per second and the open requests of each tenant, and the open requests and reviews
of all tenants. A request above a limit is rejected after a delay, which slows down a client that repeats requests. A
rejected request costs 0.16 ms on an open connection, and a TLS handshake of 1 to 2 ms on a new one.
"""

import asyncio
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import orjson
from aiohttp import web

from koordpy.api.object_names import split_address
from koordpy.api.objects import ConfigMap
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.api_errors import ApiError, Unreachable
from koordpy.observe.connection_limits import ConnectionLimiter
from koordpy.operator.debug_access import ACCESS_REVIEWS, AccessReview
from koordpy.operator.front_proxy import CONFIG_MAP, FrontProxy, NoTrustError, User, context_for, read_front_proxy
from koordpy.operator.tenant_limits import Bucket, Meter, RefusedError, too_many
from koordpy.plan.limits import (
    ASKED_EACH_SECOND,
    ASKED_NAME_BYTES,
    REVIEW_SECONDS,
    REVIEWS_AT_ONCE,
    REVIEWS_EACH_SECOND,
    REVIEWS_KEPT,
)
from koordpy.view.live_documents import NotReadyError
from koordpy.view.subjects import UnknownSubjectError
from koordpy.view.tenant_answers import Answers, UnknownResourceError
from koordpy.view.view_names import GROUP, RESOURCES, VERSION, WITH_NAMES, name_in_path

logger = logging.getLogger(__name__)

CERTIFICATE, KEY = "tls.crt", "tls.key"
LOOK_SECONDS = 30.0
"""Seconds between two reads of the certificate and of the ConfigMap."""
FIRST_LOOK_SECONDS = 2.0
"""Seconds between two such reads while no front proxy is known."""
MOST_GPUS = 1 << 16
"""Maximum number of devices per pod in a request for slots."""
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_RESOURCE = re.compile(r"[A-Za-z0-9./_-]{0,317}")
_COUNT = re.compile(r"[1-9][0-9]{0,4}")
MASTERS = "system:masters"
"""Group of the API server's own requests and of administrators, which are not limited."""


class Reviews:
    """Asks the API server whether a user may get the pods of a namespace, and caches the answers."""

    def __init__(self, client: ApiClient, clock: Callable[[], float]) -> None:
        self._client, self._clock = client, clock
        self._bucket = Bucket(REVIEWS_EACH_SECOND, REVIEWS_AT_ONCE, clock)
        self._known: OrderedDict[tuple[User, str], tuple[float, bool]] = OrderedDict()
        self._asked: dict[tuple[User, str], asyncio.Future[bool]] = {}

    async def may_get_pods(self, user: User, namespace: str) -> bool:
        """Returns True if the user may get pods in the namespace. Raises RefusedError if that cannot be reviewed."""
        key = user, namespace
        known = self._known.get(key)
        if known is not None and self._clock() - known[0] < REVIEW_SECONDS:
            return known[1]
        if (running := self._asked.get(key)) is not None:
            return await asyncio.shield(running)
        task = asyncio.ensure_future(self._ask(user, namespace))
        self._asked[key] = task
        task.add_done_callback(lambda done: (self._asked.pop(key, None), done.cancelled() or done.exception()))
        may = await asyncio.shield(task)
        self._known[key] = self._clock(), may
        self._known.move_to_end(key)
        if len(self._known) > REVIEWS_KEPT:
            self._known.popitem(last=False)
        return may

    async def _ask(self, user: User, namespace: str) -> bool:
        if not self._bucket.take():
            raise too_many("too many access reviews")
        spec = {
            "user": user.name,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": {key: list(values) for key, values in user.extra},
            "resourceAttributes": {"namespace": namespace, "verb": "get", "group": "", "resource": "pods"},
        }
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        try:
            answer = await self._client.post(ACCESS_REVIEWS, body, type=AccessReview)
        except (ApiError, Unreachable) as fault:
            logger.warning("a SubjectAccessReview failed: %s", fault)
            raise RefusedError(503, "ServiceUnavailable", "access cannot be reviewed now", retry=1.0) from None
        return answer is not None and answer.status.allowed


class TenantApi:
    """Serves the API at an address, with the certificate and key in a folder."""

    def __init__(
        self, address: str, folder: Path, *, client: ApiClient, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._host, self._port = split_address(address)
        self._folder, self._client = folder, client
        self._proxy: FrontProxy | None = None
        self._loaded: tuple[int, int, FrontProxy | None] | None = None
        self._limiter = ConnectionLimiter(context_for(None, *self._files))
        self._looking: asyncio.Task[None] | None = None
        self._meter, self._reviews = Meter(clock), Reviews(client, clock)
        self.port = 0
        self.answers: Answers | None = None
        """Computes the answers; None until the scheduler is set up. Until then, requests are rejected."""
        self.on_question: Callable[[str, int], None] = lambda view, status: None
        """Called for each request with its resource (empty if unknown) and the status of the answer."""

    @property
    def _files(self) -> tuple[str, str]:
        return str(self._folder / CERTIFICATE), str(self._folder / KEY)

    async def start(self) -> None:
        """Listens. Raises OSError if the address, the certificate or the key is unusable."""
        app = web.Application(client_max_size=1)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self.port = await self._limiter.serve(app, self._host, self._port, shutdown_timeout=1.0, keepalive_timeout=60.0)
        self._looking = asyncio.create_task(self._look())
        logger.info("the tenant API is served on port %d", self.port)

    async def stop(self) -> None:
        """Closes the port."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        await self._limiter.stop()
        if self.answers is not None:
            self.answers.close()

    async def reload(self) -> None:
        """Reloads the certificate and the front proxy's CA.

        Raises OSError, NoTrustError, ApiError and Unreachable; then the old certificate and CA stay in use.
        """
        found = await self._client.get(CONFIG_MAP, type=ConfigMap)
        proxy = read_front_proxy(found.data)
        stamps = self._stamps()
        if (*stamps, proxy) != self._loaded:
            self._limiter.tls = context_for(proxy, *self._files)
            self._proxy, self._loaded = proxy, (*stamps, proxy)

    def _stamps(self) -> tuple[int, int]:
        """Returns the modification times of the certificate and the key."""
        certificate, key = (Path(one).stat().st_mtime_ns for one in self._files)
        return certificate, key

    async def _look(self) -> None:
        said = ""
        while True:
            try:
                await self.reload()
                said = ""
            except (OSError, NoTrustError, ApiError, Unreachable) as fault:
                if str(fault) != said:
                    logger.error("tenant API: %s: %s", CONFIG_MAP.rpartition("/")[2], fault)
                said = str(fault)
            await asyncio.sleep(FIRST_LOOK_SECONDS if self._proxy is None else LOOK_SECONDS)

    # -- one request --------------------------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.Response:
        view, headers = "", {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        try:
            user = self._user(request)
            if MASTERS not in user.groups and not self._meter.take(user.tenant):
                raise too_many(f"{user.tenant} sends more than {ASKED_EACH_SECOND:g} requests per second")
            document, view = await self._answer(request, user, segments(request.rel_url.raw_path))
            status = 200
        except RefusedError as fault:
            view = view or _view_of(request)
            if fault.status == 429:
                await self._meter.slow_down()
            document, status = status_object(fault), fault.status
            if fault.retry:
                headers["Retry-After"] = str(max(1, round(fault.retry)))
        self.on_question(view, status)
        return web.Response(
            status=status, body=orjson.dumps(document), content_type="application/json", headers=headers
        )

    def _user(self, request: web.Request) -> User:
        proxy, transport = self._proxy, request.transport
        certificate = transport.get_extra_info("peercert") if transport is not None else None
        if proxy is None or not proxy.is_proxy(certificate):
            raise RefusedError(401, "Unauthorized", "only the API server's front proxy is accepted")
        user = proxy.user(request.headers)
        if user is None:
            raise RefusedError(401, "Unauthorized", "the front proxy names no user")
        return user

    async def _answer(self, request: web.Request, user: User, path: list[str]) -> tuple[Any, str]:
        if (found := discovery(path, request.headers.get("Accept", ""))) is not None:
            return found, ""
        namespace, resource, name = question(path)
        if request.method not in ("GET", "HEAD"):
            raise RefusedError(405, "MethodNotAllowed", f"{request.method} is not supported, only GET")
        with self._meter.opened(user.tenant):
            if not await self._reviews.may_get_pods(user, namespace):
                raise RefusedError(403, "Forbidden", f"{user.name} may not get pods in namespace {namespace}")
            if self.answers is None:
                raise RefusedError(503, "ServiceUnavailable", "the scheduler has not started", retry=1.0)
            document = await self._ask(self.answers, request, namespace, resource, name)
        kind = RESOURCES[resource]
        meta = {"name": path[-1], "namespace": namespace, "creationTimestamp": None}
        return {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": meta, "report": document}, resource

    async def _ask(
        self, answers: Answers, request: web.Request, namespace: str, resource: str, name: str
    ) -> dict[str, Any]:
        try:
            if resource == "explanations":
                return await answers.why(namespace, name)
            if resource == "queues":
                return await answers.queue(namespace)
            if resource == "pages":
                return await answers.page(namespace)
            each, wanted = request.query.get("gpus", "1"), request.query.get("resource", "")
            if not _COUNT.fullmatch(each) or int(each) > MOST_GPUS:
                raise RefusedError(400, "BadRequest", f"gpus: must be a whole number from 1 to {MOST_GPUS}")
            if not _RESOURCE.fullmatch(wanted):
                raise RefusedError(400, "BadRequest", "resource: is not a valid resource name")
            return await answers.slots(namespace, wanted, int(each))
        except (UnknownSubjectError, UnknownResourceError) as fault:
            raise RefusedError(404, "NotFound", str(fault)) from None
        except NotReadyError as fault:
            raise RefusedError(503, "ServiceUnavailable", str(fault), retry=2.0) from None


# -- paths ------------------------------------------------------------------------------------------------------------


def segments(raw: str) -> list[str]:
    """Splits a path, and decodes each segment once.

    Raises RefusedError for a path that another server could parse differently: if a segment is empty, `.` or `..`, or
    contains a slash, a backslash or a control character.
    """
    out = []
    for part in raw.removeprefix("/").removesuffix("/").split("/"):
        try:
            text = unquote_to_bytes(part).decode()
        except UnicodeDecodeError:
            text = ""
        if text in ("", ".", "..") or any(one in "/\\" or ord(one) < 32 or ord(one) == 127 for one in text):
            raise not_found()
        out.append(text)
    return out


def not_found() -> RefusedError:
    return RefusedError(404, "NotFound", "the server could not find the requested resource")


def question(path: list[str]) -> tuple[str, str, str]:
    """Parses a path into (namespace, resource, name). Raises RefusedError."""
    if len(path) != 7 or path[:4] != ["apis", GROUP, VERSION, "namespaces"]:
        raise not_found()
    namespace, resource, name = path[4:]
    if resource not in RESOURCES or not _NAMESPACE.fullmatch(namespace):
        raise not_found()
    if len(name.encode()) > ASKED_NAME_BYTES:
        raise RefusedError(400, "BadRequest", f"the name is longer than {ASKED_NAME_BYTES} bytes")
    if resource not in WITH_NAMES:
        if name != "current":
            raise RefusedError(404, "NotFound", f"{resource} {name} not found: the only name is current")
        return namespace, resource, ""
    asked = name_in_path(name)
    if asked is None:
        raise RefusedError(400, "BadRequest", "name: must be KIND.NAME, such as job.train or any.train")
    return namespace, resource, asked


def _view_of(request: web.Request) -> str:
    """Returns the resource of a rejected request; empty if it is unknown."""
    parts = request.rel_url.raw_path.split("/")
    return parts[6] if len(parts) > 6 and parts[6] in RESOURCES else ""


def discovery(path: list[str], accept: str) -> Any:
    """Returns the discovery document that the API server and kubectl request; None for any other path."""
    versions = [{"groupVersion": f"{GROUP}/{VERSION}", "version": VERSION}]
    group = {"name": GROUP, "versions": versions, "preferredVersion": versions[0]}
    if path == ["apis"]:
        if "as=APIGroupDiscoveryList" in accept:
            raise RefusedError(406, "NotAcceptable", "only APIGroupList is served")
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}
    if path == ["apis", GROUP]:
        return {"kind": "APIGroup", "apiVersion": "v1", **group}
    if path == ["apis", GROUP, VERSION]:
        resources = [
            {"name": name, "singularName": kind.lower(), "namespaced": True, "kind": kind, "verbs": ["get"]}
            for name, kind in RESOURCES.items()
        ]
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": f"{GROUP}/{VERSION}",
            "resources": resources,
        }
    return None


def status_object(fault: RefusedError) -> dict[str, Any]:
    """Returns a rejection as a Status object."""
    out = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": str(fault),
        "reason": fault.reason,
        "code": fault.status,
    }
    return out | ({"details": {"retryAfterSeconds": max(1, round(fault.retry))}} if fault.retry else {})
