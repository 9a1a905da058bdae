# SPDX-License-Identifier: Apache-2.0
"""The embedded API server in a process of its own, in the place of a control plane: no TLS, no admission, no etcd."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import tempfile
from collections.abc import AsyncIterator
from multiprocessing.connection import Connection
from pathlib import Path

import uvloop

from bench.live.cluster import LiveCluster
from koordpy.apiserver.embedded_server import ApiServer
from tests.e2e.client import Client


def _serve(pipe: Connection) -> None:
    async def serve() -> None:
        async with ApiServer() as server:
            pipe.send((server.url, server.kubeconfig()))
            await asyncio.to_thread(pipe.recv)

    uvloop.run(serve())


class _Plane:
    """What schedulers are told of the server."""

    gangs = None

    def __init__(self, file: Path, pid: int) -> None:
        self._file, self.pids = file, [pid]

    def kubeconfig(self) -> Path:
        return self._file


@contextlib.asynccontextmanager
async def embedded_cluster(nodes: int) -> AsyncIterator[LiveCluster]:
    """A cluster like `live_cluster`, on the embedded server."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    with tempfile.TemporaryDirectory(prefix="koordpy-bench-") as name:
        try:
            url, kubeconfig = await asyncio.to_thread(ours.recv)
            file = Path(name) / "embedded.kubeconfig"
            file.write_text(kubeconfig)
            async with Client(url) as api:
                cluster = LiveCluster(_Plane(file, process.pid or 0), api, Path(name))
                await cluster.grow(nodes)
                yield cluster
        finally:
            ours.send(None)
            process.join(10)
            process.kill()
