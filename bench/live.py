"""`make soak`: the live scheduler against a real control plane, each figure beside the bar it has to pass.

    python -m bench.live [PART ...] [--minutes 3] [--nodes 1000]

Parts: plain, gangs, hopeless, idle, lag, takeover, restart, start (all of them without a name). koordpy, the control
plane and this client share the machine, so kube-scheduler's figures are taken in the same run and ratios are what
counts. The exit status is 1 when a bar is missed. The bars are those of kube-parity.md section 8.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.watching import PodWatch
from koordpy.api.keys import DEFAULT_SCHEDULER_NAME as KOORDPY
from koordpy.api.keys import LABEL_POD_GROUP
from tests.e2e.assets import REPOSITORY, find_assets
from tests.e2e.client import Client, pod_manifest, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.process import Process, koordpy_run
from tests.e2e.test_scheduler import GROUPS

Json = dict[str, Any]
KUBE_SCHEDULER = "default-scheduler"
PLAIN = {"cpu": "100m", "memory": "200Mi"}
PADDING = {"kubectl.kubernetes.io/last-applied-configuration": "x" * 3000}
"""Pods of real clusters are some kilobytes large."""


@dataclass
class Soak:
    """One control plane, and the rows measured on it."""

    plane: ControlPlane
    api: Client
    watch: PodWatch
    folder: Path
    nodes: int
    minutes: float
    missed: int = 0
    _number: int = field(default=0)

    def row(self, what: str, figure: str, bar: str, passed: bool) -> None:
        """Prints one figure."""
        self.missed += not passed
        print(f"{what:<66}{figure:>22}   {bar:<26}{'' if passed else 'MISSED'}", flush=True)

    def name(self, stem: str) -> str:
        """A name that no other part has used."""
        self._number += 1
        return f"{stem}{self._number}"

    @contextlib.asynccontextmanager
    async def koordpy(self, *flags: str, elect: bool = False) -> AsyncIterator[Process]:
        """A running koordpy with no limit on requests."""
        flags = ("--bind-address", "127.0.0.1:0", "--kube-api-qps", "0", "--log-level", "warning", *flags)
        if not elect:
            flags = (*flags, "--leader-elect=false")
        process = koordpy_run(
            *flags, kubeconfig=self.plane.kubeconfig(), folder=self.folder, name=self.name("koordpy-")
        )
        try:
            yield process.start()
        finally:
            await asyncio.to_thread(process.stop)

    async def pods(self, count: int, stem: str, **spec: Any) -> set[str]:
        """Makes pods; their uids."""
        uids: set[str] = set()
        namespace = pods_path()

        async def make(i: int) -> None:
            own = {key: value(i) if callable(value) else value for key, value in spec.items()}
            uids.add((await self.api.create(namespace, pod_manifest(f"{stem}-{i}", **own)))["metadata"]["uid"])

        await self.api.each(range(count), make)
        return uids

    async def gang(self, size: int, gpus: int) -> set[str]:
        """Makes a PodGroup and its members; their uids."""
        name = self.name("gang")
        group = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": name}}
        await self.api.create(GROUPS, {**group, "spec": {"minMember": size, "scheduleTimeoutSeconds": 600}})
        labels, requests = {LABEL_POD_GROUP: name}, {**PLAIN, "nvidia.com/gpu": str(gpus)}
        return await self.pods(size, name, scheduler=KOORDPY, requests=requests, labels=labels)

    async def all_bound(self, uids: set[str], *, within_s: float) -> bool:
        """Waits until every pod has a node."""
        return await self.watch.until(lambda: uids <= self.watch.bound_at.keys(), within_s=within_s)

    async def clean(self) -> None:
        """Takes all pods and groups away; one call for tens of thousands of pods would take minutes."""
        names = [pod["metadata"]["name"] for pod in self.watch.pods.values()]
        await self.api.each(names, lambda name: self.api.delete(f"{pods_path()}/{name}"))
        await self.api.delete(GROUPS)
        await self.watch.until(lambda: not self.watch.pods, within_s=120)


# -- parts -------------------------------------------------------------------------------------------------------------


async def _drain(soak: Soak, scheduler: str, count: int) -> tuple[float, float]:
    """(pods a second between first and last Binding, seconds of CPU from the start on). Pods wait first."""
    uids = await soak.pods(count, soak.name("plain"), scheduler=scheduler, requests=PLAIN)
    async with contextlib.AsyncExitStack() as stack:
        if scheduler == KOORDPY:
            process = await stack.enter_async_context(soak.koordpy())
        else:
            process = soak.plane.start_scheduler()
            stack.callback(process.stop)
        if not await soak.all_bound(uids, within_s=180):
            raise RuntimeError(f"{scheduler} left pods unbound:\n{process.tail()}")
        cpu = process.cpu_seconds()
    times = sorted(soak.watch.bound_at[uid] for uid in uids)
    await soak.clean()
    return count / (times[-1] - times[0]), cpu


async def _bound(soak: Soak, count: int) -> float:
    """Bindings a second that the machine can take now, without any scheduler."""
    uids = await soak.pods(count, soak.name("bound"), scheduler="nobody", requests=PLAIN)
    pods = [pod for uid, pod in soak.watch.pods.items() if uid in uids]
    began = time.monotonic()
    await soak.api.each(enumerate(pods), lambda one: soak.api.bind(one[1], f"n{one[0] % soak.nodes:05d}"), in_flight=64)
    took = time.monotonic() - began
    await soak.clean()
    return len(pods) / took


async def plain(soak: Soak) -> None:
    """3,000 plain pods beside kube-scheduler."""
    count = 3000
    soak.row("Bindings/s without a scheduler, at this moment", f"{await _bound(soak, 1000):.0f}", "", True)
    ours, our_cpu = await _drain(soak, KOORDPY, count)
    theirs, their_cpu = await _drain(soak, KUBE_SCHEDULER, count)
    what = f"{count} plain pods on {soak.nodes} nodes: "
    soak.row(what + "pods/s, of kube-scheduler's", f"{ours / theirs:.2f}", ">= 1.2", ours >= 1.2 * theirs)
    cost = our_cpu / count * 1000
    soak.row(what + "CPU a pod, start included", f"{cost:.2f} ms", "<= 1.0 ms", cost <= 1.0)
    soak.row(what + "the same of kube-scheduler's", f"{our_cpu / their_cpu:.2f}", "<= 1", our_cpu <= their_cpu)


async def gangs(soak: Soak) -> None:
    """Gangs that come one after the other: last member created until its last Binding is seen."""
    async with soak.koordpy():
        await soak.all_bound(await soak.gang(2, 1), within_s=60)
        for size, times, bar in ((8, 40, 1.0), (64, 15, 2.0), (512, 5, 3.0)):
            waits = []
            for _ in range(times):
                uids = await soak.gang(size, 1)
                created = time.monotonic()
                await soak.all_bound(uids, within_s=60)
                waits.append(max(soak.watch.bound_at.get(uid, created + 60) for uid in uids) - created)
                if size == 512:
                    await soak.clean()
            waits.sort()
            worst = waits[min(len(waits) - 1, int(len(waits) * 0.99))]
            soak.row(f"{times} gangs of {size}: p99 from last member to last Binding", f"{worst:.2f} s", f"< {bar:g} s",
                     worst < bar)  # fmt: skip
    await soak.clean()


async def hopeless(soak: Soak) -> None:
    """A gang that lacks one node, and one that no node can hold: how soon every member is told, and at what cost."""
    size = min(512, soak.nodes)
    for free, told_bar, cpu_bar in ((size - 1, 1.0, 2.0), (0, 0.6, 1.0)):
        full = soak.nodes - free
        gpu = {**PLAIN, "nvidia.com/gpu": "1"}
        await soak.pods(full, soak.name("full"), scheduler="nobody", requests=gpu,
                        spec=lambda i: {"nodeName": f"n{i:05d}"})  # fmt: skip
        async with soak.koordpy() as process:
            await asyncio.sleep(5)
            before = process.cpu_seconds()
            uids = await soak.gang(size, 8)
            created = time.monotonic()
            await soak.watch.until(lambda uids=uids: uids <= soak.watch.told_at.keys(), within_s=60)
            told = max(soak.watch.told_at.get(uid, created + 60) for uid in uids) - created
            await asyncio.sleep(max(0.0, created + 20 - time.monotonic()))
            cpu = process.cpu_seconds() - before
        what = f"hopeless gang of {size} x 8, {free} would fit: "
        soak.row(what + "all told after", f"{told:.2f} s", f"<= {told_bar:g} s", told <= told_bar)
        soak.row(what + "CPU in 24 s", f"{cpu:.2f} s", f"<= {cpu_bar:g} s", cpu <= cpu_bar)
        await soak.clean()


async def idle(soak: Soak) -> None:
    """1,000 unschedulable pods in a cluster where nothing happens."""
    uids = await soak.pods(1000, soak.name("idle"), scheduler=KOORDPY, requests={"nvidia.com/gpu": "64"})
    started = {uid: int(soak.watch.pods[uid]["metadata"]["resourceVersion"]) for uid in uids if uid in soak.watch.pods}
    patches: Counter[str] = Counter()
    saw = soak.watch._saw

    def count(pod: Json) -> None:
        uid, version = pod["metadata"]["uid"], int(pod["metadata"]["resourceVersion"])
        if version > started.get(uid, 0):
            started[uid] = version
            patches[uid] += 1
        saw(pod)

    soak.watch._saw = count  # type: ignore[method-assign]
    try:
        async with soak.koordpy() as process:
            await soak.watch.until(lambda: uids <= soak.watch.told_at.keys(), within_s=60)
            await asyncio.sleep(5)
            before = process.cpu_seconds()
            await asyncio.sleep(soak.minutes * 60)
            share = (process.cpu_seconds() - before) / (soak.minutes * 60)
    finally:
        soak.watch._saw = saw  # type: ignore[method-assign]
    most = max((patches[uid] for uid in uids), default=0)
    what = f"1000 unschedulable pods, {soak.minutes:g} idle minutes: "
    soak.row(what + "writes of a pod", f"{most}", "<= 1", most <= 1 and uids <= soak.watch.told_at.keys())
    soak.row(what + "CPU, share of a core", f"{share:.2%}", "< 5 %", share < 0.05)
    await soak.clean()


async def lag(soak: Soak) -> None:
    """Pod events at 500 a second: from their arrival until koordpy knows of them, and until it acts on one."""
    count, seconds, rate = 2000, 15, 500
    uids = await soak.pods(count, soak.name("lag"), scheduler="nobody", requests=PLAIN,
                           spec=lambda i: {"nodeName": f"n{i % soak.nodes:05d}"})  # fmt: skip
    names = [soak.watch.pods[uid]["metadata"]["name"] for uid in uids if uid in soak.watch.pods]
    port = _free_port()
    async with soak.koordpy("--bind-address", f"127.0.0.1:{port}"):
        await soak.all_bound(await soak.pods(1, soak.name("first"), scheduler=KOORDPY, requests=PLAIN), within_s=60)
        before = await _buckets(port)
        began, sent, waits = time.monotonic(), 0, list[float]()

        async def storm(worker: int) -> None:
            nonlocal sent
            for number in range(worker, rate * seconds, 32):
                await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
                if time.monotonic() > began + 2 * seconds:
                    return
                body = {"metadata": {"labels": {"storm": str(number)}}}
                await soak.api.patch(f"{pods_path()}/{names[number % len(names)]}", body)
                sent += 1

        async def probe() -> None:
            while time.monotonic() < began + seconds - 2:
                made = await soak.pods(1, soak.name("probe"), scheduler=KOORDPY, requests=PLAIN)
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
    soak.row(what + f"a pod created until seen bound, worst of {len(waits)}", f"{max(waits):.2f} s", "", True)
    await soak.clean()


async def _buckets(port: int) -> dict[float, float]:
    """Buckets of the pods' watch lag: upper end -> batches up to it."""

    def read() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    text = await asyncio.to_thread(read)
    found = re.findall(r'koordpy_watch_lag_seconds_bucket\{le="([^"]+)",resource="pods"\} (\S+)', text)
    return {float(le.replace("+Inf", "inf")): float(number) for le, number in found}


