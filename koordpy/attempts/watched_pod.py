# SPDX-License-Identifier: Apache-2.0
"""Gives `koordpy explain` the decision of a round about one pod, together with the round state behind it.

`explain` needs the verdicts and scores of all nodes, which a round discards at its end. If a round has a `Watch`, it
calls the watch's function with the decision and the round state before it discards them. Rounds without a watch have no
extra cost. Source: docs/rules/simulate.md 5.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

from koordpy.attempts.unit_outcome import DeferredUnit, NoCapacity, PlacedUnit, UnitOutcome, WaitingUnit
from koordpy.cache.reservations import Reservation
from koordpy.cache.snapshot import Snapshot
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.plan.round_plan import PendingPod, RoundPlan
from koordpy.pods.pod_info import PodInfo

T = TypeVar("T")


@dataclass(frozen=True)
class DecidedPod:
    """The decision of a round for one pending pod. Valid only until the function that gets it returns."""

    pod: PodInfo
    outcome: UnitOutcome
    """The outcome of the pod's unit."""
    round_state: RoundState
    """State at the end of the round: its draft has all placements and evictions. See `picture` for the state to
    explain."""
    plan: RoundPlan
    """The plan of the whole round."""
    mark: int
    """The draft's mark before the unit was placed."""
    promised_capacity: Reservation | None = None
    """Capacity reserved for another unit's promised start, which the unit could not use; None for none."""

    @property
    def snapshot(self) -> Snapshot:
        """The cluster at the start of the round."""
        return self.round_state.snapshot

    @property
    def nodes(self) -> Mapping[str, int]:
        """Pod key -> node position of the unit's pods that the round binds or nominates; empty if it places none."""
        return self.outcome.nodes if isinstance(self.outcome, PlacedUnit) else {}

    @property
    def node(self) -> int | None:
        """Position of the node that the round binds the pod to, or nominates it for; None if it stays pending."""
        return self.nodes.get(self.pod.key)

    @cached_property
    def waits(self) -> PendingPod | None:
        """The reason and message of the pod if it stays pending; None if it is bound or nominated."""
        return next((one for one in self.plan.pending if one.pod_key == self.pod.key), None)

    @cached_property
    def unit(self) -> Unit:
        """The pod's unit.

        For a placed pod it is the unit before its plan. For a pending pod it is the unit after the round, with the
        members that the round has placed.
        """
        if self.node is not None:
            return self.outcome.unit
        names = {key: self.snapshot.nodes[node].name for key, node in self.nodes.items()}
        return self.outcome.unit.with_bound(names, self.round_state.draft.evicted)

    @contextmanager
    def picture(self) -> Iterator[RoundState]:
        """Yields the round state that explains the decision, as a context manager.

        For a placed pod this is the state before its unit was placed; for a pending pod the state after the round. May
        be entered only once, because it undoes changes of the draft and does not restore them.
        """
        draft = self.round_state.draft
        if self.node is not None:
            draft.undo(self.mark)
        with draft.with_withheld(self.promised_capacity):
            yield self.round_state


@dataclass
class Watch(Generic[T]):
    """A request to a round: call a function with the decision on one pod."""

    pod: str
    """`namespace/name` of a pending pod."""
    look: Callable[[DecidedPod], T]
    """Called once, at the end of the round. Must not keep a reference to its argument."""
    answer: T | None = None
    """The result of `look`; None if the round did not try the pod."""
    _unit: str = field(default="", init=False)
    """Id of the pod's unit; set at the beginning of the round."""
    _mark: int = field(default=0, init=False)
    """The draft's mark just before the unit was tried."""

    def start_round(self, round_state: RoundState) -> None:
        """Called at the beginning of a round, before any unit is tried."""
        self._unit = round_state.unit_id(round_state.snapshot.pods[self.pod])

    def note_unit(self, unit: Unit, round_state: RoundState) -> None:
        """Called before each unit is tried."""
        if unit.id == self._unit:
            self._mark = round_state.draft.mark()

    def finish_round(
        self, outcomes: list[UnitOutcome], round_state: RoundState, plan: RoundPlan, kept: Reservation | None
    ) -> None:
        """Called at the end of a round; calls `look` if the round decided the pod's unit.

        outcomes: of all units. kept: the reservation of a promised start; None for none.
        """
        found = next((one for one in outcomes if one.unit.id == self._unit), None)
        if found is not None and not isinstance(found, DeferredUnit):
            diagnosis = found.diagnosis if isinstance(found, WaitingUnit) else None
            promised = kept if isinstance(diagnosis, NoCapacity) and diagnosis.beside_promise else None
            pod = round_state.snapshot.pods[self.pod]
            self.answer = self.look(DecidedPod(pod, found, round_state, plan, self._mark, promised))
