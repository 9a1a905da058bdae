"""How long one round takes, planner only: from a snapshot to a checked plan.

`python -m bench.planner`. Each case is planned several times; the median is shown, and beside it how many rounds of the
first case (8 pods on 500 nodes) that is, which compares between machines.
"""

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from koordpy.api import keys
from koordpy.api.objects import ClusterNetworkTopology, Node, Pod, PodGroup
from koordpy.cluster.state import ClusterState
from koordpy.planning.round import plan_round
from koordpy.sim.clusters import gang, pod, training_cluster

Row = tuple[str, str, str]
_KINDS: dict[str, Any] = {
    "Node": Node,
    "Pod": Pod,
    "PodGroup": PodGroup,
    "ClusterNetworkTopology": ClusterNetworkTopology,
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

    def state(self) -> ClusterState:
        """The cluster with everything pending."""
        state = ClusterState()
        for manifest in (*training_cluster(self.nodes, **self.settings).manifests(), *self.objects):
            state.upsert(msgspec.convert(_stamped(manifest), _KINDS[manifest["kind"]]))
        return state


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
        cpu = "24" if i % 2 else "8"
        manifest["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    return [
        *out,
        Case("1,024 pods, PP 8, on 5,000 nodes", 5000, gang("g", 1024, annotations=_pipeline(8), gpus=1)),
        Case("100 gangs of 8 on 1,000 nodes", 1000, many),
        Case("a hopeless gang of 600 on 1,000 nodes", 1000, gang("g", 600, annotations=prefer, gpus=9)),
        Case("64 pods of two sizes fill a block of 16", 16, mixed, {"cpu_per_node": 64, "accelerators_per_block": 8}),
        Case("3,000 plain pods on 1,000 nodes", 1000, [pod(f"p-{i}", gpus=0, cpu="100m") for i in range(3000)]),
    ]


def run(repeats: int = REPEATS) -> list[Row]:
    """Rows of (what, median milliseconds, note)."""
    rows: list[Row] = []
    unit = 0.0
    for case in cases():
        state = case.state()
        state.snapshot(0.0)
        times = []
        for _ in range(repeats):
            snapshot = state.snapshot(0.0)
            start = time.perf_counter()
            plan = plan_round(snapshot)
            times.append(time.perf_counter() - start)
        median = statistics.median(times)
        unit = unit or median
        proofs = ", ".join(sorted({str(report.proof) for report in plan.units}))
        note = f"{len(plan.placements)} placed, {len(plan.pending)} pending, {proofs}; {median / unit:.1f} of the first"
        rows.append((f"plan: {case.name}", f"{median * 1000:.1f} ms", note))
    return rows


if __name__ == "__main__":
    for row in run():
        print("{:<48}{:>12}  {}".format(*row))
