# SPDX-License-Identifier: Apache-2.0
"""Nodes on which `nvidia.com/gpu` counts shares of GPUs or instances of MIG: by number, with the agent and without."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.scenarios.test_gpu_rules import Json, device, node, pod, run

__all__ = ["run"]
SLICES = {"nvidia.com/gpu.sharing-strategy": "time-slicing", "nvidia.com/gpu.replicas": "4"}
MPS = {"nvidia.com/gpu.sharing-strategy": "mps"}
REPLICAS = {"nvidia.com/gpu.replicas": "2"}
SINGLE = {"nvidia.com/mig.strategy": "single", "nvidia.com/gpu.product": "NVIDIA-H100-MIG-1g.10gb"}
WHOLE: tuple[Mapping[str, str], ...] = (
    {"nvidia.com/gpu.sharing-strategy": "none", "nvidia.com/gpu.replicas": "1"},
    {"nvidia.com/mig.strategy": "single", "nvidia.com/gpu.product": "NVIDIA-H100"},
    {"nvidia.com/mig.strategy": "mixed", "nvidia.com/gpu.product": "NVIDIA-H100-MIG-1g.10gb"},
    {"nvidia.com/gpu.replicas": "x"},
)
ONE_SHARE = "1 node(s) share GPUs: a container gets one share"


def singles(count: int) -> list[Json]:
    return [pod(f"p{i}", 1) for i in range(count)]


@pytest.mark.parametrize("labels", [SLICES, MPS, REPLICAS, SINGLE])
@pytest.mark.parametrize("sick", [(), (0, 1)])
def test_pods_fill_the_number_that_the_node_states(run: Any, labels: Mapping[str, str], sick: tuple[int, ...]) -> None:
    found = run(node(gpus=8, labels=labels), device(2, sick=sick), *singles(9))
    assert len(found.nodes) == 8 and all(found.gpus(name) is None for name in found.nodes)
    assert not found.warnings


@pytest.mark.parametrize("labels", WHOLE)
def test_other_labels_change_nothing(run: Any, labels: Mapping[str, str]) -> None:
    found = run(node(gpus=8, labels=labels), device(2), *singles(3))
    assert len(found.nodes) == 2 and all(found.gpus(name) is not None for name in found.nodes)


@pytest.mark.parametrize("with_device", [True, False])
def test_a_container_gets_one_share(run: Any, with_device: bool) -> None:
    objects = [node(gpus=8, labels=SLICES), *([device(2)] if with_device else [])]
    assert ONE_SHARE in run(*objects, pod("p", 2)).message
    assert run(*objects, pod("p", 1, 1)).nodes == {"p": "n1"}
    assert ONE_SHARE in run(*objects, pod("p", 1, 2)).message
    # instances of MIG have no such limit, and another node serves it
    assert run(node(gpus=8, labels=SINGLE), device(2), pod("p", 2)).nodes == {"p": "n1"}
    assert run(*objects, node("n2", gpus=2), pod("p", 2)).nodes == {"p": "n2"}


@pytest.mark.parametrize("delivery", ["env", "device-plugin"])
def test_the_agent_s_own_delivery_gives_whole_cards(run: Any, delivery: str) -> None:
    own = device(2, labels={"scheduling.koordinator.sh/gpu-delivery": delivery})
    found = run(node(gpus=8, labels=SLICES), own, *singles(3))
    assert len(found.nodes) == 2
    text = f"delivery {delivery} gives whole cards: node label nvidia.com/gpu.sharing-strategy is not read"
    assert f"warning: Device/n1: {text}\n" in found.warnings


def test_explain_says_what_would_help(run: Any) -> None:
    found = run(node(gpus=8, labels=SLICES), device(2), pod("p", 2), command="explain")
    assert found.out["nodes"][0]["reasons"][0]["code"] == "UnschedulableAndUnresolvable"
    assert found.out["wouldFitIf"] == ["it requested 1 nvidia.com/gpu (it requests 2)"]
