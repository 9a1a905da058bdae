# SPDX-License-Identifier: Apache-2.0
"""`koordpy explain` on the mistakes that are made every day: what is wrong is named, and what would help does help."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api.objects import Node, SchedulingGate, Taint, Toleration
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.config.node_failures import Autoscaling
from koordpy.explain.explanation import explain
from tests.scenarios.cluster import TWO_LAYERS, World, bound, gang_pods, group, node, nodes_of, pod, wish

OURS = "koord-scheduler"
GATES = [SchedulingGate(name="kueue.x-k8s.io/admission"), SchedulingGate(name="mine")]


def cordoned(text: str) -> Node:
    made = node(text)
    return replace(made, spec=replace(made.spec, unschedulable=True))


def tainted(text: str, *taints: tuple[str, str, str]) -> Node:
    made = node(text)
    given = [Taint(key=key, value=value, effect=effect) for key, value, effect in taints]
    return replace(made, spec=replace(made.spec, taints=given))


def said(*objects: Any, name: str = "p") -> tuple[str, tuple[str, ...]]:
    found = explain(World().add(*objects).snapshot(), None, f"default/{name}")
    return found.message, found.would_fit_if


@pytest.mark.parametrize(
    ("settings", "message", "misses"),
    [
        (
            {"scheduler": "koordscheduler"},
            f"pod has schedulerName koordscheduler, koordpy handles {OURS}, did you mean {OURS}?",
            (f"its schedulerName were {OURS}",),
        ),
        (
            {"scheduling_gates": GATES},
            "pod has scheduling gates: kueue.x-k8s.io/admission, mine",
            ("its scheduling gates were removed: kueue.x-k8s.io/admission, mine",),
        ),
        (
            {"scheduling_gates": GATES, "scheduler": "other"},
            f"pod has schedulerName other, koordpy handles {OURS}",
            (f"its schedulerName were {OURS}, and its scheduling gates were removed: kueue.x-k8s.io/admission, mine",),
        ),
        ({"at": "n1"}, "pod is bound to n1", ()),
        ({"phase": "Failed"}, "pod is Failed", ()),
    ],
)
def test_a_pod_that_is_left_alone_is_told_why(settings: dict[str, Any], message: str, misses: tuple[str, ...]) -> None:
    if settings.get("phase"):
        # a finished pod is known as long as it names a gang
        settings = {**settings, "gang": "g"}
    assert said(node("n1"), pod("p", **settings)) == (message, misses)


def test_the_taints_are_named_that_a_pod_would_have_to_tolerate() -> None:
    gpu, busy = ("nvidia.com/gpu", "", "NoSchedule"), ("team", "a", "NoExecute")
    soft = ("soft", "", "PreferNoSchedule")
    nodes = [tainted("n1", gpu, soft), tainted("n2", gpu, busy)]
    first = "it tolerated taint nvidia.com/gpu:NoSchedule"
    assert said(nodes, pod("p"))[1] == (first,)  # the other node has one taint more
    assert said(nodes[1:], pod("p"))[1] == ("it tolerated taints nvidia.com/gpu:NoSchedule and team=a:NoExecute",)
    tolerant = pod("p", tolerations=[Toleration(key="team", operator="Exists")])
    assert said(nodes, tolerant)[1][0] == first
    # no kubelet starts a pod on a node that is not ready, whatever the pod tolerates
    broken = tainted("n3", ("node.kubernetes.io/not-ready", "", "NoSchedule"))
    assert not [line for line in said(broken, pod("p"))[1] if "tolerated" in line]
    many = [tainted(f"n{i}", (f"key-{i}", "", "NoSchedule")) for i in range(5)]
    assert said(many, pod("p"))[1][:3] == tuple(f"it tolerated taint key-{i}:NoSchedule" for i in range(3))


def test_a_label_that_no_node_has_is_named_with_those_that_there_are() -> None:
    nodes = [node(f"n{i}", {"gpu": kind}) for i, kind in enumerate(("a100", "h100", "h100"))]
    for selector, lines in (
        ({"gpu": "H100"}, ["node selector gpu=H100 were removed (no node has it; nodes have a100 and h100)"]),
        ({"gpus": "h100"}, ["node selector gpus=h100 were removed (no node has this label)"]),
        ({"gpu": "H100", "zone": "a"}, ["its node selector were removed"]),  # no single label helps
        # each is there, and no node has both
        (
            {"gpu": "a100", "kubernetes.io/hostname": "n1"},
            ["node selector gpu=a100 were removed", "node selector kubernetes.io/hostname=n1 were removed"],
        ),
    ):
        found = said(nodes, pod("p", node_selector=selector))[1]
        assert [line for line in found if "node selector" in line][: len(lines)] == lines
        # a node that has another value is not to be labelled otherwise
        assert [line for line in found if "had label" in line] == (
            ["node n0 had label gpus=h100"] if selector == {"gpus": "h100"} else []
        )


def test_no_new_node_is_suggested_where_none_would_help() -> None:
    nodes = nodes_of("s{b1: n1:1; b2: n2:1}")
    members = [pod("p-0", gang="g", at="n1"), pod("p-1", gang="g")]
    objects = [TWO_LAYERS, nodes, group("g", 1, wish({"blockLayer": "Must"})), *members]
    for fixed in ((), ("blockLayer",)):
        config = KoordpyConfiguration(autoscaling=Autoscaling(fixed_layers=fixed))
        found = explain(World().add(*objects).snapshot(), config, "default/p-1")
        assert any("more node" in line for line in found.would_fit_if) is not bool(fixed)
        assert ("no new node would help" in found.message) is bool(fixed)


def test_a_gang_that_is_short_of_room_hears_of_nodes_that_are_closed() -> None:
    gang = [group("g", 3), *gang_pods("g", 3)]
    closed = [cordoned("n3"), tainted("n4", ("k", "v", "NoSchedule"))]
    assert said(node("n1"), node("n2"), closed, gang, name="p-0")[1] == (
        "it tolerated taint k=v:NoSchedule",
        "node n3 were uncordoned",
        "minMember of PodGroup default/g were 2 (it is 3)",
        "there were 1 more node with 1 cpu in the cluster, like node n1",
    )
    assert said(node("n1"), node("n2"), node("n5"), closed, gang, name="p-0")[1] == ()
    open_again = World().add(node("n1"), node("n2"), node("n3"), closed[1], gang)
    assert len(bound(open_again.plan())) == 3


@pytest.mark.parametrize(
    ("minimum", "members", "first"),
    [
        (4, 4, ["podCountMultiple blockLayer=3 were removed"]),
        (4, 5, ["podCountMultiple blockLayer=3 were removed"]),
        # six of them would do on larger blocks
        (4, 6, ["podCountMultiple blockLayer=3 were removed", "there were 2 more nodes"]),
        (3, 3, ["podCountMultiple blockLayer=3 were removed", "there were 1 more node "]),
    ],
)
def test_no_room_helps_a_number_that_its_multiple_does_not_divide(minimum: int, members: int, first: list[str]) -> None:
    nodes = [node(f"n{i}:2", {"block": f"b{i}", "spine": "s"}) for i in range(3)]
    notes = wish({"blockLayer": "Prefer"}, multiple={"blockLayer": 3})
    misses = said(TWO_LAYERS, nodes, group("g", minimum, notes), gang_pods("g", members), name="p-0")[1]
    assert len([line for line in misses if any(line.startswith(text) for text in first)]) >= len(first)
    assert len(first) > 1 or list(misses) == first


def test_a_further_member_is_advised_where_it_makes_a_multiple() -> None:
    nodes = [node(f"n{i}:6", {"block": f"b{i}", "spine": "s"}) for i in range(2)]
    notes = wish({"blockLayer": "Must"}, multiple={"blockLayer": 3})
    misses = said(TWO_LAYERS, nodes, group("g", 5, notes), gang_pods("g", 5), name="p-0")[1]
    assert "it had 6 members (it has 5, which is not a multiple of 3)" in misses
    six = [group("g", 5, notes), *gang_pods("g", 6)]
    assert len(bound(World().add(TWO_LAYERS, *nodes, *six).plan())) == 6


def test_a_late_member_is_told_of_room_beside_its_siblings_alone() -> None:
    nodes = [node("n0:1", {"block": "b0", "spine": "s"}), node("n1:1", {"block": "b1", "spine": "s"})]
    late = gang_pods("g", 2)[1]
    beside = pod("g-0", gang="g", at="n0")
    other = pod("other", at="n1")
    gang = [group("g", 1, wish({"blockLayer": "Must"})), beside, late, other]
    found = said(TWO_LAYERS, nodes, gang, name=late.metadata.name)[1]
    assert "there were 1 more node with 1 cpu in blockLayer s/b0, like node n0" in found
    assert not [line for line in found if "s/b1" in line or "default/other" in line]


@pytest.mark.parametrize(
    ("slots", "told"),
    [
        # two blocks of two and one: three fit both together, and the multiple holds in neither
        (
            (2, 1),
            (
                "the gather strategy for blockLayer were PreferGather instead of MustGather, "
                "and podCountMultiple blockLayer=3 were removed",
            ),
        ),
        ((3, 3), ("the gather strategy for blockLayer were PreferGather instead of MustGather",)),
    ],
)
def test_a_wish_is_named_only_where_giving_it_up_helps(slots: tuple[int, int], told: tuple[str, ...]) -> None:
    size = 3 if sum(slots) == 3 else 6
    nodes = [node(f"n{i}:{number}", {"block": f"b{i}", "spine": "s"}) for i, number in enumerate(slots)]
    gang = [group("g", size, wish({"blockLayer": "Must"}, multiple={"blockLayer": 3})), *gang_pods("g", size)]
    assert [miss for miss in said(TWO_LAYERS, nodes, gang, name="p-0")[1] if "were PreferGather" in miss] == list(told)


NOTE = "gang.scheduling.koordinator.sh/networkTopologyAware"


@pytest.mark.parametrize(
    ("wished", "lines"),
    [
        (
            {"gatherStrategy": [{"layer": "blokLayer", "strategy": "MustGather"}]},
            ("gatherStrategy[0].layer were blockLayer",),
        ),
        (
            {"gatherStrategy": [{"layer": "blockLayer", "strategy": "MustGathr"}]},
            ("gatherStrategy[0].strategy were MustGather",),
        ),
        (
            {"gatherStratgy": [{"layer": "blokLayer", "strategy": "MustGathr"}]},
            (
                "gatherStratgy were named gatherStrategy, and gatherStrategy[0].strategy were MustGather"
                ", and gatherStrategy[0].layer were blockLayer",
            ),
        ),
        (
            {"gather-Strategy": [{"layer": "blockLayer", "strategy": "MustGather"}]},
            ("gather-Strategy were named gatherStrategy",),
        ),
        ({"gatherStrategy": [{"layer": "blockLayer", "stra.tegy": "MustGather"}]}, ()),  # no path leads to the key
        ({"gatherStrategy": [{"layr": "zzz", "layer": "blockLayer", "strategy": "MustGather"}]}, ()),  # has both keys
        ({"gatherStrategy": [{"layer": "zzz", "strategy": "MustGather"}]}, ()),
        ({"gatherStrategy": [{"layer": "blockLayer", "strategy": "Often"}]}, ()),
    ],
)
def test_a_misspelt_topology_annotation_is_corrected(wished: dict[str, Any], lines: tuple[str, ...]) -> None:
    nodes = nodes_of("s1{b1: n1 n2}")
    gang = [group("g", 2, {NOTE: json.dumps(wished)}), *gang_pods("g", 2)]
    assert said(TWO_LAYERS, nodes, gang, name="p-0")[1] == lines
    # a correction with which the gang does not fit is not suggested
    assert said(TWO_LAYERS, nodes_of("s1{b1: n1; b2: n2}"), gang, name="p-0")[1] == ()


@pytest.mark.parametrize(
    ("nodes", "lines"),
    [
        (
            3,
            (
                "1 more member of gang default/g existed (minMember is 3, 2 members exist)",
                "minMember of PodGroup default/g were 2 (it is 3)",
            ),
        ),
        (2, ("minMember of PodGroup default/g were 2 (it is 3)",)),
        (1, ("minMember of PodGroup default/g were 1 (it is 3)",)),
    ],
)
def test_missing_members_are_suggested_if_there_is_room_for_them(nodes: int, lines: tuple[str, ...]) -> None:
    objects = [*(node(f"n{i}:1") for i in range(nodes)), group("g", 3), *gang_pods("g", 2)]
    assert said(*objects, name="p-0")[1][: len(lines)] == lines


def test_a_domain_without_the_bound_members_says_where_they_are() -> None:
    """A member of a gang in b1 is missing, b1 is full, and b2 has slots."""
    must = {NOTE: json.dumps({"gatherStrategy": [{"layer": "blockLayer", "strategy": "MustGather"}]})}
    busy = [pod("p-0", at="n1", gang="g"), pod("x", at="n2")]
    objects = [TWO_LAYERS, *nodes_of("s1{b1: n1 n2; b2: n3 n4}"), group("g", 2, must), *busy, pod("p-1", gang="g")]
    found = explain(World().add(*objects).snapshot(), None, "default/p-1").domains
    reasons = {one.name: one.reason for one in found if one.layer == "blockLayer"}
    assert reasons == {"s1/b1": "room for 0 of 1 member", "s1/b2": "room for 2 members, but bound members are in s1/b1"}
