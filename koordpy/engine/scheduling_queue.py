"""The queue of units: plain pods and GangGroups that wait for a place (kube-parity.md 4.3, gang-network.md 2.9 and 8).

States: active (tried in the next round), backoff (after a failure of ours, until its time), unschedulable (until a
change that can help, else after five minutes), gated (members, objects or settings are missing; only changes of the
unit itself help), in flight (in the round under way). What happens during an attempt counts when the attempt ends, so
no wake-up is lost. Changes of the cluster are gathered and applied once a turn: a thousand waiting units cost nothing
per event.

A change that can help clears the back-off. So that a busy cluster does not replan hopeless units all day, a unit that
was tried waits at least ten times as long as its share of that round took.
"""

import enum
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from math import inf

from koordpy.api.config import KoordpyConfiguration
from koordpy.engine.turns import RecentSeconds, SearchTurns
from koordpy.engine.wakeups import ROOM_CAME, Wake

LOAD_BYTES = 256
"""Of what a pod says of other pods, compact: as long again costs a round as much as an ordinary pod (a quarter ms)."""
PACE = 10.0
GATED_PACE_SECONDS = 0.02
SHORT_PACE_SECONDS = 0.25
"""A gang that lacks members is looked at again so much later at least, unless the last of them comes: hundreds that
arrive one after the other would all be told of each that came."""

OWN_CHANGES = ("PodGroupMember", "PodGroupUpdate", "WorkloadUpdate")
"""Changes of a unit itself, with which it is as new as one that came."""


class State(enum.StrEnum):
    """Values are the labels of scheduler_pending_pods, but for in flight ones, which count as active."""

    ACTIVE = "active"
    BACKOFF = "backoff"
    UNSCHEDULABLE = "unschedulable"
    GATED = "gated"
    IN_FLIGHT = "inflight"


@dataclass(slots=True)
class QueuedPod:
    """A pending pod in its unit. Times are of the queue's clock."""

    key: str
    uid: str
    added: float
    priority: int
    created: float
    light: bool
    """A plain pod that asks for no accelerator: rounds may take such pods in parts."""
    load: int = 1
    """What it costs a round, by how much it says of other pods; 1 for most."""
    profile: str = ""
    attempts: int = 0
    failures: int = 0
    """How often its Binding failed."""


@dataclass(slots=True)
class Entry:
    """One unit of the queue."""

    unit: str
    state: State = State.ACTIVE
    pods: dict[str, QueuedPod] = field(default_factory=dict)
    since: float = 0.0
    due: float = 0.0
    """Not tried before (back-off, or the pace after an attempt)."""
    not_before: float = 0.0
    """The API server wants to be left alone until then (Retry-After), whatever happens."""
    attempts: int = 0
    errors: int = 0
    wakes: Wake = Wake.NOTHING
    """Changes that could turn the last verdict."""
    woken: bool = False
    """It had an answer and is tried again for a change elsewhere, or was new and has to wait for others."""
    ahead: bool = False
    """It was taken before those that wait already, beside the room that they could use."""
    touched: bool = False
    """The unit itself changed since the attempt under way began."""
    missed: Wake = Wake.NOTHING
    """Changes of what its pods name since then."""
    plugins: tuple[str, ...] = ()
    taken: int = 0
    """Pods that the last attempt knew."""
    passed_over: float | None = None
    """Since when its namespace has its part of rounds without it; None where it was tried since."""
    deferred: float | None = None
    """Since when it waits for a search; None where it does not."""
    kept_off: float | None = None
    """Since when it would fit, but for room that is kept for others; None where it would not."""
    cut_off: float | None = None
    """Since when it finds no room in rounds that are cut before anybody is searched for; None where it does not."""
    resumes: float = 0.0
    """Until then only rounds that search try it."""
    answered: float = -inf
    """When an attempt last ended with pods left over."""
    held: bool = False
    """Its last answer was that of a gate."""
    looked_for: bool = False
    """It was told that it is searched for."""
    whole: int = 0
    """Pods with which its gangs have the members that the last attempt found missing; 0 where none was."""
    interrupted: float = 0.0
    """Seconds of searches that were given up since it waits for one."""
    overtaken: bool = False
    """Its last answer was dropped for what was placed beside its round."""
    looked_again: bool = False
    """It was planned once more, because room came while victims were chosen for it: once only, for in a busy cluster
    room comes all the time."""
    first_tried: float | None = None
    """When its first try began; None before, and once it was placed."""
    tenant_of: Callable[[str], str] = str
    """Whose a namespace is."""

    @property
    def priority(self) -> int:
        return max((pod.priority for pod in self.pods.values()), default=0)

    @property
    def namespace(self) -> str:
        """That of its first pod."""
        return next(iter(self.pods), "").partition("/")[0]

    @property
    def tenant(self) -> str:
        """Whose part of planning time it takes."""
        return self.tenant_of(self.namespace)

    @property
    def created(self) -> float:
        return min((pod.created for pod in self.pods.values()), default=0.0)

    @property
    def light(self) -> bool:
        return all(pod.light for pod in self.pods.values())

    @property
    def is_new(self) -> bool:
        """Whether it waits for its first answer, or for one since it changed itself."""
        return not self.woken and self.deferred is None

    def is_carried(self, seconds: float) -> bool:
        """Whether searches for it were given up for so long that the next is carried through."""
        return self.interrupted > 0.0 and self.interrupted >= seconds

    @property
    def load(self) -> int:
        return sum(pod.load for pod in self.pods.values())


