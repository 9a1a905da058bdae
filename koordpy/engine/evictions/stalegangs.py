"""Live gangs that have lost members: seen at once, said in their PodGroup's condition, acted on when their time comes.

Source: preemption.md 7. What is done is the planner's: a round in which the missing members find no place, and
the grace is over, evicts the rest. This module has such a round held even if nothing else happens, and tells whoever
writes the status of PodGroups which gangs are stale. Since when is in the condition itself, so that a process that
starts anew goes on from there.
"""

import asyncio
from collections.abc import Callable

from koordpy.api.objects import condition_of
from koordpy.cluster.ganghistory import STALE
from koordpy.cluster.pods import GangRef, GangSource
from koordpy.engine.context import Context
from koordpy.planning.victims.stale import StaleState, stale_state

AGAIN_SECONDS = 10.0
"""A gang whose time has come and that could not be acted on (a budget, a round that failed) is looked at again."""


class StaleWatch:
    """Knows the stale gangs. Owned by the event loop; `run` looks until cancelled."""

    def __init__(self, context: Context, wake: Callable[[], None]) -> None:
        """`wake` is called when a gang may have become due."""
        self.told: list[Callable[[GangRef], None]] = []
        """Hear of gangs that became stale or whole again."""
        self.half_over: list[Callable[[GangRef], None]] = []
        """Hear of gangs half of whose grace is over."""
        self._reminded: set[GangRef] = set()
        self._feeds, self._wake, self._now = context.feeds, wake, context.now
        self._settings, self._interval = context.settings.config.stale_gangs, context.settings.group_status_seconds
        self._dirty: dict[GangRef, None] = {}
        self._stale: dict[GangRef, StaleState] = {}
        self.due: dict[GangRef, float] = {}
        """Stale gang -> when a round is to be held for its sake, seconds since the epoch."""
        self._said: dict[GangRef, str] = {}
        """Since when each is stale by its condition, as it was read."""
        self._feeds.listeners.gang.append(self._changed)

    def _changed(self, ref: GangRef) -> None:
        self._dirty[ref] = None

    async def run(self) -> None:
        """Looks at gangs that changed, until cancelled."""
        while True:
            self.look()
            self._remind()
            await asyncio.sleep(self._interval)

    def look(self) -> None:
        """Reads the gangs that changed since the last look."""
        dirty, self._dirty = self._dirty, {}
        state = self._feeds.state
        suspects = [ref for ref in dirty if ref in self._stale or any(pod.bound for pod in state.gangs.members(ref))]
        suspects = [ref for ref in suspects if ref in self._stale or self._may_be_stale(ref)]
        # the watch has brought the condition, which says since when
        suspects += [ref for ref in self._stale if ref not in dirty and self._began(ref) != self._said[ref]]
        if not suspects:
            return
        snapshot = state.snapshot(self._now())
        for ref in suspects:
            found, before = stale_state(ref, snapshot, self._settings), self._stale.get(ref)
            if found is None:
                for known in (self._stale, self.due, self._said):
                    known.pop(ref, None)
            else:
                self._stale[ref], self._said[ref] = found, self._began(ref)
                if found.due is None:
                    self.due.pop(ref, None)
                elif before is None or before.due != found.due:
                    self.due[ref] = found.due
            if found != before:
                for told in self.told:
                    told(ref)
        if self.due:
            self._wake()

    def _remind(self) -> None:
        now = self._now()
        self._reminded &= self._stale.keys()
        for ref, found in self._stale.items():
            if ref not in self._reminded and found.due is not None and now >= found.due - found.grace / 2:
                self._reminded.add(ref)
                for hear in self.half_over if found.grace else ():
                    hear(ref)

    def _may_be_stale(self, ref: GangRef) -> bool:
        """By what is at hand without a snapshot."""
        group = self._feeds.state.gangs.groups.get(ref.key) if ref.source is GangSource.GROUP else None
        bound = sum(pod.bound for pod in self._feeds.state.gangs.members(ref))
        return group is None or bound < group.spec.min_member

    def _began(self, ref: GangRef) -> str:
        group = self._feeds.state.gangs.groups.get(ref.key) if ref.source is GangSource.GROUP else None
        said = condition_of(group.status.conditions, STALE) if group is not None else None
        return (said.last_transition_time or "") if said is not None and said.status == "True" else ""

    def state(self, ref: GangRef) -> StaleState | None:
        """What is known of a stale gang; None of any other."""
        return self._stale.get(ref)

    def text(self, key: str) -> str:
        """What the condition of a PodGroup says; empty for one that is not stale."""
        found = self._stale.get(GangRef.of(key))
        return found.text(key) if found is not None else ""

    def take(self) -> list[str]:
        """The units whose gangs are due: the round under way is to try them."""
        now = self._now()
        due = [ref for ref, at in self.due.items() if at <= now]
        for ref in due:
            self.due[ref] = now + AGAIN_SECONDS
        return list(dict.fromkeys(self._feeds.names.of_gang(ref) for ref in due))
