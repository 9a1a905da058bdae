# SPDX-License-Identifier: Apache-2.0
"""The worked examples of gang-network.md section 5, through the cluster state and a whole round."""

from dataclasses import dataclass
from typing import Any

import pytest

from tests.scenarios.cluster import (
    TWO_LAYERS,
    World,
    bound,
    gang_pods,
    group,
    hierarchy,
    messages,
    node,
    nodes_of,
    pod,
    wish,
)

F = "s1{b1: node-1 node-8; b2: node-2 node-7} s2{b3: node-3 node-6; b4: node-4 node-5}"
G = "s0{b0: n1 n2 n3 n4; b1: n5 n6 n7} s1{b2: n8 n9 n10 n11; b3: n12 n13 n14 n15}"
D = "s0{b0: N0 N1 N2; b1: N3 N4} s1{b2: N5 N6 N7; b3: N8 N9 N10 N11}"
E = "s0{b0: N0 N1 N2; b1: N3 N4} s1{b2: N5 N6; b3: N7 N8} s2{b4: N9 N10 N11; b5: N12}"
PREFER = {"blockLayer": "Prefer"}
MUST = {"blockLayer": "Must"}


@dataclass(frozen=True)
class Case:
    """Cluster, number of pods, wish, answer: node of each rank in order."""

    name: str
    cluster: str
    pods: int
    wish: dict[str, str]
    answer: str
    taken: str = ""
    """Nodes that are full already."""
    minimum: int | None = None
    extra: tuple[Any, ...] = ()


CASES = [
    Case("1 the tightest block, the first of equals", F, 2, wish({**MUST, "spineLayer": "Must"}), "node-1 node-8"),
    Case("2 one node is the lowest domain", F.replace("node-1", "node-1:2"), 2, wish(PREFER), "node-1 node-1"),
    Case("3 the block with fewest slots", G, 3, wish(PREFER), "n5 n6 n7"),
    Case("4 larger block first in the tighter spine", G, 5, wish({"spineLayer": "Prefer"}), "n1 n2 n3 n4 n5"),
    Case("5 fewest nodes, the larger first", "s{b: n1:1 n2:3 n3:2}", 4, wish(PREFER), "n2 n2 n2 n3"),
    Case(
        "6 three nodes do, ranks in path order",
        "s{b1: n1:5 n2:7; b2: n3:6 n4:4}",
        15,
        wish(PREFER),
        "n1 " * 5 + "n2 " * 7 + "n3 " * 3,
    ),
    Case(
        "7 multiples make the other block the tighter one",
        "s{b1: n1:5 n2:7; b2: n3:6 n4:4}",
        8,
        wish(PREFER, multiple={"blockLayer": 4}),
        "n3 " * 6 + "n4 " * 2,
    ),
    Case("8 one block", D, 4, wish(PREFER, pp=2), "N8 N9 N10 N11"),
    Case(
        "9 whole pipeline groups before fuller blocks", D, 4, wish(PREFER, pp=2), "N0 N1 N3 N4", taken="N8 N9 N10 N11"
    ),
    Case(
        "10 a pipeline group never lifts the layer", D, 4, wish(PREFER, pp=2), "N0 N1 N2 N3", taken="N4 N8 N9 N10 N11"
    ),
    Case("11 the spine that splits no group", E, 4, wish(PREFER, pp=2), "N5 N6 N7 N8"),
    Case(
        "12 groups larger than blocks go in plain order",
        "s{b0: a0 a1 a2; b1: c0 c1 c2; b2: d0 d1}",
        8,
        wish(PREFER, pp=4),
        "a0 a1 a2 c0 c1 c2 d0 d1",
    ),
    Case(
        "15 five beat four",
        "s{b0: a0 a1 a2 a3; b1: c0 c1 c2 c3 c4}",
        6,
        wish(MUST),
        "c0 c1 c2 c3 c4",
        minimum=4,
    ),
    Case(
        "17 usable slots of multiples",
        "s{b0: a0 a1 a2 a3; b1: c0 c1 c2 c3; b2: d0 d1 d2 d3}",
        9,
        wish(PREFER, multiple={"blockLayer": 3}),
        "a0 a1 a2 c0 c1 c2 d0 d1 d2",
    ),
]

