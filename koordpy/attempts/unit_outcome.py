# SPDX-License-Identifier: Apache-2.0
"""The outcome of a round for one unit (a plain pod or a gang), as one of five variants.

- `BoundUnit`: the round binds pods of the unit.
- `PreemptingUnit`: the round evicts victims for the unit; its pods are nominated.
- `WaitingUnit`: the unit has no nodes, and a diagnosis that says why.
- `DeferredUnit`: the round did not decide; a later round or search does.
- `RejectedUnit`: a plan was found, but failed its independent check.

Code that reads an outcome distinguishes the variants by `match` or `isinstance`. All variants share the record
`Attempt`. This module has only values and no planning.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from koordpy.fairness.quota_admission import QuotaRefusal
from koordpy.gangs.queue_units import Unit
from koordpy.gangs.unit_gates import Gate
from koordpy.plan.round_plan import DeferralReason, Proof, RejectedPlan, SolverRun
from koordpy.preemption.search.preemption_plan import Victim
from koordpy.preemption.search.relocation import Back
from koordpy.preemption.selection.preemption_names import NO_GUARD, Guard

Nodes = Mapping[str, int]
"""Pod key (`namespace/name`) -> position of its node in `Snapshot.nodes`."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Data about the planning of one unit that every outcome has."""

    unit: Unit
    proof: Proof
    """Certainty of the answer: optimal, feasible, infeasible or unknown."""
    method: str = ""
    """Method that found the nodes, or proved that there are none; empty if none ran."""
    runs: tuple[SolverRun, ...] = ()
    """Runs of the solver (CP-SAT) for this unit."""
    rejected: tuple[RejectedPlan, ...] = ()
    """Plans for the unit that the check rejected, even if the check accepted a later plan."""
    seconds: float | None = None
    """Seconds of wall time that planning the unit took; None if it is not measured."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Base class of all variants."""

    attempt: Attempt

    @property
    def unit(self) -> Unit:
        """The unit that was tried."""
        return self.attempt.unit

    def record_seconds(self, seconds: float) -> Self:
        """Returns the same outcome with the wall time of its attempt."""
        return replace(self, attempt=replace(self.attempt, seconds=seconds))

    def name_method(self, method: str) -> Self:
        """Returns the same outcome with this method; unchanged if the outcome has a method already."""
        return self if self.attempt.method else replace(self, attempt=replace(self.attempt, method=method))


@dataclass(frozen=True, slots=True)
class BoundUnit(_Outcome):
    """The round binds pods of the unit."""

    nodes: Nodes
    """Pod key -> node position. Never empty."""
    notes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Pod key -> annotations of its Binding for the devices that it gets."""
    remark: str = ""
    """A sentence on what limits the unit; added to the message of its members that stay pending. Empty for nothing."""


@dataclass(frozen=True, slots=True)
class PreemptingUnit(_Outcome):
    """The round evicts victims for the unit, and nominates its pods."""

    nodes: Nodes
    """Pod key -> position of the nominated node. Never empty."""
    victims: tuple[Victim, ...]
    """Victims of the unit. Never empty."""
    back: tuple[Back, ...] = ()
    """Victims that are not lost but moved (rule consolidation), with the nodes that are reserved for them."""
    least: int | None = None
    """Lower bound: every plan evicts at least this many pods. None if this set of victims is proven to be the best."""
    notes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Pod key -> annotations of its Binding for the devices that it gets."""
    remark: str = ""
    """A sentence on what limits the unit; added to the message of its members that stay pending. Empty for nothing."""


@dataclass(frozen=True, slots=True)
class NoCapacity:
    """Diagnosis: no node or domain has capacity for the unit. Each text below is empty if it does not apply."""

    remark: str = ""
    """A sentence on what limits the unit in addition to slots; added to the message of its pods."""
    hold: str = ""
    """A sentence on the nodes that are withheld for the unit because it has waited too long (starvation guard)."""
    promise: str = ""
    """A sentence on the promised start of this unit, or of another unit that this unit would delay."""
    beside_promise: bool = False
    """True if the unit was planned without the capacity that is reserved for another unit's promised start."""


