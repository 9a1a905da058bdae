# SPDX-License-Identifier: Apache-2.0
"""NodePorts (kube-parity.md 2.4), alone, within a round and among the members of a gang."""

from typing import Any

import pytest

from koordpy.api.objects import Container, ContainerPort, Pod
from tests.planning.node_rules import leaving, node, planned, pod, reasons
from tests.scenarios.cluster import bound, group, messages

TAKEN = "U: node(s) didn't have free ports for the requested pod ports"


def with_port(name: str, *ports: tuple[str, int, str], init: str = "", **settings: Any) -> Pod:
    """A pod with host ports (protocol, port, hostIP); init: the restart policy of an init container that has them."""
    from msgspec.structs import replace

    wire = pod(name, **settings)
    listed = [ContainerPort(container_port=n, host_port=n, protocol=p, host_ip=ip) for p, n, ip in ports]
    if init:
        policy = init if init != "ordinary" else ""
        spec = replace(wire.spec, init_containers=[Container(name="i", ports=listed, restart_policy=policy)])
    else:
        spec = replace(wire.spec, containers=[replace(wire.spec.containers[0], ports=listed)])
    return replace(wire, spec=spec)


CASES = {
    "the same port": (("TCP", 80, ""), ("TCP", 80, ""), TAKEN),
    "another port": (("TCP", 80, ""), ("TCP", 81, ""), "fits"),
    "another protocol": (("TCP", 80, ""), ("UDP", 80, ""), "fits"),
    "no protocol is TCP": (("", 80, ""), ("TCP", 80, ""), TAKEN),
    "two addresses": (("TCP", 80, "10.0.0.1"), ("TCP", 80, "10.0.0.2"), "fits"),
    "one address": (("TCP", 80, "10.0.0.1"), ("TCP", 80, "10.0.0.1"), TAKEN),
    "the wildcard there": (("TCP", 80, "0.0.0.0"), ("TCP", 80, "10.0.0.2"), TAKEN),
    "the wildcard asked for": (("TCP", 80, "10.0.0.1"), ("TCP", 80, ""), TAKEN),
    "the IPv6 wildcard is an address like any other": (("TCP", 80, "::"), ("TCP", 80, "10.0.0.1"), "fits"),
}


@pytest.mark.parametrize(("held", "wanted", "word"), CASES.values(), ids=CASES)
def test_two_ports_conflict_by_protocol_port_and_address(held: Any, wanted: Any, word: str) -> None:
    objects = [node("n1:4"), with_port("w", held, at="n1"), with_port("p", wanted)]
    assert reasons(objects) == {"n1": word}


@pytest.mark.parametrize(("init", "word"), [("Always", TAKEN), ("ordinary", "fits")])
def test_ports_of_restartable_init_containers_count(init: str, word: str) -> None:
    objects = [node("n1:4"), with_port("w", ("TCP", 80, ""), at="n1"), with_port("p", ("TCP", 80, ""), init=init)]
    assert reasons(objects) == {"n1": word}


def test_a_terminating_pod_holds_its_ports_and_a_finished_one_does_not() -> None:
    nodes = [node("n1:4"), node("n2:4")]
    held = leaving(with_port("w", ("TCP", 80, ""), at="n1"))
    done = with_port("d", ("TCP", 80, ""), at="n2", phase="Succeeded")
    assert reasons([*nodes, held, done, with_port("p", ("TCP", 80, ""))]) == {"n1": TAKEN, "n2": "fits"}


def test_ports_come_before_room_and_after_taints() -> None:
    full = [node("n1:1"), with_port("w", ("TCP", 80, ""), at="n1"), with_port("p", ("TCP", 80, ""))]
    assert reasons(full) == {"n1": TAKEN}


def test_pods_of_one_round_do_not_share_a_port() -> None:
    plan = planned([node("n1:4"), node("n2:4"), *(with_port(f"p-{i}", ("TCP", 80, ""), created=i) for i in range(3))])
    assert sorted(bound(plan).values()) == ["n1", "n2"]
    assert messages(plan) == {
        "p-2": "0/2 nodes are available: 2 node(s) didn't have free ports for the requested pod ports."
    }


def test_a_pod_whose_ports_count_keeps_none_back_whose_ports_do_not() -> None:
    held = with_port("w", ("TCP", 80, ""), at="n1")
    refused = with_port("p", ("TCP", 80, ""), created=1)
    in_an_init_container = with_port("q", ("TCP", 80, ""), init="ordinary", created=2)
    for other in (in_an_init_container, with_port("q", ("TCP", 0, ""), created=2)):
        assert bound(planned([node("n1:4"), held, refused, other])) == {"q": "n1"}


GANGS = {
    "equal members need a node each": ([("TCP", 80, "")] * 3, 3, 3),
    "two do not fit on one node": ([("TCP", 80, "")] * 2, 1, 0),
    "members of different ports share a node": ([("TCP", 80, ""), ("TCP", 81, "")], 1, 2),
    "addresses share a node": ([("TCP", 80, "10.0.0.1"), ("TCP", 80, "10.0.0.2")], 1, 2),
    "the wildcard shares with none": ([("TCP", 80, "10.0.0.1"), ("TCP", 80, "10.0.0.2"), ("TCP", 80, "")], 1, 0),
    "the wildcard has a node of its own": ([("TCP", 80, "10.0.0.1"), ("TCP", 80, "10.0.0.2"), ("TCP", 80, "")], 2, 3),
}


@pytest.mark.parametrize(("ports", "nodes", "placed"), GANGS.values(), ids=GANGS)
def test_members_of_a_gang_hold_their_ports_in_the_final_state(ports: Any, nodes: int, placed: int) -> None:
    members = [with_port(f"p-{i}", port, gang="g") for i, port in enumerate(ports)]
    plan = planned([*(node(f"n{i}:8") for i in range(nodes)), group("g", len(ports)), *members])
    assert len(bound(plan)) == placed
    used = [(at, ports[int(name[2:])]) for name, at in bound(plan).items()]
    assert len(set(used)) == len(used)
