# SPDX-License-Identifier: Apache-2.0
"""What would help a pod that fits nowhere: the changes that place it, the one that asks least first."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from koordpy.api.objects import ContainerPort, NodeSpec, Taint, TopologySpreadConstraint, Wire
from tests.planning.node_rules import anti, asked, near, node, pod, term


def cordoned(name: str) -> Wire:
    return replace(node(name), spec=NodeSpec(unschedulable=True))


def tainted(name: str, key: str) -> Wire:
    return replace(node(name), spec=NodeSpec(taints=[Taint(key=key, effect="NoSchedule")]))


def with_port(name: str, at: str = "") -> Wire:
    made = pod(name, at=at)
    ports = [ContainerPort(container_port=80, host_port=80)]
    return replace(made, spec=replace(made.spec, containers=[replace(made.spec.containers[0], ports=ports)]))


def spread_over(key: str) -> TopologySpreadConstraint:
    return TopologySpreadConstraint(max_skew=1, topology_key=key, when_unsatisfiable="DoNotSchedule")


CASES: dict[str, tuple[Sequence[Wire], list[str]]] = {
    "the nearest nodes first": (
        [node("n1:1"), node("n2:3"), pod("p", cpu="4")],
        [
            "it requested 3 cpu (it requests 4)",
        ],
    ),
    "what is free beside what is missing": (
        [node("n1:4"), pod("a", at="n1", cpu="3"), pod("p", cpu="2")],
        [
            "node n1 had 1 more cpu free (now 1), for example after pod default/a completed",
            "its priority were 1 (it is 0, and no PriorityClass is high enough): 1 pod would be evicted for it",
            "it requested 1 cpu (it requests 2)",
            "there were 1 more node with 4 cpu in the cluster, like node n1",
        ],
    ),
    "every ground with its number": (
        [cordoned("n1"), cordoned("n2"), tainted("n3", "t"), pod("p")],
        [
            "it tolerated taint t:NoSchedule",
            "node n1 were uncordoned",
        ],
    ),
    "a ground that ends with other pods": (
        [node("n1:4"), with_port("a", "n1"), with_port("p")],
        [
            "host port 80 were removed",
            "pod default/a completed on node n1",
            "its priority were 1 (it is 0, and no PriorityClass is high enough): 1 pod would be evicted for it",
            "there were 1 more node with 4 cpu in the cluster, like node n1",
        ],
    ),
    "pods that are not there": (
        [node("n1:4"), pod("p", affinity=near(term("kubernetes.io/hostname", {"app": "db"})))],
        [
            "the required pod affinity over kubernetes.io/hostname were removed",
        ],
    ),
    "what the pod itself asks for": (
        [node("n1:4"), pod("p", requests={"koordinator.sh/gpu": "50"})],
        [],
    ),
    "all that a node has against the pod": (
        [
            node("n1:4"),
            pod("a", at="n1", cpu="4", labels={"app": "p"}),
            cordoned("n2:1"),
            pod("p", cpu="2", affinity=anti(term("kubernetes.io/hostname", {"app": "p"}))),
        ],
        [
            "node n1 had 2 more cpu free (now 0), for example after pod default/a completed",
            "its priority were 1 (it is 0, and no PriorityClass is high enough): 1 pod would be evicted for it",
            "there were 1 more node with 4 cpu in the cluster, like node n1",
        ],
    ),
    "more than a node has, from pods that were bound past it": (
        [node("n1:4"), pod("a", at="n1", cpu="5"), pod("p", cpu="2")],
        [
            "node n1 had 3 more cpu free (now 0), for example after pod default/a completed",
            "its priority were 1 (it is 0, and no PriorityClass is high enough): 1 pod would be evicted for it",
            "there were 1 more node with 4 cpu in the cluster, like node n1",
        ],
    ),
    "no label to spread over": (
        [node("n1:4"), pod("p", topology_spread_constraints=[spread_over("rack")])],
        [
            "the topology spread constraint over rack were removed",
        ],
    ),
    "figures and grounds together": (
        [
            node("n1:1"),
            node("n2:4"),
            pod("a", at="n2", labels={"app": "p"}),
            pod("p", cpu="2", affinity=anti(term("kubernetes.io/hostname", {"app": "p"}))),
        ],
        [
            "the required pod anti-affinity over kubernetes.io/hostname were removed",
            "pod default/a completed on node n2",
            "its priority were 1 (it is 0, and no PriorityClass is high enough): 1 pod would be evicted for it",
            "there were 1 more node with 4 cpu in the cluster, like node n2",
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_suggestion_places_the_pod(name: str) -> None:
    objects, expected = CASES[name]
    assert list(asked(objects).would_fit_if) == expected


def test_a_pod_that_fits_misses_nothing() -> None:
    assert asked([node("n1"), cordoned("n2"), pod("p")]).would_fit_if == ()
