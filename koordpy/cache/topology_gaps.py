# SPDX-License-Identifier: Apache-2.0
"""Finds faults in the network topology labels of nodes, for warnings to the administrator.

There are three kinds of faults, called gaps: a checked node without the label of a layer; a layer with a label that no
node has ("bare" layer); and a domain name below two parents ("split" domain). Gaps do not stop scheduling: a node
without a label is a domain by itself, and a split name is two domains. But gangs wait longer or are placed worse.

Checked nodes are the nodes with accelerators, because gangs run there. If no node has accelerators, all nodes are
checked except control-plane nodes. A layer that numbers its domains from zero below each parent repeats names on
purpose, and is not reported as split. Cost: O(nodes) for each new tree, then O(nodes without a label).
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from koordpy.api.counted_nouns import count_noun, name_first
from koordpy.api.natural_order import natural_key
from koordpy.api.spelling import meant
from koordpy.cache.snapshot import NodeInfo, Snapshot
from koordpy.topology.topology_layers import Layer, Layers
from koordpy.topology.topology_tree import Tree

NODES_NAMED = 4
"""Maximum number of nodes in a text before `and N more`."""
DOMAINS_NAMED = 4
"""Maximum number of domains in a text before `and N more`."""
CONTROL_PLANE = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
"""Taint keys of control-plane nodes."""


def told_keys(layer: Layer) -> str:
    """Returns `the label a or b` of a layer, or `a HyperNode of tier1` if HyperNodes define the layer."""
    return f"the label {' or '.join(layer.label_keys)}" if layer.label_keys else f"a HyperNode of {layer.name}"


@dataclass(frozen=True, slots=True)
class UnlabelledNodes:
    """Checked nodes without the label of a layer."""

    layer: Layer
    nodes: tuple[str, ...]
    """Names of the nodes, in natural order."""
    counted: int
    """Number of checked nodes."""
    bare: bool
    """True if no node of the whole cluster has the label."""
    meant: str = ""
    """Label key that some nodes have and that the layer's misspelt key probably means; empty for none."""

    def __str__(self) -> str:
        """Returns the text for users, such as `block: 2 of 8 nodes lack the label example.com/block: n1, n2`."""
        if self.bare:
            return f"{self.layer.name}: {bare_text(self.layer, self.meant)}"
        one = len(self.nodes) == 1
        if self.layer.label_keys:
            what = f"{'lacks' if one else 'lack'} {told_keys(self.layer)}"
        else:
            what = f"{'is' if one else 'are'} in no HyperNode"
        nodes = name_first(self.nodes, NODES_NAMED)
        return f"{self.layer.name}: {len(self.nodes)} of {count_noun(self.counted, 'node')} {what}: {nodes}"


@dataclass(frozen=True, slots=True)
class SplitDomain:
    """A domain name that exists below several parents."""

    layer: str
    """Name of the layer."""
    name: str
    """Name of the domains."""
    places: tuple[tuple[str, int], ...]
    """(path of names from the top, number of nodes) of each domain with the name."""

    def __str__(self) -> str:
        places = [f"{path} ({count_noun(nodes, 'node')})" for path, nodes in self.places]
        return f"{self.layer}: {self.name} is in {len(places)} domains: {name_first(places, DOMAINS_NAMED)}"


@dataclass(frozen=True)
class TopologyGaps:
    """All gaps of a topology.

    unlabelled: in the order of layers, from the top. split: by layer and domain name.
    """

    unlabelled: tuple[UnlabelledNodes, ...] = ()
    split: tuple[SplitDomain, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.unlabelled or self.split)

    @cached_property
    def kinds(self) -> frozenset[tuple[str, str]]:
        """Pairs (kind of gap, layer). A pair that did not exist before triggers an event."""
        found = {("bare" if one.bare else "unlabelled", one.layer.name) for one in self.unlabelled}
        return frozenset(found | {("split", one.layer) for one in self.split})

    @property
    def reason(self) -> str:
        """Reason of the topology's condition: the most serious kind of gap. Must not be called without gaps."""
        if any(one.bare for one in self.unlabelled):
            return "NoNodeLabelled"
        return "NodesUnlabelled" if self.unlabelled else "DomainsSplit"

    def __str__(self) -> str:
        first = sorted(self.unlabelled, key=lambda one: not one.bare)
        return "; ".join(map(str, (*first, *self.split[:DOMAINS_NAMED]))) + (
            f"; {len(self.split) - DOMAINS_NAMED} more domains are split" if len(self.split) > DOMAINS_NAMED else ""
        )


NO_GAPS = TopologyGaps()
"""A topology without gaps."""


def bare_text(layer: Layer, meant: str, *, named: bool = False) -> str:
    """Returns `no node has the label a, did you mean b?` for a bare layer. meant: b; empty for no question.

    named: True to add the name of the layer to the label.
    """
    if not layer.label_keys:
        return f"no node is in {told_keys(layer)}"
    what = told_keys(layer) + (f" of {layer.name}" if named else "")
    return f"no node has {what}" + (f", did you mean {meant}?" if meant else "")


@dataclass(frozen=True)
class LabelGaps:
    """The gaps of all nodes, checked or not. They change only with the tree.

    bare: level (1 for the top layer) of each bare layer -> label key that some nodes have and that the layer's key
    probably means; empty for none.
    """

    bare: Mapping[int, str] = field(default_factory=dict)
    split: tuple[SplitDomain, ...] = ()

    @staticmethod
    def from_tree(tree: Tree, labels: Callable[[], Iterable[Mapping[str, str]]]) -> "LabelGaps":
        """Finds the gaps of a tree. labels: returns the labels of its nodes.

        `labels` is called only if no node has the label of a layer.
        """
        number = len(tree.node_names)
        bare = [i for i, lacking in enumerate(tree.lacking, start=1) if number and len(lacking) == number]
        known: set[str] = {key for one in labels() for key in one} if bare else set()
        return LabelGaps({level: _meant_key(tree.layers, level, known) for level in bare}, split_domains(tree))


