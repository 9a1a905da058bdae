# SPDX-License-Identifier: Apache-2.0
"""The sentence of a gang names the rules among its members and the resources that limit it (gang-network.md 6)."""

from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api.objects import ContainerPort, LabelSelector, TopologySpreadConstraint
from tests.planning.node_rules import anti, near, term
from tests.scenarios.cluster import TWO_LAYERS, World, bound, gang_pods, group, messages, node, pod, wish

ZONE, HOST = "zone", "kubernetes.io/hostname"
MEMBERS = LabelSelector(match_labels={"app": "x"})


def spread(key: str, skew: int = 1) -> list[TopologySpreadConstraint]:
    rule = TopologySpreadConstraint(
        max_skew=skew, topology_key=key, when_unsatisfiable="DoNotSchedule", label_selector=MEMBERS
    )
    return [rule]


def told(world: World) -> str:
    return next(iter(messages(world.plan()).values()))


def members(number: int, **spec: Any) -> list[Any]:
    return [group("g", number), *gang_pods("g", number, cpu="1", labels={"app": "x"}, **spec)]


@pytest.mark.parametrize(
    ("nodes", "number", "spec", "named"),
    [
        # a spread over zones of four and one place
        (["a:4/a", "b:1/b"], 5, {"topology_spread_constraints": spread(ZONE)}, "spread over zone"),
        (["a:4/a", "b:4/a"], 3, {"affinity": anti(term(HOST, {"app": "x"}))}, f"anti-affinity over {HOST}"),
        (["a:2/a", "b:2/b"], 4, {"affinity": near(term(ZONE, {"app": "x"}))}, "affinity over zone"),
    ],
)
def test_the_rule_is_named_without_which_the_gang_fits(nodes: list[str], number: int, spec: Any, named: str) -> None:
    made = [node(text.partition("/")[0], {ZONE: text.partition("/")[2]}) for text in nodes]
    world = World().add(*made, *members(number, **spec))
    assert not bound(world.plan())
    assert f"; {named}" in told(world)
    assert len(bound(World().add(*made, *members(number)).plan())) == number


def test_no_rule_is_named_where_room_lacks_or_the_rule_is_about_others() -> None:
    few = World().add(node("a:2", {ZONE: "a"}), *members(3, topology_spread_constraints=spread(ZONE)))
    assert "; spread" not in told(few)
    others = {"affinity": anti(term(HOST, {"app": "y"}))}
    running = pod("r", labels={"app": "y"}, at="a", cpu="1")
    world = World().add(node("a:4"), running, *members(3, **others))
    assert "; anti-affinity" not in told(world)


def test_a_host_port_that_all_members_ask_for_is_named() -> None:
    made = members(2)
    for i, one in enumerate(made[1:], 1):
        ports = [ContainerPort(container_port=80, host_port=80)]
        containers = [replace(one.spec.containers[0], ports=ports)]
        made[i] = replace(one, spec=replace(one.spec, containers=containers))
    world = World().add(node("a:4"), *made)
    assert "; host port 80" in told(world)


@pytest.mark.parametrize(("free", "worker", "helpers"), product((6, 7, 8), (7, 8), (1, 3)))
def test_the_resources_that_lack_in_sum_are_those_of_a_count_by_hand(free: int, worker: int, helpers: int) -> None:
    gpu = "nvidia.com/gpu"
    world = World().add(node("n:2", **{gpu: str(free)}), group("g", 1 + helpers))
    world.add(pod("g-0", gang="g", cpu="0", requests={gpu: str(worker)}))
    world.add(*(pod(f"g-{i + 1}", gang="g", cpu="1") for i in range(helpers)))
    lacks = []
    if helpers > 2:
        lacks.append(f"; cpu: needed {helpers}, available 2")
    if worker > free:
        lacks.append(f"; {gpu}: needed {worker}, available {free}")
    done = world.plan()
    assert bool(bound(done)) == (not lacks)
    if lacks:
        text = told(world)
        assert "".join(lacks) in text
        assert text.count("needed") - text.count("gang default/g: needed") == len(lacks)


def test_the_domain_with_most_counts_where_one_has_to_hold_all() -> None:
    gpu = "nvidia.com/gpu"
    nodes = [node(f"n{i}:8", {"block": f"b{i}", "spine": "s"}, **{gpu: str(4 + i)}) for i in range(2)]

    world = World().add(TWO_LAYERS, *nodes, group("g", 2, wish({"blockLayer": "Must"})))
    world.add(*(pod(f"g-{i}", gang="g", cpu="0", requests={gpu: str(3 + i)}) for i in range(2)))
    assert f"; {gpu}: needed 7, available 5" in told(world)
