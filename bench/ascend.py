"""How long one round takes with Ascend jobs, planner only: switches, SuperPoDs, chips inside nodes, hopeless jobs.

`python -m bench.ascend`. CPU seconds, the median of several rounds.
"""

import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from koordpy.api import keys
from koordpy.api.config import Ascend, KoordpyConfiguration
from koordpy.api.groups import PodGroup, PodGroupSpec
from koordpy.api.objects import (
    ConfigMap,
    Container,
    Node,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    Quantities,
    ResourceRequirements,
    Wire,
)
from koordpy.cluster.state import ClusterState
from koordpy.planning.figures import PlannerCache
from koordpy.planning.round import plan_round

REPEATS = 5
NPU = keys.NPU_RESOURCES[0]
POSITIONS = 8
"""Servers under a leaf."""
LARGE = {keys.TOR_AFFINITY: "large-model-schema"}
SECOND = KoordpyConfiguration(ascend=Ascend(nslb_version="2.0"))


@dataclass(frozen=True)
class Case:
    """One input of the planner. bar: seconds that the median may take."""

    name: str
    objects: Sequence[Wire]
    bar: float = 0.0
    config: KoordpyConfiguration | None = None


def _node(name: str, chips: int, labels: Mapping[str, str]) -> Node:
    have: Quantities = {"cpu": "192", "memory": "1536Gi", "pods": "110", NPU: str(chips)}
    return Node(metadata=ObjectMeta(name=name, labels=dict(labels)), status=NodeStatus(capacity=have, allocatable=have))


def _servers(number: int) -> list[Wire]:
    """Nodes of 8 chips under leaves of eight, and their table."""
    nodes: list[Wire] = [_node(f"n{i}", 8, {keys.ACCELERATOR_TYPE: "module-910b-8"}) for i in range(number)]
    leaves = [
        {
            "tor_id": first // POSITIONS,
            "tor_ip": f"leaf-{first // POSITIONS}",
            "server": [
                {"server_ip": f"n{first + at}", "npu_count": 8, "slice_id": at}
                for at in range(min(POSITIONS, number - first))
            ],
        }
        for first in range(0, number, POSITIONS)
    ]
    table = json.dumps({"version": "1.0", "tor_count": POSITIONS, "server_list": leaves})
    meta = ObjectMeta(name=keys.SWITCH_TABLE, namespace=keys.SYSTEM_NAMESPACE)
    return [*nodes, ConfigMap(metadata=meta, data={keys.SWITCH_TABLE_KEY: table})]


def _super_pods(number: int, size: int) -> list[Wire]:
    product = {keys.ACCELERATOR_TYPE: "module-a3-16-super-pod"}
    return [_node(f"s{i}-{j}", 16, {**product, keys.SUPER_POD_ID: str(i)}) for i in range(number) for j in range(size)]


def _running(places: Sequence[Sequence[str]], chips: int) -> list[Wire]:
    """Gangs that hold whole nodes, one for each list of them."""
    out: list[Wire] = []
    for i, names in enumerate(places):
        group = ObjectMeta(name=f"v{i}", namespace="default")
        out.append(PodGroup(metadata=group, spec=PodGroupSpec(min_member=len(names))))
        for j, name in enumerate(names):
            meta = ObjectMeta(
                name=f"v{i}-{j}",
                namespace="default",
                uid=f"v{i}-{j}",
                creation_timestamp=f"2026-01-01T00:{i // 60:02}:{i % 60:02}Z",
                labels={keys.LABEL_POD_GROUP: f"v{i}"},
                annotations={NPU: ",".join(f"Ascend910-{k}" for k in range(chips))},
            )
            asked = ResourceRequirements(requests={"cpu": "8", NPU: str(chips)})
            parts = [Container(name="m", image="i", resources=asked)]
            spec = PodSpec(node_name=name, scheduler_name=keys.DEFAULT_SCHEDULER_NAME, containers=parts)
            out.append(Pod(metadata=meta, spec=spec, status=PodStatus(phase="Running")))
    return out


