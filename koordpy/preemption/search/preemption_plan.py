"""A preemption plan: which victims leave under which rule, and on which nodes the preemptor's members are then.

Also why a search for such a plan ended. Values only: nothing here searches or checks.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from koordpy.plan.round_plan import Proof, SolverRun
from koordpy.preemption.search.relocation import Back
from koordpy.preemption.selection.preemption_names import RuleName, Way
from koordpy.preemption.selection.victim_units import VictimUnit

Notes = Mapping[str, Mapping[str, str]]
"""Pod key -> annotations of its Binding on its place in the network."""


class SearchEnd(StrEnum):
    """Why a search for victims ended, from the least that is known to the most."""

    NO_RULE = "no-rule"
    """No rule may evict a pod for the unit: rules are off, or another unit's capacity is awaited first."""
    NO_CANDIDATES = "no-candidates"
    """Rules are open, and none of them lets a running unit go."""
    BOUNDED = "bounded"
    """Sums show that all candidates together are too few."""
    RULED_OUT = "ruled-out"
    """Every set of candidates is proven to make no room."""
    BUDGET_USED = "budget-used"
    """Not decided: the solver's time, the tries, or the number of pods that may be looked at are used up."""
    REJECTED = "rejected"
    """The check refused every plan that was found."""
    DEFERRED = "deferred"
    """Nothing was searched; another round does that."""
    AWAITING = "awaiting"
    """The capacity of terminating pods is enough, so nothing is evicted."""
    FOUND = "found"
    """A plan passed its dry run and its check."""

    @property
    def is_proven(self) -> bool:
        """True if it is proven that no victims make room."""
        return self in (SearchEnd.NO_RULE, SearchEnd.NO_CANDIDATES, SearchEnd.BOUNDED, SearchEnd.RULED_OUT)


_BY_WEIGHT = tuple(SearchEnd)


def combined_end(ends: Iterable[SearchEnd]) -> SearchEnd:
    """Returns why a search of several parts ended: what is undecided or refused in one of them outweighs proofs."""
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
    """OPTIMAL where cost levels 1 to 6 are proven, else FEASIBLE."""
    runs: tuple[SolverRun, ...] = ()
    bound: int | None = None
    """Pods that any plan evicts at least; None where this plan is proven to be the least."""
    back: tuple[Back, ...] = ()
    """Nodes that moved pods return to."""
    notes: Notes = field(default_factory=dict)
    way: Way | None = None
    """The generator of the set of victims."""
