# SPDX-License-Identifier: Apache-2.0
"""Errors of the embedded API server, as `Status` objects of the Kubernetes API.

Clients decide by `code` and `reason`, so both are those of kube-apiserver. Messages that kubectl shows have its
wording.
"""

from typing import Any

from koordpy.apiserver.served_resources import ServedResource

# HTTP code -> default reason
REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}

OF_CONTAINERS = ("log", "exec", "attach", "portforward")
"""Subresources of pods that the embedded server does not support, because they need a real kubelet."""
SUCCESS_201 = b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}\n'


class StatusError(Exception):
    """An error with its HTTP code, machine-readable reason, message, details and Retry-After in seconds."""

    def __init__(
        self,
        code: int,
        message: str,
        *,
        reason: str = "",
        details: dict[str, Any] | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason or REASONS.get(code, "Unknown")
        self.details = dict(details or {})
        self.retry_after = retry_after
        if retry_after is not None:
            self.details.setdefault("retryAfterSeconds", retry_after)

    def status(self) -> dict[str, Any]:
        """Returns the error as a Status object."""
        found: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
        }
        if self.details:
            found["details"] = self.details
        found["code"] = self.code
        return found


def subject(resource: ServedResource, name: str) -> dict[str, Any]:
    """Returns the details that name an object."""
    details = {"name": name, "kind": resource.plural}
    return {**details, "group": resource.group} if resource.group else details


def _named(resource: ServedResource, name: str) -> str:
    """Returns an object in messages: `podgroups.scheduling.sigs.k8s.io "train"`."""
    return f'{resource.plural}{resource.group and f".{resource.group}"} "{name}"'


def not_found(resource: ServedResource, name: str) -> StatusError:
    """Returns an error 404 about an object that does not exist."""
    return StatusError(404, f"{_named(resource, name)} not found", details=subject(resource, name))


def no_such_path(part: str = "") -> StatusError:
    """Returns an error 404. part: the requested subresource."""
    why = (
        f": {part} is not supported, because no containers run on this embedded cluster"
        if part in OF_CONTAINERS
        else ""
    )
    return StatusError(404, f"the server could not find the requested resource{why}")


def already_exists(resource: ServedResource, name: str) -> StatusError:
    """Returns an error 409 with the reason AlreadyExists."""
    text = f"{_named(resource, name)} already exists"
    return StatusError(409, text, reason="AlreadyExists", details=subject(resource, name))


def conflict(resource: ServedResource, name: str, why: str) -> StatusError:
    """Returns an error 409 with the reason Conflict: the object has another state than the request assumes."""
    text = f"Operation cannot be fulfilled on {_named(resource, name)}: {why}"
    return StatusError(409, text, details=subject(resource, name))


def check_preconditions(resource: ServedResource, obj: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raises StatusError 409 if an object has another uid or resourceVersion than wanted."""
    meta = obj["metadata"]
    for field, own in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        given = wanted.get(field)
        if given and given != meta[field]:
            why = f"Precondition failed: {own} in precondition: {given}, {own} in object meta: {meta[field]}"
            raise conflict(resource, meta["name"], why)


def forbidden(resource: ServedResource, name: str, why: str) -> StatusError:
    """Returns an error 403 of admission."""
    return StatusError(403, f"{_named(resource, name)} is forbidden: {why}", details=subject(resource, name))


def invalid(resource: ServedResource, name: str, *faults: tuple[str, str, str]) -> StatusError:
    """Returns an error 422 with one cause per fault. A fault is (field, cause reason such as FieldValueInvalid,
    message)."""
    texts = [f"{field}: {message}" for field, _, message in faults]
    joined = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    kind = f"{resource.kind}{resource.group and f'.{resource.group}'}"
    causes = [{"reason": reason, "message": message, "field": field} for field, reason, message in faults]
    details = {**subject(resource, name), "kind": resource.kind, "causes": causes}
    return StatusError(422, f'{kind} "{name}" is invalid: {joined}', details=details)
