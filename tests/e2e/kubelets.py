"""What kubelets do, for all nodes of a real API server: pods run, end as they are told, go when they are deleted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime

from tests.e2e.client import STRATEGIC, Client, Json, Refused, pods_path

LOOK_S = 0.1


def on_node(pod: Json) -> bool:
    return bool(pod["spec"].get("nodeName"))


def phase_of(pod: Json) -> str:
    return str(pod.get("status", {}).get("phase") or "Pending")


class Kubelets:
    """Of pods of every namespace."""

    def __init__(self, api: Client) -> None:
        self._api = api

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            for pod in await self._api.items("/api/v1/pods"):
                name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
                if pod["metadata"].get("deletionTimestamp") and on_node(pod):
                    if phase_of(pod) == "Running":
                        # a container that is stopped ends with an error: the pod has failed before it is gone
                        await self.end(name, "Failed", namespace)
                    await self._api.delete(f"{pods_path(namespace)}/{name}")
                elif on_node(pod) and phase_of(pod) == "Pending":
                    await self._tell(name, namespace, "Running", {"running": {}})
            await asyncio.sleep(LOOK_S)

    async def end(self, name: str, phase: str, namespace: str = "default") -> None:
        """A pod's containers have ended: Succeeded or Failed."""
        code = 0 if phase == "Succeeded" else 1
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        await self._tell(name, namespace, phase, {"terminated": {"exitCode": code, "finishedAt": now}})

    async def _tell(self, name: str, namespace: str, phase: str, state: Json) -> None:
        ready = phase == "Running"
        container = {"name": "main", "image": "example/train:1", "imageID": "", "ready": ready, "restartCount": 0}
        conditions = [
            {"type": "Ready", "status": str(ready), "lastTransitionTime": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"}
        ]
        status = {"phase": phase, "conditions": conditions, "containerStatuses": [{**container, "state": state}]}
        with contextlib.suppress(Refused):  # it is gone
            await self._api.patch(f"{pods_path(namespace)}/{name}/status", {"status": status}, content=STRATEGIC)


@contextlib.asynccontextmanager
async def kubelets(api: Client) -> AsyncIterator[Kubelets]:
    """Within it pods run."""
    made = Kubelets(api)
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
