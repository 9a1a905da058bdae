# SPDX-License-Identifier: Apache-2.0
"""GPUs that pods would free: the column of the victim problem, and a snapshot with fewer GPUs in use.

The column is [nodes] GPUs that are free, or that a victim would free. It is needed for two reasons: a Device may show
fewer GPUs than its node states, and pods may use sick GPUs, which stay unusable after an eviction. The column is never
below the number that is free after evictions, and nearly always equal to it. The dry run of a choice of victims checks
which GPUs are free and how they are linked. Source: docs/rules/gpu-topology.md 2.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

import numpy as np

from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Ints, Snapshot
from koordpy.devices.gpu.gpu_machine import GPUS
from koordpy.devices.gpu.gpu_nodes import gpu_nodes
from koordpy.devices.gpu.gpu_view import NodeGpus, gpu_view
from koordpy.devices.gpu.held_gpus import GpuHolding
from koordpy.devices.links.device_masks import bits_of
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.pods.pod_info import PodInfo


def freeable_gpus(
    kinds: Sequence[PodInfo], inputs: FilterInputs, reserved: Mapping[int, Mapping[str, int]]
) -> Ints | None:
    """Returns [nodes] free GPUs; None if no node has a Device. kinds, reserved: as in `Family.freeable`."""
    if not gpu_view(inputs.snapshot).nodes:
        return None
    room = _free(inputs.draft, sum(pod.ask(GPUS).count for pod in kinds if pod.ask(GPUS) is not None) + 1)
    for node, requests in reserved.items():
        room[node] -= gpu_nodes(inputs).cards(requests)
    return room


def _free(draft: Draft, beyond: int) -> Ints:
    """Returns [nodes] free GPUs; for nodes without a known machine, more than any request.

    beyond: GPUs of one pod of each shape, plus 1.
    """
    snapshot, view = draft.snapshot, gpu_view(draft.snapshot)
    unlimited = int(snapshot.allocatable.max(initial=0)) + beyond
    out = np.full(len(snapshot.nodes), unlimited, dtype=np.int64)
    for name, known in view.nodes.items():
        node = snapshot.index.get(name)
        if node is None or not _is_disjoint(known):
            continue
        held = sum(_healthy_held(known, key) for key in known.holders if key not in draft.evicted)
        for key, pod in draft.placed_on.get(node, {}).items():
            if pod.ask(GPUS) is not None:
                mask = known.machine.mask(draft.family_devices_of(key, GPUS) or ())
                is_known = mask.bit_count() >= pod.ask(GPUS).count
                held += (mask & known.machine.healthy).bit_count() if is_known else pod.ask(GPUS).count
        out[node] = known.machine.healthy.bit_count() - held
    return out


def with_freed_gpus(snapshot: Snapshot, node: str, inside: int, number: int) -> Snapshot:
    """Returns the snapshot as if pods of a node used fewer GPUs: `number` healthy ones of a mask, the lowest first.

    Only whole GPUs are freed. The same snapshot if pods use fewer of these GPUs.
    """
    view = gpu_view(snapshot)
    known = view.nodes[node]
    used = bits_of(known.held_whole & known.machine.healthy & inside)[:number]
    if len(used) < number:
        return snapshot
    gone = set(known.machine.minors_of(sum(1 << i for i in used)))
    holders = {key: _without_minors(one, gone) for key, one in known.holders.items()}
    changed = replace(view, nodes={**view.nodes, node: replace(known, holders=holders)})
    return replace(snapshot, families={**snapshot.families, GPUS: changed}, memo={})


def _without_minors(held: GpuHolding, gone: AbstractSet[int]) -> GpuHolding:
    """Returns the GPUs of a pod without the given minors; the same object if it uses none of them whole."""
    if held.minors is None or not held.count or gone.isdisjoint(held.minors):
        return held
    left = tuple(minor for minor in held.minors if minor not in gone)
    return replace(held, minors=left, count=held.count - (len(held.minors) - len(left)))


def held_gpus(pod: PodInfo, draft: Draft) -> int:
    """Returns the healthy GPUs that a bound pod uses; 0 if they are unknown, or its node is gone."""
    if pod.ask(GPUS) is None or pod.node not in draft.snapshot.index:
        return 0
    known = gpu_view(draft.snapshot).nodes.get(pod.node)
    return _healthy_held(known, pod.key) if known is not None and pod.key in known.holders else 0


def _healthy_held(known: NodeGpus, key: str) -> int:
    """Returns the number of healthy GPUs that a pod (key) uses; its request if its GPUs are unknown."""
    mask, count = known.masks.get(key), known.holders[key].count
    return count if mask is None else min(count, (mask & known.machine.healthy).bit_count())


def _is_disjoint(known: NodeGpus) -> bool:
    """Returns whether no GPU is used by two pods; otherwise the free GPUs are not a sum over pods."""
    masks = [mask for mask in known.masks.values() if mask is not None]
    union = 0
    for mask in masks:
        union |= mask
    return union.bit_count() == sum(mask.bit_count() for mask in masks)
