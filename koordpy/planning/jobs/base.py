"""What a kind of jobs with rules of its own is to the planner: what holds them, where they go, what is said of it.

Most devices need none: what nodes are worth to a gang, and who gets which device, a family of accelerators says
(`planning/accelerators`). These rules stand in for the order of goals where a product has an order of its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from koordpy.cluster.pods import PodInfo
from koordpy.planning.accelerators.base import Accelerator
from koordpy.planning.figures import Figures
from koordpy.planning.gates import Gate
from koordpy.planning.plan import Proof, SolverRun
from koordpy.planning.units import Unit


@dataclass(frozen=True, slots=True)
class Placed:
    """What became of a unit. nodes: pod key -> node, empty where there is no plan; notes: pod key -> annotations
    beside those of its devices; remark: what the pods that wait are told."""

    nodes: Mapping[str, int]
    proof: Proof
    runs: tuple[SolverRun, ...] = ()
    notes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    remark: str = ""
    evicted: tuple[PodInfo, ...] = ()
    """Bound members of the unit that have to go first: a block that moves."""
    returns: Mapping[str, int] = field(default_factory=dict)
    """Evicted member -> node that is kept for it."""
    moved: str = ""
    worth: tuple[Any, ...] = ()


class JobRules(ABC):
    """Rules of one kind of jobs; what it leaves out is as for any other unit."""

    family: Accelerator
    """The devices that such jobs ask for: units without pods that do are of no concern here."""

    def gate(self, unit: Unit, figures: Figures) -> Gate | None:
        """What is wrong with a unit's job: none of its pods is tried."""
        return None

    def place(self, unit: Unit, figures: Figures) -> Placed | None:
        """Where a unit goes by rules of its own; None where the order of goals says it."""
        return None

    def knows_network(self, unit: Unit, figures: Figures) -> bool:
        """Whether `place` goes by how nodes are connected."""
        return False

    def keep_room(self, returns: Mapping[str, int], figures: Figures) -> None:
        """Holds nodes on the draft for members that come back in a later round, with all their devices."""
        return

    @abstractmethod
    def best(self, pod: PodInfo, figures: Figures) -> int | None:
        """The node of a plain pod; None where none takes it."""

    def scores(self, pod: PodInfo, unit: Unit, figures: Figures) -> tuple[str, Sequence[float]] | None:
        """(name, [nodes] figure) that `koordpy explain` shows among the scores."""
        return None
