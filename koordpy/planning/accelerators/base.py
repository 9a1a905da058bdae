"""What a family of devices is to the planner: who it refuses, on which nodes, and which devices a placed pod gets.

How many devices a node has is a resource like any other. A family says what the number does not: which of them are
free, which sets serve a pod, and what its Binding must say. All of it follows a plan's draft.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from koordpy.cluster.pods import PodInfo
from koordpy.planning.filters.base import Refusal
from koordpy.planning.filters.rules import Rule

if TYPE_CHECKING:
    from koordpy.planning.figures import Figures
    from koordpy.planning.scene import Scene


@dataclass(frozen=True, slots=True)
class Given:
    """Devices of a plan's pods, by pod key (`namespace/name`)."""

    chips: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Numbers of the devices on the pod's node."""
    notes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Annotations of the pod's Binding."""
    faults: tuple[str, ...] = ()
    """Pods that cannot have what they were placed for: then the plan is not carried out, and says so."""


class Accelerator(ABC):
    """One family of devices."""

    def refusal(self, pod: PodInfo, scene: "Scene") -> Refusal | None:
        """What is wrong with what a pod says of its devices: then no node is tried."""
        return None

    @abstractmethod
    def rules(self, pod: PodInfo, scene: "Scene") -> Iterable[Rule]:
        """The filter of a pod; none for a pod that asks for no such devices."""

    @abstractmethod
    def give(self, nodes: Mapping[str, int], figures: "Figures") -> Given:
        """Devices for a plan (pod key -> node position, in rank order), on the draft as it is before it."""
