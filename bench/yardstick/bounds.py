# SPDX-License-Identifier: Apache-2.0
"""What the machine can do at this moment, without any scheduler and without a watch: a bare client writes the same."""

from __future__ import annotations

import time
from typing import Any

from bench.live.cluster import NOBODY, PLAIN, PODS, LiveCluster, node_name
from bench.yardstick.preemption import GPUS, fill
from tests.e2e.client import STRATEGIC

IN_FLIGHT = 64
CHUNK = 1000
TOLD = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/1000 nodes are available: 489 Insufficient nvidia.com/gpu, 511 node(s) cannot hold the whole gang.",
}
PREEMPTED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "PreemptionByScheduler",
    "message": "a-scheduler: preempting to accommodate a higher priority pod",
}


async def seconds_to_bind(cluster: LiveCluster, *, count: int) -> float:
    """Seconds that so many Bindings take."""
    wave = await _waiting(cluster, count)
    seconds = await _bind(cluster, wave, count)
    await cluster.clean()
    return seconds


async def binds_a_second(cluster: LiveCluster, *, count: int) -> float:
    """Bindings a second."""
    return count / await seconds_to_bind(cluster, count=count)


async def seconds_to_tell(cluster: LiveCluster, *, count: int) -> float:
    """Seconds that it takes to write the condition of so many pods."""
    wave = await _waiting(cluster, count)
    body = {"status": {"conditions": [TOLD]}}
    began = time.monotonic()
    await cluster.api.each(
        range(count), lambda i: cluster.api.patch(f"{PODS}/{wave}-{i}/status", body), in_flight=IN_FLIGHT
    )
    seconds = time.monotonic() - began
    await cluster.clean(wave)
    return seconds


async def seconds_to_make_room(cluster: LiveCluster, *, size: int) -> float:
    """Seconds that it takes to create a gang's pods and make room for them as schedulers do: nominate each, mark eight
    running pods for each as preempted and delete them, bind."""
    running = await fill(cluster, GPUS * size, "room-")
    began = time.monotonic()
    wave = await _waiting(cluster, size)

    async def nominate(i: int) -> None:
        status = {"nominatedNodeName": node_name(i % cluster.nodes), "conditions": [TOLD]}
        await cluster.api.patch(f"{PODS}/{wave}-{i}/status", {"status": status}, content=STRATEGIC)

    async def preempt(i: int) -> None:
        path = f"{PODS}/{running}-{i}"
        await cluster.api.patch(f"{path}/status", {"status": {"conditions": [PREEMPTED]}}, content=STRATEGIC)
        await cluster.api.delete(path)

    await cluster.api.each(range(size), nominate, in_flight=IN_FLIGHT)
    await cluster.api.each(range(GPUS * size), preempt, in_flight=IN_FLIGHT)
    await _bind(cluster, wave, size)
    seconds = time.monotonic() - began
    await cluster.clean()
    return seconds


async def seconds_to_list(cluster: LiveCluster) -> float:
    """Seconds that it takes to read all nodes and pods, in chunks, and to find the next chunk in each."""
    began = time.monotonic()
    for path in ("/api/v1/nodes", "/api/v1/pods"):
        token = ""
        while True:
            listed = await cluster.api.get(f"{path}?limit={CHUNK}{'&continue=' + token if token else ''}")
            token = listed["metadata"].get("continue", "")
            if not token:
                break
    return time.monotonic() - began


async def _waiting(cluster: LiveCluster, count: int) -> str:
    wave = cluster.name("bound-")
    await cluster.pods(count, wave, scheduler=NOBODY, requests=PLAIN)
    return wave


async def _bind(cluster: LiveCluster, wave: str, count: int) -> float:
    async def bind(i: int) -> None:
        target: dict[str, Any] = {"apiVersion": "v1", "kind": "Node", "name": node_name(i % cluster.nodes)}
        meta = {"name": f"{wave}-{i}", "annotations": {"a": "b"}}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
        await cluster.api.create(f"{PODS}/{wave}-{i}/binding", body)

    began = time.monotonic()
    await cluster.api.each(range(count), bind, in_flight=IN_FLIGHT)
    return time.monotonic() - began
