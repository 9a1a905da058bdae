# SPDX-License-Identifier: Apache-2.0
"""Requests rounds that must run although no unit of the queue is due: for stale and broken gangs, and for quotas above
runtime.

- Stale gangs have lost bound members that they need. Their PodGroup gets the condition Stale at once. After a grace
  period, a round tries to place the missing members; if that fails, it evicts the rest of the gang (preemption.md 7),
  or moves the gang (repair.md 4.3).
- Broken gangs get a round that reserves their seats, even without a pending member (repair.md 4.4).
- Quotas that stay above their runtime get a round that evicts pods of theirs (quota-fairness.md 5).

The planner decides what is evicted. This module decides when a round runs, and notifies the writers of status. The
start of a grace period is read from the condition of the PodGroup (Stale) or of the quota (OverUsed), so that a new
process continues the same grace period.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

from koordpy.api.objects import condition_of
from koordpy.cache.gang_history import STALE
from koordpy.cache.snapshot import Snapshot
from koordpy.engine.engine_context import Context
from koordpy.fairness.quota_runtime import quota_amounts
from koordpy.plan.gang_repair import GangRepair, KeptSeats
from koordpy.pods.gang_refs import GangRef, GangSource
from koordpy.preemption.search.stale_gangs import StaleState, stale_state
from koordpy.report.repair_report import broken_gang

AGAIN_SECONDS = 10.0
"""Pause before the next round for a gang or quota for which a round could do nothing, for example because of a
PodDisruptionBudget."""


class StaleWatch:
    """Tracks stale and broken gangs. Owned by the event loop.

    A gang with members on failed nodes is broken at once, but stale only when these pods are deleted (repair.md 4.1).
    """

    def __init__(self, context: Context, wake: Callable[[], None]) -> None:
        """wake: called when a gang may have become due."""
        self.changed_listeners: list[Callable[[GangRef], None]] = []
        """Called with a gang that became stale or broken, lacks other members than before, or is complete again."""
        self.half_over_listeners: list[Callable[[GangRef], None]] = []
        """Called with a stale gang when half of its grace is over."""
        self._reminded: set[GangRef] = set()
        """Stale gangs for which `half_over_listeners` were called."""
        self._feeds, self._wake, self._now = context.feeds, wake, context.now
        config = context.settings.config
        self._settings, self._repair = config.stale_gangs, config.repair
        self._dirty: dict[GangRef, None] = {}
        """Gangs that changed since the last call of `look`."""
        self._stale: dict[GangRef, StaleState] = {}
        """Stale gang -> its state: missing members and grace."""
        self.due: dict[GangRef, float] = {}
        """Stale gang -> time of the round that handles it, in seconds since 1970."""
        self._said: dict[GangRef, str] = {}
        """Stale gang -> start of its grace period as last read from condition Stale; empty if that is not True."""
        self._broken: dict[GangRef, GangRepair] = {}
        """Broken gang -> its missing members (`GangRepair`), without its seats."""
        self.unseated: dict[GangRef, None] = {}
        """Gangs that lack other members than in the last round, so that the next one must run for their seats."""
        self._seats: Mapping[str, KeptSeats] = {}
        """Broken gang, `namespace/name` -> its seats in the last round."""
        self._feeds.listeners.gang.append(self._changed)

    def _changed(self, ref: GangRef) -> None:
        self._dirty[ref] = None

    def look(self) -> None:
        """Updates the state of gangs that changed since the last call."""
        dirty, self._dirty = self._dirty, {}
        state = self._feeds.state
        # cheap checks first, because the exact one needs a snapshot
        known = self._stale.keys() | self._broken.keys()
        suspects = [ref for ref in dirty if ref in known or any(pod.bound for pod in state.gangs.members(ref))]
        suspects = [ref for ref in suspects if ref in known or self._may_be_stale(ref)]
        # and gangs for which the watch has delivered another start of the grace period
        suspects += [ref for ref in self._stale if ref not in dirty and self._began(ref) != self._said[ref]]
        if not suspects:
            return
        snapshot = state.snapshot(self._now())
        for ref in suspects:
            found, before = stale_state(ref, snapshot, self._settings, self._repair), self._stale.get(ref)
            if found is None:
                for book in (self._stale, self.due, self._said):
                    book.pop(ref, None)
            else:
                self._stale[ref], self._said[ref] = found, self._began(ref)
                if found.next_round is None:
                    self.due.pop(ref, None)
                elif before is None or before.next_round != found.next_round:
                    self.due[ref] = found.next_round
            if self._breaks(ref, snapshot) or found != before:
                for listener in self.changed_listeners:
                    listener(ref)
        if self.due or self.unseated:
            self._wake()

    def _breaks(self, ref: GangRef, snapshot: Snapshot) -> bool:
        """Updates the missing members of a gang, and since when it is broken. Returns True if the members changed."""
        found, before = broken_gang(ref, snapshot, self._repair), self._broken.pop(ref, None)
        since = self._feeds.state.broken_since
        if found is None:
            since.pop(ref, None)
            self.unseated.pop(ref, None)
        else:
            self._broken[ref] = found
            since.setdefault(ref, snapshot.now)
            if before is None or found.missing != before.missing:
                self.unseated[ref] = None
        return found != before

    def keep_seats(self, seats: Mapping[str, KeptSeats]) -> None:
        """Records the seats of a round by gang, and calls the listeners for gangs with other seats than before."""
        before, self._seats = self._seats, seats
        for ref in self._broken if before != seats else ():
            if before.get(ref.key) != seats.get(ref.key):
                for listener in self.changed_listeners:
                    listener(ref)

    def remind(self) -> None:
        """Calls `half_over_listeners` for each stale gang once, when half of its grace period is over."""
        now = self._now()
        self._reminded &= self._stale.keys()
        for ref, found in self._stale.items():
            end = found.next_round
            if ref not in self._reminded and end is not None and now >= end - found.length / 2:
                self._reminded.add(ref)
                for listener in self.half_over_listeners if found.length else ():
                    listener(ref)

    def _may_be_stale(self, ref: GangRef) -> bool:
        """Returns False if the gang is certainly not stale, without a snapshot."""
        group = self._feeds.state.gangs.groups.get(ref.key) if ref.source is GangSource.GROUP else None
        bound = sum(pod.bound and not pod.lost for pod in self._feeds.state.gangs.members(ref))
        return group is None or bound < group.spec.min_member

    def _began(self, ref: GangRef) -> str:
        """Returns the start of a gang's grace period (RFC 3339), from condition Stale of its PodGroup; empty if the
        condition is not True."""
        group = self._feeds.state.gangs.groups.get(ref.key) if ref.source is GangSource.GROUP else None
        said = condition_of(group.status.conditions, STALE) if group is not None else None
        return (said.last_transition_time or "") if said is not None and said.status == "True" else ""

    def state(self, ref: GangRef) -> StaleState | None:
        """Returns the state of a stale gang; None if the gang is not stale."""
        return self._stale.get(ref)

    def repair(self, ref: GangRef) -> GangRepair | None:
        """Returns a broken gang's missing members, and its seats of the last round; None if the gang is not broken."""
        found, kept = self._broken.get(ref), self._seats.get(ref.key)
        if found is None or kept is None or kept.until <= self._now():
            return found
        return replace(found, seats=kept.nodes, seats_until=kept.until)

    @property
    def seats(self) -> int:
        """Number of missing members that have a seat since the last round."""
        found = filter(None, map(self.repair, self._broken))
        return sum(sum(one.seats.values()) for one in found)

    def next_due(self) -> float | None:
        """Returns the time of the next round for a gang, in seconds since 1970; None for none."""
        return min((*self.due.values(), *((self._now(),) if self.unseated else ())), default=None)

    def text(self, key: str) -> str:
        """Returns the message for the condition of a PodGroup; empty if its gang is not stale."""
        found = self._stale.get(GangRef.from_key(key))
        return found.text(key) if found is not None else ""

    def take(self) -> list[str]:
        """Returns the ids of the units with due gangs, for the round that begins now. Stale gangs are due again after a
        pause, in case the round can do nothing for them."""
        now = self._now()
        due = [ref for ref, at in self.due.items() if at <= now]
        for ref in due:
            self.due[ref] = now + AGAIN_SECONDS
        due += self.unseated
        self.unseated = {}
        return list(dict.fromkeys(self._feeds.names.of_gang(ref) for ref in due))


