# SPDX-License-Identifier: Apache-2.0
"""How long one round takes with Ascend jobs, planner only: switches, SuperPoDs, chips inside nodes, hopeless jobs.

`python -m bench.ascend`. CPU seconds, the median of several rounds.
"""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.objects import group, node, pod, state_of
from bench.timing import Row, against, milliseconds, rounds
from koordpy.api import keys
from koordpy.api.objects import ConfigMap, ObjectMeta, Quantities, Wire
from koordpy.config.configuration import Ascend, KoordpyConfiguration
from koordpy.feasibility.round_state import PlannerCache

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


def _node(name: str, chips: int, labels: Mapping[str, str]) -> Wire:
    return node(name, {"cpu": "192", "memory": "1536Gi", NPU: str(chips)}, labels=labels)


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
    held = {NPU: ",".join(f"Ascend910-{k}" for k in range(chips))}
    for i, names in enumerate(places):
        out.append(group(f"v{i}", len(names)))
        for j, name in enumerate(names):
            out.append(pod(f"v{i}-{j}", _chips(chips), at=name, gang=f"v{i}", age=i, annotations=held))
    return out


def _job(
    sizes: Sequence[int],
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    priority: int = 0,
) -> list[Wire]:
    """A gang: chips of each pod."""
    members = [
        pod(f"g-{i}", _chips(chips), gang="g", priority=priority, labels=labels) for i, chips in enumerate(sizes)
    ]
    return [group("g", len(sizes), annotations=annotations), *members]


def _chips(number: int) -> Quantities:
    return {"cpu": "8", NPU: str(number)}


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


def run(repeats: int = REPEATS) -> Iterator[Row]:
    """Rows of (what, median milliseconds, note)."""
    for case in cases():
        times, plan = rounds(state_of(case.objects), repeats, config=case.config, planner_cache=PlannerCache())
        median = statistics.median(times)
        gone = f", {len(plan.evictions)} evicted" if plan.evictions else ""
        note = f"{against(case.bar, median)}{len(plan.placements)} placed{gone}"
        yield f"ascend: {case.name}", milliseconds(median), note


if __name__ == "__main__":
    for row in run():
        print("{:<60}{:>12}  {}".format(*row), flush=True)
