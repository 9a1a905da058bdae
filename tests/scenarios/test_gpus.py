# SPDX-License-Identifier: Apache-2.0
"""GPUs through the cluster state and whole rounds: which node, which GPUs, what is written, what is said."""

import json

import pytest
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import Pod
from koordpy.config.configuration import Gpu
from koordpy.devices.gpu.gpu_machine import GPUS
from koordpy.devices.gpu.gpu_variables import inject
from koordpy.plan.round_plan import RoundPlan
from koordpy.pods.family_books import PlannedAllocation
from tests.planning.gpu.machines import UNIFORM, M, device
from tests.scenarios.cluster import TWO_LAYERS, group, messages, wish
from tests.scenarios.gpus import GPU, GpuWorld, allocation, given, gpu_node, gpu_pod, measured

MIN = keys.GPU_MIN_BANDWIDTH


def test_a_group_goes_where_its_slowest_pair_is_fastest() -> None:
    world = GpuWorld().add(measured("n1", "n2"))
    world.add(gpu_pod("x", 4, at="n1", held=(3, 4, 6, 7)), gpu_pod("y", 4, at="n2", held=(0, 1, 2, 3)))
    world.add(gpu_pod("w-0", 2, group="job"), gpu_pod("w-1", 2, group="job"))
    plan = world.run()
    assert given(plan) == {"w-0": ("n2", (4, 7)), "w-1": ("n2", (5, 6))}
    assert [allocation(p)["sees"] for p in plan.placements] == [[4, 5, 6, 7]] * 2


def test_the_weakest_link_of_what_each_pod_got_is_told() -> None:
    """For koordpy_gpu_bottleneck_gbps; nothing for pods of one GPU and for nodes whose links nobody knows."""
    known = GpuWorld().add(measured("n1"), gpu_pod("pair", 2), gpu_pod("one", 1), gpu_pod("four", 4)).run()
    slowest: dict[str, tuple[float, ...]] = {"one": ()}
    for name in ("pair", "four"):
        _, minors = given(known)[name]
        slowest[name] = (min(float(M[a][b]) for a in minors for b in minors if a != b),)
    assert {unit.unit: unit.gpu_bottlenecks_gbps for unit in known.units} == {
        f"default/{name}": told for name, told in slowest.items()
    }
    unknown = GpuWorld().add(gpu_node("n2"), gpu_pod("counted", 8)).run()
    assert [unit.gpu_bottlenecks_gbps for unit in unknown.units] == [()]


def test_a_node_that_states_absurdly_many_gpus_upsets_nobody() -> None:
    world = GpuWorld().add([gpu_node(f"n{i}", gpus=10**30) for i in range(8)], group("g", 3))
    world.add(measured("m"), gpu_pod("w-0", 2, gang="g"), gpu_pod("w-1", 1, gang="g"), gpu_pod("w-2", 9, gang="g"))
    assert len({p.pod_key for p in world.run().placements}) == 3


def test_between_equal_links_the_fuller_node_is_taken() -> None:
    world = GpuWorld().add(measured("n1", "n2"), gpu_pod("y", 2, at="n2", held=(4, 7)))
    world.add([gpu_pod(f"w-{i}", 2, group="job") for i in range(3)])
    assert {node for node, _ in given(world.plan()).values()} == {"n2"}


def test_a_late_member_joins_its_siblings_gpus_and_node() -> None:
    world = GpuWorld().add(measured("n1", "n2"), gpu_pod("other", 2, at="n2", held=(0, 3)))
    world.add(gpu_pod("w-0", 2, group="job", at="n2", held=(6, 7)), gpu_pod("w-1", 2, group="job"))
    plan = world.run()
    assert given(plan) == {"w-1": ("n2", (4, 5))}
    assert allocation(plan.placements[0]) == {"0": [4, 5], "sees": [4, 5, 6, 7]}


