"""The time of day that no jump of the machine's clock moves.

What stands in objects are times of day: since when a gang is stale, when a pod that ends began to, when one was made.
So plans are made at a time of day, and who waits a minute must not be given up, nor waited for an hour longer, because
somebody set a clock. A process takes the time of day when it starts and counts on by a clock that never jumps; where
the machine's clock says something else, it goes there slowly, and never backwards.
"""

from collections.abc import Callable

SLEW = 0.1
"""How much faster or slower than a second a second of ours is at the most, while we are off the machine's clock: a
grace of a minute lasts 54 to 67 s then, and five minutes are made up for within an hour."""


class SteadyTime:
    """Epoch seconds; call it. Not thread-safe."""

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
