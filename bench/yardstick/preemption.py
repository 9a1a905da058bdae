# SPDX-License-Identifier: Apache-2.0
"""A gang of higher priority comes to a running scheduler in a cluster that is full: when it runs, and at whose cost."""

from __future__ import annotations

import time

from bench.live.cluster import PLAIN, PRIORITY_CLASSES, WAVE, LiveCluster
from bench.live.schedulers import Scheduler, running
from bench.live.usage import usage_of
from bench.live.watching import PodWatch
from bench.yardstick.figures import Run
from bench.yardstick.hopeless import started
from tests.e2e.client import Refused

TIMEOUT_S = 120.0
GPUS = 8
HIGH = "bench-high"
CONFLICT = 409


async def prepare(cluster: LiveCluster) -> None:
    """The PriorityClass of the gang; those who run have priority 0."""
    body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": HIGH}, "value": 1000}
    try:
        await cluster.api.create(PRIORITY_CLASSES, body)
    except Refused as refused:
        if refused.status != CONFLICT:
            raise


async def fill(cluster: LiveCluster, count: int, stem: str) -> str:
    """Running pods of one GPU, eight on a node; their wave."""
    wave = cluster.name(stem)
    one_gpu = {**PLAIN, "nvidia.com/gpu": "1"}
    await cluster.running_pods(count, wave, node_of=lambda i: i // GPUS, requests=one_gpu)
    return wave


async def play(cluster: LiveCluster, scheduler: Scheduler, *, size: int) -> Run:
    """Both clocks run from before the gang is created to its last bind."""
    count = GPUS * cluster.nodes
    full, wave = await fill(cluster, count, "running-"), cluster.name("gang-")
    async with (
        running(scheduler, cluster) as process,
        PodWatch(cluster.api, selector=f"{WAVE}={wave}").running() as watch,
    ):
        await started(process.pid)
        before, began = usage_of(process.pid), time.monotonic()
        uids = await scheduler.gang(cluster, wave, size, gpus=GPUS, priority=HIGH)
        await watch.until(lambda: uids <= watch.bound_at.keys() or not process.running, within_s=TIMEOUT_S)
        process.must_run()
        after = usage_of(process.pid)
        left = await cluster.count(full)
    await cluster.clean()
    figures = {"evicted": float(count - left), "cpu_s": after.cpu_s - before.cpu_s}
    times = [watch.bound_at[uid] for uid in uids & watch.bound_at.keys()]
    if len(times) < len(uids):
        return Run(figures, after, [f"{len(times)} of {len(uids)} bound in {TIMEOUT_S:g} s"])
    return Run({**figures, "last_s": max(times) - began}, after)
