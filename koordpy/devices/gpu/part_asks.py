# SPDX-License-Identifier: Apache-2.0
"""Requests of pods for parts of devices: whether the pod is refused, and which resources are scheduled by number.

A part is a share of one GPU or a virtual device, requested by resource names of other schedulers or by annotations.
koordpy does not allocate parts yet. Most such requests are refused with their name, because placing the pod as if it
needed no GPU would be wrong. Source: gpu-topology.md 1.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from koordpy.api.keys import HUNDREDTHS
from koordpy.api.natural_order import natural_key
from koordpy.api.objects import Pod
from koordpy.api.quantity import units
from koordpy.config.configuration import GpuParts
from koordpy.config.part_names import ANNOTATIONS, PartHandling, handling_of, means_gpus
from koordpy.devices.gpu.gpu_machine import FRACTIONAL

PARTS = "parts"
"""Name of the family."""
FOR_A_PART = " asks for a part of a device"
"""End of the message about a refused request."""


@dataclass(frozen=True, slots=True)
class PartAsk:
    """The parts of a pod's spec and annotations that request parts of devices."""

    refusal: str = ""
    """Reason why the pod is never placed; empty for none."""
    counted: tuple[str, ...] = ()
    """Resources that are scheduled by number, in natural order."""
    ignored: tuple[str, ...] = ()
    """Warnings for annotations that have no effect."""


def part_ask(pod: Pod, requests: Mapping[str, int], parts: GpuParts, gpu_resources: Collection[str]) -> PartAsk | None:
    """Returns the request of a pending pod for parts; None for a pod without one.

    requests: amounts above 0 of the whole pod by resource name. parts: configuration of the names. gpu_resources: names
    of resources that count whole GPUs.
    """
    annotations = pod.metadata.annotations
    notes = [key for key in ANNOTATIONS if key in annotations] if annotations else []
    found = {
        name: handling
        for name in requests
        if "/" in name and (handling := handling_of(name, parts.aliases, parts.by_number)) is not None
    }
    split = any(name not in gpu_resources and _splits(pod, name, parts) for name in HUNDREDTHS if name in requests)
    if not (notes or found or split):
        return None
    refused = sorted((name for name, handling in found.items() if handling is PartHandling.REFUSED), key=natural_key)
    counted = (n for n, handling in found.items() if handling is PartHandling.COUNTED and n not in gpu_resources)
    refusal, ignored = "", tuple[str, ...]()
    if refused:
        refusal = f"unsupported: {refused[0]}{FOR_A_PART}"
    elif split:
        refusal = FRACTIONAL
    if notes and "kai" not in parts.aliases:
        ignored = tuple(f"annotation {key} of KAI-Scheduler is ignored: the pod gets no part of a GPU" for key in notes)
    elif notes and (own := [name for name in requests if name in gpu_resources or means_gpus(name)]):
        by = min(own, key=natural_key)
        ignored = tuple(f"annotation {key} ignored: the pod asks for GPUs by {by}" for key in notes)
    elif notes and not refusal:
        refusal = f"unsupported: annotation {notes[0]}{FOR_A_PART}"
    return PartAsk(refusal, tuple(sorted(counted, key=natural_key)) if not refusal else (), ignored)


def _splits(pod: Pod, name: str, parts: GpuParts) -> bool:
    """Returns whether a container requests a part of a card by a resource that is counted in hundredths."""
    if name in parts.by_number:
        return False
    asked = (
        {**one.resources.limits, **one.resources.requests}.get(name)
        for one in (*pod.spec.containers, *pod.spec.init_containers)
    )
    return any(raw is not None and units(name, raw) % 100 for raw in asked)
