# SPDX-License-Identifier: Apache-2.0
"""What a pod costs on its way through the cache, and what a start with a full cluster costs, in CPU time.

`python -m bench.intake`: no server and no planner; what of the live scheduler stands between the watch's bytes and the
snapshot, each step best of several runs.
"""

import gc
import time
from itertools import pairwise
from typing import Any

import msgspec

from bench.timing import Row
from koordpy.api.objects import Node, Pod
from koordpy.devices.family_registry import make_state
from koordpy.engine.changes.change_hub import Hub
from koordpy.engine.changes.object_changes import ClaimUsers, node_changes
from koordpy.engine.changes.pod_changes_live import PodChanges
from koordpy.engine.scheduling_queue import UnitQueue
from tests.clusters import gang, pod, training_cluster

PODS, NODES = 3000, 1000
START_PODS, START_NODES = 20_000, 5000
RUNS = 7
ADMITTED = {
    "priority": 0,
    "preemptionPolicy": "PreemptLowerPriority",
    "restartPolicy": "Always",
    "tolerations": [
        {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for what in ("not-ready", "unreachable")
    ],
}
_pods, _nodes = msgspec.json.Decoder(Pod), msgspec.json.Decoder(Node)


def _served(manifest: dict[str, Any], at: int, node: str) -> bytes:
    """A pod as the API server sends it; with a node, as its Binding leaves it."""
    made: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(manifest))
    made["metadata"] |= {"uid": f"uid-{at}", "resourceVersion": str(at), "creationTimestamp": "2026-01-01T00:00:00Z"}
    made["spec"] |= ADMITTED | {"volumes": [{"name": f"kube-api-access-{at:05d}", "projected": {"sources": []}}]}
    made["status"] = {"phase": "Pending", "qosClass": "Guaranteed"}
    if node:
        made["spec"]["nodeName"] = node
        made["metadata"]["annotations"] = {"internal.scheduling.koordinator.sh/epoch": "0"}
        made["metadata"]["resourceVersion"] = str(at + PODS)
        made["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
    return msgspec.json.encode(made)


class _Cache:
    """The scheduler's cache with nodes in it."""

    def __init__(self, nodes: list[Node]) -> None:
        self.state, self.queue = make_state(), UnitQueue()
        hub = Hub(self.state, self.queue)
        self.pods = PodChanges(hub, ClaimUsers())
        of_nodes = node_changes(hub)
        for node in nodes:
            of_nodes.upsert(node, None)

    def take(self, lines: list[bytes]) -> None:
        """Decodes pods and takes them in."""
        for line in lines:
            kept = self.pods.take_in(_pods.decode(line))
            assert kept is not None
            self.pods.upsert(kept, None)


def _a_pods_way(waiting: list[bytes], bound: list[bytes], nodes: list[Node], places: dict[str, str]) -> list[float]:
    """CPU seconds of: added, assumed, confirmed, gone."""
    cache, clock = _Cache(nodes), time.process_time
    times = [clock()]
    cache.take(waiting)
    times.append(clock())
    for key, node in places.items():
        cache.queue.discard(key)
        cache.state.assume(key, node)
    times.append(clock())
    cache.take(bound)
    times.append(clock())
    for info in list(cache.state.pods()):
        cache.pods.delete(info.pod)
    times.append(clock())
    return [after - before for before, after in pairwise(times)]


def _way(what: str, manifests: list[dict[str, Any]], nodes: list[Node]) -> Row:
    places = {f"default/{made['metadata']['name']}": nodes[i % NODES].metadata.name for i, made in enumerate(manifests)}
    waiting = [_served(made, i, "") for i, made in enumerate(manifests)]
    bound = [_served(made, i, nodes[i % NODES].metadata.name) for i, made in enumerate(manifests)]
    runs = []
    for _ in range(RUNS):
        gc.collect()
        runs.append(_a_pods_way(waiting, bound, nodes, places))
    steps = [min(step) / len(manifests) * 1e6 for step in zip(*runs, strict=True)]
    note = ", ".join(
        f"{name} {us:.0f}" for name, us in zip(("added", "assumed", "confirmed", "gone"), steps, strict=True)
    )
    return (f"intake: {what}", f"{sum(steps):.0f} us", note)


def _start(lines: list[bytes], nodes: list[Node]) -> Row:
    """Everything from the bytes of a list to the first snapshot; the garbage collector rests, as in a live start."""
    gc.disable()
    try:
        began = time.process_time()
        cache = _Cache(nodes)
        # as a list does: all are decoded before the first is taken in
        kept = [found for line in lines if (found := cache.pods.take_in(_pods.decode(line))) is not None]
        for one in kept:
            cache.pods.upsert(one, None)
        cache.state.snapshot(0.0)
        took = time.process_time() - began
    finally:
        gc.enable()
    return (
        f"intake: start with {len(nodes)} nodes, {len(lines)} bound pods",
        f"{took:.2f} s",
        "decoded, taken in, snapshot",
    )


def run() -> list[Row]:
    """Rows of (what, figure, note)."""
    nodes = [_nodes.decode(msgspec.json.encode(made)) for made in training_cluster(START_NODES).nodes]
    plain = [pod(f"plain-{i}", gpus=0, cpu="100m", memory="200Mi") for i in range(PODS)]
    members = [made for i in range(PODS // 100) for made in gang(f"g{i}", 100, gpus=1) if made["kind"] == "Pod"]
    rows = [_way("plain pods", plain, nodes[:NODES]), _way("members of gangs of 100", members, nodes[:NODES])]
    names = [node.metadata.name for node in nodes]
    lines = [_served(pod(f"run-{i}", gpus=2), i, names[i % START_NODES]) for i in range(START_PODS)]
    return [*rows, _start(lines, nodes)]


if __name__ == "__main__":
    for row in run():
        print("{:<52}{:>16}  {}".format(*row))
