# SPDX-License-Identifier: Apache-2.0
"""Seats: capacity that is reserved for the missing members of broken gangs (docs/rules/repair.md 4.4).

Seats are reserved after the broken gangs were tried, and before any other unit is tried. Each Strict broken gang gets
the placement that its missing members would have now, for as many members as fit. A missing member without a pod is
planned with the shape that most live members have. If no member fits, capacity is reserved that becomes free at the
earliest known end of running pods.

Seats are withheld on the draft. A unit may use them if its priority is strictly higher than that of the gang's live
members. If seats wait for a known end, a unit that ends before it may use them, too. Seats are computed again in each
round, and end after `repair.seatHold`.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf

import numpy as np
from msgspec.structs import replace as changed

from koordpy.api import keys
from koordpy.api.counted_nouns import count_noun
from koordpy.api.durations import parse_duration
from koordpy.api.natural_order import natural_key
from koordpy.api.objects import condition_of
from koordpy.api.times import rfc3339, seconds
from koordpy.attempts.unit_outcome import PlacedUnit, UnitOutcome, WaitingUnit
from koordpy.cache.gang_history import DEGRADED
from koordpy.cache.reservations import ClosedTo, Reservation, withheld
from koordpy.cache.snapshot import Ints
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.broken_gangs import is_broken, missing_members
from koordpy.gangs.gang_reading import settings_of
from koordpy.gangs.gang_settings import Gang
from koordpy.gangs.queue_units import Unit
from koordpy.gangs.stale_grace import began
from koordpy.plan.gang_repair import KeptSeats
from koordpy.plan.limits import SEATS_LISTED
from koordpy.plan.round_plan import GangReport, RoundPlan
from koordpy.planner.queue.backfill import Backfill, moment, plan_nodes
from koordpy.planner.queue.queue_policy import QueuePolicy, closing_all
from koordpy.pods.gang_refs import GangRef, GangSource
from koordpy.pods.pod_info import PodInfo
from koordpy.preemption.search.relocation import as_pending
from koordpy.preemption.search.stale_gangs import possibly_stale_gangs
from koordpy.problems.problem_building import build
from koordpy.problems.unit_placement import Question, place_unit


@dataclass(frozen=True, slots=True)
class GangSeat:
    """The seats of one gang."""

    gang: GangRef
    nodes: Mapping[str, int]
    """Node name -> number of missing members that have a seat on the node."""
    until: float
    """End of the seats, in seconds since the epoch."""
    priority: int
    """Lowest priority of the gang's live members; units of higher priority may use the capacity."""
    ends: float
    """Known end of running pods at which the capacity becomes free, in seconds since the epoch; infinite for seats on
    capacity that is free now."""
    text: str
    """What the gang lacks, as text for messages of other units."""
    reservation: Reservation


