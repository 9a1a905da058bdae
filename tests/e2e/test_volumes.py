# SPDX-License-Identifier: Apache-2.0
"""Volumes on a real API server with the real volume controller; only the provisioner is the tests' own.

What koordpy writes is what the controllers need: claimRef of volumes that are there, the selected node of those to be
made. No pod is bound before all its claims are, and of a gang none before all claims of all members.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from koordpy.api import keys
from koordpy.api.storage_objects import BIND_COMPLETED, SELECTED_NODE
from tests.e2e.client import Client, Refused, condition, pod_manifest, pods_path
from tests.e2e.conftest import CRDS
from tests.e2e.controlplane import ControlPlane
from tests.e2e.process import Process, always, eventually, koordpy_run
from tests.e2e.recording import Recorder
from tests.e2e.test_scheduler import GROUPS, places

Json = dict[str, Any]
HOST = "kubernetes.io/hostname"
DRIVER = "disks.example.com"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
STORAGE = "/apis/storage.k8s.io/v1"
CAPACITIES = f"{STORAGE}/namespaces/default/csistoragecapacities"
pytestmark = pytest.mark.controllers


@dataclass
class Disks:
    """Makes storage, and volumes for claims whose node was selected while `provisioning`."""

    api: Client
    provisioning: bool = True
    made: dict[str, str] = field(default_factory=dict)
    """Claim -> node that its volume was made for."""

    async def volume(self, name: str, node: str, size: str = "10Gi", class_name: str = "local", **spec: Any) -> None:
        here = {"key": HOST, "operator": "In", "values": [node]}
        body = {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class_name,
            "persistentVolumeReclaimPolicy": "Retain",
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
            "local": {"path": f"/disks/{name}"},
            **spec,
        }
        await self.api.create(
            VOLUMES, {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": body}
        )

        async def available() -> bool:
            phase: str = (await self.api.get(f"{VOLUMES}/{name}")).get("status", {}).get("phase", "")
            return phase in ("Available", "Bound")

        await eventually(available, what=f"volume {name} known to its controller")

    async def claim(self, name: str, class_name: str = "local", size: str = "5Gi") -> None:
        spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": class_name}
        body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}}
        await self.api.create(CLAIMS, {**body, "spec": {**spec, "resources": {"requests": {"storage": size}}}})

    async def selected(self, name: str) -> str:
        """Node that the claim's volume is to be made for."""
        notes = (await self.api.get(f"{CLAIMS}/{name}"))["metadata"].get("annotations") or {}
        return str(notes.get(SELECTED_NODE, ""))

    async def refuse(self, name: str) -> None:
        """What a provisioner does that cannot serve the node."""
        await self.api.patch(f"{CLAIMS}/{name}", {"metadata": {"annotations": {SELECTED_NODE: None}}})

    async def capacity(self, node: str, size: str) -> None:
        body = {"apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity", "metadata": {"name": f"on-{node}"}}
        fields = {"storageClassName": "made", "nodeTopology": {"matchLabels": {HOST: node}}, "capacity": size}
        await self.api.create(CAPACITIES, {**body, **fields})

    async def provision(self) -> None:
        """Until cancelled."""
        while True:
            for claim in await self.api.items(CLAIMS) if self.provisioning else ():
                meta = claim["metadata"]
                node = (meta.get("annotations") or {}).get(SELECTED_NODE)
                if node and meta["name"] not in self.made and not claim["spec"].get("volumeName"):
                    self.made[meta["name"]] = node
                    reference = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": "default"}
                    reference |= {"name": meta["name"], "uid": meta["uid"]}
                    await self.volume(f"for-{meta['name']}", node, class_name="made", claimRef=reference)
            await asyncio.sleep(0.1)


@pytest.fixture
async def api(plane: ControlPlane) -> AsyncIterator[Client]:
    async with plane.client() as client:
        await client.apply_crds(CRDS)
        yield client
        await client.clear()
        await client.delete(GROUPS)
        await client.delete(CAPACITIES)
        await client.delete(CLAIMS)
        await client.delete(VOLUMES)
        for name in ("local", "made"):
            await client.delete(f"{STORAGE}/storageclasses/{name}")
        await client.delete(f"{STORAGE}/csidrivers/{DRIVER}")

        async def gone() -> bool:
            return not await client.items(CLAIMS) and not await client.items(VOLUMES)

        await eventually(gone, what="claims and volumes gone", processes=plane.processes)


