# SPDX-License-Identifier: Apache-2.0
"""A release while koordpy runs: `helm test`, and what `helm uninstall` leaves."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.chart import CHART, Denied, Helm
from tests.e2e.client import Client, pods_path
from tests.e2e.conftest import CRDS
from tests.e2e.controlplane import ControlPlane
from tests.e2e.kubelets import kubelets, on_node, phase_of
from tests.e2e.process import Process, eventually, koordpy_run
from tests.e2e.test_gang_defaults import JOBS
from tests.e2e.test_scheduler import places

Json = dict[str, Any]
NAMESPACE = "default"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
_numbers = itertools.count(1)
pytestmark = pytest.mark.controllers


@dataclass(frozen=True)
class Life:
    """One release, and koordpy as its leader would run."""

    api: Client
    helm: Helm
    name: str
    where: tuple[str | Path, ...]
    process: Process

    async def call(self, *arguments: str | Path, values: Json | None = None) -> str:
        return await asyncio.to_thread(self.helm.call, *arguments, *self.where, values=values)

    async def lease(self) -> Json:
        return await self.api.get(f"{LEASES}/{self.name}-koordpy")

    async def leads(self) -> bool:
        return bool((await self.lease())["spec"].get("holderIdentity"))

    async def left(self) -> set[tuple[str, str]]:
        """(kind, name) of what carries the release's label or is its Lease, of every kind that is served."""
        found = set()
        for path, kind in await served(self.api):
            items = await self.api.items(f"{path}?labelSelector=app.kubernetes.io%2Finstance%3D{self.name}")
            found |= {(kind, one["metadata"]["name"]) for one in items}
        leases = {one["metadata"]["name"] for one in await self.api.items(LEASES)}
        return found | {("Lease", name) for name in leases if name.startswith(self.name)}

    async def left_nothing(self) -> bool:
        return not await self.left()


async def served(api: Client) -> list[tuple[str, str]]:
    """(path, kind) of every list that the API server has."""
    roots = {"v1": "/api/v1"}
    for group in (await api.get("/apis"))["groups"]:
        version = group["preferredVersion"]["groupVersion"]
        roots[version] = f"/apis/{version}"
    found = []
    for root in roots.values():
        resources = (await api.get(root))["resources"]
        listed = (one for one in resources if "list" in one["verbs"] and "/" not in one["name"])
        found += [(f"{root}/{one['name']}", one["kind"]) for one in listed]
    return found


@pytest.fixture
async def life(plane: ControlPlane, helm: Helm, tmp_path: Path) -> AsyncIterator[Life]:
    name = f"life{next(_numbers)}"
    where = ("--namespace", NAMESPACE, "--kubeconfig", plane.kubeconfig())
    async with plane.client() as api:
        await api.apply_crds(CRDS)
        await api.make_nodes(2)
        await asyncio.to_thread(helm.call, "install", name, CHART, *where, values={})
        wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{name}-koordpy/token"
        token = (await api.create(account, wanted))["status"]["token"]
        file = tmp_path / "config.yaml"
        maps = await api.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{name}-koordpy")
        file.write_text(maps["data"]["config.yaml"])
        flags = (f"--config={file}", "--bind-address", "127.0.0.1:0")
        process = koordpy_run(*flags, kubeconfig=plane.kubeconfig(name, token=token), folder=tmp_path)
        with process:
            made = Life(api, helm, name, where, process)
            await eventually(made.leads, what="leads", processes=[process])
            yield made
        with contextlib.suppress(Denied):  # it is gone
            await asyncio.to_thread(helm.call, "uninstall", name, *where)
        await api.clear()


async def test_helm_test_places_a_gang_of_two_and_leaves_nothing_of_it(life: Life) -> None:
    async with kubelets(life.api) as nodes:
        trying = asyncio.create_task(life.call("test", life.name, "--timeout", "50s"))

        async def members() -> list[Json]:
            pods = await life.api.items(f"{pods_path()}?labelSelector=app.kubernetes.io%2Fcomponent%3Dtest")
            return [pod for pod in pods if on_node(pod) and phase_of(pod) == "Running"]

        async def both_run() -> bool:
            assert not trying.done(), trying.exception()
            return len(await members()) == 2

        await eventually(both_run, what="both members run", processes=[life.process])
        assert set(await places(life.api)) == {pod["metadata"]["name"] for pod in await members()}
        for pod in await members():
            await nodes.end(pod["metadata"]["name"], "Succeeded")
        assert "Succeeded" in await trying
    assert await life.api.items(JOBS) == []


async def test_an_upgrade_leaves_the_lease_to_its_holder_and_a_removal_leaves_nothing(
    life: Life, plane: ControlPlane
) -> None:
    before = (await life.lease())["spec"]["holderIdentity"]
    definitions = await life.call("show", "crds", CHART)
    said = plane.kubectl("apply", "--server-side", "--force-conflicts", "--filename", "-", stdin=definitions)
    assert said.count("serverside-applied") == len(list(CRDS.iterdir()))
    await life.call("upgrade", life.name, CHART, values={"commonLabels": {"team": "ml"}})
    lease = await life.lease()
    assert lease["spec"]["holderIdentity"] == before and lease["metadata"]["labels"]["team"] == "ml"
    assert {kind for kind, _ in await life.left()} >= {"Deployment", "ClusterRole", "ConfigMap", "Lease"}
    await life.call("uninstall", life.name)
    # the replica lives on for a while, as a pod would that is being ended, and cannot take the Lease anew
    await asyncio.to_thread(life.process.stop)

    await eventually(life.left_nothing, what="nothing is left")


async def test_a_lease_that_was_there_before_is_taken_and_stays(plane: ControlPlane, helm: Helm) -> None:
    where = ("--namespace", NAMESPACE, "--kubeconfig", plane.kubeconfig())
    async with plane.client() as api:
        await api.apply_crds(CRDS)
        found = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "old-koordpy"}}
        await api.create(LEASES, found)
        await asyncio.to_thread(helm.call, "install", "old", CHART, *where, values={})
        await asyncio.to_thread(helm.call, "uninstall", "old", *where)
        assert [one["metadata"]["name"] for one in await api.items(LEASES)] == ["old-koordpy"]
        await api.delete(f"{LEASES}/old-koordpy")
