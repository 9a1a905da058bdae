# SPDX-License-Identifier: Apache-2.0
"""Parses HTTP requests to the API server and builds its answers.

A `Call` is a parsed request: resource, namespace, name, query. Bodies are JSON, or YAML for server-side apply.
"""

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote

import orjson
import yaml
from aiohttp import web

from koordpy.apiserver import status_errors
from koordpy.apiserver.served_resources import Object, Registry, ServedResource
from koordpy.apiserver.status_errors import StatusError

_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Query:
    """The query parameters of a request."""

    values: dict[str, str]

    def text(self, name: str) -> str:
        """Returns a parameter as text; empty if it is absent."""
        return self.values.get(name, "")

    def flag(self, name: str) -> bool:
        """Returns True if a parameter is true; False if it is false or absent."""
        return self.values.get(name, "").lower() in ("true", "1")

    def number(self, name: str) -> int | None:
        """Returns a parameter as an integer; None if it is absent. Raises StatusError 400 if it is not an integer."""
        raw = self.values.get(name, "")
        if not raw:
            return None
        try:
            return int(raw)
        except ValueError:
            raise StatusError(400, f"invalid value {raw!r} for {name}") from None

    def version(self) -> int | None:
        """Returns the parameter resourceVersion; None if it is absent. Raises StatusError 400."""
        found = self.number("resourceVersion")
        if found is not None and found < 0:
            raise StatusError(400, "invalid resourceVersion")
        return found


@dataclass(frozen=True, slots=True)
class Call:
    """A parsed request for a served resource."""

    resource: ServedResource
    namespace: str
    """Namespace; empty for all namespaces, and for cluster-scoped resources."""
    name: str
    """Name of the object; empty for a collection."""
    part: str
    """Subresource, such as `status`; empty if the request is for the object itself."""

    query: Query
    accept: str
    """Header Accept."""

    @property
    def as_table(self) -> bool:
        """True if the client prefers the Table form (kubectl get)."""
        first = self.accept.split(",", 1)[0]
        return "as=Table" in first and "v=v1" in first


def path_of(target: str) -> str:
    """Returns the decoded path of a request's target."""
    path = target.partition("?")[0]
    return unquote(path) if "%" in path else path


def call_of(registry: Registry, target: str, accept: str = "application/json") -> Call | None:
    """Parses the target of a request; None if it is not the path of a served resource, such as /healthz.

    Raises StatusError 404 if a path with a namespace names a cluster-scoped resource, or the reverse.
    """
    parts = path_of(target).strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    # /namespaces/NAME/status is a subresource of the namespace, not a resource in it
    if rest[0] == "namespaces" and len(rest) > 2 and not (group == "" and rest[2] in ("status", "finalize")):
        namespace, rest = rest[1], rest[2:]
    name, part = rest[1] if len(rest) > 1 else "", "/".join(rest[2:])
    resource = registry.at(group, version, rest[0])
    if resource is None:
        return None
    if namespace if not resource.namespaced else name and not namespace:
        raise status_errors.no_such_path()
    query = Query(dict(parse_qsl(target.partition("?")[2], keep_blank_values=True)))
    return Call(resource, namespace, name, part, query, accept)


# -- bodies -----------------------------------------------------------------------------------------------------------


def answer(body: bytes | Object, code: int = 200, *, warnings: list[str] | None = None) -> web.Response:
    """Returns a JSON answer, with a Warning header for each warning."""
    raw = body if isinstance(body, bytes) else orjson.dumps(body) + b"\n"
    response = web.Response(body=raw, status=code, content_type=_JSON)
    for warning in warnings or ():
        response.headers.add("Warning", f'299 - "{warning.replace(chr(34), chr(92) + chr(34))}"')
    return response


def refusal(error: StatusError) -> web.Response:
    """Returns the HTTP answer for an error."""
    response = answer(error.status(), error.code)
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    return response


async def read_body(request: web.BaseRequest) -> Any:
    """Returns the request's body, decoded from JSON or YAML; None if it is empty. Raises StatusError 400, 415."""
    kind = request.headers.get("Content-Type", _JSON)
    raw = await request.read()
    if not raw:
        return None
    for unread in ("protobuf", "cbor"):
        if unread in kind:
            raise StatusError(
                415,
                f"this embedded server does not accept {unread} - accepted media types include: {_JSON}. "
                "Try: kubectl create ... --dry-run=client -o yaml | kubectl apply -f -",
            )
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        if "yaml" not in kind:
            raise StatusError(400, f"the body of the request is invalid JSON: {error}") from None
    try:
        return yaml.load(raw, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise StatusError(400, f"the body of the request is invalid YAML: {error}") from None


async def read_object(request: web.BaseRequest) -> Object:
    """Returns the request's body, which must be an object. Raises StatusError 400, 415."""
    found = await read_body(request)
    if not isinstance(found, dict):
        raise StatusError(400, "the body of the request must be an object")
    return found
