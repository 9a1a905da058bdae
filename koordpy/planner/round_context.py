# SPDX-License-Identifier: Apache-2.0
"""The state of one round, which its actions share: the units that are due, the cluster, and the decisions so far.

An action (`actions`) reads the outcomes of earlier actions, changes the draft in `round_state`, and adds outcomes,
evictions, rejected plans and warnings. The report of the round is made from this object only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from koordpy.attempts.unit_attempt import plan_unit
from koordpy.attempts.unit_outcome import Attempt, DeferredUnit, UnitOutcome, WaitingUnit, is_refused_by_runtime
from koordpy.attempts.watched_pod import Watch
from koordpy.cache.reservations import Reservation
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.broken_gangs import is_broken, sick_holders
from koordpy.gangs.queue_units import Unit
from koordpy.plan.planning_budget import PlanningBudget
from koordpy.plan.round_plan import Eviction, Proof, RejectedPlan
from koordpy.planner.bounded_round import BoundedRound
from koordpy.planner.queue.queue_policy import QueuePolicy
from koordpy.preemption.search.preemption_search import PreemptionSearch
from koordpy.preemption.selection.preemption_names import Way


@dataclass(eq=False)
class RoundContext:
    """The state of one round, and the attempts to place units in it. Not usable after `close`."""

    round_state: RoundState
    """The snapshot, its draft with all decisions so far, and the configuration."""
    only: frozenset[str] | None = None
    """Ids of the units that are due; None for all pending units."""
    ways: Sequence[Way] = ()
    """Ways of choosing victims; empty for a round without evictions."""
    gives_back: bool = True
    """True if this round may evict units of quotas above their runtime."""
    budget: PlanningBudget | None = None
    """Limit of the planning time; None for no limit."""
    watch: Watch[Any] | None = None
    """An observer that receives the decision on one pending pod, with the round state; None for no observer."""
    outcomes: list[UnitOutcome] = field(default_factory=list)
    """Outcomes of the units tried so far, in the order of their turns."""
    evictions: list[Eviction] = field(default_factory=list)
    """Evictions that are for no unit of the round: by quotas that give back, of stale gangs, and of hurt members."""
    rejected: list[RejectedPlan] = field(default_factory=list)
    """Plans of actions that the independent check rejected; rejected plans of units are in `outcomes`."""
    warnings: list[tuple[str, str]] = field(default_factory=list)
    """(object such as Node/n1, text) to report."""
    policies: Sequence[QueuePolicy] = ()
    """Policies that reserve capacity; empty before units are tried, and if no policy applies."""
    followers: list[int] = field(default_factory=list)
    """Positions in `outcomes` of plain pods that lack capacity, if a later placement may satisfy their affinity or
    spread."""
    bound: BoundedRound | None = None
    """Limits the planning time; None before units are tried, and for a round without a limit."""
    _preemptor: PreemptionSearch | None = None
    """Cache of `preemptor`."""

    def __post_init__(self) -> None:
        if self.watch is not None:
            self.watch.start_round(self.round_state)

    def close(self) -> None:
        """Ends the round and breaks the reference cycles between its objects."""
        self.round_state.take_apart()
        if self._preemptor is not None:
            self._preemptor.take_apart()
        vars(self).clear()

    # --- state that an action may read --------------------------------------------------------------------------------

    @property
    def evicts(self) -> bool:
        """True if pods may be evicted in the round."""
        return bool(self.ways)

    def is_due(self, unit: Unit) -> bool:
        """Returns True if the round must try a unit."""
        return self.only is None or unit.id in self.only

    @property
    def defers(self) -> bool:
        """True in an ordinary live round. Units that need victims, moves or the solver are then left to a search."""
        return self.budget is not None and not self.budget.searches

    @property
    def preemptor(self) -> PreemptionSearch:
        """The search for victims, created on first use. Only for rounds with evictions."""
        if self._preemptor is None:
            self._preemptor = PreemptionSearch(self.round_state, self.ways, defers=self.defers)
        return self._preemptor

    @property
    def not_minimal(self) -> Sequence[str]:
        """Ids of units with a valid plan that evicts more pods than needed."""
        return self._preemptor.not_minimal if self._preemptor is not None else ()

    @property
    def withheld(self) -> Reservation | None:
        """Capacity that is withheld for a promised start; None if no start is promised."""
        return next((found for policy in self.policies if (found := policy.withheld) is not None), None)

    @property
    def has_promise(self) -> bool:
        """True if a start is promised to a unit."""
        return any(policy.promise is not None for policy in self.policies)

    # --- conditions of actions ----------------------------------------------------------------------------------------

    def has_overuse_check(self) -> bool:
        """Returns True if the action `give_back_overuse` runs: quotas above their runtime must give back in this
        round."""
        return self.evicts and self.gives_back and self.round_state.config.quota.monitor_all_quotas

    def has_followers(self) -> bool:
        """Returns True if there are followers: plain pods that a later placement may have made fit."""
        return bool(self.followers)

    def has_loans(self) -> bool:
        """Returns True if a quota's runtime refused a unit, and no start is promised to any unit."""
        return any(map(is_refused_by_runtime, self.outcomes)) and not self.has_promise

    def has_bound_gangs(self) -> bool:
        """Returns True if gangs have running members, so that a gang may be stale, and if pods may be evicted."""
        return self.evicts and any(pod.bound for some in self.round_state.snapshot.members.values() for pod in some)

    def has_broken_units(self) -> bool:
        """Returns True if a broken gang was tried without success, and if pods may be evicted."""
        waiting = (one.unit for one in self.outcomes if isinstance(one, WaitingUnit) and one.unit.bound_any)
        return self.evicts and any(is_broken(unit.gangs) for unit in waiting)

    def has_hurt_members(self) -> bool:
        """Returns True if there are pods that use unhealthy devices, and if they may be moved."""
        moves = self.evicts and self.round_state.config.repair.sick_devices == "evict"
        return moves and bool(sick_holders(self.round_state.snapshot))

    # --- attempts -----------------------------------------------------------------------------------------------------

    @property
    def is_cut(self) -> bool:
        """True if the planning time of the round is used up."""
        return self.bound is not None and self.bound.ended

    def take_turn(self, unit: Unit) -> None:
        """Records that a unit is next in the queue."""
        if self.bound is not None:
            self.bound.take_turn(unit)

    def attempt(self, unit: Unit) -> UnitOutcome:
        """Tries the unit that is next in the queue, or defers it if its tenant has no planning time left."""
        reason = self.bound.deferral(unit) if self.bound is not None else None
        if reason is not None:
            return DeferredUnit(Attempt(unit, Proof.UNKNOWN), reason)
        return self._timed(unit, self.place)

    def attempt_in_free_capacity(self, unit: Unit, round_state: RoundState) -> UnitOutcome:
        """Tries a unit without evicting pods, even if no planning time is left.

        round_state: that of the round, or a copy with other demand for runtimes.
        """

        def place(unit: Unit) -> UnitOutcome:
            """Plans a unit without victims."""
            self._note(unit)
            return plan_unit(unit, round_state, defers=self.defers)

        attempt: Callable[[Unit], UnitOutcome] = place
        for policy in self.policies:
            if policy.binds_loans:
                attempt = partial(policy.attempt, attempt=attempt)
        return self._timed(unit, attempt)

    def _timed(self, unit: Unit, plan: Callable[[Unit], UnitOutcome]) -> UnitOutcome:
        """Plans a unit, and charges the time to its tenant if the round has a time limit."""
        if self.bound is None:
            return plan(unit)
        began = self.bound.start()
        return self.bound.charge(unit, plan(unit), began)

    def place(self, unit: Unit) -> UnitOutcome:
        """Tries a unit under all policies of the round. Each policy wraps the attempt of the policies before it."""
        self._note(unit)
        attempt = self._place
        for policy in self.policies:
            attempt = partial(policy.attempt, attempt=attempt)
        return attempt(unit)

    def _place(self, unit: Unit) -> UnitOutcome:
        """Tries a unit without policies, with victims if the round may evict."""
        preemptor = (lambda: self.preemptor) if self.evicts else None
        return plan_unit(unit, self.round_state, preemptor, defers=self.defers)

    def _note(self, unit: Unit) -> None:
        """Tells the observer that a unit is tried next."""
        if self.watch is not None:
            self.watch.note_unit(unit, self.round_state)
