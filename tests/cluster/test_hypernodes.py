# SPDX-License-Identifier: Apache-2.0
"""The tree as HyperNodes tell it: layers by tier, domains by object, and every fault named without losing the tree."""

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpy.api.custom_objects import HyperNode
from koordpy.devices.family_registry import make_state
from koordpy.plan.round_plan import RoundPlan
from koordpy.topology.hypernodes import read_hypernodes
from koordpy.topology.topology_tree import Tree, build_tree
from tests.scenarios.cluster import World, bound, gang_pods, group, hierarchy, messages, node, wish

Json = dict[str, Any]


def nodes(*names: str) -> list[Json]:
    return [{"type": "Node", "selector": {"exactMatch": {"name": name}}} for name in names]


def inner(*names: str) -> list[Json]:
    return [{"type": "HyperNode", "selector": {"exactMatch": {"name": name}}} for name in names]


def hyper(name: str, tier: int, *members: list[Json], called: str = "") -> HyperNode:
    spec: Json = {"tier": tier, "members": [one for part in members for one in part]}
    if called:
        spec["tierName"] = called
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, HyperNode)


def read(*objects: HyperNode, labels: dict[str, dict[str, str]] | None = None) -> tuple[Tree, list[tuple[str, str]]]:
    known = labels or {f"n{i}": {} for i in range(1, 9)}
    layers, faults = read_hypernodes({obj.metadata.name: obj for obj in objects}, known)
    return build_tree(layers, known), list(faults)


def paths(tree: Tree) -> dict[str, str]:
    return {name: tree.path(tree.depth, i) for i, name in enumerate(tree.node_names)}


def tier_of(layer: str) -> int:
    return int(layer.removeprefix("tier"))


TWO_TIERS = [
    hyper("s0", 1, nodes("n1", "n2")),
    hyper("s1", 1, nodes("n3", "n4")),
    hyper("s2", 1, nodes("n5", "n6")),
    hyper("s3", 1, nodes("n7", "n8")),
    hyper("s4", 2, inner("s0", "s1")),
    hyper("s5", 2, inner("s2", "s3")),
]


def test_the_highest_tier_is_the_top_layer_and_domains_are_named_by_their_objects() -> None:
    tree, faults = read(*TWO_TIERS)
    assert not faults
    assert tree.layers.names == ("tier2", "tier1", "nodeLayer")
    assert paths(tree)["n1"] == "s4/s0/n1" and paths(tree)["n8"] == "s5/s3/n8"


def test_a_tier_is_called_by_its_name_where_it_has_one() -> None:
    tree, faults = read(
        hyper("s0", 1, nodes("n1"), called="volcano.sh/hypernode"),
        hyper("s1", 1, nodes("n2")),
        hyper("s4", 5, inner("s0", "s1")),
    )
    assert not faults
    assert tree.layers.names == ("tier5", "volcano.sh/hypernode", "nodeLayer")


def test_nodes_are_found_by_pattern_and_by_label() -> None:
    pattern = {"type": "Node", "selector": {"regexMatch": {"pattern": "^n[12]$"}}}
    rack = {"type": "Node", "selector": {"labelMatch": {"matchLabels": {"rack": "r2"}}}}
    few = {"matchExpressions": [{"key": "rack", "operator": "In", "values": ["r3", "r4"]}]}
    racks = {"type": "Node", "selector": {"labelMatch": few}}
    tree, faults = read(
        hyper("a", 1, [pattern]),
        hyper("b", 1, [rack]),
        hyper("c", 1, [racks]),
        hyper("top", 2, [{"type": "HyperNode", "selector": {"regexMatch": {"pattern": "."}}}]),
        labels={"n1": {}, "n2": {}, "n3": {"rack": "r2"}, "n4": {"rack": "r4"}},
    )
    assert not faults
    assert paths(tree) == {"n1": "top/a/n1", "n2": "top/a/n2", "n3": "top/b/n3", "n4": "top/c/n4"}


