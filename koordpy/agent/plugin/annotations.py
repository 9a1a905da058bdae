"""Annotations of a pod that was given other GPUs than it had reserved (gpu-topology.md sections 7 and 10)."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from koordpy.agent.machine import Gpu
from koordpy.api import keys

ALLOCATED, VISIBLE = "allocatedGPUs", "visibleGPUs"


def containers_of(annotations: Mapping[str, str]) -> tuple[dict[int, tuple[int, ...]], tuple[int, ...]] | None:
    """(container number -> minors, visible minors) of the scheduler's annotation; None where it cannot be read."""
    try:
        value = json.loads(annotations[keys.GPU_ALLOCATION])
        by_container = {int(n): tuple(int(m) for m in minors) for n, minors in value[ALLOCATED].items()}
        return by_container, tuple(int(m) for m in value.get(VISIBLE, ()))
    except (KeyError, ValueError, TypeError, AttributeError):
        return None


def both(annotations: Mapping[str, str], changes: Mapping[int, Sequence[Gpu]]) -> dict[str, str | None]:
    """The pod holds what it had and what it was given: what two pods say while their exchange is written, so that at no
    moment one of their GPUs looks free to the scheduler."""
    return _written(annotations, changes, keep=True)


def given(annotations: Mapping[str, str], changes: Mapping[int, Sequence[Gpu]]) -> dict[str, str | None]:
    """What differs once containers (by number) hold the GPUs that they were given; None for a key that goes.

    A GPU that others of the pod's group show stays visible. Keys that the pod lacks are not added.
    """
    return _written(annotations, changes, keep=False)


def _written(
    annotations: Mapping[str, str], changes: Mapping[int, Sequence[Gpu]], *, keep: bool
) -> dict[str, str | None]:
    known = containers_of(annotations)
    if known is None:
        return {}
    allocated, visible = {n: list(minors) for n, minors in known[0].items()}, known[1]
    before = {minor for minors in allocated.values() for minor in minors}
    ids = {gpu.minor: gpu.uuid for gpus in changes.values() for gpu in gpus}
    for number, gpus in changes.items():
        had = allocated.get(number, []) if keep else []
        allocated[number] = sorted({*had, *(gpu.minor for gpu in gpus)})
    after = {minor for minors in allocated.values() for minor in minors}
    shown = sorted({minor for minor in visible if minor not in before - after} | after)
    out: dict[str, str | None] = {
        keys.GPU_ALLOCATION: _json(
            {ALLOCATED: {str(n): _texts(m) for n, m in allocated.items()}, VISIBLE: _texts(shown)}
        )
    }
    if not keep:
        names = _names(annotations, visible, ids)
        out |= _lists(annotations, allocated, shown, names)
        out |= _cards(annotations, before, after, ids)
    return {key: text for key, text in out.items() if annotations.get(key) != text}


def _names(annotations: Mapping[str, str], visible: Sequence[int], ids: Mapping[int, str]) -> dict[int, str]:
    """Minor -> how the pod's lists name it: UUIDs, or minors on nodes whose GPUs have none."""
    listed = annotations.get(keys.GPU_NVIDIA_VISIBLE, "").split(",")
    known = dict(zip(visible, listed, strict=False)) if len(listed) == len(visible) else {}
    return {**known, **{minor: uuid or str(minor) for minor, uuid in ids.items()}}


def _lists(
    annotations: Mapping[str, str],
    allocated: Mapping[int, Sequence[int]],
    shown: Sequence[int],
    names: Mapping[int, str],
) -> dict[str, str | None]:
    wanted = {keys.GPU_NVIDIA_VISIBLE: shown}
    wanted |= {f"{keys.GPU_CUDA_VISIBLE_PREFIX}{number}": minors for number, minors in allocated.items()}
    return {
        key: ",".join(names.get(minor, str(minor)) for minor in minors)
        for key, minors in wanted.items()
        if key in annotations
    }


def _cards(
    annotations: Mapping[str, str], before: set[int], after: set[int], ids: Mapping[int, str]
) -> dict[str, str | None]:
    """Koordinator's list of cards, and the keys of the gpushare form."""
    out: dict[str, str | None] = {}
    if keys.DEVICE_ALLOCATED in annotations:
        value: dict[str, Any] = json.loads(annotations[keys.DEVICE_ALLOCATED])
        old = {int(card["minor"]): card for card in value.get("gpu", ())}
        pattern: dict[str, Any] = next(iter(old.values()), {})
        cards = []
        for minor in sorted({*(old.keys() - before), *after}):
            card = old.get(minor) or {**pattern, "minor": minor, **({"id": ids[minor]} if ids.get(minor) else {})}
            cards.append(card)
        out[keys.DEVICE_ALLOCATED] = _json({**value, "gpu": cards})
    if any(key.startswith(keys.GPUSHARE_ID_PREFIX) for key in annotations):
        out |= {f"{keys.GPUSHARE_ID_PREFIX}{minor}": None for minor in sorted(before - after)}
        for minor in sorted(after - before):
            out[f"{keys.GPUSHARE_ID_PREFIX}{minor}"] = ids.get(minor, "").rpartition("-")[2] or str(minor)
    return out


def _texts(minors: Sequence[int]) -> list[str]:
    return [str(minor) for minor in minors]


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
