"""The queue of units: plain pods and GangGroups that wait for a place (kube-parity.md 4.3, gang-network.md 2.9 and 8).

States: active (tried in the next round, or waits for a search), backoff (after a failure of ours, until its time),
unschedulable (until a change that can help, else after five minutes), gated (members, objects or settings are missing;
only changes of the unit itself help), in flight (in the round or the search under way). What happens during an attempt
counts when the attempt ends, so no wake-up is lost. Changes of the cluster are gathered and applied once a turn: a
thousand waiting units cost nothing per event.

A change that can help clears the back-off. So that a busy cluster does not replan hopeless units all day, a unit that
was tried waits at least ten times as long as its share of that round took.
"""

import time
from collections.abc import Callable, Collection, Iterable
from math import inf

from koordpy.config.configuration import KoordpyConfiguration
from koordpy.engine.planning_turns import SearchTurns
from koordpy.engine.queue_entry import Entry, LastAnswer, PendingSearch, QueuedPod, State
from koordpy.engine.queue_order import select_light_units, select_untried
from koordpy.engine.wakeups import ROOM_CAME, Wake

PACE = 10.0
GATED_PACE_SECONDS = 0.02
SHORT_PACE_SECONDS = 0.25
"""A gang that lacks members is looked at again so much later at least, unless the last of them comes: hundreds that
arrive one after the other would all be told of each that came."""

OWN_CHANGES = ("PodGroupMember", "PodGroupUpdate", "WorkloadUpdate")
"""Changes of a unit itself: an ordinary round tries it again, whatever it waits for."""


