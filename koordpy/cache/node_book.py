"""Nodes and the topology they stand in, as they change.

A change of a node makes as little anew as it can: the tree where labels change, static verdicts where labels, taints or
images do, room where allocatable does. The versions tell readers which of these happened.
"""

from collections.abc import Iterator

from koordpy.api import keys
from koordpy.api.custom import ClusterNetworkTopology, HyperNode
from koordpy.api.objects import Node
from koordpy.api.settings import odd_settings
from koordpy.api.unread import Holder
from koordpy.cluster.hypernodes import Warnings, read_hypernodes
from koordpy.cluster.quotas import card_hundredths
from koordpy.cluster.resources import Amounts, add_amounts, node_allocatable
from koordpy.cluster.snapshot import UNSCHEDULABLE_TAINT, NodeInfo
from koordpy.cluster.topology import FLAT, Layers, TopologyFault, read_layers
from koordpy.cluster.tree import Tree, build_tree


class NodeBook:
    """Nodes by name, the objects that say how they hang together, and the tree made of both."""

    def __init__(self) -> None:
        self.topology: ClusterNetworkTopology | None = None
        self.topology_faults: list[TopologyFault] = []
        self.layers: Layers = FLAT
        self.hypernode_faults: Warnings = ()
        """Of the HyperNodes, as far as the tree is made of them."""
        self.static_version = 0
        """Changes with a node's labels, taints or images, or the set of nodes."""
        self.capacity_version = 0
        """Changes with what a node can hold, or the set of nodes."""
        self.total_version = 0
        """Changes with the sum that quotas divide."""
        self._nodes: dict[str, NodeInfo] = {}
        self._odd: dict[str, tuple[str, ...]] = {}
        """Node -> what its labels and annotations say in vain."""
        self._warnings: tuple[tuple[str, str], ...] | None = None
        self.hypernodes: dict[str, HyperNode] = {}
        """By name, whether or not the tree is made of them."""
        self._tree: Tree | None = None
        self._total: Amounts | None = None
        self._cards: int | None = None

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[NodeInfo]:
        return iter(self._nodes.values())

    def get(self, name: str) -> NodeInfo | None:
        return self._nodes.get(name)

    def put(self, node: Node) -> None:
        """Takes a node. Raises UnreadableError where a quantity cannot be read; nothing changes then."""
        info = NodeInfo(
            name=node.metadata.name,
            labels=node.metadata.labels,
            taints=tuple(node.spec.taints) + ((UNSCHEDULABLE_TAINT,) if node.spec.unschedulable else ()),
            unschedulable=node.spec.unschedulable,
            allocatable=node_allocatable(node),
            images=tuple((tuple(image.names), image.size_bytes) for image in node.status.images),
            node=node,
        )
        old = self._nodes.get(info.name)
        self._nodes[info.name] = info
        if old is None or (old.labels, old.node.metadata.annotations) != (info.labels, node.metadata.annotations):
            self._look_at_keys(info)
        if old is None or old.allocatable != info.allocatable or old.going != info.going:
            self._total = self._cards = None
            self.total_version += 1
        if old is None or old.labels != info.labels:
            self._tree = None
        if old is None or old.allocatable != info.allocatable:
            self.capacity_version += 1
        if old is None or (old.labels, old.taints, old.images) != (info.labels, info.taints, info.images):
            self.static_version += 1

    def drop(self, name: str) -> None:
        """Forgets a node; an unknown one is no fault."""
        if self._nodes.pop(name, None) is not None:
            self._odd.pop(name, None)
            self._warnings = None
            self._total = self._cards = None
            self._tree = None
            self.total_version += 1
            self.static_version += 1
            self.capacity_version += 1

    @property
    def warnings(self) -> tuple[tuple[str, str], ...]:
        """(object, text) of what nodes say in vain."""
        if self._warnings is None:
            self._warnings = tuple((f"Node/{name}", text) for name, odd in sorted(self._odd.items()) for text in odd)
        return self._warnings

    def _look_at_keys(self, info: NodeInfo) -> None:
        self._odd.pop(info.name, None)
        if odd := tuple(odd_settings(Holder.NODE, info.node.metadata)):
            self._odd[info.name] = odd
        self._warnings = None

    def put_topology(self, obj: ClusterNetworkTopology) -> None:
        """Takes the layers of the object that counts; of one with faults, the faults alone."""
        if obj.metadata.name != keys.TOPOLOGY_OBJECT:
            return
        layers, faults = read_layers(obj)
        self.topology, self.topology_faults = obj, faults
        if layers is not None and layers != self.layers:
            self.layers = layers
            self._tree = None
        elif layers is not None and self._tree is not None and not self._tree.has_object:
            self._tree = None

    def drop_topology(self, name: str) -> None:
        if name == keys.TOPOLOGY_OBJECT:
            self.topology, self.topology_faults, self.layers, self._tree = None, [], FLAT, None

    def put_hypernode(self, obj: HyperNode) -> None:
        """Takes a HyperNode; the tree is made of them where there is no ClusterNetworkTopology."""
        known = self.hypernodes.get(obj.metadata.name)
        self.hypernodes[obj.metadata.name] = obj
        if known is None or known.spec != obj.spec:
            self._hypernodes_changed()

    def drop_hypernode(self, name: str) -> None:
        self.hypernodes.pop(name, None)
        self._hypernodes_changed()

    def _hypernodes_changed(self) -> None:
        if self.topology is None:
            self._tree = None

    @property
    def tree(self) -> Tree:
        if self._tree is None:
            labels = {name: info.labels for name, info in self._nodes.items()}
            self.hypernode_faults = ()
            if self.topology is None:
                self.layers = FLAT
                if self.hypernodes:
                    self.layers, self.hypernode_faults = read_hypernodes(self.hypernodes, labels)
            has_object = self.topology is not None or bool(self.hypernodes)
            self._tree = build_tree(self.layers, labels, has_object=has_object)
            if has_object:
                self._tree.check()
            self.static_version += 1
        return self._tree

    def in_order(self, tree: Tree) -> tuple[NodeInfo, ...]:
        return tuple(self._nodes[name] for name in tree.node_names)

    def total(self) -> Amounts:
        """Allocatable of all nodes that are not being deleted, cordoned ones too (quota-fairness.md 4)."""
        if self._total is None:
            self._total = {}
            for node in self._nodes.values():
                if not node.going:
                    add_amounts(self._total, node.allocatable)
        return self._total

    def cards(self) -> int:
        """Accelerators of the same nodes, in hundredths, each counted once."""
        if self._cards is None:
            self._cards = sum(card_hundredths(node.allocatable) for node in self._nodes.values() if not node.going)
        return self._cards
