"""A preemption plan: the victims with their rules, and the nodes of the preemptor's members after the evictions.

Also the reason why a search for such a plan ended. Values only: nothing here searches or checks.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from koordpy.plan.round_plan import Proof, SolverRun
from koordpy.preemption.search.relocation import Back
from koordpy.preemption.selection.preemption_names import RuleName, Way
from koordpy.preemption.selection.victim_units import VictimUnit

Notes = Mapping[str, Mapping[str, str]]
"""Pod key -> annotations of its Binding about its position in the network."""


class SearchEnd(StrEnum):
    """Why a search for victims ended, in ascending order of precedence.

    If parts of a search end differently, the last of their values counts.
    """

    NO_RULE = "no-rule"
    """No rule may evict a pod for the unit: rules are off, or the unit waits for other capacity first."""
    NO_CANDIDATES = "no-candidates"
    """Rules are open, and none of them allows the eviction of a running unit."""
    BOUNDED = "bounded"
    """Sums show that all candidates together free too little."""
    RULED_OUT = "ruled-out"
    """It is proven that no set of candidates frees enough capacity."""
    BUDGET_USED = "budget-used"
    """Not decided: the solver's time, the tries, or the number of pods that may be searched are used up."""
    REJECTED = "rejected"
    """The check rejected every plan that was found."""
    DEFERRED = "deferred"
    """Nothing was searched; another round does that."""
    AWAITING = "awaiting"
    """The capacity of terminating pods is enough, so nothing is evicted."""
    FOUND = "found"
    """A plan passed its dry run and its check."""

    @property
    def is_proven(self) -> bool:
        """True if it is proven that no victims free enough capacity."""
        return self in (SearchEnd.NO_RULE, SearchEnd.NO_CANDIDATES, SearchEnd.BOUNDED, SearchEnd.RULED_OUT)


_BY_WEIGHT = tuple(SearchEnd)


def combined_end(ends: Iterable[SearchEnd]) -> SearchEnd:
    """Returns why a search of several parts ended: an undecided or rejected part outweighs proofs."""
    return max(ends, key=_BY_WEIGHT.index, default=SearchEnd.NO_CANDIDATES)


@dataclass(frozen=True, slots=True)
class Victim:
    """A unit that is evicted, and the rule that allows it. why: the numbers of a rule other than priority."""

    unit: VictimUnit
    rule: RuleName
    why: str = ""


@dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """One plan that passed its dry run. nodes: (pod key, node position) of every member that is placed."""

    victims: tuple[Victim, ...] = ()
    nodes: tuple[tuple[str, int], ...] = ()
    proof: Proof = Proof.INFEASIBLE
    """OPTIMAL if cost levels 1 to 6 are proven, else FEASIBLE."""
    runs: tuple[SolverRun, ...] = ()
    bound: int | None = None
    """Minimum number of pods that any plan evicts; None if this plan is proven to be optimal."""
    back: tuple[Back, ...] = ()
    """New nodes of moved pods."""
    notes: Notes = field(default_factory=dict)
    way: Way | None = None
    """The generator of the set of victims."""
