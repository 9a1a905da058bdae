# SPDX-License-Identifier: Apache-2.0
"""Backfill (`queue.backfill`): small units use capacity that is reserved for a large unit, without delaying that unit.

This is EASY backfilling (docs/queueing.md). The first unit of the queue that lacks capacity, but would fit an empty
cluster, gets a promised start. That is the earliest time at which enough running pods with a known end have ended. The
nodes of a placement at that time are reserved for it. A later unit may use the reserved capacity only if it ends by the
promised start; otherwise it may use only capacity that is not reserved. No state is kept between rounds: each round
computes the reservation from the snapshot and the snapshot's time.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import ceil, inf
from typing import TypeGuard

import numpy as np

from koordpy.api.counted_nouns import count_noun
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


Placer = Callable[[Unit, RoundState], Mapping[str, int] | None]
"""Returns pod key -> node position of all pending pods of a unit on a round state; None if the unit does not fit."""


def plan_nodes(unit: Unit, round_state: RoundState) -> Mapping[str, int] | None:
    """Returns the nodes of a unit's plan with all gates, quotas and device rules; None without a plan."""
    outcome = plan_unit(unit, round_state)
    return outcome.nodes if isinstance(outcome, PlacedUnit) else None


def moment(seconds: float) -> str:
    """Returns a time as text, such as `2026-01-01T02:00:00Z`.

    Rounded up to a whole second, so that no start is promised too early.
    """
    return rfc3339(ceil(seconds))


@dataclass(frozen=True, slots=True)
class _Promise:
    """The promised start of a unit, and the capacity that later units of the round must leave to it."""

    unit: Unit
    start: float
    """The promised start, in seconds since the epoch."""
    nodes: Mapping[str, int]
    """Pod key -> node position."""
    requests: Ints
    """[nodes, resources] amounts that the unit will use at the promised start."""
    leaving: Mapping[int, Sequence[PodInfo]]
    """Node position -> pods on the node that will have ended by the start. Their capacity is part of the promise."""


