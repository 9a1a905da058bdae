# SPDX-License-Identifier: Apache-2.0
"""Reads the layers of the network, such as spine, block and node, from the ClusterNetworkTopology `default`.

Each entry of the object is a layer. It has the node labels that define its domains, and names the layer above it
(`parentTopologyLayer`). The entries must form one chain; their order in the list does not matter. If the object has
faults, they are returned, and the caller keeps the layers that were in effect before. Source: gang-network.md 3.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from koordpy.api.custom_objects import ClusterNetworkTopology, HierarchyEntry
from koordpy.api.field_faults import literal
from koordpy.api.keys import CLUSTER_LAYER, NODE_LAYER
from koordpy.api.object_names import LABEL_KEY
from koordpy.api.spelling import hint
from koordpy.decoding.wire_json import unreadable

_LABEL_KEY = re.compile(LABEL_KEY)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of the network."""

    name: str
    label_keys: tuple[str, ...]
    """Node labels that name the domain; the first one that a node has is used. Empty for the node layer, and for layers
    of HyperNodes."""
    tier: int = 0
    """Tier of the HyperNodes that are the domains of the layer; 0 if node labels define them."""
    spares: int = 0
    """`spareNodes`: number of spare nodes in each domain; 0 without spares."""


@dataclass(frozen=True, slots=True)
class Layers:
    """All layers of the network."""

    chain: tuple[Layer, ...]
    """The layers from the top layer down; the last one is the node layer. The cluster is not listed."""
    places: Mapping[str, tuple[str, ...]] | None = None
    """Domains by HyperNodes: node -> name of its domain on each layer above the nodes, an empty name if it has none.

    None if node labels define the domains.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the layers from the top layer down."""
        return tuple(layer.name for layer in self.chain)

    def agree(self, other: "Layers", nodes: Iterable[str]) -> bool:
        """Returns True if these layers equal `other`, and both put the given nodes into the same domains.

        Domains are compared only if HyperNodes define them; `Layers` does not contain node labels.
        """
        if self is other:
            return True
        mine, its = self.places or {}, other.places or {}
        return self.chain == other.chain and all(mine.get(node) == its.get(node) for node in nodes)

    def level(self, name: str) -> int | None:
        """Returns the level of a layer, 1 for the top layer (0 is the cluster); None for an unknown name."""
        for i, layer in enumerate(self.chain):
            if layer.name == name:
                return i + 1
        return 0 if name == CLUSTER_LAYER else None

    def near(self, name: str) -> str:
        """Returns `, did you mean NAME?` for an unknown layer name; empty if no layer has a similar name."""
        return hint(name, (*self.names, CLUSTER_LAYER))

    def unknown(self, name: str) -> str:
        """Returns the message on an unknown layer name. It suggests a similar name if there is one, else lists all
        names."""
        there = self.near(name) or f", layers: {', '.join(self.names)}"
        return f'unknown layer "{name}"{there}'


@dataclass(frozen=True, slots=True)
class TopologyFault:
    """A fault of the ClusterNetworkTopology."""

    field: str
    """Path of the invalid field from the root of the object; empty for the whole object."""
    text: str

    def __str__(self) -> str:
        return f"{self.field}: {self.text}"


FLAT = Layers((Layer(NODE_LAYER, ()),))
"""The layers without a ClusterNetworkTopology: nodes directly below the cluster."""


def read_layers(obj: ClusterNetworkTopology) -> tuple[Layers | None, list[TopologyFault]]:
    """Returns (layers of a ClusterNetworkTopology, empty list) if it is valid, else (None, all faults)."""
    if wrong := unreadable(obj.metadata):
        return None, [TopologyFault("", f"it cannot be read: {wrong}")]
    # faults of single entries: names, parents, label keys
    entries, field = obj.spec.entries, obj.spec.field
    if not entries:
        return None, [TopologyFault("spec.hierarchy", "at least one layer is required")]
    faults: list[TopologyFault] = []
    by_name: dict[str, int] = {}
    for i, entry in enumerate(entries):
        where = f"{field}[{i}]"
        if not entry.name:
            faults.append(TopologyFault(where, "the layer has no name"))
        elif entry.name == CLUSTER_LAYER:
            faults.append(TopologyFault(where, f"the name {CLUSTER_LAYER} is reserved for the whole cluster"))
        elif entry.name in by_name:
            faults.append(TopologyFault(where, f"the layer name {entry.name} is used twice"))
        else:
            by_name[entry.name] = i
    for i, entry in enumerate(entries):
        parent = entry.parent_topology_layer
        if parent and parent != CLUSTER_LAYER and parent not in by_name:
            text = f"unknown layer {parent!r} above {entry.name or 'a layer without a name'}"
            faults.append(TopologyFault(f"{field}[{i}].parentTopologyLayer", text))
        faults += [
            TopologyFault(f"{field}[{i}].labelKey", f"{literal(key)} is not a valid label key")
            for key in entry.label_keys
            if not _LABEL_KEY.fullmatch(key)
        ]
    faults += _spare_faults(entries, field)
    if faults:
        return None, faults
    return _chain(entries, field)


