"""Pauses between tries: they double up to a limit, with jitter, so that many clients do not retry together."""

import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """`next()` returns the seconds until the next try; `reset()` is called after a success."""

    first_seconds: float = 0.1
    most_seconds: float = 20.0
    tries: int = field(default=0, init=False)

    def next(self) -> float:
        # the exponent is bounded so that a very long outage does not overflow
        base = min(self.most_seconds, self.first_seconds * 2.0 ** min(self.tries, 32))
        self.tries += 1
        return base * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self.tries = 0
