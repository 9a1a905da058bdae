"""Who went for whom within the hour: what keeps reclaim from turning in a circle (preemption.md 3.6).

Where jobs cannot all run, each may lawfully take from the next, round and round. Every circle takes back a share
somewhere, or takes by quota a unit that brings its quota below its min. Who was evicted therefore takes nothing back by
fair share from those who gained by it, be it along a chain, and by quota only what leaves their quota its min: then
what is evicted is always below its beneficiary in one order, and the running units grow in that order with every plan.
Units are known by id, so one that is made again under its name is who it was. A memory that is lost costs one more turn
of a circle.
"""

from collections.abc import Mapping

YIELD_SECONDS = 3600.0
"""So long an eviction is remembered. What jobs ask for changes meanwhile, and with it what anybody deserves."""
YIELDS = 10_000
"""Evictions of that time that are remembered, the latest."""

Yielded = Mapping[str, tuple[str, ...]]
"""Id of a unit -> ids of those that it was evicted for."""


class PreemptionHistory:
    """The evictions of the last hour."""

    def __init__(self) -> None:
        self.at: dict[tuple[str, str], float] = {}
        """(loser, gainer) -> when, the latest last."""
        self._seen: Yielded | None = None
        """The view, while nothing was added to it."""

    def add(self, loser: str, gainer: str, now: float) -> None:
        """A unit is evicted for another (ids)."""
        self._seen = None
        self.at.pop((loser, gainer), None)
        self.at[loser, gainer] = now
        if len(self.at) > YIELDS:
            del self.at[next(iter(self.at))]

    def view(self, now: float) -> Yielded:
        """What is remembered by now. Every snapshot asks: it is the same until something is added, or an hour old."""
        if self._seen is not None and (
            not self.at
            or (next(iter(self.at.values())) > now - YIELD_SECONDS and next(reversed(self.at.values())) <= now)
        ):
            return self._seen
        for pair, at in list(self.at.items()):
            if at <= now - YIELD_SECONDS:
                del self.at[pair]
            elif at > now:  # of a clock that was set back, or read a moment later than this
                self.at[pair] = now
        out: dict[str, list[str]] = {}
        for loser, gainer in self.at:
            out.setdefault(loser, []).append(gainer)
        self._seen = {loser: tuple(gained) for loser, gained in out.items()}
        return self._seen


def gainers(yielded: Yielded, loser: str) -> frozenset[str]:
    """Ids of the units that gained by the eviction of one, themselves or along a chain."""
    found, open_ = set[str](), [loser]
    while open_:
        more = [one for one in yielded.get(open_.pop(), ()) if one not in found]
        found.update(more)
        open_ += more
    return frozenset(found)
