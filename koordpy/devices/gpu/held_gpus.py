"""The GPUs that a pod on a node holds, read from the annotations of the pod (gpu-topology.md 2).

Three forms are read: our own allocation, the allocation of Koordinator, and the keys of gpushare.
Nothing is guessed: a pod whose GPUs cannot be told has no minors, and its node is known by count only.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from koordpy.api import keys
from koordpy.devices.gpu.gpu_machine import GPUS
from koordpy.pods.gang_refs import GroupKey
from koordpy.pods.pod_info import PodInfo


@dataclass(frozen=True, slots=True)
class GpuHolding:
    """GPUs of one pod on a node. minors: None where they cannot be told."""

    count: int
    minors: tuple[int, ...] | None
    group: GroupKey | None


def _numbers(raw: Any) -> set[int]:
    """Minors of a list of them, as text or numbers. Raises ValueError."""
    if not isinstance(raw, list):
        raise ValueError("no list")
    out = set()
    for one in raw:
        if isinstance(one, bool) or not isinstance(one, str | int):
            raise ValueError("no minor")
        out.add(int(one))
    return out


def _allocated(text: str, count: int) -> set[int]:
    """Minors of our own annotation; less than a pod holds where its init containers have more and its group shows
    others. Raises ValueError."""
    raw = json.loads(text)
    if not isinstance(raw, dict) or not isinstance(raw.get("allocatedGPUs", {}), dict):
        raise ValueError("no allocation")
    lists = list(raw.get("allocatedGPUs", {}).values())
    own = set().union(*(_numbers(one) for one in lists)) if lists else set()
    if len(own) < count:
        visible = _numbers(raw.get("visibleGPUs", []))
        if len(visible) == count:
            return visible
    return own


def _koordinator(text: str) -> set[int] | None:
    """Minors of Koordinator's annotation, None where it names no GPU. Raises ValueError."""
    raw = json.loads(text)
    if not isinstance(raw, dict):
        raise ValueError("no allocation")
    listed = raw.get("gpu")
    if listed is None:
        return None
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise ValueError("no list of GPUs")
    return _numbers([one.get("minor") for one in listed])


def _gpushare(annotations: Mapping[str, str]) -> set[int] | None:
    """Minors in the keys of the gpushare form, None without any. Raises ValueError."""
    tails = [k.removeprefix(keys.GPUSHARE_ID_PREFIX) for k in annotations if k.startswith(keys.GPUSHARE_ID_PREFIX)]
    return {int(tail) for tail in tails} if tails else None


def named_minors(annotations: Mapping[str, str], count: int) -> tuple[int, ...] | None:
    """Minors that a pod holds by what is written on it; None where nothing is, or less than it holds."""
    try:
        found: set[int] | None = None
        if keys.GPU_ALLOCATION in annotations:
            found = _allocated(annotations[keys.GPU_ALLOCATION], count)
        if found is None or len(found) < count:
            found = None
            if keys.DEVICE_ALLOCATED in annotations:
                found = _koordinator(annotations[keys.DEVICE_ALLOCATED])
            if found is None:
                found = _gpushare(annotations)
    except (ValueError, RecursionError):
        return None
    if found is None or len(found) < count:
        return None
    return tuple(sorted(found))


def holding_of(info: PodInfo, chips: tuple[int, ...] = ()) -> GpuHolding | None:
    """What a pod holds of the GPUs of its node; None for a pod that asks for none, whatever is written on it.

    chips: of a pod that is only assumed.
    """
    ask, parts = info.ask(GPUS), any(name in info.requests for name in keys.GPU_PARTS)
    if ask is None and not parts:
        return None
    count = ask.count if ask is not None else 0
    minors = chips or named_minors(info.pod.metadata.annotations, count)
    if minors and len(minors) > count and not parts:
        minors = None
    if not count and not minors:
        return None
    return GpuHolding(count, minors, info.group)
