# SPDX-License-Identifier: Apache-2.0
"""How long one round takes, planner only: from a snapshot to a checked plan.

`python -m bench.planner [TEXT]`: the cases whose name holds the text, else all. Each case is planned several times; the
median is shown, the share of it that CP-SAT took, and whether the bar holds where one is set. How many rounds of the
first case (8 pods on 500 nodes) that is compares between machines.
"""

import json
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bench.timing import Row, against, milliseconds, rounds
from koordpy.api import keys
from koordpy.api.custom_objects import ClusterNetworkTopology, Device
from koordpy.api.objects import Node, Pod
from koordpy.api.pod_groups import PodGroup
from koordpy.cache.cluster_state import ClusterState
from koordpy.devices.family_registry import make_state
from tests.clusters import gang, pod, training_cluster

_KINDS: dict[str, Any] = {
    "Node": Node,
    "Pod": Pod,
    "PodGroup": PodGroup,
    "ClusterNetworkTopology": ClusterNetworkTopology,
    "Device": Device,
}
REPEATS = 5


def _gathers(**rules: str) -> dict[str, str]:
    strategy = [{"layer": layer, "strategy": f"{how}Gather"} for layer, how in rules.items()]
    return {keys.GANG_TOPOLOGY: json.dumps({"gatherStrategy": strategy})}


def _pipeline(size: int) -> dict[str, str]:
    model = [{"parallelStrategy": "pipeline-parallel", "parallelism": size}]
    strategy = [{"layer": "blockLayer", "strategy": "PreferGather"}]
    return {keys.GANG_TOPOLOGY: json.dumps({"gatherStrategy": strategy, "parallelModel": model})}


@dataclass(frozen=True)
class Case:
    """One input of the planner."""

    name: str
    nodes: int
    objects: Sequence[dict[str, Any]]
    settings: dict[str, Any] = field(default_factory=dict)
    bar: float = 0.0
    """Seconds that the median may take, 0 for none."""
    loaded: bool = False
    """Whether every node runs a pod of 0 to 8 GPUs already."""
    linked: bool = False
    """Whether every node has a Device with a measured matrix, and its pod says which GPUs it holds."""

    def state(self) -> ClusterState:
        """The cluster with everything pending."""
        state = make_state()
        cluster = training_cluster(self.nodes, **self.settings)
        running = _running(cluster.nodes, named=self.linked) if self.loaded else []
        devices = _devices(cluster.nodes) if self.linked else []
        for manifest in (*cluster.manifests(), *devices, *running, *self.objects):
            state.upsert(msgspec.convert(_stamped(manifest), _KINDS[manifest["kind"]]))
        return state


