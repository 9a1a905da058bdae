# SPDX-License-Identifier: Apache-2.0
"""A scheduler that dies without a word: who goes on, and what is lost."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from bench.live.cluster import PLAIN
from bench.live.schedulers import Koordpy, running
from bench.soak.session import Soak

CORES = 96
"""Of a node."""


async def takeover(soak: Soak) -> None:
    """Two replicas; the leader is killed, so that nobody gives the lease back."""
    replica = Koordpy(elect=True)
    async with running(replica, soak.cluster) as first:
        await soak.all_bound(await soak.plain_pod("first"), within_s=60)
        async with running(replica, soak.cluster):
            await asyncio.sleep(5)
            first.kill()
            died = time.monotonic()
            uids = await soak.plain_pod("orphan")
            await soak.all_bound(uids, within_s=60)
            wait = max(soak.watch.bound_at.get(uid, died + 60) for uid in uids) - died
    soak.row("leader killed: until the other replica binds", f"{wait:.1f} s", "< 20 s", wait < 20)


async def restart(soak: Soak) -> None:
    """20,000 bound pods; koordpy is killed while it binds more, and starts again."""
    cluster, watch, koordpy = soak.cluster, soak.watch, Koordpy()
    bound, more = 20_000, 3_000
    per_node = -(-bound // cluster.nodes)
    old = await cluster.bound_pods(
        bound,
        cluster.name("bound"),
        node_of=lambda i: i // per_node,
        scheduler=koordpy.scheduler_name,
        requests={**PLAIN, "cpu": "1"},
    )
    new = await cluster.pods(more, cluster.name("more"), scheduler=koordpy.scheduler_name, requests={"cpu": "10"})
    async with running(koordpy, cluster) as process:
        await watch.until(lambda: len(new & watch.bound_at.keys()) > more / 5, within_s=120)
        process.kill()
    at_kill = len(new & watch.bound_at.keys())
    async with running(koordpy, cluster):
        done = await soak.all_bound(new, within_s=180)
        await asyncio.sleep(2)
    there = {uid: pod for uid, pod in watch.pods.items() if uid in old | new}
    use: Counter[str] = Counter()
    for uid, pod in there.items():
        use[pod.spec.node_name] += 1 if uid in old else 10
    over = sum(1 for node, cores in use.items() if node and cores > CORES)
    what = f"killed among {more} Bindings ({at_kill} made) beside {bound} bound pods: "
    lost = len(old | new) - len(there) + (0 if done else len(new - watch.bound_at.keys()))
    soak.row(what + "pods lost", f"{lost}", "0", lost == 0)
    doubled = len(watch.moved) + over
    soak.row(what + "moved pods + overbooked nodes", f"{doubled}", "0", not doubled)
