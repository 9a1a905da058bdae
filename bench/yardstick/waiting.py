# SPDX-License-Identifier: Apache-2.0
"""Pods that wait before the scheduler starts: how fast it binds them, and what that costs it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from bench.live.cluster import PLAIN, WAVE, LiveCluster
from bench.live.schedulers import Scheduler, running
from bench.live.usage import usage_of
from bench.live.watching import PodWatch
from bench.yardstick.figures import Run

Make = Callable[[LiveCluster, Scheduler, str], Awaitable[set[str]]]
"""Makes the pods of a wave; their uids."""
TIMEOUT_S = 180.0
SETTLE_S = 1.5
"""The watch is under way and the server at rest before the scheduler starts."""
LATER_S = 8.0
"""Until events and the like, which may stand back behind Bindings, are written as well."""


async def plain(cluster: LiveCluster, scheduler: Scheduler, *, count: int) -> Run:
    """Plain pods that wait; the clock of the rate runs from the first bind to the last."""
    wave = cluster.name("plain-")
    uids = await cluster.pods(count, wave, scheduler=scheduler.scheduler_name, requests=PLAIN)
    return await _drain(cluster, scheduler, wave, uids, later_s=LATER_S)


async def drain(cluster: LiveCluster, scheduler: Scheduler, wave: str, make: Make) -> Run:
    """Whatever waits; the clock runs from the start of the process to the last bind."""
    return await _drain(cluster, scheduler, wave, await make(cluster, scheduler, wave))


async def gangs(cluster: LiveCluster, scheduler: Scheduler, *, gangs: int, size: int, gpus: int) -> Run:
    """Gangs that wait; the clock runs from the start of the process to the last bind."""
    wave = cluster.name("gangs-")

    uids: set[str] = set()
    for i in range(gangs):
        uids |= await scheduler.gang(cluster, f"{wave}-{i}", size, gpus=gpus, wave=wave)
    return await _drain(cluster, scheduler, wave, uids)


async def shapes(cluster: LiveCluster, scheduler: Scheduler, *, shapes: int, each: int, gangs: int, size: int) -> Run:
    """Plain pods of many shapes, and gangs of one-GPU pods, that all wait together."""
    wave = cluster.name("shapes-")
    uids = await cluster.pods(
        shapes * each,
        wave,
        scheduler=scheduler.scheduler_name,
        requests=lambda i: {"cpu": f"{100 + i % shapes}m", "memory": f"{64 + i % shapes}Mi"},
    )
    for i in range(gangs):
        uids |= await scheduler.gang(cluster, f"{wave}-gang-{i}", size, gpus=1, wave=wave)
    return await _drain(cluster, scheduler, wave, uids)


async def _drain(cluster: LiveCluster, scheduler: Scheduler, wave: str, uids: set[str], *, later_s: float = 0.0) -> Run:
    async with PodWatch(cluster.api, selector=f"{WAVE}={wave}").running() as watch:
        await asyncio.sleep(SETTLE_S)
        began = time.monotonic()
        async with running(scheduler, cluster) as process:
            await watch.until(lambda: uids <= watch.bound_at.keys() or not process.running, within_s=TIMEOUT_S)
            process.must_run()
            usage = usage_of(process.pid)
            await asyncio.sleep(later_s)
            later = usage_of(process.pid)
    await cluster.clean()
    times = sorted(watch.bound_at[uid] for uid in uids & watch.bound_at.keys())
    if len(times) < len(uids):
        return Run({}, later, [f"{len(times)} of {len(uids)} bound in {TIMEOUT_S:g} s"])
    figures = {
        "first_s": times[0] - began,
        "last_s": times[-1] - began,
        "rate": len(times) / max(times[-1] - times[0], 1e-3),
        "cpu_ms": 1000 * usage.cpu_s / len(times),
        "peak_mb": later.peak_bytes / 1e6,
        "cpu_later_ms": 1000 * later.cpu_s / len(times),
    }
    return Run(figures, later)
