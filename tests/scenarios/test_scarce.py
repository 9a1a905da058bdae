# SPDX-License-Identifier: Apache-2.0
"""Pods and gangs without accelerators leave nodes with accelerators to pods with accelerators (kube-parity.md 3)."""

from collections.abc import Mapping

import pytest

from koordpy.config.configuration import KoordpyConfiguration, ScarceResourceAvoidanceScore, Scores
from koordpy.explain.explanation import explain
from koordpy.planner.planning_round import plan_round
from tests.scenarios.cluster import World, gang_pods, group, node, pod, wish

GPU = {"nvidia.com/gpu": "8"}
NPU = {"huawei.com/Ascend910": "8"}
FOO = {"example.com/foo": "2"}
OFF = Scores(weights={"ScarceResourceAvoidance": 0})
FOO_IS_SCARCE = Scores(scarce_resource_avoidance=ScarceResourceAvoidanceScore(resources=("example.com/foo",)))


def _world(amounts: Mapping[str, str]) -> World:
    """A large node with some resource, which packing and natural order prefer, and two small nodes without."""
    return World().add(node("a:8", **amounts), node("b:2"), node("c:2"))


@pytest.mark.parametrize(
    ("amounts", "scores", "used"),
    [
        (GPU, Scores(), {"b"}),
        (NPU, Scores(), {"b"}),
        ({"koordinator.sh/gpu": "800"}, Scores(), {"b"}),
        ({"nvidia.com/gpu": "0"}, Scores(), {"a"}),  # listed, and none there
        (FOO, Scores(), {"a"}),
        ({"nvidia.com/mig-1g.10gb": "7"}, Scores(), {"a"}),  # a number, and no GPU
        (FOO, FOO_IS_SCARCE, {"b"}),
        (GPU, FOO_IS_SCARCE, {"a"}),
        (GPU, OFF, {"a"}),
    ],
)
def test_a_gang_and_a_plain_pod_leave_nodes_with_scarce_resources(
    amounts: Mapping[str, str], scores: Scores, used: set[str]
) -> None:
    config = KoordpyConfiguration(scores=scores)
    gang = plan_round(_world(amounts).add(group("g", 4), gang_pods("g", 4)).snapshot(), config)
    assert {one.node for one in gang.placements} == ({"b", "c"} if used == {"b"} else used)
    # one that packs best on the node in question without the score
    alone = World().add(node("a:2", **amounts), node("b:8"), pod("p")).snapshot()
    assert [one.node for one in plan_round(alone, config).placements] == sorted(used)


@pytest.mark.parametrize(
    ("one", "other", "used"),
    [
        ({}, {}, {"b", "c"}),
        ({"nvidia.com/gpu": "1"}, {}, {"a"}),  # one member asks for a GPU, so the whole gang takes the fewest nodes
    ],
)
def test_one_member_with_a_gpu_ends_the_goal_for_its_gang(
    one: Mapping[str, str], other: Mapping[str, str], used: set[str]
) -> None:
    members = [pod("p-0", gang="g", requests=one), *(pod(f"p-{i}", gang="g", requests=other) for i in (1, 2, 3))]
    plan = plan_round(_world(GPU).add(group("g", 4), members).snapshot())
    assert {placed.node for placed in plan.placements} == used


def test_a_late_member_stays_with_the_goal_of_its_gang() -> None:
    world = _world(GPU).add(group("g", 1), pod("p-0", gang="g", at="b"), pod("p-1", gang="g"))
    assert [one.node for one in plan_round(world.snapshot()).placements] == ["b"]
    world = _world(GPU).add(group("g", 1), pod("p-0", gang="g", at="a"), pod("p-1", gang="g"))
    assert [one.node for one in plan_round(world.snapshot()).placements] == ["b"]


def test_a_gather_goal_comes_before_the_score() -> None:
    world = _world(GPU).add(group("g", 4, wish({"nodeLayer": "Prefer"})), gang_pods("g", 4))
    assert {one.node for one in plan_round(world.snapshot()).placements} == {"a"}


def test_pods_use_accelerator_nodes_where_nothing_else_has_room() -> None:
    world = _world(GPU).add([pod(f"p{i}", created=i) for i in range(6)])
    places = [one.node for one in plan_round(world.snapshot()).placements]
    assert sorted(places[:4]) == ["b", "b", "c", "c"] and places[4:] == ["a", "a"]


@pytest.mark.parametrize(
    ("asked", "scores"),
    [({}, {"a": 0, "b": 100, "c": 100}), ({"nvidia.com/gpu": "1"}, {"a": 0, "b": 0, "c": 0})],
)
def test_explain_shows_the_score(asked: Mapping[str, str], scores: Mapping[str, int]) -> None:
    snapshot = _world(GPU).add(pod("p", requests=asked)).snapshot()
    told = explain(snapshot, KoordpyConfiguration(), "default/p")
    shown = {one.node: one.scores["ScarceResourceAvoidance"] for one in told.nodes if one.feasible}
    assert shown == {name: points for name, points in scores.items() if name in shown}
    assert len(shown) == (1 if asked else 3)


def test_alike_nodes_have_no_points() -> None:
    for amounts in ({}, GPU):
        snapshot = World().add(node("a:1", **amounts), node("b:1", **amounts), pod("p")).snapshot()
        told = explain(snapshot, KoordpyConfiguration(), "default/p")
        assert [one.scores["ScarceResourceAvoidance"] for one in told.nodes] == [0, 0]
    # only the accelerator node is left once the other is full: a constant, so 0
    full = World().add(node("a:1", **GPU), node("b:1"), pod("there", at="b"), pod("p")).snapshot()
    told = explain(full, KoordpyConfiguration(), "default/p")
    assert [one.scores["ScarceResourceAvoidance"] for one in told.nodes if one.feasible] == [0]
