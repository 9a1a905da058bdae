# SPDX-License-Identifier: Apache-2.0
"""A working day under the chart's ClusterRole: every kind of thing that koordpy writes is written, and nothing refused.

test_chart_rights.py says what the role gives, call by call. Here koordpy itself, with no token but the service
account's, places gangs, volumes, claims and GPUs by name, makes room in every way that it has, and tells of it; a proxy
keeps each call. What the role lets it write and nobody called for would stand out as well.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from koordpy.api import keys
from koordpy.api.storage_objects import SELECTED_NODE
from tests.e2e.chart import EVERYBODY, Helm
from tests.e2e.client import DEFINITIONS as DEFINITION_PATH
from tests.e2e.client import Client, condition, pod_manifest, pods_path
from tests.e2e.conftest import CRDS
from tests.e2e.controlplane import ControlPlane
from tests.e2e.coscheduling import served
from tests.e2e.gang_api import gang_api
from tests.e2e.installed import DEFINITIONS, KOORD, RELEASE, SIGS, Installed, X, installer
from tests.e2e.process import Process, eventually
from tests.e2e.recording import Recorder
from tests.e2e.test_chart_rights import EVENTS, WRITTEN
from tests.e2e.test_devices import API as RESOURCE
from tests.e2e.test_devices import CLAIMS as RESOURCE_CLAIMS
from tests.e2e.test_devices import DRIVER, claim, offer
from tests.e2e.test_devices import using as using_devices
from tests.e2e.test_gpu_groups import DEVICES, device
from tests.e2e.test_preemption import CLASSES, QUOTAS, make_gang, worker
from tests.e2e.test_scheduler import GROUPS, TOPOLOGIES, places
from tests.e2e.test_volcano_groups import GROUPS as VOLCANO_GROUPS
from tests.e2e.test_volcano_groups import NAME as VOLCANO
from tests.e2e.test_volcano_groups import definition, member
from tests.e2e.test_volcano_groups import group as volcano_group
from tests.e2e.test_volumes import CLAIMS, STORAGE, VOLUMES, Disks
from tests.e2e.test_volumes import using as using_volumes

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
X_GROUPS = f"/apis/{X}/v1alpha1/namespaces/default/podgroups"
X_QUOTAS = f"/apis/{X}/v1alpha1/namespaces/default/elasticquotas"
GPUS = 4
"""Of each node."""
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def plane(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Everything that koordpy can read is served, and the controllers run."""
    folder = tmp_path_factory.mktemp("work")
    with ControlPlane(
        assets, upstream_gangs=gang_api(assets) is not None, controller_manager=True, folder=folder
    ) as plane:
        yield plane


@pytest.fixture
async def api(plane: ControlPlane) -> AsyncIterator[Client]:
    async with plane.client() as client:
        await client.apply_crds(CRDS)
        yield client
        await client.clear()


@pytest.fixture
async def koordpy(
    api: Client, plane: ControlPlane, recorder: Recorder, helm: Helm, tmp_path: Path
) -> AsyncIterator[tuple[Installed, Process]]:
    namespace = await api.make_namespace(f"koordpy-{next(_numbers)}")
    async with installer(api, plane, helm, namespace) as install:
        installed = await install({"config": {"quota": EVERYBODY, "staleGangs": {"enabled": True, "grace": "3s"}}})
        # as where somebody deleted it, or what installs the chart leaves Leases out
        await api.delete(f"{installed.leases}/{RELEASE}")
        process = installed.run(recorder.kubeconfig(tmp_path, installed.token), tmp_path)
        yield installed, process
        process.stop()


class Day:
    """What the test asks of the cluster again and again."""

    def __init__(self, api: Client, process: Process) -> None:
        self.api, self._process = api, process

    async def until(self, what: str, condition: Any) -> None:
        await eventually(condition, what=what, processes=[self._process])

    async def bound(self, *names: str) -> dict[str, str]:
        async def there() -> bool:
            return set(names) <= set(await places(self.api))

        await self.until(f"{', '.join(names)} bound", there)
        return await places(self.api)

    async def event(self, reason: str) -> None:
        async def there() -> bool:
            return reason in {event["reason"] for event in await self.api.items(EVENTS)}

        await self.until(f"event {reason}", there)

    async def clear(self) -> None:
        await self.api.delete(pods_path())

        async def empty() -> bool:
            return not await self.api.items(pods_path())

        await self.until("no pods", empty)


