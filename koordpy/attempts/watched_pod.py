"""What a round decided for one pod, with the figures that it was decided on: for `koordpy explain`.

A round that is asked to watch a pod hands out its decision before the figures are taken apart. A round without a
watched pod does nothing for this. Source: docs/rules/simulate.md 5.
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
    """The decision of a round for one pending pod. Valid only until the function that is given it returns."""

    pod: PodInfo
    outcome: UnitOutcome
    """What the round made of the pod's unit."""
    figures: RoundState
    """Of the round. Outside `picture` its draft has everything that the round decided."""
    plan: RoundPlan
    mark: int
    """The draft's mark before the unit was placed."""
    kept: Reservation | None = None
    """Capacity that counts as used for the unit: that of a promised start; None for none."""

    @property
    def snapshot(self) -> Snapshot:
        """The cluster at the start of the round."""
        return self.figures.snapshot

    @property
    def nodes(self) -> Mapping[str, int]:
        """Pod key -> node of the pods of its unit that the round binds or nominates; empty where it places none."""
        return self.outcome.nodes if isinstance(self.outcome, PlacedUnit) else {}

    @property
    def node(self) -> int | None:
        """Position of the node that the pod is bound to in this round, or that it is nominated for; None where it
        waits."""
        return self.nodes.get(self.pod.key)

    @cached_property
    def waits(self) -> PendingPod | None:
        """What the round says of a pod that waits; None for one that is placed or nominated."""
        return next((one for one in self.plan.pending if one.pod_key == self.pod.key), None)

    @cached_property
    def unit(self) -> Unit:
        """The pod's unit as the picture shows it: before its plan, or for a pod that waits after the round."""
        if self.node is not None:
            return self.outcome.unit
        names = {key: self.snapshot.nodes[node].name for key, node in self.nodes.items()}
        return self.outcome.unit.after(names, self.figures.draft.evicted)

    @contextmanager
    def picture(self) -> Iterator[RoundState]:
        """The figures as the decision found them: for a pod with a node those before its unit was placed, for a pod
        that waits those of the sentence that it is told. May be entered once, because it takes changes back."""
        draft = self.figures.draft
        if self.node is not None:
            draft.undo(self.mark)
        with draft.withholding(self.kept):
            yield self.figures


@dataclass
class Watch(Generic[T]):
    """What a round is asked to tell of one pod."""

    pod: str
    """`namespace/name` of a pending pod."""
    look: Callable[[DecidedPod], T]
    """Called once, at the end of the round. Must keep nothing of what it is given."""
    answer: T | None = None
    """What `look` returned; None where the round did not try the pod."""
    _unit: str = field(default="", init=False)
    _mark: int = field(default=0, init=False)

    def begins(self, figures: RoundState) -> None:
        """A round begins."""
        self._unit = figures.unit_id(figures.snapshot.pods[self.pod])

    def comes(self, unit: Unit, figures: RoundState) -> None:
        """A unit is about to be tried."""
        if unit.id == self._unit:
            self._mark = figures.draft.mark()

    def ends(self, outcomes: list[UnitOutcome], figures: RoundState, plan: RoundPlan, kept: Reservation | None) -> None:
        """The round is planned. kept: [nodes, resources] for a promised start."""
        found = next((one for one in outcomes if one.unit.id == self._unit), None)
        if found is not None and not isinstance(found, DeferredUnit):
            diagnosis = found.diagnosis if isinstance(found, WaitingUnit) else None
            beside = kept if isinstance(diagnosis, NoCapacity) and diagnosis.beside_promise else None
            pod = figures.snapshot.pods[self.pod]
            self.answer = self.look(DecidedPod(pod, found, figures, plan, self._mark, beside))
