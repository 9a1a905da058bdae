# SPDX-License-Identifier: Apache-2.0
"""Logical SuperPoDs on a cluster (ascend.md 5 and 6): illegal jobs, nodes and ranks, soft blocks, re-placement."""

import json
from collections import Counter
from typing import Any

import pytest

from koordpy.api import keys
from koordpy.api.objects import Pod
from koordpy.explain.explanation import explain
from tests.scenarios.cluster import World, bound, hierarchy, messages
from tests.scenarios.npus import N910, ascend, chips, notes, npu_gang, npu_node, npu_pod, settle, super_pods

SOFT = {keys.SUPER_POD_AFFINITY: "soft"}


def job(count: int, block: int | str, chips_: int = 16, **settings: Any) -> list[Any]:
    """A gang with sp-block in chips."""
    return npu_gang("g", count, chips_, annotations={keys.SP_BLOCK: str(block)}, **settings)


def shares(world: World, **settings: Any) -> dict[str, int]:
    """SuperPoD -> pods of the plan."""
    plan = world.plan(config=ascend(**settings))
    return dict(Counter(node.split("-")[0] for node in bound(plan).values()))


ILLEGAL: list[tuple[str, list[Any], dict[str, Any], str]] = [
    ("no number", job(2, "many"), {}, "sp-block many is not a positive integer"),
    ("zero", job(2, 0), {}, "sp-block 0 is not a positive integer"),
    ("a fraction", job(2, "16.5"), {}, "sp-block 16.5 is not a positive integer"),
    ("no multiple of a node", job(2, 24), {}, "sp-block 24"),
    ("not the total", job(3, 32), {}, "sp-block 32"),
    ("larger than a SuperPoD", job(4, 64), {"super_pod_size": 3}, "sp-block 64"),
    ("smaller than a node", job(2, 8), {}, "sp-block 8"),
    (
        "half nodes",
        job(2, 16, 8),
        {},
        "request 8 is illegal: pods of a SuperPoD job need whole nodes of 16 chips",
    ),
    ("an unknown strategy", job(2, 32, labels={keys.SUPER_POD_AFFINITY: "firm"}), {}, "label super-pod-affinity=firm"),
    ("no SuperPoD at all", job(2, 32), {"super_pod_size": 0}, "superPodSize must be positive"),
    ("one pod, another block", [npu_pod("p-0", 4, annotations={keys.SP_BLOCK: "8"})], {}, "sp-block 8"),
]


@pytest.mark.parametrize(("objects", "settings", "start"), [c[1:] for c in ILLEGAL], ids=[c[0] for c in ILLEGAL])
def test_illegal_jobs_are_told_why(objects: list[Any], settings: dict[str, Any], start: str) -> None:
    world = World().add(*super_pods(6), *objects)
    said = messages(world.plan(config=ascend(**settings)))
    assert said["p-0"].startswith(f"JobValidateFailed: {start}")


def test_a_job_of_superpods_that_asks_for_parts_is_held() -> None:
    entry = {"layer": "spLayer", "strategy": "MustGather", "scope": "replica"}
    wish = {keys.GANG_TOPOLOGY: json.dumps({"gatherStrategy": [entry]})}
    world = World().add(hierarchy(("spLayer", "sp")), *super_pods(4))
    plan = world.add(npu_gang("g", 2, 16, annotations={keys.SP_BLOCK: "16"} | wish)).plan()
    assert not bound(plan) and "scope gang or replica cannot be combined with switch affinity" in messages(plan)["p-0"]


@pytest.mark.parametrize("block", [16, 32])
def test_blocks_of_worked_example_15(block: int) -> None:
    assert len(bound(World().add(*super_pods(4), job(2, block)).plan())) == 2


def test_a_policy_alone_makes_one_block_of_the_whole_job() -> None:
    world = World().add(*super_pods(3, 5))
    world.add(npu_gang("g", 4, 16, annotations={keys.SCHEDULE_POLICY: "chip2-node16-sp"}))
    assert shares(world) == {"s1": 4}
    small = World().add(*super_pods(3, 3), npu_gang("g", 4, 16, annotations={keys.SCHEDULE_POLICY: "chip2-node16-sp"}))
    assert messages(small.plan())["p-0"].startswith(
        "gang default/g: needed 4, available in the cluster: 6; SuperPoD affinity: required 1, total 0. 0/6 nodes"
    )


def test_nodes_of_910b_may_stand_in_superpods() -> None:
    world = World().add(*super_pods(4, chips=8, product="module-910b-8"))
    world.add(npu_gang("g", 2, 8, annotations={keys.SCHEDULE_POLICY: "chip8-node8-sp", keys.SP_BLOCK: "16"}))
    assert shares(world) == {"s0": 2}


