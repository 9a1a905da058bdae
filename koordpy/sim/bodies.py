"""Bodies of requests and answers: JSON, and YAML where a patch is applied."""

from typing import Any

import orjson
import yaml
from aiohttp import web

from koordpy.sim.errors import StatusError
from koordpy.sim.resources import Object

_JSON = "application/json"


def answer(body: bytes | Object, code: int = 200, *, warnings: list[str] | None = None) -> web.Response:
    """A JSON answer, with a Warning header for each warning."""
    raw = body if isinstance(body, bytes) else orjson.dumps(body) + b"\n"
    response = web.Response(body=raw, status=code, content_type=_JSON)
    for warning in warnings or ():
        response.headers.add("Warning", f'299 - "{warning.replace(chr(34), chr(92) + chr(34))}"')
    return response


def refusal(error: StatusError) -> web.Response:
    """The answer of an error."""
    response = web.Response(body=error.body(), status=error.code, content_type=_JSON)
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    return response


async def read_body(request: web.BaseRequest) -> Any:
    """The request's body, JSON or YAML; None when it is empty. StatusError 400, 415."""
    kind = request.headers.get("Content-Type", _JSON)
    raw = await request.read()
    if not raw:
        return None
    for unread in ("protobuf", "cbor"):
        if unread in kind:
            raise StatusError(
                415,
                f"this embedded server reads no {unread} - accepted media types include: {_JSON}. "
                "Try: kubectl create ... --dry-run=client -o yaml | kubectl apply -f -",
            )
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        if "yaml" not in kind:
            raise StatusError(400, f"the body of the request is no JSON: {error}") from None
    try:
        return yaml.load(raw, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise StatusError(400, f"the body of the request is no YAML: {error}") from None


async def read_object(request: web.BaseRequest) -> Object:
    """The request's body, which must be an object. StatusError 400, 415."""
    found = await read_body(request)
    if not isinstance(found, dict):
        raise StatusError(400, "the body of the request must be an object")
    return found
