# SPDX-License-Identifier: Apache-2.0
"""What kubelets do, for all nodes of a real API server: pods run, end as they are told, go when they are deleted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

from koordpy.apiserver.container_ends import CRASHES, Stopping, phase_after
from tests.e2e.client import STRATEGIC, Client, Json, Refused, pods_path

LOOK_S = 0.1


def on_node(pod: Json) -> bool:
    return bool(pod["spec"].get("nodeName"))


def phase_of(pod: Json) -> str:
    return str(pod.get("status", {}).get("phase") or "Pending")


class Kubelets:
    """Of pods of every namespace."""

    def __init__(self, api: Client, stopping: Stopping = CRASHES) -> None:
        """stopping: how containers end on SIGTERM, where a pod's annotation says nothing else."""
        self._api, self._stopping = api, stopping

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            for pod in await self._api.items("/api/v1/pods"):
                name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
                if pod["metadata"].get("deletionTimestamp") and on_node(pod):
                    if phase_of(pod) == "Running":
                        await self._stop(pod)
                    if phase_of(pod) != "Running" or self._is_stopped(pod):
                        await self._api.delete(f"{pods_path(namespace)}/{name}")
                elif on_node(pod) and phase_of(pod) == "Pending":
                    await self._tell(name, namespace, "Running", {"running": {}})
            await asyncio.sleep(LOOK_S)

    def _is_stopped(self, pod: Json) -> bool:
        """Whether containers have ended by now: those that ignore SIGTERM live until the end of the grace."""
        stopping = self._stopping.of(pod)
        until = datetime.fromisoformat(pod["metadata"]["deletionTimestamp"])
        return not stopping.ignores or datetime.now(UTC) >= until + timedelta(seconds=1)

    async def _stop(self, pod: Json) -> None:
        """The pod's phase by what its containers leave behind, before it is gone."""
        if self._is_stopped(pod):
            code = self._stopping.of(pod).code
            name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
            await self.end(name, phase_after(code, deleted=True), namespace, code=code)

    async def exit(self, name: str, code: int, namespace: str = "default") -> None:
        """The container of a running pod exits by itself: its restartPolicy decides what becomes of the pod."""
        pod = await self._api.get(f"{pods_path(namespace)}/{name}")
        phase = phase_after(code, pod["spec"]["restartPolicy"], deleted=False)
        if phase == "Running":
            await self._tell(name, namespace, phase, {"running": {}}, restarts=1)
        else:
            await self.end(name, phase, namespace, code=code)

    async def end(self, name: str, phase: str, namespace: str = "default", *, code: int | None = None) -> None:
        """A pod's containers have ended: Succeeded or Failed. code: of the container; by the phase where absent."""
        code = (0 if phase == "Succeeded" else 1) if code is None else code
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        await self._tell(name, namespace, phase, {"terminated": {"exitCode": code, "finishedAt": now}})

    async def _tell(self, name: str, namespace: str, phase: str, state: Json, *, restarts: int = 0) -> None:
        ready = phase == "Running"
        container = {
            "name": "main",
            "image": "example/train:1",
            "imageID": "",
            "ready": ready,
            "restartCount": restarts,
        }
        conditions = [
            {"type": "Ready", "status": str(ready), "lastTransitionTime": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"}
        ]
        status = {"phase": phase, "conditions": conditions, "containerStatuses": [{**container, "state": state}]}
        with contextlib.suppress(Refused):  # it is gone
            await self._api.patch(f"{pods_path(namespace)}/{name}/status", {"status": status}, content=STRATEGIC)


@contextlib.asynccontextmanager
async def kubelets(api: Client, stopping: Stopping = CRASHES) -> AsyncIterator[Kubelets]:
    """Within it pods run."""
    made = Kubelets(api, stopping)
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
