# SPDX-License-Identifier: Apache-2.0
"""Exceptions of calls to the API server: `ApiError` for a reply with an error, `Unreachable` for no valid reply."""


class ApiError(Exception):
    """The API server replied with an error. After a 5xx the request may have been carried out, otherwise it was not.

    status: HTTP status; 200 with reason Undecodable for a reply that cannot be decoded. retry_after: seconds that the
    server asks to wait; None if it did not ask.
    """

    def __init__(self, status: int, reason: str = "", message: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}" if reason else f"{status}: {message}")
        self.status, self.reason, self.message, self.retry_after = status, reason, message, retry_after

    @property
    def is_missing_right(self) -> bool:
        """True if authorization (RBAC) refused the request, as `User "u" cannot create resource "pods" ...`. False for
        other errors, also if admission refused it, for example a ResourceQuota of one namespace."""
        return self.status == 403 and " cannot " in self.message


class Unreachable(Exception):
    """No valid reply: a timeout, a dropped or refused connection, or a reply that is not an object.

    sent: True if the request may have been sent, so that the outcome of a write is unknown.
    """

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class Untrusted(Unreachable):
    """The server's certificate is not trusted; nothing was sent."""
