# SPDX-License-Identifier: Apache-2.0
"""Limits the planning time of a live round: decides which units are deferred, and charges time to tenants.

The limit, and the shares of tenants in the time, are in `plan/planning_budget.py`. `RoundContext` tries the units.
"""

from collections.abc import Iterable

from koordpy.attempts.unit_outcome import UnitOutcome
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.plan.planning_budget import PlanningBudget, RoundShares
from koordpy.plan.round_plan import DeferralReason


class BoundedRound:
    """The planning time of a round: which tenants have used it, and which units are tried."""

    def __init__(self, round_state: RoundState, budget: PlanningBudget, units: Iterable[Unit]) -> None:
        """units: all units that the round is to try."""
        self._budget = budget
        by_quota = round_state.config.planning.share_by == "quota"
        tenant_of = round_state.snapshot.quotas.tree.tenant_of if by_quota else str
        self._shares = RoundShares(units, tenant_of)
        self._begun = False
        self.ended = False
        """True once the budget has ended. From then on, units are deferred if their tenants have used their part of the
        time."""

    def take_turn(self, unit: Unit) -> None:
        """Records that a unit has its turn; its tenant has one waiting unit less."""
        self._shares.take_turn(unit)

    def deferral(self, unit: Unit) -> DeferralReason | None:
        """Returns why the next unit of the queue is not tried; None if it is tried.

        `TURN`: its tenant has used its part of the time, and other tenants have waiting units. `CUT`: the budget has
        ended, and the tenant has used its part. The first unit of a round is always tried.
        """
        shared = self._budget.shared()
        if self._shares.passes_over(unit, shared, self._budget.came()):
            return DeferralReason.TURN
        self.ended = self.ended or (self._begun and self._budget.ends())
        return DeferralReason.CUT if self.ended and self._shares.had_part(unit, shared) else None

    def start(self) -> float | None:
        """Called before an attempt. Returns the time on the budget's clock; None if attempts are not measured."""
        if not self._begun:
            self._begun = True
            self._budget.begins()
        return self._budget.clock() if self._budget.clock is not None else None

    def charge(self, unit: Unit, outcome: UnitOutcome, began: float | None) -> UnitOutcome:
        """Charges an attempt to the unit's tenant.

        Returns the outcome with its duration. began: the result of `start`.
        """
        if began is None or self._budget.clock is None:
            return outcome
        seconds = self._budget.clock() - began
        self._shares.charge(unit, seconds)
        return outcome.record_seconds(seconds)