def test_the_id_is_read_from_the_label_or_the_annotation() -> None:
    one = npu_node("a", 16, "module-a3-16", annotations={keys.SUPER_POD_ID_ANNOTATION: "7"})
    world = World().add(one, npu_node("b", 16, "module-a3-16"), npu_pod("p", 16, annotations={keys.SP_BLOCK: "16"}))
    done = world.plan()
    assert bound(done) == {"p": "a"}
    assert notes(done)["p"][keys.BOUND_SUPER_POD] == "7"
    refused = [n.reasons[0] for n in explain(world.snapshot(), None, "default/p").nodes if not n.feasible]
    assert refused == [("AscendChips", "UnschedulableAndUnresolvable", "node(s) had no SuperPoD id")]


def test_explain_chooses_the_domain_of_the_jobs_own_order() -> None:
    """The order of goals for all gangs would take s0-0 and s1-0, which stand in two blocks."""
    block = {"s0-0": "b0", "s1-0": "b1", "s1-1": "b1"}
    nodes = [
        npu_node(name, 16, "module-a3-16", labels={keys.SUPER_POD_ID: name[1], "block": at})
        for name, at in block.items()
    ]
    world = World().add(hierarchy(("blockLayer", "block")), *nodes, job(2, 32))
    found = explain(world.snapshot(), None, "default/p-0")
    assert [(one.layer, one.name, one.needed) for one in found.domains if one.chosen] == [("blockLayer", "b1", 2)]
    assert found.would_fit_if == ()


def test_explain_chooses_nothing_where_the_jobs_own_order_has_no_plan() -> None:
    found = explain(World().add(*super_pods(1, 1), job(2, 32)).snapshot(), None, "default/p-0")
    assert [one.reason for one in found.domains if one.chosen] == []
    more = "there were 1 more node with 16 huawei.com/Ascend910 in the cluster, like node s0-0"
    assert found.would_fit_if == (more,)
    assert len(bound(World().add(*super_pods(2, 1), job(2, 32)).plan())) == 2


def test_a_small_job_of_one_pod_is_placed_by_its_chips() -> None:
    world = World().add(*super_pods(1, 1), npu_node("other", 16, "module-a3-16"))
    world.add(npu_pod("x", 14, at="s1-0", holds=range(14)), npu_pod("y", 14, at="other", holds=range(14)))
    world.add(npu_pod("p", 2, annotations={keys.SP_BLOCK: "2"}))
    done = world.plan()
    assert bound(done) == {"p": "s1-0"}
    assert chips(done) == {"p": [14, 15]}
    assert keys.SUPER_POD_RANK not in notes(done)["p"]


def test_reserves_are_touched_last() -> None:
    assert shares(World().add(*super_pods(9, 16, 17), job(16, 128))) == {"s1": 8, "s2": 8}
    assert shares(World().add(*super_pods(10, 16, 18), job(16, 128))) == {"s2": 16}
    assert shares(World().add(*super_pods(16, 16), job(32, 128))) == {"s0": 16, "s1": 16}
    assert shares(World().add(*super_pods(9, 16), job(16, 128)), reserve_nodes=0) == {"s1": 16}


def test_a_reserve_as_large_as_a_superpod_is_no_reserve() -> None:
    world = World().add(*super_pods(4, 6), job(4, 64))
    assert shares(world, super_pod_size=6, reserve_nodes=6) == {"s1": 4}
    assert shares(world, super_pod_size=6, reserve_nodes=0) == {"s0": 4}


def test_hard_and_soft_of_worked_example_14() -> None:
    world = World().add(*super_pods(16, 10, 6), job(32, 256))
    assert "SuperPoD affinity: required 2, total 1" in messages(world.plan())["p-0"]
    world = World().add(*super_pods(16, 10, 6), job(32, 256, labels=SOFT))
    done = world.plan()
    assert Counter(own[keys.SUPER_POD_RANK] for own in notes(done).values()) == {"0": 16, "1": 10, "2": 6}


def test_ranks_ascend_in_a_block_and_blocks_are_cut_healthy_first() -> None:
    fault = json.dumps([{"fault_level": "SubHealthFault"}])
    sick = npu_node("s0-0", 16, "module-a3-16", labels={keys.SUPER_POD_ID: "0"}, annotations={f"{N910}-Fault": fault})
    world = World().add(sick, *super_pods(5)[1:], job(4, 32))
    done = world.plan()
    assert [bound(done)[f"p-{i}"] for i in range(4)] == ["s0-1", "s0-2", "s0-3", "s0-4"]
    assert [notes(done)[f"p-{i}"][keys.SUPER_POD_RANK] for i in range(4)] == ["0", "0", "1", "1"]
    assert [notes(done)[f"p-{i}"][keys.RANK_INDEX] for i in range(4)] == ["0", "1", "2", "3"]
    assert {own[keys.DISTRIBUTED_JOB] for own in notes(done).values()} == {"true"}
    assert {own[keys.BOUND_SUPER_POD] for own in notes(done).values()} == {"0"}


