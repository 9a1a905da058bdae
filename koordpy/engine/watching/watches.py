"""Rounds that are held though no unit is due: for gangs that have lost members, and quotas above their runtime."""

import asyncio
from collections.abc import Callable

from koordpy.engine.evictions.overuse import OveruseWatch
from koordpy.engine.evictions.stalegangs import StaleWatch
from koordpy.engine.settings import EngineSettings
from koordpy.engine.watching.feeds import Feeds


class Watches:
    """What time alone makes due. A dry run has none of them: what it decides changes nothing of them."""

    def __init__(
        self, feeds: Feeds, settings: EngineSettings, *, wake: Callable[[], None], now: Callable[[], float]
    ) -> None:
        """`wake` is called when one may have become due. `now`: seconds since the epoch."""
        self._now = now
        self.stale: StaleWatch | None = None
        self.overuse: OveruseWatch | None = None
        if settings.dry_run:
            return
        seconds = settings.group_status_seconds
        self.stale = StaleWatch(feeds, settings.stale_gangs, wake=wake, interval_seconds=seconds, now=now)
        if settings.quota.monitor_all_quotas and settings.quota.enable_runtime_quota:
            self.overuse = OveruseWatch(feeds.state, settings.quota, wake=wake, interval_seconds=seconds, now=now)

    async def run(self) -> None:
        """Looks until cancelled."""
        async with asyncio.TaskGroup() as group:
            if self.stale is not None:
                group.create_task(self.stale.run())
            if self.overuse is not None:
                group.create_task(self.overuse.run())

    def next_due(self) -> float | None:
        """When a round is to be held, seconds since the epoch; None for never."""
        watches = [watch for watch in (self.stale, self.overuse) if watch is not None]
        return min((due for watch in watches if (due := watch.next_due()) is not None), default=None)

    def due(self) -> bool:
        """Whether a round is to be held now."""
        due = self.next_due()
        return due is not None and due <= self._now()

    def stale_units(self) -> list[str]:
        """Units that the round under way is to try for the sake of their stale gangs."""
        return self.stale.take() if self.stale is not None else []

    def over_used(self) -> bool:
        """Whether the round under way is for quotas, too."""
        return self.overuse.take() if self.overuse is not None else False
