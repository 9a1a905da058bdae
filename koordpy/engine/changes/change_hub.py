# SPDX-License-Identifier: Apache-2.0
"""Objects that all handlers of watch events share: the cluster state, the queue, the names of units, and listeners.

Listeners let other components react to changes, such as status writers, so that the handlers need not import them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from koordpy.api.objects import Pod
from koordpy.cache.cluster_state import ClusterState
from koordpy.engine.grouping import UnitNames
from koordpy.engine.scheduling_queue import UnitQueue
from koordpy.engine.wakeups import Wake
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import PodInfo


@dataclass(slots=True)
class Listeners:
    """Functions that are called on changes. They run on the event loop and must not block."""

    gang: list[Callable[[GangRef], None]] = field(default_factory=list)
    """Called when pods or the PodGroup of a gang change."""
    volcano_group: list[Callable[[str], None]] = field(default_factory=list)
    """Called with `namespace/name` when a Volcano PodGroup is created, changed or deleted. Changes of its pods call
    `gang`."""
    topology: list[Callable[[], None]] = field(default_factory=list)
    """Called when the ClusterNetworkTopology changes, or when a node is created, deleted or relabelled."""
    pod_gone: list[Callable[[str], None]] = field(default_factory=list)
    """Called with the key of a pod that is deleted or finished."""
    confirmed: list[Callable[[PodInfo], None]] = field(default_factory=list)
    """Called when the watch shows a pod on the node that it was assumed on."""
    bound: list[Callable[[PodInfo, bool], None]] = field(default_factory=list)
    """Called with a pod of our scheduler names when the API server first shows it on a node. The second argument is
    True if the pod was assumed there; otherwise another process has bound it."""
    claimed: list[Callable[[str], None]] = field(default_factory=list)
    """Called with the key of a changed volume claim or resource claim, or of another storage or DRA object."""
    conflict: list[Callable[[str], None]] = field(default_factory=list)
    """Called with the reason when a kubelet rejects one of our pods because another scheduler used its capacity."""
    rejected: list[Callable[[Pod], None]] = field(default_factory=list)
    """Called with a pod that its kubelet rejected for its resources (numa.md 8.1). May be called more than once for a
    pod."""


@dataclass(frozen=True, slots=True)
class Hub:
    """The objects that every handler of changes uses."""

    state: ClusterState
    queue: UnitQueue
    names: UnitNames = field(default_factory=UnitNames)
    listeners: Listeners = field(default_factory=Listeners)

    def topology_changed(self) -> None:
        """Notifies listeners that domains, or the nodes in them, may have changed."""
        for listener in self.listeners.topology:
            listener()

    def layers_changed(self, event: str) -> None:
        """Wakes gangs after a change of layers, because gather goals name layers. event: name of the event in
        metrics."""
        self.queue.broadcast(Wake.TOPOLOGY, event)
        self.queue.touch_gangs(event)
