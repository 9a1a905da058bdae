# SPDX-License-Identifier: Apache-2.0
"""What NUMA zones cost: the same rounds on nodes with reports of their zones and on nodes without.

`python -m bench.zones`. Processor time of one round on 1,000 nodes of 2, 4 and 8 zones, the best of some runs. The
share of the filter is the time inside its methods, with the reading of the zones of nodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from bench.objects import group, node, pod, state_of
from bench.timing import Row, milliseconds, rounds
from koordpy.api.custom_objects import NodeResourceTopology, TopologyAttribute, TopologyZone, ZoneResource
from koordpy.api.objects import ObjectMeta, Pod, ResourceRequirements, Wire
from koordpy.cache.cluster_state import ClusterState
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.numa.numa_filter import Alignment
from koordpy.devices.numa.numa_nodes import NumaNodes
from koordpy.feasibility.round_state import PlannerCache
from tests.clusters import GPU

NODES, PODS, MEMBERS, REPEATS = 1000, 1000, 64, 10
ZONES = (2, 4, 8)
GPUS, CPUS = 8, 104
"""Of a node; 13 CPUs a GPU, so that 12 CPUs a GPU need as many zones as the GPUs."""
CPUS_OF_A_GPU = 12
FILTER_BAR, GANG_BAR = 0.1, 1.3
"""Share of the round of plain pods that the filter may take; times of the gang's round without zones that the round
with zones may take."""


def _report(name: str, zones: int, policy: str) -> NodeResourceTopology:
    amounts = {"cpu": str(CPUS // zones), GPU: str(GPUS // zones)}
    resources = [ZoneResource(name=key, capacity=one, allocatable=one, available=one) for key, one in amounts.items()]
    return NodeResourceTopology(
        metadata=ObjectMeta(name=name),
        zones=[TopologyZone(name=f"node-{zone}", type="Node", resources=resources) for zone in range(zones)],
        attributes=[
            TopologyAttribute(name="topologyManagerPolicy", value=policy),
            TopologyAttribute(name="topologyManagerScope", value="pod"),
        ],
    )


def _guaranteed(name: str, gpus: int, *, gang: str = "") -> Pod:
    amounts = {"cpu": str(gpus * CPUS_OF_A_GPU), "memory": "8Gi", GPU: str(gpus)}
    made = pod(name, amounts, gang=gang)
    (box,) = made.spec.containers
    boxes = [replace(box, resources=ResourceRequirements(requests=amounts, limits=amounts))]
    return replace(made, spec=replace(made.spec, containers=boxes))


def _state(objects: Sequence[Wire], policy: str) -> ClusterState:
    """policy: of the Topology Managers; empty for nodes without reports."""
    room = {"cpu": str(CPUS), "memory": "1024Gi", GPU: str(GPUS)}
    nodes: list[Wire] = [node(f"n{i}", room) for i in range(NODES)]
    reports: list[Wire] = [_report(f"n{i}", ZONES[i % len(ZONES)], policy) for i in range(NODES if policy else 0)]
    return state_of([*nodes, *reports, *objects])


def _gang() -> list[Wire]:
    return [group("g", MEMBERS), *(_guaranteed(f"g-{i}", GPUS, gang="g") for i in range(MEMBERS))]


def _plain() -> list[Wire]:
    return [_guaranteed(f"p-{i}", 1) for i in range(PODS)]


def run(repeats: int = REPEATS) -> list[Row]:
    """Rows: the round without zones, the round with zones, how many times as long it takes, and the filter's share."""
    plain, ratio = _compared(f"{PODS:,} plain pods on {NODES:,} nodes", _plain, "single-numa-node", repeats)
    share = _filter_share(repeats)
    gang, times = _compared(f"a gang of {MEMBERS} x {GPUS} GPUs on {NODES:,} nodes", _gang, "restricted", 4 * repeats)
    return [
        *plain,
        ("  times of that without zones", f"{ratio:.2f}", ""),
        ("  share of the filter", f"{share:.1%}", _bar(FILTER_BAR, share)),
        *gang,
        ("  times of that without zones", f"{times:.2f}", _bar(GANG_BAR, times)),
    ]


def _compared(what: str, objects: Callable[[], list[Wire]], policy: str, repeats: int) -> tuple[list[Row], float]:
    """(rows without and with zones, how many times as long the round with zones takes); rounds take turns."""
    states = {zones: _state(objects(), zones) for zones in ("", policy)}
    caches, times = {zones: PlannerCache() for zones in states}, dict[str, list[float]]()
    placed = {}
    for _ in range(repeats):
        for zones, state in states.items():
            taken, plan = rounds(state, 1, config=KoordpyConfiguration(), planner_cache=caches[zones])
            times.setdefault(zones, []).extend(taken)
            placed[zones] = len(plan.placements)
    best = {zones: min(taken) for zones, taken in times.items()}
    rows = [
        (f"{what}, {zones or 'no zones'}", milliseconds(one), f"{placed[zones]} placed") for zones, one in best.items()
    ]
    return rows, best[policy] / best[""]


def _filter_share(repeats: int) -> float:
    """Share of the time of a round of plain pods that is spent in the methods of the filter; the least of some."""
    spent = 0.0

    def measured(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            nonlocal spent
            start = time.thread_time()
            out = method(*given)
            spent += time.thread_time() - start
            return out

        return call

    methods = [(Alignment, name) for name in ("__init__", "change", "fits_at", "verdict", "copies")]
    state, cache, shares = _state(_plain(), "single-numa-node"), PlannerCache(), list[float]()
    with ExitStack() as stack:
        for owner, name in (*methods, (NumaNodes, "__init__")):
            stack.enter_context(patch.object(owner, name, measured(getattr(owner, name))))
        for _ in range(repeats):
            spent = 0.0
            (taken,), _plan = rounds(state, 1, config=KoordpyConfiguration(), planner_cache=cache)
            shares.append(spent / taken)
    return min(shares)


def _bar(bar: float, found: float) -> str:
    return f"bar {bar:g} {'holds' if found < bar else 'MISSED'}"


if __name__ == "__main__":
    for what, figure, note in run():
        print(f"{what:<66}{figure:>16}  {note}", flush=True)
