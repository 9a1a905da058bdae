# SPDX-License-Identifier: Apache-2.0
"""Builds the topology tree: the domains of the network (switches, blocks, spines) and their nodes, as arrays.

Level 0 is the cluster, level 1 the top layer, the last level the nodes. Nodes are in depth-first order of the tree,
siblings in natural order of names. So the nodes of a domain are a slice of any node array, and sums over domains are
differences of prefix sums. A node that lacks a layer's label gets a private domain in this layer, which has the name of
the node and contains no other node. Source: gang-network.md section 3.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from koordpy.api.keys import CLUSTER_LAYER
from koordpy.api.natural_order import NaturalKey, natural_key
from koordpy.topology.topology_layers import Layers

if TYPE_CHECKING:
    import networkx as nx

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Level:
    """All domains of one layer in depth-first order; domain d contains nodes start[d] .. end[d] - 1."""

    layer: str
    """Name of the layer."""
    start: Ints
    """[domains] index of the first node of the domain."""
    end: Ints
    """[domains] index after the last node of the domain."""
    parent: Ints
    """[domains] index of the parent one level up; 0 on the top layer, because the parent there is the cluster."""
    names: tuple[str, ...]
    """Name of each domain; domains of different parents may have equal names."""

    def __len__(self) -> int:
        return len(self.names)

    def sums(self, per_node: Ints) -> Ints:
        """Returns [domains] the sum of a node array over each domain."""
        prefix = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(per_node, dtype=np.int64)))
        return np.asarray(prefix[self.end] - prefix[self.start], dtype=np.int64)


@dataclass(frozen=True)
class Tree:
    """All domains of the network, as levels from the cluster (0) over the top layer (1) down to the nodes (depth)."""

    layers: Layers
    levels: tuple[Level, ...]
    node_names: tuple[str, ...]
    """Names of the nodes in the order of all node arrays."""
    domain_of: NDArray[np.int64]
    """[level, node]: index of the domain that contains the node."""
    unlabelled: tuple[tuple[str, int], ...]
    """(layer, number of nodes without its label), for each layer with such nodes."""
    has_object: bool = True
    """True if an object of the cluster defines the layers. False for the default without layers between cluster and
    nodes."""
    lacking: tuple[tuple[str, ...], ...] = ()
    """For each layer above the nodes, the names of the nodes without the layer's label."""

    @property
    def depth(self) -> int:
        """The level of the nodes."""
        return len(self.levels) - 1

    @cached_property
    def index(self) -> dict[str, int]:
        """Node name -> position in the node arrays."""
        return {name: i for i, name in enumerate(self.node_names)}

    @cached_property
    def name_rank(self) -> NDArray[np.int64]:
        """[nodes] position of each node in the natural order of names (node arrays are in depth-first order)."""
        order = sorted(range(len(self.node_names)), key=lambda i: natural_key(self.node_names[i]))
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        return rank

    def path(self, level: int, domain: int) -> str:
        """Returns the names of a domain and of all domains above it, from the top layer down, joined by `/`.

        Empty for the cluster.
        """
        parts: list[str] = []
        while level > 0:
            parts.append(self.levels[level].names[domain])
            domain = int(self.levels[level].parent[domain])
            level -= 1
        return "/".join(reversed(parts))

    def layer_name(self, level: int) -> str:
        """Returns the name of the layer of a level."""
        return self.levels[level].layer

    def lowest_common(self, nodes: Sequence[int]) -> tuple[int, int]:
        """Returns (level, domain) of the lowest domain that contains all given nodes; the cluster for no nodes."""
        if not nodes:
            return 0, 0
        columns = self.domain_of[:, list(nodes)]
        same = (columns == columns[:, :1]).all(axis=1)
        level = int(np.nonzero(same)[0].max())
        return level, int(columns[level, 0])

    def upwards(self, level: int, domain: int) -> list[tuple[int, int]]:
        """Returns (level, domain) of a domain and of every domain above it, the cluster last."""
        node = int(self.levels[level].start[domain])
        return [(n, int(self.domain_of[n, node])) for n in range(level, -1, -1)]

    def children(self, level: int, domain: int) -> range:
        """Returns the indices of the domains one level down inside a domain. Must not be called for a node."""
        edges = self._edges[level]
        return range(edges[domain], edges[domain + 1])

    def first_child(self, level: int) -> Ints:
        """Returns [domains + 1] the index of the first child of each domain of the level. The last entry is the number
        of domains one level down."""
        below = self.levels[level + 1]
        return np.append(np.searchsorted(below.start, self.levels[level].start), len(below))

    @cached_property
    def _edges(self) -> list[list[int]]:
        return [self.first_child(level).tolist() for level in range(self.depth)]

    def check(self) -> None:
        """Raises AssertionError if the arrays are not a tree, because of a bug of `build_tree`.

        It checks that each domain has a parent one level up, has nodes, and has only nodes that its parent has. The
        check runs once per change of the topology.
        """
        nodes = np.arange(len(self.node_names))
        for number, level in enumerate(self.levels):
            count, above = len(level), self.levels[number - 1] if number else None
            cut = np.append(level.start, len(nodes))
            fits = count == 1 if above is None else bool(((level.parent >= 0) & (level.parent < len(above))).all())
            fits = fits and bool((cut[:-1] < cut[1:]).all()) and bool((level.end == cut[1:]).all()) and int(cut[0]) == 0
            holder = np.searchsorted(level.start, nodes, side="right") - 1
            fits = fits and bool((self.domain_of[number] == holder).all())
            if fits and above is not None:
                fits = bool((level.parent[holder] == self.domain_of[number - 1]).all())
            if len(nodes) and not fits:
                raise AssertionError(f"the domains of {level.layer} are not a level of a tree")

    def graph(self) -> "nx.DiGraph[Any]":
        """Returns the tree as a graph from parent to child; vertices are (level, domain), with layer, name and path.

        The graph is for display; networkx checks that it is a tree. The planner uses only the arrays, because the
        import of networkx takes longer than planning a small cluster.
        """
        import networkx as nx

        graph: nx.DiGraph[Any] = nx.DiGraph()
        for number, level in enumerate(self.levels):
            for d, name in enumerate(level.names):
                graph.add_node((number, d), layer=level.layer, name=name, path=self.path(number, d))
                if number:
                    graph.add_edge((number - 1, int(level.parent[d])), (number, d))
        if not nx.is_arborescence(graph):  # cannot happen: each domain has exactly one parent, one level up
            raise AssertionError("the topology graph is not a tree")
        return graph

    @cached_property
    def detail_status(self) -> list[dict[str, Any]]:
        """Returns the value of `status.detailStatus` of the ClusterNetworkTopology: one entry per domain above the
        nodes.

        Entries are in depth-first order, siblings in natural order. childTopologyNames is omitted if the children are
        nodes.
        """
        graph = self.graph()

        def named(vertex: tuple[int, int]) -> dict[str, str]:
            return {"topologyLayer": graph.nodes[vertex]["layer"], "topologyName": graph.nodes[vertex]["name"]}

        out: list[dict[str, Any]] = []
        stack: list[tuple[int, int]] = [(0, 0)]
        while stack:
            vertex = stack.pop()
            number, d = vertex
            entry: dict[str, Any] = {"topologyInfo": named(vertex)}
            for parent in graph.predecessors(vertex):
                entry["parentTopologyInfo"] = named(parent)
            entry["childTopologyLayer"] = self.layer_name(number + 1)
            entry["nodeNum"] = int(self.levels[number].end[d] - self.levels[number].start[d])
            if number + 1 < self.depth:
                below = list(graph.successors(vertex))
                entry["childTopologyNames"] = [graph.nodes[child]["name"] for child in below]
                stack.extend(reversed(below))
            out.append(entry)
        return out


