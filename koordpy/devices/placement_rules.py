# SPDX-License-Identifier: Apache-2.0
"""The interface of device families with placement rules for whole jobs, which numbers of devices cannot express.

Most families do not implement it: filters, capacities and node costs (`koordpy.devices.device_family`) are enough for
the planner. A family needs it if its rules concern a whole job, such as a fabric of switches, blocks of nodes, or an
order of nodes by their free devices. It then implements `JobPlacement` and adds one line to
`rule_registry.JOB_PLACEMENTS`. The default of each method leaves the decision to the general planner.

A family is called only for units with a pending pod that requests devices of the family. All results apply to the
current draft, and methods leave the draft unchanged unless their docstring says otherwise. round_state: the round's
draft, filters and scores.
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
    """A placement of a unit, or of one job in it, by a family's rules."""

    nodes: Mapping[str, int]
    """Pod key -> node position; empty if there is no placement."""
    proof: Proof = Proof.OPTIMAL
    """How certain `nodes` is: optimal, feasible, infeasible (no nodes) or unknown."""
    runs: tuple[SolverRun, ...] = ()
    """Runs of CP-SAT for this plan; empty for none."""
    notes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Pod key -> annotations of its Binding, in addition to the annotations that name its devices."""
    remark: str = ""
    """Reason why some or all pods of the unit wait; empty for none."""
    evicted: tuple[PodInfo, ...] = ()
    """Bound members of the unit that are evicted first, because the plan moves them."""
    returns: Mapping[str, int] = field(default_factory=dict)
    """Key of an evicted member -> node that is reserved for its return."""
    moved: str = ""
    """Text of the Kubernetes event on each evicted member; empty without evictions."""
    cost: tuple[Any, ...] = ()
    """Levels of the family's objective, compared from left to right; smaller is better. Comparable only between plans
    of one unit."""


class PlaceConditions(NamedTuple):
    """Conditions on the nodes of a unit that the victim model can express (`Choices` in `preemption/selection`)."""

    lots: tuple[tuple[tuple[int, ...], int], ...] = ()
    """(node positions, k): the number of members placed on these nodes is a multiple of k."""
    one_of: tuple[tuple[int, ...], ...] = ()
    """Sets of node positions; one of the sets must contain all members. Empty for no such condition."""


class ShownScores(NamedTuple):
    """Scores of nodes that `koordpy explain` shows for a pod next to those of the score plugins."""

    name: str
    """Name of the score."""
    values: Sequence[float]
    """[nodes] score of each node."""


class JobPlacement:
    """Placement rules of one device family for plain pods and for units."""

    family: str
    """Name of the family. The rules are applied to pods with a request to it (`PodInfo.asks`)."""

    # -- before quotas and nodes --------------------------------------------------------------------------------------

    def gate(self, unit: Unit, round_state: RoundState) -> Gate | None:
        """Returns the reason why no pod of the unit may be tried, such as an illegal job; None for none."""
        return None

    # -- placement -----------------------------------------------------------------------------------------------------

    def choose_node(self, pod: PodInfo, round_state: RoundState) -> int | None:
        """Returns the best node (position) of a plain pod; None if no node accepts it."""
        return round_state.of(pod).best_node()

    def decides(self, unit: Unit, round_state: RoundState) -> bool:
        """Returns whether the family's rules, not the goals of the general planner, decide where members are placed.

        If True, `place` and `place_members` must return a plan, which may be empty.
        """
        return False

    def place(self, unit: Unit, round_state: RoundState, wanted: Collection[str] | None = None) -> JobPlan | None:
        """Places the pending members of a unit; None leaves them to the general planner.

        The plan has all wanted members; for an elastic gang, at least its minimum. A plan without nodes means that they
        do not fit. wanted: keys of the pending members to place; None for all. Must not return None if `decides` is
        True.
        """
        return None

    def place_members(self, unit: Unit, wanted: Collection[str], round_state: RoundState) -> JobPlan | None:
        """Places exactly the wanted members, without moving bound members. Called after the draft has evicted victims.

        A plan without nodes means that the wanted members do not fit; None leaves them to the general planner.
        """
        return None

    def hold_returns(self, returns: Mapping[str, int], round_state: RoundState) -> None:
        """Puts evicted members (pod key -> node) back on the draft, so that their nodes are reserved until they
        return."""
        raise NotImplementedError("a family that moves members must implement hold_returns")

    # -- preemption ----------------------------------------------------------------------------------------------------

    def add_demands(self, unit: Unit, problem: Problem, round_state: RoundState) -> Problem:
        """Returns the problem with further resources, if the rules require more of nodes than the pods' requests.

        An example is a resource "server" with capacity 1 on each node, so that each pod gets a separate node.
        """
        return problem

    def place_conditions(self, unit: Unit, round_state: RoundState) -> PlaceConditions:
        """Returns conditions on nodes for the victim model.

        The conditions must be a relaxation of the rules: a placement that the rules allow must meet them.
        """
        return PlaceConditions()

    def grow_set(
        self, unit: Unit, ranks: Sequence[int], candidates: Collection[int], round_state: RoundState
    ) -> tuple[int, ...] | None:
        """Returns `ranks` plus the lowest candidates that must be placed together with them, such as the rest of a
        block.

        None if there are too few candidates. The victim search looks for victims for the returned set.
        """
        return tuple(sorted(ranks))

    def is_monotone(self, unit: Unit, round_state: RoundState) -> bool:
        """Returns whether, by the family's rules, evicting more pods never makes a feasible placement infeasible."""
        return True

    # -- pods that are moved and come back -----------------------------------------------------------------------------

    def place_returning(
        self, returning: Iterable[PodInfo], round_state: RoundState
    ) -> Iterator[tuple[list[PodInfo], Mapping[str, int]]]:
        """Yields (pods of a job, pod key -> node) for each moved job that the rules place; no nodes if the job does not
        fit.

        Moved pods were evicted so that another unit fits, and are created again. returning: these pods, as pending
        pods. The caller puts each job on the draft before it requests the next one.
        """
        yield from ()

    def deal_returning(
        self, places: Sequence[tuple[PodInfo, int]], round_state: RoundState
    ) -> Mapping[str, Any] | None:
        """Returns the allocation of moved pods on their nodes by pod key; None if the devices of a node are not enough.

        An empty result leaves the allocation to the round in which the pods are pending again.
        """
        return {}

    # -- explanation ---------------------------------------------------------------------------------------------------

    def shown_scores(self, pod: PodInfo, unit: Unit, round_state: RoundState) -> ShownScores | None:
        """Returns the family's scores of the nodes for one pod of a unit; None for none."""
        return None