class OveruseWatch:
    """Tracks when quotas above their runtime have to evict pods. Exists only with `quota.monitorAllQuotas`. Owned by
    the event loop."""

    def __init__(self, context: Context, wake: Callable[[], None]) -> None:
        """wake: called when a quota may have become due."""
        self._state, self._wake, self._now = context.state, wake, context.now
        self._settings = context.settings.config.quota
        self._seen: object = None
        """`ClusterState.quota_marks` at the last call of `look`."""
        self._due: dict[str, float] = {}
        """Quota above its runtime -> time of the round that evicts its pods, in seconds since 1970."""
        self._held: dict[str, float] = {}
        """Quota for which a round ran -> earliest time of its next round, in seconds since 1970."""

    def look(self) -> None:
        """Finds the quotas above their runtime, if anything changed since the last call."""
        if self._seen == (seen := self._state.quota_marks):
            return
        self._seen = seen
        quotas = self._state.quota_view()
        amounts, delay = quota_amounts(quotas, self._settings), self._settings.delay_evict_time
        now, due = self._now(), {}
        for name, quota in quotas.tree.quotas.items():
            if not amounts[name].over:
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
        """Returns the time of the next round for a quota, in seconds since 1970; None for none."""
        return min((max(at, self._held.get(name, 0.0)) for name, at in self._due.items()), default=None)

    def take(self) -> bool:
        """Returns True if a quota is due, for the round that begins now. The quota is due again after a pause."""
        now = self._now()
        due = [name for name, at in self._due.items() if max(at, self._held.get(name, 0.0)) <= now]
        self._held |= dict.fromkeys(due, now + AGAIN_SECONDS)
        return bool(due)


