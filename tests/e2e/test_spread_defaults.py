# SPDX-License-Identifier: Apache-2.0
"""System default spreading on the real API server: what a pod's service and replica set select is spread."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from koordpy.api import keys
from tests.e2e.client import Client, pod_manifest, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.process import eventually
from tests.e2e.test_scheduler import places, start

Json = dict[str, Any]
CONFIGURATION = {"filters": {"podTopologySpread": {"defaultingType": "System"}}}
SETS = "/apis/apps/v1/namespaces/default/replicasets"
SERVICES = "/api/v1/namespaces/default/services"
SMALL = {"cpu": "1"}


async def replica_set(api: Client, name: str) -> Json:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "example/web:1"}]}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    made = await api.create(
        SETS, {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": name}, "spec": spec}
    )
    fields = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": True}
    return {**fields, "name": name, "uid": made["metadata"]["uid"]}


async def one_by_one(api: Client, names: list[str], labels: Json, *, owner: Json | None, process: Any) -> list[str]:
    """Nodes of pods that are made each after the one before is bound."""
    found = []
    for name in names:
        manifest = pod_manifest(name, scheduler=keys.DEFAULT_SCHEDULER_NAME, requests=SMALL, labels=labels)
        if owner is not None:
            manifest["metadata"]["ownerReferences"] = [owner]
        await api.create(pods_path(), manifest)

        async def placed(name: str = name) -> bool:
            return name in await places(api)

        await eventually(placed, what=f"{name} bound", processes=[process])
        found.append((await places(api))[name])
    return found


async def test_what_a_replica_set_or_a_service_selects_is_spread_and_the_rest_packed(
    api: Client, crds: list[str], controlplane: ControlPlane, tmp_path: Path
) -> None:
    await api.make_nodes(3, allocatable={"cpu": "96", "memory": "1024Gi", "pods": "110"})
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(CONFIGURATION))
    owner = await replica_set(api, "web")
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "api"}}
    await api.create(SERVICES, {**service, "spec": {"selector": {"app": "api"}, "ports": [{"port": 80}]}})
    try:
        with start(controlplane, tmp_path, "spreading", "--config", str(file), "--leader-elect=false") as process:
            spread = await one_by_one(api, ["web-a", "web-b", "web-c"], {"app": "web"}, owner=owner, process=process)
            assert len(set(spread)) == 3
            served = await one_by_one(api, ["api-a", "api-b", "api-c"], {"app": "api"}, owner=None, process=process)
            assert len(set(served)) == 3
            packed = await one_by_one(api, ["job-a", "job-b", "job-c"], {"app": "job"}, owner=None, process=process)
            assert len(set(packed)) == 1
            # a service that comes later is followed at once
            await api.create(
                SERVICES,
                {**service, "metadata": {"name": "job"}, "spec": {"selector": {"app": "job"}, "ports": [{"port": 80}]}},
            )

            async def seen() -> bool:
                late = await one_by_one(
                    api, [f"job-{len(await places(api))}"], {"app": "job"}, owner=None, process=process
                )
                return late[0] != packed[0]

            await eventually(seen, what="the new service followed", processes=[process])
    finally:
        for path in (f"{SETS}/web", f"{SERVICES}/api", f"{SERVICES}/job"):
            await api.delete(path)
