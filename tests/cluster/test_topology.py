# SPDX-License-Identifier: Apache-2.0
"""Layers and tree: gang-network.md section 3, sentence by sentence."""

from dataclasses import replace
from typing import Any

import msgspec
import networkx as nx
import pytest

from koordpy.api.custom_objects import ClusterNetworkTopology
from koordpy.topology.topology_layers import Layers, read_layers
from koordpy.topology.topology_tree import Tree, build_tree


def topology(*entries: dict[str, Any], field: str = "hierarchy") -> ClusterNetworkTopology:
    return msgspec.convert({"metadata": {"name": "default"}, "spec": {field: list(entries)}}, ClusterNetworkTopology)


def entry(name: str, key: Any = None, parent: str = "", *, spelling: str = "layerName") -> dict[str, Any]:
    return {spelling: name, **({"labelKey": key} if key else {}), **({"parentTopologyLayer": parent} if parent else {})}


def layers(*entries: dict[str, Any], field: str = "hierarchy") -> Layers:
    found, faults = read_layers(topology(*entries, field=field))
    assert found is not None, faults
    return found


def test_the_order_of_the_list_means_nothing() -> None:
    up = [entry("spine", "s"), entry("block", "b", "spine"), entry("nodes", None, "block")]
    assert layers(*up).names == layers(*reversed(up)).names == ("spine", "block", "nodes")


def test_a_node_layer_is_implied_below_a_lowest_entry_with_a_label() -> None:
    assert layers(entry("block", "b")).names == ("block", "nodeLayer")
    assert layers(entry("block", "b"), entry("mine", None, "block")).names == ("block", "mine")


def test_the_other_published_spelling_is_read() -> None:
    found = layers(
        entry("SpineLayer", ["s"], "ClusterTopologyLayer", spelling="topologyLayer"),
        entry("NodeTopologyLayer", None, "SpineLayer", spelling="topologyLayer"),
        field="networkTopologySpec",
    )
    assert found.names == ("SpineLayer", "NodeTopologyLayer")


FAULTS = [
    ("unknown parent", [entry("b", "b", "nowhere")], "spec.hierarchy[0].parentTopologyLayer", "'nowhere' above b"),
    ("circle", [entry("a", "a", "b"), entry("b", "b", "a")], "spec.hierarchy", "cycle"),
    ("circle above", [entry("x", "x", "a"), entry("a", "a", "b"), entry("b", "b", "a")],
     "spec.hierarchy[1].parentTopologyLayer", "cycle: a, b"),
    ("a circle beside the chain", [entry("x", "x"), entry("a", "a", "b"), entry("b", "b", "a")],
     "spec.hierarchy[1]", "cycle"),
    ("two chains", [entry("a", "a"), entry("b", "b")], "spec.hierarchy[1]", "b and a both have no layer below"),
    ("name used twice", [entry("a", "a"), entry("a", "b")], "spec.hierarchy[1]", "twice"),
    ("no label above", [entry("top"), entry("a", "a", "top")], "spec.hierarchy[0].labelKey", "top"),
    ("no key", [entry("a", "not a label!")], "spec.hierarchy[0].labelKey", "'not a label!' is not a valid label key"),
    ("no key", [entry("a", "example.com/" + "a" * 64)], "spec.hierarchy[0].labelKey", "is not a valid label key"),
    ("no name", [entry("", "a")], "spec.hierarchy[0]", "no name"),
    ("nothing", [], "spec.hierarchy", "at least one layer"),
    ("the implied name is taken", [entry("nodeLayer", "kubernetes.io/hostname")],
     "spec.hierarchy[0].labelKey", "implied"),
]  # fmt: skip


@pytest.mark.parametrize(("entries", "field", "text"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS])
def test_a_fault_names_its_entry(entries: list[dict[str, Any]], field: str, text: str) -> None:
    found, faults = read_layers(topology(*entries))
    assert found is None
    assert any(fault.field == field and text in fault.text for fault in faults), faults


def small() -> Tree:
    chain = layers(entry("spine", "s"), entry("block", ["b", "old-b"], "spine"))
    return build_tree(
        chain,
        {
            "n10": {"s": "s1", "b": "b1"},
            "n9": {"s": "s1", "b": "", "old-b": "b1"},
            "lone": {"s": "s1"},
            "other": {"s": "s2", "b": "b1"},
            "stray": {"b": "b1"},
            "s1": {"b": "b7"},
        },
    )


def test_a_domain_is_its_path_and_nodes_stand_in_natural_order() -> None:
    tree = small()
    assert [tree.path(3, i) for i in range(6)] == [
        "s1/b1/n9", "s1/b1/n10", "s1/lone/lone", "s1/b7/s1", "s2/b1/other", "stray/b1/stray",
    ]  # fmt: skip
    assert tree.path(*tree.lowest_common([tree.index["n9"], tree.index["n10"]])) == "s1/b1"
    assert tree.lowest_common([tree.index["n9"], tree.index["other"]]) == (0, 0)


def test_a_node_without_a_label_never_shares_that_layer() -> None:
    tree = small()
    assert tree.lowest_common([tree.index["lone"], tree.index["n9"]])[0] == 1
    # The node named like a labelled domain keeps a private one beside it.
    assert tree.lowest_common([tree.index["s1"], tree.index["n9"]])[0] == 0
    assert dict(tree.unlabelled) == {"spine": 2, "block": 1}


def test_slices_and_sums_agree_with_the_graph() -> None:
    tree = small()
    graph = tree.graph()
    assert nx.is_arborescence(graph)
    ones = tree.levels[3].sums(tree.levels[3].start * 0 + 1)
    for number, level in enumerate(tree.levels):
        for d in range(len(level)):
            below = [v for v in nx.descendants(graph, (number, d)) | {(number, d)} if v[0] == tree.depth]
            assert len(below) == level.end[d] - level.start[d] == level.sums(ones)[d]
            assert {v[1] for v in below} == set(range(level.start[d], level.end[d]))


def test_a_tree_that_is_none_is_told() -> None:
    tree = small()
    tree.check()
    spines, blocks = tree.levels[1], tree.levels[2]
    for number, broken in (
        (1, replace(spines, start=spines.start + 1)),
        (2, replace(blocks, parent=blocks.parent * 0)),
        (2, replace(blocks, parent=blocks.parent + len(spines))),
        (2, replace(blocks, end=blocks.end - 1)),
    ):
        levels = (*tree.levels[:number], broken, *tree.levels[number + 1 :])
        with pytest.raises(AssertionError, match="not a level of a tree"):
            replace(tree, levels=levels).check()


def test_an_empty_cluster_has_a_tree() -> None:
    tree = build_tree(layers(entry("block", "b")), {})
    assert [len(level) for level in tree.levels] == [1, 0, 0]
