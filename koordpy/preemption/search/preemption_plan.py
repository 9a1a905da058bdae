# SPDX-License-Identifier: Apache-2.0
"""A preemption plan: which pods are evicted under which rules, and the nodes of the preemptor's members afterwards.

`SearchEnd` is the reason why a search for such a plan ended. These are values: nothing here searches or checks.
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

    A search has several parts (scenarios, parts of the nodes). If they end differently, the later value counts.
    """

    NO_RULE = "no-rule"
    """No rule may evict a pod for the unit: rules are off, or the unit first waits for capacity that is freed
    already."""
    NO_CANDIDATES = "no-candidates"
    """Rules are open, but none of them allows the eviction of a running unit."""
    BOUNDED = "bounded"
    """Sums show that all candidates together free too little."""
    RULED_OUT = "ruled-out"
    """It is proven that no set of candidates frees enough capacity."""
    BUDGET_USED = "budget-used"
    """Not decided: the solver's time, the tries, or the number of pods that may be searched are used up."""
    REJECTED = "rejected"
    """The check rejected every plan that was found."""
    DEFERRED = "deferred"
    """Nothing was searched, because an ordinary live round leaves the search to a later round."""
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
    """Returns why a search of several parts ended: the last value in the order of `SearchEnd`.

    So an undecided or rejected part outweighs parts with a proof.
    """
    return max(ends, key=_BY_WEIGHT.index, default=SearchEnd.NO_CANDIDATES)


@dataclass(frozen=True, slots=True)
class Victim:
    """A unit that is evicted or moved, and the rule that allows it."""

    unit: VictimUnit
    rule: RuleName
    why: str = ""
    """The numbers that allow it, for the event on the victim; empty for rule `priority`."""


@dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """One plan that passed its dry run."""

    victims: tuple[Victim, ...] = ()
    nodes: tuple[tuple[str, int], ...] = ()
    """(pod key, node position) of every member that is placed."""
    proof: Proof = Proof.INFEASIBLE
    """OPTIMAL if cost levels 1 to 6 are proven, else FEASIBLE."""
    runs: tuple[SolverRun, ...] = ()
    bound: int | None = None
    """Lower bound on the number of pods that any plan evicts; None if this plan is proven to be optimal."""
    back: tuple[Back, ...] = ()
    """New nodes of moved pods."""
    notes: Notes = field(default_factory=dict)
    way: Way | None = None
    """The way in which the set of victims was found."""
