# SPDX-License-Identifier: Apache-2.0
"""The scheduling queue: decides when a pending unit (a plain pod or a GangGroup) is tried again.

It works as kube-scheduler's queue, with units instead of pods (kube-parity.md 4.3, gang-network.md 2.9 and 8).

States of a unit:

- active: the next round tries the unit, or it waits for a search
- backoff: the last attempt failed with an error; the unit waits for its back-off, or for a change of the unit itself
- unschedulable: the unit waits for a change that may help, at most five minutes
- gated: members, objects or settings are missing; the unit waits for a change of itself, at most five minutes
- in flight: the unit is in the round or the search that is running

Changes during an attempt are applied when the attempt ends, so that no wake-up is lost. Cluster changes are collected
and applied once per turn of the scheduling loop, so that an event costs the same for one or a thousand pending units.
A refused unit pauses for ten times its share of the round's time, at most for the maximum back-off, even if it is woken
earlier. So a busy cluster does not spend all its planning time on units that do not fit.
"""

import time
from collections.abc import Callable, Collection, Iterable
from math import inf

from koordpy.config.configuration import KoordpyConfiguration
from koordpy.engine.planning_turns import SearchTurns
from koordpy.engine.queue_entry import Entry, LastAnswer, PendingSearch, QueuedPod, State
from koordpy.engine.queue_order import select_light_units, select_untried
from koordpy.engine.wakeups import CAPACITY_GAINED, Wake

PACE = 10.0  # seconds of pause per second of the attempt: refused units use at most a tenth of the planning time
GATED_PACE_SECONDS = 0.02  # pause after an attempt that a gate ended, which takes almost no planning time
SHORT_PACE_SECONDS = 0.25
"""A gang that lacks members is not tried earlier than this, unless the last member is created. Otherwise each new
member of a large gang would cause an attempt and status updates."""

OWN_CHANGES = ("PodGroupMember", "PodGroupUpdate", "WorkloadUpdate")
"""Changes of a unit itself: an ordinary round tries the unit again, even if it waits for a search."""


