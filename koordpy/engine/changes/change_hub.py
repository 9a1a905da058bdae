"""Where changes go: the state that takes them in, the queue whose units they may help, and who else hears of them."""

from collections.abc import Callable
from dataclasses import dataclass, field

from koordpy.cache.cluster_state import ClusterState
from koordpy.engine.grouping import UnitNames
from koordpy.engine.scheduling_queue import UnitQueue
from koordpy.engine.wakeups import Wake
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import PodInfo


@dataclass(slots=True)
class Listeners:
    """Who else hears of changes; called on the event loop, must not block."""

    gang: list[Callable[[GangRef], None]] = field(default_factory=list)
    """A gang's pods or its PodGroup changed."""
    volcano_group: list[Callable[[str], None]] = field(default_factory=list)
    """`namespace/name` of a PodGroup of Volcano that came, changed or went; of its pods `gang` tells."""
    topology: list[Callable[[], None]] = field(default_factory=list)
    """The ClusterNetworkTopology changed, or a node came, went or was relabelled."""
    pod_gone: list[Callable[[str], None]] = field(default_factory=list)
    """Key of a pod that is deleted or finished."""
    confirmed: list[Callable[[PodInfo], None]] = field(default_factory=list)
    """Hear of pods that the watch shows on their node, of those that were assumed there."""
    bound: list[Callable[[PodInfo, bool], None]] = field(default_factory=list)
    """Hear of pods of ours that the API server shows on a node for the first time, whoever bound them, and whether they
    were assumed on that node."""
    claimed: list[Callable[[str], None]] = field(default_factory=list)
    """Key of a claim, of volumes or of devices, or of what it is given, that came, changed or went."""
    conflict: list[Callable[[str], None]] = field(default_factory=list)
    """A kubelet turned down a pod of ours, with the reason."""


@dataclass(frozen=True, slots=True)
class Hub:
    """What every handler of changes works on."""

    state: ClusterState
    queue: UnitQueue
    names: UnitNames = field(default_factory=UnitNames)
    listeners: Listeners = field(default_factory=Listeners)

    def topology_changed(self) -> None:
        """Domains, or the nodes in them, may be others than before."""
        for heard in self.listeners.topology:
            heard()

    def layers_changed(self, event: str) -> None:
        """Other layers hold: what a gang asks of them means something else."""
        self.queue.broadcast(Wake.TOPOLOGY, event)
        self.queue.touch_gangs(event)
