# SPDX-License-Identifier: Apache-2.0
"""Exponential back-off: pauses between tries double up to a limit, with jitter against simultaneous retries."""

import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """The back-off of one call."""

    first_seconds: float = 0.1
    most_seconds: float = 20.0
    tries: int = field(default=0, init=False)
    """Number of failed tries, which is the number of calls of `next` since the last success."""

    def next(self) -> float:
        """Counts a failed try, and returns the seconds until the next one."""
        # the exponent is bounded so that a very long outage does not overflow
        base = min(self.most_seconds, self.first_seconds * 2.0 ** min(self.tries, 32))
        self.tries += 1
        return base * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Starts again with the first pause. Called after a success."""
        self.tries = 0