def test_a_node_that_no_hypernode_of_a_tier_holds_is_a_private_domain_there() -> None:
    tree, faults = read(hyper("s0", 1, nodes("n1")), hyper("top", 2, inner("s0"), nodes("n2")))
    assert not faults
    assert paths(tree)["n2"] == "top/n2/n2" and paths(tree)["n3"] == "n3/n3/n3"
    assert dict(tree.unlabelled) == {"tier2": 6, "tier1": 7}


FAULTS = [
    (
        "an unknown node",
        [hyper("a", 1, nodes("n1", "gone"))],
        "a",
        "members[1].selector.exactMatch.name",
        "no Node 'gone'",
    ),
    ("an unknown HyperNode", [hyper("a", 2, inner("b"))], "a", "members[0].selector.exactMatch", "no HyperNode 'b'"),
    (
        "a circle",
        [hyper("a", 1, inner("b")), hyper("b", 1, inner("a"), nodes("n1"))],
        "b",
        "spec.members",
        "the members form a cycle: a, b; a is removed from b",
    ),
    ("itself", [hyper("a", 1, inner("a"), nodes("n1"))], "a", "spec.members", "cycle: a"),
    (
        "a higher tier inside a lower one",
        [hyper("a", 1, inner("b")), hyper("b", 2, nodes("n1"))],
        "a",
        "spec.members",
        "HyperNode b has tier 2, which is not below tier 1",
    ),
    (
        "a node in two of one tier",
        [hyper("a", 1, nodes("n1", "n2")), hyper("b", 1, nodes("n2", "n3"))],
        "b",
        "spec.members",
        "node n2 in two HyperNodes of tier 1, a and b: a is used",
    ),
    ("no tier", [hyper("a", 0, nodes("n1"))], "a", "spec.tier", "must be 1 or more, not 0"),
    (
        "another type",
        [hyper("a", 1, [{"type": "Pod"}])],
        "a",
        "members[0].type",
        "must be Node or HyperNode, not 'Pod'",
    ),
    ("no selector", [hyper("a", 1, [{"type": "Node"}])], "a", "members[0].selector", "none of exactMatch"),
    (
        "two selectors",
        [hyper("a", 1, [{"type": "Node", "selector": {"exactMatch": {"name": "n1"}, "labelMatch": {}}}])],
        "a",
        "members[0].selector",
        "several of exactMatch",
    ),
    (
        "a pattern that is none",
        [hyper("a", 1, [{"type": "Node", "selector": {"regexMatch": {"pattern": "n("}}}])],
        "a",
        "regexMatch.pattern",
        "cannot be read",
    ),
    (
        "labels of HyperNodes",
        [hyper("a", 2, [{"type": "HyperNode", "selector": {"labelMatch": {}}}])],
        "a",
        "selector.labelMatch",
        "of type Node only",
    ),
    (
        "two names for one tier",
        [hyper("a", 1, nodes("n1"), called="leaf"), hyper("b", 1, nodes("n2"), called="rack")],
        "b",
        "spec.tierName",
        "tier 1 has several names: leaf, rack; the layer is called tier1",
    ),
    (
        "one name for two tiers",
        [hyper("a", 1, nodes("n1"), called="leaf"), hyper("b", 2, inner("a"), called="leaf")],
        "a",
        "spec.tierName",
        "leaf is the name of the tiers 1 and 2",
    ),
    ("the nodes' name", [hyper("a", 1, nodes("n1"), called="nodeLayer")], "a", "spec.tierName", "another layer"),
]


@pytest.mark.parametrize(
    ("objects", "name", "field", "text"), [case[1:] for case in FAULTS], ids=[c[0] for c in FAULTS]
)
def test_a_fault_is_named_and_the_tree_stays(objects: list[HyperNode], name: str, field: str, text: str) -> None:
    tree, faults = read(*objects)
    assert any(who == f"HyperNode/{name}" and field in said and text in said for who, said in faults), faults
    assert len(tree.node_names) == 8


