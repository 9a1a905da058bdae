# SPDX-License-Identifier: Apache-2.0
"""Facts that `koordpy explain` shows about NUMA zones: nodes with NUMA data, their free amounts, and missing amounts.

Source: docs/rules/numa.md 10.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from koordpy.cache.snapshot import Snapshot
from koordpy.devices.family_round import NodeFacts
from koordpy.devices.gpu.freed_gpus import with_freed_gpus
from koordpy.devices.numa.admission import ZoneAdmission, find_rejected_request, widths
from koordpy.devices.numa.aligned_node import AlignedNode
from koordpy.devices.numa.numa_book import NumaView, numa_view
from koordpy.devices.numa.numa_nodes import NumaNodes
from koordpy.devices.numa.pod_amounts import NUMA, NumaAsk
from koordpy.devices.numa.zone_records import canonical_text
from koordpy.devices.numa.zone_sets import zones_in
from koordpy.devices.numa.zone_state import ZoneState
from koordpy.pods.pod_info import PodInfo


def numa_facts(pod: PodInfo, numa: NumaNodes) -> NodeFacts | None:
    """Returns the facts of `koordpy explain` about the zones of all nodes; None if no node has NUMA data."""
    count = len(numa.draft.snapshot.nodes)
    own = [node for node in range(count) if numa.aligned(node).kind.has_data]
    if not own:
        return None
    return NodeFacts(f"{len(own)} of {count} nodes have NUMA data", partial(_facts_of, pod, numa))


def _facts_of(pod: PodInfo, numa: NumaNodes, node: int) -> Mapping[str, Any] | None:
    """Returns the facts about one node; None without NUMA data."""
    state = numa.state(node)
    if not state.kind.has_data:
        return None
    numbers, ask = state.kind.numbers, pod.ask(NUMA)
    found = state.admit(ask) if ask is not None else ZoneAdmission({}, ())
    zones = [numbers[i] for i in zones_in(found.union)] if isinstance(found, ZoneAdmission) else None
    free = {
        str(number): {name: canonical_text(name, max(0, row[i])) for name, row in sorted(state.free.items())}
        for i, number in enumerate(numbers)
    }
    return {
        "policy": str(state.kind.policy),
        "scope": str(state.kind.scope),
        "exact": numa.aligned(node).free_by_report().exact,
        "free": free,
        "zones": zones,
    }


def missing_in_zones(pod: PodInfo, numa: NumaNodes) -> Iterator[tuple[int, str, Callable[[Snapshot], Snapshot]]]:
    """Yields (position, end of a line `Would fit if ...`, change of a snapshot) for nodes that lack little in a zone.

    Only for requests that need one zone, and for nodes that would admit the pod if they were empty. The text names the
    zone that lacks the fewest resources.
    """
    ask: NumaAsk | None = pod.ask(NUMA)
    for node, info in enumerate(numa.draft.snapshot.nodes):
        state = numa.state(node)
        if ask is None or not state.kind.has_data:
            continue
        if isinstance(state.admit(ask), ZoneAdmission) or not isinstance(state.empty.admit(ask), ZoneAdmission):
            continue
        found = _fewest_missing(ask, state)
        if found is not None:
            zone, lacks = found
            parts = [f"{canonical_text(name, amount)} more {name}" for name, amount in lacks.items()]
            text = f"node {info.name} had {' and '.join(parts)} free in NUMA zone {zone}"
            yield node, text, partial(_with_extra_free, info.name, numa.aligned(node), zone, lacks)


def _fewest_missing(ask: NumaAsk, state: ZoneState) -> tuple[int, dict[str, int]] | None:
    """Returns (number of the zone that lacks the fewest resources, resource -> amount that it lacks).

    The amounts are those of the request that is rejected first. None if a request needs several zones, or if the reason
    is not only missing amounts.
    """
    pod, policy, zones = state.amounts_of(ask), state.policy_for(ask), state.kind.zones
    if any(width != 1 for request in pod.requests for _, width in widths(request.amounts, zones)):
        return None
    rejected = find_rejected_request(pod, zones, state.free, policy, state.groups)
    if rejected is None:
        return None
    amounts, found = rejected[0].amounts, rejected[1]
    best: tuple[int, dict[str, int]] | None = None
    for i, number in enumerate(state.kind.numbers):
        lacks = {name: amount - found[name][i] for name, amount in amounts}
        lacks = {name: amount for name, amount in lacks.items() if amount > 0}
        used = {name: state.kind.allocatable[name][i] - max(0, state.free[name][i]) for name, _ in amounts}
        able = all(amount <= used[name] for name, amount in lacks.items())
        if lacks and able and (best is None or len(lacks) < len(best[1])):
            best = number, lacks
    return best


def _with_extra_free(
    node: str, aligned: AlignedNode, zone: int, lacks: Mapping[str, int], snapshot: Snapshot
) -> Snapshot:
    """Returns the snapshot as if a zone of a node had more free amounts.

    GPUs with free amounts in the Device are freed by name: the GPUs in use with the lowest positions in the zone.
    """
    gpus = {name: -(-amount // aligned.by_device[name]) for name, amount in lacks.items() if name in aligned.by_device}
    if gpus:
        inside = aligned.kind.gpu_zones[aligned.kind.numbers.index(zone)]
        snapshot = with_freed_gpus(snapshot, node, inside, max(gpus.values()))
    view: NumaView = numa_view(snapshot)
    extra = tuple((name, amount) for name, amount in lacks.items() if name not in gpus)
    if node not in view.nodes or not extra:
        return snapshot
    changed = replace(view, nodes={**view.nodes, node: replace(view.nodes[node], extra_free=(zone, extra))})
    return replace(snapshot, families={**snapshot.families, NUMA: changed}, memo={})
