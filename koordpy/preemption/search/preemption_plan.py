# SPDX-License-Identifier: Apache-2.0
"""A preemption plan: which pods are evicted under which rules, and the nodes of the preemptor's members afterwards.

`SearchEnd` is the reason why a search for such a plan ended. This module has only values: it neither searches nor
checks.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from koordpy.plan.round_plan import Proof, SolverRun
from koordpy.preemption.search.relocation import Back
from koordpy.preemption.selection.preemption_names import RuleName, Way
from koordpy.preemption.selection.victim_units import VictimUnit

Notes = Mapping[str, Mapping[str, str]]
"""Pod key -> annotations of the pod's Binding: its position in the network."""


class SearchEnd(StrEnum):
    """Why a search for victims ended, in ascending order of precedence.

    A search has several parts: scenarios, and parts of the nodes. If parts end differently, the value that is listed
    last wins.
    """

    NO_RULE = "no-rule"
    """No rule may evict a pod for the unit: rules are off, or the unit first waits for capacity that earlier evictions
    free."""
    NO_CANDIDATES = "no-candidates"
    """Rules are open, but none of them allows the eviction of a running unit."""
    BOUNDED = "bounded"
    """Sums show that all candidates together free too little."""
    RULED_OUT = "ruled-out"
    """It is proven that no set of candidates frees enough capacity."""
    BUDGET_USED = "budget-used"
    """Not decided: the solver's time or the number of dry runs is used up, or there are too many pods to search."""
    REJECTED = "rejected"
    """The check rejected every plan that was found."""
    DEFERRED = "deferred"
    """Nothing was searched, because an ordinary live round leaves searches to the search worker or a later round."""
    AWAITING = "awaiting"
    """The capacity of terminating pods is enough, so nothing is evicted."""
    FOUND = "found"
    """A plan passed its dry run and its check."""

    @property
    def is_proven(self) -> bool:
        """True if it is proven that no set of victims frees enough capacity."""
        return self in (SearchEnd.NO_RULE, SearchEnd.NO_CANDIDATES, SearchEnd.BOUNDED, SearchEnd.RULED_OUT)


_BY_WEIGHT = tuple(SearchEnd)


def combined_end(ends: Iterable[SearchEnd]) -> SearchEnd:
    """Returns why a search of several parts ended: the value of `ends` that is listed last in `SearchEnd`.

    So a part that is undecided or rejected outweighs parts with a proof.
    """
    return max(ends, key=_BY_WEIGHT.index, default=SearchEnd.NO_CANDIDATES)


@dataclass(frozen=True, slots=True)
class Victim:
    """A unit that is evicted or moved, and the rule that allows it."""

    unit: VictimUnit
    rule: RuleName
    why: str = ""
    """The numbers that allow the eviction, for the event on the victim; empty for rule `priority`."""


@dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """A preemption plan that passed its dry run."""

    victims: tuple[Victim, ...] = ()
    nodes: tuple[tuple[str, int], ...] = ()
    """(pod key, node position) of every member that is placed."""
    proof: Proof = Proof.INFEASIBLE
    """OPTIMAL if cost levels 1 to 6 are proven, else FEASIBLE."""
    runs: tuple[SolverRun, ...] = ()
    bound: int | None = None
    """Lower bound on the number of pods that any plan evicts; None if this plan is proven optimal."""
    back: tuple[Back, ...] = ()
    """Moved pods with their new nodes; empty if victims are evicted."""
    notes: Notes = field(default_factory=dict)
    way: Way | None = None
    """The way in which the set of victims was found; None if there was no choice."""
