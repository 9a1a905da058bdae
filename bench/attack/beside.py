"""A bare client in a process of its own: it binds each pod of a label as soon as the server tells of it.

    python -m bench.attack.beside URL CA, the token in the environment

What its Bindings take is what the server takes by itself, and a process that does nothing else.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from bench.live.cluster import node_name
from bench.live.watching import PodWatch, WatchedPod
from tests.e2e.client import Client

LABEL = "bench.koordpy.io/beside"
TOKEN = "KOORDPY_BENCH_TOKEN"


async def bind_all(url: str, ca: Path) -> None:
    """Binds until it is ended."""
    sent: set[str] = set()
    async with (
        Client(url, token=os.environ[TOKEN], ca=ca) as api,
        PodWatch(api, selector=LABEL).running() as watch,
        asyncio.TaskGroup() as group,
    ):

        async def bind(pod: WatchedPod) -> None:
            meta = pod.metadata
            named = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}
            await api.bind({"metadata": named}, node_name(0))

        while True:
            await watch.until(lambda: not watch.pods.keys() <= sent, within_s=3600)
            for uid, pod in watch.pods.items():
                if uid not in sent and not pod.spec.node_name:
                    group.create_task(bind(pod))
            sent.update(watch.pods)


if __name__ == "__main__":
    asyncio.run(bind_all(sys.argv[1], Path(sys.argv[2])))
