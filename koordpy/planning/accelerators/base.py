"""What a family of devices is to the planner: who it refuses, on which nodes, and which devices a placed pod gets.

How many devices a node has is a resource like any other. A family says what the number does not: which of them are
free, which sets serve a pod, and what its Binding must say. All of it follows a plan's draft. What a family has nothing
to say of it leaves out.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from koordpy.cluster.pods import PodInfo
from koordpy.cluster.snapshot import Ints
from koordpy.planning.filters.base import Refusal
from koordpy.planning.filters.rules import Rule
from koordpy.planning.placement.problem import ByCount
from koordpy.planning.plan import Given as Given
from koordpy.planning.scene import Scene


class FamilyRound(Protocol):
    """What a family sees of a round."""

    scene: Scene

    def rules(self, pod: PodInfo) -> Sequence[Rule]:
        """The filters of a pending pod that look at more than the pod and a node, current."""


NOTHING = Given()


def merged(*parts: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Pod key -> notes, of several sources."""
    out: dict[str, dict[str, str]] = {}
    for part in parts:
        for key, notes in part.items():
            out.setdefault(key, {}).update(notes)
    return out


class NodeWorth(NamedTuple):
    """What nodes are worth to a unit by how many of its pods each takes. standing: [nodes] 1 where one counts as used
    already, for a unit without a gather goal; None for none."""

    table: ByCount
    standing: Ints | None = None


class Accelerator(ABC):
    """One family of devices."""

    plugin: str = ""
    """Of its filter, where evictions may open nodes that it refuses: victims are looked for on what it says of devices
    that nobody can give back (`Rule.standing`)."""

    @abstractmethod
    def asks(self, pod: PodInfo) -> bool:
        """Whether a pod that asks for extended resources asks for such devices; about any other pod the family is asked
        nothing."""

    # -- filters -----------------------------------------------------------------------------------------------------

    def refusal(self, pod: PodInfo, scene: Scene) -> Refusal | None:
        """What is wrong with what a pod says of its devices: then no node is tried."""
        return None

    @abstractmethod
    def rules(self, pod: PodInfo, scene: Scene) -> Iterable[Rule]:
        """The filter of a pod; none where the number of devices decides alone."""

    # -- the problem of a unit ---------------------------------------------------------------------------------------

    def apart(self, pod: PodInfo) -> Hashable:
        """What tells pods apart that are equal in requests and nodes; None for nothing."""
        return None

    def room(self, pods: Sequence[PodInfo], scene: Scene) -> Ints | None:
        """[nodes] devices that all pods of a unit share, where those are fewer than the node's resource says."""
        return None

    def asked(self, pod: PodInfo) -> int:
        """Devices of that room that a pod takes."""
        return 0

    def of_requests(self, held: Mapping[str, int], scene: Scene) -> int:
        """Devices of that room in requests: resource -> amount, as of nominated pods."""
        return 0

    def worth(
        self, kinds: Sequence[PodInfo], members: Sequence[PodInfo], now: FamilyRound, *, gather: bool
    ) -> NodeWorth | None:
        """What nodes are worth to a unit. kinds: a pod of each shape of its problem, in order; gather: whether it has a
        gather goal."""
        return None

    def serves(self, node: int, pods: Sequence[PodInfo], now: FamilyRound) -> bool:
        """Whether a node has devices for pods of different shapes together, each of which it serves alone."""
        return True

    # -- the plan ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def give(self, nodes: Mapping[str, int], now: FamilyRound) -> Given:
        """Devices for those pods of a plan that ask for some (pod key -> node position, in rank order), on the draft as
        it is before it."""

    # -- words -------------------------------------------------------------------------------------------------------

    def mark(self, pod: PodInfo, scene: Scene) -> tuple[str, Callable[[int], float | None]] | None:
        """(name, [node] figure or None) that `koordpy explain` shows beside the scores; no part of the total."""
        return None

    def warnings(self, pod: PodInfo) -> Iterable[str]:
        """What a pod asks of devices that cannot be read, or does nothing."""
        return ()
