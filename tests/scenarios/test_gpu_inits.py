# SPDX-License-Identifier: Apache-2.0
"""GPUs of init containers and sidecars: how many a pod needs, who has which, and what is written of it."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import Container, Pod, ResourceRequirements
from koordpy.cli.main import main
from koordpy.plan.round_plan import Placement
from tests.given_devices import numbers_of
from tests.planning.gpu.machines import UNIFORM, M
from tests.scenarios.gpus import GPU, GpuWorld, gpu_pod, measured

Init = tuple[str, int]
"""`once` or `side`, and GPUs."""
SIDE, ONCE = "side", "once"


def with_inits(own: Pod, *inits: Init) -> Pod:
    """The pod with init containers."""
    made = [
        Container(
            name=f"i{n}",
            image="img",
            restart_policy="Always" if kind == SIDE else "",
            resources=ResourceRequirements(requests={GPU: str(count)} if count else {}),
        )
        for n, (kind, count) in enumerate(inits)
    ]
    return replace(own, spec=replace(own.spec, init_containers=made))


def given_to(placement: Placement) -> dict[str, list[int]]:
    """Place of a container -> the GPUs that its variable names."""
    prefix = keys.GPU_CUDA_VISIBLE_PREFIX
    return {
        key.removeprefix(prefix): [int(one.rpartition("-")[2]) for one in text.split(",")]
        for key, text in placement.annotations.items()
        if key.startswith(prefix)
    }


@dataclass(frozen=True)
class Case:
    inits: list[Init]
    containers: tuple[int, ...]
    answer: dict[str, list[int]]
    held: tuple[int, ...] = ()
    matrix: Any = field(default_factory=lambda: M)


# M: quads 0..3 and 4..7, the best pairs 0-3, 1-2, 2-3, 4-5, 4-7, 5-6
CASES = {
    "an init container uses what the container gets": Case([(ONCE, 2)], (2,), {"init-0": [0, 3], "0": [0, 3]}),
    "a small one the first of it": Case([(ONCE, 1)], (2,), {"init-0": [0], "0": [0, 3]}),
    "a large one all that the pod holds": Case(
        [(ONCE, 4)], (2,), {"init-0": [4, 5, 6, 7], "0": [4, 5]}, held=(0, 1, 2, 3)
    ),
    "a sidecar has its own beside the container": Case([(SIDE, 1)], (2,), {"init-0": [2], "0": [0, 3]}),
    "two sidecars and two containers have four sets": Case(
        [(SIDE, 1), (SIDE, 1)],
        (1, 1),
        {"0": [4], "1": [5], "init-0": [6], "init-1": [7]},
        held=(0, 1, 2, 3),
    ),
    "what runs once before a sidecar may use the sidecar's": Case(
        [(ONCE, 3), (SIDE, 1)], (2,), {"init-0": [0, 1, 2], "init-1": [2], "0": [0, 1]}, matrix=UNIFORM
    ),
    "what runs once after a sidecar may not": Case(
        [(SIDE, 1), (ONCE, 3)], (2,), {"init-0": [2], "init-1": [0, 1, 3], "0": [0, 1]}, matrix=UNIFORM
    ),
    "GPUs of init containers alone": Case([(ONCE, 2), (ONCE, 1)], (0,), {"init-0": [0, 3], "init-1": [0]}),
    "a sidecar alone": Case([(SIDE, 2)], (0,), {"init-0": [0, 3]}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_each_container_gets_the_gpus_of_the_table(case: Case) -> None:
    world = GpuWorld().add(measured("n1", matrix=case.matrix))
    if case.held:
        world.add(gpu_pod("x", len(case.held), at="n1", held=case.held))
    world.add(with_inits(gpu_pod("p", *case.containers), *case.inits))
    (placement,) = world.plan().placements
    assert given_to(placement) == case.answer
    assert sorted({gpu for gpus in case.answer.values() for gpu in gpus}) == list(numbers_of(placement))


def test_the_annotation_lists_containers_by_their_index_and_shows_all() -> None:
    world = GpuWorld().add(measured("n1"), with_inits(gpu_pod("p", 2), (SIDE, 1)))
    (placement,) = world.plan().placements
    said = json.loads(placement.annotations[keys.GPU_ALLOCATION])
    assert said == {"allocatedGPUs": {"0": ["0", "3"]}, "visibleGPUs": ["0", "2", "3"]}


def test_a_sidecar_in_a_group_holds_its_gpus_although_the_group_shows_more() -> None:
    world = GpuWorld().add(measured("n1", matrix=UNIFORM))
    world.add(with_inits(gpu_pod("w-0", 2, group="job"), (SIDE, 1)), gpu_pod("w-1", 2, group="job"))
    world.run()
    world.add(gpu_pod("p", 3))
    (placement,) = world.plan().placements
    assert numbers_of(placement) == (5, 6, 7)


def peak(inits: list[Init], containers: list[int]) -> int:
    """GPUs in use at the busiest moment of a pod's life, followed step by step."""
    sidecars, most = 0, 0
    for kind, count in inits:
        most = max(most, sidecars + count)
        sidecars += count if kind == SIDE else 0
    return max(most, sidecars + sum(containers))


