# SPDX-License-Identifier: Apache-2.0
"""`make realnode-bench`: koordpy's image and chart on three real nodes, one table in Markdown.

    python -m bench.realnode [--rounds 3] [--idle 60]

Needs root, what `make e2e-realnode` needs, and build/koordpy.oci.tar (`make image`). Progress goes to stderr, the
table to stdout. The exit status is 1 when a goal is missed. docs/benchmarks-live.md says what each row means.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from koordpy.api.keys import DEFAULT_SCHEDULER_NAME
from tests.e2e.assets import REPOSITORY, AssetsMissing, BuildFailed, find_assets
from tests.e2e.chart import find_helm
from tests.e2e.client import Json
from tests.e2e.process import ProcessDied, eventually
from tests.image.archive import ARCHIVE
from tests.realnode.cgroups import Unsupported
from tests.realnode.cluster import RealCluster
from tests.realnode.gpus import links
from tests.realnode.release import NAMESPACE, Release, fake_machine
from tests.realnode.work import Work, container, pod, pod_group, pod_spec, running

HEAD = ("on 3 real nodes", "kube-scheduler", "koordpy", "ratio", "goal", "met")
SCHEDULERS = ("default-scheduler", DEFAULT_SCHEDULER_NAME)
MEMBERS, CPU = 24, "150m"
TAKEOVER_S = 16.0
AGENT, AGENT_MB, AGENT_PERCENT = "koordpy-agent-", 60.0, 0.5
MACHINE = {"gpus": 8, "links": links((0, 1, "NV4"), (3, 5, "NV4"), (6, 7, "NV8"), gpus=8)}
# As the chart has it: what describes a machine for tests looks at it every second.
POLL_S = 10
SETTLE_S = 20.0
WITHIN_S = 180


class Figures:
    """What is measured, on one release; rows of the table as they come."""

    def __init__(self, work: Work, release: Release) -> None:
        self.work, self.release = work, release
        self.rows: list[tuple[str, ...]] = []
        self.missed = 0

    def row(
        self, what: str, other: str, ours: str, ratio: str = "", goal: str = "", *, met: bool | None = None
    ) -> None:
        self.missed += met is False
        self.rows.append((what, other, ours, ratio, goal, {True: "yes", False: "NO", None: ""}[met]))

    async def gangs(self, rounds: int) -> None:
        """A gang of koordpy's, and as many plain pods of kube-scheduler's, in turns; the first of each do not count."""
        seen: dict[str, list[list[float]]] = {name: [] for name in SCHEDULERS}
        for number in range(rounds + 1):
            for name in SCHEDULERS if number % 2 else reversed(SCHEDULERS):
                times = await self._start(name, f"r{number}-{name[0]}")
                say(f"{name}: created {times[0]:.2f} s, bound {times[1]:.2f} s, running {times[2]:.2f} s")
                if number:
                    seen[name].append(times)
        for i, until in enumerate(("last pod created", "last Binding", "all containers Running")):
            theirs, own = (median(times[i] for times in seen[name]) for name in SCHEDULERS)
            what = f"`kubectl apply` of a gang of {MEMBERS}, or as many plain pods: {until}"
            self.row(what, f"{theirs:.2f} s", f"{own:.2f} s", f"{theirs / own:.2f}")

    async def _start(self, scheduler: str, name: str) -> list[float]:
        """Seconds from the start of `kubectl apply` until the last pod was created, was bound, and ran."""
        gang = name if scheduler == DEFAULT_SCHEDULER_NAME else ""
        spec = pod_spec(container(requests={"cpu": CPU}), scheduler=scheduler)
        manifests = [pod(f"{name}-{n}", spec, gang=gang) for n in range(MEMBERS)]
        if gang:
            manifests.insert(0, pod_group(gang, MEMBERS))
        first: list[dict[str, float]] = [{}, {}, {}]
        since = (await self.work.api.get(self.work.pods_path))["metadata"]["resourceVersion"]
        began = time.monotonic()
        applying = asyncio.create_task(asyncio.to_thread(self.work.apply, *manifests))
        async for _, one in self.work.api.watch(self.work.pods_path, since=since, seconds=WITHIN_S):
            for seen, is_so in zip(first, (True, one["spec"].get("nodeName"), running(one)), strict=True):
                if is_so:
                    seen.setdefault(one["metadata"]["name"], time.monotonic() - began)
            if len(first[-1]) == MEMBERS:
                break
        else:
            raise AssertionError(f"{name} after {WITHIN_S} s: {[len(seen) for seen in first]} created, bound, running")
        await applying
        await self.work.clear()
        return [max(seen.values()) for seen in first]

    async def takeover(self, rounds: int) -> None:
        """The leader's machine is killed; a pod made right then is bound by the other replica."""
        waits: list[float] = []
        for number in range(rounds):
            replicas = await self.release.ready()
            leader = await self.release.leader()
            (other,) = (one for one in replicas if one["metadata"]["name"] != leader["metadata"]["name"])
            node = self.work.cluster.nodes[leader["spec"]["nodeName"]]
            if other["spec"]["nodeName"] == node.name:
                raise AssertionError(f"both replicas are on {node.name}")
            await asyncio.sleep(SETTLE_S)
            orphan = pod(f"orphan-{number}", pod_spec(container(), on=other["spec"]["nodeName"]))
            since = (await self.work.api.get(self.work.pods_path))["metadata"]["resourceVersion"]
            node.kill()
            died = time.monotonic()
            try:
                await self.work.api.create(self.work.pods_path, orphan)
                async for _, one in self.work.api.watch(self.work.pods_path, since=since, seconds=WITHIN_S):
                    if one["spec"].get("nodeName"):
                        waits.append(time.monotonic() - died)
                        say(f"{node.name} with the leader killed: bound after {waits[-1]:.1f} s")
                        break
                else:
                    raise AssertionError(f"no replica has bound {orphan['metadata']['name']} in {WITHIN_S} s")
            finally:
                await asyncio.to_thread(self.work.cluster.boot, node)
            again = functools.partial(self._restarted, _restarts(replicas))
            await eventually(again, what=f"the replica on {node.name} runs again", within_s=WITHIN_S, every_s=1.0)
            await self.work.clear()
        wait, worst = median(waits), max(waits)
        told = f"{wait:.1f} s (longest {worst:.1f} s)"
        self.row(
            "the leader's node dies: until the standby binds",
            "",
            told,
            "",
            f"<= {TAKEOVER_S:g} s",
            met=wait <= TAKEOVER_S,
        )

    async def _restarted(self, before: int) -> bool:
        """Until then a node that has started again shows its replica as Ready, as it was before."""
        return _restarts(await self.release.ready()) > before

    async def idle(self, seconds: float) -> None:
        """Leader, standby and agent, none of which has anything to do."""
        await asyncio.sleep(SETTLE_S)
        before = await self._containers()
        await asyncio.sleep(seconds)
        after = await self._containers()
        leader = (await self.release.leader())["metadata"]["name"]
        for name in sorted(after, key=lambda one: (one != leader, one.startswith(AGENT), one)):
            agent = name.startswith(AGENT)
            who = "agent with 8 GPUs" if agent else "leader" if name == leader else "standby"
            figures = (
                ("share of a core", _percent(before[name], after[name]), ".2f", AGENT_PERCENT, "%"),
                ("working set", after[name]["memory"]["workingSetBytes"] / 1e6, ".0f", AGENT_MB, "MB"),
            )
            for what, value, digits, limit, unit in figures:
                told = f"{value:{digits}} {unit}"
                say(f"{who}: {what} {told}")
                goal, met = (f"< {limit:g} {unit}", value < limit) if agent else ("", None)
                self.row(f"{who}, idle for {seconds:g} s: {what}", "", told, "", goal, met=met)

    async def _containers(self) -> dict[str, Json]:
        """Pod of the release -> its one container, by the words of the kubelets."""
        found: dict[str, Json] = {}
        for node in self.work.cluster.nodes:
            summary = await self.work.api.get(f"/api/v1/nodes/{node}/proxy/stats/summary")
            for one in summary["pods"]:
                if one["podRef"]["namespace"] == NAMESPACE:
                    (found[one["podRef"]["name"]],) = one["containers"]
        return found

    def table(self) -> str:
        return "\n".join(f"| {' | '.join(cells)} |" for cells in (HEAD, ["---"] * len(HEAD), *self.rows))