def test_the_sub_healthy_node_closes_the_last_block() -> None:
    fault = json.dumps([{"fault_level": "SubHealthFault"}])
    sick = npu_node("s0-0", 16, "module-a3-16", labels={keys.SUPER_POD_ID: "0"}, annotations={f"{N910}-Fault": fault})
    world = World().add(sick, *super_pods(4)[1:], job(4, 32))
    assert [bound(world.plan())[f"p-{i}"] for i in range(4)] == ["s0-1", "s0-2", "s0-0", "s0-3"]


# --- re-placement ---------------------------------------------------------------------------------------------------


def lose(world: World, *ranks: int, **settings: Any) -> None:
    for rank in ranks:
        world.state.delete(Pod, f"default/p-{rank}")
        world.add(npu_pod(f"p-{rank}", 16, gang="g", created=50, **settings))


def occupy(world: World, *nodes: str) -> None:
    for node in nodes:
        world.add(npu_pod(f"on-{node}", 16, at=node, holds=range(16)))


def test_a_lost_rank_comes_back_into_its_superpod() -> None:
    """Worked example 16."""
    world = World().add(*super_pods(8, 8), job(4, 32))
    settle(world)
    lose(world, 2)
    occupy(world, "s0-2")
    done = settle(world)
    assert bound(done) == {"p-2": "s0-4"}
    assert notes(done)["p-2"][keys.SUPER_POD_RANK] == "1"


def test_a_block_without_room_waits_and_is_named() -> None:
    world = World().add(*super_pods(4, 8), job(4, 32))
    settle(world)
    lose(world, 3)
    home = next(p.node for p in world.state.pods() if p.name == "p-2").split("-")[0]
    occupy(world, *[n.name for n in world.state.nodes if n.name.startswith(home) and not _used(world, n.name)])
    text = messages(world.plan())["p-3"]
    assert f"SuperPoD affinity: block 1 in SuperPoD {home[1:]} needs 1 more node, 0 usable" in text


def _used(world: World, node: str) -> bool:
    return any(pod.node == node for pod in world.state.pods())


def test_a_wholly_lost_block_may_go_elsewhere() -> None:
    world = World().add(*super_pods(6, 8), job(4, 32))
    settle(world)
    home = next(p.node for p in world.state.pods() if p.name == "p-0").split("-")[0]
    lose(world, 2, 3)
    occupy(world, *[n.name for n in world.state.nodes if n.name.startswith(home) and not _used(world, n.name)])
    done = settle(world)
    assert {node.split("-")[0] for node in bound(done).values()} == {"s0", "s1"} - {home}
    assert {own[keys.SUPER_POD_RANK] for own in notes(done).values()} == {"1"}


def test_lost_ranks_of_short_blocks_come_back_to_their_block() -> None:
    world = World().add(*super_pods(3, 3, 2), job(6, 48, labels=SOFT))
    occupy(world, "s1-2", "s2-1")
    first = settle(world)
    assert [notes(first)[f"p-{i}"][keys.SUPER_POD_RANK] for i in range(6)] == ["0", "0", "0", "1", "1", "2"]
    lose(world, 4, 5, labels=SOFT)
    done = settle(world)
    assert bound(done)["p-4"].startswith("s1")
    assert notes(done)["p-4"][keys.SUPER_POD_RANK] == "1"


def test_an_elastic_job_grows_in_blocks() -> None:
    world = World().add(*super_pods(3, 2), job(6, 32, minimum=2))
    assert sorted(bound(settle(world, ascend(reserve_nodes=0)))) == ["p-0", "p-1", "p-2", "p-3"]
    world.add(npu_node("s1-9", 16, "module-a3-16", labels={keys.SUPER_POD_ID: "1"}))
    assert bound(settle(world, ascend(reserve_nodes=0))) == {}
    world.add(npu_node("s1-8", 16, "module-a3-16", labels={keys.SUPER_POD_ID: "1"}))
    done = settle(world, ascend(reserve_nodes=0))
    assert bound(done) == {"p-4": "s1-8", "p-5": "s1-9"}


MOVING = {keys.FAULT_SCHEDULING: "grace"}


def stuck(annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None, *more: Any) -> World:
    """Block 1 of two has lost rank 3, and its SuperPoD has no node left; SuperPoD 1 has room for one block."""
    world = World().add(*super_pods(4, 3))
    world.add(npu_gang("g", 4, 16, annotations={keys.SP_BLOCK: "32", **(annotations or {})}, labels=labels), *more)
    occupy(world, "s1-0", "s1-1", "s1-2")
    settle(world)
    for node in ("s1-0", "s1-1"):
        world.state.delete(Pod, f"default/on-{node}")
    lose(world, 3, labels=labels)
    occupy(world, "s0-3")
    return world


