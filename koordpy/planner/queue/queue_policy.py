# SPDX-License-Identifier: Apache-2.0
"""The interface of policies that reserve capacity for units at the head of the queue.

The round calls each of its policies for each unit, in queue order. This base class reserves nothing. `policies_of` in
`planner/actions/allocate.py` chooses the policies of a round.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

from koordpy.attempts.unit_outcome import UnitOutcome
from koordpy.cache.reservations import Reservation
from koordpy.gangs.queue_units import Unit
from koordpy.plan.round_plan import PromisedStart, RoundPlan
from koordpy.pods.pod_info import PodInfo


class QueuePolicy:
    """Base class of policies; by itself it reserves nothing and changes nothing."""

    binds_loans = False
    """True if `attempt` must also wrap the second attempts of the action `lend_runtimes`. In these, no start may be
    promised."""

    @property
    def promise(self) -> PromisedStart | None:
        """The start that is promised to a unit; None for none."""
        return None

    @property
    def withheld(self) -> Reservation | None:
        """Capacity that is closed to units that do not end before the promised start; None without such capacity."""
        return None

    def considers(self, unit: Unit) -> bool:
        """Returns True if the round must try a unit that is not due. Called for such units in queue order.

        The policy may also reserve capacity for the unit in this call.
        """
        return False

    def closing(self, unit: Unit, pods: Sequence[PodInfo]) -> AbstractContextManager[None]:
        """Within the context, the capacity is closed on the draft that pods of a unit may not use in an `attempt`.

        For plans of pods that are made apart from the queue, such as seats and moves. Only for capacity that is not
        withheld from the draft all the time.
        """
        return nullcontext()

    def end_turn_of_broken(self) -> None:
        """Reserves capacity for broken gangs. Called after they were tried, before running members move."""
        return

    def extend_key(self, unit: Unit, key: Hashable) -> Hashable:
        """Extends the key of a unit: units with equal keys must also have the same outcome under this policy.

        key: that of the equivalence class, extended by earlier policies.
        """
        return key

    def attempt(self, unit: Unit, attempt: Callable[[Unit], UnitOutcome]) -> UnitOutcome:
        """Tries a unit under the policy. attempt: function that tries the unit without the policy."""
        return attempt(unit)

    def settle(self, unit: Unit, outcome: UnitOutcome) -> UnitOutcome:
        """Returns the outcome of an attempt with the policy's additions; may reserve capacity for the unit."""
        return outcome

    def complete(self, plan: RoundPlan) -> RoundPlan:
        """Returns the plan of the round with the policy's additions."""
        return plan


@contextmanager
def closing_all(policies: Iterable[QueuePolicy], unit: Unit, pods: Sequence[PodInfo]) -> Iterator[None]:
    """Within the context, the capacity of all policies is closed as `QueuePolicy.closing` says."""
    with ExitStack() as stack:
        for policy in policies:
            stack.enter_context(policy.closing(unit, pods))
        yield
