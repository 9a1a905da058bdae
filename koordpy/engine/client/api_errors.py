"""Errors of calls to the API server."""


class ApiError(Exception):
    """The API server answered with an error: the request was not carried out, but for 5xx, where nobody knows.

    `retry_after` is in seconds, None when the server did not say.
    """

    def __init__(self, status: int, reason: str = "", message: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}" if reason else f"{status}: {message}")
        self.status, self.reason, self.message, self.retry_after = status, reason, message, retry_after


class Unreachable(Exception):
    """No answer: a timeout, a dropped or refused connection, or one that is no object. The outcome of a write is
    unknown if `sent`."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class Untrusted(Unreachable):
    """The certificate of whoever answers is refused; nothing was sent."""
