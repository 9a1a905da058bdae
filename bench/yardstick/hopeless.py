# SPDX-License-Identifier: Apache-2.0
"""A gang that cannot be placed comes to a running scheduler: how soon all members are told why, and what it costs."""

from __future__ import annotations

import asyncio
import time

from bench.live.cluster import PLAIN, WAVE, LiveCluster, at_rest
from bench.live.schedulers import Scheduler, running
from bench.live.usage import usage_of
from bench.live.watching import PodWatch
from bench.yardstick.figures import Run

TOLD_TIMEOUT_S = 90.0
START_S = 4.0
"""A started scheduler has this long, then until it is at rest."""
REST_TIMEOUT_S = 30.0
REST_SHARE = 0.1
FULL = "full"
"""Name and wave of the pods that take one GPU of a node each."""


async def prepare(cluster: LiveCluster, *, full: int) -> None:
    """One GPU is taken on each of the first nodes: no pod of eight fits there."""
    one_gpu = {**PLAIN, "nvidia.com/gpu": "1"}
    await cluster.running_pods(full, FULL, node_of=lambda i: i, requests=one_gpu)


async def started(pid: int) -> None:
    """Waits until a scheduler that was just started has taken in the cluster."""
    await asyncio.sleep(START_S)
    await at_rest([pid], share=REST_SHARE, within_s=REST_TIMEOUT_S)


async def play(cluster: LiveCluster, scheduler: Scheduler, *, size: int, window_s: float) -> Run:
    """The clock of the verdicts runs from the last pod created, that of the CPU from before the first."""
    wave = cluster.name("hopeless-")
    async with (
        running(scheduler, cluster) as process,
        PodWatch(cluster.api, selector=f"{WAVE}={wave}").running() as watch,
    ):
        await started(process.pid)
        before, began = usage_of(process.pid), time.monotonic()
        uids = await scheduler.gang(cluster, wave, size, gpus=8)
        created = time.monotonic()
        await watch.until(lambda: uids <= watch.told_at.keys() or not process.running, within_s=TOLD_TIMEOUT_S)
        await asyncio.sleep(max(0.0, began + window_s - time.monotonic()))
        process.must_run()
        after = usage_of(process.pid)
    await cluster.clean(wave)
    told = sorted(watch.told_at[uid] for uid in uids & watch.told_at.keys())
    text = next((pod.verdict for pod in watch.pods.values() if pod.verdict), "")
    figures = {"cpu_s": after.cpu_s - before.cpu_s}
    if len(told) < len(uids):
        return Run(figures, after, [f"{len(told)} of {len(uids)} told in {TOLD_TIMEOUT_S:g} s", text])
    return Run({**figures, "told_s": told[-1] - created}, after, [text])
