"""How fast pods are bound: `koordpy run` as a process of its own, against the embedded API server and, where
KUBEBUILDER_ASSETS names etcd and kube-apiserver, against the real one.

`python -m bench.binds [NODES]`. Pods wait first, then the scheduler starts; everything shares the machine's cores.
"""

import asyncio
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from koordpy.api.objects import Pod
from koordpy.engine.client import ApiClient
from koordpy.engine.credentials import load_access
from koordpy.engine.reflector import Reflector
from koordpy.engine.resources import PODS
from koordpy.sim.clusters import gang, node, pod
from koordpy.sim.server import ApiServer

Row = tuple[str, str, str]
NODES = 1000
TIMEOUT_SECONDS = 120.0
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Load:
    """`gangs` gangs of `size` one-GPU pods, or, with gangs 0, `size` plain pods."""

    gangs: int
    size: int

    @property
    def name(self) -> str:
        return f"{self.gangs} gangs of {self.size}" if self.gangs else f"{self.size} plain pods"

    @property
    def pods(self) -> int:
        return max(1, self.gangs) * self.size

    def manifests(self) -> list[dict[str, Any]]:
        """PodGroups and pods, of names that no other load has."""
        if not self.gangs:
            return [pod(f"plain-{i}", gpus=0, cpu="100m", memory="200Mi") for i in range(self.size)]
        made = [m for i in range(self.gangs) for m in gang(f"g{self.gangs}-{i}", self.size, gpus=1)]
        for manifest in made:
            if manifest["kind"] == "Pod":
                for amounts in manifest["spec"]["containers"][0]["resources"].values():
                    amounts |= {"cpu": "1", "memory": "1Gi"}
        return made


LOADS = (Load(0, 3000), Load(20, 100), Load(1, 512))


class _Seen:
    """Counts bound pods as a watch sees them."""

    def __init__(self, wanted: int) -> None:
        self.wanted, self.at, self.done = wanted, {}, asyncio.Event()  # type: ignore[var-annotated]

    def upsert(self, obj: Pod, old: Pod | None) -> None:
        if obj.spec.node_name and obj.key not in self.at:
            self.at[obj.key] = time.monotonic()
            if len(self.at) == self.wanted:
                self.done.set()

    def delete(self, obj: Pod) -> None:
        """Pods of the load before this one."""


async def _measure(kubeconfig: Path, load: Load, where: str) -> Row:
    async with ApiClient(await load_access(str(kubeconfig)), qps=0) as client:
        paths = {"Pod": "/api/v1/namespaces/default/pods"}
        paths["PodGroup"] = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/podgroups"
        gate = asyncio.Semaphore(32)

        async def create(manifest: dict[str, Any]) -> None:
            async with gate:
                await client.post(paths[manifest["kind"]], manifest)

        await asyncio.gather(*map(create, load.manifests()))
        seen = _Seen(load.pods)
        watching = asyncio.create_task(Reflector(client, PODS, Pod, seen).run())
        await asyncio.sleep(1.0)
        before = _children_cpu()
        began = time.monotonic()
        with _scheduler(kubeconfig):
            await asyncio.wait_for(seen.done.wait(), TIMEOUT_SECONDS)
        cpu = _children_cpu() - before
        watching.cancel()
        await asyncio.gather(*(client.delete(PODS.path(*key.split("/")), grace_seconds=0) for key in seen.at))
    first, last = min(seen.at.values()), max(seen.at.values())
    speed = load.pods / max(last - first, 1e-3)
    per_pod = cpu / load.pods * 1000
    note = f"start to last bind {last - began:.2f} s, scheduler's CPU {per_pod:.2f} ms a pod, its start included"
    return (f"binds: {load.name}, {where}", f"{speed:.0f}/s", note)


@contextmanager
def _scheduler(kubeconfig: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "koordpy.cli.main", "run", "--kubeconfig", str(kubeconfig)]
    command += ["--kube-api-qps", "0", "--bind-address", "127.0.0.1:0", "--log-level", "error"]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _serve(nodes: int, pipe: Connection) -> None:
    async def serve() -> None:
        async with ApiServer() as server:
            for i in range(nodes):
                server.store.create("nodes", node(f"n{i:05d}"))
            pipe.send(server.kubeconfig())
            await asyncio.to_thread(pipe.recv)

    import uvloop

    uvloop.run(serve())


@asynccontextmanager
async def _embedded(nodes: int, folder: Path) -> AsyncIterator[Path]:
    """An embedded API server in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(nodes, theirs), daemon=True)
    process.start()
    try:
        file = folder / "embedded.kubeconfig"
        file.write_text(await asyncio.to_thread(ours.recv))
        yield file
    finally:
        ours.send(None)
        process.join(10)
        process.kill()


@asynccontextmanager
async def _real(nodes: int, assets: Path) -> AsyncIterator[Path]:
    """etcd and kube-apiserver without limits on requests."""
    from tests.e2e.controlplane import ControlPlane

    async with ControlPlane(assets, unlimited=True) as plane:
        for definition in sorted((ROOT / "crds").glob("*.yaml")):
            plane.kubectl("apply", "-f", str(definition))
        made = [node(f"n{i:05d}") for i in range(nodes)]
        async with ApiClient(await load_access(str(plane.kubeconfig())), qps=0) as client:
            gate = asyncio.Semaphore(32)

            async def create(manifest: dict[str, Any]) -> None:
                async with gate:
                    path = f"/api/v1/nodes/{manifest['metadata']['name']}"
                    await client.post("/api/v1/nodes", json.loads(json.dumps(manifest)))
                    await client.patch(path + "/status", {"status": manifest["status"]})
                    # a new node is tainted as not ready, which its controller would take away
                    await client.patch(path, {"spec": {"taints": None}})

            await asyncio.gather(*map(create, made))
        yield plane.kubeconfig()


async def _run(nodes: int) -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        async with _embedded(nodes, Path(folder)) as kubeconfig:
            rows += [await _measure(kubeconfig, load, "embedded server") for load in LOADS]
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets:
        async with _real(nodes, Path(assets)) as kubeconfig:
            rows += [await _measure(kubeconfig, load, "real server") for load in LOADS]
    return rows


def run(nodes: int = NODES) -> list[Row]:
    """Rows of (what, figure, note)."""
    import uvloop

    return uvloop.run(_run(nodes))


if __name__ == "__main__":
    for row in run(*map(int, sys.argv[1:])):
        print("{:<52}{:>16}  {}".format(*row))
