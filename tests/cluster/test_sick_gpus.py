# SPDX-License-Identifier: Apache-2.0
"""A node's figure of GPUs as Devices, nodes and holders change one after the other: as from a fresh
start."""

import random
from typing import Any

import pytest
from msgspec import convert

from koordpy.api.custom_objects import Device
from koordpy.api.objects import Node, Pod
from koordpy.cache.cluster_state import ClusterState
from koordpy.config.configuration import Gpu
from koordpy.devices.family_registry import make_state
from tests.scenarios.test_gpu_rules import GPU, device, node, pod

SIZE = 4
DELIVERY = "scheduling.koordinator.sh/gpu-delivery"


def stated(state: ClusterState) -> tuple[int, int]:
    """GPUs of the node in the array, and in the node's own amounts."""
    snapshot = state.snapshot(0.0)
    return int(snapshot.allocatable[0, snapshot.columns[GPU]]), snapshot.nodes[0].allocatable[GPU]


def test_the_figure_is_that_of_the_node_again_once_the_holder_is_gone() -> None:
    state = make_state(gpu=Gpu())
    state.upsert(convert(node(gpus=SIZE - 1), Node))
    state.upsert(convert(device(SIZE, sick=[0], labels={DELIVERY: "device-plugin"}), Device))
    assert stated(state) == (3, 3)
    state.upsert(convert(pod("h", 1, at="n1", held=[0]), Pod))
    assert stated(state) == (4, 4)
    state.delete(Pod, "default/h")
    assert stated(state) == (3, 3)


@pytest.mark.parametrize("seed", range(30))
def test_the_figure_follows_every_change(seed: int) -> None:
    dice = random.Random(seed)
    kept = make_state(gpu=Gpu())
    objects: dict[str, Any] = {"node": convert(node(gpus=SIZE), Node)}
    kept.upsert(objects["node"])
    for _ in range(40):
        what = dice.choice(["node", "device", "device", "pod", "pod", "gone", "lost"])
        if what == "node":
            objects["node"] = convert(node(gpus=dice.randint(1, SIZE)), Node)
            kept.upsert(objects["node"])
        elif what == "device":
            labels = {DELIVERY: dice.choice(["device-plugin", "device-plugin", "foreign"])}
            sick = dice.sample(range(SIZE), dice.randint(0, 2))
            objects["device"] = convert(device(SIZE, sick=sick, labels=labels), Device)
            kept.upsert(objects["device"])
        elif what == "lost":
            objects.pop("device", None)
            kept.delete(Device, "n1")
        elif what == "pod":
            name = f"p{dice.randrange(3)}"
            held = [] if dice.random() < 0.1 else [int(name[1:])]
            objects[name] = convert(pod(name, 1, at="n1", held=held), Pod)
            kept.upsert(objects[name])
        else:
            name = f"p{dice.randrange(3)}"
            objects.pop(name, None)
            kept.delete(Pod, f"default/{name}")
        fresh = make_state(gpu=Gpu())
        for one in objects.values():
            fresh.upsert(one)
        found = stated(kept)
        assert found == stated(fresh)
        assert found[0] == found[1]
