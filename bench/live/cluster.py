# SPDX-License-Identifier: Apache-2.0
"""A cluster to measure on: a real control plane of its own, nodes that are only objects, and pods by the thousand."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bench.live.usage import cpu_seconds
from tests.e2e.assets import REPOSITORY
from tests.e2e.client import Client, pod_manifest, pods_path
from tests.e2e.controlplane import MASTERS, ControlPlane
from tests.e2e.gang_api import GangApi

Json = dict[str, Any]

PODS = pods_path()
JOBS = "/apis/batch/v1/namespaces/default/jobs"
SIGS_GROUPS = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/podgroups"
PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
WAVE = "bench.koordpy.io/wave"
"""Label of the pods that were made together."""

PLAIN: Mapping[str, str] = {"cpu": "100m", "memory": "200Mi"}
NOBODY = "nobody"
"""The scheduler of pods that no scheduler is to touch."""
PADDING: Mapping[str, str] = {"kubectl.kubernetes.io/last-applied-configuration": "x" * 3000}
"""Pods of real clusters are some kilobytes large."""

CLEAN_TIMEOUT_S = 900.0
REST_TIMEOUT_S = 20.0
REST_SHARE = 0.3
"""Share of a core below which the control plane counts as at rest; idle it takes a tenth."""


def node_name(index: int) -> str:
    """The node's name; natural order is index order."""
    return f"n{index:05d}"


class Plane(Protocol):
    """The API server, and what else runs beside it."""

    @property
    def pids(self) -> Sequence[int]:
        """Its processes."""

    @property
    def gangs(self) -> GangApi | None:
        """The API of scheduling.k8s.io's PodGroups; None if none is served."""

    def kubeconfig(self) -> Path:
        """An administrator's."""


