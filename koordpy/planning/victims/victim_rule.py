"""What a rule of victims is: whom it allows a waiting unit to take, and what must hold of everything that goes with it.

A rule looks at numbers alone. Which of the units that it allows are taken is chosen by cost (preemption.md 4), tried on
the draft with all filters, and checked; so a rule need not know nodes, gangs or disruption budgets.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from koordpy.api.config import KoordpyConfiguration
from koordpy.cluster.snapshot import Snapshot
from koordpy.planning.victim_selection.names import RuleName
from koordpy.planning.victims.pool import Mask
from koordpy.planning.victims.rules import Law, Together


class VictimRule(ABC):
    """One rule; `law`: the quotas, shares and priorities as the beneficiary sees them."""

    name: RuleName
    reason: str
    """Of the event on each victim."""
    keeps_budgets: bool = True
    """Whether no PodDisruptionBudget may be violated; else each violation costs (level 1)."""

    above_priority: bool = True
    """Whether it may take pods of the beneficiary's priority and more."""

    def is_open(self, snapshot: Snapshot, config: KoordpyConfiguration) -> bool:
        """Whether it may take anybody in a round: else its pods are not even read."""
        return True

    @abstractmethod
    def units(self, law: Law, free: Mask) -> Mask:
        """[units of law.pool] those of `free` that the rule allows, one by one, where it is tried alone."""

    def beside(self, law: Law, free: Mask, alone: Mask) -> Mask:
        """The same where other rules take, too; alone: what `units` said."""
        return alone

    def bind(self, law: Law, out: Together, own: Mapping[int, int], every: Sequence[tuple[int, int]]) -> None:
        """Adds what must hold of all that is taken. own: unit -> option of those by this rule; every: (option, unit)
        of all that can be taken."""
        return

    def why(self, law: Law, unit: int) -> str:
        """The numbers that let a unit go, for the event on its pods."""
        return ""
