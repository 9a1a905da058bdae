"""What a device family decides about units beyond counts per node: the questions that the planner asks of it.

Most families answer none of them: filters, capacities and worth (`koordpy.devices.device_family`) say all that
placement needs. A family whose jobs have placement rules of their own (a fabric of switches, blocks of nodes, an order
of nodes by the devices left on them) is a `JobPlacement` in a module of its own room, and one line in
`rule_registry.JOB_PLACEMENTS`. Every method has a default that leaves the decision to the general planner.

A family is asked only about units of which a pending pod asks for its devices, so that a cluster without them never
enters its room. All answers hold for the draft as it is, and leave it as it was unless a method says otherwise.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.gangs.unit_gates import Gate
from koordpy.placement.problem import Problem
from koordpy.plan.round_plan import Proof, SolverRun
from koordpy.pods.pod_info import PodInfo


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A placement of a unit, or of one job in it, by a family's own rules."""

    nodes: Mapping[str, int]
    """Pod key -> node position; empty where there is no placement."""
    proof: Proof = Proof.OPTIMAL
    runs: tuple[SolverRun, ...] = ()
    notes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Pod key -> annotations of its Binding, beside those of its devices."""
    remark: str = ""
    """Why pods of the unit wait; empty for nothing to say."""
    evicted: tuple[PodInfo, ...] = ()
    """Bound members of the unit that are evicted first, because they move."""
    returns: Mapping[str, int] = field(default_factory=dict)
    """Key of an evicted member -> node that is kept for its return."""
    moved: str = ""
    """Text of the event on each evicted member."""
    worth: tuple[Any, ...] = ()
    """Levels of the family's objective; smaller is better. Compared only between plans of one unit."""


class PlaceConditions(NamedTuple):
    """Conditions on the nodes of a unit that the model of victims has to know (`victim_selection.choice.Choices`)."""

    lots: tuple[tuple[tuple[int, ...], int], ...] = ()
    """(nodes, k): the number of members placed on these nodes is a multiple of k."""
    one_of: tuple[tuple[int, ...], ...] = ()
    """Sets of nodes one of which holds all members; empty for no such condition."""


class ShownScores(NamedTuple):
    """Scores of the nodes that `koordpy explain` shows for a pod beside those of the score plugins."""

    name: str
    values: Sequence[float]
    """[nodes]."""


class JobPlacement:
    """Placement rules of one device family for plain pods and for units."""

    family: str
    """Name of the family: the rules are asked about pods that ask of it (`PodInfo.asks`)."""

    # -- before quotas and nodes are looked at -------------------------------------------------------------------------

    def gate(self, unit: Unit, figures: RoundState) -> Gate | None:
        """Returns why no pod of the unit may be tried, such as a job that the family's rules call illegal."""
        return None

    # -- placement -----------------------------------------------------------------------------------------------------

    def choose_node(self, pod: PodInfo, figures: RoundState) -> int | None:
        """Returns the best node of a plain pod that asks for such devices; None if no node takes it."""
        return figures.of(pod).best_node()

    def decides(self, unit: Unit, figures: RoundState) -> bool:
        """True if the family's own rules, not the goals of the general planner, decide where members stand."""
        return False

    def place(self, unit: Unit, figures: RoundState, wanted: Collection[str] | None = None) -> JobPlan | None:
        """Places the pending members of a unit, whole or not at all; None leaves them to the general planner.

        wanted: keys of the only pending members that are placed; None for all. Never None where `decides`.
        """
        return None

    def place_members(self, unit: Unit, wanted: Collection[str], figures: RoundState) -> JobPlan | None:
        """Places exactly the wanted members, without moving others, where victims are off the draft.

        A plan without nodes says that there is no place for them; None leaves them to the general planner.
        """
        return None

    def hold_returns(self, returns: Mapping[str, int], figures: RoundState) -> None:
        """Puts evicted members (pod key -> node) back on the draft, so that their nodes are kept for their return."""
        raise NotImplementedError("a family whose plans move members holds their nodes")

    # -- preemption ----------------------------------------------------------------------------------------------------

    def add_demands(self, unit: Unit, problem: Problem, figures: RoundState) -> Problem:
        """Returns the problem with what the rules ask of nodes beyond requests, as further resources."""
        return problem

    def place_conditions(self, unit: Unit, figures: RoundState) -> PlaceConditions:
        """Returns the conditions on nodes that the model of victims is told; a relaxation of the rules."""
        return PlaceConditions()

    def grow_set(
        self, unit: Unit, ranks: Sequence[int], candidates: Collection[int], figures: RoundState
    ) -> tuple[int, ...] | None:
        """Returns ranks together with the lowest of the candidates that must be placed with them.

        Victims are sought for such sets. None if there are too few candidates to complete one.
        """
        return tuple(sorted(ranks))

    def is_monotone(self, unit: Unit, figures: RoundState) -> bool:
        """True if evicting more pods never closes a place to the unit by the family's rules."""
        return True

    # -- pods that are moved and come back -----------------------------------------------------------------------------

    def seat_returning(
        self, returning: Iterable[PodInfo], figures: RoundState
    ) -> Iterator[tuple[list[PodInfo], Mapping[str, int]]]:
        """Yields (pods of a job, pod key -> node) of the moved jobs that the rules place; no nodes for no place.

        returning: moved pods as pending ones. The caller puts each job on the draft before it asks for the next.
        """
        yield from ()

    def deal_returning(self, places: Sequence[tuple[PodInfo, int]], figures: RoundState) -> Mapping[str, Any] | None:
        """Returns what moved pods are given of the family on their nodes, by pod key; None if a node cannot serve them.

        An empty answer leaves them to the round in which the pods come back.
        """
        return {}

    # -- explanation ---------------------------------------------------------------------------------------------------

    def shown_scores(self, pod: PodInfo, unit: Unit, figures: RoundState) -> ShownScores | None:
        """Returns the family's scores of the nodes for one pod of a unit; None for none."""
        return None
