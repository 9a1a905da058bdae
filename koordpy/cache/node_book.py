# SPDX-License-Identifier: Apache-2.0
"""The index of nodes, updated by watch events, and the network topology tree that is built from their labels.

A change of a node invalidates only the values that depend on it: the tree if labels change, static verdicts (results of
filters that read only labels, taints and images) if one of these changes, and sums if allocatable changes. Readers
detect changes by version numbers.
"""

from collections.abc import Iterator

from koordpy.api import keys
from koordpy.api.custom_objects import ClusterNetworkTopology, HyperNode
from koordpy.api.key_hints import Holder
from koordpy.api.objects import Node
from koordpy.cache.lost_nodes import LostNode, lost_node, may_be_lost, next_loss, reported_losses
from koordpy.cache.snapshot import UNSCHEDULABLE_TAINT, NodeInfo
from koordpy.cache.topology_gaps import LabelGaps, TopologyGaps, find_gaps
from koordpy.config.node_failures import Repair
from koordpy.decoding.annotation_settings import odd_settings
from koordpy.pods.family_books import Amendment
from koordpy.pods.resource_amounts import Amounts, add_amounts, node_allocatable
from koordpy.quota.quota_book import card_hundredths
from koordpy.topology.hypernodes import Warnings, read_hypernodes
from koordpy.topology.topology_layers import FLAT, Layers, TopologyFault, read_layers
from koordpy.topology.topology_tree import Tree, build_tree