def test_a_stuck_block_waits_unless_asked_to_move() -> None:
    world = stuck()
    done = settle(world)
    assert not done.evictions
    assert "block 1 in SuperPoD 0" in messages(done)["p-3"]


def test_a_stuck_block_moves_as_a_whole_where_asked() -> None:
    world = stuck(labels=MOVING)
    done = settle(world)
    assert [(e.pod_key, e.rule) for e in done.evictions] == [("default/p-2", "stale-gang")]
    assert bound(done) == {"p-3": "s1-1"}
    world.add(npu_pod("p-2", 16, gang="g", created=60, labels=MOVING))
    last = settle(world)
    assert bound(last) == {"p-2": "s1-0"}
    assert notes(last)["p-2"][keys.SUPER_POD_RANK] == "1"


def test_pod_level_recovery_never_moves_a_block() -> None:
    assert not settle(stuck({keys.RECOVER_POLICY: "pod"}, MOVING)).evictions


def test_the_room_of_a_moved_block_is_kept_in_the_round() -> None:
    world = stuck(labels=MOVING)
    world.add(npu_pod("greedy", 16, created=99))
    done = settle(world)
    assert "greedy" not in bound(done) or bound(done)["greedy"] == "s0-2"


def test_the_whole_job_moves_where_the_block_cannot() -> None:
    """Neither SuperPoD has room for the block beside the other, a third holds the whole job."""
    world = World().add(*super_pods(4, 4))
    occupy(world, "s1-0", "s1-1", "s1-2", "s1-3")
    world.add(npu_gang("g", 2, 16, annotations={keys.SP_BLOCK: "32"}, labels=MOVING))
    settle(world)
    for node in ("s1-0", "s1-1"):
        world.state.delete(Pod, f"default/on-{node}")
    lose(world, 1, labels=MOVING)
    occupy(world, "s0-1", "s0-2", "s0-3")
    done = settle(world)
    assert [e.pod_key for e in done.evictions] == ["default/p-0"]
    assert bound(done) == {"p-1": "s1-1"}


# --- multilevel -----------------------------------------------------------------------------------------------------

RACKS = hierarchy(("rackLayer", "rack"), ("hallLayer", "hall"))


@pytest.mark.parametrize(("block", "labels"), [(32, {}), (64, SOFT)])
def test_a_job_keeps_none_back_whose_podgroup_alone_asks_for_other_blocks(block: int, labels: dict[str, str]) -> None:
    first = npu_gang("g", 4, 16, annotations={keys.SP_BLOCK: "64"})
    other = npu_gang("h", 4, 16, prefix="q", annotations={keys.SP_BLOCK: str(block)}, group_labels=labels)
    assert set(bound(World().add(*super_pods(2, 2), *first, *other).plan())) == {"q-0", "q-1", "q-2", "q-3"}


def racks(**sizes: int) -> list[Any]:
    return [
        npu_node(f"{rack}-{i}", labels={"rack": rack, "hall": "h"}) for rack, size in sizes.items() for i in range(size)
    ]


def levels(count: int, text: str | None, **settings: Any) -> list[Any]:
    said = {keys.SCHEDULE_POLICY: "multilevel", **({keys.AFFINITY_CONFIG: text} if text is not None else {})}
    return npu_gang("g", count, 8, annotations=said, **settings)


def test_levels_are_multiples_on_the_layers_above_the_node() -> None:
    world = World().add(RACKS, *racks(a=3, b=3, c=2), levels(6, "level1=2"))
    assert Counter(node[0] for node in bound(world.plan()).values()) == {"a": 2, "b": 2, "c": 2}
    world = World().add(RACKS, *racks(a=3, b=3), levels(6, "level1=3,level2=6"))
    assert len(bound(world.plan())) == 6


@pytest.mark.parametrize(
    "text",
    ["level2=4", "level1=2,level2=3", "level1=4", "level1=x", "rack=2", "level1=2,level1=2", "", "level1=0"],
)
def test_illegal_levels_are_told(text: str) -> None:
    world = World().add(RACKS, *racks(a=6), levels(6, text))
    assert messages(world.plan())["p-0"].startswith(f"JobValidateFailed: {keys.AFFINITY_CONFIG}")


def test_levels_need_layers() -> None:
    world = World().add(*racks(a=6), levels(6, "level1=2"))
    assert messages(world.plan())["p-0"].startswith(f"JobValidateFailed: {keys.AFFINITY_CONFIG}")
