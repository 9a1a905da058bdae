# SPDX-License-Identifier: Apache-2.0
"""What the parts of a soak share: the cluster, one watch of all its pods, and rows with a bar."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bench.live.cluster import PLAIN, LiveCluster
from bench.live.schedulers import Koordpy
from bench.live.watching import PodWatch

EMPTY_TIMEOUT_S = 120.0


@dataclass
class Soak:
    """missed: bars that were missed so far."""

    cluster: LiveCluster
    watch: PodWatch
    minutes: float
    missed: int = 0

    def row(self, what: str, figure: str, bar: str, passed: bool = True) -> None:
        """Prints one figure."""
        self.missed += not passed
        print(f"{what:<66}{figure:>22}   {bar:<26}{'' if passed else 'MISSED'}", flush=True)

    async def gang(self, size: int) -> set[str]:
        """Makes a gang of one-GPU pods; the uids of its members."""
        return await Koordpy().gang(self.cluster, self.cluster.name("gang"), size, gpus=1)

    async def plain_pod(self, stem: str) -> set[str]:
        """Makes one plain pod for koordpy; its uid."""
        scheduler = Koordpy().scheduler_name
        return await self.cluster.pods(1, self.cluster.name(stem), scheduler=scheduler, requests=PLAIN)

    async def all_bound(self, uids: set[str], *, within_s: float) -> bool:
        """Waits until every pod has a node."""
        return await self.watch.until(lambda: uids <= self.watch.bound_at.keys(), within_s=within_s)

    async def clean(self) -> None:
        """Takes all pods and groups away."""
        await self.cluster.clean()
        await self.watch.until(lambda: not self.watch.pods, within_s=EMPTY_TIMEOUT_S)


Part = Callable[[Soak], Awaitable[None]]
