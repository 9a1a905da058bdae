# SPDX-License-Identifier: Apache-2.0
"""An independent check of the zones that a plan expects the kubelet to use.

It runs before a plan is carried out. It shares with the planner only the free amounts of the zones, not the admission:
widths and sums are computed here separately. A node that rejects misaligned pods must have the amounts of each request
in as few zones as the request can need; with single-numa-node, in one zone. The recorded amounts must be the amounts of
the pod, and free. GPUs that are named must be in the zones.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from koordpy.api import keys
from koordpy.api.bounded_memory import cached
from koordpy.api.quantity import units
from koordpy.devices.family_round import Placed
from koordpy.devices.gpu.gpu_machine import GPUS
from koordpy.devices.numa.aligned_node import AlignedNode, units_of
from koordpy.devices.numa.numa_nodes import ZoneTake, numa_nodes
from koordpy.devices.numa.pod_amounts import NUMA, NumaAsk
from koordpy.devices.numa.zone_state import Row, Rows, ZoneKind
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.pods.pod_info import PodInfo


def check_zones(
    placed: Placed, given: Mapping[str, Any], notes: Mapping[str, Mapping[str, str]], inputs: FilterInputs
) -> Iterator[str]:
    """Yields the faults of the zones of a plan's pods, on the draft before the plan.

    placed: (pod, node position) in rank order. given: pod key -> `ZoneTake`. notes: pod key -> annotations.
    """
    numa = numa_nodes(inputs)
    left: dict[int, Rows] = {}
    inits = {node for pod, node in placed if numa.aligned(node).by_device and _has_init_gpus(pod)}
    states = numa.states_of([node for _, node in placed])
    for pod, node in placed:
        state, ask, note = states[node], pod.ask(NUMA), notes.get(pod.key, {})
        take: ZoneTake | None = given.get(pod.key)
        if ask is None or not state.kind.has_data:
            if take is not None:
                yield f"{pod.key}: gets zones of node {_name(node, inputs)}, which has no NUMA data"
            continue
        if take is None:
            yield f"{pod.key}: the plan names no zones of node {_name(node, inputs)}"
            continue
        taken, record = tuple(take.admission.taken.items()), note.get(keys.RESOURCE_STATUS, "")
        rows = left.get(node, state.rows)
        faults, left[node] = _check_pod(ask, state.kind, rows, take.numbers, taken, take.admission.sets, record)
        for text in faults:
            yield f"{pod.key}: {text}"
        if keys.DEVICE_ALLOCATED in note and node not in inits:
            yield from _gpu_faults(pod, ask, numa.aligned(node), take, note[keys.DEVICE_ALLOCATED])


def _name(node: int, inputs: FilterInputs) -> str:
    return inputs.snapshot.nodes[node].name


@cached(1 << 12)
def _check_pod(
    ask: NumaAsk, node: ZoneKind, rows: Rows, numbers: Row, taken: Rows, sets: tuple[int, ...], record: str
) -> tuple[tuple[str, ...], Rows]:
    """Returns (faults of the zones of one pod, free amounts after it); computed once for equal pods and nodes.

    rows: free amounts before the pod. taken: (resource, amounts that it takes from the zones with `numbers`). sets:
    zone set of each request. record: annotation that records its zones; empty for none.
    """
    own = {name: {zone: one for zone, one in zip(numbers, row, strict=True) if one} for name, row in taken}
    free = {name: dict(zip(node.numbers, row, strict=True)) for name, row in rows}
    faults = (*_faults(ask, node, own, sets, free), *_record_faults(own, record))
    for name, by_zone in own.items():
        for zone, amount in by_zone.items():
            free[name][zone] -= amount
    return faults, tuple((name, tuple(by_zone.values())) for name, by_zone in free.items())


def _faults(
    ask: NumaAsk,
    node: ZoneKind,
    taken: Mapping[str, Mapping[int, int]],
    sets: tuple[int, ...],
    free: Mapping[str, Mapping[int, int]],
) -> Iterator[str]:
    """Yields the faults of the zones of one pod. taken, free: resource -> zone -> amount; free without the pod."""
    held = {name: amount for name, amount in ask.held if name in node.allocatable}
    told = {name: sum(row.values()) for name, row in taken.items()}
    if told != held:
        yield f"its zones have {told} of {held}"
    strict = {"single-numa-node", "restricted"} & {node.policy.value, ask.demand.value}
    if not strict:
        return
    for resource, row in taken.items():
        for zone, amount in row.items():
            if amount > max(0, free[resource].get(zone, 0)):
                yield f"zone {zone} lacks {resource}: {amount} of {free[resource].get(zone, 0)}"
    sizes = {name: dict(zip(node.numbers, row, strict=True)) for name, row in node.zones.sizes}
    requests = node_requests(ask, node)
    if len(requests) != len(sets):
        yield f"has {len(requests)} aligned requests and {len(sets)} zone sets"
        return
    for amounts, mask in zip(requests, sets, strict=True):
        zones = [number for i, number in enumerate(node.numbers) if mask >> i & 1]
        if "single-numa-node" in strict and len(zones) != 1:
            yield f"needs {len(zones)} zones, the policy allows one"
        for resource, amount in amounts.items():
            if sum(max(0, free[resource][zone]) for zone in zones) < amount:
                yield f"zones {zones} have too little {resource}"
            if len(zones) != _least(resource, amounts, sizes):
                yield f"{resource} prefers another number of zones than {len(zones)}"


def node_requests(ask: NumaAsk, kind: ZoneKind) -> list[dict[str, int]]:
    """Returns resource -> amount of each request that a node aligns."""
    rows = [ask.whole] if kind.scope.value == "pod" else [request.amounts for request in ask.containers]
    found = [{name: amount for name, amount in row if name in kind.allocatable} for row in rows]
    return [one for one in found if one]


def _least(resource: str, amounts: Mapping[str, int], sizes: Mapping[str, Mapping[int, int]]) -> int:
    """Returns the fewest zones that could hold an amount on an empty node; for memory types together."""
    memory = [name for name in amounts if name == "memory" or name.startswith("hugepages-")]
    together = memory if resource in memory else [resource]
    zones = sorted(sizes[resource], key=lambda zone: -sizes[resource][zone])
    for number in range(1, len(zones)):
        choices = combinations(zones, number) if len(together) > 1 else [tuple(zones[:number])]
        if any(all(sum(sizes[name][z] for z in some) >= amounts[name] for name in together) for some in choices):
            return number
    return len(zones)


def _record_faults(taken: Mapping[str, Mapping[int, int]], text: str) -> Iterator[str]:
    """Yields the faults of the annotation that records the zones of a pod."""
    entries = json.loads(text)["numaNodeResources"] if text else []
    told: dict[str, dict[int, int]] = {}
    for entry in entries:
        for name, amount in entry["resources"].items():
            told.setdefault(name, {})[entry["node"]] = units(name, amount)
    if told != {name: dict(row) for name, row in taken.items() if row}:
        yield f"annotation {keys.RESOURCE_STATUS} does not record its zones"


def _has_init_gpus(pod: PodInfo) -> bool:
    """Returns whether init containers use GPUs by name that the pod does not hold in its zones (numa.md 2)."""
    gpus, ask = pod.ask(GPUS), pod.ask(NUMA)
    if gpus is None or ask is None:
        return False
    return bool(sum(amount // units_of(name) for name, amount in ask.held if name in gpus.resources) != gpus.count)


def _gpu_faults(pod: PodInfo, ask: NumaAsk, node: AlignedNode, take: ZoneTake, text: str) -> Iterator[str]:
    """Yields the GPUs that the plan names for a pod outside the zones of its requests for GPUs.

    Yields nothing for a node without a Device that states which GPUs are free. On such nodes, and next to pods with
    GPUs that they do not hold (`_has_init_gpus`), the zones may have too few free GPUs. Then GPUs of other zones are
    named (numa.md 6). text: annotation with the GPUs.
    """
    if node.gpus is None or not node.by_device:
        return
    zones = {
        number
        for amounts, mask in zip(node_requests(ask, node.kind), take.admission.sets, strict=False)
        if not node.by_device.keys().isdisjoint(amounts)
        for i, number in enumerate(node.kind.numbers)
        if mask >> i & 1
    }
    places = {one.minor: one.topology.node_id for one in node.gpus.machine.entries if one.topology is not None}
    minors = [entry["minor"] for entry in json.loads(text)["gpu"]]
    if zones and (outside := [minor for minor in minors if places.get(minor) not in zones]):
        yield f"{pod.key}: GPUs {', '.join(map(str, outside))} are outside its zones {sorted(zones)}"
