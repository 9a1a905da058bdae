# SPDX-License-Identifier: Apache-2.0
"""Members of gangs that end: by an eviction, whatever their containers exit with, and by themselves, where the status
of their Job is all that is left. In each middle koordpy is left alone, is killed, or its leader changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from koordpy.api import keys
from koordpy.apiserver.container_ends import CRASHES, KILLED, ON_SIGTERM, SAVES, TERMINATES, Stopping
from tests.e2e.acts import KILLED as KOORDPY_KILLED
from tests.e2e.acts import LEADER_CHANGED, LEFT_ALONE, ONE_GPU, Koordpy
from tests.e2e.client import Client, Json, condition, pod_manifest, pods_path
from tests.e2e.conftest import CRDS
from tests.e2e.controlplane import ControlPlane
from tests.e2e.gang_api import gang_api
from tests.e2e.kubelets import Kubelets, kubelets, on_node, phase_of
from tests.e2e.process import always, eventually
from tests.e2e.test_gang_defaults import JOBS
from tests.e2e.test_preemption import CLASSES
from tests.e2e.test_scheduler import GROUPS

pytestmark = pytest.mark.controllers
KINDS = ("koordinator", "upstream", "named")
OWNER = {
    "apiVersion": "example.com/v1",
    "kind": "Workflow",
    "name": "wf",
    "uid": "11111111-2222-3333-4444-555555555555",
    "controller": True,
}
"""Counts nothing that is known."""


@pytest.fixture(scope="module")
def plane(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    folder = tmp_path_factory.mktemp("ends")
    with ControlPlane(
        assets, upstream_gangs=gang_api(assets) is not None, controller_manager=True, folder=folder
    ) as plane:
        yield plane


class World:
    """Nodes of one GPU, kubelets, a koordpy."""

    def __init__(self, api: Client, nodes: Kubelets, koordpy: Koordpy) -> None:
        self.api, self.nodes, self.koordpy = api, nodes, koordpy

    async def group(self, kind: str, least: int) -> tuple[Json, Json]:
        """(metadata, spec) of pods that are its members."""
        if kind == "koordinator":
            one = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": "g"}}
            await self.api.create(GROUPS, {**one, "spec": {"minMember": least}})
            return {"labels": {keys.LABEL_POD_GROUP: "g"}}, {}
        if kind == "upstream":
            if not self.api.serves_gangs:
                pytest.skip("this version of Kubernetes has no PodGroups of scheduling.k8s.io")
            policy = {"schedulingPolicy": {"gang": {"minCount": least}}}
            one = {"apiVersion": self.api.gangs.group_version, "kind": "PodGroup", "metadata": {"name": "g"}}
            await self.api.create(self.api.gangs.groups, {**one, "spec": policy})
            return {}, {"schedulingGroup": {"podGroupName": "g"}}
        return {"labels": {keys.LABEL_GANG_NAME: "g", keys.LABEL_GANG_MIN: str(least)}}, {}

    async def pods(self, prefix: str) -> list[Json]:
        found = await self.api.items(pods_path())
        return [pod for pod in found if pod["metadata"]["name"].startswith(prefix)]

    async def until(self, what: str, true: Callable[[], Awaitable[object]]) -> None:
        await eventually(true, what=what, within_s=90, processes=[self.koordpy.leader])

    async def running(self, prefix: str, count: int) -> list[Json]:
        async def so_many() -> bool:
            return [phase_of(pod) for pod in await self.pods(prefix)].count("Running") == count

        await self.until(f"{count} pods {prefix} run", so_many)
        return await self.pods(prefix)


@pytest.fixture
async def world(request: pytest.FixtureRequest, plane: ControlPlane, tmp_path: Path) -> AsyncIterator[World]:
    """Parameter: what becomes of koordpy in the middle."""
    async with plane.client() as api:
        await api.apply_crds(CRDS)
        await api.make_nodes(4, allocatable=ONE_GPU)
        koordpy = Koordpy(plane, tmp_path, request.param)
        try:
            async with kubelets(api) as nodes:
                yield World(api, nodes, koordpy)
                await api.delete(f"{JOBS}?propagationPolicy=Background")
                await api.clear()
        finally:
            await koordpy.stop()
            of_kubernetes = [plane.gangs.groups] if plane.gangs is not None else []
            for path in (GROUPS, *of_kubernetes, f"{CLASSES}/high"):
                await api.delete(path)


def member(name: str, naming: tuple[Json, Json], policy: str, said: str) -> Json:
    made = pod_manifest(name, scheduler="koord-scheduler", requests={"nvidia.com/gpu": "1"})
    meta, spec = naming
    made["metadata"] |= {**meta, "ownerReferences": [OWNER], "annotations": {ON_SIGTERM: said}}
    made["spec"] |= {**spec, "restartPolicy": policy, "terminationGracePeriodSeconds": 2}
    return made


def said_of(stopping: Stopping) -> str:
    return "ignore" if stopping.ignores else str(stopping.code)


@pytest.mark.parametrize(
    ("world", "kind", "stopping", "policy"),
    [
        (LEFT_ALONE, "koordinator", SAVES, "Never"),
        (LEFT_ALONE, "koordinator", TERMINATES, "OnFailure"),
        (LEFT_ALONE, "koordinator", CRASHES, "Always"),
        (LEFT_ALONE, "koordinator", KILLED, "Never"),
        (KOORDPY_KILLED, "koordinator", SAVES, "Always"),
        (LEADER_CHANGED, "upstream", SAVES, "Never"),
        (KOORDPY_KILLED, "named", SAVES, "OnFailure"),
    ],
    indirect=["world"],
    ids=lambda one: said_of(one) if isinstance(one, Stopping) else f"{one}",
)
async def test_a_gang_that_was_evicted_starts_again_as_a_whole_however_its_containers_ended(
    world: World, kind: str, stopping: Stopping, policy: str
) -> None:
    api = world.api
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}}
    await api.create(CLASSES, {**high, "value": 1000})
    naming = await world.group(kind, 3)
    for i in range(3):
        await api.create(pods_path(), member(f"g-{i}", naming, policy, said_of(stopping)))
    await world.running("g-", 3)
    await world.koordpy.ready()
    for i in range(2):
        made = pod_manifest(f"hi-{i}", scheduler="koord-scheduler", requests={"nvidia.com/gpu": "1"})
        made["spec"]["priorityClassName"] = "high"
        await api.create(pods_path(), made)
    await world.running("hi-", 2)

    async def gone() -> bool:
        return not await world.pods("g-")

    await world.until("the gang is gone", gone)
    await world.koordpy.strike()
    for i in range(3):
        await api.create(pods_path(), member(f"g-{i}r", naming, policy, said_of(stopping)))

    async def refused() -> bool:
        told = [condition(pod, "PodScheduled") for pod in await world.pods("g-")]
        return all(
            one is not None and "needed 3, available in the cluster: 2" in one.get("message", "") for one in told
        )

    await world.until("the gang needs three nodes", refused)

    async def waits() -> bool:
        if kind == "koordinator":
            status = (await api.get(f"{GROUPS}/g")).get("status", {})
            if status.get("phase") == "Finished" or status.get("succeeded"):
                return False
        return not any(map(on_node, await world.pods("g-")))

    await always(waits, what="no member starts alone", for_s=2)


@pytest.mark.parametrize(
    ("world", "kind"),
    [*((KOORDPY_KILLED, kind) for kind in KINDS), (LEADER_CHANGED, "upstream")],
    indirect=["world"],
    ids=str,
)
async def test_an_index_is_tried_again_though_the_pods_of_those_that_are_complete_are_gone(
    world: World, kind: str
) -> None:
    meta, spec = await world.group(kind, 3)
    resources = {"limits": {"nvidia.com/gpu": "1"}}
    pod = {
        "schedulerName": keys.DEFAULT_SCHEDULER_NAME,
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "example/train:1", "resources": resources}],
        **spec,
    }
    of_job = {"completionMode": "Indexed", "completions": 3, "parallelism": 3, "backoffLimitPerIndex": 5}
    manifest = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}}
    await world.api.create(JOBS, {**manifest, "spec": {**of_job, "template": {"metadata": meta, "spec": pod}}})
    names = {one["metadata"]["name"] for one in await world.running("train-", 3)}
    done, fails = (next(name for name in names if f"train-{index}-" in name) for index in (1, 2))
    await world.koordpy.ready()
    await world.nodes.exit(done, 0)

    async def counted() -> bool:
        return (await world.api.get(f"{JOBS}/train"))["status"].get("completedIndexes") == "1"

    await world.until("the Job counts its index", counted)
    await world.api.delete(f"{pods_path()}/{done}")
    await asyncio.sleep(1)
    await world.koordpy.strike()
    await world.nodes.exit(fails, 1)

    async def again() -> bool:
        found = [one for one in await world.pods("train-2-") if one["metadata"]["name"] != fails]
        return [phase_of(one) for one in found] == ["Running"]

    await world.until("the index runs again", again)