def _devices(nodes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A Device for each node: two quads of faster links, measured with one per cent of noise."""
    rng, out = random.Random(2), []
    for node in nodes:
        name = node["metadata"]["name"]
        rows = [[(200 if i // 4 == j // 4 else 50) * rng.uniform(0.99, 1.01) for j in range(8)] for i in range(8)]
        gpus = [{"type": "gpu", "minor": i, "id": f"GPU-{name}-{i}", "health": True} for i in range(8)]
        spec = {"topologies": {"gpu": [{"name": "bandwidth", "topology": json.dumps(rows)}]}, "devices": gpus}
        out.append({"kind": "Device", "metadata": {"name": name}, "spec": spec})
    return out


def _running(nodes: Sequence[dict[str, Any]], *, named: bool = False) -> list[dict[str, Any]]:
    rng, out = random.Random(1), []
    for i, node in enumerate(nodes):
        gpus = rng.randint(0, 8)
        if gpus:
            manifest = pod(f"running-{i}", gpus=gpus, cpu=str(8 * gpus))
            manifest["spec"]["nodeName"] = node["metadata"]["name"]
            if named:
                held = {"allocatedGPUs": {"0": sorted(map(str, rng.sample(range(8), gpus)))}}
                manifest["metadata"].setdefault("annotations", {})[keys.GPU_ALLOCATION] = json.dumps(held)
            out.append({**manifest, "status": {"phase": "Running"}})
    return out


def _kinds(name: str, kinds: Sequence[tuple[int, str, int]]) -> list[dict[str, Any]]:
    """A gang of several kinds: (pods, cpu, GPUs) each."""
    out = gang(name, sum(n for n, _, _ in kinds), annotations=_gathers(blockLayer="Prefer", spineLayer="Prefer"))
    asked = [(cpu, gpus) for n, cpu, gpus in kinds for _ in range(n)]
    for manifest, (cpu, gpus) in zip(out[1:], asked, strict=True):
        amounts = {"cpu": cpu, "nvidia.com/gpu": str(gpus)} if gpus else {"cpu": cpu}
        manifest["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
    return out


def _stamped(manifest: dict[str, Any]) -> dict[str, Any]:
    meta = {"uid": manifest["metadata"]["name"], "creationTimestamp": "2026-01-01T00:00:00Z", **manifest["metadata"]}
    return {**manifest, "metadata": meta}


def cases() -> list[Case]:
    """The issue's and the specification's cases."""
    prefer = _gathers(blockLayer="Prefer", spineLayer="Prefer")
    out = [
        Case(
            f"gang of {size} on {nodes} nodes" + ("" if size <= nodes else ", one GPU each"),
            nodes,
            gang("g", size, annotations=prefer, gpus=8 if size <= nodes else 1),
        )
        for size in (8, 64, 512)
        for nodes in (500, 5000)
    ]
    many = [manifest for k in range(100) for manifest in gang(f"g{k}", 8, annotations=prefer)]
    mixed = [*gang("m", 64, annotations=_gathers(blockLayer="Must"), gpus=0)]
    for i, manifest in enumerate(mixed[1:]):
        cpu = "48" if i % 2 else "16"
        manifest["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    plain = [pod(f"p-{i}", gpus=0, cpu="100m") for i in range(3000)]
    pipelined = gang("g", 1024, annotations=_pipeline(8), gpus=1)
    few, large = [(1, "16", 0), (32, "8", 1), (63, "8", 2)], [(4, "32", 0), (252, "8", 1), (256, "4", 2)]
    block = {"accelerators_per_block": 8}
    return [
        *out,
        Case("1,024 pods, PP 8, on 5,000 nodes", 5000, pipelined, bar=1.0),
        Case("1,024 pods, PP 8, on 5,000 loaded nodes", 5000, pipelined, bar=1.0, loaded=True),
        Case("4,096 pods on 100,000 nodes", 100_000, gang("g", 4096, annotations=prefer, gpus=1), bar=2.0),
        Case(
            "4,096 pods on 100,000 loaded nodes",
            100_000,
            gang("g", 4096, annotations=prefer, gpus=1),
            bar=2.0,
            loaded=True,
        ),
        Case("100 gangs of 8 on 1,000 nodes", 1000, many, bar=1.0),
        Case("a hopeless gang of 600 on 1,000 nodes", 1000, gang("g", 600, annotations=prefer, gpus=9), bar=0.05),
        Case("64 pods of two sizes fill a block of 16", 16, mixed, block, bar=2.0),
        Case("96 pods of 3 kinds on 5,000 nodes", 5000, _kinds("m", few), bar=3.0),
        Case("96 pods of 3 kinds on 5,000 loaded nodes", 5000, _kinds("m", few), bar=3.0, loaded=True),
        Case("512 pods of 3 kinds on 5,000 nodes", 5000, _kinds("m", large), bar=3.0),
        Case("512 pods of 3 kinds on 5,000 loaded nodes", 5000, _kinds("m", large), bar=3.0, loaded=True),
        Case(
            "64 pods of 2 GPUs on 1,000 linked nodes",
            1000,
            gang("g", 64, annotations=prefer, gpus=2),
            bar=1.0,
            loaded=True,
            linked=True,
        ),
        Case("3,000 plain pods on 1,000 nodes", 1000, plain, bar=3.0),
        Case("3,000 plain pods on 5,000 nodes", 5000, plain, bar=3.0),
    ]


@contextmanager
def _solver_seconds() -> Iterator[list[float]]:
    """Adds up what the solver's runs take."""
    from koordpy.placement.solver.time_budget import TimeBudget

    spent, solve = [0.0], TimeBudget.solve

    def timed(*args: Any, **settings: Any) -> Any:
        start = time.process_time()
        try:
            return solve(*args, **settings)
        finally:
            spent[0] += time.process_time() - start

    TimeBudget.solve = timed  # type: ignore[method-assign]
    try:
        yield spent
    finally:
        TimeBudget.solve = solve  # type: ignore[method-assign]


def run(repeats: int = REPEATS, *, text: str = "") -> Iterator[Row]:
    """Rows of (what, median milliseconds, note)."""
    unit = 0.0
    for case in cases():
        if text not in case.name:
            continue
        with _solver_seconds() as solved:
            times, plan = rounds(case.state(), repeats)
        median = statistics.median(times)
        unit = unit or median
        proofs = ", ".join(sorted({str(report.proof) for report in plan.units}))
        note = (
            f"CP-SAT {solved[0] / sum(times):.0%}; {len(plan.placements)} placed, {len(plan.pending)} pending, {proofs}"
        )
        note = f"{against(case.bar, median)}{note}; {median / unit:.1f} of the first"
        yield f"plan: {case.name}", milliseconds(median), note


if __name__ == "__main__":
    for row in run(text=" ".join(sys.argv[1:])):
        print("{:<52}{:>12}  {}".format(*row), flush=True)