@pytest.fixture
async def disks(api: Client) -> AsyncIterator[Disks]:
    """Two nodes, the classes `local` and `made`, and a provisioner."""
    await api.make_nodes(2, name=lambda i: f"n{i + 1}")
    for name, provisioner in (("local", "kubernetes.io/no-provisioner"), ("made", DRIVER)):
        body = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}}
        waits = {"provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}
        await api.create(f"{STORAGE}/storageclasses", {**body, **waits})
    found = Disks(api)
    task = asyncio.create_task(found.provision())
    yield found
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.fixture
async def koordpy(plane: ControlPlane, recorder: Recorder, tmp_path: Path) -> AsyncIterator[Process]:
    """koordpy, that gives claims three seconds; started."""
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps({"filters": {"volumeBinding": {"bindTimeout": "3s"}}}))
    flags = ("--config", str(file), "--no-leader-elect", "--bind-address", "127.0.0.1:0")
    kubeconfig = recorder.kubeconfig(tmp_path, plane.admin_token)
    with koordpy_run(*flags, kubeconfig=kubeconfig, folder=tmp_path) as process:
        yield process


def using(name: str, *claims: str, labels: dict[str, str] | None = None, cpu: str = "1") -> Json:
    volumes = [{"name": one, "persistentVolumeClaim": {"claimName": one}} for one in claims]
    return pod_manifest(
        name, scheduler=keys.DEFAULT_SCHEDULER_NAME, requests={"cpu": cpu}, labels=labels, spec={"volumes": volumes}
    )


async def bound(api: Client, *names: str, by: Process) -> dict[str, str]:
    async def all_of_them() -> bool:
        return set(names) <= set(await places(api))

    await eventually(all_of_them, what=f"{', '.join(names)} bound", processes=[by])
    found = await places(api)
    for pod in await api.items(pods_path()):
        if pod["metadata"]["name"] in names:
            for volume in pod["spec"].get("volumes") or ():
                claim = await api.get(f"{CLAIMS}/{volume['persistentVolumeClaim']['claimName']}")
                assert claim["status"]["phase"] == "Bound" and BIND_COMPLETED in claim["metadata"]["annotations"]
    return found


async def message(api: Client, pod: str) -> str:
    found = condition(await api.get(f"{pods_path()}/{pod}"), "PodScheduled")
    return found["message"] if found else ""


async def test_local_volumes_are_taken_smallest_first_and_lead_the_pod(
    api: Client, disks: Disks, koordpy: Process
) -> None:
    """Example 10 of the specification: 5Gi and 10Gi on one node hold 4Gi and 6Gi, and no 6Gi twice."""
    await disks.volume("small", "n2", "5Gi")
    await disks.volume("large", "n2", "10Gi")
    for name, size in (("a", "4Gi"), ("b", "6Gi"), ("c", "6Gi"), ("d", "6Gi")):
        await disks.claim(name, size=size)
    await api.create(pods_path(), using("no", "c", "d"))

    async def told() -> bool:
        return "2 node(s) didn't find available persistent volumes to bind" in await message(api, "no")

    await eventually(told, what="the pod told that no volumes are there", processes=[koordpy])
    await api.create(pods_path(), using("yes", "a", "b"))
    assert await bound(api, "yes", by=koordpy) == {"yes": "n2"}
    volumes = {claim: (await api.get(f"{CLAIMS}/{claim}"))["spec"]["volumeName"] for claim in "ab"}
    assert volumes == {"a": "small", "b": "large"}
    for name in ("third", "fourth"):
        await disks.volume(name, "n1")
    assert (await bound(api, "no", by=koordpy))["no"] == "n1"


async def test_a_volume_is_made_where_the_pod_will_be(api: Client, disks: Disks, koordpy: Process) -> None:
    await disks.claim("data", "made")
    await api.create(pods_path(), using("p", "data"))
    found = await bound(api, "p", by=koordpy)
    assert disks.made == {"data": found["p"]}