async def test_nothing_that_koordpy_does_is_refused_and_nothing_is_granted_in_vain(
    api: Client, recorder: Recorder, koordpy: tuple[Installed, Process]
) -> None:
    _, process = koordpy
    room = {"cpu": "32", "memory": "64Gi", "pods": "50", GPU: str(GPUS)}
    await api.make_nodes(2, allocatable=room, name=lambda i: f"n{i + 1}", labels=lambda i: {"net/rack": f"r{i}"})
    layers = [
        {"layerName": "rackLayer", "labelKey": "net/rack", "parentTopologyLayer": "ClusterTopologyLayer"},
        {"layerName": "nodeLayer", "parentTopologyLayer": "rackLayer"},
    ]
    topology = {"apiVersion": f"{KOORD}/v1alpha1", "kind": "ClusterNetworkTopology", "metadata": {"name": "default"}}
    await api.create(TOPOLOGIES, {**topology, "spec": {"hierarchy": layers}})
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}}
    await api.create(CLASSES, {**high, "value": 1000})
    async with served(api, "podgroups", "elasticquotas"), served_of_volcano(api):
        process.start()
        day = Day(api, process)
        await volumes(day)
        await claims(day)
        await gpus_by_name(day)
        await groups_of_every_kind(day)
        await preemption(day)
        await reclaim(day)
        await stale_gang(day)
        assert await asyncio.to_thread(process.stop) == 0

    refused = {(call.group, call.resource, call.verb, call.path) for call in recorder.calls if call.refused}
    assert {(group, resource) for group, resource, *_ in refused} == {DEFINITIONS}, refused
    writes = {call.right for call in recorder.calls if call.resource and call.verb not in ("get", "list", "watch")}
    unseen = {
        # beside patch, as the published protocol has them
        ("", "persistentvolumes", "update"),
        ("", "persistentvolumeclaims", "update"),
        # a series of events is refreshed after six minutes
        ("events.k8s.io", "events", "patch"),
        # no path: the API server asks for it where an allocation is written to the status
        ("resource.k8s.io", "resourceclaims/binding", "patch"),
        ("resource.k8s.io", "resourceclaims/binding", "update"),
        # of extended resources that devices serve (test_devices.py)
        ("resource.k8s.io", "resourceclaims", "create"),
        ("resource.k8s.io", "resourceclaims", "delete"),
        *(() if api.serves_gangs else [("scheduling.k8s.io", "podgroups/status", "patch")]),
    }
    leases = {("coordination.k8s.io", "leases", verb) for verb in ("create", "update")}
    assert writes == WRITTEN - unseen | leases


@asynccontextmanager
async def served_of_volcano(api: Client) -> AsyncIterator[None]:
    """PodGroups of Volcano, from before koordpy starts: under the chart's rights it looks for definitions once."""
    await api.create(DEFINITION_PATH, definition())

    async def established() -> bool:
        said = condition(await api.get(f"{DEFINITION_PATH}/{VOLCANO}"), "Established")
        return said is not None and said["status"] == "True"

    try:
        await eventually(established, what="PodGroups of Volcano are served", processes=[])
        yield
    finally:
        await api.remove_definition(VOLCANO)


async def volumes(day: Day) -> None:
    """One volume that is there, and one that is made for the node that was selected."""
    for name, provisioner in (("local", "kubernetes.io/no-provisioner"), ("made", DRIVER)):
        body = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}}
        waits = {"provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}
        await day.api.create(f"{STORAGE}/storageclasses", {**body, **waits})
    disks = Disks(day.api)
    await disks.volume("there", "n2")
    await disks.claim("old")
    await disks.claim("new", "made")
    provisioner = asyncio.create_task(disks.provision())
    try:
        await day.api.create(pods_path(), using_volumes("reader", "old", "new"))
        assert (await day.bound("reader"))["reader"] == "n2"
    finally:
        provisioner.cancel()
        await asyncio.gather(provisioner, return_exceptions=True)
    notes = (await day.api.get(f"{CLAIMS}/new"))["metadata"]["annotations"]
    assert notes[SELECTED_NODE] == "n2"
    assert (await day.api.get(f"{VOLUMES}/there"))["spec"]["claimRef"]["name"] == "old"
    await day.clear()


async def claims(day: Day) -> None:
    spec = {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}}
    await day.api.create(f"{RESOURCE}/deviceclasses", {**body, "spec": spec})
    await offer(day.api, "n1", "a", "b")
    await claim(day.api, "two", 2)
    await day.api.create(pods_path(), using_devices("claimer", "two"))
    assert (await day.bound("claimer"))["claimer"] == "n1"
    found = await day.api.get(f"{RESOURCE_CLAIMS}/two")
    assert [user["name"] for user in found["status"]["reservedFor"]] == ["claimer"]
    await day.clear()


