# SPDX-License-Identifier: Apache-2.0
"""Reserves the planned nodes of moved pods for their successors (docs/rules/preemption.md 3.4, repair.md 4.1 and 4.3).

A moved pod is evicted, and its controller creates a new pod, which is to run on the planned node. In a cluster that
takes seconds. Until then, the capacity on the planned node, and the devices that the plan has chosen there, are closed
to units of the moved pod's priority or below. The live scheduler remembers the moves (`Snapshot.returning`); offline,
the new pods have nominations instead. Nothing is reserved here for a broken gang, because it has seats, or for a
nominated pod. O(moved pods) for each unit.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from koordpy.attempts.unit_outcome import PlacedUnit, UnitOutcome
from koordpy.cache.reservations import ClosedTo, Reservation, ReturningPod, returning_holder, withheld
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.broken_gangs import missing_members
from koordpy.gangs.queue_units import Unit
from koordpy.planner.queue.queue_policy import QueuePolicy


class ReturningPods(QueuePolicy):
    """Reserves the planned nodes of moved pods in one round."""

    binds_loans = True

    def __init__(self, round_state: RoundState) -> None:
        """Withholds the reserved capacity on the draft."""
        self._round_state = round_state
        self._kept: list[tuple[ReturningPod, Reservation]] = []
        snapshot = round_state.snapshot
        for one in snapshot.returning:
            gang = one.pod.gang
            has_seats = gang is not None and missing_members(round_state.groups.gang(gang)) > 0
            is_kept = has_seats or one.pod.key in snapshot.reservations
            if not is_kept and one.node in snapshot.index:
                amounts = np.zeros_like(snapshot.allocatable)
                amounts[snapshot.index[one.node]] = snapshot.requests_of([one.pod])
                reservation = withheld(one.holder, ClosedTo.RANK, amounts, one.until, one.devices)
                round_state.draft.withhold(reservation)
                self._kept.append((one, reservation))

    def extend_key(self, unit: Unit, key: Hashable) -> Hashable:
        """Extends the key of a unit: equal keys only for units that may use the same reserved nodes."""
        opened = self._opened(unit)
        return (key, tuple(one.uid for one, _ in opened)) if opened else key

    def attempt(self, unit: Unit, attempt: Callable[[Unit], UnitOutcome]) -> UnitOutcome:
        """Tries a unit, with the reserved capacity that it may use counted as free."""
        opened = self._opened(unit)
        if not opened:
            return attempt(unit)
        with self._without(reservation for _, reservation in opened):
            outcome = attempt(unit)
        if isinstance(outcome, PlacedUnit):
            self._drop_used(unit, outcome)
        return outcome

    def _opened(self, unit: Unit) -> list[tuple[ReturningPod, Reservation]]:
        """Returns the reservations that a unit may use: of its own moved pods, and of moved pods of lower priority."""
        if not self._kept:
            return []
        lowest = min(pod.priority for pod in unit.pending)
        holders = {returning_holder(pod) for pod in unit.pending}
        return [kept for kept in self._kept if kept[0].holder in holders or lowest > kept[0].pod.priority]

    @contextmanager
    def _without(self, reservations: Iterable[Reservation]) -> Iterator[None]:
        """Within the context, the capacity of the given reservations counts as free."""
        draft, opened = self._round_state.draft, list(reservations)
        for reservation in opened:
            draft.release_withheld(reservation)
        try:
            yield
        finally:
            for reservation in opened:
                draft.withhold(reservation)

    def _drop_used(self, unit: Unit, outcome: PlacedUnit) -> None:
        """Ends the reservations of pods that are placed now, and those that units of higher priority have used up."""
        draft, snapshot = self._round_state.draft, self._round_state.snapshot
        for pod in unit.pending:
            if pod.key in outcome.nodes:
                own = [kept for kept in self._kept if kept[0].holder == returning_holder(pod)]
                name = snapshot.nodes[outcome.nodes[pod.key]].name
                for kept in sorted(own, key=lambda kept: kept[0].node != name)[:1]:
                    self._end(kept)
        for kept in list(self._kept):
            if bool((draft.free()[snapshot.index[kept[0].node]] < 0).any()) and kept in self._opened(unit):
                self._end(kept)

    def _end(self, kept: tuple[ReturningPod, Reservation]) -> None:
        self._round_state.draft.release_withheld(kept[1])
        self._kept.remove(kept)
