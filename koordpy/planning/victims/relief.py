"""What comes of looking for victims: who goes under which rule, and who stands where then."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from koordpy.planning.plan import Proof, SolverRun
from koordpy.planning.victim_selection.names import RuleName, Way
from koordpy.planning.victim_selection.units import VictimUnit
from koordpy.planning.victims.relocation import Back
from koordpy.planning.victims.terminating import Awaited

Notes = Mapping[str, Mapping[str, str]]
"""Pod key -> what its Binding says of its place in the network."""


@dataclass(frozen=True, slots=True)
class Victim:
    """A unit that goes, and the rule that takes it. why: the numbers of a rule other than priority."""

    unit: VictimUnit
    rule: RuleName
    why: str = ""


@dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """What came of looking for victims. nodes: pod key -> node of every member placed; empty without a plan.

    reasons: what the text of a pod that waits says of the rules tried, after the count of nodes.
    """

    victims: tuple[Victim, ...] = ()
    nodes: tuple[tuple[str, int], ...] = ()
    proof: Proof = Proof.INFEASIBLE
    runs: tuple[SolverRun, ...] = ()
    reasons: tuple[str, ...] = ()
    bound: int | None = None
    """Pods evicted at least, where the set is not proven least."""
    back: tuple[Back, ...] = ()
    """Where moved pods return to."""
    notes: Notes = field(default_factory=dict)
    way: Way | None = None
    """Which way of choosing gave the victims."""
    awaited: Awaited | None = None
    """Where it will stand once pods that are ending are gone; nobody is evicted then."""
    deferred: bool = False
    """Nothing was searched: that is for another round."""
