# SPDX-License-Identifier: Apache-2.0
"""Chips that a plan gives and that are somebody else's, broken or unlisted by the time it is carried out."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.custom_objects import DeviceStatus
from koordpy.api.objects import Condition, Node, Pod
from koordpy.cache.cluster_state import ClusterState
from koordpy.devices.gpu.gpu_book import gpu_book
from koordpy.engine.staleness import devices_lost, find_stale_reason, group_by
from koordpy.plan.round_plan import RoundPlan
from tests.given_devices import numbers_of
from tests.scenarios.cluster import World
from tests.scenarios.gpus import GpuWorld, gpu_pod, measured
from tests.scenarios.npus import N910, device_info, ids, npu_gang, npu_node, npu_pod

SICK = f"{N910}-Unhealthy"
UNLINKED = f"{N910}-NetworkUnhealthy"


def changed(state: ClusterState, *objects: Any) -> None:
    for one in objects:
        state.upsert(one)


CASES: list[tuple[str, list[Any], str]] = [
    ("nothing", [], ""),
    ("other chips", [npu_pod("x", 2, at="n1", holds=(6, 7))], ""),
    ("a chip of ours", [npu_pod("x", 2, at="n1", holds=(3, 4))], "npus"),
    ("somebody who does not say which", [npu_pod("x", 2, at="n1")], "npus"),
    ("the same numbers on another node", [npu_pod("x", 2, at="n2", holds=(0, 1))], ""),
    ("a chip of ours broke", [npu_node("n1", annotations={SICK: ids((1,))})], "npus"),
    ("another chip broke", [npu_node("n1", annotations={SICK: ids((7,))})], ""),
    ("the network of a chip broke", [npu_node("n1", annotations={UNLINKED: ids((1,))})], "npus"),
    ("the plugin gives other chips", [device_info("n1", chips=ids(range(2, 8)))], "npus"),
    ("the plugin gives ours", [device_info("n1", chips=ids(range(6)))], ""),
]


@pytest.mark.parametrize(("later", "why"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_plan_is_asked_again_for_its_chips(later: list[Any], why: str) -> None:
    """Two members take chips 0 to 5 of n1; 6 and 7 stay free."""
    world = World().add(npu_node("n1"), npu_node("n2"), npu_gang("g", 2, 3))
    snapshot = world.snapshot()
    plan = world.plan()
    assert [(p.node, numbers_of(p)) for p in plan.placements] == [("n1", (0, 1, 2)), ("n1", (3, 4, 5))]
    changed(world.state, *later)
    pods = [world.state.pod(f"default/{one.metadata.name}") for one in later if isinstance(one, Pod)]
    foreign = group_by([pod for pod in pods if pod is not None], lambda pod: pod.node)
    assert find_stale_reason(world.state, snapshot, plan.placements, foreign) == why


def test_a_job_of_one_pod_needs_no_network() -> None:
    world = World().add(npu_node("n1"), npu_pod("p", 3))
    plan = world.plan()
    changed(world.state, npu_node("n1", annotations={UNLINKED: ids((1,))}))
    assert devices_lost(world.state, plan.placements) == ""
    assert plan.placements[0].annotations[keys.DISTRIBUTED_JOB] == "false"


def test_what_a_pod_is_assumed_to_hold_is_its_own() -> None:
    world = World().add(npu_node("n1"), npu_pod("p", 3))
    (placement,) = world.plan().placements
    world.state.assume(placement.pod_key, "n1", devices=placement.devices, annotations=placement.annotations)
    assert devices_lost(world.state, [placement]) == ""
    changed(world.state, npu_pod("x", 1, at="n1", holds=(2,)))
    assert devices_lost(world.state, [placement]) == "npus"


def test_a_node_that_is_gone_has_no_chips() -> None:
    world = World().add(npu_node("n1"), npu_pod("p", 3))
    (placement,) = world.plan().placements
    world.state.delete(Node, "n1")
    assert devices_lost(world.state, [placement]) == "npus"


def test_chips_of_a_victim_come_free_and_those_of_others_do_not() -> None:
    """8 chips: a holds 0 to 3 and is evicted for p, who gets them."""
    held, other = npu_pod("a", 4, at="n1", holds=range(4)), npu_pod("b", 4, at="n1", holds=range(4, 8))
    world = World().add(npu_node("n1"), held, other, npu_pod("p", 4, priority=5))
    plan = world.plan()
    ((victim,), (placement,)) = plan.evictions, plan.placements
    victims = {victim.pod_key}
    assert devices_lost(world.state, plan.placements) == "npus"
    assert devices_lost(world.state, plan.placements, victims) == ""
    broken = npu_node("n1", annotations={SICK: ids(numbers_of(placement)[:1])})
    changed(world.state, broken)
    assert devices_lost(world.state, plan.placements, victims) == "npus"


def holding(world: GpuWorld, *, known: bool) -> RoundPlan:
    """Eight GPUs: a holds four and is evicted for p; b keeps four. known: whether anybody says which they hold."""
    for name, held, start in (("a", range(4), 1), ("b", range(4, 8), 0)):
        world.add(gpu_pod(name, 4, held=held if known else None, at="n1", created=start))
    world.add(*measured("n1"), gpu_pod("p", 4, priority=5, created=2))
    plan = world.plan()
    assert [one.pod_key for one in plan.evictions] == ["default/a"]
    assert [one.pod_key for one in plan.placements] == ["default/p"]
    return plan


@pytest.mark.parametrize("known", [True, False], ids=["by name", "by count"])
def test_a_plan_with_victims_is_overtaken_by_a_gpu_that_is_sick(known: bool) -> None:
    world = GpuWorld()
    plan = holding(world, known=known)
    victims = {one.pod_key for one in plan.evictions}
    snapshot = world.snapshot()
    assert find_stale_reason(world.state, snapshot, plan.placements, {}, victims) == ""
    changed(world.state, *measured("n1", sick=(0,)))
    assert find_stale_reason(world.state, snapshot, plan.placements, {}, victims) == "gpus"


def test_a_plan_with_victims_is_overtaken_by_another_holder() -> None:
    world = GpuWorld()
    plan = holding(world, known=True)
    victims = {one.pod_key for one in plan.evictions}
    changed(world.state, gpu_pod("c", 1, held=(0,), at="n1"))
    assert devices_lost(world.state, plan.placements, victims) == "gpus"


def test_gpus_that_cannot_be_delivered_any_more_overtake_a_plan_unless_it_waits_for_victims() -> None:
    labels = {keys.GPU_DELIVERY: "device-plugin"}
    world = GpuWorld().add(measured("n1", labels=labels), gpu_pod("p", 2))
    (placement,) = world.plan().placements
    assert devices_lost(world.state, [placement]) == ""
    ending = Condition(type="DeliveryUnavailable", status="True")
    there = gpu_book(world.state).devices["n1"]
    changed(world.state, replace(there, status=DeviceStatus(conditions=[ending])))
    assert devices_lost(world.state, [placement]) == "gpus"
    assert devices_lost(world.state, [placement], {"default/victim"}) == ""
    assert world.plan().placements == ()
    changed(world.state, there)
    assert [one.node for one in world.plan().placements] == ["n1"]
