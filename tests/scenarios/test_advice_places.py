# SPDX-License-Identifier: Apache-2.0
"""`koordpy explain` names the place where new nodes, ended pods or labels help, and the smallest number of them."""

from typing import Any

import pytest
from msgspec import structs

from koordpy.api import keys
from koordpy.api.objects import (
    Affinity,
    Container,
    ContainerPort,
    LabelSelector,
    OwnerReference,
    PodAffinity,
    PodAffinityTerm,
    TopologySpreadConstraint,
)
from koordpy.explain.explanation import explain
from tests.scenarios.cluster import TWO_LAYERS, World, bound, gang_pods, group, node, pod, wish

APP = {"app": "a"}
GATHERED = wish({"blockLayer": "Must"})


def told(*objects: Any, name: str = "p-0") -> tuple[str, ...]:
    return explain(World().add(TWO_LAYERS, *objects).snapshot(), None, f"default/{name}").would_fit_if


def blocks(*slots: int, size: int = 1) -> list[Any]:
    """Blocks b0, b1 and so on of as many nodes as slots say."""
    return [
        node(f"n{i}-{j}:{size}", {"block": f"b{i}", "spine": "s"}) for i, many in enumerate(slots) for j in range(many)
    ]


def test_new_nodes_are_placed_where_a_spread_needs_them() -> None:
    apart = TopologySpreadConstraint(
        max_skew=1, topology_key="block", when_unsatisfiable="DoNotSchedule", label_selector=LabelSelector(APP)
    )
    gang = [group("g", 6), *gang_pods("g", 6, labels=APP, topology_spread_constraints=[apart])]
    assert len(bound(World().add(TWO_LAYERS, blocks(2, 2, 2), gang).plan())) == 6
    lines = told(blocks(1, 3, 3), gang)
    assert [line for line in lines if "more node" in line] == [
        "there were 1 more node with 1 cpu in blockLayer s/b0, like node n0-0"
    ]


def test_new_nodes_are_placed_anywhere_where_no_rule_looks_at_places() -> None:
    lines = told(blocks(1, 1), group("g", 4), gang_pods("g", 4))
    assert lines == (
        "minMember of PodGroup default/g were 2 (it is 4)",
        "there were 2 more nodes with 1 cpu in the cluster, like node n0-0",
    )


def test_new_nodes_for_pods_without_requests_have_room_for_pods() -> None:
    lines = told(node("n:4", pods="1"), group("g", 2), gang_pods("g", 2, requests={"cpu": "0"}))
    assert lines[-1] == "there were 1 more node with room for 1 pod in the cluster, like node n"


@pytest.mark.parametrize("is_mirror", [True, False])
def test_new_nodes_run_the_daemons_of_the_node_that_they_are_like(is_mirror: bool) -> None:
    """Nodes of 4 cpu, of which a pod of the DaemonSet uses 1: one member of 2 cpu each, not two."""
    agent = pod("agent-n", at="n", annotations={keys.MIRROR: "x"} if is_mirror else {})
    if not is_mirror:
        owner = OwnerReference(kind="DaemonSet", name="agent", uid="u", api_version="apps/v1", controller=True)
        agent = structs.replace(agent, metadata=structs.replace(agent.metadata, owner_references=[owner]))
    gang = [group("g", 4), *gang_pods("g", 4, cpu="2")]
    lines = told(node("n:4"), agent, gang)
    assert lines[-1] == "there were 3 more nodes with 4 cpu in the cluster, like node n"
    assert told(node("n:4"), gang)[-1] == "there were 1 more node with 4 cpu in the cluster, like node n"


def test_new_nodes_have_the_host_ports_of_daemons() -> None:
    """A port that the DaemonSet of each node uses is not free on a new node either."""
    port = Container(name="c", image="i", ports=[ContainerPort(container_port=80, host_port=80)])
    owner = OwnerReference(kind="DaemonSet", name="agent", uid="u", api_version="apps/v1", controller=True)
    agent, own = pod("agent-n", at="n"), pod("p")
    agent = structs.replace(agent, spec=structs.replace(agent.spec, containers=[port]))
    own = structs.replace(own, spec=structs.replace(own.spec, containers=[port]))
    agent = structs.replace(agent, metadata=structs.replace(agent.metadata, owner_references=[owner]))
    assert told(node("n:4"), agent, own, name="p") == ("host port 80 were removed",)


