# SPDX-License-Identifier: Apache-2.0
"""Limits the planning time of a live round: defers the units that are left when the time is over.

The limit, and how tenants share the time, are in `plan/planning_budget.py`.
"""

from collections.abc import Callable, Iterable

from koordpy.attempts.unit_outcome import Attempt, DeferredUnit, UnitOutcome
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.plan.planning_budget import PlanningBudget, RoundShares
from koordpy.plan.round_plan import DeferralReason, Proof


class BoundedRound:
    """Tries units in queue order until the budget ends, and defers the rest. Without a budget it tries every unit."""

    def __init__(
        self,
        round_state: RoundState,
        budget: PlanningBudget | None,
        attempt: Callable[[Unit], UnitOutcome],
        units: Iterable[Unit],
    ) -> None:
        """budget: None for no limit. attempt: plans one unit. units: all units that the round is to try."""
        self._budget, self._attempt = budget, attempt
        by_quota = round_state.config.planning.share_by == "quota"
        tenant_of = round_state.snapshot.quotas.tree.tenant_of if by_quota else str
        self._shares = RoundShares(units, budget, tenant_of) if budget is not None else None
        self._begun = False
        self.ended = False
        """True once the budget has ended. From then on, units of tenants that used their part of the time are
        deferred."""

    def attempt_by(self, attempt: Callable[[Unit], UnitOutcome]) -> None:
        """Replaces the function that plans a unit, for all later units."""
        self._attempt = attempt

    def take_turn(self, unit: Unit) -> None:
        """Records that a unit has its turn, so that its tenant has one unit less that waits."""
        if self._shares is not None:
            self._shares.take_turn(unit)

    def attempt(self, unit: Unit) -> UnitOutcome:
        """Tries the next unit of the queue, or defers it.

        A unit is deferred with `TURN` if its tenant has used its part of the time while other tenants wait. It is
        deferred with `CUT` if the budget has ended and its tenant has had its part. The first unit is always tried.
        """
        budget, shares = self._budget, self._shares
        if budget is None or shares is None:
            return self._attempt(unit)
        if shares.passes_over(unit, budget.came()):
            return _deferred(unit, DeferralReason.TURN)
        self.ended = self.ended or (self._begun and budget.ends())
        if self.ended and shares.had_part(unit):
            return _deferred(unit, DeferralReason.CUT)
        return self.try_now(unit)

    def try_now(self, unit: Unit) -> UnitOutcome:
        """Tries a unit even if no time is left, and charges the time to the unit's tenant."""
        budget, shares = self._budget, self._shares
        if budget is None or shares is None:
            return self._attempt(unit)
        if not self._begun:
            self._begun = True
            budget.begins()
        if budget.clock is None:
            return self._attempt(unit)
        began = budget.clock()
        outcome = self._attempt(unit)
        seconds = budget.clock() - began
        shares.charge(unit, seconds)
        return outcome.record_seconds(seconds)


def _deferred(unit: Unit, reason: DeferralReason) -> DeferredUnit:
    """Returns the outcome of a unit that was not tried."""
    return DeferredUnit(Attempt(unit, Proof.UNKNOWN), reason)
