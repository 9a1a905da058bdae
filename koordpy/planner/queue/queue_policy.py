# SPDX-License-Identifier: Apache-2.0
"""The interface of policies that reserve capacity for units at the head of the queue.

The round calls its policies for each unit, in queue order. This base class reserves nothing. Each round
chooses its policies (`policies_of` in `planner/actions/allocate.py`).
"""

from collections.abc import Callable, Hashable

from koordpy.attempts.unit_outcome import UnitOutcome
from koordpy.cache.reservations import Reservation
from koordpy.gangs.queue_units import Unit
from koordpy.plan.round_plan import PromisedStart, RoundPlan


class QueuePolicy:
    """A policy that reserves nothing."""

    binds_loans = False
    """True if `attempt` also wraps the second turns of the action `lend_runtimes`, which follow the queue and may
    promise nothing."""

    @property
    def promise(self) -> PromisedStart | None:
        """The start that is promised to a unit; None for none."""
        return None

    @property
    def withheld(self) -> Reservation | None:
        """Capacity that is closed to units that do not end before the promised start; None for none."""
        return None

    def considers(self, unit: Unit) -> bool:
        """Returns True if the round is to try a unit that is not due. Called for such units in queue order.

        A policy may also reserve capacity for the unit here.
        """
        return False

    def extend_key(self, unit: Unit, key: Hashable) -> Hashable:
        """Returns a key for units of one equivalence class that also have the same outcome under the policy.

        key: that of the equivalence class, extended by earlier policies.
        """
        return key

    def attempt(self, unit: Unit, attempt: Callable[[Unit], UnitOutcome]) -> UnitOutcome:
        """Tries a unit. attempt: tries it without the policy."""
        return attempt(unit)

    def settle(self, unit: Unit, outcome: UnitOutcome) -> UnitOutcome:
        """Returns the outcome of an attempt with the policy's additions; may reserve capacity for the unit."""
        return outcome

    def complete(self, plan: RoundPlan) -> RoundPlan:
        """Returns the plan of the round with the policy's additions."""
        return plan