def test_a_place_that_an_affinity_forbids_is_not_anywhere() -> None:
    near = PodAffinityTerm(label_selector=LabelSelector({"app": "x"}), topology_key="block")
    beside = Affinity(pod_affinity=PodAffinity(required=[near]))
    busy = [pod("x", at="n1-0", labels={"app": "x"}), pod("y", at="n0-0")]
    lines = told(blocks(1, 1), busy, pod("p", affinity=beside), name="p")
    assert [line for line in lines if "more node" in line] == [
        "there were 1 more node with 1 cpu in blockLayer s/b1, like node n1-0"
    ]


@pytest.mark.parametrize(
    ("slots", "line"),
    [
        ((3, 2), "there were 1 more node with 1 cpu in blockLayer s/b1, like node n1-0"),
        (
            (2, 2),
            "there were 1 more node with 1 cpu in blockLayer s/b0 and 1 in blockLayer s/b1, like nodes n0-0 and n1-0",
        ),
        (
            (2, 1),
            "there were 1 more node with 1 cpu in blockLayer s/b0 and 2 in blockLayer s/b1, like nodes n0-0 and n1-0",
        ),
        ((2, 3, 1), "there were 1 more node with 1 cpu in blockLayer s/b0, like node n0-0"),
    ],
)
def test_each_multiple_gets_its_nodes_in_its_domain(slots: tuple[int, ...], line: str) -> None:
    notes = wish({"blockLayer": "Prefer"}, multiple={"blockLayer": 3})
    lines = told(blocks(*slots), group("g", 6, notes), gang_pods("g", 6))
    assert [one for one in lines if "more node" in one] == [line]


def test_the_fewest_pods_end_over_several_domains() -> None:
    notes = wish({"blockLayer": "Prefer"}, multiple={"blockLayer": 3})
    busy = [pod(f"b-{i}-{j}", at=f"n{i}-{j}") for i in range(3) for j in range(2)]
    lines = told(blocks(4, 4, 4), busy, group("g", 6, notes), gang_pods("g", 6))
    ending = [line for line in lines if "completed" in line]
    assert len(ending) == 1
    assert ending[0].count("default/b-") == 2


def test_a_gang_with_bound_members_is_told_of_their_domain_alone() -> None:
    late = gang_pods("g", 3)[2]
    beside = [pod("p-0", gang="g", at="n2-0"), pod("p-1", gang="g", at="n2-1")]
    others = [pod("other", at="n2-2"), pod("away", at="n0-0")]
    lines = told(blocks(3, 3, 3), group("g", 3, GATHERED), beside, late, others, name="p-2")
    assert "blockLayer s/b2 had room for 1 more member, for example after pod default/other completed" in lines
    assert "there were 1 more node with 1 cpu in blockLayer s/b2, like node n2-0" in lines
    assert not [line for line in lines if "s/b0" in line or "s/b1" in line or "default/away" in line]


def test_linked_gangs_are_named_that_give_up_their_goal_together() -> None:
    links = {"gang.scheduling.koordinator.sh/groups": '["default/a","default/b"]'}
    gangs = [group("a", 2, {**GATHERED, **links}), group("b", 2, {**GATHERED, **links})]
    pods = [*gang_pods("a", 2), *gang_pods("b", 2, prefix="q")]
    lines = told(blocks(2, 2), gangs, pods)
    assert [line for line in lines if "PreferGather" in line] == [
        "the gather strategy for blockLayer of gangs default/a and default/b were PreferGather instead of MustGather"
    ]


def test_a_node_without_the_label_of_a_layer_may_join_a_domain() -> None:
    lone = node("n9:1", {"spine": "s"})
    lines = told(blocks(2, 1), lone, group("g", 3, GATHERED), gang_pods("g", 3))
    assert "node n9 had label block=b0" in lines
    assert not [line for line in told(blocks(2, 1), group("g", 3, GATHERED), gang_pods("g", 3)) if "label" in line]
