"""GPUs that Devices list, as one more column of a problem: how many are free, and how many a victim would free.

A node's Device may show fewer GPUs than the node states, and pods hold GPUs that are sick. The column is never below
what is really free once some of the pods are gone, and nearly always just that: which GPUs they are, and how they are
linked, is seen when a choice is tried. Source: gpu-topology.md 2.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Ints
from koordpy.devices.gpu.gpu_machine import GPUS
from koordpy.devices.gpu.gpu_nodes import gpu_nodes
from koordpy.devices.gpu.gpu_view import NodeGpus, gpu_view
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.pods.pod_info import PodInfo


def freeable_gpus(
    kinds: Sequence[PodInfo], scene: FilterInputs, reserved: Mapping[int, Mapping[str, int]]
) -> Ints | None:
    """[nodes] the column; None if no node has a Device. kinds, reserved: as in `Family.freeable`."""
    if not gpu_view(scene.snapshot).nodes:
        return None
    room = _free(scene.draft, sum(pod.ask(GPUS).count for pod in kinds if pod.ask(GPUS) is not None) + 1)
    for node, requests in reserved.items():
        room[node] -= gpu_nodes(scene).cards(requests)
    return room


def _free(draft: Draft, beyond: int) -> Ints:
    """[nodes] GPUs that are free; where no Device tells, more than could be asked for. beyond: of one pod each."""
    snapshot, view = draft.snapshot, gpu_view(draft.snapshot)
    unlimited = int(snapshot.allocatable.max(initial=0)) + beyond
    out = np.full(len(snapshot.nodes), unlimited, dtype=np.int64)
    for name, known in view.nodes.items():
        node = snapshot.index.get(name)
        if node is None or not _apart(known):
            continue
        held = sum(_holds(known, key) for key in known.holders if key not in draft.evicted)
        for key, pod in draft.placed_on.get(node, {}).items():
            if pod.ask(GPUS) is not None:
                mask = known.machine.mask(draft.given_of(key, GPUS) or ())
                told = mask.bit_count() >= pod.ask(GPUS).count
                held += (mask & known.machine.healthy).bit_count() if told else pod.ask(GPUS).count
        out[node] = known.machine.healthy.bit_count() - held
    return out


def held_gpus(pod: PodInfo, draft: Draft) -> int:
    """Healthy GPUs of its node's Device that a bound pod holds; 0 where none is known, or the node is gone."""
    if pod.ask(GPUS) is None or pod.node not in draft.snapshot.index:
        return 0
    known = gpu_view(draft.snapshot).nodes.get(pod.node)
    return _holds(known, pod.key) if known is not None and pod.key in known.holders else 0


def _holds(known: NodeGpus, key: str) -> int:
    mask, count = known.masks.get(key), known.holders[key].count
    return count if mask is None else min(count, (mask & known.machine.healthy).bit_count())


def _apart(known: NodeGpus) -> bool:
    """Whether no GPU is held twice; else what is free is no sum over pods."""
    masks = [mask for mask in known.masks.values() if mask is not None]
    union = 0
    for mask in masks:
        union |= mask
    return union.bit_count() == sum(mask.bit_count() for mask in masks)
