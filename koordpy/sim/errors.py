"""What the embedded API server answers when it refuses: the `Status` objects of the Kubernetes API.

Clients decide by `code` and `reason`, so both are spelled as kube-apiserver spells them; messages follow its wording
where people see them in kubectl.
"""

from collections.abc import Sequence
from typing import Any

import orjson

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
"""Subresources of pods that a kubelet answers."""
SUCCESS_201 = b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}\n'


class StatusError(Exception):
    """A refusal with its HTTP code, machine-readable reason, message, details and Retry-After seconds."""

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
        """The Status object of this refusal."""
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

    def body(self) -> bytes:
        """The Status as JSON, newline at the end."""
        return orjson.dumps(self.status()) + b"\n"


def _qualified(plural: str, group: str) -> str:
    return f"{plural}.{group}" if group else plural


def _subject(plural: str, group: str, name: str) -> dict[str, Any]:
    details = {"name": name, "kind": plural}
    return {**details, "group": group} if group else details


def not_found(plural: str, group: str, name: str) -> StatusError:
    return StatusError(404, f'{_qualified(plural, group)} "{name}" not found', details=_subject(plural, group, name))


def no_such_path(part: str = "") -> StatusError:
    """404; part: the subresource that was asked for."""
    why = f": there is no {part}, for no container runs on this embedded cluster" if part in OF_CONTAINERS else ""
    return StatusError(404, f"the server could not find the requested resource{why}")


def already_exists(plural: str, group: str, name: str) -> StatusError:
    return StatusError(
        409,
        f'{_qualified(plural, group)} "{name}" already exists',
        reason="AlreadyExists",
        details=_subject(plural, group, name),
    )


def conflict(plural: str, group: str, name: str, why: str) -> StatusError:
    return StatusError(
        409,
        f'Operation cannot be fulfilled on {_qualified(plural, group)} "{name}": {why}',
        details=_subject(plural, group, name),
    )


def forbidden(plural: str, group: str, name: str, why: str) -> StatusError:
    return StatusError(
        403, f'{_qualified(plural, group)} "{name}" is forbidden: {why}', details=_subject(plural, group, name)
    )


def invalid(kind: str, group: str, name: str, faults: Sequence[tuple[str, str, str]]) -> StatusError:
    """422 with one cause a fault; a fault is (field, cause reason as FieldValueInvalid, message)."""
    texts = [f"{field}: {message}" for field, _, message in faults]
    joined = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    return StatusError(
        422,
        f'{_qualified(kind, group)} "{name}" is invalid: {joined}',
        details={
            **_subject(kind, group, name),
            "causes": [{"reason": reason, "message": message, "field": field} for field, reason, message in faults],
        },
    )


def expired(message: str = "The provided resource version is too old.") -> StatusError:
    return StatusError(410, message, reason="Expired")
