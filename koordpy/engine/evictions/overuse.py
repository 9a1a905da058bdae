"""Quotas that stay above their runtime: a round is held for them even if nobody waits to be scheduled.

Source: quota-fairness.md 5. What is given back is the planner's choice; this module knows when.
Since when a quota is above its runtime is in its condition OverUsed, so that a process that starts anew goes on from
there.
"""

import asyncio
from collections.abc import Callable

from koordpy.engine.context import Context
from koordpy.planning.quota.runtime import tree_figures

AGAIN_SECONDS = 10.0
"""A quota whose time has come and that could not give back (a budget, protected pods) is looked at again."""


class OveruseWatch:
    """Knows when quotas are to give back; only with monitorAllQuotas. Owned by the event loop."""

    def __init__(self, context: Context, wake: Callable[[], None]) -> None:
        """`wake` is called when a quota may have become due."""
        self._state, self._wake, self._now = context.state, wake, context.now
        self._settings, self._interval = context.settings.config.quota, context.settings.group_status_seconds
        self._seen: object = None
        self._due: dict[str, float] = {}
        """Quota above its runtime -> when it is to give back."""
        self._held: dict[str, float] = {}
        """Quota that a round was held for -> when the next one may be."""

    async def run(self) -> None:
        """Looks at what changed, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(self._interval)

    def look(self) -> None:
        """Reads which quotas are above their runtime, if anything changed since the last look."""
        if self._seen == (seen := self._state.quota_marks):
            return
        self._seen = seen
        quotas = self._state.quota_view()
        figures, delay = tree_figures(quotas, self._settings), self._settings.delay_evict_time
        now, due = self._now(), {}
        for name, quota in quotas.tree.quotas.items():
            if not figures[name].over:
                continue
            if delay <= 0:
                due[name] = self._due.get(name, now)
            elif quota.over_since is not None:
                due[name] = quota.over_since + delay
        self._due = due
        self._held = {name: at for name, at in self._held.items() if name in due}
        if due:
            self._wake()

    def next_due(self) -> float | None:
        """When a round is to be held, seconds since the epoch; None for never."""
        return min((max(at, self._held.get(name, 0.0)) for name, at in self._due.items()), default=None)

    def take(self) -> bool:
        """Whether a quota is due: the round under way is for it, too."""
        now = self._now()
        due = [name for name, at in self._due.items() if max(at, self._held.get(name, 0.0)) <= now]
        self._held |= dict.fromkeys(due, now + AGAIN_SECONDS)
        return bool(due)