class Backfill(QueuePolicy):
    """The backfill of one round: at most one unit gets a promised start."""

    def __init__(self, round_state: RoundState, ways: Sequence[Way]) -> None:
        """ways: ways of choosing victims, for the units that are tried after the promise; empty if no pod may be
        evicted."""
        self._round_state, self._ways = round_state, ways
        self._all_ended = AllEnded(round_state)
        self.runtimes = Runtimes(round_state.snapshot)
        self._has_head = False
        """True once a unit was found that lacks capacity and would fit an empty cluster. It is also True if no start
        can be promised to that unit."""
        self._reserved_start: _Promise | None = None
        """The promise; None if there is none yet, or if no start can be promised."""
        self._messages: dict[str, str] = {}
        """Id of each unit that may not use reserved capacity -> the message for the unit's pods."""

    @property
    def promise(self) -> PromisedStart | None:
        """The start that is promised to a unit; None for none."""
        promise = self._reserved_start
        if promise is None:
            return None
        names = {key: self._round_state.snapshot.nodes[node].name for key, node in promise.nodes.items()}
        return PromisedStart(promise.unit.id, promise.start, names, dict(self._messages))

    def complete(self, plan: RoundPlan) -> RoundPlan:
        """Returns the plan with the promised start, and with warnings about unreadable annotations."""
        warnings = dict.fromkeys((*plan.warnings, *sorted(self.runtimes.unreadable.items())))
        return replace(plan, reservation=self.promise, warnings=tuple(warnings))

    def extend_key(self, unit: Unit, key: Hashable) -> Hashable:
        """Extends the key of a unit: equal keys only for units that both end by the promised start, or both do not."""
        return key, self._has_head, self._reserved_start is not None and self._ends_in_time(unit, self._reserved_start)

    def considers(self, unit: Unit) -> bool:
        """Returns True until a start is promised, because a unit that is not due may be the one that needs the
        promise."""
        return not self._has_head

    def attempt(self, unit: Unit, attempt: Callable[[Unit], UnitOutcome]) -> UnitOutcome:
        """Places one unit on the round's draft, without delaying the promised start.

        The first unit that lacks capacity gets the promise, if its start can be computed.
        """
        if self._reserved_start is None:
            outcome = attempt(unit)
            if self._has_head or not _lacks_capacity(outcome):
                return outcome
            found = self.earliest_start(unit)
            self._has_head = found is not None or isinstance(self._all_ended.attempt(unit), PlacedUnit)
            if found is not None:
                self._reserve(unit, *found)
                return outcome.note_capacity(promise=f"start promised at {moment(found[0])}")
            return outcome.note_capacity(promise=NO_PROMISE) if self._has_head else outcome
        return self._attempt_after_promise(unit, self._reserved_start)

    # -- the reservation ----------------------------------------------------------------------------------------------

    def _nodes_at(self, unit: Unit, end: float, place: Placer) -> Mapping[str, int] | None:
        """Returns the unit's nodes at the time `end`; None if the unit does not fit at that time.

        By that time all pods with a known end up to `end` have ended: running pods, and pods placed in this round.
        """
        snapshot, main = self._round_state.snapshot, self._round_state.draft
        draft = Draft(snapshot)
        own = {pod.key for pod in unit.members}
        for key, pod in {**main.evicted, **{pod.key: pod for when, pod in self._ends if when <= end}}.items():
            if key not in own:
                draft.evict(pod)
        for key, node in main.placed.items():
            if self._placed_end(key) > end:
                draft.assign(snapshot.pods[key], node, main.claims(key), main.devices_of(key))
        for one in main.withheld:
            draft.withhold(one)
        return place(unit, self._round_state.of_draft(draft))

    @cached_property
    def _ends(self) -> list[tuple[float, PodInfo]]:
        """(end, pod) of the running pods with a known end, the earliest end first."""
        return self.runtimes.known(self._round_state.snapshot.pods.values())

    def _placed_end(self, key: str) -> float:
        """Returns the end of a pod that this round has placed, in seconds since the epoch; infinite if unknown."""
        pod = self._round_state.snapshot.pods[key]
        unit = Unit(id=key, gangs=(), plain=pod) if pod.gang is None else self._round_state.groups.unit(pod.gang)
        return self.runtimes.end_from_now(unit)

    def _reserve(self, unit: Unit, start: float, nodes: Mapping[str, int]) -> None:
        """Records the promise: the start of a unit, its nodes, and the pods that end there by then."""
        snapshot, pods = self._round_state.snapshot, {pod.key: pod for pod in unit.pending}
        asked = np.zeros_like(snapshot.allocatable)
        for key, node in nodes.items():
            asked[node] += snapshot.requests_of([pods[key]])
        own, places = {pod.key for pod in unit.members}, frozenset(nodes.values())
        leaving: dict[int, list[PodInfo]] = {}
        for end, pod in self._ends:
            node = snapshot.index.get(pod.node, -1)
            if end <= start and node in places and pod.key not in own:
                leaving.setdefault(node, []).append(pod)
        self._reserved_start = _Promise(unit, start, nodes, asked, leaving)

    def reservation_at(self, unit: Unit, start: float, nodes: Mapping[str, int]) -> Reservation | None:
        """Returns the capacity that must be withheld now for a unit that starts at time `start` on `nodes`; None if
        none must."""
        self._reserve(unit, start, nodes)
        found, self._reserved_start = self.withheld, None
        return found

    @property
    def withheld(self) -> Reservation | None:
        """The part of the promised capacity that is free now; None without a promise.

        It is the unit's requests, less the capacity of pods that end by the promised start. It counts as used for units
        that do not end by then.
        """
        promise = self._reserved_start
        if promise is None:
            return None
        draft, out = self._round_state.draft, promise.requests.copy()
        for node in frozenset(promise.nodes.values()):
            # the capacity of a victim is free already, so it must not be counted as capacity that is freed later
            gone = [pod for pod in promise.leaving.get(node, ()) if pod.key not in draft.evicted]
            gone += [
                pod for key, pod in draft.placed_on.get(node, {}).items() if self._placed_end(key) <= promise.start
            ]
            out[node] -= draft.snapshot.requests_of(gone)
        return withheld(promise.unit.title, ClosedTo.LONGER, np.asarray(np.maximum(out, 0)), promise.start)

    def earliest_start(self, unit: Unit, place: Placer = plan_nodes) -> tuple[float, Mapping[str, int]] | None:
        """Returns (time, pod key -> node): the earliest end of a pod after which the unit can be placed.

        None if the unit does not fit even once all pods with a known end have ended. Found by bisection, because more
        ended pods leave more capacity. place: places the unit on the round state of that time.
        """
        own = {pod.key for pod in unit.members}
        ends = {end for end, pod in self._ends if pod.key not in own}
        ends |= {end for key in self._round_state.draft.placed if (end := self._placed_end(key)) != inf}
        times = sorted(ends)
        if not times:
            return None
        last = self._nodes_at(unit, times[-1], place)
        if last is None:
            return None
        found = times[-1], last
        if any(self._round_state.of(pod).follows for pod in unit.pending):
            # a pod that needs other pods near it may fit at an early time and not later, so each time is tried
            for time in times[:-1]:
                if (nodes := self._nodes_at(unit, time, place)) is not None:
                    return time, nodes
            return found
        low, high = 0, len(times) - 1
        while low < high:
            middle = (low + high) // 2
            if (nodes := self._nodes_at(unit, times[middle], place)) is not None:
                found, high = (times[middle], nodes), middle
            else:
                low = middle + 1
        return found

    # -- later units --------------------------------------------------------------------------------------------------

    def _ends_in_time(self, unit: Unit, promise: _Promise) -> bool:
        """Returns True if a unit that is placed now ends by the promised start."""
        return self.runtimes.end_from_now(unit) <= promise.start

    def _attempt_after_promise(self, unit: Unit, promise: _Promise) -> UnitOutcome:
        """Places a unit after a start was promised.

        A unit that does not end by the promised start gets no reserved capacity. A placement is undone if it would
        delay the promised start by other means than capacity.
        """
        closed = None if self._ends_in_time(unit, promise) else self.withheld
        # a separate search, because its pool of victims must be read from the draft as it is now
        search = cache(lambda: PreemptionSearch(self._round_state, self._ways)) if self._ways else None
        if closed is None:
            return plan_unit(unit, self._round_state, search)
        draft = self._round_state.draft
        mark = draft.mark()
        with draft.with_withheld(closed):
            outcome = plan_unit(unit, self._round_state, search)
            slots = [] if isinstance(outcome, PlacedUnit) else self._slots(unit)
        if isinstance(outcome, PlacedUnit):
            if self._delays_start(outcome, promise):
                draft.undo(mark)
                text = f"it would delay the promised start of {promise.unit.title} at {moment(promise.start)}"
                self._messages[unit.id] = text
                lack = NoCapacity(promise=text, beside_promise=True)
                return WaitingUnit(Attempt(unit, Proof.INFEASIBLE), lack)
            return outcome
        if not _lacks_capacity(outcome):
            return outcome
        reserved = self._blocked_message(unit, promise, slots)
        if reserved:
            self._messages[unit.id] = reserved
        return outcome.note_capacity(promise=reserved, beside_promise=True)

    def _delays_start(self, outcome: PlacedUnit, promise: _Promise) -> bool:
        """Returns True if a placement delays the promised start by other means than capacity, such as affinity.

        Most placements cannot: those of pods without constraints, named devices, claims or victims. They are not
        checked, unless the unit with the promise depends on other pods near it.
        """
        draft, nodes = self._round_state.draft, outcome.nodes
        plain = not any(self._round_state.snapshot.pods[key].ties or draft.devices_of(key) for key in nodes)
        plain = plain and not isinstance(outcome, PreemptingUnit)
        plain = plain and not any(draft.claims(key) for key in nodes)
        if plain and not any(self._round_state.of(pod).follows for pod in promise.unit.pending):
            return False
        return self._nodes_at(promise.unit, promise.start, plan_nodes) is None

    def _slots(self, unit: Unit) -> list[Ints]:
        """Returns for each shape of the unit [nodes]: the number of slots on the draft."""
        return [self._round_state.of(pod).slots.copy() for pod in {pod.shape: pod for pod in unit.pending}.values()]

    def _blocked_message(self, unit: Unit, promise: _Promise, slots: Sequence[Ints]) -> str:
        """Returns a message with the number of nodes on which the unit has fewer slots because of the promise.

        Empty if there are no such nodes. slots: the result of `_slots` while the capacity is withheld.
        """
        smaller = [free > before for free, before in zip(self._slots(unit), slots, strict=True)]
        count = int(np.logical_or.reduce(smaller).sum())
        if not count:
            return ""
        return f"room on {count_noun(count, 'node')} is reserved for {promise.unit.title} until {moment(promise.start)}"


def _lacks_capacity(outcome: UnitOutcome) -> TypeGuard[WaitingUnit]:
    """Returns True if it is proven that a unit does not fit any nodes now.

    False if a gate or a quota blocks the unit, if the check rejected its plan, or if the attempt is undecided.
    """
    return isinstance(outcome, WaitingUnit) and outcome.lacks_capacity and outcome.attempt.proof is Proof.INFEASIBLE
