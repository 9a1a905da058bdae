"""Reserve and backfill (`queue.backfill`): a large unit is not starved by small ones behind it (docs/queueing.md).

EASY backfilling: the first unit of the queue that fails for room, and would fit an empty cluster, gets a reservation:
the earliest time at which enough running pods with a known end will have ended for it to be placed, and the placement
then. Units behind it may use the reserved room only if they will have ended by that time; others get what is left
beside it. Nothing is remembered: snapshot and `now` tell it anew each round, and what is placed in between can only
bring the time forward.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import ceil, inf
from typing import TypeGuard

import numpy as np

from koordpy.api.counted_nouns import counted
from koordpy.api.times import rfc3339
from koordpy.attempts.unit_attempt import plan_unit
from koordpy.attempts.unit_outcome import Attempt, NoCapacity, PlacedUnit, PreemptingUnit, UnitOutcome, WaitingUnit
from koordpy.cache.plan_draft import Draft
from koordpy.cache.reservations import ClosedTo, Reservation, withheld
from koordpy.cache.snapshot import Ints
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.plan.round_plan import PromisedStart, Proof, RoundPlan
from koordpy.planner.queue.known_ends import Runtimes
from koordpy.planner.queue.queue_policy import QueuePolicy
from koordpy.planner.queue.starvation import AllEnded
from koordpy.pods.pod_info import PodInfo
from koordpy.preemption.search.preemption_search import PreemptionSearch
from koordpy.preemption.selection.preemption_names import Way

NO_PROMISE = "no start can be promised: too few running pods say when they end"


def moment(seconds: float) -> str:
    """`2026-01-01T02:00:00Z`, rounded up to a whole second: a promise is not kept a moment late."""
    return rfc3339(ceil(seconds))


@dataclass(frozen=True, slots=True)
class _Promise:
    """A reservation as later units of the round meet it."""

    unit: Unit
    start: float
    nodes: Mapping[str, int]
    """Pod key -> node position."""
    asked: Ints
    """[nodes, resources] what the unit will take."""
    leaving: Mapping[int, Sequence[PodInfo]]
    """Node position -> pods that run there and whose room is counted on: they will have ended by the start."""


class Backfill(QueuePolicy):
    """The policy of one round: at most one promised start."""

    def __init__(self, figures: RoundState, ways: Sequence[Way]) -> None:
        """ways: of choosing victims, for units behind the promised start; empty where no pod is evicted."""
        self._figures, self._ways = figures, ways
        self._all_ended = AllEnded(figures)
        self.runtimes = Runtimes(figures.snapshot)
        self._head = False
        """Whether the first unit that lacks room has been met."""
        self._held: _Promise | None = None
        self._told: dict[str, str] = {}
        """Unit -> what it is told, of those that are kept from reserved room."""

    @property
    def promise(self) -> PromisedStart | None:
        """The start that is promised to a unit; None for none."""
        held = self._held
        if held is None:
            return None
        names = {key: self._figures.snapshot.nodes[node].name for key, node in held.nodes.items()}
        return PromisedStart(held.unit.id, held.start, names, dict(self._told))

    def complete(self, plan: RoundPlan) -> RoundPlan:
        """Returns the plan with the promised start, and with warnings of annotations that cannot be read."""
        warnings = dict.fromkeys((*plan.warnings, *sorted(self.runtimes.unreadable.items())))
        return replace(plan, reservation=self.promise, warnings=tuple(warnings))

    def extend_key(self, unit: Unit, key: Hashable) -> Hashable:
        """Equal for units of one class on the same side of the promised start."""
        return key, self._head, self._held is not None and self._ends_in_time(unit, self._held)

    def considers(self, unit: Unit) -> bool:
        """A unit that is not due is tried before the promised start, because it may hold capacity."""
        return not self._head

    def attempt(self, unit: Unit, attempt: Callable[[Unit], UnitOutcome]) -> UnitOutcome:
        """Places one unit on the round's draft, beside the promised start where there is one."""
        if self._held is None:
            outcome = attempt(unit)
            if self._head or not _lacks_capacity(outcome):
                return outcome
            found = self._earliest(unit)
            self._head = found is not None or isinstance(self._all_ended.attempt(unit), PlacedUnit)
            if found is not None:
                self._reserve(unit, *found)
                return outcome.note_capacity(promise=f"start promised at {moment(found[0])}")
            return outcome.note_capacity(promise=NO_PROMISE) if self._head else outcome
        return self._beside(unit, self._held)

    # -- the reservation ----------------------------------------------------------------------------------------------

    def _nodes_at(self, unit: Unit, end: float) -> Mapping[str, int] | None:
        """The unit's nodes once every pod with a known end by then has ended; None where it has no place."""
        snapshot, main = self._figures.snapshot, self._figures.draft
        draft = Draft(snapshot)
        own = {pod.key for pod in unit.members}
        for key, pod in {**main.evicted, **{pod.key: pod for when, pod in self._ends if when <= end}}.items():
            if key not in own:
                draft.evict(pod)
        for key, node in main.placed.items():
            if self._placed_end(key) > end:
                draft.assign(snapshot.pods[key], node, main.claims(key), main.given(key))
        for one in main.withheld:
            draft.withhold(one)
        outcome = plan_unit(unit, self._figures.of_draft(draft))
        return outcome.nodes if isinstance(outcome, PlacedUnit) else None

    @cached_property
    def _ends(self) -> list[tuple[float, PodInfo]]:
        """(end, pod) of the running pods whose end is known, the earliest first."""
        return self.runtimes.known(self._figures.snapshot.pods.values())

    def _placed_end(self, key: str) -> float:
        """End of a pod that this round has placed."""
        pod = self._figures.snapshot.pods[key]
        unit = Unit(id=key, gangs=(), plain=pod) if pod.gang is None else self._figures.groups.unit(pod.gang)
        return self.runtimes.end_from_now(unit)

    def _reserve(self, unit: Unit, start: float, nodes: Mapping[str, int]) -> None:
        snapshot = self._figures.snapshot
        asked = np.zeros_like(snapshot.allocatable)
        for key, node in nodes.items():
            asked[node] += snapshot.asked([snapshot.pods[key]])
        own, places = {pod.key for pod in unit.members}, frozenset(nodes.values())
        leaving: dict[int, list[PodInfo]] = {}
        for end, pod in self._ends:
            node = snapshot.index.get(pod.node, -1)
            if end <= start and node in places and pod.key not in own:
                leaving.setdefault(node, []).append(pod)
        self._held = _Promise(unit, start, nodes, asked, leaving)

    @property
    def withheld(self) -> Reservation | None:
        """What the reservation takes beyond what pods will have left by then, those that run and those that this round
        has placed: counted as used for units that will not have ended."""
        held = self._held
        if held is None:
            return None
        draft, out = self._figures.draft, held.asked.copy()
        for node in frozenset(held.nodes.values()):
            # a victim leaves its room at once, and not a second time
            gone = [pod for pod in held.leaving.get(node, ()) if pod.key not in draft.evicted]
            gone += [pod for key, pod in draft.placed_on.get(node, {}).items() if self._placed_end(key) <= held.start]
            out[node] -= draft.snapshot.asked(gone)
        return withheld(held.unit.title, ClosedTo.LONGER, np.asarray(np.maximum(out, 0)), held.start)

    def _earliest(self, unit: Unit) -> tuple[float, Mapping[str, int]] | None:
        """(time, pod key -> node) of the earliest end after which the unit can be placed."""
        own = {pod.key for pod in unit.members}
        ends = {end for end, pod in self._ends if pod.key not in own}
        ends |= {end for key in self._figures.draft.placed if (end := self._placed_end(key)) != inf}
        times = sorted(ends)
        if not times:
            return None
        last = self._nodes_at(unit, times[-1])
        if last is None:
            return None
        found = times[-1], last
        if any(self._figures.of(pod).follows for pod in unit.pending):
            # more room need not help a pod that wants others near it: the times are tried one by one
            for time in times[:-1]:
                if (nodes := self._nodes_at(unit, time)) is not None:
                    return time, nodes
            return found
        low, high = 0, len(times) - 1
        while low < high:
            middle = (low + high) // 2
            if (nodes := self._nodes_at(unit, times[middle])) is not None:
                found, high = (times[middle], nodes), middle
            else:
                low = middle + 1
        return found

    # -- beside it ----------------------------------------------------------------------------------------------------

    def _ends_in_time(self, unit: Unit, held: _Promise) -> bool:
        return self.runtimes.end_from_now(unit) <= held.start

    def _beside(self, unit: Unit, held: _Promise) -> UnitOutcome:
        closed = None if self._ends_in_time(unit, held) else self.withheld
        # a search of its own: victims are those of the draft as it is now
        search = cache(lambda: PreemptionSearch(self._figures, self._ways)) if self._ways else None
        if closed is None:
            return plan_unit(unit, self._figures, search)
        draft = self._figures.draft
        mark = draft.mark()
        with draft.withholding(closed):
            outcome = plan_unit(unit, self._figures, search)
            slots = [] if isinstance(outcome, PlacedUnit) else self._slots(unit)
        if isinstance(outcome, PlacedUnit):
            if self._disturbs(outcome, held):
                draft.undo(mark)
                text = f"it would keep {held.unit.title} from its promised start at {moment(held.start)}"
                self._told[unit.id] = text
                lack = NoCapacity(promise=text, beside_promise=True)
                return WaitingUnit(Attempt(unit, Proof.INFEASIBLE), lack)
            return outcome
        if not _lacks_capacity(outcome):
            return outcome
        reserved = self._kept(unit, held, slots)
        if reserved:
            self._told[unit.id] = reserved
        return outcome.note_capacity(promise=reserved, beside_promise=True)

    def _disturbs(self, outcome: PlacedUnit, held: _Promise) -> bool:
        """Whether pods that stay keep the reserved unit from its start by more than the room they take."""
        draft, nodes = self._figures.draft, outcome.nodes
        plain = not any(self._figures.snapshot.pods[key].ties or draft.given(key) for key in nodes)
        plain = plain and not isinstance(outcome, PreemptingUnit)
        plain = plain and not any(draft.claims(key) for key in nodes)
        if plain and not any(self._figures.of(pod).follows for pod in held.unit.pending):
            return False
        return self._nodes_at(held.unit, held.start) is None

    def _slots(self, unit: Unit) -> list[Ints]:
        """[nodes] of each shape of the unit: how many of its pods the draft has room for."""
        return [self._figures.of(pod).slots.copy() for pod in {pod.shape: pod for pod in unit.pending}.values()]

    def _kept(self, unit: Unit, held: _Promise, slots: Sequence[Ints]) -> str:
        """How many nodes a unit finds smaller for the reservation; empty where it is none. slots: beside it."""
        smaller = [free > beside for free, beside in zip(self._slots(unit), slots, strict=True)]
        count = int(np.logical_or.reduce(smaller).sum())
        if not count:
            return ""
        return f"room on {counted(count, 'node')} is reserved for {held.unit.title} until {moment(held.start)}"


def _lacks_capacity(outcome: UnitOutcome) -> TypeGuard[WaitingUnit]:
    """Proven not to fit: not held by a gate or a quota, nor refused by the check, nor undecided."""
    return isinstance(outcome, WaitingUnit) and outcome.lacks_capacity and outcome.attempt.proof is Proof.INFEASIBLE
