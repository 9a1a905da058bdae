"""A watch of every pod, for measurements: what is true of each pod, and since when this process has known it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp

from tests.e2e.client import Client, Refused

Json = dict[str, Any]
PODS = "/api/v1/pods"


class PodWatch:
    """Times are of time.monotonic(); a watch that the server ends (it ends slow readers) is resumed."""

    def __init__(self, api: Client) -> None:
        self._api = api
        self._changed = asyncio.Event()
        self.pods: dict[str, Json] = {}
        """uid -> pod."""
        self.bound_at: dict[str, float] = {}
        """uid -> when it was first seen with a node."""
        self.told_at: dict[str, float] = {}
        """uid -> when its PodScheduled=False was first seen."""
        self.moved: list[str] = []
        """Pods that were seen on two nodes."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[PodWatch]:
        """Watches while the block lasts; the pods that are there are known when it begins."""
        version = await self._list()
        task = asyncio.create_task(self._watch(version))
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until(self, done: Callable[[], bool], *, within_s: float) -> bool:
        """Waits for something that pods tell; False when it did not come true in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not done():
                    self._changed.clear()
                    await self._changed.wait()
        return done()

    def named(self, prefix: str) -> list[Json]:
        """The pods whose names begin so."""
        return [pod for pod in self.pods.values() if pod["metadata"]["name"].startswith(prefix)]

    async def _list(self) -> str:
        listed = await self._api.get(PODS)
        known = {pod["metadata"]["uid"] for pod in listed["items"]}
        for uid in set(self.pods) - known:
            del self.pods[uid]
        for pod in listed["items"]:
            self._saw(pod)
        version: str = listed["metadata"]["resourceVersion"]
        return version

    async def _watch(self, version: str) -> None:
        while True:
            try:
                async for kind, obj in self._api.watch(PODS, since=version, seconds=3600):
                    if kind == "ERROR":
                        version = await self._list()
                        break
                    version = obj["metadata"]["resourceVersion"]
                    if kind == "DELETED":
                        self.pods.pop(obj["metadata"]["uid"], None)
                    else:
                        self._saw(obj)
                    self._changed.set()
            except (aiohttp.ClientError, TimeoutError, Refused):
                await asyncio.sleep(0.05)
                version = await self._list()

    def _saw(self, pod: Json) -> None:
        uid, now = pod["metadata"]["uid"], time.monotonic()
        before = self.pods.get(uid)
        self.pods[uid] = pod
        if node := pod["spec"].get("nodeName"):
            self.bound_at.setdefault(uid, now)
            if before is not None and before["spec"].get("nodeName", node) != node:
                self.moved.append(pod["metadata"]["name"])
        elif uid not in self.told_at and any(
            c["type"] == "PodScheduled" and c["status"] == "False" for c in pod["status"].get("conditions", [])
        ):
            self.told_at[uid] = now
        self._changed.set()
