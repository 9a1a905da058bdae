"""GPUs that Devices list, as one more column of a problem: how many are free, and how many a victim would free.

A node's Device may show fewer GPUs than the node states, and pods hold GPUs that are sick. The column is never below
what is really free once some of the pods are gone, and nearly always just that: which GPUs they are, and how they are
linked, is seen when a choice is tried. Source: gpu-topology.md 2.
"""

from dataclasses import replace

import numpy as np

from koordpy.cluster.gpu_book import NodeGpus
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.snapshot import Draft, Ints
from koordpy.planning.figures import Figures
from koordpy.planning.placement.problem import Problem
from koordpy.planning.units import Unit


def with_devices(unit: Unit, problem: Problem, figures: Figures) -> tuple[Problem, int | None]:
    """The problem with the column, and its number; as it is where no pod of the unit asks for GPUs of Devices."""
    if not figures.gpus.view.nodes or all(pod.gpus is None for pod in unit.pending):
        return problem, None
    column = problem.free.shape[1]
    asks = {
        member.shape: pod.gpus.count
        for member, pod in zip(problem.members, unit.members, strict=True)
        if pod.pending and pod.gpus is not None
    }
    shapes = tuple(
        replace(shape, request=(*shape.request, (column, asks[i]))) if asks.get(i) else shape
        for i, shape in enumerate(problem.shapes)
    )
    room = _free(figures.draft, sum(asks.values()) + 1)
    reserved = figures.reserved(min(unit.pending, key=lambda pod: pod.priority))
    if reserved is not None:
        for i, node in enumerate(reserved.at.tolist()):
            room[node] -= figures.gpus.cards(reserved.requests(i, figures.snapshot.columns))
    free = np.concatenate([problem.free, room[:, None]], axis=1)
    return replace(problem, free=free, shapes=shapes), column


def _free(draft: Draft, beyond: int) -> Ints:
    """[nodes] GPUs that are free; where no Device tells, more than could be asked for. beyond: of one pod each."""
    snapshot, view = draft.snapshot, draft.snapshot.gpus
    unlimited = int(snapshot.allocatable.max(initial=0)) + beyond
    out = np.full(len(snapshot.nodes), unlimited, dtype=np.int64)
    for name, known in view.nodes.items():
        node = snapshot.index.get(name)
        if node is None or not _apart(known):
            continue
        held = sum(_holds(known, key) for key in known.holders if key not in draft.evicted)
        for key, pod in draft.placed_on.get(node, {}).items():
            if pod.gpus is not None:
                mask = known.machine.mask(draft.chips.get(key, ()))
                told = mask.bit_count() >= pod.gpus.count
                held += (mask & known.machine.healthy).bit_count() if told else pod.gpus.count
        out[node] = known.machine.healthy.bit_count() - held
    return out


def held_devices(pod: PodInfo, draft: Draft) -> int:
    """Healthy GPUs of its node's Device that a bound pod holds; 0 where none is known, or the node is gone."""
    if pod.gpus is None or pod.node not in draft.snapshot.index:
        return 0
    known = draft.snapshot.gpus.nodes.get(pod.node)
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