def test_visibility_of_siblings_can_be_turned_off() -> None:
    world = GpuWorld(Gpu(group_visibility="own")).add(measured("n1"))
    world.add(gpu_pod("w-0", 2, group="job"), gpu_pod("w-1", 2, group="job"))
    assert [allocation(p)["sees"] for p in world.run().placements] == [[0, 3], [1, 2]]


def test_members_that_do_not_fit_are_skipped_in_order() -> None:
    world = GpuWorld().add(measured("n1", "n2"))
    world.add([gpu_pod(f"w-{i}", n, group="job") for i, n in enumerate((6, 6, 4, 2, 1))])
    plan = world.run()
    assert set(given(plan)) == {"w-0", "w-1", "w-3", "w-4"}
    assert plan.gangs == ()
    assert "2 Insufficient nvidia.com/gpu" in messages(plan)["w-2"]
    assert all(keys.BOUND_RANK not in p.annotations for p in plan.placements)


def test_members_of_one_gang_share_a_node_best_together() -> None:
    world = GpuWorld().add(measured("n1"), group("g", 2))
    world.add(gpu_pod("w-0", 3, gang="g"), gpu_pod("w-1", 3, gang="g"))
    plan = world.run()
    assert given(plan) == {"w-0": ("n1", (0, 1, 3)), "w-1": ("n1", (5, 6, 7))}
    assert [allocation(p)["sees"] for p in plan.placements] == [[0, 1, 3], [5, 6, 7]]


def test_a_lower_layer_beats_faster_links() -> None:
    world = GpuWorld().add(TWO_LAYERS, group("g", 2, wish({"blockLayer": "Prefer"})))
    nodes = [("n1", "b1", M_), ("n2", "b1", M_), ("n3", "b2", [[10] * 8] * 8)]
    for name, block, matrix in nodes:
        world.add(gpu_node(name, {"block": block, "spine": "s"}), device(matrix, name=name))
    for name in ("n1", "n2"):
        world.add(gpu_pod(f"busy-{name}", 4, at=name, held=(4, 5, 6, 7)))
    world.add(gpu_pod("w-0", 4, gang="g", group="job"), gpu_pod("w-1", 4, gang="g", group="job"))
    assert {node for node, _ in given(world.plan()).values()} == {"n3"}


M_ = UNIFORM


def test_containers_split_the_pods_gpus_by_their_index() -> None:
    world = GpuWorld().add(measured("n1"), gpu_pod("x", 4, at="n1", held=(0, 1, 2, 3)), gpu_pod("p", 2, 0, 2))
    (placement,) = world.plan().placements
    assert allocation(placement) == {"0": [4, 7], "2": [5, 6], "sees": [4, 5, 6, 7]}
    notes = placement.annotations
    assert notes[keys.GPU_NVIDIA_VISIBLE] == "GPU-n1-4,GPU-n1-5,GPU-n1-6,GPU-n1-7"
    assert notes[keys.GPU_CUDA_VISIBLE_PREFIX + "2"] == "GPU-n1-5,GPU-n1-6"
    assert keys.GPU_CUDA_VISIBLE_PREFIX + "1" not in notes
    cards = json.loads(notes[keys.DEVICE_ALLOCATED])["gpu"]
    assert [(card["minor"], card["id"]) for card in cards] == [(i, f"GPU-n1-{i}") for i in (4, 5, 6, 7)]


def test_a_holder_that_tells_nothing_makes_its_node_count_only() -> None:
    world = GpuWorld().add(measured("n1"), gpu_pod("x", 2, at="n1"), gpu_pod("p", 4), gpu_pod("q", 4, created=1))
    plan = world.run()
    assert given(plan) == {"p": ("n1", ())}
    assert not [key for key in plan.placements[0].annotations if "gpu" in key or "cuda" in key]
    assert "1 Insufficient nvidia.com/gpu" in messages(plan)["q"]


