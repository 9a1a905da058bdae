# SPDX-License-Identifier: Apache-2.0
"""Bad weather between koordpy and a real API server: 429, 500 before and after the write, a process that is killed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from koordpy.api import keys
from tests.e2e.client import Client, condition, pod_manifest, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.process import eventually, koordpy_run
from tests.e2e.recording import Instead, Recorder
from tests.e2e.test_scheduler import GROUPS, gang, places

Json = dict[str, Any]
GANGS = {f"g{i}": size for i, size in enumerate((2, 4, 8, 16, 3, 5, 7, 12))}
PLAIN = 60
FLAGS = ("--no-leader-elect", "--bind-address", "127.0.0.1:0", "--kube-api-qps", "150", "--kube-api-burst", "20")


async def watched(api: Client, since: str, nodes: dict[str, set[str]]) -> None:
    """Every node that each pod (by uid) was ever seen on, until cancelled."""
    async for kind, obj in api.watch(pods_path(), since=since, seconds=120):
        if kind in ("ADDED", "MODIFIED") and obj["spec"].get("nodeName"):
            nodes.setdefault(obj["metadata"]["uid"], set()).add(obj["spec"]["nodeName"])


@pytest.mark.parametrize("seed", [1, 2])
async def test_through_429_and_500_everything_that_fits_is_bound_once(
    seed: int, api: Client, crds: list[str], controlplane: ControlPlane, recorder: Recorder, tmp_path: Path
) -> None:
    dice = random.Random(seed)
    struck: Counter[int] = Counter()

    async def weather(method: str, path: str) -> Instead | None:
        if dice.random() < 0.3:
            effect = dice.choice(
                [
                    Instead(429, retry_after=dice.choice([0, 1])),
                    Instead(500),
                    Instead(500, carried_out=True),
                    Instead(504),
                ]
            )
            struck[effect.status] += 1
            return effect
        return None

    await api.make_nodes(10)
    recorder.meddle = weather
    kubeconfig = recorder.kubeconfig(tmp_path, controlplane.admin_token)
    seen: dict[str, set[str]] = {}
    since = (await api.get(pods_path()))["metadata"]["resourceVersion"]
    watching = asyncio.create_task(watched(api, since, seen))
    try:
        first = koordpy_run(*FLAGS, kubeconfig=kubeconfig, folder=tmp_path, name="first").start()
        for name, size in GANGS.items():
            await gang(api, name, size)
        await gang(api, "large", 81)
        for i in range(PLAIN):
            manifest = pod_manifest(f"p-{i}", scheduler=keys.DEFAULT_SCHEDULER_NAME, requests={"cpu": "1"})
            await api.create(pods_path(), manifest)

        async def begun() -> bool:
            return len(await places(api)) > 20

        await eventually(begun, what="the first pods bound", every_s=0.02, processes=[first])
        first.kill()
        assert len(await places(api)) < PLAIN + sum(GANGS.values()), "it was to die in the middle"
        second = koordpy_run(*FLAGS, kubeconfig=kubeconfig, folder=tmp_path, name="second")
        with second:

            async def all_bound() -> bool:
                return len(await places(api)) == PLAIN + sum(GANGS.values())

            await eventually(all_bound, what="everything that fits bound", within_s=90, processes=[second])

            async def told() -> bool:
                large = [pod for pod in await api.items(pods_path()) if pod["metadata"]["name"].startswith("large-")]
                said = [condition(pod, "PodScheduled") or {} for pod in large]
                return all("needed 81, available in the cluster:" in one.get("message", "") for one in said)

            await eventually(told, what="the gang that is too large told", processes=[second])

            async def status_written() -> bool:
                found = {group["metadata"]["name"]: group.get("status", {}) for group in await api.items(GROUPS)}
                return all(found[name].get("scheduled") == size for name, size in GANGS.items())

            await eventually(status_written, what="the groups' status", processes=[second])
    finally:
        watching.cancel()
        await api.delete(GROUPS)
    assert set(struck) == {429, 500, 504}
    assert {len(nodes) for nodes in seen.values()} == {1}, "no pod was seen on two nodes"
    found = await places(api)
    gpus = Counter(node for name, node in found.items() if not name.startswith("p-"))
    assert max(gpus.values()) <= 8
    assert not any(name.startswith("large-") for name in found)