T = "s0{b0: a1:2 a2:1; b1: a3:2} s1{b2: c1:2 c2:2; b3: c3:1}"
SELECTOR = {"scheduling.koordinator.sh/network-topology-selector": "j"}
CASES += [
    Case("turned: as it stands, path", T, 5, wish(PREFER), "a1 a1 a2 a3 a3"),
    Case("turned: two nodes decide", T.replace("a3:2", "a3:3"), 5, wish(PREFER), "a1 a1 a3 a3 a3"),
    Case("turned: fewer slots decide", T.replace("a2:1", "a2:2"), 5, wish(PREFER), "c1 c1 c2 c2 c3"),
    Case("turned: only one spine is left", T, 5, wish(PREFER), "a1 a1 a2 a3 a3", taken="c3"),
    Case("turned: members first", T, 5, wish(MUST), "c1 c1 c2 c2", minimum=3),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_rank_stands_where_the_example_says(case: Case) -> None:
    world = World().add(TWO_LAYERS, nodes_of(case.cluster), group("g", case.minimum or case.pods, case.wish))
    world.add([pod(f"full-{name}", at=name, scheduler="other") for name in case.taken.split()])
    world.add(gang_pods("g", case.pods), list(case.extra))
    answer = {f"p-{i}": name for i, name in enumerate(case.answer.split())}
    assert bound(world.plan()) == answer


def test_13_two_private_accelerators_are_not_one() -> None:
    layers = hierarchy(("accLayer", "acc"), ("blockLayer", "block"))
    nodes = [node("a", {"block": "b0"}), node("d", {"block": "b0"})]
    nodes += [node(n, {"block": "b1", "acc": "v1"}) for n in ("c1", "c2")]
    for gather in ({"accLayer": "Must"}, {"blockLayer": "Must"}):
        world = World().add(layers, nodes, group("g", 2, wish(gather)), gang_pods("g", 2))
        assert bound(world.plan()) == {"p-0": "c1", "p-1": "c2"}


def test_14_the_only_split_is_found() -> None:
    world = World().add(TWO_LAYERS, nodes_of("s{b: a:8 c:8}"), group("g", 4, wish(MUST)))
    world.add([pod(f"p-{i}", gang="g", cpu=cpu) for i, cpu in enumerate("3445")])
    assert bound(world.plan()) == {"p-0": "a", "p-1": "c", "p-2": "c", "p-3": "a"}


def test_16_a_late_member_joins_the_block_of_most_siblings() -> None:
    world = World().add(TWO_LAYERS, nodes_of("s{b0: a0 a1; b1: c0 c1 c2}"), group("g", 4, wish(PREFER)))
    world.add([pod(f"w-{i}", gang="g", at=at) for i, at in enumerate(["a0", "c0", "c1"])], pod("w-3", gang="g"))
    assert bound(world.plan()) == {"w-3": "c2"}


def test_18_the_status_lists_the_tree_depth_first() -> None:
    world = World().add(TWO_LAYERS, nodes_of(F))
    status = world.state.nodes.tree.detail_status
    assert [entry["topologyInfo"]["topologyName"] for entry in status] == ["", "s1", "b1", "b2", "s2", "b3", "b4"]
    assert status[0]["childTopologyNames"] == ["s1", "s2"] and status[0]["nodeNum"] == 8
    assert status[1]["parentTopologyInfo"]["topologyLayer"] == "ClusterTopologyLayer"
    assert status[1]["childTopologyNames"] == ["b1", "b2"] and status[1]["nodeNum"] == 4
    assert "childTopologyNames" not in status[2] and status[2]["nodeNum"] == 2
    assert status[2]["childTopologyLayer"] == "nodeLayer"


def test_turned_attraction_decides_before_tightness() -> None:
    world = World().add(TWO_LAYERS, nodes_of(T), group("g", 5, wish(PREFER)))
    world.add(pod("r", at="c3", cpu="0", annotations=SELECTOR, scheduler="other"))
    world.add(gang_pods("g", 5, annotations=SELECTOR))
    assert list(bound(world.plan()).values()) == ["c1", "c1", "c2", "c2", "c3"]


def test_turned_must_gather_that_cannot_be_kept_says_what_each_block_offers() -> None:
    world = World().add(TWO_LAYERS, nodes_of(T), group("g", 5, wish(MUST)), gang_pods("g", 5))
    plan = world.plan()
    assert bound(plan) == {}
    never = "gang default/g: never fits: the largest blockLayer has room for 4 members, 5 are required."
    offer = "gang default/g: needed 5, available in blockLayer: s1/b2: 4, s0/b0: 3, s0/b1: 2, s1/b3: 1."
    assert messages(plan)["p-0"] == f"{never} 0/6 nodes are available: 6 node(s) cannot hold the whole gang. {offer}"


def test_a_short_last_pipeline_group_leaves_every_group_whole() -> None:
    world = World().add(TWO_LAYERS, nodes_of("s{b0: a0 a1 a2; b1: c0 c1}"), group("g", 5, wish(PREFER, pp=2)))
    places = bound(world.add(gang_pods("g", 5)).plan())
    block = {name: place[0] for name, place in places.items()}
    assert block["p-0"] == block["p-1"] and block["p-2"] == block["p-3"]


def test_messages_of_section_6() -> None:
    blocks = "s0{b0: n1 n2 n3 n4; b1: n5 n6 n7} s1{b3: n8 n9 n10 n11; b4: n12 n13 n14 n15}"
    world = World().add(TWO_LAYERS, nodes_of(blocks), group("g", 5, wish(MUST)), gang_pods("g", 5))
    assert messages(world.plan())["p-4"] == (
        "gang default/g: never fits: the largest blockLayer has room for 4 members, 5 are required. "
        "0/15 nodes are available: 15 node(s) cannot hold the whole gang. "
        "gang default/g: needed 5, available in blockLayer: s0/b0: 4, s1/b3: 4, s1/b4: 4, s0/b1: 3."
    )
    rows = "s{b0: a1 a2 a3 a4; b1: c1 c2 c3 c4; b2: d1 d2 d3 d4}"
    world = World().add(TWO_LAYERS, nodes_of(rows), group("g", 9, wish(PREFER, multiple={"blockLayer": 3})))
    world.add(pod("r", at="a1"), pod("s", at="a2"))
    assert messages(world.add(gang_pods("g", 9)).plan())["p-0"] == (
        "gang default/g: needed 9, available in the cluster: 6; podCountMultiple blockLayer=3. "
        "0/12 nodes are available: 10 node(s) cannot hold the whole gang, 2 Insufficient cpu."
    )
    world = World().add(TWO_LAYERS, nodes_of("s{b0: a0 a1 a2 a3; b1: c0 c1 c2 c3 c4}"), group("g", 4, wish(MUST)))
    assert messages(world.add(gang_pods("g", 6)).run())["p-5"] == (
        "gang default/g: minMember 4 met, 1 more waiting for room; "
        "gang default/g: needed 1, available in blockLayer: s/b1: 0. "
        "0/9 nodes are available: 4 node(s) cannot hold the whole gang, 5 Insufficient cpu."
    )