@pytest.mark.parametrize(
    "annotations",
    [
        {keys.GPU_ALLOCATION: "{"},
        {keys.GPU_ALLOCATION: '{"allocatedGPUs": {"0": ["1"]}}'},
        {keys.GPU_ALLOCATION: '{"allocatedGPUs": {"0": ["1", "9"]}}'},
        {keys.DEVICE_ALLOCATED: '{"gpu": [{"minor": 1}]}'},
        {"ALIYUN_COM_GPU_ID_x": "a"},
    ],
)
def test_a_holder_that_tells_too_little_is_not_guessed(annotations: dict[str, str]) -> None:
    world = GpuWorld().add(measured("n1"), gpu_pod("x", 2, at="n1", annotations=annotations), gpu_pod("p", 2))
    assert given(world.plan()) == {"p": ("n1", ())}


@pytest.mark.parametrize(
    "annotations",
    [
        {keys.DEVICE_ALLOCATED: '{"gpu": [{"minor": 0}, {"minor": 3}]}'},
        {"ALIYUN_COM_GPU_ID_0": "a", "ALIYUN_COM_GPU_ID_3": "b"},
        {keys.GPU_ALLOCATION: '{"allocatedGPUs": {"0": ["0"]}, "visibleGPUs": ["0", "3"]}'},
    ],
)
def test_every_written_form_of_holding_is_read(annotations: dict[str, str]) -> None:
    world = GpuWorld().add(measured("n1"), gpu_pod("x", 2, at="n1", annotations=annotations), gpu_pod("p", 2))
    assert given(world.plan()) == {"p": ("n1", (1, 2))}


def test_sick_gpus_are_never_given_and_held_ones_not_taken_off_twice() -> None:
    world = GpuWorld().add(measured("n1", sick=(0, 1)), gpu_pod("x", 1, at="n1", held=(0,)), gpu_pod("p", 6))
    assert given(world.run()) == {"p": ("n1", (2, 3, 4, 5, 6, 7))}


def reasons(world: GpuWorld, name: str) -> str:
    return messages(world.plan())[name].partition(" preemption:")[0]


def test_too_few_healthy_devices_are_said() -> None:
    world = GpuWorld().add(measured("n1", sick=(0, 1, 2)), gpu_pod("p", 6))
    assert reasons(world, "p") == (
        "0/1 nodes are available: 1 Insufficient gpu devices. never fits: no placement on the empty cluster."
    )


def test_a_minimum_is_hard_and_speaks_of_the_measured_value() -> None:
    world = GpuWorld().add(measured("n1", "n2"), gpu_node("n3"))
    world.add(gpu_pod("x", 4, at="n1", held=(3, 4, 6, 7)), gpu_pod("y", 3, at="n2", held=(0, 1, 2)))
    world.add(gpu_pod("p", 4, annotations={MIN: "40"}), gpu_pod("q", 4, annotations={MIN: "40.0"}, created=1))
    plan = world.plan()
    assert given(plan) == {"p": ("n2", (4, 5, 6, 7))}
    assert "node(s) lack free GPUs linked at 40.0 GB/s or more" in messages(plan)["q"]


def test_a_minimum_that_is_no_number_keeps_the_pod_waiting_with_a_warning() -> None:
    world = GpuWorld().add(measured("n1"), gpu_pod("p", 2, annotations={MIN: "fast"}))
    plan = world.plan()
    assert not plan.placements
    assert "'fast' is not a positive number" in messages(plan)["p"]
    assert any(obj == "Pod/default/p" for obj, _ in plan.warnings)


def test_parts_of_a_card_are_refused() -> None:
    world = GpuWorld().add(gpu_node("n1"), gpu_pod("p", 0, requests={}))
    half = gpu_pod("h", 0)
    half.spec.containers[0].resources.requests["koordinator.sh/gpu"] = "50"
    world.add(half)
    assert "fractional GPUs are not supported" in messages(world.plan())["h"]


TABLE = {
    "2": [{"minors": [0, 1], "allocationScore": 1}, {"minors": [2, 3], "allocationScore": 2}],
    "4": [{"minors": [0, 1, 2, 3], "allocationScore": 1}],
}
HONOR = {keys.GPU_PARTITION_POLICY: "Honor"}


