# SPDX-License-Identifier: Apache-2.0
"""The evictions of the last hour (evicted unit, unit that it was evicted for), to prevent eviction in a cycle.

If not all jobs can run, the rules may allow each job to evict the next one in a cycle (docs/rules/preemption.md 3.6).
Every cycle contains a reclaim by fair share, or a reclaim by quota that brings a quota below its min. Therefore reclaim
by an evicted unit is restricted. Its gainers are the unit that it was evicted for, the unit that this gainer was
evicted for, and so on. By fair share it reclaims nothing from its gainers. By quota it reclaims from them only as much
as leaves their quotas at min. Units are identified by id: a recreated unit with the same name is the same unit. If the
history is lost in a restart, a cycle may run once more.
"""

from collections.abc import Mapping

EVICTION_SECONDS = 3600.0
"""Seconds for which an eviction is remembered. After that, demand and so entitlements may have changed."""
MAX_EVICTIONS = 10_000
"""Maximum number of remembered evictions; the oldest are dropped first."""

EvictedFor = Mapping[str, tuple[str, ...]]
"""Id of an evicted unit -> ids of the units that it was evicted for."""


class PreemptionHistory:
    """The evictions of the last hour: which unit was evicted for which other unit."""

    def __init__(self) -> None:
        self.times: dict[tuple[str, str], float] = {}
        """(evicted unit, unit that it was evicted for) -> time in seconds since the epoch, the latest last."""
        self._seen: EvictedFor | None = None
        """Cached result of `view`; None after a change."""

    def add(self, loser: str, gainer: str, now: float) -> None:
        """Records that unit `loser` was evicted for unit `gainer`."""
        self._seen = None
        self.times.pop((loser, gainer), None)
        self.times[loser, gainer] = now
        if len(self.times) > MAX_EVICTIONS:
            del self.times[next(iter(self.times))]

    def view(self, now: float) -> EvictedFor:
        """Returns the evictions of the last hour. now: seconds since the epoch.

        The result is cached until an eviction is added or expires.
        """
        if self._seen is not None and (
            not self.times
            or (next(iter(self.times.values())) > now - EVICTION_SECONDS and next(reversed(self.times.values())) <= now)
        ):
            return self._seen
        for pair, at in list(self.times.items()):
            if at <= now - EVICTION_SECONDS:
                del self.times[pair]
            elif at > now:  # the clock was set back, or the eviction was recorded later than `now` was read
                self.times[pair] = now
        out: dict[str, list[str]] = {}
        for loser, gainer in self.times:
            out.setdefault(loser, []).append(gainer)
        self._seen = {loser: tuple(gained) for loser, gained in out.items()}
        return self._seen


def units_that_gained(evicted_for: EvictedFor, loser: str) -> frozenset[str]:
    """Returns the ids of the units that gained by the eviction of a unit, directly or along a chain."""
    found, open_ = set[str](), [loser]
    while open_:
        more = [one for one in evicted_for.get(open_.pop(), ()) if one not in found]
        found.update(more)
        open_ += more
    return frozenset(found)
