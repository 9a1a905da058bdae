# SPDX-License-Identifier: Apache-2.0
"""A scheduler starts in a large cluster: when its first decision is out, and how much memory it takes."""

from __future__ import annotations

import asyncio
import time

from bench.live.cluster import PADDING, PLAIN, WAVE, LiveCluster
from bench.live.schedulers import Scheduler, running
from bench.live.usage import usage_of
from bench.live.watching import PodWatch
from bench.yardstick.figures import Run

TIMEOUT_S = 180.0
SETTLE_S = 3.0
"""After the first bind: memory is at its highest while the lists are read, and that is over then."""
BOUND = "bound"


async def prepare(cluster: LiveCluster, *, nodes: int, bound: int) -> None:
    """Nodes, and bound pods of some kilobytes spread over them."""
    await cluster.grow(nodes)
    count = cluster.nodes
    await cluster.bound_pods(bound, BOUND, node_of=lambda i: i % count, annotations=PADDING)
    await cluster.rest()


async def play(cluster: LiveCluster, scheduler: Scheduler) -> Run:
    """One pod waits; the clock runs from the start of the process to its bind."""
    wave = cluster.name("first-")
    uids = await cluster.pods(1, wave, scheduler=scheduler.scheduler_name, requests=PLAIN)
    async with PodWatch(cluster.api, selector=f"{WAVE}={wave}").running() as watch:
        began = time.monotonic()
        async with running(scheduler, cluster) as process:
            await watch.until(lambda: uids <= watch.bound_at.keys() or not process.running, within_s=TIMEOUT_S)
            process.must_run()
            await asyncio.sleep(SETTLE_S)
            usage = usage_of(process.pid)
    await cluster.clean(wave)
    figures: dict[str, float | None] = {"peak_mb": usage.peak_bytes / 1e6}
    if not uids <= watch.bound_at.keys():
        return Run(figures, usage, [f"not bound in {TIMEOUT_S:g} s"])
    return Run({**figures, "first_s": max(watch.bound_at[uid] for uid in uids) - began}, usage)