def partitioned(labels: dict[str, str] | None = None) -> list[object]:
    notes = {keys.GPU_PARTITIONS: json.dumps(TABLE)}
    return [gpu_node("n1", labels, gpus=4), device([[9] * 4] * 4, annotations=notes)]


def test_the_best_listed_set_is_preferred() -> None:
    assert given(GpuWorld().add(partitioned(), gpu_pod("p", 2)).plan()) == {"p": ("n1", (2, 3))}


def test_under_honor_only_listed_sets_are_given() -> None:
    world = GpuWorld().add(partitioned(HONOR), gpu_pod("x", 2, at="n1", held=(0, 2)), gpu_pod("p", 2))
    assert "1 Insufficient Partitioned GPU Devices" in reasons(world, "p")
    world = GpuWorld().add(partitioned(HONOR), gpu_pod("p", 3))
    assert "1 node(s) Unsupported number of GPU requests" in reasons(world, "p")
    world = GpuWorld().add(gpu_node("n1", HONOR), device(UNIFORM), gpu_pod("p", 2))
    assert "1 node(s) missing GPU Partition Table" in reasons(world, "p")


def test_a_pod_may_restrict_itself_to_listed_sets() -> None:
    spec = {keys.GPU_PARTITION_SPEC: '{"allocatePolicy": "Restricted"}'}
    world = GpuWorld().add(partitioned(), gpu_pod("x", 1, at="n1", held=(3,)), gpu_pod("p", 3, annotations=spec))
    assert "1 node(s) Unsupported number of GPU requests" in reasons(world, "p")


def test_known_models_have_aligned_blocks() -> None:
    world = GpuWorld().add(gpu_node("n1", {keys.GPU_MODEL: "NVIDIA-H100-80GB"}), device(None, size=8))
    world.add(gpu_pod("x", 1, at="n1", held=(0,)), gpu_pod("p", 2))
    assert given(world.plan()) == {"p": ("n1", (2, 3))}


def test_nodes_that_deliver_by_env_want_the_injected_variables() -> None:
    world = GpuWorld().add(gpu_node("n1"), device(UNIFORM, labels={keys.GPU_DELIVERY: "env"}))
    bare = gpu_pod("p", 2)
    world.add(bare)
    assert "deliver GPUs by env and the pod lacks the injected variables" in reasons(world, "p")
    world.add(inject(bare, (GPU,)))
    assert given(world.plan()) == {"p": ("n1", (0, 1))}


def test_a_node_without_known_gpus_is_no_place_for_delivery_by_env() -> None:
    world = GpuWorld(Gpu(delivery="env")).add(gpu_node("n1"), inject(gpu_pod("p", 2), (GPU,)))
    assert "known by count only" in reasons(world, "p")


def test_assumed_pods_hold_their_gpus_until_they_are_forgotten() -> None:
    world = GpuWorld().add(measured("n1"), gpu_pod("p", 2), gpu_pod("q", 2, created=1))
    first = next(p for p in world.plan().placements if p.pod_key == "default/p")
    world.state.assume("default/p", "n1", devices=first.devices)
    assert given(world.plan()) == {"q": ("n1", (1, 2))}
    book, pod = world.state.families[GPUS], world.state.pod("default/q")
    assert pod is not None
    wanted = [PlannedAllocation(pod, "n1", first.devices[GPUS], {})]
    assert book.is_lost(wanted, (), new_pods=())
    assert not book.is_lost(wanted, {"default/p"}, new_pods=())
    world.state.forget("default/p")
    assert not book.is_lost(wanted, (), new_pods=())


def test_half_a_group_is_no_group_and_warned_of() -> None:
    world = GpuWorld().add(measured("n1"), gpu_pod("p", 2, labels={keys.GPU_GROUP_NAME: "job"}))
    plan: RoundPlan = world.plan()
    assert allocation(plan.placements[0])["sees"] == [0, 3]
    assert any("only together" in text for _, text in plan.warnings)