def test_of_two_parents_the_one_counts_that_keeps_a_hypernode_together() -> None:
    tree, faults = read(hyper("s0", 1, nodes("n1", "n2")), hyper("a", 2, nodes("n1")), hyper("b", 2, inner("s0")))
    assert paths(tree)["n1"] == "b/s0/n1" and paths(tree)["n2"] == "b/s0/n2"
    assert [who for who, _ in faults] == ["HyperNode/a"]


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_any_hypernodes_make_a_tree_of_all_nodes(data: st.DataObject) -> None:
    names = [f"h{i}" for i in range(6)]
    selector = st.one_of(
        st.sampled_from(["n1", "n2", "n3", "n9", *names]).map(lambda name: {"exactMatch": {"name": name}}),
        st.sampled_from(["n", "h", "[13]", "("]).map(lambda text: {"regexMatch": {"pattern": text}}),
        st.just({"labelMatch": {}}),
    )
    member = st.fixed_dictionaries({"type": st.sampled_from(["Node", "HyperNode"]), "selector": selector})
    objects = [hyper(n, data.draw(st.integers(0, 3)), data.draw(st.lists(member, max_size=4))) for n in names]
    tree, _ = read(*objects)
    assert sorted(tree.node_names) == [f"n{i}" for i in range(1, 9)]
    known = {obj.metadata.name: obj for obj in objects if obj.spec.tier >= 1}

    def lists(one: HyperNode, kind: str, name: str) -> bool:
        for member in one.spec.members:
            chosen = member.selector
            if member.type != kind or name == one.metadata.name:
                continue
            if chosen.exact_match is not None and chosen.exact_match.name == name:
                return True
            pattern = chosen.regex_match.pattern if chosen.regex_match is not None else "("
            if pattern != "(" and re.search(pattern, name):
                return True
            if chosen.label_match is not None and kind == "Node":
                return True
        return False

    def holds(one: HyperNode, name: str) -> bool:
        below = [other for other in known.values() if other.spec.tier < one.spec.tier]
        inside = (other for other in below if lists(one, "HyperNode", other.metadata.name))
        return lists(one, "Node", name) or any(holds(other, name) for other in inside)

    for i, name in enumerate(tree.node_names):
        for number, level in enumerate(tree.levels[1:-1], start=1):
            able = [
                one.metadata.name
                for one in known.values()
                if tier_of(level.layer) == one.spec.tier and holds(one, name)
            ]
            domain = level.names[tree.domain_of[number, i]]
            assert domain in able if able else domain == name


def test_a_topology_object_beats_hypernodes_and_they_come_back_when_it_goes() -> None:
    state = make_state()
    for obj in (node("n1", {"block": "b"}), hyper("s0", 1, nodes("n1"))):
        state.upsert(obj)
    assert state.nodes.tree.layers.names == ("tier1", "nodeLayer") and state.nodes.tree.has_object
    topology = hierarchy(("blockLayer", "block"))
    state.upsert(topology)
    assert state.nodes.tree.layers.names == ("blockLayer", "nodeLayer")
    state.delete(type(topology), "default")
    assert state.nodes.tree.layers.names == ("tier1", "nodeLayer")
    state.delete(HyperNode, "s0")
    assert state.nodes.tree.layers.names == ("nodeLayer",) and not state.nodes.tree.has_object


def world(**gather: str) -> World:
    made = World().add(TWO_TIERS, [node(f"n{i}") for i in range(1, 9)], group("g", 3, wish(gather)))
    return made.add(gang_pods("g", 3))


def test_a_gang_gathers_in_the_domains_of_hypernodes() -> None:
    plan = world(tier2="Must").plan()
    assert bound(plan) == {"p-0": "n1", "p-1": "n2", "p-2": "n3"}
    assert plan.gangs[0].domain == ("tier2", "s4")


def test_a_gang_that_no_hypernode_holds_is_told_what_each_offers() -> None:
    text = messages(world(tier1="Must").plan())["p-0"]
    assert text.endswith("needed 3, available in tier1: s4/s0: 2, s4/s1: 2, s5/s2: 2, s5/s3: 2.")


def test_faults_are_warnings_of_the_round() -> None:
    plan: RoundPlan = world(tier2="Must").add(hyper("odd", 1, nodes("nowhere"))).plan()
    assert ("HyperNode/odd", "spec.members[0].selector.exactMatch.name: there is no Node 'nowhere'") in plan.warnings