async def gpus_by_name(day: Day) -> None:
    """The choice is in the Binding's annotations, and in the status of the node's Device."""
    body = device("n1")
    matrix = [[0 if i == j else 50 if i // 2 == j // 2 else 20 for j in range(GPUS)] for i in range(GPUS)]
    body["spec"]["devices"] = body["spec"]["devices"][:GPUS]
    body["spec"]["topologies"]["gpu"][0]["topology"] = str(matrix)
    await day.api.create(DEVICES, body)
    pod = pod_manifest("pair", scheduler=keys.DEFAULT_SCHEDULER_NAME, requests={GPU: "2"})
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "n1"}
    await day.api.create(pods_path(), pod)
    await day.bound("pair")

    async def reported() -> bool:
        return "pair" in str((await day.api.get(f"{DEVICES}/n1")).get("status", {}).get("allocations"))

    await day.until("the Device says whose its GPUs are", reported)
    assert keys.GPU_ALLOCATION in (await day.api.get(f"{pods_path()}/pair"))["metadata"]["annotations"]
    await day.clear()
    await day.api.delete(f"{DEVICES}/n1")


async def groups_of_every_kind(day: Day) -> None:
    """PodGroups of all four groups and quotas of both, each with its status; one gang that nowhere fits is told."""
    api = day.api
    await make_gang(api, "sigs", 2)
    group = {"kind": "PodGroup", "metadata": {"name": "older"}}
    await api.create(X_GROUPS, {**group, "apiVersion": f"{X}/v1alpha1", "spec": {"minMember": 2}})
    for i in range(2):
        pod = worker(f"older-{i}")
        pod["metadata"]["labels"] = {keys.LABEL_POD_GROUP_X: "older"}
        await api.create(pods_path(), pod)
    gangs = ["sigs", "older"]
    if api.serves_gangs:
        gangs.append("upstream")
        policy = {"schedulingPolicy": {"gang": {"minCount": 2}}}
        upstream = {"apiVersion": api.gangs.group_version, "kind": "PodGroup", "metadata": {"name": "upstream"}}
        await api.create(api.gangs.groups, {**upstream, "spec": policy})
        for i in range(2):
            pod = worker(f"upstream-{i}")
            pod["spec"]["schedulingGroup"] = {"podGroupName": "upstream"}
            await api.create(pods_path(), pod)
    await volcano_group(api, "volcano", 1)
    await member(api, "volcano-0", "volcano")
    await day.bound("volcano-0", *(f"{name}-{i}" for name in gangs for i in range(2)))
    free = 2 * GPUS - 1 - 2 * len(gangs)
    await make_gang(api, "large", free + 1)

    async def told() -> bool:
        said = condition(await api.get(f"{pods_path()}/large-0"), "PodScheduled")
        return said is not None and f"needed {free + 1}" in said["message"]

    async def reported() -> bool:
        statuses = [(await api.get(path)).get("status", {}) for path in (f"{GROUPS}/sigs", f"{X_GROUPS}/older")]
        conditions: object = True
        if api.serves_gangs:
            conditions = (await api.get(f"{api.gangs.groups}/upstream")).get("status", {}).get("conditions")
        valid = condition(await api.get(f"{TOPOLOGIES}/default"), "Valid")
        return [s.get("scheduled") for s in statuses] == [2, 2] and bool(conditions) and valid is not None

    async def of_volcano() -> bool:
        return (await api.get(f"{VOLCANO_GROUPS}/volcano")).get("status", {}).get("phase") == "Running"

    await day.until("the group of Volcano reported", of_volcano)
    await day.until("large told", told)
    await day.until("groups and topology reported", reported)
    await day.event("GangUnschedulable")
    await day.clear()


async def preemption(day: Day) -> None:
    for i in range(2 * GPUS):
        await day.api.create(pods_path(), worker(f"low-{i}"))
    await day.bound(*(f"low-{i}" for i in range(2 * GPUS)))
    await make_gang(day.api, "vip", 3, high=True)
    await day.bound("vip-0", "vip-1", "vip-2")
    await day.event("Preempted")
    await day.clear()


async def reclaim(day: Day) -> None:
    """team-b borrows and gives back through the Eviction API; both kinds of ElasticQuota have their status."""
    for path, group, name in ((QUOTAS, SIGS, "team-a"), (X_QUOTAS, X, "team-b")):
        quota = {"apiVersion": f"{group}/v1alpha1", "kind": "ElasticQuota", "metadata": {"name": name}}
        await day.api.create(path, {**quota, "spec": {"min": {GPU: GPUS}, "max": {GPU: 2 * GPUS}}})
    for i in range(2 * GPUS):
        await day.api.create(pods_path(), worker(f"b-{i}", labels={keys.QUOTA_NAME: "team-b"}))
    await day.bound(*(f"b-{i}" for i in range(2 * GPUS)))
    await make_gang(day.api, "a", 2, labels={keys.QUOTA_NAME: "team-a"})
    await day.bound("a-0", "a-1")

    async def reported() -> bool:
        used = [(await day.api.get(path)).get("status", {}).get("used", {}) for path in
                (f"{QUOTAS}/team-a", f"{X_QUOTAS}/team-b")]  # fmt: skip
        return [str(one.get(GPU)) for one in used] == ["2", str(2 * GPUS - 2)]

    await day.until("quotas reported", reported)
    await day.event("Reclaimed")
    await day.clear()


async def stale_gang(day: Day) -> None:
    await make_gang(day.api, "stale", 3)
    await day.bound("stale-0", "stale-1", "stale-2")
    await day.api.delete(f"{pods_path()}/stale-2")

    async def gone() -> bool:
        return not await day.api.items(pods_path())

    await day.until("the stale gang gives up", gone)
    await day.event("StaleGang")
