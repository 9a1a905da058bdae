# SPDX-License-Identifier: Apache-2.0
"""A bare client in a process of its own: it binds each pod of a name as soon as the server tells of it.

    python -m bench.attack.beside URL CA, the token in the environment

It watches all pods, as every scheduler has to, and reads no more of them than names and nodes. What its Bindings take
is what the server takes by itself, and a process that does nothing else.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from bench.live.cluster import node_name
from bench.live.watching import PodWatch, WatchedPod
from tests.e2e.client import Client

STEM = "own-"
"""Of the names of its pods."""
TOKEN = "KOORDPY_BENCH_TOKEN"


class _Newcomers(PodWatch):
    """Tells of each pod of the name once, when it is new."""

    def __init__(self, api: Client) -> None:
        super().__init__(api)
        self.new: asyncio.Queue[WatchedPod] = asyncio.Queue()

    def _saw(self, pod: WatchedPod) -> None:
        meta = pod.metadata
        if meta.name.startswith(STEM) and meta.uid not in self.pods and not pod.spec.node_name:
            self.new.put_nowait(pod)
        super()._saw(pod)


async def bind_all(url: str, ca: Path) -> None:
    """Binds until it is ended."""
    async with Client(url, token=os.environ[TOKEN], ca=ca) as api, asyncio.TaskGroup() as group:
        watch = _Newcomers(api)

        async def bind(pod: WatchedPod) -> None:
            meta = pod.metadata
            named = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}
            await api.bind({"metadata": named}, node_name(0))

        async with watch.running():
            while True:
                group.create_task(bind(await watch.new.get()))


if __name__ == "__main__":
    asyncio.run(bind_all(sys.argv[1], Path(sys.argv[2])))