@dataclass
class LiveCluster:
    """Nodes n00000, n00001, ... of 96 cores and 8 GPUs, and an administrator's client."""

    plane: Plane
    api: Client
    folder: Path
    """Logs of schedulers."""
    nodes: int = 0
    _number: int = field(default=0)

    def name(self, stem: str) -> str:
        """A name that nothing else in this cluster has."""
        self._number += 1
        return f"{stem}{self._number}"

    async def grow(self, nodes: int) -> None:
        """Makes nodes until there are so many."""
        have = self.nodes
        if nodes > have:
            await self.api.make_nodes(nodes - have, labels=topology_of, name=lambda i: node_name(have + i))
            self.nodes = nodes

    async def pods(self, count: int, stem: str, *, wave: str = "", **own: Any) -> set[str]:
        """Makes pods STEM-0, STEM-1, ... of a wave (the stem, unless given) and returns their uids.

        own: arguments of pod_manifest, or functions of the pod's index that give them; owner: an ownerReference.
        """
        owners = [own.pop("owner")] if "owner" in own else []
        uids: set[str] = set()

        async def make(i: int) -> None:
            settings = {key: value(i) if callable(value) else value for key, value in own.items()}
            labels = {**settings.pop("labels", {}), WAVE: wave or stem}
            manifest = pod_manifest(f"{stem}-{i}", labels=labels, **settings)
            manifest["metadata"]["ownerReferences"] = owners
            made = await self.api.create(PODS, manifest)
            uids.add(made["metadata"]["uid"])

        await self.api.each(range(count), make)
        return uids

    async def bound_pods(self, count: int, stem: str, *, node_of: Callable[[int], int], **own: Any) -> set[str]:
        """Makes pods that are on nodes already, of nobody's unless said otherwise. node_of: pod's index -> node's."""
        own = {"scheduler": NOBODY, "requests": PLAIN, **own}
        return await self.pods(count, stem, spec=lambda i: {"nodeName": node_name(node_of(i))}, **own)

    async def running_pods(self, count: int, stem: str, *, node_of: Callable[[int], int], **own: Any) -> set[str]:
        """The same, and they run."""
        uids = await self.bound_pods(count, stem, node_of=node_of, **own)
        running = {"status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}}
        await self.api.each(range(count), lambda i: self.api.patch(f"{PODS}/{stem}-{i}/status", running))
        return uids

    async def count(self, wave: str) -> int:
        """How many pods of a wave there are."""
        return len(await self.api.items(f"{PODS}?{of_wave(wave)}"))

    async def clean(self, wave: str = "") -> None:
        """Takes pods (of a wave, else all) and all groups away, and waits for a control plane at rest. TimeoutError."""
        async with asyncio.timeout(CLEAN_TIMEOUT_S):
            while items := await self.api.items(f"{PODS}?limit=5000{'&' + of_wave(wave) if wave else ''}"):
                # one by one: a collection is deleted by one worker of the server, which takes minutes
                await self.api.each(items, self._remove_pod)
            await self.api.delete(SIGS_GROUPS)
            await self.api.delete(JOBS)
            if self.plane.gangs is not None:
                groups = self.plane.gangs.groups
                # one by one here, too: kube-controller-manager takes their finalizer away
                names = [group["metadata"]["name"] for group in await self.api.items(groups)]
                await self.api.each(names, lambda name: self.api.delete(f"{groups}/{name}"))
                while await self.api.items(groups):  # noqa: ASYNC110 - of another process
                    await asyncio.sleep(0.1)
        await self.rest()

    async def rest(self) -> None:
        """Waits, for some time at most, until the control plane is at rest."""
        await at_rest(self.plane.pids, share=REST_SHARE, within_s=REST_TIMEOUT_S)

    async def _remove_pod(self, pod: Json) -> None:
        path = f"{PODS}/{pod['metadata']['name']}"
        if pod["metadata"].get("finalizers"):
            await self.api.patch(path, {"metadata": {"finalizers": None}})
        await self.api.delete(path)


def job_labels(job: str, index: int) -> dict[str, str]:
    """What the controller of an Indexed Job writes on its pods."""
    prefix = "batch.kubernetes.io/"
    return {prefix + "job-name": job, "job-name": job, prefix + "job-completion-index": str(index)}


def of_wave(wave: str) -> str:
    """The query that selects a wave's pods."""
    return f"labelSelector={WAVE}%3D{wave}"


def topology_of(index: int) -> Mapping[str, str]:
    """Labels of a node: its block of 16, and its spine of four blocks."""
    return {"topology.block": f"b{index // 16}", "topology.spine": f"s{index // 64}"}


async def at_rest(pids: Sequence[int], *, share: float, within_s: float, window_s: float = 1.0) -> bool:
    """Waits until processes together use less than this share of a core; False when they did not in time."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        before = sum(map(cpu_seconds, pids))
        await asyncio.sleep(window_s)
        if sum(map(cpu_seconds, pids)) - before < share * window_s:
            return True
    return False


@contextlib.asynccontextmanager
async def live_cluster(
    assets: Path, nodes: int, *, upstream_gangs: bool = False, audited: str = ""
) -> AsyncIterator[LiveCluster]:
    """A control plane without limits on requests, with koordpy's resources and empty nodes; nothing of it stays.

    assets: the folder with etcd and kube-apiserver. upstream_gangs: serves scheduling.k8s.io's PodGroups, with
    kube-controller-manager, which ends them. Both schedulers are administrators, so that the server decides as quickly
    about the requests of the one as of the other. audited: as ControlPlane's.
    """
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="koordpy-bench-")))
        plane = await stack.enter_async_context(
            ControlPlane(
                assets,
                upstream_gangs=upstream_gangs,
                controller_manager=upstream_gangs,
                unlimited=True,
                audited=audited,
                users={"system:kube-scheduler": (MASTERS,)},
            )
        )
        api = await stack.enter_async_context(plane.client())
        await api.apply_crds(REPOSITORY / "crds")
        cluster = LiveCluster(plane, api, folder)
        await cluster.grow(nodes)
        yield cluster