class UnitQueue:
    """Every unit with a pending pod of ours. Not thread-safe: owned by the event loop."""

    def __init__(
        self,
        config: KoordpyConfiguration | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        tenant_of: Callable[[str], str] = str,
        on_ready: Callable[[], None] = lambda: None,
        on_incoming: Callable[[State, str, int], None] = lambda state, event, pods: None,
    ) -> None:
        """`on_ready` is called when something may have become due; `on_incoming` counts pods entering a state.
        tenant_of: namespace -> tenant. By planning.roundSeconds of searches one tenant may be ahead of others that
        wait."""
        config, self.clock = config or KoordpyConfiguration(), clock
        self.rooms = 0
        """How often room may have come."""
        self._initial, self._most = config.pod_initial_backoff, config.pod_max_backoff
        self._flush = config.pod_max_in_unschedulable
        self._on_ready, self._on_incoming, self._tenant_of = on_ready, on_incoming, tenant_of
        self.entries: dict[str, Entry] = {}
        """Of the units, in no particular order."""
        self._states: dict[State, dict[str, Entry]] = {state: {} for state in State}
        self.unit_of: dict[str, str] = {}
        """Queued pod -> the unit that it is in."""
        self._wakes = Wake.NOTHING
        self._wake_event = ""
        self.last_added = 0.0
        self.came: dict[str, int] = {}
        """Namespaces of the pods added since the last units were taken, with the highest priority of each."""
        self.turns = SearchTurns(clock, config.planning.round_seconds)

    # -- what happens -------------------------------------------------------------------------------------------------

    def add(self, unit: str, pod: QueuedPod, *, event: str = "PodAdd") -> None:
        """A pending pod appeared, or changed in what a decision reads: its unit is tried at once."""
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
        """The pod is not pending any more: placed, gone, gated, or of another scheduler."""
        unit = self.unit_of.pop(key, None)
        if unit is None:
            return None
        entry = self.entries[unit]
        pod = entry.pods.pop(key)
        if not entry.pods:
            # in flight it stays: whoever is made anew under its name has not waited yet
            entry.first_tried = None
        if not entry.pods and entry.state is not State.IN_FLIGHT:
            self._remove(entry)
        return pod

    def touch(self, unit: str, event: str) -> None:
        """The unit is to be tried again: it changed itself, or what was decided for it."""
        if (entry := self.entries.get(unit)) is not None:
            if entry.state is State.ACTIVE and event in OWN_CHANGES:
                entry.search = None
            self._touch(entry, event)

    def hurry(self, unit: str, event: str) -> None:
        """A unit is to be in the round that begins now, whatever it waits for."""
        entry = self.entries.get(unit)
        if entry is not None and entry.state is not State.IN_FLIGHT:
            entry.due, entry.search = entry.not_before, None
            self._touch(entry, event)

    def touch_gangs(self, event: str) -> None:
        """Any gang may belong to another group now."""
        for entry in list(self.entries.values()):
            if entry.unit.startswith("gang:"):
                self._touch(entry, event)

    def broadcast(self, wake: Wake, event: str) -> None:
        """Something changed in the cluster. Applied with the next `poll`."""
        self.rooms += bool(wake & ROOM_CAME)
        if wake and (wake | self._wakes) != self._wakes:
            self._wakes |= wake
            self._wake_event = event
            self._on_ready()
        elif wake:
            self._wake_event = event

    def wake_waiting(self, wake: Wake, event: str, *, planned: Collection[str]) -> None:
        """Something changed by a round under way, whose own units were planned with it (planned): wakes only those that
        wait for a change, and who is in another round once that ends."""
        for entry in self._states[State.IN_FLIGHT].values():
            if entry.unit not in planned:
                entry.missed |= wake
        self._wake_waiting(wake, event)

    def _wake_waiting(self, wake: Wake, event: str) -> None:
        for entry in list(self._states[State.UNSCHEDULABLE].values()):
            if entry.answer.wakes & wake:
                self._enter(entry, State.ACTIVE, event)

    def wake(self, key: str, wake: Wake, event: str) -> None:
        """Something changed that a pod of the queue names; no other unit is concerned."""
        unit = self.unit_of.get(key)
        entry = self.entries.get(unit) if unit is not None else None
        if entry is None:
            return
        if entry.state is State.IN_FLIGHT:
            entry.missed |= wake
        elif entry.state is State.UNSCHEDULABLE and entry.answer.wakes & wake:
            self._enter(entry, State.ACTIVE, event)

    def regroup(self, unit_of: Callable[[str], str | None]) -> None:
        """Moves pods to the units they belong to now (GangGroups change with the `groups` annotations)."""
        for key, unit in list(self.unit_of.items()):
            now = unit_of(key)
            if now is not None and now != unit:
                self.add(now, self.entries[unit].pods[key], event="GroupChange")

    # -- rounds -------------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Applies what was broadcast, and moves every entry whose time has come."""
        now = self.clock()
        wakes, event = self._wakes, self._wake_event
        if wakes:
            self._wakes = Wake.NOTHING
            for entry in self._states[State.IN_FLIGHT].values():
                entry.missed |= wakes
            self._wake_waiting(wakes, event)
        for entry in list(self._states[State.BACKOFF].values()):
            if entry.due <= now:
                self._enter(entry, State.ACTIVE, "BackoffComplete")
        for state in (State.UNSCHEDULABLE, State.GATED):
            for entry in list(self._states[state].values()):
                if entry.since + self._flush > now:
                    break  # in the order of entering
                entry.due = 0.0
                self._enter(entry, State.ACTIVE, "UnschedulableTimeout")

    def ready(self) -> bool:
        """Whether a `take` would give anything."""
        now = self.clock()
        return any(entry.due <= now and entry.search is None for entry in self._states[State.ACTIVE].values())

    def next_due(self) -> float | None:
        """Clock time at which the next entry becomes due by time alone; None when nothing waits for time."""
        times = [entry.due for entry in self._states[State.ACTIVE].values() if entry.search is None]
        times += [entry.due for entry in self._states[State.BACKOFF].values()]
        for state in (State.UNSCHEDULABLE, State.GATED):
            first = next(iter(self._states[state].values()), None)
            if first is not None:
                times.append(first.since + self._flush)
        return min(times, default=None)

    def take(self, *, light_pods: int, alone: bool = False) -> list[Entry]:
        """Moves the units that are due, and wait for no search, into flight.

        light_pods: of light plain pods those are taken that cost as much as so many ordinary ones. alone: only one
        unit. The planner orders the round by itself.
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
        """Returns True if a unit waits for a search; where none does, the turns of tenants begin anew."""
        if any(entry.search is not None for entry in self._states[State.ACTIVE].values()):
            return True
        self.turns.begin_anew()
        return False

    def take_searches(self, *, alone: bool = False) -> list[Entry]:
        """Moves units that wait for a search into flight: one with a stale plan, else tenants by turns.

        alone: only one unit.
        """
        waits = [(entry.search, entry) for entry in self._states[State.ACTIVE].values() if entry.search is not None]
        stale = [(-search.stale_plans, search.since, entry.unit) for search, entry in waits if search.stale_plans]
        if stale:
            return self._begin_attempts([self.entries[min(stale)[2]]])
        due = self.turns.next([entry for _, entry in waits])
        return self._begin_attempts(due[:1] if alone else due)

    def _begin_attempts(self, entries: list[Entry]) -> list[Entry]:
        now = self.clock()
        for entry in entries:
            entry.begin_attempt(now)
            self._move(entry, State.IN_FLIGHT)
        return entries

    def has_missed(self, entry: Entry, wake: Wake) -> bool:
        """True if one of these changes happened since the attempt under way took the unit."""
        return bool((entry.missed | self._wakes) & wake)

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
        """The attempt ended with pods left over. `seconds` is what the attempt took: it sets the pace of the next.
        `short`: how many members its gangs lack. `never`: it would not fit the empty cluster."""
        if self._ended(entry):
            return
        now, last = self.clock(), entry.answer
        if gated and not last.gated and last.at > -inf:
            self.broadcast(Wake.ASKED, "UnitGated")
        if never and not last.never and last.at > -inf:
            self.broadcast(Wake.ASKED, "UnitNeverFits")
        entry.answer, entry.errors = LastAnswer(now, wakes, tuple(plugins), gated, never), 0
        pause = GATED_PACE_SECONDS if gated else seconds * PACE
        if gated and short and len(entry.pods) < entry.taken + short:
            entry.complete_pods, pause = entry.taken + short, SHORT_PACE_SECONDS
        entry.due = now + min(pause, self._most)
        if entry.touched or self.has_missed(entry, wakes):
            self._enter(entry, State.ACTIVE, "ScheduleAttemptFailure")
        else:
            self._enter(entry, State.GATED if gated else State.UNSCHEDULABLE, "ScheduleAttemptFailure")

    def settle_for_search(self, entry: Entry, *, stale: bool = False) -> None:
        """The attempt did not decide: the unit waits for a search. stale: its plan holds no more."""
        if self._ended(entry):
            return
        search = entry.search or PendingSearch(self.clock())
        search.stale_plans += stale
        # a unit that changed during the attempt may need no search
        entry.search = None if entry.touched and not stale else search
        entry.passed_over, entry.due = None, entry.not_before
        self._undecided(entry)

    def settle_for_round(self, entry: Entry, *, passed_over: bool = False) -> None:
        """The round ended before the unit's turn: the next one tries it. passed_over: its tenant had its part."""
        if self._ended(entry):
            return
        if passed_over and entry.passed_over is None:
            entry.passed_over = self.clock()
        self._undecided(entry)

    def _undecided(self, entry: Entry) -> None:
        entry.undo_attempt()
        self._move(entry, State.ACTIVE)
        self._on_ready()

    def settle_again(self, entry: Entry) -> None:
        """The unit is tried again at once: its plan was overtaken by changes, or all that it knew was placed and more
        has come."""
        if not self._ended(entry):
            entry.due = 0.0
            self._enter(entry, State.ACTIVE, "PlanOvertaken")

    def settle_error(self, entry: Entry) -> None:
        """The attempt failed for a reason of ours or the API server's: back-off, doubled with each failure."""
        if self._ended(entry):
            return
        entry.errors += 1
        entry.due = self.clock() + self._backoff(entry)
        self._enter(entry, State.BACKOFF, "ScheduleAttemptFailure")

    def put_back(self, unit: str, pod: QueuedPod, *, errors: int, at_least_seconds: float = 0.0) -> None:
        """A pod whose Binding failed comes back; with errors > 0 after a back-off, which doubles as it fails again. A
        unit in flight just gains it. `at_least_seconds`: what the API server asks for, in reason."""
        now, entry = self.clock(), self._entry(unit, "BindFailure")
        entry.pods[pod.key] = pod
        self.unit_of[pod.key] = unit
        pod.failures += errors
        if errors:
            entry.errors = max(entry.errors, pod.failures)
        if at_least_seconds:
            entry.not_before = max(entry.not_before, now + min(at_least_seconds, self._flush))
        if entry.state is State.IN_FLIGHT:
            entry.touched = True
        elif errors:
            entry.due = max(entry.due, now + self._backoff(entry))
            self._enter(entry, State.BACKOFF, "BindFailure")
        else:
            entry.due = 0.0
            self._enter(entry, State.ACTIVE, "BindFailure")
        self._on_ready()

    def counts(self) -> dict[State, int]:
        """Pods by state; those in flight count as active."""
        out = {state: sum(len(entry.pods) for entry in entries.values()) for state, entries in self._states.items()}
        out[State.ACTIVE] += out.pop(State.IN_FLIGHT)
        return out

    # -- inside -------------------------------------------------------------------------------------------------------

    def _entry(self, unit: str, event: str) -> Entry:
        """The entry of a unit that gains a pod."""
        entry = self.entries.get(unit)
        if entry is None:
            entry = self.entries[unit] = Entry(unit, self._tenant_of)
            self._enter(entry, State.ACTIVE, event, 1)
        return entry

    def _touch(self, entry: Entry, event: str) -> None:
        if entry.state is State.IN_FLIGHT:
            entry.touched = True
        elif entry.state is not State.ACTIVE:
            if entry.state is State.BACKOFF:
                entry.due = 0.0
            self._enter(entry, State.ACTIVE, event)
        self._on_ready()

    def _backoff(self, entry: Entry) -> float:
        """Seconds, doubled with each failure."""
        return min(self._most, self._initial * 2.0 ** min(entry.errors - 1, 32))

    def _ended(self, entry: Entry) -> bool:
        """Removes an entry that has nothing left."""
        if self.entries.get(entry.unit) is not entry:
            return True
        if not entry.pods:
            self._remove(entry)
            return True
        return False

    def _enter(self, entry: Entry, state: State, event: str, pods: int | None = None) -> None:
        entry.due = max(entry.due, entry.not_before)
        entry.search, entry.passed_over = None, None
        self._on_incoming(state, event, len(entry.pods) if pods is None else pods)
        self._move(entry, state)
        if state is State.ACTIVE:
            self._on_ready()

    def _move(self, entry: Entry, state: State) -> None:
        self._states[entry.state].pop(entry.unit, None)
        entry.state, entry.since = state, self.clock()
        self._states[state][entry.unit] = entry

    def _remove(self, entry: Entry) -> None:
        self._states[entry.state].pop(entry.unit, None)
        del self.entries[entry.unit]