def pod_load(affinity: bytes) -> int:
    """What a pod with these terms of pod affinity costs a round: the time grows with their length."""
    return 1 + len(affinity) // LOAD_BYTES


def first_of(light: list[Entry], most: int) -> list[Entry]:
    """The light units that a round takes of many: of the highest priority first, of equal ones the oldest of each
    namespace by turns, until they cost `most` together; one at least."""
    order = sorted((-entry.priority, entry.created, entry.unit, entry) for entry in light)
    if len({(below, entry.tenant) for below, _, _, entry in order}) > 1:
        had: dict[tuple[int, str], int] = {}
        turns = []
        for place, (below, _, _, entry) in enumerate(order):
            whose = below, entry.tenant
            had[whose] = had.get(whose, 0) + entry.load
            turns.append((below, had[whose], place))
        order = [order[place] for _, _, place in sorted(turns)]
    out: list[Entry] = []
    cost = 0
    for _, _, _, entry in order:
        cost += entry.load
        if out and cost > most:
            break
        out.append(entry)
    return out


def once_each(due: list[Entry]) -> list[Entry]:
    """The units that a round may take: where some of a namespace and a priority were passed over, none of these that
    had an answer since. Else the first of a namespace, woken all the time, would use up what the last wait for."""
    since: dict[tuple[str, int], float] = {}
    for entry in due:
        if entry.passed_over is not None:
            whose = entry.tenant, entry.priority
            since[whose] = min(since.get(whose, inf), entry.passed_over)
    if not since:
        return due
    return [
        entry
        for entry in due
        if entry.passed_over is not None or entry.answered < since.get((entry.tenant, entry.priority), inf)
    ]


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
        tenant_of: whose a namespace is. By planning.roundSeconds of searches one tenant may be ahead of others that
        wait; after planning.searchSeconds of those that were given up a unit is searched for alone."""
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
        self._missed = Wake.NOTHING
        """Changes since the round under way took its units."""
        self.last_added = 0.0
        self.came: dict[str, int] = {}
        """Namespaces of the pods added since the last units were taken, with the highest priority of each."""
        self.turns = SearchTurns(clock, config.planning.round_seconds)
        self.planned = RecentSeconds(clock, config.planning.round_seconds)
        self._search_seconds = config.planning.search_seconds
        self._carries = False
        """Whether the last units searched for were one alone."""
        self._turn = False
        """Whether the last units taken were others, while some waited for a search."""
        self.ahead = False
        """Whether the last units taken were those that are new alone."""
        self._ahead_took = self._others_took = 0.0
        """Seconds of the rounds of new units since the last round of others, and of that one."""

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
        entry.resumes, entry.woken = 0.0, False
        if entry.whole and len(entry.pods) >= entry.whole:
            entry.due, entry.whole = entry.not_before, 0
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
            entry.resumes, entry.woken = 0.0, event not in OWN_CHANGES
            self._touch(entry, event)

    def hurry(self, unit: str, event: str) -> None:
        """A unit is to be in the round that begins now, whatever it waits for."""
        entry = self.entries.get(unit)
        if entry is not None and entry.state is not State.IN_FLIGHT:
            entry.due, entry.woken = entry.not_before, False
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
            if entry.wakes & wake:
                self._wake(entry, event)

    def wake(self, key: str, wake: Wake, event: str) -> None:
        """Something changed that a pod of the queue names; no other unit is concerned."""
        unit = self.unit_of.get(key)
        entry = self.entries.get(unit) if unit is not None else None
        if entry is None:
            return
        if entry.state is State.IN_FLIGHT:
            entry.missed |= wake
        elif entry.state is State.UNSCHEDULABLE and entry.wakes & wake:
            self._wake(entry, event)

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
            self._missed |= wakes
            self._wake_waiting(wakes, event)
        for entry in list(self._states[State.BACKOFF].values()):
            if entry.due <= now:
                self._enter(entry, State.ACTIVE, "BackoffComplete")
        for state in (State.UNSCHEDULABLE, State.GATED):
            for entry in list(self._states[state].values()):
                if entry.since + self._flush > now:
                    break  # in the order of entering
                entry.due = 0.0
                self._wake(entry, "UnschedulableTimeout")

    def ready(self) -> bool:
        """Whether a `take` would give anything."""
        now = self.clock()
        return any(entry.due <= now for entry in self._states[State.ACTIVE].values())

    def next_due(self) -> float | None:
        """Clock time at which the next entry becomes due by time alone; None when nothing waits for time."""
        times = [entry.due for entry in self._states[State.ACTIVE].values()]
        times += [entry.due for entry in self._states[State.BACKOFF].values()]
        for state in (State.UNSCHEDULABLE, State.GATED):
            first = next(iter(self._states[state].values()), None)
            if first is not None:
                times.append(first.since + self._flush)
        return min(times, default=None)

    def new(self) -> list[Entry]:
        """Those that are due and new, and are not in flight."""
        return [entry for entry in self._due() if entry.is_new]

    def in_flight(self) -> list[Entry]:
        """Those of the rounds under way."""
        return list(self._states[State.IN_FLIGHT].values())

    def take(
        self, *, light_pods: int, alone: bool = False, newcomers: bool = True, beside: bool = False
    ) -> list[Entry]:
        """Moves the units that are due into flight: all of them, but of light plain pods what costs as much as
        `light_pods` ordinary ones (`first_of`). With `newcomers` those that are new go before those that wait already:
        every other time at most, or for as long as the last round of others took. Those that wait for a search and
        others that are due, and no more important, take turns. The planner orders a round by itself. `alone`: only one
        unit. `beside`: those that are new alone, for a round beside the one that is under way."""
        now = self.clock()
        if not self._states[State.IN_FLIGHT]:
            self._missed = Wake.NOTHING
        self.came = {}
        due = self._due()
        new = [entry for entry in due if entry.is_new]
        if not beside:
            turn = not self.ahead or self._ahead_took < self._others_took
            self.ahead = 0 < len(new) < len(due) and turn and newcomers and not alone
        ahead = beside or self.ahead
        if ahead:
            due = new
        else:
            waits = [entry for entry in due if entry.deferred is not None and entry.resumes > now]
            others = [entry for entry in due if entry.deferred is None or entry.resumes <= now]
            if waits and others:
                # a search keeps no room: what came free would be taken from those that are more important
                most = max(entry.priority for entry in others)
                waits = [entry for entry in waits if entry.priority >= most]
            self._turn = bool(waits and others) and not self._turn
            due = others if self._turn or not waits else self._searched(waits)
            if not self.deferred():
                self.turns.begin_anew()
        light = [entry for entry in due if entry.light]
        if sum(entry.load for entry in light) > light_pods:
            due = [entry for entry in due if not entry.light] + first_of(light, light_pods)
        if alone:
            due = due[:1]
        for entry in due:
            entry.attempts += 1
            entry.first_tried = now if entry.first_tried is None else entry.first_tried
            entry.touched, entry.missed, entry.ahead = False, Wake.NOTHING, ahead
            entry.taken, entry.whole = len(entry.pods), 0
            for pod in entry.pods.values():
                pod.attempts += 1
            self._move(entry, State.IN_FLIGHT)
        return due

    def took(self, seconds: float) -> None:
        """Planning the last units taken took so long."""
        if self.ahead:
            self._ahead_took += seconds
        else:
            self._others_took, self._ahead_took = seconds, 0.0

    def missed(self, wake: Wake) -> bool:
        """Whether one of these changes happened since the round under way took its units."""
        return bool((self._missed | self._wakes) & wake)

    def settle_unschedulable(
        self, entry: Entry, *, wakes: Wake, plugins: Iterable[str], gated: bool, seconds: float, short: int = 0
    ) -> None:
        """The attempt ended with pods left over. `seconds` is what the attempt took: it sets the pace of the next.
        `short`: how many members its gangs lack."""
        if self._ended(entry):
            return
        entry.wakes, entry.plugins, entry.errors = wakes, tuple(plugins), 0
        if gated and not entry.held and entry.answered > -inf:
            self.broadcast(Wake.ASKED, "UnitGated")
        entry.held, entry.answered = gated, self.clock()
        pause = GATED_PACE_SECONDS if gated else seconds * PACE
        if gated and short and len(entry.pods) < entry.taken + short:
            entry.whole, pause = entry.taken + short, SHORT_PACE_SECONDS
        entry.due = self.clock() + min(pause, self._most)
        if entry.touched:
            self._enter(entry, State.ACTIVE, "ScheduleAttemptFailure")
        elif (self._missed | self._wakes | entry.missed) & wakes:
            self._wake(entry, "ScheduleAttemptFailure")
        else:
            self._enter(entry, State.GATED if gated else State.UNSCHEDULABLE, "ScheduleAttemptFailure")

    def settle_deferred(self, entry: Entry, *, kept_off_seconds: float | None = None, interrupted: float = 0.0) -> None:
        """The attempt did not decide: a round that searches does; where room is kept from it, any one after so long.
        interrupted: seconds after which its search was given up."""
        if self._ended(entry):
            return
        now = self.clock()
        entry.deferred = now if entry.deferred is None else entry.deferred
        entry.passed_over = None
        entry.interrupted += interrupted
        entry.resumes = inf if kept_off_seconds is None else entry.deferred + kept_off_seconds
        if entry.touched:
            entry.resumes = 0.0
        entry.due = entry.not_before
        self._undecided(entry)

    def settle_behind(self, entry: Entry, *, interrupted: float = 0.0, passed_over: bool = False) -> None:
        """The attempt did not decide, for want of room beside those that wait already, or for somebody who came: it is
        tried with them in the next round. passed_over: its namespace had its part of the round."""
        if self._ended(entry):
            return
        entry.woken = True
        if passed_over and entry.passed_over is None and entry.deferred is None:  # else its search has turns of its own
            entry.passed_over = self.clock()
        entry.interrupted += interrupted
        self._undecided(entry)

    def _undecided(self, entry: Entry) -> None:
        entry.attempts -= 1
        for pod in entry.pods.values():
            pod.attempts = max(0, pod.attempts - 1)
        self._move(entry, State.ACTIVE)

    def behind(self) -> list[Entry]:
        """Those that are due and not new, and are not in flight; but for those whose namespace had its part."""
        now = self.clock()
        active = self._states[State.ACTIVE].values()
        return [entry for entry in active if entry.due <= now and not entry.is_new and entry.passed_over is None]

    def deferred(self) -> list[Entry]:
        """Those that wait for a search and are not in flight."""
        return [entry for entry in self._states[State.ACTIVE].values() if entry.deferred is not None]

    def settle_again(self, entry: Entry) -> None:
        """The unit is tried again at once: its plan was overtaken by changes, or all that it knew was placed and more
        has come."""
        if not self._ended(entry):
            entry.due = 0.0
            entry.woken = True
            self._enter(entry, State.ACTIVE, "PlanOvertaken")

    def settle_overtaken(self, entry: Entry, seconds: float) -> None:
        """The answer of a search that took so long holds no more: it is searched for again."""
        interrupted = entry.interrupted + seconds
        if entry.deferred is not None or interrupted >= self._search_seconds:
            self.settle_deferred(entry, interrupted=seconds)
        else:
            self.settle_again(entry)
            entry.interrupted = interrupted
        entry.overtaken = True

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

    def _due(self) -> list[Entry]:
        """Those that a round may take now."""
        now = self.clock()
        return once_each([entry for entry in self._states[State.ACTIVE].values() if entry.due <= now])

    def _searched(self, due: list[Entry]) -> list[Entry]:
        """The units of a round that searches. Every other time, where searches of some were given up for long, the one
        of which most were, alone: its round does not pause, and begins with its search."""
        due = self.turns.next(due)
        carried = [entry for entry in due if entry.is_carried(self._search_seconds)]
        self._carries = bool(carried) and not self._carries
        return [max(carried, key=lambda entry: entry.interrupted)] if self._carries else due

    def _entry(self, unit: str, event: str) -> Entry:
        """The entry of a unit that gains a pod."""
        entry = self.entries.get(unit)
        if entry is None:
            entry = self.entries[unit] = Entry(unit, tenant_of=self._tenant_of)
            self._enter(entry, State.ACTIVE, event, 1)
        return entry

    def _wake(self, entry: Entry, event: str) -> None:
        entry.woken = True
        self._enter(entry, State.ACTIVE, event)

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
        entry.deferred, entry.resumes, entry.looked_for, entry.interrupted = None, 0.0, False, 0.0
        entry.passed_over, entry.kept_off, entry.cut_off, entry.overtaken = None, None, None, False
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