def _spare_faults(entries: list[HierarchyEntry], field: str) -> Iterator[TopologyFault]:
    """Yields the faults of `spareNodes`: the value is invalid, several layers have it, or the node layer has it."""
    keeping = 0
    for i, entry in enumerate(entries):
        text, number = "", entry.spare_nodes
        if type(number) is not int or number < 0:
            text = "must be an integer of 0 or more"
        elif number and not entry.label_keys:
            text = "the node layer keeps no spares"
        elif number:
            keeping += 1
            text = "only one layer may keep spares" if keeping > 1 else ""
        if text:
            yield TopologyFault(f"{field}[{i}].spareNodes", text)


def _chain(entries: list[HierarchyEntry], field: str) -> tuple[Layers | None, list[TopologyFault]]:
    """Returns the same as `read_layers`, from the entries in any order.

    Follows `parentTopologyLayer` upwards from the only entry that is not a parent. If this lowest entry has label keys,
    the node layer is added below it; otherwise it is the node layer. field: path of the list in the object, for faults.
    """
    # the lowest layer is the only entry that is not a parent
    by_name = {entry.name: i for i, entry in enumerate(entries)}
    parents = {entry.parent_topology_layer for entry in entries}
    lowest = [i for i, entry in enumerate(entries) if entry.name not in parents]
    if not lowest:
        names = ", ".join(entry.name for entry in entries)
        return None, [TopologyFault(field, f"the parents form a cycle: {names}")]
    if len(lowest) > 1:
        first = entries[lowest[0]].name
        texts = [
            f"{entries[i].name} and {first} both have no layer below; the layers must form one chain"
            for i in lowest[1:]
        ]
        return None, [TopologyFault(f"{field}[{i}]", text) for i, text in zip(lowest[1:], texts, strict=True)]
    # upwards to the top layer; entries that are not reached are in a cycle
    upwards, seen, at = [], set(), lowest[0]
    while True:
        upwards.append(at)
        seen.add(at)
        parent = entries[at].parent_topology_layer
        if not parent or parent == CLUSTER_LAYER:
            break
        at = by_name[parent]
        if at in seen:
            circle = ", ".join(entries[i].name for i in upwards[upwards.index(at) :])
            return None, [TopologyFault(f"{field}[{at}].parentTopologyLayer", f"the parents form a cycle: {circle}")]
    faults = [
        TopologyFault(f"{field}[{i}]", f"layer {entries[i].name} is not in the chain: its parents form a cycle")
        for i in range(len(entries))
        if i not in seen
    ]
    faults += [
        TopologyFault(
            f"{field}[{i}].labelKey", f"layer {entries[i].name} needs a label key; only the lowest layer may have none"
        )
        for i in upwards[1:]
        if not entries[i].label_keys
    ]
    chain = [Layer(entries[i].name, entries[i].label_keys, spares=entries[i].spare_nodes) for i in reversed(upwards)]
    if chain[-1].label_keys:
        clash = next((layer.name for layer in chain if layer.name == NODE_LAYER), None)
        if clash is not None:
            text = f"{NODE_LAYER} is implied below {chain[-1].name}: rename the layer or leave its labelKey out"
            faults.append(TopologyFault(f"{field}[{by_name[NODE_LAYER]}].labelKey", text))
        chain.append(Layer(NODE_LAYER, ()))
    return (None, faults) if faults else (Layers(tuple(chain)), [])
