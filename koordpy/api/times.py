"""Times of day: as the API server writes and reads them, RFC 3339 in UTC; and what time of day it is."""

import re
from collections.abc import Callable
from datetime import UTC, datetime

from koordpy.api.bounded_memory import remembered

_LAST = datetime.max.replace(microsecond=0, tzinfo=UTC).timestamp()
"""The last second that can be written: a pod may ask for a grace of any number of seconds."""
RFC3339 = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:Z|[+-][0-9]{2}:[0-9]{2})")


def rfc3339(at: datetime | float) -> str:
    """metav1.Time, whole seconds, at most the last one of the year 9999. at: a moment, or seconds since the epoch."""
    moment = at if isinstance(at, datetime) else datetime.fromtimestamp(min(at, _LAST), UTC)
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_time(at: float) -> str:
    """metav1.MicroTime. at: seconds since the epoch."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def exact_time(at: datetime) -> str:
    """As exact as it is."""
    return at.isoformat().replace("+00:00", "Z")


def parse_moment(text: str) -> datetime:
    """An RFC 3339 time; without a zone it is UTC. Raises ValueError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time (as in 2026-01-01T00:00:00Z)") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def time_text(text: str) -> str:
    """An RFC 3339 time; dates and times with a blank are put into that form. Raises ValueError."""
    moment = parse_moment(text.strip())
    return text if RFC3339.fullmatch(text) else exact_time(moment)


@remembered(1 << 12)
def seconds(text: str | None) -> float:
    """Seconds since the epoch of an RFC 3339 time; 0 for none or an unreadable one."""
    if not text:
        return 0.0
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


SLEW = 0.1
"""How much faster or slower than a second a second of ours is at the most, while we are off the machine's clock: a
grace of a minute lasts 54 to 67 s then, and five minutes are made up for within an hour."""


class SteadyTime:
    """The time of day that no jump of the machine's clock moves, as epoch seconds; call it. Not thread-safe.

    What stands in objects are times of day: since when a gang is stale, when a pod that ends began to, when one was
    made. So plans are made at a time of day, and who waits a minute must not be given up, nor waited for an hour
    longer, because somebody set a clock. A process takes the time of day when it starts and counts on by a clock that
    never jumps; where the machine's clock says something else, it goes there slowly, and never backwards.
    """

    def __init__(self, wall: Callable[[], float], clock: Callable[[], float]) -> None:
        """wall: epoch seconds, which may jump; clock: seconds that never go back, those of a sleeping machine included,
        from anywhere."""
        self._wall, self._clock = wall, clock
        self._at, self._said = clock(), wall()

    def __call__(self) -> float:
        """Seconds since the epoch; never less than before."""
        at = self._clock()
        passed = max(0.0, at - self._at)
        most = SLEW * passed
        off = self._wall() - (self._said + passed)
        self._at, self._said = at, self._said + passed + min(most, max(-most, off))
        return self._said
