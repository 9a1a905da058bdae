# SPDX-License-Identifier: Apache-2.0
"""The GPUs that a pod on a node uses, read from annotations of the pod (gpu-topology.md 2).

Three forms are read: koordpy's allocation, Koordinator's allocation, and the keys of gpushare. Nothing is guessed: a
pod with unknown GPUs has no minors, and its node is count-only.
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
    """GPUs of one pod on a node."""

    count: int
    """Whole GPUs that the pod requests; 0 for a pod with parts of GPUs only."""
    minors: tuple[int, ...] | None
    """Minors of the GPUs; None if they are unknown."""
    group: GroupKey | None
    """GPU group of the pod; None for none."""


def _minors(raw: Any) -> set[int]:
    """Parses a list of minors, as text or numbers. Raises `ValueError`."""
    if not isinstance(raw, list):
        raise ValueError("no list")
    out = set()
    for one in raw:
        if isinstance(one, bool) or not isinstance(one, str | int):
            raise ValueError("no minor")
        out.add(int(one))
    return out


def _koordpy_minors(text: str, count: int) -> set[int]:
    """Parses the minors of koordpy's annotation. Raises `ValueError`.

    Usually they are the GPUs of the containers. An init container may have more GPUs than these, so that
    `allocatedGPUs` names too few. In this case `visibleGPUs` is used, if it has exactly `count` GPUs.
    """
    raw = json.loads(text)
    if not isinstance(raw, dict) or not isinstance(raw.get("allocatedGPUs", {}), dict):
        raise ValueError("no allocation")
    lists = list(raw.get("allocatedGPUs", {}).values())
    own = set().union(*(_minors(one) for one in lists)) if lists else set()
    if len(own) < count:
        visible = _minors(raw.get("visibleGPUs", []))
        if len(visible) == count:
            return visible
    return own


def _koordinator_minors(text: str) -> set[int] | None:
    """Parses the minors of Koordinator's annotation; None if it names no GPU. Raises `ValueError`."""
    raw = json.loads(text)
    if not isinstance(raw, dict):
        raise ValueError("no allocation")
    listed = raw.get("gpu")
    if listed is None:
        return None
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise ValueError("no list of GPUs")
    return _minors([one.get("minor") for one in listed])


def _gpushare_minors(annotations: Mapping[str, str]) -> set[int] | None:
    """Parses the minors in the keys of the gpushare form; None if there are none. Raises `ValueError`."""
    tails = [k.removeprefix(keys.GPUSHARE_ID_PREFIX) for k in annotations if k.startswith(keys.GPUSHARE_ID_PREFIX)]
    return {int(tail) for tail in tails} if tails else None


def named_minors(annotations: Mapping[str, str], count: int) -> tuple[int, ...] | None:
    """Returns the minors that the annotations of a pod state; None if they state none, fewer than `count`, or
    unreadable text."""
    try:
        found: set[int] | None = None
        if keys.GPU_ALLOCATION in annotations:
            found = _koordpy_minors(annotations[keys.GPU_ALLOCATION], count)
        if found is None or len(found) < count:
            found = None
            if keys.DEVICE_ALLOCATED in annotations:
                found = _koordinator_minors(annotations[keys.DEVICE_ALLOCATED])
            if found is None:
                found = _gpushare_minors(annotations)
    except (ValueError, RecursionError):
        return None
    if found is None or len(found) < count:
        return None
    return tuple(sorted(found))


def holding_of(info: PodInfo, chips: tuple[int, ...] = ()) -> GpuHolding | None:
    """Returns the GPUs that a pod uses on its node; None for a pod without a GPU request, whatever its annotations say.

    chips: minors that an assumed pod is allocated; empty if its annotations state them. More minors than requested mean
    that the GPUs are unknown, except for a pod with parts of GPUs.
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
