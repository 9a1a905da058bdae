# SPDX-License-Identifier: Apache-2.0
"""A token bucket: limits the average rate of calls, and allows a burst (clientConnection.qps and burst)."""

import asyncio
import time
from collections.abc import Awaitable, Callable


class TokenBucket:
    """A rate limit (clientConnection qps and burst), first come first served.

    `qps` tokens are added per second, and at most `burst` are saved. A qps of 0 or less means no limit.
    """

    def __init__(
        self,
        qps: float,
        burst: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """qps: tokens per second. burst: maximum number of saved tokens; the bucket starts full."""
        self.qps, self.burst = qps, max(1, burst)
        self._clock, self._sleep = clock, sleep
        self._tokens, self._filled_at = float(self.burst), clock()

    def reserve(self) -> float:
        """Takes a token, even if none is available yet. Returns the seconds until the token is available."""
        if self.qps <= 0:
            return 0.0
        now = self._clock()
        self._tokens = min(self.burst, self._tokens + (now - self._filled_at) * self.qps) - 1
        self._filled_at = now
        return max(0.0, -self._tokens / self.qps)

    async def take(self) -> bool:
        """Waits for a token, and takes it. Returns True if it had to wait."""
        wait = self.reserve()
        if wait:
            await self._sleep(wait)
        return wait > 0


UNLIMITED = TokenBucket(0.0, 1)
"""A bucket without a limit."""
