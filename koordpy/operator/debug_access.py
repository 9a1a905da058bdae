# SPDX-License-Identifier: Apache-2.0
"""Authorizes requests for /debug and /configz by bearer token, as kube-scheduler does.

A TokenReview identifies the user, and a SubjectAccessReview checks that the user may `get` the path. Answers are cached
for `HELD_SECONDS`, so that repeated requests cause no load on the API server.
"""

import time
from collections import OrderedDict
from hashlib import sha256

import msgspec
from aiohttp import web

from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.api_errors import ApiError, Unreachable

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
HELD_SECONDS = 10.0
"""Seconds for which an answer is cached."""
MOST_HELD = 256
"""Maximum number of cached answers."""


class _User(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None


class _ReviewStatus(msgspec.Struct):
    authenticated: bool = False
    allowed: bool = False
    user: _User = msgspec.field(default_factory=_User)


class AccessReview(msgspec.Struct):
    """Answer to a TokenReview or a SubjectAccessReview."""

    status: _ReviewStatus = msgspec.field(default_factory=_ReviewStatus)


class TokenGuard:
    """Allows a request if the user of its token may `get` its path."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._known: OrderedDict[tuple[bytes, str], tuple[float, str]] = OrderedDict()

    async def __call__(self, request: web.Request) -> str:
        """Returns the reason why a request is not allowed, or the empty string if it is."""
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            return "needs a bearer token (debugAccess)"
        key = sha256(token.strip().encode()).digest(), request.path
        known = self._known.get(key)
        if known is not None and time.monotonic() - known[0] < HELD_SECONDS:
            return known[1]
        try:
            said = await self._ask(token.strip(), request.path)
        except (ApiError, Unreachable) as error:
            return f"the API server could not check the token: {error}"
        self._known[key] = time.monotonic(), said
        if len(self._known) > MOST_HELD:
            self._known.popitem(last=False)
        return said

    async def _ask(self, token: str, path: str) -> str:
        found = await self._client.post(
            TOKEN_REVIEWS,
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}},
            type=AccessReview,
        )
        if found is None or not found.status.authenticated:
            return "the token is not valid"
        user = found.status.user
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": user.groups or [],
            "nonResourceAttributes": {"path": path, "verb": "get"},
        }
        answer = await self._client.post(
            ACCESS_REVIEWS,
            {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec},
            type=AccessReview,
        )
        may = answer is not None and answer.status.allowed
        return "" if may else f"{user.username} may not get {path}"
