# SPDX-License-Identifier: Apache-2.0
"""What NUMA zones cost: the same rounds on nodes with reports of their zones and on nodes without.

`python -m bench.zones`. Processor time of one round on 1,000 nodes of 2, 4 and 8 zones, the best of some runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from bench.objects import group, node, pod, state_of
from bench.timing import Row, milliseconds, rounds
from koordpy.api.custom_objects import NodeResourceTopology, TopologyAttribute, TopologyZone, ZoneResource
from koordpy.api.objects import ObjectMeta, Pod, ResourceRequirements, Wire
from koordpy.cache.cluster_state import ClusterState
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.feasibility.round_state import PlannerCache
from tests.clusters import GPU

NODES, PODS, MEMBERS, REPEATS = 1000, 1000, 64, 5
ZONES = (2, 4, 8)
GPUS, CPUS = 8, 104
"""Of a node; 13 CPUs a GPU, so that 12 CPUs a GPU need as many zones as the GPUs."""
CPUS_OF_A_GPU = 12
PLAIN_BAR, GANG_BAR = 1.1, 1.3
"""Times of the round without zones that the round with zones may take."""


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
    """Rows: the round without zones, the round with zones, and how many times as long it takes."""
    rows = list[Row]()

    def compare(what: str, objects: Callable[[], list[Wire]], policy: str, bar: float) -> None:
        best = {}
        for zones in ("", policy):
            times, plan = rounds(
                _state(objects(), zones), repeats, config=KoordpyConfiguration(), planner_cache=PlannerCache()
            )
            best[zones] = min(times)
            note = f"{len(plan.placements)} placed"
            rows.append((f"{what}, {zones or 'no zones'}", milliseconds(best[zones]), note))
        ratio = best[policy] / best[""]
        rows.append(
            (
                f"{what}: times of that without zones",
                f"{ratio:.2f}",
                f"bar {bar:g} {'holds' if ratio < bar else 'MISSED'}",
            )
        )

    compare(f"{PODS:,} plain pods on {NODES:,} nodes of 2 to 8 zones", _plain, "single-numa-node", PLAIN_BAR)
    compare(f"a gang of {MEMBERS} x {GPUS} GPUs on {NODES:,} nodes", _gang, "restricted", GANG_BAR)
    return rows


if __name__ == "__main__":
    for what, figure, note in run():
        print(f"{what:<66}{figure:>16}  {note}", flush=True)
