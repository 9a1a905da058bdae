# SPDX-License-Identifier: Apache-2.0
"""Machines for tests: the measured table of a DGX-1, its second measurement, bridges, switches."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from koordpy.api.custom_objects import Device, DeviceEntry, DeviceMatrices, DeviceMatrix, DeviceSpec, DeviceTopology
from koordpy.api.objects import ObjectMeta
from koordpy.config.configuration import Gpu
from koordpy.devices.gpu.choice.gpu_choice import Objective
from koordpy.devices.gpu.choice.gpu_choosers import chooser_of
from koordpy.devices.gpu.choice.gpu_wants import PodWant, want_on
from koordpy.devices.gpu.gpu_machine import Machine, read_machine
from koordpy.devices.links.device_masks import bits_of

M = [
    [750.48, 48.39, 48.33, 96.41, 15.77, 15.52, 96.4, 15.74],
    [48.39, 753.38, 96.46, 48.38, 4.64, 16.93, 16.98, 96.39],
    [48.38, 96.25, 751.92, 96.48, 48.39, 17.57, 17.59, 16.72],
    [96.25, 48.39, 96.43, 750.48, 15.45, 48.39, 15.88, 14.62],
    [5.0, 16.81, 48.38, 15.98, 755.56, 96.39, 48.38, 96.44],
    [15.8, 16.93, 17.5, 48.39, 96.25, 751.92, 96.23, 48.38],
    [96.42, 16.75, 17.47, 15.89, 48.35, 96.28, 754.1, 48.33],
    [15.65, 96.2, 16.77, 15.71, 96.25, 48.38, 48.33, 754.83],
]
"""GB/s of a machine with NVLink of one and two lanes; classes 4.64, 14.62, 48.33 and 96.20."""

BRIDGES = [["NV4" if i // 2 == j // 2 else "SYS" for j in range(8)] for i in range(8)]
"""Cards bridged in pairs."""

UNIFORM = [[370] * 8 for _ in range(8)]
"""One switch for all."""


def device(
    matrix: Sequence[Sequence[Any]] | str | None,
    *,
    name: str = "n1",
    size: int | None = None,
    sick: Collection[int] = (),
    links: Sequence[Sequence[str]] | str | None = None,
    places: Sequence[Mapping[str, Any]] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Device:
    """A Device with a measured matrix, link classes, or both; texts go in as they are."""
    count = size or len(matrix or links or ())
    given = []
    for kind, one in (("bandwidth", matrix), ("links", links)):
        if one is not None:
            given.append(DeviceMatrix(name=kind, topology=one if isinstance(one, str) else json.dumps(one)))
    entries = [
        DeviceEntry(
            type="gpu",
            minor=i,
            id=f"GPU-{name}-{i}",
            health=i not in sick,
            topology=DeviceTopology(**places[i]) if places else None,
        )
        for i in range(count)
    ]
    meta = ObjectMeta(name=name, labels=dict(labels or {}), annotations=dict(annotations or {}))
    return Device(metadata=meta, spec=DeviceSpec(topologies=DeviceMatrices(gpu=given), devices=entries))


def machine(
    matrix: Any = None, *, config: Gpu | None = None, node: Mapping[str, str] | None = None, **more: Any
) -> Machine:
    """The machine of such a Device; node: labels of its node."""
    found = read_machine(device(matrix, **more), {}, node or {}, config or Gpu())
    assert found is not None
    return found


def mask(gpus: Collection[int]) -> int:
    return sum(1 << i for i in gpus)


def chosen(
    on: Machine,
    free: Collection[int],
    *pods: tuple[int, ...] | PodWant,
    held: Collection[int] = (),
    objective: Objective = "bottleneck",
) -> list[list[list[int]]] | None:
    """Per pod the GPUs of each container; a pod is the GPUs of its containers."""
    wants = tuple(want_on(on, p if isinstance(p, PodWant) else PodWant(sum(p), p)) for p in pods)
    found = chooser_of(on).choose(mask(free), mask(held), wants, objective)
    return None if found is None else [[bits_of(one) for one in containers] for _, containers in found]
