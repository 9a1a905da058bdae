# SPDX-License-Identifier: Apache-2.0
"""Limits the requests of tenants: requests per second by a token bucket for each tenant, and open requests."""

import asyncio
import contextlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator

from koordpy.plan.limits import (
    ASKED_AT_ONCE,
    ASKED_EACH_SECOND,
    QUESTIONS_OPEN,
    QUESTIONS_OPEN_EACH,
    REFUSAL_SECONDS,
    REFUSALS_WAITING,
    TENANTS_METERED,
)

TOO_MANY = "TooManyRequests"


class RefusedError(Exception):
    """A request is rejected with a Status object."""

    def __init__(self, status: int, reason: str, message: str, *, retry: float = 0.0) -> None:
        """status: HTTP status. retry: seconds after which the client may retry; 0: no hint."""
        super().__init__(message)
        self.status, self.reason, self.retry = status, reason, retry


class Bucket:
    """A token bucket: it gains `rate` tokens a second and has at most `most`. A rejected request takes no token."""

    def __init__(self, rate: float, most: float, clock: Callable[[], float]) -> None:
        self._rate, self._most, self._clock = rate, float(most), clock
        self._left, self._at = self._most, clock()

    def take(self) -> bool:
        now = self._clock()
        self._left, self._at = min(self._most, self._left + (now - self._at) * self._rate), now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Meter:
    """Counts the requests per second, and the open requests, of each tenant."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()
        """Tenant -> its bucket; the tenant of the last request is at the end."""
        self._open: Counter[str] = Counter()
        self._refusing = 0

    def take(self, tenant: str) -> bool:
        """Returns True if the tenant may send one more request now; the request is counted then."""
        bucket = self._buckets.pop(tenant, None) or Bucket(ASKED_EACH_SECOND, ASKED_AT_ONCE, self._clock)
        self._buckets[tenant] = bucket
        if len(self._buckets) > TENANTS_METERED:
            self._buckets.popitem(last=False)
        return bucket.take()

    @contextlib.contextmanager
    def opened(self, tenant: str) -> Iterator[None]:
        """Counts an open request. Raises RefusedError if there are too many."""
        if self._open[tenant] >= QUESTIONS_OPEN_EACH:
            raise too_many(f"{tenant} has {QUESTIONS_OPEN_EACH} open requests")
        if self._open[tenant] and self._open.total() >= QUESTIONS_OPEN:  # one request per tenant is always accepted
            raise too_many(f"{QUESTIONS_OPEN} requests are open")
        self._open[tenant] += 1
        try:
            yield
        finally:
            self._open[tenant] -= 1
            if not self._open[tenant]:
                del self._open[tenant]

    async def slow_down(self) -> None:
        """Delays a rejection, unless many rejections are delayed already."""
        if self._refusing >= REFUSALS_WAITING:
            return
        self._refusing += 1
        try:
            await asyncio.sleep(REFUSAL_SECONDS)
        finally:
            self._refusing -= 1


def too_many(message: str) -> RefusedError:
    return RefusedError(429, TOO_MANY, f"{message}: try again later", retry=1 / ASKED_EACH_SECOND)