def _restarts(pods: Sequence[Json]) -> int:
    return sum(status["restartCount"] for one in pods for status in one["status"]["containerStatuses"])


def _percent(before: Json, after: Json) -> float:
    """Share of a core between two looks of the kubelet at a container."""
    used = after["cpu"]["usageCoreNanoSeconds"] - before["cpu"]["usageCoreNanoSeconds"]
    earlier, later = (datetime.fromisoformat(one["cpu"]["time"]) for one in (before, after))
    return float(used / 1e7 / (later - earlier).total_seconds())


@contextlib.asynccontextmanager
async def installed(cluster: RealCluster, folder: Path) -> AsyncIterator[Figures]:
    """The chart with its default values, and its agent as the device plugin of one node with a described machine."""
    helm = find_helm(cluster.assets, folder)
    if helm is None:
        sys.exit("no helm: it is neither beside the control plane nor on PATH")
    cluster.import_image(ARCHIVE)
    async with cluster.plane.client() as api, Work(cluster, api, folder, alone=True) as work:
        await api.apply_crds(REPOSITORY / "crds")
        await api.make_namespace(NAMESPACE)
        await api.patch("/api/v1/nodes/n3", {"metadata": {"labels": {"nvidia.com/gpu.present": "true"}}})
        machine, agent = fake_machine(MACHINE)
        cluster.plane.kubectl("apply", "-f", "-", stdin=json.dumps(machine))
        release = Release(helm, work)
        values: dict[str, Any] = {**agent, "poll": POLL_S, "enabled": True, "delivery": "device-plugin"}
        await release.install({"agent": values})
        yield Figures(work, release)


def say(text: str) -> None:
    print(f"{time.monotonic() - BEGAN:5.0f} s  {text}", file=sys.stderr, flush=True)


async def run(rounds: int, idle_s: float) -> int:
    """Measures and prints the table; how many goals were missed."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with RealCluster(find_assets()) as cluster, tempfile.TemporaryDirectory(prefix="koordpy-figures-") as folder:
        async with installed(cluster, Path(folder)) as figures:
            say("installed")
            await figures.gangs(rounds)
            await figures.idle(idle_s)
            await figures.takeover(rounds)
            print(figures.table())
            return figures.missed


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.realnode", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="of gangs, and of deaths: medians count (3)")
    parser.add_argument("--idle", type=float, default=60.0, metavar="SECONDS", help="how long nothing is done (60)")
    args = parser.parse_args()
    if not ARCHIVE.exists():
        sys.exit(f"no {ARCHIVE.name}: make image")
    try:
        return 1 if asyncio.run(run(args.rounds, args.idle)) else 0
    except (AssetsMissing, BuildFailed, FileNotFoundError, ProcessDied, Unsupported) as error:
        sys.exit(str(error))
    except (asyncio.CancelledError, KeyboardInterrupt):
        sys.exit(130)


BEGAN = time.monotonic()

if __name__ == "__main__":
    sys.exit(main())
