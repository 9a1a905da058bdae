# SPDX-License-Identifier: Apache-2.0
"""Devices that plans give by name, as tests ask about them."""

from collections.abc import Sequence
from typing import Any

from koordpy.devices.ascend.tables.npu_book import NPUS
from koordpy.devices.gpu.gpu_machine import GPUS
from koordpy.plan.round_plan import Placement
from koordpy.pods.pod_info import PodInfo


def numbers_of(placement: Placement) -> tuple[int, ...]:
    """GPUs (minors) or NPUs that a pod is given by name; empty for none."""
    found: tuple[int, ...] = next((own for name, own in placement.devices.items() if name in (GPUS, NPUS)), ())
    return found


def given_to_pod(pod: PodInfo, numbers: Sequence[int]) -> dict[str, Any]:
    """Numbers of devices as given of the family that a pod asks, of GPUs if it asks none."""
    family = next((name for name in pod.asks if name in (GPUS, NPUS)), GPUS)
    return {family: tuple(numbers)} if numbers else {}
