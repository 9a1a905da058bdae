# SPDX-License-Identifier: Apache-2.0
"""Gangs that come one after the other."""

from __future__ import annotations

import time

from bench.live.schedulers import Koordpy, running
from bench.soak.session import Soak

TIMEOUT_S = 60.0


async def gangs(soak: Soak) -> None:
    """Last member created until its last Binding is seen."""
    async with running(Koordpy(), soak.cluster):
        await soak.all_bound(await soak.gang(2), within_s=TIMEOUT_S)
        for size, times, bar in ((8, 40, 1.0), (64, 15, 2.0), (512, 5, 3.0)):
            waits = []
            for _ in range(times):
                uids = await soak.gang(size)
                created = time.monotonic()
                await soak.all_bound(uids, within_s=TIMEOUT_S)
                waits.append(max(soak.watch.bound_at.get(uid, created + TIMEOUT_S) for uid in uids) - created)
                if size == 512:
                    await soak.clean()
            waits.sort()
            worst = waits[min(len(waits) - 1, int(len(waits) * 0.99))]
            what = f"{times} gangs of {size}: p99 from last member to last Binding"
            soak.row(what, f"{worst:.2f} s", f"< {bar:g} s", worst < bar)