def domain_parts(layers: Layers, name: str, labels: Mapping[str, str]) -> tuple[tuple[bool, str], ...]:
    """Returns, per layer above the nodes, (True if the node gets a private domain, name of its domain).

    The name is the first non-empty value of the layer's label keys. A node without such a label has a private domain
    with the name of the node.
    """
    if layers.places is not None:
        given = layers.places.get(name) or ("",) * (len(layers.chain) - 1)
        return tuple((not value, value or name) for value in given)
    parts = []
    for layer in layers.chain[:-1]:
        value = next((labels[key] for key in layer.label_keys if labels.get(key)), "")
        parts.append((not value, value or name))
    return tuple(parts)


_Vertex = tuple[tuple[bool, str], ...]
"""A domain or node, as its path from the top layer down: (True if private, name) for each layer (`domain_parts`)."""


def build_tree(layers: Layers, nodes: Mapping[str, Mapping[str, str]], *, has_object: bool = True) -> Tree:
    """Builds the tree of the nodes (name -> labels).

    A domain is identified by its whole path, so every domain has exactly one parent, even if nodes with the same label
    value have different values on a higher layer. nodes: name -> labels.
    """
    below: dict[_Vertex, list[_Vertex]] = {(): []}
    missing: list[list[str]] = [[] for _ in layers.chain[:-1]]
    for name, labels in nodes.items():
        above: _Vertex = ()
        for i, part in enumerate(domain_parts(layers, name, labels)):
            if part[0]:
                missing[i].append(name)
            vertex = (*above, part)
            if vertex not in below:
                below[vertex] = []
                below[above].append(vertex)
            above = vertex
        below[above].append((*above, (False, name)))
    return _flatten(layers, below, lacking=tuple(map(tuple, missing)), has_object=has_object)


