# SPDX-License-Identifier: Apache-2.0
"""The chart installed from the image: its replicas, its Lease, who leads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from tests.e2e.chart import CHART, Helm
from tests.e2e.client import Json, Refused, condition, pods_path
from tests.e2e.process import eventually
from tests.realnode.work import Work, container, pod, pod_group, pod_spec

NAMESPACE = "koordpy-system"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/koordpy"
REPLICAS = "app.kubernetes.io%2Fname%3Dkoordpy%2Capp.kubernetes.io%2Fcomponent%21%3Dagent"
_WITHIN_S = 120.0


class Release:
    """helm's release koordpy in koordpy-system."""

    def __init__(self, helm: Helm, work: Work) -> None:
        self._helm, self.work = helm, work
        self._where = ("koordpy", "--namespace", NAMESPACE, "--kubeconfig", str(work.cluster.plane.kubeconfig()))

    async def helm(self, command: str, *flags: str, values: Mapping[str, Any] | None = None) -> None:
        """helm install and the like. `values` is None for a command without a chart."""
        chart = [str(CHART)] if values is not None else []
        await asyncio.to_thread(
            self._helm.call, command, *self._where[:1], *chart, *self._where[1:], *flags, values=values
        )

    async def install(self, values: Mapping[str, Any] | None = None) -> None:
        await self.helm("install", "--create-namespace", "--wait", "--timeout=240s", values=values or {})

    async def uninstall(self) -> None:
        await self.helm("uninstall", "--wait", "--timeout=120s")

    async def replicas(self) -> list[Json]:
        """Pods of the Deployment that are not going."""
        found = await self.work.api.items(f"{pods_path(NAMESPACE)}?labelSelector={REPLICAS}")
        return [one for one in found if not one["metadata"].get("deletionTimestamp")]

    async def ready(self, count: int = 2) -> list[Json]:
        """Waits until so many replicas are Ready; the replicas."""

        async def so_many() -> list[Json]:
            found = [one for one in await self.replicas() if (condition(one, "Ready") or {}).get("status") == "True"]
            return found if len(found) == count else []

        found: list[Json] = await eventually(
            so_many, what=f"{count} replicas are Ready", within_s=_WITHIN_S, every_s=0.5
        )
        return found

    async def holder(self) -> str:
        """Who has the Lease, "" where nobody has."""
        try:
            return str((await self.work.api.get(LEASE))["spec"].get("holderIdentity") or "")
        except Refused as refused:
            if refused.status != 404:
                raise
            return ""

    async def leader(self, *, other_than: str = "") -> Json:
        """Waits until a replica leads, and it is another than this one; its pod."""

        async def leads() -> Json:
            holder = await self.holder()
            found = [one for one in await self.replicas() if holder.startswith(one["metadata"]["name"])]
            return found[0] if found and found[0]["metadata"]["name"] != other_than else {}

        found: Json = await eventually(leads, what="a replica leads", within_s=_WITHIN_S, every_s=0.5)
        return found

    async def gang_runs(self, name: str, size: int = 3) -> dict[str, Json]:
        """Makes a gang and waits until it runs."""
        names = [f"{name}-{number}" for number in range(size)]
        self.work.apply(pod_group(name, size), *(pod(one, pod_spec(container()), gang=name) for one in names))
        return await self.work.run(names, within_s=_WITHIN_S)

    async def allowed(self) -> int:
        """Disruptions that the PodDisruptionBudget allows now."""
        path = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets/koordpy"
        return int((await self.work.api.get(path))["status"]["disruptionsAllowed"])

    def logs(self) -> str:
        """The replicas' own words, for who reads a failure."""
        selector = "--selector=app.kubernetes.io/name=koordpy"
        return self.work.cluster.plane.kubectl("logs", f"--namespace={NAMESPACE}", selector, "--tail=40", "--prefix")


def fake_machine(machine: Mapping[str, Any]) -> tuple[Json, dict[str, Any]]:
    """A ConfigMap that describes a machine, and the chart's values that have the agent read it."""
    data = {"machine.yaml": json.dumps(machine)}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "machine", "namespace": NAMESPACE}}
    values = {
        "backend": "fake:/etc/fake/machine.yaml",
        "poll": 1,
        "runtimeClassName": "",
        "extraVolumes": [{"name": "fake", "configMap": {"name": "machine"}}],
        "extraVolumeMounts": [{"name": "fake", "mountPath": "/etc/fake"}],
    }
    return {**config, "data": data}, values
