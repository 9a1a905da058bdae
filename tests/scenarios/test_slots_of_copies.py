# SPDX-License-Identifier: Apache-2.0
"""Slots are copies of the reference pod that fit alone, one after the other (gang-network.md 5).

What copies are to each other counts, what the other members would let them do does not.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api.objects import (
    Affinity,
    ContainerPort,
    LabelSelector,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    TopologySpreadConstraint,
)
from koordpy.explain.explanation import explain
from tests.scenarios.cluster import TWO_LAYERS, World, bound, gang_pods, group, messages, node, nodes_of, pod, wish

WEB = {"app": "web"}
SELECTOR = LabelSelector(match_labels=WEB)
PREFER = wish({"blockLayer": "Prefer"})


def apart(key: str) -> dict[str, Any]:
    term = PodAffinityTerm(topology_key=key, label_selector=SELECTOR)
    return {"affinity": Affinity(pod_anti_affinity=PodAffinity(required=[term]))}


def spread(key: str) -> dict[str, Any]:
    one = TopologySpreadConstraint(
        max_skew=1, topology_key=key, when_unsatisfiable="DoNotSchedule", label_selector=SELECTOR
    )
    return {"topology_spread_constraints": [one]}


def said(cluster: str, number: int, **settings: Any) -> str:
    """What the first of `number` members is told that do not fit."""
    world = World().add(TWO_LAYERS, nodes_of(cluster), group("g", number, PREFER))
    return messages(world.add(gang_pods("g", number, labels=WEB, **settings)).plan())["p-0"]


def test_of_pods_that_keep_out_of_each_others_block_each_node_takes_one_copy() -> None:
    text = said("s{b0: n1:4 n2:4; b1: n3:4}", 4, **apart("block"))
    assert text.endswith(" gang default/g: needed 4, available in the cluster: 3; anti-affinity over block.")


@pytest.mark.parametrize("number", [3, 5])
def test_a_node_without_the_label_takes_copies_by_room_whatever_the_size_of_the_gang(number: int) -> None:
    world = World().add(TWO_LAYERS, node("n1:8"), node("n2:2", {"rack": "r"}))
    world.add(group("g", number, wish({"nodeLayer": "Must"}, multiple={"nodeLayer": 2})))
    world.add(gang_pods("g", number, labels=WEB, **apart("rack")))
    text = messages(world.plan())["p-0"]
    assert f"needed {number}, available in nodeLayer: n1/n1/n1: 8, n2/n2/n2: 0" in text


def test_of_pods_that_are_spread_a_node_takes_copies_until_its_domain_is_too_far_above_the_others() -> None:
    text = said("s1{b1: n1:4} s2{b2: n2:4}", 9, **spread("spine"))
    assert text.endswith(" gang default/g: needed 9, available in the cluster: 2.")


def test_the_best_fit_is_by_copies_not_by_room() -> None:
    """Two blocks in either spine: s1 has two slots for such pods and room for ten, s2 three slots and room for four."""
    world = World().add(TWO_LAYERS, nodes_of("s1{b1: a:9; b2: b} s2{b3: c:2 d; b4: e}"), group("g", 2, PREFER))
    world.add(gang_pods("g", 2, labels=WEB, **apart("block")))
    assert bound(world.plan()) == {"p-0": "a", "p-1": "b"}
    spines = {
        d.name: d.slots for d in explain(world.snapshot(), None, "default/p-0").domains if d.layer == "spineLayer"
    }
    assert spines == {"s1": 2, "s2": 3}


def with_port(one: Pod) -> Pod:
    ports = [ContainerPort(container_port=9000, host_port=9000)]
    return replace(one, spec=replace(one.spec, containers=[replace(one.spec.containers[0], ports=ports)]))


@pytest.mark.parametrize(
    "member",
    [
        pod("p-0", gang="g", labels=WEB, **apart("kubernetes.io/hostname")),
        pod("p-0", gang="g", labels=WEB, **spread("spine")),
        with_port(pod("p-0", gang="g")),
    ],
    ids=["anti-affinity", "spread", "port"],
)
def test_a_member_that_waits_alone_has_the_slots_that_it_has_among_others(member: Pod) -> None:
    """The block of n3 takes one more pod of its kind, the other block two."""
    world = World().add(TWO_LAYERS, nodes_of("s{b0: n1 n2; b1: n3:9} s2{b2: n4:0}"), group("g", 1, PREFER))
    assert bound(world.add(member).plan()) == {"p-0": "n3"}


def test_the_pod_that_fits_nowhere_without_the_others_is_the_reference() -> None:
    """p-0 wants a web pod beside it, and it is none; alone no node takes it."""
    world = World().add(TWO_LAYERS, nodes_of("s{b0: n1:2; b1: n2:2}"), group("g", 4, PREFER))
    term = PodAffinityTerm(topology_key="block", label_selector=SELECTOR)
    world.add(pod("p-0", gang="g", cpu="2", affinity=Affinity(pod_affinity=PodAffinity(required=[term]))))
    world.add(*(pod(f"p-{i}", gang="g", labels=WEB) for i in (1, 2, 3)))
    text = messages(world.plan())["p-1"]
    assert text.endswith(" gang default/g: needed 4, available in the cluster: 0; cpu: needed 5, available 4.")


def test_a_port_that_no_other_member_has_makes_its_pod_the_reference() -> None:
    """By copies of p-3, one a node, the blocks tie; by room, which the others have, b2 is the tighter one."""
    world = World().add(TWO_LAYERS, nodes_of("s{b1: n1:4 n2:3; b2: n3:4 n4:1}"), group("g", 4, PREFER))
    world.add(*gang_pods("g", 3), with_port(pod("p-3", gang="g")))
    assert set(bound(world.plan()).values()) == {"n1"}


def test_a_port_makes_no_kind_of_its_own_where_no_node_has_room_for_two() -> None:
    """Then a placement is a count per node, which needs no solver."""
    world = World().add(TWO_LAYERS, nodes_of("s{b1: n1 n2; b2: n3 n4}"), group("g", 3, PREFER))
    world.add(*gang_pods("g", 2), with_port(pod("p-2", gang="g")))
    assert explain(world.snapshot(), None, "default/p-0").method == "counting"


def test_a_chosen_domain_is_told_to_be_chosen_however_few_copies_of_the_reference_pod_it_takes() -> None:
    world = World().add(TWO_LAYERS, nodes_of("s{b1: n1:4 n2:4; b2: n3}"), group("g", 5, PREFER))
    world.add(*gang_pods("g", 4), with_port(pod("p-4", gang="g")))
    found = {one.name: (one.slots, one.reason) for one in explain(world.snapshot(), None, "default/p-0").domains}
    assert found["s/b1"] == (2, "chosen")
