# SPDX-License-Identifier: Apache-2.0
"""Nodes with GPUs, and pods that ask for them, for scenario tables."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from koordpy.api import keys
from koordpy.api.objects import Container, Node, Pod, ResourceRequirements
from koordpy.config.configuration import Gpu, KoordpyConfiguration
from koordpy.devices.family_registry import make_state
from koordpy.plan.round_plan import Placement, RoundPlan
from koordpy.planner.planning_round import plan_round
from tests.given_devices import numbers_of
from tests.planning.gpu.machines import M, device
from tests.scenarios.cluster import World, node, pod

GPU = "nvidia.com/gpu"


def gpu_node(name: str, labels: Mapping[str, str] | None = None, *, gpus: int = 8) -> Node:
    """A large node with GPUs."""
    return node(f"{name}:64", labels, **{GPU: str(gpus)})


def measured(*names: str, matrix: Any = M, **more: Any) -> list[Any]:
    """Nodes with a measured machine each."""
    return [one for name in names for one in (gpu_node(name, gpus=len(matrix)), device(matrix, name=name, **more))]


def gpu_pod(name: str, *counts: int, group: str = "", held: Collection[int] | None = None, **more: Any) -> Pod:
    """A pod with a container for each count. held: GPUs that it runs on, as we write them."""
    containers = [
        Container(name=f"c{i}", image="img", resources=ResourceRequirements(requests={GPU: str(n)} if n else {}))
        for i, n in enumerate(counts)
    ]
    labels = {keys.GPU_GROUP_NAME: group, keys.GPU_GROUP_REPLICA: "2"} if group else {}
    annotations = dict(more.pop("annotations", {}))
    if held is not None:
        names = [str(i) for i in sorted(held)]
        annotations[keys.GPU_ALLOCATION] = json.dumps({"allocatedGPUs": {"0": names}, "visibleGPUs": names})
    own = pod(name, annotations=annotations, labels={**labels, **more.pop("labels", {})}, **more)
    return _with(own, containers)


def _with(own: Pod, containers: list[Container]) -> Pod:
    from msgspec.structs import replace

    return replace(own, spec=replace(own.spec, containers=containers))


class GpuWorld(World):
    """A cluster whose configuration of GPUs is given."""

    def __init__(self, gpu: Gpu | None = None) -> None:
        super().__init__(make_state(gpu=gpu))
        self.config = KoordpyConfiguration(gpu=gpu or Gpu())

    def plan(self, **settings: Any) -> RoundPlan:
        return plan_round(self.snapshot(), self.config, **settings)


def allocation(placement: Placement) -> dict[str, list[int]]:
    """Container index -> GPUs of a placement, and what it sees."""
    raw = json.loads(placement.annotations[keys.GPU_ALLOCATION])
    own = {index: [int(one) for one in minors] for index, minors in raw["allocatedGPUs"].items()}
    return {**own, "sees": [int(one) for one in raw["visibleGPUs"]]}


def given(plan: RoundPlan) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Pod name -> (node, GPUs)."""
    return {p.pod_key.partition("/")[2]: (p.node, numbers_of(p)) for p in plan.placements}