def _flatten(
    layers: Layers,
    below: Mapping[_Vertex, Sequence[_Vertex]],
    *,
    lacking: tuple[tuple[str, ...], ...],
    has_object: bool,
) -> Tree:
    """Returns the arrays of a tree. below: domain -> its children, in any order; the cluster is `()`."""

    def order(vertex: _Vertex) -> tuple[NaturalKey, bool]:
        private, name = vertex[-1]
        return natural_key(name), private

    # the nodes in depth-first order, siblings in natural order
    depth = len(layers.chain)
    leaves: list[_Vertex] = []
    stack: list[_Vertex] = [()]
    while stack:
        vertex = stack.pop()
        if len(vertex) == depth:
            leaves.append(vertex)
        else:
            stack.extend(sorted(below[vertex], key=order, reverse=True))
    # on each level, a domain is a run of consecutive nodes with equal paths down to this level
    levels = []
    domain_of = np.zeros((depth + 1, len(leaves)), dtype=np.int64)
    for number in range(depth + 1):
        sizes, names = [], []
        for vertex, members in groupby(leaves, key=lambda leaf: leaf[:number]):
            sizes.append(sum(1 for _ in members))
            names.append(vertex[-1][1] if vertex else "")
        if not sizes:
            sizes, names = ([0], [""]) if number == 0 else ([], [])
        end = np.cumsum(np.array(sizes, dtype=np.int64), dtype=np.int64)
        start = end - np.array(sizes, dtype=np.int64)
        domain_of[number] = np.repeat(np.arange(len(sizes)), sizes)
        parent = domain_of[number - 1][start] if number else np.zeros(1, dtype=np.int64)
        layer = layers.chain[number - 1].name if number else CLUSTER_LAYER
        levels.append(Level(layer=layer, start=start, end=end, parent=parent, names=tuple(names)))
    return Tree(
        layers=layers,
        levels=tuple(levels),
        node_names=tuple(leaf[-1][1] for leaf in leaves),
        domain_of=domain_of,
        unlabelled=tuple((layer.name, len(n)) for layer, n in zip(layers.chain, lacking, strict=False) if n),
        has_object=has_object,
        lacking=lacking,
    )
