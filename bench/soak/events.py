# SPDX-License-Identifier: Apache-2.0
"""Time in which nothing can be placed, and time in which very much happens."""

from __future__ import annotations

import asyncio
import re
import socket
import time
import urllib.request

from bench.live.cluster import PODS
from bench.live.schedulers import Koordpy, running
from bench.live.usage import cpu_seconds
from bench.soak.session import Soak

LAG = re.compile(r'koordpy_watch_lag_seconds_bucket\{le="([^"]+)",resource="pods"\} (\S+)')


async def idle(soak: Soak) -> None:
    """1,000 unschedulable pods in a cluster where nothing happens."""
    koordpy, watch, count = Koordpy(), soak.watch, 1000
    uids = await soak.cluster.pods(
        count, soak.cluster.name("idle"), scheduler=koordpy.scheduler_name, requests={"nvidia.com/gpu": "64"}
    )
    await watch.until(lambda: uids <= watch.pods.keys(), within_s=60)
    before = dict(watch.writes)
    async with running(koordpy, soak.cluster) as process:
        told = await watch.until(lambda: uids <= watch.told_at.keys(), within_s=60)
        await asyncio.sleep(5)
        cpu = cpu_seconds(process.pid)
        await asyncio.sleep(soak.minutes * 60)
        share = (cpu_seconds(process.pid) - cpu) / (soak.minutes * 60)
    most = max(watch.writes.get(uid, 0) - before.get(uid, 0) for uid in uids)
    what = f"{count} unschedulable pods, {soak.minutes:g} idle minutes: "
    soak.row(what + "writes of a pod", f"{most}", "<= 1", most <= 1 and told)
    soak.row(what + "CPU, share of a core", f"{share:.2%}", "< 5 %", share < 0.05)


async def lag(soak: Soak) -> None:
    """Pod events at 500 a second: from their arrival until koordpy knows of them, and until it acts on one."""
    count, seconds, rate, stem = 2000, 15, 500, soak.cluster.name("lag")
    await soak.cluster.bound_pods(count, stem, node_of=lambda i: i % soak.cluster.nodes)
    port = _free_port()
    async with running(Koordpy(flags=("--bind-address", f"127.0.0.1:{port}")), soak.cluster):
        await soak.all_bound(await soak.plain_pod("first"), within_s=60)
        before = await _buckets(port)
        began, sent, waits = time.monotonic(), 0, list[float]()

        async def storm(worker: int) -> None:
            nonlocal sent
            for number in range(worker, rate * seconds, 32):
                await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
                if time.monotonic() > began + 2 * seconds:
                    return
                body = {"metadata": {"labels": {"storm": str(number)}}}
                await soak.cluster.api.patch(f"{PODS}/{stem}-{number % count}", body)
                sent += 1

        async def probe() -> None:
            while time.monotonic() < began + seconds - 2:
                made = await soak.plain_pod("probe")
                created = time.monotonic()
                await soak.all_bound(made, within_s=30)
                waits.append(time.monotonic() - created)
                await asyncio.sleep(0.1)

        await asyncio.gather(probe(), *map(storm, range(32)))
        took = time.monotonic() - began
        await asyncio.sleep(1)
        after = await _buckets(port)
    counts = {le: after[le] - before.get(le, 0.0) for le in after}
    total = counts[float("inf")]
    p99 = min(le for le, number in counts.items() if number >= 0.99 * total)
    what = f"{sent / took:.0f} pod events/s: "
    soak.row(what + "p99 of koordpy_watch_lag_seconds at most", f"{p99:g} s", "< 1 s", p99 < 1.0)
    soak.row(what + f"a pod created until seen bound, worst of {len(waits)}", f"{max(waits):.2f} s", "")


async def _buckets(port: int) -> dict[float, float]:
    """Buckets of the pods' watch lag: upper end -> batches up to it."""

    # HTTP_PROXY leads nowhere from here
    directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def read() -> str:
        with directly.open(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    found = LAG.findall(await asyncio.to_thread(read))
    return {float(le.replace("+Inf", "inf")): float(number) for le, number in found}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
