# SPDX-License-Identifier: Apache-2.0
"""Objects in which the real API server prints null: kubelets and drivers leave lists empty, and all of it is read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from koordpy.api.keys import DEFAULT_SCHEDULER_NAME
from tests.e2e.client import Client, pod_manifest, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.process import Process, eventually, koordpy_run

CSI_NODES = "/apis/storage.k8s.io/v1/csinodes"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
Json = dict[str, Any]


@pytest.fixture
async def cluster(api: Client, crds: list[str]) -> AsyncIterator[Client]:
    """Two nodes. Their kubelets reported an image without a name and have no CSI driver; the first is cordoned."""
    for name in await api.make_nodes(2, name=lambda index: f"n{index + 1}"):
        images = [{"names": ["example/train:1"], "sizeBytes": 5}, {"names": None, "sizeBytes": 7}]
        await api.patch(f"/api/v1/nodes/{name}/status", {"status": {"images": images}})
        await api.create(CSI_NODES, {"metadata": {"name": name}, "spec": {"drivers": []}})
    await api.create(CLAIMS, {"metadata": {"name": "empty"}, "spec": {"devices": {}}})
    yield api
    for path in (pods_path(), CSI_NODES, CLAIMS):
        await api.delete(path)


async def create(api: Client, name: str, **spec: Any) -> None:
    await api.create(pods_path(), pod_manifest(name, scheduler=DEFAULT_SCHEDULER_NAME, spec=spec))


async def places(api: Client) -> dict[str, str]:
    """Pod -> its node, or why it has none."""
    said = {}
    for pod in await api.items(pods_path()):
        why = next((c["message"] for c in pod.get("status", {}).get("conditions") or [] if c["status"] == "False"), "")
        said[pod["metadata"]["name"]] = pod["spec"].get("nodeName") or why
    return said


async def test_the_api_server_prints_null_where_nothing_is(cluster: Client) -> None:
    node, csi = await cluster.get("/api/v1/nodes/n1"), await cluster.get(f"{CSI_NODES}/n1")
    claim = await cluster.get(f"{CLAIMS}/empty")
    assert node["status"]["images"][1] == {"names": None, "sizeBytes": 7}
    assert (csi["spec"], claim["spec"]["devices"]) == ({"drivers": None}, {"requests": None})


async def test_nulls_freeze_nothing_neither_before_nor_after_a_restart(
    cluster: Client, controlplane: ControlPlane, tmp_path: Path
) -> None:
    process = koordpy_run("--bind-address", "127.0.0.1:0", kubeconfig=controlplane.kubeconfig(), folder=tmp_path)
    only = {"nodeSelector": {"kubernetes.io/hostname": "n1"}}
    claims = {"resourceClaims": [{"name": "c", "resourceClaimName": "empty"}]}
    try:
        process.start()
        await create(cluster, "first", **only)
        await _placed(cluster, process, {"first": "n1"})
        await cluster.patch("/api/v1/nodes/n1", {"spec": {"unschedulable": True}})
        await create(cluster, "kept-out", **only)
        await create(cluster, "second", **claims)
        refused = "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) were unsched"
        before = {"first": "n1", "kept-out": refused, "second": "n2"}
        await _placed(cluster, process, before)
        process.stop()
        process.start()
        await create(cluster, "still-kept-out", **only)
        await create(cluster, "third", **claims)
        await _placed(cluster, process, {**before, "still-kept-out": refused, "third": "n2"})
        assert "cannot be read" not in process.tail(1000)
    finally:
        process.stop()


async def _placed(api: Client, process: Process, expected: dict[str, str]) -> None:
    async def as_expected() -> bool:
        found = await places(api)
        return found.keys() == expected.keys() and all(found[name].startswith(text) for name, text in expected.items())

    await eventually(as_expected, what=f"places as in {expected}", processes=[process])