class NodeBook:
    """Nodes by name, the objects that define the topology, and the tree of the nodes."""

    def __init__(self, repair: Repair | None = None) -> None:
        """repair: section of the configuration that says when a node is lost; None for the defaults."""
        self._repair = repair or Repair()
        self._marked: dict[str, Node] = {}
        """Nodes with a taint or condition that marks them as lost, now or once `repair.lostAfter` has passed."""
        self.spare_labels: set[str] = set()
        """Names of nodes with the label `spare`, whatever its value is."""
        self._dropped: set[str] = set()
        """Nodes that were removed since the last call of `take_dropped`."""
        self._amendments: dict[str, dict[str, Amendment]] = {}
        """Node -> device family -> the family's corrections of the node's allocatable amounts."""
        self.topology: ClusterNetworkTopology | None = None
        """The ClusterNetworkTopology named `default`, as last seen; None if there is none."""
        self.topology_faults: list[TopologyFault] = []
        """Faults of the ClusterNetworkTopology; while it has faults, `layers` are those of its last valid state."""
        self.layers: Layers = FLAT
        """Layers of the tree; FLAT (only nodes below the cluster) if no object defines a topology."""
        self.hypernode_faults: Warnings = ()
        """Faults of the HyperNodes; the faulty parts are not in the tree."""
        self.static_version = 0
        """Increases with a change of labels, taints or images of a node, or of the set of nodes, and with a new
        tree."""
        self.capacity_version = 0
        """Increases with a change of the allocatable amounts of a node, or of the set of nodes."""
        self.total_version = 0
        """Increases with a change of the total amount that quotas share (`total`)."""
        self._nodes: dict[str, NodeInfo] = {}
        self._odd: dict[str, tuple[str, ...]] = {}
        """Node -> warnings about labels and annotations without effect."""
        # the values below are computed at the first request; until then, or if a version changed, they are None or
        # outdated
        self._warnings: tuple[tuple[str, str], ...] | None = None
        self.hypernodes: dict[str, HyperNode] = {}
        """HyperNodes by name, even if a ClusterNetworkTopology defines the tree."""
        self._tree: Tree | None = None
        self._label_gaps: tuple[Tree, LabelGaps] | None = None
        self._gaps: tuple[Tree, tuple[int, ...], TopologyGaps] | None = None
        self._accelerated: tuple[tuple[int, int], frozenset[str]] = (0, 0), frozenset()
        """(capacity_version, total_version), and the names of nodes that had accelerators at these versions."""
        self._total: Amounts | None = None
        self._cards: int | None = None

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[NodeInfo]:
        return iter(self._nodes.values())

    def get(self, name: str) -> NodeInfo | None:
        """Returns a node by name; None if unknown."""
        return self._nodes.get(name)

    def put(self, node: Node) -> None:
        """Stores a node. Raises `UnreadableError` if a quantity cannot be read; then nothing changes."""
        info = NodeInfo(
            name=node.metadata.name,
            labels=node.metadata.labels,
            taints=tuple(node.spec.taints) + ((UNSCHEDULABLE_TAINT,) if node.spec.unschedulable else ()),
            unschedulable=node.spec.unschedulable,
            allocatable=self._allocatable(node),
            images=tuple((tuple(image.names), image.size_bytes) for image in node.status.images),
            node=node,
        )
        old = self._nodes.get(info.name)
        self._nodes[info.name] = info
        if keys.SPARE in node.metadata.labels:
            self.spare_labels.add(info.name)
        else:
            self.spare_labels.discard(info.name)
        if may_be_lost(node, self._repair):
            self._marked[info.name] = node
        elif self._marked:
            self._marked.pop(info.name, None)
        # invalidate the values that depend on a changed field
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

    def _allocatable(self, node: Node) -> Amounts:
        """Returns the allocatable amounts of a node after the corrections by device families."""
        amounts = node_allocatable(node)
        for amendment in self._amendments.get(node.metadata.name, {}).values():
            amounts = amendment.amended(amounts)
        return amounts

    def amend(self, name: str, family: str, amendment: Amendment | None) -> None:
        """Stores a device family's corrections of a node's amounts; None for no corrections."""
        before = self._amendments.get(name, {})
        if amendment == before.get(family):
            return
        others = {one: found for one, found in before.items() if one != family}
        if amendment is not None:
            self._amendments[name] = {**others, family: amendment}
        elif others:
            self._amendments[name] = others
        else:
            del self._amendments[name]
        if (known := self._nodes.get(name)) is not None:
            self.put(known.node)

    def drop(self, name: str) -> None:
        """Removes a node; an unknown name is ignored."""
        if self._nodes.pop(name, None) is not None:
            self._odd.pop(name, None)
            self._marked.pop(name, None)
            self.spare_labels.discard(name)
            self._dropped.add(name)
            self._warnings = None
            self._total = self._cards = None
            self._tree = None
            self.total_version += 1
            self.static_version += 1
            self.capacity_version += 1

    @property
    def keeps_spares(self) -> bool:
        """True if a layer or a node's label asks for spare nodes."""
        return bool(self.spare_labels) or any(layer.spares for layer in self.layers.chain)

    def take_dropped(self) -> set[str]:
        """Returns the names of nodes that were removed since the last call; some may exist again."""
        found, self._dropped = self._dropped, set()
        return found

    @property
    def may_lose_nodes(self) -> bool:
        """True if at least one node is lost, or will be lost once `repair.lostAfter` has passed."""
        return bool(self._marked)

    def lost(self, now: float) -> dict[str, LostNode]:
        """Returns node name -> why it is lost, of each lost node. now: seconds since the epoch."""
        found = ((name, lost_node(node, now, self._repair)) for name, node in self._marked.items())
        return {name: lost for name, lost in found if lost is not None}

    def reported_losses(self, node: NodeInfo) -> frozenset[str]:
        """Returns the types of `repair.lostConditions` that are True on a node."""
        return reported_losses(node.node, self._repair)

    def next_loss(self, now: float) -> float | None:
        """Returns when the next node becomes lost, in seconds since the epoch; None if no node is about to."""
        ends = (next_loss(node, now, self._repair) for node in self._marked.values())
        return min((end for end in ends if end is not None), default=None)

    @property
    def warnings(self) -> tuple[tuple[str, str], ...]:
        """(object, text) of labels and annotations of nodes that have no effect."""
        if self._warnings is None:
            self._warnings = tuple((f"Node/{name}", text) for name, odd in sorted(self._odd.items()) for text in odd)
        return self._warnings

    def _look_at_keys(self, info: NodeInfo) -> None:
        """Finds a node's labels and annotations that look like settings of koordpy, but have no effect."""
        self._odd.pop(info.name, None)
        if odd := tuple(odd_settings(Holder.NODE, info.node.metadata)):
            self._odd[info.name] = odd
        self._warnings = None

    def put_topology(self, obj: ClusterNetworkTopology) -> None:
        """Stores the ClusterNetworkTopology if it is named `default`; any other one is ignored.

        If it has faults, the earlier layers stay in use.
        """
        if obj.metadata.name != keys.TOPOLOGY_OBJECT:
            return
        layers, faults = read_layers(obj)
        self.topology, self.topology_faults = obj, faults
        if layers is not None and layers != self.layers:
            self.layers = layers
            self._tree = None
        elif layers is not None and self._tree is not None and not self._tree.has_object:
            # the layers are equal, but now an object states them, so that gaps in its labels are reported
            self._tree = None

    def drop_topology(self, name: str) -> None:
        """Removes the ClusterNetworkTopology if it is named `default`; then HyperNodes define the tree, or it is
        flat."""
        if name == keys.TOPOLOGY_OBJECT:
            self.topology, self.topology_faults, self.layers, self._tree = None, [], FLAT, None

    def put_hypernode(self, obj: HyperNode) -> None:
        """Stores a HyperNode. HyperNodes define the tree only without a ClusterNetworkTopology."""
        known = self.hypernodes.get(obj.metadata.name)
        self.hypernodes[obj.metadata.name] = obj
        if known is None or known.spec != obj.spec:
            self._hypernodes_changed()

    def drop_hypernode(self, name: str) -> None:
        """Removes a HyperNode."""
        self.hypernodes.pop(name, None)
        self._hypernodes_changed()

    def _hypernodes_changed(self) -> None:
        if self.topology is None:
            self._tree = None

    @property
    def tree(self) -> Tree:
        """The topology tree; rebuilt when needed after a change of labels, layers, HyperNodes or the set of nodes."""
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

    @property
    def label_gaps(self) -> LabelGaps:
        """Faults in the topology labels of all nodes (`topology_gaps.py`); computed once for each tree."""
        tree = self.tree
        if self._label_gaps is None or self._label_gaps[0] is not tree:
            found = LabelGaps.from_tree(tree, lambda: (info.labels for info in self._nodes.values()))
            self._label_gaps = tree, found
        return self._label_gaps[1]

    @property
    def gaps(self) -> TopologyGaps:
        """Faults in topology labels, limited to checked nodes (`topology_gaps.py`)."""
        tree, labels = self.tree, self.label_gaps
        # which nodes are checked matters only if a node lacks a label
        marks = (self.static_version, self.capacity_version, self.total_version) if any(tree.lacking) else ()
        if self._gaps is None or self._gaps[0] is not tree or self._gaps[1] != marks:
            accelerated = self._find_accelerated() if marks else ()
            self._gaps = tree, marks, find_gaps(tree, labels, self.get, accelerated)
        return self._gaps[2]

    def _find_accelerated(self) -> frozenset[str]:
        """Returns the nodes with accelerators that are not being deleted."""
        marks = self.capacity_version, self.total_version
        if self._accelerated[0] != marks:
            found = (n.name for n in self._nodes.values() if not n.going and card_hundredths(n.allocatable))
            self._accelerated = marks, frozenset(found)
        return self._accelerated[1]

    def in_order(self, tree: Tree) -> tuple[NodeInfo, ...]:
        """Returns the nodes in the order of a tree."""
        return tuple(self._nodes[name] for name in tree.node_names)

    def total(self) -> Amounts:
        """Returns the sum of allocatable over all nodes that are not being deleted, including cordoned
        nodes (quota-fairness.md 4)."""
        if self._total is None:
            self._total = {}
            for node in self._nodes.values():
                if not node.going:
                    add_amounts(self._total, node.allocatable)
        return self._total

    def cards(self) -> int:
        """Returns the number of accelerators of all nodes that are not being deleted, in hundredths of a card.

        Each card is counted once, even if the node lists it under several resources.
        """
        if self._cards is None:
            self._cards = sum(card_hundredths(node.allocatable) for node in self._nodes.values() if not node.going)
        return self._cards
