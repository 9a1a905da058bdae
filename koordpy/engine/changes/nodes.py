"""Changes of nodes, and of the domains that they are in."""

from koordpy.api.custom import ClusterNetworkTopology
from koordpy.api.hypernodes import HyperNode
from koordpy.api.objects import Node
from koordpy.engine.changes.hub import Hub
from koordpy.engine.wakeups import Wake, of_node


class NodeChanges:
    """The sink of nodes."""

    def __init__(self, hub: Hub) -> None:
        self._hub, self._state = hub, hub.state

    def upsert(self, node: Node, old: Node | None) -> None:
        """A node that came or changed."""
        before = self._state.node(node.metadata.name)
        self._state.upsert(node)
        wake = of_node(before, self._state.node(node.metadata.name))
        if wake:
            self._hub.queue.broadcast(wake, "NodeAdd" if before is None else "NodeUpdate")
        if wake & (Wake.NODE_ADDED | Wake.NODE_LABELS):
            self._hub.topology_changed()

    def delete(self, node: Node) -> None:
        """A node that is gone."""
        self._state.delete(Node, node.metadata.name)
        self._hub.queue.broadcast(Wake.NODE_GONE, "NodeDelete")
        self._hub.topology_changed()


class TopologyChanges:
    """The sink of ClusterNetworkTopologies."""

    def __init__(self, hub: Hub) -> None:
        self._hub, self._state = hub, hub.state

    def upsert(self, topology: ClusterNetworkTopology, old: ClusterNetworkTopology | None) -> None:
        """A topology that came or changed."""
        before = self._state.topology is not None, self._state.layers, self._state.topology_faults
        self._state.upsert(topology)
        if (True, self._state.layers, self._state.topology_faults) != before:
            self._wake()
        self._hub.topology_changed()

    def delete(self, topology: ClusterNetworkTopology) -> None:
        """A topology that is gone."""
        self._state.delete(ClusterNetworkTopology, topology.metadata.name)
        self._wake()
        self._hub.topology_changed()

    def _wake(self) -> None:
        self._hub.queue.broadcast(Wake.TOPOLOGY, "TopologyUpdate")
        self._hub.queue.touch_gangs("TopologyUpdate")


class HyperNodeChanges:
    """The sink of HyperNodes, which tell the domains where no ClusterNetworkTopology does."""

    def __init__(self, hub: Hub) -> None:
        self._hub, self._state = hub, hub.state

    def upsert(self, obj: HyperNode, old: HyperNode | None) -> None:
        """A HyperNode that came or changed; its owner counts nodes in the status, which is no news."""
        if old is None or old.spec != obj.spec:
            self._state.upsert(obj)
            self._changed()

    def delete(self, obj: HyperNode) -> None:
        """A HyperNode that is gone."""
        self._state.delete(HyperNode, obj.metadata.name)
        self._changed()

    def _changed(self) -> None:
        if self._state.topology is None:
            self._hub.queue.broadcast(Wake.TOPOLOGY, "HyperNode")
            self._hub.queue.touch_gangs("HyperNode")
            self._hub.topology_changed()