async def test_a_provisioner_that_finds_no_room_sends_the_pod_elsewhere(
    api: Client, disks: Disks, koordpy: Process
) -> None:
    """The capacity that was announced is not there: it takes the selected node away and announces none any more."""
    disks.provisioning = False
    driver = {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER}}
    await api.create(f"{STORAGE}/csidrivers", {**driver, "spec": {"storageCapacity": True}})
    await disks.claim("data", "made")
    await api.create(pods_path(), using("p", "data"))

    async def told() -> bool:
        return "2 node(s) did not have enough free storage" in await message(api, "p")

    await eventually(told, what="no capacity announced", processes=[koordpy])
    await disks.capacity("n1", "100Gi")

    async def first() -> bool:
        return await disks.selected("data") == "n1"

    await eventually(first, what="n1 selected", processes=[koordpy])
    await api.delete(f"{CAPACITIES}/on-n1")
    await disks.capacity("n2", "100Gi")
    await disks.refuse("data")

    async def second() -> bool:
        return await disks.selected("data") == "n2"

    await eventually(second, what="n2 selected", processes=[koordpy])
    assert await places(api) == {}
    disks.provisioning = True
    assert await bound(api, "p", by=koordpy) == {"p": "n2"}


async def test_a_pod_whose_volume_is_not_made_in_time_says_so_and_is_tried_again(
    api: Client, disks: Disks, koordpy: Process
) -> None:
    disks.provisioning = False
    await disks.claim("data", "made")
    await api.create(pods_path(), using("p", "data"))

    async def told() -> bool:
        found = condition(await api.get(f"{pods_path()}/p"), "PodScheduled") or {}
        expected = "binding claims: timed out waiting for claim default/data"
        return (found.get("reason"), found.get("message")) == ("SchedulerError", expected)

    await eventually(told, what="the time-out told", processes=[koordpy])
    disks.provisioning = True
    await bound(api, "p", by=koordpy)


async def test_of_a_gang_all_claims_are_bound_before_any_member_is(
    api: Client, disks: Disks, recorder: Recorder, koordpy: Process
) -> None:
    """Two members take volumes that are there, one gets a new one, two have none: the new one is long in coming."""
    disks.provisioning = False
    await disks.volume("v1", "n1")
    await disks.volume("v2", "n2")
    for name, class_name in (("c0", "local"), ("c1", "local"), ("c2", "made")):
        await disks.claim(name, class_name)
    group = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": "g"}}
    await api.create(GROUPS, {**group, "spec": {"minMember": 5}})
    labels = {keys.LABEL_POD_GROUP: "g"}
    for i in range(5):
        await api.create(pods_path(), using(f"g-{i}", *([f"c{i}"] if i < 3 else []), labels=labels))

    async def waiting() -> bool:
        taken = [(await api.get(f"{CLAIMS}/c{i}"))["status"]["phase"] for i in range(2)]
        return taken == ["Bound", "Bound"] and bool(await disks.selected("c2"))

    await eventually(waiting, what="all but one claim bound", processes=[koordpy])

    async def none() -> bool:
        return await places(api) == {}

    await always(none, what="no member bound", for_s=1, processes=[koordpy])
    disks.provisioning = True
    found = await bound(api, *(f"g-{i}" for i in range(5)), by=koordpy)
    assert {found["g-0"], found["g-1"]} == {"n1", "n2"}
    kinds = [call.resource for call in recorder.calls if call.method in ("PATCH", "POST") and call.status < 300]
    bindings = [kind == "pods/binding" for kind in kinds if kind.startswith(("persistentvolume", "pods/binding"))]
    assert bindings == sorted(bindings) and bindings.count(True) == 5 and len(bindings) == 8


async def test_a_pod_that_goes_while_its_volume_is_made_leaves_others_alone(
    api: Client, disks: Disks, koordpy: Process
) -> None:
    disks.provisioning = False
    await disks.claim("data", "made")
    await api.create(pods_path(), using("p", "data"))

    async def selected() -> bool:
        return bool(await disks.selected("data"))

    await eventually(selected, what="a node selected", processes=[koordpy])
    await api.delete(f"{pods_path()}/p")
    await api.create(pods_path(), using("q", "data"))
    disks.provisioning = True
    assert set(await bound(api, "q", by=koordpy)) == {"q"}
    with pytest.raises(Refused):
        await api.get(f"{pods_path()}/p")
