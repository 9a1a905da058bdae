# SPDX-License-Identifier: Apache-2.0
"""The state of one round, which its actions share: what is requested, the cluster, and the decisions so far.

An action (`actions`) reads the outcomes of the actions before it, changes the draft in `round_state`, and adds
outcomes, evictions, rejected plans and warnings. The report of the round is made from these alone.
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
    """The state of one round. Valid until `close`."""

    round_state: RoundState
    """The snapshot, its draft with all decisions so far, and the configuration."""
    only: frozenset[str] | None = None
    """Ids of the units that are due; None for all pending units."""
    ways: Sequence[Way] = ()
    """Ways of choosing victims; empty for a round without evictions."""
    gives_back: bool = True
    """True if units of quotas above their runtime may be evicted in this round."""
    budget: PlanningBudget | None = None
    """Limit of the planning time; None for no limit."""
    watch: Watch[Any] | None = None
    """An observer that gets the decision on one pending pod, with the round state; None for none."""
    outcomes: list[UnitOutcome] = field(default_factory=list)
    """Outcomes of the units tried so far, in the order of their turns."""
    evictions: list[Eviction] = field(default_factory=list)
    """Evictions for no unit of the round: by quotas that give back, of stale gangs, and of hurt members."""
    rejected: list[RejectedPlan] = field(default_factory=list)
    """Plans of actions that their check rejected; rejected plans of units are in `outcomes`."""
    warnings: list[tuple[str, str]] = field(default_factory=list)
    """(object such as Node/n1, text) to report."""
    policies: Sequence[QueuePolicy] = ()
    """Policies that reserve capacity; empty before units are tried, and if no policy applies."""
    followers: list[int] = field(default_factory=list)
    """Positions in `outcomes` of plain pods without capacity, if a later placement may satisfy their affinity or
    spread."""
    bound: BoundedRound | None = None
    """The limit of the planning time; None before units are tried, and without a limit."""
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
        """Returns True if the round is to try a unit."""
        return self.only is None or unit.id in self.only

    @property
    def defers(self) -> bool:
        """True in an ordinary live round: units that need victims, units to move, or the solver are left to a
        search."""
        return self.budget is not None and not self.budget.searches

    @property
    def preemptor(self) -> PreemptionSearch:
        """The search for victims, created on first use. Only for rounds with evictions."""
        if self._preemptor is None:
            self._preemptor = PreemptionSearch(self.round_state, self.ways, defers=self.defers)
        return self._preemptor

    @property
    def not_minimal(self) -> Sequence[str]:
        """Units with a valid plan that evicts more pods than it needs."""
        return self._preemptor.not_minimal if self._preemptor is not None else ()

    @property
    def withheld(self) -> Reservation | None:
        """Capacity that is withheld for a promised start; None without a promise."""
        return next((found for policy in self.policies if (found := policy.withheld) is not None), None)

    @property
    def has_promise(self) -> bool:
        """True if a start is promised to a unit."""
        return any(policy.promise is not None for policy in self.policies)

    # --- conditions of actions ----------------------------------------------------------------------------------------

    def has_overuse_check(self) -> bool:
        """Returns True if the action `give_back_overuse` runs: quotas above their runtime give back in this round."""
        return self.evicts and self.gives_back and self.round_state.config.quota.monitor_all_quotas

    def has_followers(self) -> bool:
        """Returns True if a later placement may have satisfied the affinity or spread of a plain pod."""
        return bool(self.followers)

    def has_loans(self) -> bool:
        """Returns True if a quota's runtime refused a unit, and no start is promised."""
        return any(map(is_refused_by_runtime, self.outcomes)) and not self.has_promise

    def has_bound_gangs(self) -> bool:
        """Returns True if a gang may have lost members, because some of its members run, and pods may be evicted."""
        return self.evicts and any(pod.bound for some in self.round_state.snapshot.members.values() for pod in some)

    def has_broken_units(self) -> bool:
        """Returns True if a gang that runs with too few members was tried without success, and pods may be evicted."""
        waiting = (one.unit for one in self.outcomes if isinstance(one, WaitingUnit) and one.unit.bound_any)
        return self.evicts and any(is_broken(unit.gangs) for unit in waiting)

    def has_hurt_members(self) -> bool:
        """Returns True if pods that use unhealthy devices may be moved, and there are some."""
        moves = self.evicts and self.round_state.config.repair.sick_devices == "evict"
        return moves and bool(sick_holders(self.round_state.snapshot))

    # --- attempts -----------------------------------------------------------------------------------------------------

    @property
    def is_cut(self) -> bool:
        """True if the planning time of the round is used up."""
        return self.bound is not None and self.bound.ended

    def take_turn(self, unit: Unit) -> None:
        """Records that a unit is the next of the queue."""
        if self.bound is not None:
            self.bound.take_turn(unit)

    def attempt(self, unit: Unit) -> UnitOutcome:
        """Tries a unit in its turn, or defers it."""
        reason = self.bound.deferral(unit) if self.bound is not None else None
        if reason is not None:
            return DeferredUnit(Attempt(unit, Proof.UNKNOWN), reason)
        return self._timed(unit, self.place)

    def attempt_in_free_capacity(self, unit: Unit, round_state: RoundState) -> UnitOutcome:
        """Tries a unit even if no time is left. No pod is evicted for it.

        round_state: that of the round, possibly in another view (other demand for runtimes).
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
        """Plans a unit, and charges the time to its tenant if the round has a limit."""
        if self.bound is None:
            return plan(unit)
        began = self.bound.start()
        return self.bound.charge(unit, plan(unit), began)

    def place(self, unit: Unit) -> UnitOutcome:
        """Tries a unit under the policies of the round. Each policy wraps the attempt of the policies before it."""
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
        """Informs the observer that a unit is tried next."""
        if self.watch is not None:
            self.watch.note_unit(unit, self.round_state)