async def takeover(soak: Soak) -> None:
    """Two replicas; the leader is killed, so that nobody gives the lease back."""
    async with soak.koordpy(elect=True) as first:
        await soak.all_bound(await soak.pods(1, soak.name("first"), scheduler=KOORDPY, requests=PLAIN), within_s=60)
        async with soak.koordpy(elect=True):
            await asyncio.sleep(5)
            first.kill()
            died = time.monotonic()
            uids = await soak.pods(1, soak.name("orphan"), scheduler=KOORDPY, requests=PLAIN)
            await soak.all_bound(uids, within_s=60)
            wait = max(soak.watch.bound_at.get(uid, died + 60) for uid in uids) - died
    soak.row("leader killed: until the other replica binds", f"{wait:.1f} s", "< 20 s", wait < 20)
    await soak.clean()


async def restart(soak: Soak) -> None:
    """20,000 bound pods; koordpy is killed while it binds more, and starts again."""
    bound, more = 20_000, 3_000
    per_node = -(-bound // soak.nodes)
    old = await soak.pods(bound, soak.name("bound"), scheduler=KOORDPY, requests={**PLAIN, "cpu": "1"},
                          spec=lambda i: {"nodeName": f"n{i // per_node:05d}"})  # fmt: skip
    stem = soak.name("more")
    new = await soak.pods(more, stem, scheduler=KOORDPY, requests={"cpu": "10"})
    async with soak.koordpy() as process:
        await soak.watch.until(lambda: len(new & soak.watch.bound_at.keys()) > more / 5, within_s=120)
        process.kill()
    at_kill = len(new & soak.watch.bound_at.keys())
    async with soak.koordpy():
        done = await soak.all_bound(new, within_s=180)
        await asyncio.sleep(2)
    there = {uid: pod for uid, pod in soak.watch.pods.items() if uid in old | new}
    use: Counter[str] = Counter()
    for uid, pod in there.items():
        use[pod["spec"].get("nodeName", "")] += 1 if uid in old else 10
    over = sum(1 for node, cores in use.items() if node and cores > 96)
    what = f"killed among {more} Bindings ({at_kill} made) beside {bound} bound pods: "
    lost = len(old | new) - len(there) + (0 if done else len(new - soak.watch.bound_at.keys()))
    soak.row(what + "pods lost", f"{lost}", "0", lost == 0)
    soak.row(what + "moved pods + overbooked nodes", f"{len(soak.watch.moved) + over}", "0",
             not soak.watch.moved and not over)  # fmt: skip
    await soak.clean()


async def start(soak: Soak) -> None:
    """From the start of the process to the first Binding in a large cluster; and its memory."""
    await soak.clean()
    have, nodes, count = soak.nodes, 5000, 50_000
    await soak.api.make_nodes(nodes - have, name=lambda i: f"n{i + have:05d}")
    soak.nodes = nodes
    await plain(soak)
    await soak.pods(count, soak.name("bound"), scheduler="nobody", requests=PLAIN, annotations=PADDING,
                    spec=lambda i: {"nodeName": f"n{i % nodes:05d}"})  # fmt: skip
    uids = await soak.pods(1, soak.name("first"), scheduler=KOORDPY, requests=PLAIN)
    began = time.monotonic()
    async with soak.koordpy() as process:
        await soak.all_bound(uids, within_s=120)
        took = max(soak.watch.bound_at.get(uid, began + 120) for uid in uids) - began
        await asyncio.sleep(2)
        gigabytes = _most_memory(process.pid) / 1e9
    what = f"{nodes} nodes, {count} pods: "
    soak.row(what + "start to first Binding", f"{took:.1f} s", "< 30 s", took < 30)
    soak.row(what + "most memory held", f"{gigabytes:.2f} GB", "< 1.5 GB", gigabytes < 1.5)


def _most_memory(pid: int) -> float:
    """Bytes that a process has held at most."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else float("inf")


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


PARTS: dict[str, Callable[[Soak], Awaitable[None]]] = {
    part.__name__: part for part in (plain, gangs, hopeless, idle, lag, takeover, restart, start)
}


async def run(parts: list[str], *, nodes: int, minutes: float) -> int:
    """Runs the parts on a control plane of their own; how many bars were missed."""
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plane = await stack.enter_async_context(ControlPlane(find_assets(), unlimited=True))
        api = await stack.enter_async_context(plane.client())
        await api.apply_crds(REPOSITORY / "crds")
        await api.make_nodes(nodes)
        watch = await stack.enter_async_context(PodWatch(api).running())
        soak = Soak(plane, api, watch, folder, nodes, minutes)
        for part in parts:
            await PARTS[part](soak)
    return soak.missed


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=float(os.environ.get("MINUTES") or 3))
    args = parser.parse_args()
    return 1 if asyncio.run(run(args.parts or list(PARTS), nodes=args.nodes, minutes=args.minutes)) else 0


if __name__ == "__main__":
    sys.exit(main())