class Seats(QueuePolicy):
    """Reserves the seats of all broken gangs in one round."""

    def __init__(
        self, round_state: RoundState, outcomes: Sequence[UnitOutcome], others: Sequence[QueuePolicy] = ()
    ) -> None:
        """outcomes: the outcomes of the units tried so far; the list grows during the round. others: other policies;
        there are no seats on the capacity that they reserve."""
        self._round_state, self._outcomes, self._others = round_state, outcomes, tuple(others)
        self._seats: list[GangSeat] | None = None
        """The seats; None until a unit without a broken gang is tried."""
        self._ends = Backfill(round_state, ())

    @property
    def by_gang(self) -> Mapping[GangRef, GangSeat]:
        """Gang -> its seats. Reserves them if this has not happened yet in the round."""
        return {seat.gang: seat for seat in self._reserved()}

    def end_turn_of_broken(self) -> None:
        """Reserves the seats."""
        self._reserved()

    def extend_key(self, unit: Unit, key: Hashable) -> Hashable:
        """Extends the key of a unit: equal keys only for units that may use the same seats."""
        return key if is_broken(unit.gangs) else (key, tuple(self._is_open(seat, unit) for seat in self._reserved()))

    def attempt(self, unit: Unit, attempt: Callable[[Unit], UnitOutcome]) -> UnitOutcome:
        """Tries a unit, with the seats that it may use counted as free."""
        if is_broken(unit.gangs):
            return attempt(unit)
        opened = [seat for seat in self._reserved() if self._is_open(seat, unit)]
        with self._without(opened):
            outcome = attempt(unit)
        if isinstance(outcome, PlacedUnit) and opened:
            self._drop_used(opened)
        return outcome

    def settle(self, unit: Unit, outcome: UnitOutcome) -> UnitOutcome:
        """Adds to the message of a unit that lacks capacity the number of nodes on which it would fit without seats."""
        if not isinstance(outcome, WaitingUnit) or not outcome.lacks_capacity or is_broken(unit.gangs):
            return outcome
        texts = [text for seat in self._reserved() if (text := self._blocked(unit, seat))]
        if len(texts) > SEATS_LISTED:
            texts[SEATS_LISTED:] = [f"room is held for {count_noun(len(texts) - SEATS_LISTED, 'other gang')}"]
        return replace(outcome, reasons=(*outcome.reasons, *(f"{text}." for text in texts))) if texts else outcome

    def complete(self, plan: RoundPlan) -> RoundPlan:
        """Returns the plan with all seats, and with the seats in the reports of their gangs."""
        seats = self.by_gang
        return replace(
            plan,
            gangs=tuple(_with_seats(report, seats.get(report.ref)) for report in plan.gangs),
            seats={ref.key: KeptSeats(seat.until, seat.nodes) for ref, seat in seats.items()},
        )

    # --- choosing seats -----------------------------------------------------------------------------------------------

    def _reserved(self) -> list[GangSeat]:
        """Returns the seats of the round; the first call reserves them."""
        if self._seats is None:
            self._seats = []
            for unit in self._broken_units():
                for gang in unit.gangs:
                    seat = self._seat_of(gang, unit)
                    if seat is not None:
                        self._round_state.draft.withhold(seat.reservation)
                        self._seats.append(seat)
        return self._seats

    def _broken_units(self) -> Iterator[Unit]:
        """Yields each unit that still has a broken gang after the attempts so far: first tried units, then the
        others."""
        groups, draft, names = self._round_state.groups, self._round_state.draft, self._round_state.snapshot.nodes
        placed = {key: names[node].name for key, node in draft.placed.items()}
        tried = {one.unit.id: one.unit for one in self._outcomes if one.unit.bound_any}
        others = {groups.id_of(ref): groups.unit(ref) for ref in possibly_stale_gangs(self._round_state.snapshot)}
        untried = [unit for unit in others.values() if unit.id not in tried and unit.members]
        for unit in (*tried.values(), *sorted(untried, key=_queue_key)):
            after = unit.with_bound(placed, draft.evicted)
            if is_broken(after.gangs):
                yield after

    def _seat_of(self, gang: Gang, unit: Unit) -> GangSeat | None:
        """Returns the seats of one gang; None if the gang is not broken, has no seats by its settings, or has no
        place."""
        missing, snapshot = missing_members(gang), self._round_state.snapshot
        if not missing or not gang.strict or gang.match_policy == "only-waiting" or gang.fault:
            return None
        if not any(pod.pod.spec.scheduler_name in snapshot.scheduler_names for pod in (*gang.bound, *gang.pending)):
            return None  # another scheduler places the missing members, too
        until = self._since(gang) + self._hold(gang)
        if until <= snapshot.now:
            return None
        coming = self._coming(gang, missing)
        nodes, amounts, ends = self._places(gang, unit, coming), None, inf
        if nodes:
            amounts = np.zeros_like(snapshot.allocatable)
            for pod, node in nodes:
                amounts[node] += snapshot.requests_of([pod])
        else:
            found = self._at_known_end(gang, unit, coming, until)
            if found is None:
                return None
            nodes, amounts, ends = found
        where = Counter(snapshot.nodes[node].name for _, node in nodes)
        order = sorted(where, key=lambda name: int(snapshot.name_rank[snapshot.index[name]]))
        return GangSeat(
            gang=gang.ref,
            nodes={name: where[name] for name in order},
            until=until,
            priority=min(pod.priority for pod in gang.bound),
            ends=ends,
            text=f"gang {gang.key}, which lacks {missing} of {gang.min_member} members",
            reservation=withheld(f"gang {gang.key}", ClosedTo.RANK, amounts, until),
        )

    def _since(self, gang: Gang) -> float:
        """Returns when the gang became broken, in seconds since the epoch; the time of the round if that is unknown.

        It is unknown offline in the first round, and live until this process has seen that the gang is broken.
        """
        snapshot = self._round_state.snapshot
        group = snapshot.pod_groups.get(gang.ref.key) if gang.ref.source is GangSource.GROUP else None
        said = condition_of(group.status.conditions, DEGRADED) if group is not None else None
        if said is not None and said.status == "True" and said.last_transition_time:
            return seconds(said.last_transition_time)
        known = began(gang, snapshot)
        return snapshot.broken_since.get(gang.ref, snapshot.now) if known is None else known

    def _hold(self, gang: Gang) -> float:
        """Returns the duration of the gang's seats in seconds: by its annotation, else by the configuration."""
        meta = settings_of(self._round_state.snapshot, gang.ref)
        text = meta.annotations.get(keys.GANG_SEAT_HOLD) if meta is not None else None
        if text is not None:
            try:
                length = parse_duration(text)
            except ValueError:
                length = -1.0
            if length >= 0:
                return length
        return self._round_state.config.repair.seat_hold

    def _coming(self, gang: Gang, missing: int) -> list[PodInfo]:
        """Returns the missing members: the pending members, then a substitute pod for each member without a pod."""
        found = list(gang.pending[:missing])
        if len(found) < missing:
            models = [_recreated(pod, self._round_state) for pod in gang.bound]
            number = Counter(model.shape for model in models)
            model = max(reversed(models), key=lambda one: number[one.shape])
            for i in range(missing - len(found)):
                meta = changed(model.pod.metadata, name=f"{model.name}-seat-{i}", uid="")
                wire = changed(model.pod, metadata=meta)
                found.append(changed(model, pod=wire, key=wire.key, index=None))
        return found

    def _places(self, gang: Gang, unit: Unit, coming: Sequence[PodInfo]) -> list[tuple[PodInfo, int]]:
        """Returns (missing member, node position) for as many missing members as fit beside the live members now."""
        asking = self._with(gang, unit, coming, needed=0)
        with closing_all(self._others, asking, asking.pending):
            return _place(asking, self._round_state, is_partial=True)

    def _at_known_end(
        self, gang: Gang, unit: Unit, coming: Sequence[PodInfo], until: float
    ) -> tuple[list[tuple[PodInfo, int]], Ints, float] | None:
        """Returns the earliest known end of running pods at which all missing members fit; None if there is none up to
        `until`.

        The result is (nodes, amounts that are withheld now, end).
        """
        known = self._round_state.snapshot.pods
        asking = self._with(gang, unit, coming, needed=len(coming))
        has_substitutes = any(pod.key not in known for pod in coming)
        with closing_all(self._others, asking, asking.pending):
            found = self._ends.earliest_start(asking, _place_substitutes if has_substitutes else plan_nodes)
            if found is None or found[0] > until:
                return None
            kept = self._ends.reservation_at(asking, *found)
        if kept is None or kept.amounts is None:
            return None
        pods = {pod.key: pod for pod in coming}
        return [(pods[key], node) for key, node in found[1].items()], kept.amounts, found[0]

    def _with(self, gang: Gang, unit: Unit, coming: Sequence[PodInfo], *, needed: int) -> Unit:
        """Returns the unit with the missing members of one gang as its only pending members."""
        gangs = []
        for one in unit.gangs:
            own = tuple(coming) if one.ref == gang.ref else ()
            pods = tuple(pod for pod in one.pods if not pod.pending) + own
            gangs.append(replace(one, pods=pods, stale_minimum=needed if own else 0))
        return Unit(id=unit.id, gangs=tuple(gangs))

    # --- other units --------------------------------------------------------------------------------------------------

    def _is_open(self, seat: GangSeat, unit: Unit) -> bool:
        """Returns True if a unit may use the capacity of a gang's seats."""
        if min(pod.priority for pod in unit.pending) > seat.priority:
            return True
        return seat.ends < inf and self._ends.runtimes.end_from_now(unit) <= seat.ends

    @contextmanager
    def _without(self, seats: Iterable[GangSeat]) -> Iterator[None]:
        """Within the context, the capacity of the given seats counts as free."""
        draft, opened = self._round_state.draft, list(seats)
        for seat in opened:
            draft.release_withheld(seat.reservation)
        try:
            yield
        finally:
            for seat in opened:
                draft.withhold(seat.reservation)

    def _drop_used(self, seats: Iterable[GangSeat]) -> None:
        """Ends the seats on nodes where a unit of higher priority has taken the capacity."""
        draft, snapshot = self._round_state.draft, self._round_state.snapshot
        for seat in seats:
            rows = [snapshot.index[name] for name in seat.nodes]
            if seat.ends == inf and bool((draft.free()[rows] < 0).any()):
                draft.release_withheld(seat.reservation)
                self._seats = [one for one in self._reserved() if one is not seat]

    def _blocked(self, unit: Unit, seat: GangSeat) -> str:
        """Returns the message with the number of nodes on which a pod of the unit would fit without these seats."""
        amounts = seat.reservation.amounts
        if amounts is None or self._is_open(seat, unit):
            return ""
        free = self._round_state.draft.free()
        shapes = {pod.shape: self._round_state.of(pod) for pod in unit.pending}
        nodes = [
            node
            for node in np.nonzero(amounts.any(axis=1))[0].tolist()
            if any(
                own.allowed[node]
                and any(amount > free[node, column] for column, amount in own.request)
                and all(amount <= free[node, column] + amounts[node, column] for column, amount in own.request)
                for own in shapes.values()
            )
        ]
        if not nodes:
            return ""
        end = moment(seat.ends) if seat.ends < inf else rfc3339(seat.until)
        return f"room on {count_noun(len(nodes), 'node')} is held for {seat.text}, until {end}"


