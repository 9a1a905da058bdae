# SPDX-License-Identifier: Apache-2.0
"""An independent check of the GPUs that a plan allocates by name.

It runs before a plan is carried out. GPUs must be free, healthy, as many as requested, and linked and listed as
requested. Containers that run at the same time must not share a GPU. The check reads decoded Devices and the draft. It
must not share algorithms with the choice of GPUs, because it must find errors of that choice.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

from koordpy.api.keys import (
    GPU_ALLOCATION,
    GPU_CUDA_VISIBLE_PREFIX,
    GPU_MIN_BANDWIDTH,
    GPU_PARTITION_POLICY,
    GPU_PARTITION_SPEC,
    HUNDREDTHS,
)
from koordpy.api.objects import Container
from koordpy.api.quantity import units
from koordpy.cache.plan_draft import Draft
from koordpy.devices.gpu.gpu_links import KBS_PER_GBS
from koordpy.devices.gpu.gpu_machine import GPUS
from koordpy.devices.gpu.gpu_partitions import quantity
from koordpy.devices.gpu.gpu_variables import is_injected
from koordpy.devices.gpu.gpu_view import gpu_view
from koordpy.pods.pod_info import PodInfo


def check_gpus(placed: Sequence[tuple[PodInfo, str]], chips: Mapping[str, tuple[int, ...]], draft: Draft) -> list[str]:
    """Returns the faults of a plan's GPUs, on the draft before the plan.

    placed: (pod, node name) of each pod of the plan. chips: pod key -> allocated minors; no entry for a pod without
    GPUs by name.
    """
    faults: list[str] = []
    taken: dict[str, set[int]] = {}
    counted: dict[str, int] = {}
    for pod, node in placed:
        allocated = chips.get(pod.key, ())
        known = gpu_view(draft.snapshot).nodes.get(node)
        if pod.ask(GPUS) is not None and not allocated and is_injected(pod.pod, pod.ask(GPUS).resources):
            faults.append(f"{pod.key}: reads its GPUs from environment variables, but the plan names none")
        if pod.ask(GPUS) is not None:
            unmet = _unmet_wishes(pod, allocated, node, draft)
            faults += [f"{pod.key}: {fault} of node {node}" for fault in unmet]
        if pod.ask(GPUS) is not None and node in gpu_view(draft.snapshot).shared:
            several = [n for _, n, *_ in (*pod.ask(GPUS).containers, *pod.ask(GPUS).inits) if n > 1]
            faults += [
                f"{pod.key}: a container gets {n} GPU shares of node {node}, at most 1 is possible" for n in several
            ]
        # pods that request no GPU, and nodes without known GPUs
        if pod.ask(GPUS) is None or known is None:
            if allocated and pod.ask(GPUS) is None:
                faults.append(f"{pod.key}: gets GPUs that it does not request")
            elif allocated:
                numbers = ", ".join(map(str, allocated))
                faults.append(f"{pod.key}: gets GPUs {numbers} of node {node}, but the GPUs of the node are unknown")
            continue
        if not allocated:
            if not _is_count_only(node, draft):
                faults.append(f"{pod.key}: the plan names no GPU of node {node}")
            counted[node] = counted.get(node, 0) + pod.ask(GPUS).count
            continue
        # GPUs by name: the right number, healthy, and used by no other pod
        if len(set(allocated)) != pod.ask(GPUS).count:
            faults.append(f"{pod.key}: gets {len(set(allocated))} of {pod.ask(GPUS).count} GPUs")
        healthy = {entry.minor for entry in known.machine.entries if entry.health}
        used = taken.get(node)
        if used is None:
            used = taken[node] = _minors_in_use(node, draft)
        for minor in allocated:
            if minor not in healthy:
                faults.append(f"{pod.key}: GPU {minor} of node {node} is missing or unhealthy")
            elif minor in used:
                faults.append(f"{pod.key}: GPU {minor} of node {node} is already in use")
            used.add(minor)
    # count-only nodes: enough healthy GPUs in total
    for node, asked in counted.items():
        known = gpu_view(draft.snapshot).nodes[node]
        requested = sum(one.count for key, one in known.holders.items() if key not in draft.evicted)
        here = draft.placed_on.get(draft.snapshot.index[node], {}).values()
        requested += sum(pod.ask(GPUS).count for pod in here if pod.ask(GPUS) is not None)
        sound = sum(entry.health for entry in known.machine.entries)
        if requested + asked > sound:
            faults.append(f"node {node}: {requested} + {asked} GPUs requested, {sound} healthy")
    return faults


def takes_promised(
    placed: Sequence[tuple[PodInfo, int]],
    reserved: Mapping[int, Mapping[str, int]],
    draft: Draft,
    resources: Sequence[str],
) -> bool:
    """Returns whether the pods of a plan use GPUs that are reserved for nominated pods, on the draft before the plan.

    placed: (pod, node position). reserved: node position -> resource -> amount that nominated pods will still use
    there. resources: names of GPU resources. Only nodes with a Device are checked; for others resources decide.
    """
    asked: dict[int, int] = {}
    for pod, node in placed:
        if pod.ask(GPUS) is not None:
            asked[node] = asked.get(node, 0) + pod.ask(GPUS).count
    for node, count in asked.items():
        known = gpu_view(draft.snapshot).nodes.get(draft.snapshot.nodes[node].name)
        if known is None:
            continue
        sound = {entry.minor for entry in known.machine.entries if entry.health}
        current = [one for key, one in known.holders.items() if key not in draft.evicted]
        count += sum(one.count if one.minors is None else len(sound.intersection(one.minors)) for one in current)
        count += sum(pod.ask(GPUS).count for pod in draft.placed_on.get(node, {}).values() if pod.ask(GPUS) is not None)
        for name, amount in reserved.get(node, {}).items():
            if name in resources:
                count += -(-amount // 100) if name in HUNDREDTHS else amount
        if count > len(sound):
            return True
    return False


def _unmet_wishes(pod: PodInfo, allocated: Sequence[int], node: str, draft: Draft) -> list[str]:
    """Returns a sentence for each requirement of a pod that its GPUs (minors) violate: minimum bandwidth, listed set,
    delivery.

    Sources: docs/rules/gpu-topology.md 6, 8 and 10.
    """
    known, notes, faults = gpu_view(draft.snapshot).nodes.get(node), pod.pod.metadata.annotations, list[str]()
    assert pod.ask(GPUS) is not None
    if known is not None and not known.machine.delivers:
        faults.append("condition DeliveryUnavailable blocks all GPUs")
    slowest, sets = 0, list[set[int]]()
    spec = json.loads(notes.get(GPU_PARTITION_SPEC, "{}"))
    if known is not None:
        machine = known.machine
        place = {minor: i for i, minor in enumerate(machine.minors)}
        pairs = [
            machine.matrix.lowest[place[a]][place[b]] for a, b in combinations(allocated, 2) if {a, b} <= place.keys()
        ]
        slowest = min(pairs, default=0) if machine.has_matrix else 0
        least = quantity(spec["ringBusBandwidth"]) if spec.get("ringBusBandwidth") is not None else -1
        listed = machine.table.sets if machine.table is not None else ()
        fast = [one for one in listed if (-1 if one.ring_bandwidth is None else one.ring_bandwidth) >= least]
        sets = [set(machine.minors_of(one.mask)) for one in fast]
    text = ", ".join(map(str, allocated)) or "without names"
    gbs = notes.get(GPU_MIN_BANDWIDTH, "0")
    if pod.ask(GPUS).count > 1 and slowest + 1 < float(gbs) * KBS_PER_GBS:
        faults.append(f"GPUs {text} are not linked at {gbs} GB/s")
    honor = draft.snapshot.nodes[draft.snapshot.index[node]].labels.get(GPU_PARTITION_POLICY) == "Honor"
    if (honor or spec.get("allocatePolicy") == "Restricted") and set(allocated) not in sets:
        faults.append(f"GPUs {text} are not a listed set")
    return faults


def check_containers(
    placed: Sequence[tuple[PodInfo, str]],
    chips: Mapping[str, tuple[int, ...]],
    notes: Mapping[str, Mapping[str, str]],
    draft: Draft,
) -> list[str]:
    """Returns the faults of Bindings' annotations about the GPUs of containers; pods without such annotations are
    skipped.

    placed, chips: as in `check_gpus`. notes: pod key -> annotations of the Binding.
    """
    faults: list[str] = []
    for pod, node in placed:
        known, own = gpu_view(draft.snapshot).nodes.get(node), notes.get(pod.key, {})
        if pod.ask(GPUS) is None or known is None or GPU_ALLOCATION not in own:
            continue
        entries = known.machine.entries
        names = {str(one.minor): one.minor for one in entries} | {one.id: one.minor for one in entries if one.id}
        listed = {
            key.removeprefix(GPU_CUDA_VISIBLE_PREFIX): {names.get(one) for one in text.split(",")}
            for key, text in own.items()
            if key.startswith(GPU_CUDA_VISIBLE_PREFIX)
        }
        minors = {
            place: {int(one) for one in found}
            for place, found in json.loads(own[GPU_ALLOCATION])["allocatedGPUs"].items()
        }
        if {place: found for place, found in listed.items() if place.isdigit()} != minors:
            faults.append(f"{pod.key}: its lists of minors and ids differ")
        if not set().union(*listed.values()) - {None} <= set(chips.get(pod.key, ())):
            faults.append(f"{pod.key}: its containers get GPUs that the pod does not have")
        faults += [f"{pod.key}: {fault}" for fault in _lifecycle_faults(pod, listed)]
    return faults


def _lifecycle_faults(pod: PodInfo, listed: Mapping[str, Collection[int | None]]) -> list[str]:
    """Returns faults while the containers of a pod start in order, by their GPUs (place of the container -> minors).

    Init containers run one by one, next to the restartable init containers before them. Then all containers run
    together. Containers that run at the same time must not share a GPU.
    """
    assert pod.ask(GPUS) is not None
    faults: list[str] = []
    running: set[int | None] = set()
    most = 0
    inits, others = pod.pod.spec.init_containers, pod.pod.spec.containers
    order = [*((f"init-{i}", c) for i, c in enumerate(inits)), *((str(i), c) for i, c in enumerate(others))]
    for place, container in order:
        own = set(listed.get(place, ()))
        asked = _cards(container, pod.ask(GPUS).resources)
        if len(own - {None}) != asked or None in own:
            faults.append(f"container {container.name} gets {len(own - {None})} of {asked} GPUs")
        if own & running:
            faults.append(f"container {container.name} shares GPUs with containers that run at the same time")
        most = max(most, len(running | own))
        if not place.startswith("init-") or container.restart_policy == "Always":
            running |= own
    if most != pod.ask(GPUS).count:
        faults.append(f"containers use {most} GPUs at once, the pod requests {pod.ask(GPUS).count}")
    return faults


def _cards(container: Container, resources: Collection[str]) -> int:
    """Returns the number of GPUs that a container requests."""
    asked = {**container.resources.limits, **container.resources.requests}
    return sum(units(name, asked[name]) // (100 if name in HUNDREDTHS else 1) for name in resources if name in asked)


def _minors_in_use(node: str, draft: Draft) -> set[int]:
    """Returns the minors that pods on a node use: bound pods that the draft has not evicted, and placed pods."""
    out: set[int] = set()
    for key, holding in gpu_view(draft.snapshot).nodes[node].holders.items():
        if key not in draft.evicted:
            out.update(holding.minors or ())
    for key, pod in draft.placed_on.get(draft.snapshot.index[node], {}).items():
        if pod.ask(GPUS) is not None:
            out.update(draft.family_devices_of(key, GPUS) or ())
    return out


def _is_count_only(node: str, draft: Draft) -> bool:
    """Returns whether the GPUs of a pod on the node are unknown, so that no GPU of the node is allocated by name."""
    known = gpu_view(draft.snapshot).nodes[node]
    minors = set(known.machine.minors)
    for key, one in known.holders.items():
        if key not in draft.evicted and (one.minors is None or len(minors.intersection(one.minors)) < one.count):
            return True
    placed = draft.placed_on.get(draft.snapshot.index[node], {})
    return any(pod.ask(GPUS) is not None and not draft.family_devices_of(key, GPUS) for key, pod in placed.items())
