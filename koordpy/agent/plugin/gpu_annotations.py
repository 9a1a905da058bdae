"""What annotations say of a pod's GPUs, and what they are to say once it has others (gpu-topology.md 7)."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from koordpy.agent.gpu_facts import MachineGpu
from koordpy.api import keys

ALLOCATED, VISIBLE = "allocatedGPUs", "visibleGPUs"
_UNREADABLE = (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading any text may end with: one pod's must not keep the others' from being read."""


def places_of(annotations: Mapping[str, str], minors: Mapping[str, int]) -> dict[str, tuple[int, ...]] | None:
    """Place of a container -> its minors; `init-` and a number for an init container. None where that cannot be read.

    minors: of the node's GPUs, by the names that lists of ids have.
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
    """The pod holds what it had and what it was given: what two pods say while their exchange is written, so that at no
    moment one of their GPUs looks free to the scheduler."""
    if (known := _held(annotations)) is None:
        return {}
    before, visible = known
    held = sorted(before | {gpu.minor for gpus in places.values() for gpu in gpus})
    return {keys.GPU_ALLOCATION: _json({ALLOCATED: {"0": _texts(held)}, VISIBLE: _texts(sorted({*visible, *held}))})}


def given(annotations: Mapping[str, str], places: Mapping[str, Sequence[MachineGpu]]) -> dict[str, str | None]:
    """What differs once the pod's containers, by place, have the GPUs that they were given; None for a key that goes.

    A GPU that others of the pod's group show stays visible. Keys that the pod lacks are not added.
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
    """(minors that a pod holds, those that it shows); None where that cannot be read."""
    try:
        value = json.loads(annotations[keys.GPU_ALLOCATION])
        held = {int(minor) for minors in value[ALLOCATED].values() for minor in minors}
        cards = json.loads(annotations.get(keys.DEVICE_ALLOCATED, "{}")).get("gpu", ())
        return held | {int(card["minor"]) for card in cards}, {int(minor) for minor in value.get(VISIBLE, ())}
    except _UNREADABLE:
        return None


def _names(annotations: Mapping[str, str], ids: Mapping[int, str]) -> dict[int, str]:
    """Minor -> how the pod's lists name it: UUIDs, or minors on nodes whose GPUs have none."""
    visible = json.loads(annotations[keys.GPU_ALLOCATION]).get(VISIBLE, ())
    listed = annotations.get(keys.GPU_NVIDIA_VISIBLE, "").split(",")
    known = dict(zip(map(int, visible), listed, strict=False)) if len(listed) == len(visible) else {}
    return {**known, **{minor: uuid or str(minor) for minor, uuid in ids.items()}}


def _cards(annotations: Mapping[str, str], before: set[int], gpus: Mapping[int, MachineGpu]) -> dict[str, str | None]:
    """Koordinator's list of cards, and the keys of the gpushare form."""
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
    return [str(minor) for minor in minors]


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