def _queue_key(unit: Unit) -> tuple[int, float, object]:
    """Returns the sort key of a unit in the queue: highest priority first, then the oldest, then natural order of
    names."""
    pods = unit.members
    return -max(pod.priority for pod in pods), min(pod.created for pod in pods), natural_key(unit.group_id)


def _with_seats(report: GangReport, seat: GangSeat | None) -> GangReport:
    """Returns the report of a gang with its seats."""
    if seat is None or report.repair is None:
        return report
    return replace(report, repair=replace(report.repair, seats=seat.nodes, seats_until=seat.until))


def _place(asking: Unit, round_state: RoundState, *, is_partial: bool) -> list[tuple[PodInfo, int]]:
    """Returns (pending pod, node position) of a unit beside its live members, without gates and quotas.

    is_partial: True to place as many pending pods as fit. Otherwise the result is empty unless the unit's need fits.
    """
    state = round_state.of_changed(asking)
    state.inputs.repairs = lambda pod: True
    problem = build(asking, state)
    problem = replace(problem, needs=(0,) * len(problem.needs)) if is_partial else problem
    found = place_unit(asking, problem, state, Question.TRIAL)
    return [(asking.members[rank], node) for rank, node in sorted(found.nodes.items())]


def _place_substitutes(asking: Unit, round_state: RoundState) -> Mapping[str, int] | None:
    """Returns pod key -> node position of all pending pods of a unit, some of which are substitutes for missing
    members; None if not all of them fit."""
    found = _place(asking, round_state, is_partial=False)
    return {pod.key: node for pod, node in found} if len(found) == len(asking.pending) else None


def _recreated(pod: PodInfo, round_state: RoundState) -> PodInfo:
    """Returns a live member as its controller would recreate it, in the same gang."""
    return changed(as_pending(pod, round_state), gang=pod.gang, index=pod.index)