def preempting(*objects: object) -> tuple[dict[str, tuple[str, tuple[int, ...]]], list[str]]:
    """What a round binds, and whom it evicts."""
    plan = GpuWorld().add(measured("n1"), *objects).plan()
    return given(plan), [eviction.pod_key.partition("/")[2] for eviction in plan.evictions]


def test_victims_free_gpus_for_those_who_are_worth_more() -> None:
    bound, gone = preempting(gpu_pod("x", 8, at="n1", held=range(8), priority=0), gpu_pod("p", 8, priority=10))
    assert (bound, gone) == ({"p": ("n1", tuple(range(8)))}, ["x"])


def test_victims_stand_between_linked_gpus() -> None:
    bound, gone = preempting(
        gpu_pod("a", 1, at="n1", held=(3,), priority=0),
        gpu_pod("b", 1, at="n1", held=(4,), priority=0),
        gpu_pod("c", 2, at="n1", held=(5, 7), priority=0),
        gpu_pod("p", 4, priority=10, annotations={MIN: "40"}),
    )
    assert (bound, gone) == ({"p": ("n1", (0, 1, 2, 3))}, ["a"])


def test_nobody_is_evicted_for_gpus_that_are_sick() -> None:
    world = GpuWorld().add(measured("n1", sick=range(1, 8)), gpu_pod("x", 1, at="n1", held=(0,), priority=0))
    plan = world.add(gpu_pod("p", 2, priority=10)).plan()
    assert not plan.evictions and not plan.placements
    assert "1 Insufficient gpu devices" in messages(plan)["p"]


def test_a_gang_goes_though_one_of_its_pods_is_on_a_node_that_is_gone() -> None:
    """Pods stay for minutes when their node is deleted, and so may its Device. koordpy deletes no pod there, because a
    kubelet may still run it (repair.md 4.1)."""
    world = GpuWorld().add(measured("n1"), device(M, name="n2"), group("old", 2))
    world.add(*(gpu_pod(f"old-{i}", 8, held=range(8), at=at, gang="old") for i, at in enumerate(("n1", "n2"))))
    world.add(gpu_pod("new", 8, priority=5, created=60))
    plan = world.plan()
    assert given(plan) == {"new": ("n1", tuple(range(8)))}
    assert [one.pod_key for one in plan.evictions] == ["default/old-0"]


def promised(name: str, count: int, at: str) -> Pod:
    """A pod of another scheduler that is nominated to a node."""
    wire = gpu_pod(name, count, priority=5, scheduler="default-scheduler")
    return replace(wire, status=replace(wire.status, nominated_node_name=at))


@pytest.mark.parametrize("members", [1, 2])
def test_nominated_pods_take_gpus_that_are_healthy(members: int) -> None:
    """Seven of eight are, two are promised: five are left, of which six of the resource's eight are free."""
    world = GpuWorld().add(*measured("n1", sick=(0,)), promised("h", 2, "n1"))
    gang = [gpu_pod(f"p-{i}", 6 // members, priority=4, labels={keys.LABEL_POD_GROUP: "g"}) for i in range(members)]
    world.add(group("g", members), *gang)
    assert "Insufficient gpu devices" in reasons(world, "p-0") or "whole gang" in reasons(world, "p-0")
    world.add(measured("n1")[1])
    assert len(world.plan().placements) == members


def test_nobody_is_evicted_for_room_that_nominated_pods_will_take() -> None:
    lesser = gpu_pod("l", 4, held=range(1, 5), at="n1")
    world = GpuWorld().add(*measured("n1", sick=(0,)), promised("h", 2, "n1"), lesser, gpu_pod("p", 6, priority=4))
    plan = world.plan()
    assert (plan.placements, plan.evictions) == ((), ())
    world.add(measured("n1")[1])
    assert [one.pod_key for one in world.plan().evictions] == ["default/l"]