lives = st.tuples(
    st.lists(st.tuples(st.sampled_from([SIDE, ONCE]), st.integers(0, 3)), max_size=4),
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
)


@given(st.lists(lives, min_size=1, max_size=3), st.sampled_from(["M", "UNIFORM"]), st.booleans())
@settings(max_examples=150, deadline=None)
def test_at_no_moment_of_a_pod_s_life_two_containers_share_a_gpu(
    pods: list[tuple[list[Init], list[int]]], matrix: str, group: bool
) -> None:
    world = GpuWorld().add(measured("n1", matrix={"M": M, "UNIFORM": UNIFORM}[matrix]))
    for n, (inits, containers) in enumerate(pods):
        world.add(with_inits(gpu_pod(f"p-{n}", *containers, group="job" if group else "", created=n), *inits))
    taken: set[int] = set()
    for placement in world.run().placements:
        inits, containers = pods[int(placement.pod_key.rpartition("-")[2])]
        assert len(numbers_of(placement)) == peak(inits, containers)
        assert not taken & set(numbers_of(placement))
        taken |= set(numbers_of(placement))
        gpus = given_to(placement) if numbers_of(placement) else {}
        beside: set[int] = set()
        for place, (kind, count) in [(f"init-{i}", one) for i, one in enumerate(inits)] + [
            (str(i), (SIDE, count)) for i, count in enumerate(containers)
        ]:
            own = set(gpus.get(place, ()))
            assert len(own) == count and not own & beside and own <= set(numbers_of(placement))
            beside |= own if kind == SIDE else set()


def test_simulate_shows_what_a_live_run_would_write(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    limits = {"resources": {"limits": {GPU: 1}}}
    spec = {
        "schedulerName": "koord-scheduler",
        "initContainers": [
            {"name": "fetch", "image": "x", **limits},
            {"name": "watch", "image": "x", "restartPolicy": "Always", **limits},
        ],
        "containers": [{"name": "train", "image": "x", **limits}],
    }
    devices = [{"type": "gpu", "minor": n, "id": f"GPU-{n}", "health": True} for n in range(2)]
    allocatable = {"cpu": 8, "memory": "8Gi", "pods": 10, GPU: 2}
    documents = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "n1"},
            "status": {"allocatable": allocatable},
        },
        {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "Device",
            "metadata": {"name": "n1", "labels": {keys.GPU_DELIVERY: "env"}},
            "spec": {"devices": devices},
        },
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec},
    ]
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    assert main(["simulate", "-f", str(path), "-o", "yaml"]) == 0
    (binding,) = yaml.safe_load(capsys.readouterr().out)["bindings"]
    written = {key.rpartition("/")[2]: text for key, text in binding["annotations"].items()}
    assert written["nvidia-visible-devices"] == "GPU-0,GPU-1"
    assert written["cuda-visible-devices.0"] == written["cuda-visible-devices.init-0"] == "GPU-0"
    assert written["cuda-visible-devices.init-1"] == "GPU-1"
