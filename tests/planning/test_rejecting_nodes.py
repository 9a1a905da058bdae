# SPDX-License-Identifier: Apache-2.0
"""Nodes that reject pods, in plans: NodeRepair closes them to shapes, nobody is evicted there (numa.md 8.6 to 8.8)."""

from typing import Any

from msgspec.structs import replace

from koordpy.api.objects import Node, Pod, Wire
from koordpy.api.times import rfc3339, seconds
from koordpy.cache.cluster_state import ClusterState
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.family_registry import make_state
from koordpy.explain.explanation import explain
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.planning_round import plan_round
from tests.scenarios.cluster import group, node, pod

NOW = seconds("2026-01-01T00:00:00Z")
GPU = "nvidia.com/gpu"
SHAPE, LATELY = "node(s) rejected pods of this shape lately", "node(s) rejected pods lately"


def gpus(name: str, count: int, **more: Any) -> Pod:
    return pod(name, cpu="0", requests={GPU: str(count)}, **more)


def machine(name: str) -> Node:
    return node(f"{name}:16", **{GPU: "8"})


def failed(one: Pod, reason: str = "TopologyAffinityError", ago: float = 60.0) -> Pod:
    return replace(one, status=replace(one.status, phase="Failed", reason=reason, start_time=rfc3339(NOW - ago)))


def state_of(*objects: Wire) -> ClusterState:
    state = make_state()
    for obj in objects:
        state.upsert(obj)
    return state


def plan_of(*objects: Wire) -> RoundPlan:
    return plan_round(state_of(*objects).snapshot(NOW))


def nodes_of(plan: RoundPlan) -> dict[str, str]:
    return {one.pod_key.partition("/")[2]: one.node for one in plan.placements}


def test_only_pods_of_the_shape_avoid_the_node() -> None:
    bad = failed(gpus("r", 4, at="n1"))
    nodes = [machine("n1"), machine("n2")]
    assert nodes_of(plan_of(*nodes, bad, gpus("p", 4))) == {"p": "n2"}
    assert nodes_of(plan_of(*nodes, bad, gpus("p", 3))) == {"p": "n1"}
    assert nodes_of(plan_of(*nodes, failed(gpus("r", 4, at="n1"), ago=121), gpus("p", 4))) == {"p": "n1"}
    assert nodes_of(plan_of(*nodes, failed(gpus("r", 4, at="n1", scheduler="other")), gpus("p", 4))) == {"p": "n1"}
    assert nodes_of(plan_of(*nodes, failed(gpus("r", 4, at="n1"), "NodeAffinity"), gpus("p", 4))) == {"p": "n1"}


def test_pods_with_equal_sums_and_other_containers_are_told_apart() -> None:
    split = pod("q", cpu="0", requests={GPU: "2"})
    twice = replace(split, spec=replace(split.spec, containers=split.spec.containers * 2))
    bad = failed(gpus("r", 4, at="n1"))
    small = node("n2:16", **{GPU: "4"})
    assert nodes_of(plan_of(machine("n1"), small, bad, gpus("p", 4), twice)) == {"p": "n2", "q": "n1"}


def test_no_pod_is_evicted_on_a_closed_node() -> None:
    victim = replace(gpus("v", 8, at="n1"), status=replace(gpus("v", 8).status, phase="Running"))
    plan = plan_of(machine("n1"), victim, failed(gpus("r", 4, at="n1")), gpus("p", 4, priority=10))
    assert not plan.evictions
    assert f"1 {SHAPE}" in plan.pending[0].message
    assert plan.pending[0].offline_reason == "Unschedulable"
    assert plan_of(machine("n1"), victim, gpus("p", 4, priority=10)).evictions


def test_a_gang_has_no_slots_on_a_closed_node() -> None:
    members = [group("g", 3), *(gpus(f"g-{i}", 4, gang="g") for i in range(3))]
    bad = failed(gpus("r", 4, at="n1"))
    assert nodes_of(plan_of(machine("n1"), machine("n2"), bad, *members)) == {}
    found = plan_of(machine("n1"), machine("n2"), machine("n3"), bad, *members)
    assert sorted(nodes_of(found).values()) == ["n2", "n2", "n3"]


def test_reasons_of_explain() -> None:
    def reasons(*objects: Wire) -> dict[str, list[tuple[str, str, str]]]:
        snapshot = state_of(*objects).snapshot(NOW)
        return {one.node: list(one.reasons) for one in explain(snapshot, KoordpyConfiguration(), "default/p").nodes}

    code = "UnschedulableAndUnresolvable"
    nodes = [machine("n1"), machine("n2")]
    assert reasons(*nodes, failed(gpus("r", 4, at="n1")), gpus("p", 4))["n1"] == [("NodeRepair", code, SHAPE)]
    three = [failed(gpus(f"r{i}", i, at="n1"), "UnexpectedAdmissionError") for i in (1, 2, 4)]
    assert reasons(*nodes, *three, gpus("p", 8)) == {"n1": [("NodeRepair", code, LATELY)], "n2": []}
    assert reasons(*nodes, *three, gpus("p", 4))["n1"] == [("NodeRepair", code, SHAPE)]
    assert reasons(*nodes, *three, pod("p")) == {"n1": [], "n2": []}
    assert reasons(*nodes, *three[:2], gpus("p", 8)) == {"n1": [], "n2": []}


def test_victims_elsewhere_open_a_node_early() -> None:
    state = state_of(machine("n1"), gpus("v", 4, at="n1"), failed(gpus("r", 4, at="n1")), gpus("p", 4))
    assert not nodes_of(plan_round(state.snapshot(NOW)))
    state.delete(Pod, "default/v")
    assert nodes_of(plan_round(state.snapshot(NOW))) == {"p": "n1"}


def test_a_suggestion_names_the_node_that_rejects() -> None:
    bad = [failed(gpus(f"r{i}", 4, at="n1"), ago=span) for i, span in enumerate((400, 100))]
    snapshot = state_of(machine("n1"), *bad, gpus("p", 4)).snapshot(NOW)
    found = explain(snapshot, KoordpyConfiguration(), "default/p")
    text = "node n1 took pods of this shape again: it rejected 2, until 2026-01-01T00:02:20Z"
    assert found.would_fit_if[0] == text