def label_gaps(snapshot: Snapshot) -> LabelGaps:
    """Returns the gaps of all nodes of a snapshot; computed once for each snapshot."""
    known = snapshot.memo.get(LabelGaps)
    if not isinstance(known, LabelGaps):
        known = LabelGaps.from_tree(snapshot.tree, lambda: (node.labels for node in snapshot.nodes))
        snapshot.memo[LabelGaps] = known
    return known


def bare_layer(snapshot: Snapshot, level: int) -> str:
    """Returns `no node has the label KEY of LAYER, did you mean OTHER?` if the layer of a level is bare; else empty.

    Always empty for the cluster (level 0) and for the node layer.
    """
    tree = snapshot.tree
    if not 0 < level <= len(tree.lacking) or not tree.has_object or len(tree.lacking[level - 1]) < len(tree.node_names):
        return ""
    return bare_text(tree.layers.chain[level - 1], label_gaps(snapshot).bare.get(level, ""), named=True)


def _meant_key(layers: Layers, level: int, known: Collection[str]) -> str:
    """Returns the label key that some nodes have and that the key of a bare layer probably means; empty for none.

    It is a similar key, or the only key with the same name and another prefix, but never a key of another layer.
    known: all label keys of nodes.
    """
    taken = {key for one in layers.chain for key in one.label_keys}
    free = sorted(set(known) - taken)
    for key in layers.chain[level - 1].label_keys:
        if near := meant(key, free):
            return near
        same = [one for one in free if one.rpartition("/")[2] == key.rpartition("/")[2]]
        if len(same) == 1:
            return same[0]
    return ""


def split_domains(tree: Tree) -> tuple[SplitDomain, ...]:
    """Returns the domain names below several parents, in the order of layers from the top.

    Domains of single nodes that lack a label at the layer or above are ignored. So is a layer that numbers its domains
    from zero below each parent. Such a layer has several split names, and at most one parent has a name that is not
    split.
    """
    found: list[SplitDomain] = []
    private = _private(tree)
    for number in range(2, tree.depth):
        level = tree.levels[number]
        # domain name -> positions of its domains
        places: dict[str, list[int]] = {}
        for d, name in enumerate(level.names):
            if not private[number][d]:
                places.setdefault(name, []).append(d)
        split = {name for name, domains in places.items() if len(domains) > 1}
        if not split:
            continue
        # parent -> names of its domains
        parents: dict[int, set[str]] = {}
        for name, domains in places.items():
            for d in domains:
                parents.setdefault(int(level.parent[d]), set()).add(name)
        if len(split) > 1 and sum(not names <= split for names in parents.values()) <= 1:
            continue
        for name in sorted(split, key=natural_key):
            told = [(tree.path(number, d), int(level.end[d] - level.start[d])) for d in places[name]]
            found.append(SplitDomain(level.layer, name, tuple(told)))
    return tuple(found)


def _private(tree: Tree) -> list[NDArray[np.bool_]]:
    """Returns [level][domain]: True if the domain is the domain of a single node without a label, or inside one."""
    out = [np.zeros(len(level), dtype=bool) for level in tree.levels]
    for number, lacking in enumerate(tree.lacking, start=1):
        out[number] = out[number - 1][tree.levels[number].parent]
        nodes = [tree.index[name] for name in lacking]
        out[number][tree.domain_of[number, nodes]] = True
    return out


def find_gaps(
    tree: Tree, labels: LabelGaps, get: Callable[[str], NodeInfo | None], accelerated: Collection[str]
) -> TopologyGaps:
    """Returns the gaps of a tree.

    labels: gaps of all nodes. get: returns a node by name; None if unknown. accelerated: names of nodes with
    accelerators.
    """
    if not tree.has_object or not tree.node_names:
        return NO_GAPS

    def counts(name: str) -> bool:
        """Returns True if a node is checked."""
        if accelerated:
            return name in accelerated
        info = get(name)
        return info is not None and not info.going and not _takes_no_work(info)

    # number of checked nodes, counted only if some node lacks a label
    number = 0
    if any(tree.lacking):
        number = len(accelerated) or sum(map(counts, tree.node_names))
    found = []
    for level, lacking in enumerate(tree.lacking, start=1):
        if nodes := tuple(sorted(filter(counts, lacking), key=natural_key)):
            layer, bare = tree.layers.chain[level - 1], level in labels.bare
            found.append(UnlabelledNodes(layer, nodes, number, bare, labels.bare.get(level, "")))
    return TopologyGaps(tuple(found), labels.split)


def _takes_no_work(info: NodeInfo) -> bool:
    """Returns True for a control-plane node with a taint that excludes ordinary pods."""
    return any(taint.key in CONTROL_PLANE and taint.effect != "PreferNoSchedule" for taint in info.taints)


def by_layer(tree: Tree, gaps: TopologyGaps) -> tuple[dict[str, int], dict[str, int]]:
    """Returns (layer -> number of nodes without its label, layer -> number of split names).

    Both have every layer above the nodes.
    """
    layers = [layer.name for layer in tree.layers.chain[:-1]] if tree.has_object else []
    unlabelled, split = dict.fromkeys(layers, 0), dict.fromkeys(layers, 0)
    for one in gaps.unlabelled:
        unlabelled[one.layer.name] = len(one.nodes)
    for domain in gaps.split:
        split[domain.layer] += 1
    return unlabelled, split