class LossWatch:
    """Finds nodes that count as lost, because they have been unhealthy for their grace period (repair.md 4.1).

    Gangs with members on a lost node are broken, and pending members may start elsewhere. Owned by the event loop.
    """

    def __init__(self, context: Context) -> None:
        self._state, self._names, self._now = context.state, context.feeds.names, context.now
        self._feeds, self._queue = context.feeds, context.queue
        self._seen = context.now()
        """Time up to which lost nodes were handled, in seconds since 1970."""

    def look(self) -> None:
        """Reports the gangs with members that were lost, or became live again, since the last call."""
        state = self._state
        state.lost_pods.update(state, state.nodes, self._now())
        for ref in state.lost_pods.take_changed():
            self._queue.touch(self._names.of_gang(ref), "PodGroupMember")
            for listener in self._feeds.listeners.gang:
                listener(ref)

    def next_due(self) -> float | None:
        """Returns when the next node will count as lost, in seconds since 1970; None if no node is unhealthy."""
        return self._state.nodes.next_loss(self._seen)

    def take(self) -> list[str]:
        """Returns the ids of the units with pods on nodes that are lost by now, for the round that begins now."""
        due, now = self.next_due(), self._now()
        if due is None or due > now:
            return []
        self._seen = now
        pods = (self._state.pod(key) for name in self._state.nodes.lost(now) for key in self._state.usage.pods_on(name))
        refs = dict.fromkeys(pod.gang for pod in pods if pod is not None and pod.gang is not None)
        return list(dict.fromkeys(map(self._names.of_gang, refs)))