def _job(
    sizes: Sequence[int],
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    priority: int = 0,
) -> list[Wire]:
    """A gang: chips of each pod."""
    meta = ObjectMeta(name="g", namespace="default", annotations=dict(annotations or {}))
    out: list[Wire] = [PodGroup(metadata=meta, spec=PodGroupSpec(min_member=len(sizes)))]
    for i, chips in enumerate(sizes):
        asked = ResourceRequirements(requests={"cpu": "8", NPU: str(chips)})
        own = ObjectMeta(
            name=f"g-{i}",
            namespace="default",
            uid=f"g-{i}",
            creation_timestamp="2026-01-01T00:00:00Z",
            labels={keys.LABEL_POD_GROUP: "g", **(labels or {})},
        )
        spec = PodSpec(
            scheduler_name=keys.DEFAULT_SCHEDULER_NAME,
            priority=priority,
            containers=[Container(name="m", image="i", resources=asked)],
        )
        out.append(Pod(metadata=own, spec=spec, status=PodStatus(phase="Pending")))
    return out


def cases() -> list[Case]:
    """The issue's cases, and some beside them."""
    servers, super_pods = _servers(5000), _super_pods(100, 48)
    blocks = {keys.SP_BLOCK: "256"}
    large = _job([8] * 1024, labels=LARGE)
    modules: list[Wire] = [_node(f"m{i}", 8, {keys.ACCELERATOR_TYPE: "module"}) for i in range(500)]
    return [
        Case("1,024 pods x 8 chips, 5,000 nodes, switches 2.0", [*servers, *large], 0.5, SECOND),
        Case("1,024 pods x 8 chips, 5,000 nodes, switches 1.0", [*servers, *large], 0.5),
        Case("1,024 pods x 8 chips, 5,000 nodes", [*servers, *_job([8] * 1024)]),
        Case(
            "512 nodes in blocks of 16, 100 SuperPoDs of 48", [*super_pods, *_job([16] * 512, annotations=blocks)], 0.5
        ),
        Case("256 pods of 1, 2 and 4 chips on 500 modules", [*modules, *_job([1, 4, 2, 1] * 64)]),
        Case(
            "hopeless: 512 pods of switches 2.0, 500 nodes",
            [*_servers(500), *_job([8] * 512, labels=LARGE)],
            0.05,
            SECOND,
        ),
        Case(
            "hopeless: 512 nodes in blocks of 16, 10 SuperPoDs",
            [*_super_pods(10, 48), *_job([16] * 512, annotations=blocks)],
            0.05,
        ),
        Case(
            "64 nodes in blocks of 16, 20 SuperPoDs full of gangs of 16",
            [
                *_super_pods(20, 48),
                *_running([[f"s{i // 3}-{i % 3 * 16 + j}" for j in range(16)] for i in range(60)], 16),
                *_job([16] * 64, annotations=blocks, priority=1),
            ],
            2.0,
        ),
        Case(
            "64 pods of switches 1.0, 64 leaves full of gangs of 8",
            [
                *_servers(512),
                *_running([[f"n{8 * i + j}" for j in range(8)] for i in range(64)], 8),
                *_job([8] * 64, labels=LARGE, priority=1),
            ],
            2.0,
        ),
    ]


def run(repeats: int = REPEATS) -> Iterator[tuple[str, str, str]]:
    """Rows of (what, median milliseconds, note)."""
    for case in cases():
        state, cache = ClusterState(), PlannerCache()
        for obj in case.objects:
            state.upsert(obj)
        state.snapshot(0.0)
        times = []
        for _ in range(repeats):
            snapshot = state.snapshot(0.0)
            start = time.process_time()
            plan = plan_round(snapshot, case.config, planner_cache=cache)
            times.append(time.process_time() - start)
        median = statistics.median(times)
        bar = f"bar {case.bar * 1000:,.0f} ms {'holds' if median < case.bar else 'MISSED'}; " if case.bar else ""
        gone = f", {len(plan.evictions)} evicted" if plan.evictions else ""
        yield f"ascend: {case.name}", f"{median * 1000:.1f} ms", f"{bar}{len(plan.placements)} placed{gone}"


if __name__ == "__main__":
    for row in run():
        print("{:<60}{:>12}  {}".format(*row), flush=True)
