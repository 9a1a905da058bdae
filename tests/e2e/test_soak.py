# SPDX-License-Identifier: Apache-2.0
"""What must stay true over time, on a small scale (`make soak` does the same with thousands of pods, and measures)."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from bench.live.watching import PodWatch
from koordpy.api.keys import DEFAULT_SCHEDULER_NAME as KOORDPY
from tests.e2e.client import Client, pod_manifest, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.test_scheduler import start

FLAGS = ("--leader-elect=false", "--kube-api-qps", "0")


async def test_hopeless_pods_in_an_idle_cluster_are_written_to_once(
    api: Client, crds: list[str], controlplane: ControlPlane, tmp_path: Path
) -> None:
    await api.make_nodes(3)
    made: dict[str, str] = {}
    for i in range(60):
        manifest = pod_manifest(f"idle-{i}", scheduler=KOORDPY, requests={"nvidia.com/gpu": "64"})
        meta = (await api.create(pods_path(), manifest))["metadata"]
        made[meta["uid"]] = meta["resourceVersion"]
    async with PodWatch(api).running() as watch:
        with start(controlplane, tmp_path, "koordpy", *FLAGS):
            assert await watch.until(lambda: made.keys() <= watch.told_at.keys(), within_s=120)
            told = {uid: pod.metadata.resource_version for uid, pod in watch.pods.items()}
            # something happens, but nothing that could help
            for i in range(6):
                await api.patch("/api/v1/nodes/n00000", {"metadata": {"annotations": {"heartbeat": str(i)}}})
                await asyncio.sleep(1)
        now = {uid: pod.metadata.resource_version for uid, pod in watch.pods.items()}
    assert now == told
    assert all(now[uid] != made[uid] for uid in made)


async def test_a_scheduler_killed_among_many_bindings_loses_none_and_doubles_none(
    api: Client, crds: list[str], controlplane: ControlPlane, tmp_path: Path
) -> None:
    nodes = await api.make_nodes(20)
    cores = {"cpu": "8"}

    async def old(i: int) -> None:
        spec = {"nodeName": nodes[i % 20]}
        await api.create(pods_path(), pod_manifest(f"old-{i}", scheduler=KOORDPY, requests=cores, spec=spec))

    async def new(i: int) -> None:
        await api.create(pods_path(), pod_manifest(f"new-{i}", scheduler=KOORDPY, requests=cores))

    # 96 cores a node: 20 * 12 places, 100 of them taken, so 140 of 150 fit
    await api.each(range(100), old)
    await api.each(range(150), new)
    async with PodWatch(api).running() as watch:
        before = set(watch.pods)
        process = start(controlplane, tmp_path, "koordpy", *FLAGS).start()
        try:
            assert await watch.until(lambda: len(watch.bound_at) > 120, within_s=120)
        finally:
            process.kill()
        with start(controlplane, tmp_path, "again", *FLAGS):
            assert await watch.until(lambda: len(watch.bound_at) == 240, within_s=120)
            await asyncio.sleep(1)
        assert set(watch.pods) == before and not watch.moved
        used = Counter(pod.spec.node_name for pod in watch.pods.values())
    assert used.pop("") == 10
    assert set(used.values()) == {12}
