# SPDX-License-Identifier: Apache-2.0
"""Reads the GPUs of a pod from its annotations, and rewrites the annotations after an exchange (gpu-topology.md 7).

The scheduler writes the annotations with the Binding. If the kubelet gave two pods each the GPUs that were reserved for
the other, the pods exchange their GPUs (`delivery_ledger`), and their annotations are rewritten.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from koordpy.agent.gpu_facts import MachineGpu
from koordpy.api import keys

ALLOCATED, VISIBLE = "allocatedGPUs", "visibleGPUs"
"""Keys in the JSON value of the main annotation: GPUs by container, and GPUs that the pod sees."""
_UNREADABLE = (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError)
"""Errors of reading an arbitrary text. They are caught, so that bad annotations of one pod affect no other pod."""


def places_of(annotations: Mapping[str, str], minors: Mapping[str, int]) -> dict[str, tuple[int, ...]] | None:
    """Returns place of a container -> minors of its GPUs; None if the annotations are unreadable.

    The place is the container's index; for an init container `init-` and its index. minors: id or minor as written in
    the annotations -> minor.
    """
    prefix = f"{keys.GPU_CUDA_VISIBLE_PREFIX}{keys.INIT_PREFIX}"
    try:
        value = json.loads(annotations[keys.GPU_ALLOCATION])
        places = {str(int(n)): tuple(int(m) for m in listed) for n, listed in value[ALLOCATED].items()}
        for key, text in annotations.items():
            if key.startswith(prefix):
                places[key.removeprefix(keys.GPU_CUDA_VISIBLE_PREFIX)] = tuple(minors[one] for one in text.split(","))
        return places
    except _UNREADABLE:
        return None


def both(annotations: Mapping[str, str], places: Mapping[str, Sequence[MachineGpu]]) -> dict[str, str | None]:
    """Returns annotations with both the old and the new GPUs of a pod; empty if its annotations are unreadable.

    They are written to two pods before their exchange, so that none of their GPUs looks free to the scheduler. places:
    place of a container (`places_of`) -> its new GPUs.
    """
    if (known := _held(annotations)) is None:
        return {}
    before, visible = known
    held = sorted(before | {gpu.minor for gpus in places.values() for gpu in gpus})
    return {keys.GPU_ALLOCATION: _json({ALLOCATED: {"0": _texts(held)}, VISIBLE: _texts(sorted({*visible, *held}))})}


def annotation_changes(
    annotations: Mapping[str, str], places: Mapping[str, Sequence[MachineGpu]]
) -> dict[str, str | None]:
    """Returns the changes of a pod's annotations after its containers got these GPUs; None deletes a key.

    places: place of a container -> its GPUs. A visible GPU of another pod in the group stays visible. Keys that the pod
    lacks are not added. Empty if its annotations are unreadable.
    """
    if (known := _held(annotations)) is None:
        return {}
    before, visible = known
    gpus = {gpu.minor: gpu for own in places.values() for gpu in own}
    shown = sorted((visible - before) | gpus.keys())
    numbered = {n: _texts(sorted(g.minor for g in own)) for n, own in places.items() if n.isdigit()}
    names = _names(annotations, {minor: gpu.uuid for minor, gpu in gpus.items()})
    lists = {f"{keys.GPU_CUDA_VISIBLE_PREFIX}{n}": sorted(g.minor for g in own) for n, own in places.items()}
    out: dict[str, str | None] = {
        keys.GPU_ALLOCATION: _json({ALLOCATED: numbered, VISIBLE: _texts(shown)}),
        **{
            key: ",".join(names.get(minor, str(minor)) for minor in minors)
            for key, minors in {keys.GPU_NVIDIA_VISIBLE: shown, **lists}.items()
            if key in annotations
        },
        **_cards(annotations, before, gpus),
    }
    return {key: text for key, text in out.items() if annotations.get(key) != text}


def _held(annotations: Mapping[str, str]) -> tuple[set[int], set[int]] | None:
    """Returns (minors that a pod uses, minors that are visible to it); None if the annotations are unreadable."""
    try:
        value = json.loads(annotations[keys.GPU_ALLOCATION])
        held = {int(minor) for minors in value[ALLOCATED].values() for minor in minors}
        cards = json.loads(annotations.get(keys.DEVICE_ALLOCATED, "{}")).get("gpu", ())
        return held | {int(card["minor"]) for card in cards}, {int(minor) for minor in value.get(VISIBLE, ())}
    except _UNREADABLE:
        return None


def _names(annotations: Mapping[str, str], ids: Mapping[int, str]) -> dict[int, str]:
    """Returns minor -> name of the GPU in the pod's lists: its UUID, or its minor if it has none."""
    visible = json.loads(annotations[keys.GPU_ALLOCATION]).get(VISIBLE, ())
    listed = annotations.get(keys.GPU_NVIDIA_VISIBLE, "").split(",")
    known = dict(zip(map(int, visible), listed, strict=False)) if len(listed) == len(visible) else {}
    return {**known, **{minor: uuid or str(minor) for minor, uuid in ids.items()}}


def _cards(annotations: Mapping[str, str], before: set[int], gpus: Mapping[int, MachineGpu]) -> dict[str, str | None]:
    """Returns the changes of Koordinator's list of cards, and of the gpushare keys. before: minors of the old GPUs."""
    out: dict[str, str | None] = {}
    if keys.DEVICE_ALLOCATED in annotations:
        value: dict[str, Any] = json.loads(annotations[keys.DEVICE_ALLOCATED])
        old = {int(card["minor"]): card for card in value.get("gpu", ())}
        pattern: dict[str, Any] = next(iter(old.values()), {})
        cards = [
            old.get(minor) or {**pattern, "minor": minor, **({"id": gpu.uuid} if gpu.uuid else {})}
            for minor, gpu in sorted(gpus.items())
        ]
        out[keys.DEVICE_ALLOCATED] = _json({**value, "gpu": cards})
    if any(key.startswith(keys.GPUSHARE_ID_PREFIX) for key in annotations):
        out |= {f"{keys.GPUSHARE_ID_PREFIX}{minor}": None for minor in sorted(before - gpus.keys())}
        for minor in sorted(gpus.keys() - before):
            out[f"{keys.GPUSHARE_ID_PREFIX}{minor}"] = gpus[minor].uuid.rpartition("-")[2] or str(minor)
    return out


def _texts(minors: Sequence[int]) -> list[str]:
    """Returns minors as texts."""
    return [str(minor) for minor in minors]


def _json(value: Any) -> str:
    """Returns a value as JSON without spaces, as the scheduler writes it."""
    return json.dumps(value, separators=(",", ":"))