Diagnosis = Gate | QuotaRefusal | NoCapacity
"""Why a unit waits: a gate, a refusal by a quota, or no capacity."""


@dataclass(frozen=True, slots=True)
class WaitingUnit(_Outcome):
    """The unit was planned, but gets no nodes in this round."""

    diagnosis: Diagnosis
    reasons: tuple[str, ...] = ()
    """Sentences that follow the count of nodes in the unit's message, mainly why no pod is evicted for the unit."""
    withheld: frozenset[Guard] = NO_GUARD
    """Guards. Each of them blocks a plan with victims by itself: without it a plan would exist."""
    awaits: Nodes = field(default_factory=dict)
    """Pod key -> position of a node that is reserved for the pod while running pods end there; empty for none."""

    @property
    def lacks_capacity(self) -> bool:
        """True if nodes were checked, and no node or domain had capacity for the unit."""
        return isinstance(self.diagnosis, NoCapacity)

    @property
    def refusal(self) -> QuotaRefusal | None:
        """The refusal of the quota that does not admit the unit; None if the diagnosis is another one."""
        return self.diagnosis if isinstance(self.diagnosis, QuotaRefusal) else None

    def note_capacity(self, *, hold: str = "", promise: str = "", beside_promise: bool = False) -> Self:
        """Returns the outcome with more details in its diagnosis, which must be `NoCapacity`."""
        lack = self.diagnosis
        assert isinstance(lack, NoCapacity)
        beside_promise |= lack.beside_promise
        noted = NoCapacity(lack.remark, hold or lack.hold, promise or lack.promise, beside_promise)
        return replace(self, diagnosis=noted)

    def copy_for(self, unit: Unit) -> Self:
        """Returns the same outcome for another unit of the equivalence class, which is then not planned itself.

        The text on withheld nodes is left out, because these nodes are withheld for the first unit only.
        """
        diagnosis: Diagnosis = self.diagnosis
        match diagnosis:
            case QuotaRefusal():
                diagnosis = _refusal_for(unit, diagnosis)
            case NoCapacity():
                diagnosis = replace(diagnosis, hold="")
        return replace(self, attempt=replace(self.attempt, unit=unit, seconds=None), diagnosis=diagnosis)


@dataclass(frozen=True, slots=True)
class DeferredUnit(_Outcome):
    """The round did not decide the unit; a search or a later round does."""

    reason: DeferralReason = DeferralReason.SEARCH
    refusal: QuotaRefusal | None = None
    """The quota that refused the unit before its search for victims was deferred; None if none did."""

    def copy_for(self, unit: Unit) -> Self:
        """Returns the same outcome for another unit of the equivalence class, which is not planned itself."""
        refusal = _refusal_for(unit, self.refusal) if self.refusal is not None else None
        return replace(self, attempt=replace(self.attempt, unit=unit, seconds=None), refusal=refusal)


@dataclass(frozen=True, slots=True)
class RejectedUnit(_Outcome):
    """The independent check rejected the unit's plan. So the planner has made a mistake, and nothing is carried out."""

    fault: str
    """The first faults, as the conditions of the unit's pods state them."""


PlacedUnit = BoundUnit | PreemptingUnit
"""Outcomes that give the unit nodes."""
# DecidedUnit: all except `DeferredUnit`. UnitOutcome: all.
DecidedUnit = BoundUnit | PreemptingUnit | WaitingUnit | RejectedUnit
UnitOutcome = BoundUnit | PreemptingUnit | WaitingUnit | RejectedUnit | DeferredUnit


def is_refused_by_runtime(outcome: UnitOutcome) -> bool:
    """Returns True if the runtime of a quota (not its max) refused the unit, and no capacity is reserved for the
    unit."""
    match outcome:
        case WaitingUnit(awaits=awaits):
            refusal = None if awaits else outcome.refusal
        case DeferredUnit(refusal=refusal):
            pass
        case _:
            return False
    return refusal is not None and refusal.limit_name == "runtime"


def _refusal_for(unit: Unit, refusal: QuotaRefusal) -> QuotaRefusal:
    """Returns a quota's refusal with the name of another unit of the equivalence class."""
    return refusal if unit.plain is not None else replace(refusal, gang=unit.group_id)
