# SPDX-License-Identifier: Apache-2.0
"""How memory, snapshots and plans grow with the cluster, from 5,000 to 100,000 nodes.

`python -m bench scale`. No API server: objects as the watch hands them on, decoded from bytes. Nodes have 8 GPUs in a
tree of two layers; a quarter of them is free, the others have five pods each. Each size is a process of its own. Memory
is what is resident once all is read, times are processor time, the median of several.
"""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from statistics import median

from msgspec import json

from bench.objects import group, node, pod
from bench.timing import Row, against, milliseconds, timed
from koordpy.api import keys
from koordpy.api.objects import Node, Pod
from koordpy.cache.cluster_state import ClusterState
from koordpy.devices.family_registry import make_state
from koordpy.feasibility.round_state import PlannerCache
from koordpy.planner.planning_round import plan_round
from tests.scenarios.cluster import hierarchy

SIZES = (5_000, 20_000, 100_000)
PODS_A_NODE = 4
MEMBERS = 4_096
REPEATS = 5
MOST_MEGABYTES = 3_000
BARS = {"snapshot after one pod's change": 0.05, "plan of one pod": 0.02, f"plan of a gang of {MEMBERS:,}": 0.5}
"""Seconds, at the largest size."""
GPU = keys.GPU_RESOURCES[0]
AMOUNTS = {"cpu": "192", "memory": "2048Gi", GPU: "8"}


def _cluster(nodes: int) -> ClusterState:
    state = make_state()
    state.upsert(hierarchy(("spineLayer", "spine"), ("blockLayer", "block")))
    ask = {"cpu": "8", "memory": "64Gi", GPU: "2"}
    for i in range(nodes):
        labels = {"spine": f"s{i // 512}", "block": f"b{i // 32}", "kubernetes.io/hostname": f"n{i}"}
        state.upsert(json.decode(json.encode(node(f"n{i}", AMOUNTS, labels=labels)), type=Node))
        if i % 4:
            for k in range(PODS_A_NODE + PODS_A_NODE // 3):
                one = pod(f"r-{i}-{k}", ask if k < 4 else {"cpu": "1"}, at=f"n{i}", age=i % 3600)
                state.upsert(json.decode(json.encode(one), type=Pod))
    return state


def _resident_megabytes() -> int:
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS"))


def measured(nodes: int) -> Iterator[tuple[str, float]]:
    """(what, megabytes or seconds) of one size."""
    state = _cluster(nodes)
    state.snapshot(0.0)
    yield "memory", _resident_megabytes()
    times, cache = [], PlannerCache()
    for i in range(REPEATS):
        state.upsert(pod(f"r-1-{i % 4}", {"cpu": "8", GPU: "2"}, at="n1", labels={"change": str(i)}))
        times += timed(partial(state.snapshot, 0.0), 1)[0]
    yield "snapshot after one pod's change", median(times)
    state.upsert(pod("one", {"cpu": "8", GPU: "2"}))
    yield "plan of one pod", _plan(state, cache, 1)
    state.delete(Pod, "default/one")
    state.upsert(group("gang", MEMBERS))
    for i in range(MEMBERS):
        state.upsert(pod(f"gang-{i}", {"cpu": "8", GPU: "2"}, gang="gang"))
    yield f"plan of a gang of {MEMBERS:,}", _plan(state, cache, MEMBERS)


def _plan(state: ClusterState, cache: PlannerCache, pods: int) -> float:
    times = []
    for _ in range(REPEATS):
        snapshot = state.snapshot(0.0)
        (seconds,), plan = timed(partial(plan_round, snapshot, planner_cache=cache), 1)
        assert len(plan.placements) == pods, plan.pending[:1]
        times.append(seconds)
    return median(times)


def run() -> Iterator[Row]:
    """The rows, size by size."""
    for nodes in SIZES:
        told = subprocess.run(
            [sys.executable, "-m", "bench.scale", str(nodes)], capture_output=True, text=True, check=True
        )
        for line in told.stdout.splitlines():
            what, figure = line.split("\t")
            name, largest = f"scale: {nodes:,} nodes, {what}", nodes == SIZES[-1]
            if what == "memory":
                holds = "holds" if float(figure) < MOST_MEGABYTES else "MISSED"
                yield name, f"{float(figure):,.0f} MB", f"bar {MOST_MEGABYTES:,} MB {holds}" if largest else ""
            else:
                yield name, milliseconds(float(figure)), against(BARS[what] if largest else 0.0, float(figure))


if __name__ == "__main__":
    for what, figure in measured(int(sys.argv[1])):
        print(f"{what}\t{figure}", flush=True)
