# SPDX-License-Identifier: Apache-2.0
"""Times as text and as seconds since the epoch, and `SteadyTime`, a clock for the time of day that does not jump.

The text of a time is in RFC 3339 and UTC, as the API server writes it (`2026-01-01T00:00:00Z`).
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime

from koordpy.api.bounded_memory import cached

_LAST = datetime.max.replace(microsecond=0, tzinfo=UTC).timestamp()
"""The latest time that can be written, in seconds since the epoch. Pods may request any number of seconds of grace."""
RFC3339 = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:Z|[+-][0-9]{2}:[0-9]{2})")


def rfc3339(at: datetime | float) -> str:
    """Returns a time as metav1.Time: whole seconds, at most the last second of the year 9999.

    at: a datetime, or seconds since the epoch.
    """
    moment = at if isinstance(at, datetime) else datetime.fromtimestamp(min(at, _LAST), UTC)
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_time(at: float) -> str:
    """Returns a time as metav1.MicroTime, with microseconds. at: seconds since the epoch."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def exact_time(at: datetime) -> str:
    """Returns a time in RFC 3339 with all its digits."""
    return at.isoformat().replace("+00:00", "Z")


def parse_moment(text: str) -> datetime:
    """Returns the datetime of an RFC 3339 time; a time without a zone is in UTC. Raises ValueError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time (as in 2026-01-01T00:00:00Z)") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def time_text(text: str) -> str:
    """Returns a time as RFC 3339 text. Also accepts a plain date, and a space instead of the T. Raises ValueError."""
    moment = parse_moment(text.strip())
    return text if RFC3339.fullmatch(text) else exact_time(moment)


@cached(1 << 12)
def seconds(text: str | None) -> float:
    """Returns the seconds since the epoch of an RFC 3339 time; 0 if the text is None or unreadable."""
    if not text:
        return 0.0
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


SLEW = 0.1
"""Maximum relative difference between the speeds of the steady clock and the machine's clock during a correction.

A grace period of a minute then lasts 54 to 67 s, and an error of five minutes is corrected within an hour.
"""


class SteadyTime:
    """Clock for the time of day, in seconds since the epoch, that does not jump with the machine's clock.

    Objects store times of day, such as the time when a gang became stale, so plans need the time of day. But a change
    of the machine's clock must not end a grace period of a minute at once, nor extend it by an hour. So the clock takes
    the time of day at its creation, and then adds the seconds of a monotonic clock. If the machine's clock differs, the
    steady clock approaches it slowly, and never goes backwards. Not thread-safe.
    """

    def __init__(self, wall: Callable[[], float], clock: Callable[[], float]) -> None:
        """wall: returns seconds since the epoch, which may jump. clock: returns monotonic seconds from any start, which
        must continue while the machine sleeps."""
        self._wall, self._clock = wall, clock
        self._at, self._said = clock(), wall()

    def __call__(self) -> float:
        """Returns seconds since the epoch, never less than in an earlier call."""
        at = self._clock()
        passed = max(0.0, at - self._at)
        most = SLEW * passed  # maximum correction in this call
        off = self._wall() - (self._said + passed)
        self._at, self._said = at, self._said + passed + min(most, max(-most, off))
        return self._said
