"""What would help a pod that fits nowhere: figures of the nearest nodes, then every other ground with its remedy."""

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
            "node n2 had cpu of 4 (it has 3 in all)",
            "node n1 had cpu of 4 (it has 1 in all)",
        ],
    ),
    "what is free beside what is missing": (
        [node("n1:4"), pod("a", at="n1", cpu="3"), pod("p", cpu="2")],
        ["node n1 had 1 more cpu (free 1)"],
    ),
    "every ground with its number": (
        [cordoned("n1"), cordoned("n2"), tainted("n3", "t"), pod("p")],
        [
            "1 node(s) had untolerated taint(s): tolerate the taint, or take it from the nodes (t:NoSchedule)",
            "2 node(s) were unschedulable: uncordon them",
        ],
    ),
    "a ground that ends with other pods": (
        [node("n1:4"), with_port("a", "n1"), with_port("p")],
        [
            "1 node(s) didn't have free ports for the requested pod ports: "
            "ask for another host port, or wait for the pod that has it"
        ],
    ),
    "pods that are not there": (
        [node("n1:4"), pod("p", affinity=near(term("kubernetes.io/hostname", {"app": "db"})))],
        ["1 node(s) didn't match pod affinity rules: relax the rule, or wait until the pods it is about run or end"],
    ),
    "what the pod itself asks for": (
        [node("n1:4"), pod("p", requests={"koordinator.sh/gpu": "50"})],
        ["this were mended: fractional GPUs are not supported"],
    ),
    "all that a node has against the pod": (
        [
            node("n1:4"),
            pod("a", at="n1", cpu="4", labels={"app": "p"}),
            cordoned("n2:1"),
            pod("p", cpu="2", affinity=anti(term("kubernetes.io/hostname", {"app": "p"}))),
        ],
        [
            "node n1 had 2 more cpu (free 0); and node(s) didn't match pod anti-affinity rules: "
            "relax the rule, or wait until the pods it is about run or end",
            "1 node(s) were unschedulable: uncordon them; and Insufficient cpu: ask for less, or for larger nodes",
        ],
    ),
    "more than a node has, from pods that were bound past it": (
        [node("n1:4"), pod("a", at="n1", cpu="5"), pod("p", cpu="2")],
        ["node n1 had 3 more cpu (free 0)"],
    ),
    "no label to spread over": (
        [node("n1:4"), pod("p", topology_spread_constraints=[spread_over("rack")])],
        [
            "1 node(s) didn't match pod topology spread constraints (missing required label): "
            "label the nodes, or spread over a key that they have"
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
            "node n1 had cpu of 2 (it has 1 in all)",
            "1 node(s) didn't match pod anti-affinity rules: "
            "relax the rule, or wait until the pods it is about run or end",
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_miss_has_its_figure_or_remedy(name: str) -> None:
    objects, expected = CASES[name]
    assert list(asked(objects).would_fit_if) == expected


def test_a_pod_that_fits_misses_nothing() -> None:
    assert asked([node("n1"), cordoned("n2"), pod("p")]).would_fit_if == ()
