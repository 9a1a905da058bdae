"""`python -m koordpy.sim`: the embedded API server as a process of its own, for benchmarks and trying things by hand.

In a process of its own it takes no time from what is measured, and its garbage collector can be told that JSON has no
cycles: with 50,000 pods as mappings a full collection takes seconds.
"""

import argparse
import asyncio
import contextlib
import gc
import signal
from pathlib import Path

import uvloop

from koordpy.sim.clusters import training_cluster
from koordpy.sim.kubelet import FakeKubelet
from koordpy.sim.server import ApiServer

_ALLOCATIONS_BETWEEN_COLLECTIONS = 1_000_000


async def _serve(given: argparse.Namespace) -> None:
    server = ApiServer()
    if given.nodes:
        cluster = training_cluster(given.nodes)
        server.store.create("clusternetworktopologies.scheduling.koordinator.sh", cluster.topology)
        for node in cluster.nodes:
            server.store.create("nodes", node)
    await server.start(port=given.port, history=given.history)
    if given.kubeconfig:
        given.kubeconfig.write_text(server.kubeconfig(), encoding="utf-8")
    print(server.url, flush=True)
    gc.freeze()
    ended = asyncio.Event()
    for sign in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(sign, ended.set)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(server.stop)
        if given.kubelet:
            await stack.enter_async_context(FakeKubelet(server.url))
        await ended.wait()


def main() -> None:
    """Serve until SIGINT or SIGTERM; the URL is the first line of output."""
    parser = argparse.ArgumentParser(prog="python -m koordpy.sim", description="An embedded API server on 127.0.0.1.")
    parser.add_argument("--port", type=int, default=0, help="0 (default) takes a free one")
    parser.add_argument("--nodes", type=int, default=0, help="nodes of a training cluster to begin with")
    parser.add_argument("--kubelet", action="store_true", help="run a fake kubelet, too")
    parser.add_argument("--kubeconfig", type=Path, help="where to write a kubeconfig")
    parser.add_argument("--history", type=int, default=10_000, help="changes of a resource a watch can resume over")
    given = parser.parse_args()
    gc.set_threshold(_ALLOCATIONS_BETWEEN_COLLECTIONS, 50, 1000)
    uvloop.run(_serve(given))


if __name__ == "__main__":
    main()