class HurtWatch:
    """Finds gangs with members that use unhealthy devices (repair.md 4.1). Exists only with `repair.sickDevices:
    evict`. Owned by the event loop."""

    def __init__(self, context: Context, wake: Callable[[], None]) -> None:
        """wake: called when a gang with unhealthy devices was found."""
        self._state, self._names, self._now, self._wake = context.state, context.feeds.names, context.now, wake
        self._due: dict[GangRef, float] = {}
        """Gang with members on unhealthy devices -> time of its next round, in seconds since 1970."""

    def look(self) -> None:
        """Updates the gangs with members that use unhealthy devices."""
        views = (book.view() for book in self._state.families.values() if not book.is_idle)
        pods = (self._state.pod(key) for view in views for key in view.sick_holders)
        hurt = {pod.gang for pod in pods if pod is not None and pod.gang is not None and pod.bound}
        self._due = {ref: self._due.get(ref, self._now()) for ref in hurt}
        if self._due:
            self._wake()

    def next_due(self) -> float | None:
        """Returns the time of the next round for a gang, in seconds since 1970; None for none."""
        return min(self._due.values(), default=None)

    def take(self) -> list[str]:
        """Returns the ids of the units with due gangs, for the round that begins now. The gangs are due again after a
        pause, in case the round can do nothing for them."""
        now = self._now()
        due = [ref for ref, at in self._due.items() if at <= now]
        self._due |= dict.fromkeys(due, now + AGAIN_SECONDS)
        return list(dict.fromkeys(map(self._names.of_gang, due)))


class Watches:
    """All watches: stale and broken gangs, members on unhealthy devices, lost nodes, quotas above their runtime.

    With `--dry-run` only lost nodes start rounds, because nothing is evicted.
    """

    def __init__(self, context: Context, wake: Callable[[], None]) -> None:
        """wake: called when a round may have become due."""
        settings, self._now = context.settings, context.now
        self._interval = settings.group_status_seconds
        self.lost = LossWatch(context)
        self.stale = StaleWatch(context, wake) if not settings.dry_run else None
        evicts_hurt = settings.config.repair.sick_devices == "evict" and not settings.dry_run
        self.hurt = HurtWatch(context, wake) if evicts_hurt else None
        monitors = settings.config.quota.monitor_all_quotas and settings.config.quota.enable_runtime_quota
        self.overuse = OveruseWatch(context, wake) if monitors and not settings.dry_run else None

    async def run(self) -> None:
        """Checks gangs and quotas periodically until cancelled."""
        while True:
            self.lost.look()
            if self.stale is not None:
                self.stale.look()
                self.stale.remind()
            if self.hurt is not None:
                self.hurt.look()
            if self.overuse is not None:
                self.overuse.look()
            await asyncio.sleep(self._interval)

    def next_due(self) -> float | None:
        """Returns the time of the next round that a watch needs, in seconds since 1970; None for none."""
        dues = [self.lost.next_due()]
        if self.stale is not None:
            dues.append(self.stale.next_due())
        if self.hurt is not None:
            dues.append(self.hurt.next_due())
        if self.overuse is not None:
            dues.append(self.overuse.next_due())
        return min((due for due in dues if due is not None), default=None)

    def due(self) -> bool:
        """Returns True if a watch needs a round now."""
        due = self.next_due()
        return due is not None and due <= self._now()

    def stale_units(self) -> list[str]:
        """Returns units with due stale gangs, with hurt members, or with members on newly lost nodes, for the round
        that begins now."""
        stale = self.stale.take() if self.stale is not None else []
        hurt = self.hurt.take() if self.hurt is not None else []
        return list(dict.fromkeys((*stale, *hurt, *self.lost.take())))

    def over_used(self) -> bool:
        """Returns True if the round that begins now has to handle quotas above their runtime."""
        return self.overuse.take() if self.overuse is not None else False
