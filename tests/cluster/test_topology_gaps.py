# SPDX-License-Identifier: Apache-2.0
"""Which gaps the labels of nodes leave in a topology: a table of clusters and of what is said of each."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from koordpy.api.custom_objects import ClusterNetworkTopology, HyperNode
from koordpy.api.objects import Node
from koordpy.cache.node_book import NodeBook
from koordpy.cache.topology_gaps import by_layer
from tests.clusters import node

MASTER = "node-role.kubernetes.io/control-plane"


def topology(*layers: tuple[str, Any]) -> ClusterNetworkTopology:
    """(layer, key or keys) from the top down."""
    entries, above = [], "ClusterTopologyLayer"
    for name, key in layers:
        entries.append({"layerName": name, "labelKey": key, "parentTopologyLayer": above})
        above = name
    manifest = {"metadata": {"name": "default"}, "spec": {"hierarchy": entries}}
    return msgspec.convert(manifest, ClusterNetworkTopology)


def put(
    book: NodeBook, name: str, *, gpus: int = 8, taint: str = "", effect: str = "NoSchedule", **labels: str
) -> None:
    """A node with labels below example.com/."""
    made = node(name, gpus=gpus, labels={f"example.com/{key}": value for key, value in labels.items()})
    if taint:
        made["spec"] = {"taints": [{"key": taint, "effect": effect}]}
    book.put(msgspec.convert(made, Node))


def book_of(places: Mapping[str, Mapping[str, Any]], *layers: tuple[str, Any]) -> NodeBook:
    book = NodeBook()
    book.put_topology(topology(*layers))
    for name, options in places.items():
        put(book, name, **options)
    return book


RACK = ("rackLayer", "example.com/rack")
TWO = (("spineLayer", "example.com/spine"), RACK)


def at(spine: str, rack: str, **options: Any) -> dict[str, Any]:
    return {"spine": spine, "rack": rack, **options}


CASES: list[tuple[str, tuple[tuple[str, Any], ...], Mapping[str, Mapping[str, Any]], str, str]] = [
    ("all is well", (RACK,), {"a": {"rack": "r0"}, "b": {"rack": "r1"}}, "", ""),
    ("no node at all", (RACK,), {}, "", ""),
    (
        "one accelerator node lacks the label",
        (RACK,),
        {"a": {"rack": "r0"}, "b": {}},
        "NodesUnlabelled",
        "rackLayer: 1 of 2 nodes lacks the label example.com/rack: b",
    ),
    (
        "nodes in natural order, the first of many",
        (RACK,),
        {f"n{i}": {} if i else {"rack": "r"} for i in range(12)},
        "NodesUnlabelled",
        "rackLayer: 11 of 12 nodes lack the label example.com/rack: n1, n2, n3, n4 and 7 more",
    ),
    ("CPU nodes beside accelerators are no gap", (RACK,), {"a": {"rack": "r0"}, "cpu": {"gpus": 0}}, "", ""),
    (
        "of a cluster without accelerators every worker counts",
        (RACK,),
        {"a": {"gpus": 0, "rack": "r0"}, "b": {"gpus": 0}, "m": {"gpus": 0, "taint": MASTER}},
        "NodesUnlabelled",
        "rackLayer: 1 of 2 nodes lacks the label example.com/rack: b",
    ),
    (
        "a control plane that takes work counts",
        (RACK,),
        {"a": {"gpus": 0, "rack": "r0"}, "m": {"gpus": 0, "taint": MASTER, "effect": "PreferNoSchedule"}},
        "NodesUnlabelled",
        "rackLayer: 1 of 2 nodes lacks the label example.com/rack: m",
    ),
    (
        "a misspelt key",
        (("rackLayer", "example.com/rakc"),),
        {"a": {"rack": "r0"}, "b": {"rack": "r0"}},
        "NoNodeLabelled",
        "rackLayer: no node has the label example.com/rakc, did you mean example.com/rack?",
    ),
    (
        "a key of another prefix",
        (("rackLayer", "topology.kubernetes.io/rack"),),
        {"a": {"rack": "r0"}},
        "NoNodeLabelled",
        "rackLayer: no node has the label topology.kubernetes.io/rack, did you mean example.com/rack?",
    ),
    (
        "a key that resembles nothing",
        (("rackLayer", "example.org/shelf"),),
        {"a": {"rack": "r0"}},
        "NoNodeLabelled",
        "rackLayer: no node has the label example.org/shelf",
    ),
    (
        "the key of another layer is not suggested",
        (("rackLayer2", "example.com/racks"), RACK),
        {"a": {"rack": "r0"}},
        "NoNodeLabelled",
        "rackLayer2: no node has the label example.com/racks",
    ),
    (
        "several keys",
        (("rackLayer", ["example.com/one", "example.com/other"]),),
        {"a": {"one": "r0"}, "b": {"other": "r0"}, "c": {}},
        "NodesUnlabelled",
        "rackLayer: 1 of 3 nodes lacks the label example.com/one or example.com/other: c",
    ),
    (
        "the label of CPU nodes alone",
        (RACK,),
        {"a": {}, "cpu": {"gpus": 0, "rack": "r0"}},
        "NodesUnlabelled",
        "rackLayer: 1 of 1 node lacks the label example.com/rack: a",
    ),
    (
        "a rack in two spines",
        TWO,
        {"a": at("s1", "r1"), "b": at("s1", "r1"), "c": at("s2", "r1"), "d": at("s2", "r2")},
        "DomainsSplit",
        "rackLayer: r1 is in 2 domains: s1/r1 (2 nodes), s2/r1 (1 node)",
    ),
    (
        "racks numbered anew in each spine",
        TWO,
        {"a": at("s1", "r1"), "b": at("s1", "r2"), "c": at("s2", "r1"), "d": at("s2", "r2"), "e": at("s1", "r3")},
        "",
        "",
    ),
    (
        "a misspelt spine on nodes of two racks",
        TWO,
        {
            **{f"n{i}": at("s1", f"r{i}") for i in range(4)},
            **{f"m{i}": at("s2", f"r{i}") for i in range(4, 8)},
            "x0": at("S1", "r0"),
            "x1": at("S1", "r1"),
        },
        "DomainsSplit",
        "rackLayer: r0 is in 2 domains: S1/r0 (1 node), s1/r0 (1 node); "
        "rackLayer: r1 is in 2 domains: S1/r1 (1 node), s1/r1 (1 node)",
    ),
    (
        "a rack whose spine one node does not name is that node's gap alone",
        TWO,
        {"a": at("s1", "r1"), "b": {"rack": "r1"}, "c": at("s2", "r2")},
        "NodesUnlabelled",
        "spineLayer: 1 of 3 nodes lacks the label example.com/spine: b",
    ),
    (
        "all at once, what is worst first",
        (("zoneLayer", "example.com/zone"), ("spineLayer", "example.com/spin"), RACK),
        {
            "a": {"zone": "z1", "rack": "r1", "spine": "s"},
            "b": {"rack": "r1", "spine": "s"},
            "c": {"zone": "z2", "rack": "r1", "spine": "s"},
        },
        "NoNodeLabelled",
        "spineLayer: no node has the label example.com/spin, did you mean example.com/spine?; "
        "zoneLayer: 1 of 3 nodes lacks the label example.com/zone: b",
    ),
]


@pytest.mark.parametrize(("layers", "places", "reason", "text"), [one[1:] for one in CASES], ids=[c[0] for c in CASES])
def test_what_is_said_of_labels(
    layers: tuple[tuple[str, Any], ...], places: Mapping[str, Mapping[str, Any]], reason: str, text: str
) -> None:
    gaps = book_of(places, *layers).gaps
    assert str(gaps) == text
    assert bool(gaps) is bool(text)
    if text:
        assert gaps.reason == reason


def test_figures_are_of_every_layer_above_the_nodes() -> None:
    book = book_of({"a": at("s1", "r1"), "b": at("s2", "r1"), "c": {"rack": "r2"}}, *TWO)
    assert by_layer(book.tree, book.gaps) == ({"spineLayer": 1, "rackLayer": 0}, {"spineLayer": 0, "rackLayer": 1})
    assert by_layer(NodeBook().tree, NodeBook().gaps) == ({}, {})


def test_gaps_follow_changes_of_nodes() -> None:
    book = book_of({"a": {"rack": "r0"}, "b": {"gpus": 0}}, RACK)
    assert not book.gaps
    # its device plugin starts
    put(book, "b")
    assert [one.nodes for one in book.gaps.unlabelled] == [("b",)]
    assert book.gaps is book.gaps
    put(book, "b", rack="r1")
    assert not book.gaps
    put(book, "a")
    assert [one.nodes for one in book.gaps.unlabelled] == [("a",)]
    book.drop("a")
    assert not book.gaps
    # without accelerators anywhere a taint decides
    put(book, "b", gpus=0)
    assert [one.nodes for one in book.gaps.unlabelled] == [("b",)]
    put(book, "b", gpus=0, taint=MASTER)
    assert not book.gaps
    book.drop_topology("default")
    put(book, "b")
    assert not book.gaps


def test_nodes_in_no_hypernode_are_a_gap_without_a_label() -> None:
    book = NodeBook()
    member = {"type": "Node", "selector": {"exactMatch": {"name": "a"}}}
    manifest = {"metadata": {"name": "leaf"}, "spec": {"tier": 1, "members": [member]}}
    book.put_hypernode(msgspec.convert(manifest, HyperNode))
    put(book, "a")
    assert not book.gaps
    put(book, "b")
    assert str(book.gaps) == "tier1: 1 of 2 nodes is in no HyperNode: b"


def lacking(nodes: Mapping[str, Mapping[str, Any]], key: str) -> set[str]:
    """Nodes that count and lack a label, by the words of the rule."""
    counting = [name for name, one in nodes.items() if one["gpus"]] or list(nodes)
    return {name for name in counting if key not in nodes[name]}


def split(nodes: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Racks in two spines that are not meant, by the words of the rule."""
    places = {(one["spine"], one["rack"]) for one in nodes.values() if "rack" in one and "spine" in one}
    twice = {rack for spine, rack in places if any(rack == other and spine != s for s, other in places)}
    others = {spine for spine, rack in places if rack not in twice}
    return set() if len(twice) > 1 and len(others) <= 1 else twice


@pytest.mark.parametrize("seed", range(40))
def test_gaps_are_those_of_the_rule_whatever_happens_to_nodes(seed: int) -> None:
    dice, book, nodes = random.Random(seed), NodeBook(), dict[str, dict[str, Any]]()
    book.put_topology(topology(*TWO))
    for _ in range(40):
        name = f"n{dice.randrange(6)}"
        if name in nodes and dice.random() < 0.2:
            book.drop(name)
            del nodes[name]
        else:
            labels = {key: dice.choice("abc") for key in ("spine", "rack") if dice.random() < 0.8}
            nodes[name] = {"gpus": dice.choice([0, 8]), **labels}
            put(book, name, **nodes[name])
        found = {one.layer.name: set(one.nodes) for one in book.gaps.unlabelled}
        wanted = {"spineLayer": lacking(nodes, "spine"), "rackLayer": lacking(nodes, "rack")}
        assert found == {layer: names for layer, names in wanted.items() if names}
        assert {one.name for one in book.gaps.split} == split(nodes)
