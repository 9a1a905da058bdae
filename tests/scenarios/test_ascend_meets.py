# SPDX-License-Identifier: Apache-2.0
"""Ascend jobs among each other: moved, evicted, lost and returning; what one rule does must not break another's."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import Pod
from koordpy.config.configuration import Ascend, Consolidation, KoordpyConfiguration
from koordpy.plan.pending_reason import Reason
from koordpy.plan.round_plan import RoundPlan
from tests.given_devices import numbers_of
from tests.planning.gpu.machines import device
from tests.scenarios.cluster import World, bound
from tests.scenarios.gpus import GPU, gpu_pod
from tests.scenarios.npus import chips, ids, notes, npu_gang, npu_node, npu_pod, settle, super_pods, switched

CONSOLIDATES = KoordpyConfiguration(consolidation=Consolidation(enabled=True))
SOFT = {keys.SUPER_POD_AFFINITY: "soft"}
BIG = {keys.TOR_AFFINITY: "large-model-schema"}


def evicted(plan: RoundPlan) -> dict[str, str]:
    """Pod name -> rule."""
    return {one.pod_key.partition("/")[2]: str(one.rule) for one in plan.evictions}


def test_two_pods_move_into_one_ring() -> None:
    """Their chips on the new node are held one by one: the second finds what the first leaves."""
    world = World().add(npu_node("n1", product="module"), npu_node("n2", product="module"))
    world.add(npu_pod("a", 4, at="n1", holds=range(4)), npu_pod("b", 1, at="n2", holds=(0,)))
    world.add(npu_pod("c", 1, at="n2", holds=(4,)), npu_pod("p", 8, created=9))
    plan = world.plan(config=CONSOLIDATES)
    assert evicted(plan) == {"b": "consolidation", "c": "consolidation"}
    assert bound(plan) == {"p": "n2"}


def test_npus_and_gpus_of_one_node_are_numbered_apart() -> None:
    """Where a Device tells of its GPUs, an NPU is none of them, and takes the number of none."""
    wire = npu_node("n1")
    amounts = {**wire.status.allocatable, GPU: "4"}
    both = replace(wire, status=replace(wire.status, capacity=amounts, allocatable=amounts))
    world = World().add(both, device([[0] * 4] * 4, name="n1"), *npu_gang("g", 2, 4))
    world.add(gpu_pod("first", 2, created=60), gpu_pod("last", 2, created=61))
    plan = world.plan()
    assert set(bound(plan)) == {"p-0", "p-1", "first", "last"}
    assert sorted(chip for one in plan.placements if one.pod_key.endswith("st") for chip in numbers_of(one)) == [
        0,
        1,
        2,
        3,
    ]


def block_of_two(at: Sequence[str]) -> list[Any]:
    group, *_ = npu_gang("v", 2, annotations={keys.SP_BLOCK: "32"})
    marks = {keys.SUPER_POD_RANK: "0"}
    return [
        group,
        *(
            npu_pod(f"v-{i}", 16, gang="v", at=node, holds=range(16), annotations=marks, created=i)
            for i, node in enumerate(at)
        ),
    ]


@pytest.mark.parametrize(("others", "moves"), [((1, 1), False), ((2,), True)])
def test_a_block_is_not_torn_by_being_moved(others: tuple[int, ...], moves: bool) -> None:
    world = World().add(*super_pods(4, *others), *block_of_two(["s0-0", "s0-1"]))
    world.add(*npu_gang("g", 3, 16, annotations={keys.SP_BLOCK: "48"}, created=60))
    plan = world.plan(config=CONSOLIDATES)
    assert evicted(plan) == (dict.fromkeys(("v-0", "v-1"), "consolidation") if moves else {})
    assert bool(bound(plan)) is moves


@pytest.mark.parametrize(("others", "moves"), [((1, 1), False), ((2,), True)])
@pytest.mark.parametrize("master", ["a", "z"])
def test_a_block_moves_as_one_beside_a_master_without_npus(master: str, others: tuple[int, ...], moves: bool) -> None:
    """Whichever of them comes first, the block is put back by its own order and the master by that of all gangs."""
    group, *block = block_of_two(["s0-0", "s0-1"])
    head = npu_pod(master, 0, gang="v", at="s0-0", resource="cpu", created=9)
    world = World().add(*super_pods(4, *others), replace(group, spec=replace(group.spec, min_member=3)), *block, head)
    world.add(*npu_gang("g", 3, 16, annotations={keys.SP_BLOCK: "48"}, created=60))
    plan = world.plan(config=CONSOLIDATES)
    assert evicted(plan) == (dict.fromkeys(("v-0", "v-1", master), "consolidation") if moves else {})
    assert bool(bound(plan)) is moves


def test_members_above_the_minimum_make_room_one_by_one() -> None:
    """Each sees where those before it stand, and has a server of its own."""
    world = World().add(*super_pods(3), *(npu_pod(f"x-{i}", 16, at=f"s0-{i}", holds=range(16)) for i in (0, 1)))
    marks = {keys.SUPER_POD_RANK: "0"}
    group, *_ = npu_gang("g", 3, minimum=1, annotations={keys.SP_BLOCK: "16"})
    first = npu_pod("p-0", 16, gang="g", at="s0-2", holds=range(16), annotations=marks, priority=10)
    world.add(group, first, *(npu_pod(f"p-{i}", 16, gang="g", priority=10) for i in (1, 2)))
    plan = world.plan()
    assert evicted(plan) == {"x-0": "priority", "x-1": "priority"}
    assert sorted(bound(plan).values()) == ["s0-0", "s0-1"]
    assert {name: own[keys.SUPER_POD_RANK] for name, own in notes(plan).items()} == {"p-1": "1", "p-2": "2"}


def test_a_lost_rank_of_a_short_block_does_not_join_a_whole_one() -> None:
    """Blocks of three nodes in SuperPoDs of 5 and 1: ranks 0-2, 3-4 and 5; rank 3 comes back into block 1."""
    world = World().add(*super_pods(5, 1), *npu_gang("g", 6, 16, annotations={keys.SP_BLOCK: "48"}, labels=SOFT))
    first = settle(world)
    assert [notes(first)[f"p-{i}"][keys.SUPER_POD_RANK] for i in range(6)] == ["0", "0", "0", "1", "1", "2"]
    world.state.delete(Pod, "default/p-3")
    world.add(npu_pod("p-3", 16, gang="g", labels=SOFT, created=60))
    again = settle(world)
    assert notes(again)["p-3"][keys.SUPER_POD_RANK] == "1"
    assert bound(again)["p-3"].startswith("s0")


def test_bound_members_may_ask_for_other_numbers_than_those_that_wait() -> None:
    world = World().add(npu_node("n"), npu_gang("g", 3)[0], npu_pod("p-0", 4, gang="g", at="n", holds=range(4)))
    world.add(npu_pod("p-1", 2, gang="g", at="n", holds=(4, 5)), npu_pod("p-2", 1, gang="g"))
    assert chips(world.plan()) == {"p-2": [6]}


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Any], list[list[Any]], list[int], KoordpyConfiguration]:
    """(cluster, jobs as they arrive, pods lost between the rounds, configuration)."""
    slices = st.sets(st.integers(0, 2), min_size=1)
    leaves = {name: sorted(draw(slices)) for name in "abc"[: draw(st.integers(0, 3))]}
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    modules = [npu_node(f"m{i}", product="module") for i in range(2)]
    cluster = [*(switched(leaves, 3) if leaves else ()), *super_pods(*sizes), *modules]
    jobs: list[list[Any]] = []
    for j in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(("blocks", "switches" if leaves else "blocks", "chips")))
        priority, count = draw(st.sampled_from((0, 0, 5, 9))), draw(st.integers(1, 5))
        name, least = f"j{j}", draw(st.booleans())
        own: dict[str, Any] = {"prefix": name, "priority": priority, "created": j}
        own["minimum"] = max(1, count // 2) if least else count
        if kind == "blocks":
            block = draw(st.sampled_from([b for b in (1, 2, 3) if count % b == 0]))
            labels = {
                keys.SUPER_POD_AFFINITY: draw(st.sampled_from(("hard", "soft"))),
                keys.FAULT_SCHEDULING: draw(st.sampled_from(("grace", "off"))),
            }
            jobs.append(npu_gang(name, count, 16, annotations={keys.SP_BLOCK: str(16 * block)}, labels=labels, **own))
        elif kind == "switches":
            labels = {keys.TOR_AFFINITY: draw(st.sampled_from(("large-model-schema", "normal-schema")))}
            place = {keys.ACCELERATOR_TYPE: "module-910b-8"}
            jobs.append(npu_gang(name, count, 8, labels=labels, node_selector=place, **own))
        else:
            place = {keys.ACCELERATOR_TYPE: "module"}
            chips_ = draw(st.sampled_from((1, 2, 4)))
            jobs.append(npu_gang(name, count, chips_, node_selector=place, **own))
    lost = draw(st.lists(st.integers(0, 20), max_size=4))
    config = KoordpyConfiguration(
        ascend=Ascend(nslb_version=draw(st.sampled_from(("1.0", "2.0"))), reserve_nodes=draw(st.sampled_from((0, 2)))),
        consolidation=Consolidation(enabled=draw(st.booleans())),
    )
    return cluster, jobs, lost, config


@settings(max_examples=40, deadline=None)
@given(histories())
def test_no_plan_is_refused_by_its_check_and_no_chip_is_given_twice(
    case: tuple[list[Any], list[list[Any]], list[int], KoordpyConfiguration],
) -> None:
    cluster, jobs, lost, config = case
    world = World().add(*cluster)
    known: dict[str, Pod] = {}
    for i, job in enumerate(jobs):
        for one in job:
            if isinstance(one, Pod):
                known[f"default/{one.metadata.name}"] = one
        world.add(*job)
        for _ in range(2):
            plan = settle(world, config)
            refused = [one.message for one in plan.pending if one.reason == Reason.SCHEDULER_ERROR]
            assert not refused
            for eviction in plan.evictions:
                world.add(known[eviction.pod_key])  # its owner makes it again
        held: set[tuple[str, str]] = set()
        for pod in world.snapshot().pods.values():
            given_ = [one for one in pod.pod.metadata.annotations.get(keys.NPU_RESOURCES[0], "").split(",") if one]
            if pod.bound:
                assert not held & {(pod.node, one) for one in given_}
                held |= {(pod.node, one) for one in given_}
        names = sorted(key for key, pod in world.snapshot().pods.items() if pod.bound)
        if names and i < len(lost):
            gone = names[lost[i] % len(names)]
            world.state.delete(Pod, gone)
            world.add(known[gone])


def test_the_ids_of_a_binding_are_those_of_the_node() -> None:
    plan = World().add(npu_node("n"), npu_pod("p", 3)).plan()
    assert notes(plan)["p"][keys.NPU_RESOURCES[0]] == ids((0, 1, 2))