class UnitQueue:
    """All units with a pending pod of this scheduler. Not thread-safe: owned by the event loop."""

    def __init__(
        self,
        config: KoordpyConfiguration | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        tenant_of: Callable[[str], str] = str,
        on_ready: Callable[[], None] = lambda: None,
        on_incoming: Callable[[State, str, int], None] = lambda state, event, pods: None,
    ) -> None:
        """config: None for the defaults. on_ready: called when a unit may have become due. on_incoming: called with
        state, event and number of pods when pods enter a state, for metrics. tenant_of: namespace -> tenant."""
        config, self.clock = config or KoordpyConfiguration(), clock
        self.capacity_changes = 0
        """Number of changes so far that may have freed capacity."""
        self._initial, self._most = config.pod_initial_backoff, config.pod_max_backoff
        self._flush = config.pod_max_in_unschedulable
        self._on_ready, self._on_incoming, self._tenant_of = on_ready, on_incoming, tenant_of
        self.entries: dict[str, Entry] = {}
        """Unit id -> entry, in no order. `_states` has the entries of each state, in the order of entering it."""
        self._states: dict[State, dict[str, Entry]] = {state: {} for state in State}
        self.unit_of: dict[str, str] = {}
        """Key of a queued pod -> id of its unit."""
        self._wakes = Wake.NOTHING
        self._wake_event = ""
        self.last_added = 0.0
        self.came: dict[str, int] = {}
        """Namespace -> highest priority of its pods that were added since the last round took its units."""
        self.turns = SearchTurns(clock, config.planning.round_seconds)

    # -- changes of pods and of the cluster ---------------------------------------------------------------------------

    def add(self, unit: str, pod: QueuedPod, *, event: str = "PodAdd") -> None:
        """Adds a pending pod, or updates it after a change that matters to decisions. Its unit becomes active."""
        if self.unit_of.get(pod.key, unit) != unit:
            self.discard(pod.key)
        entry = self._entry(unit, event)
        known = entry.pods.get(pod.key)
        if known is not None and known.uid == pod.uid:
            pod.added, pod.attempts, pod.failures = known.added, known.attempts, known.failures
        entry.pods[pod.key] = pod
        self.unit_of[pod.key] = unit
        self.last_added = self.clock()
        namespace = pod.key.partition("/")[0]
        self.came[namespace] = max(self.came.get(namespace, pod.priority), pod.priority)
        if entry.complete_pods and len(entry.pods) >= entry.complete_pods:
            entry.due, entry.complete_pods = entry.not_before, 0
        if entry.state is State.ACTIVE:
            entry.search = None
        self._touch(entry, event)

    def discard(self, key: str) -> QueuedPod | None:
        """Removes and returns a pod that is not pending any more (bound, deleted, gated); None for an unknown pod."""
        unit = self.unit_of.pop(key, None)
        if unit is None:
            return None
        entry = self.entries[unit]
        pod = entry.pods.pop(key)
        if not entry.pods:
            # an entry in flight remains; pods that are added to the unit later have not waited yet
            entry.first_tried = None
        if not entry.pods and entry.state is not State.IN_FLIGHT:
            self._remove(entry)
        return pod

    def touch(self, unit: str, event: str) -> None:
        """Makes a unit active after a change of the unit itself, or after an event that concerns only this unit."""
        if (entry := self.entries.get(unit)) is not None:
            if entry.state is State.ACTIVE and event in OWN_CHANGES:
                entry.search = None
            self._touch(entry, event)

    def hurry(self, unit: str, event: str) -> None:
        """Makes a unit due for the round that begins now, whatever its state, except in flight."""
        entry = self.entries.get(unit)
        if entry is not None and entry.state is not State.IN_FLIGHT:
            entry.due, entry.search = entry.not_before, None
            self._touch(entry, event)

    def touch_gangs(self, event: str) -> None:
        """Makes all gangs active, because any gang may belong to another GangGroup now."""
        for entry in list(self.entries.values()):
            if entry.unit.startswith("gang:"):
                self._touch(entry, event)

    def broadcast(self, wake: Wake, event: str) -> None:
        """Records a change of the cluster. The next `poll` applies it."""
        self.capacity_changes += bool(wake & CAPACITY_GAINED)
        if wake and (wake | self._wakes) != self._wakes:
            self._wakes |= wake
            self._wake_event = event
            self._on_ready()
        elif wake:
            self._wake_event = event

    def wake_waiting(self, wake: Wake, event: str, *, planned: Collection[str]) -> None:
        """Wakes unschedulable units after a change that a round has caused. planned: the units of that round, which
        already know the change. Other units in flight get the change when their attempt ends."""
        for entry in self._states[State.IN_FLIGHT].values():
            if entry.unit not in planned:
                entry.missed_changes |= wake
        self._wake_waiting(wake, event)

    def _wake_waiting(self, wake: Wake, event: str) -> None:
        # gated units are not woken: only a change of the unit itself helps them (`touch`)
        for entry in list(self._states[State.UNSCHEDULABLE].values()):
            if entry.answer.wakes & wake:
                self._enter(entry, State.ACTIVE, event)

    def wake(self, key: str, wake: Wake, event: str) -> None:
        """Wakes the unit of one pod after a change of an object that only this pod names."""
        unit = self.unit_of.get(key)
        entry = self.entries.get(unit) if unit is not None else None
        if entry is None:
            return
        if entry.state is State.IN_FLIGHT:
            entry.missed_changes |= wake
        elif entry.state is State.UNSCHEDULABLE and entry.answer.wakes & wake:
            self._enter(entry, State.ACTIVE, event)

    def regroup(self, unit_of: Callable[[str], str | None]) -> None:
        """Moves pods to the units that they belong to now (GangGroups change with the `groups` annotations)."""
        for key, unit in list(self.unit_of.items()):
            now = unit_of(key)
            if now is not None and now != unit:
                self.add(now, self.entries[unit].pods[key], event="GroupChange")

    # -- rounds -------------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Applies the recorded changes, and makes entries active if their back-off or maximum wait is over."""
        now = self.clock()
        wakes, event = self._wakes, self._wake_event
        if wakes:
            self._wakes = Wake.NOTHING
            for entry in self._states[State.IN_FLIGHT].values():
                entry.missed_changes |= wakes
            self._wake_waiting(wakes, event)
        for entry in list(self._states[State.BACKOFF].values()):
            if entry.due <= now:
                self._enter(entry, State.ACTIVE, "BackoffComplete")
        for state in (State.UNSCHEDULABLE, State.GATED):
            for entry in list(self._states[state].values()):
                if entry.since + self._flush > now:
                    break  # entries are in order of `since`
                entry.due = 0.0
                self._enter(entry, State.ACTIVE, "UnschedulableTimeout")

    def ready(self) -> bool:
        """Returns True if `take` would return a unit."""
        now = self.clock()
        return any(entry.due <= now and entry.search is None for entry in self._states[State.ACTIVE].values())

    def next_due(self) -> float | None:
        """Returns the clock time of the next back-off, pause or timeout that ends; None if there is none."""
        times = [entry.due for entry in self._states[State.ACTIVE].values() if entry.search is None]
        times += [entry.due for entry in self._states[State.BACKOFF].values()]
        for state in (State.UNSCHEDULABLE, State.GATED):
            first = next(iter(self._states[state].values()), None)
            if first is not None:
                times.append(first.since + self._flush)
        return min(times, default=None)

    def take(self, *, light_pods: int, alone: bool = False) -> list[Entry]:
        """Moves the due units that need no search into flight, and returns them in no particular order.

        light_pods: limit for the light pods in total, as a sum of `QueuedPod.load`. alone: True to take only one unit.
        """
        now, self.came = self.clock(), {}
        active = self._states[State.ACTIVE].values()
        due = [entry for entry in active if entry.due <= now and entry.search is None]
        if any(entry.passed_over is not None for entry in due):
            due = select_untried(due)
        light = [entry for entry in due if entry.light]
        if sum(entry.load for entry in light) > light_pods:
            due = [entry for entry in due if not entry.light] + select_light_units(light, light_pods)
        return self._begin_attempts(due[:1] if alone else due)

    def has_searches(self) -> bool:
        """Returns True if a unit waits for a search. If none does, the search time used by tenants is reset."""
        if any(entry.search is not None for entry in self._states[State.ACTIVE].values()):
            return True
        self.turns.reset()
        return False

    def take_searches(self, *, alone: bool = False) -> list[Entry]:
        """Moves units that wait for a search into flight: one unit with a stale plan, else units of tenants in turn.
        Returns no unit if none waits any more, because its pods are in other units now (`regroup`).

        alone: True to take only one unit.
        """
        waits = [(entry.search, entry) for entry in self._states[State.ACTIVE].values() if entry.search is not None]
        stale = [(-search.stale_plans, search.since, entry.unit) for search, entry in waits if search.stale_plans]
        if stale:
            return self._begin_attempts([self.entries[min(stale)[2]]])
        due = self.turns.next([entry for _, entry in waits]) if waits else []
        return self._begin_attempts(due[:1] if alone else due)

    def _begin_attempts(self, entries: list[Entry]) -> list[Entry]:
        now = self.clock()
        for entry in entries:
            entry.begin_attempt(now)
            self._move(entry, State.IN_FLIGHT)
        return entries

    def has_missed(self, entry: Entry, wake: Wake) -> bool:
        """Returns True if one of these changes happened since the attempt under way began."""
        return bool((entry.missed_changes | self._wakes) & wake)

    def settle_unschedulable(
        self,
        entry: Entry,
        *,
        wakes: Wake,
        plugins: Iterable[str],
        gated: bool,
        seconds: float,
        short: int = 0,
        never: bool = False,
    ) -> None:
        """Ends an attempt that left pods pending. wakes: changes that may help. plugins: filters that refused. gated:
        True if a gate blocked the unit. seconds: time of the attempt, which sets the pause before the next one. short:
        number of members that its gangs lack. never: True if the unit would not fit an empty cluster."""
        if self._is_gone(entry):
            return
        now, last = self.clock(), entry.answer
        # a gated unit no longer counts in the demand of its quota, so other quotas may get more
        if gated and not last.gated and last.time > -inf:
            self.broadcast(Wake.DEMAND_FELL, "UnitGated")
        if never and not last.never and last.time > -inf:
            self.broadcast(Wake.DEMAND_FELL, "UnitNeverFits")
        entry.answer, entry.errors = LastAnswer(now, wakes, tuple(plugins), gated, never), 0
        pause = GATED_PACE_SECONDS if gated else seconds * PACE
        if gated and short and len(entry.pods) < entry.attempted_pods + short:
            entry.complete_pods, pause = entry.attempted_pods + short, SHORT_PACE_SECONDS
        entry.due = now + min(pause, self._most)
        if entry.has_changed or self.has_missed(entry, wakes):
            self._enter(entry, State.ACTIVE, "ScheduleAttemptFailure")
        else:
            self._enter(entry, State.GATED if gated else State.UNSCHEDULABLE, "ScheduleAttemptFailure")

    def settle_for_search(self, entry: Entry, *, stale: bool = False) -> None:
        """Ends an attempt without a decision: the unit waits for a search. stale: True if its plan became stale."""
        if self._is_gone(entry):
            return
        search = entry.search or PendingSearch(self.clock())
        search.stale_plans += stale
        # a unit that changed during the attempt may need no search
        entry.search = None if entry.has_changed and not stale else search
        entry.passed_over, entry.due = None, entry.not_before
        self._return_undecided(entry)

    def settle_for_round(self, entry: Entry, *, passed_over: bool = False) -> None:
        """Ends an undecided attempt: the next round tries the unit. passed_over: True if the unit was skipped because
        its tenant had used its share of the round."""
        if self._is_gone(entry):
            return
        if passed_over and entry.passed_over is None:
            entry.passed_over = self.clock()
        self._return_undecided(entry)

    def _return_undecided(self, entry: Entry) -> None:
        entry.undo_attempt()
        self._move(entry, State.ACTIVE)
        self._on_ready()

    def settle_again(self, entry: Entry) -> None:
        """Ends an attempt; the unit is tried again at once: its plan became stale, or pods were created since."""
        if not self._is_gone(entry):
            entry.due = 0.0
            self._enter(entry, State.ACTIVE, "PlanOvertaken")

    def settle_error(self, entry: Entry) -> None:
        """Ends a failed attempt: the unit waits for its back-off, which doubles with each failure."""
        if self._is_gone(entry):
            return
        entry.errors += 1
        entry.due = self.clock() + self._backoff(entry)
        self._enter(entry, State.BACKOFF, "ScheduleAttemptFailure")

    def put_back(self, unit: str, pod: QueuedPod, *, errors: int, at_least_seconds: float = 0.0) -> None:
        """Adds a pod again after its Binding failed. The state of a unit in flight does not change.

        errors: failures to count; above 0 the unit waits for its back-off. at_least_seconds: pause that the API server
        asks for (Retry-After), capped.
        """
        now, entry = self.clock(), self._entry(unit, "BindFailure")
        entry.pods[pod.key] = pod
        self.unit_of[pod.key] = unit
        pod.failures += errors
        if errors:
            entry.errors = max(entry.errors, pod.failures)
        if at_least_seconds:
            entry.not_before = max(entry.not_before, now + min(at_least_seconds, self._flush))
        if entry.state is State.IN_FLIGHT:
            entry.has_changed = True
        elif errors:
            entry.due = max(entry.due, now + self._backoff(entry))
            self._enter(entry, State.BACKOFF, "BindFailure")
        else:
            entry.due = 0.0
            self._enter(entry, State.ACTIVE, "BindFailure")
        self._on_ready()

    def counts(self) -> dict[State, int]:
        """Returns the number of pods by state. Pods in flight count as active."""
        out = {state: sum(len(entry.pods) for entry in entries.values()) for state, entries in self._states.items()}
        out[State.ACTIVE] += out.pop(State.IN_FLIGHT)
        return out

    # -- implementation -----------------------------------------------------------------------------------------------

    def _entry(self, unit: str, event: str) -> Entry:
        """Returns the entry of a unit that gets a pod; creates it if there is none."""
        entry = self.entries.get(unit)
        if entry is None:
            entry = self.entries[unit] = Entry(unit, self._tenant_of)
            self._enter(entry, State.ACTIVE, event, 1)
        return entry

    def _touch(self, entry: Entry, event: str) -> None:
        # a unit in flight is tried again after this attempt; a back-off ends, because the change may remove its cause
        if entry.state is State.IN_FLIGHT:
            entry.has_changed = True
        elif entry.state is not State.ACTIVE:
            if entry.state is State.BACKOFF:
                entry.due = 0.0
            self._enter(entry, State.ACTIVE, event)
        self._on_ready()

    def _backoff(self, entry: Entry) -> float:
        return min(self._most, self._initial * 2.0 ** min(entry.errors - 1, 32))

    def _is_gone(self, entry: Entry) -> bool:
        """Returns True if an entry is not in the queue any more. Removes it first if it has no pods."""
        if self.entries.get(entry.unit) is not entry:
            return True
        if not entry.pods:
            self._remove(entry)
            return True
        return False

    def _enter(self, entry: Entry, state: State, event: str, pods: int | None = None) -> None:
        """Moves an entry to a state, ends its wait for a search, and counts its pods under the event."""
        entry.due = max(entry.due, entry.not_before)
        entry.search, entry.passed_over = None, None
        self._on_incoming(state, event, len(entry.pods) if pods is None else pods)
        self._move(entry, state)
        if state is State.ACTIVE:
            self._on_ready()

    def _move(self, entry: Entry, state: State) -> None:
        """Moves an entry to a state, and changes nothing else of it."""
        self._states[entry.state].pop(entry.unit, None)
        entry.state, entry.since = state, self.clock()
        self._states[state][entry.unit] = entry

    def _remove(self, entry: Entry) -> None:
        self._states[entry.state].pop(entry.unit, None)
        del self.entries[entry.unit]
