"""Pauses between tries: doubling, bounded, jittered so that a fleet does not come back in step."""

import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """`next()` gives the seconds to wait before the next try, `reset()` is for a success."""

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
