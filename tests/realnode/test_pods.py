# SPDX-License-Identifier: Apache-2.0
"""What kubelets do to pods, and what becomes of their room: resized, killed for memory, without an image."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from tests.e2e.client import Json
from tests.realnode.work import HOST, Work, container, pod, pod_spec

# of the 2 processors of a node or more: what is left is asked of the API server
ROOM = 500


@pytest.fixture
async def free(work: Work) -> int:
    """Thousandths of a processor that n1 has."""
    amount: str = (await work.api.get("/api/v1/nodes/n1"))["status"]["allocatable"]["cpu"]
    return int(amount.removesuffix("m")) if amount.endswith("m") else int(amount) * 1000


def cpu(thousandths: int) -> dict[str, str]:
    return {"cpu": f"{thousandths}m"}


async def test_room_that_a_resize_frees_is_given_at_once_and_what_it_takes_is_not(work: Work, free: int) -> None:
    large = pod_spec(container(requests=cpu(free - ROOM)), on="n1")
    work.apply(pod("large", large), pod("next", pod_spec(container(requests=cpu(2 * ROOM)), on="n1")))
    await work.run(["large"])
    await work.waits("next", "1 Insufficient cpu")

    def resize(amount: int) -> None:
        patch = {"spec": {"containers": [{"name": "main", "resources": {"requests": cpu(amount)}}]}}
        work.kubectl("patch", "pod", "large", "--subresource=resize", f"--patch={json.dumps(patch)}")

    before = work.inside("large", "sh", "-c", "echo still; kill -0 1")
    resize(free - 2 * ROOM)
    await work.run(["next"])
    seen = (await work.pods())["large"]
    assert (before, seen["status"]["containerStatuses"][0]["restartCount"]) == ("still\n", 0)
    await work.delete("next")
    resize(free - ROOM)

    async def grown() -> bool:
        (status,) = (await work.pods())["large"]["status"]["containerStatuses"]
        return bool(status["resources"]["requests"] == cpu(free - ROOM))

    await work.until("the kubelet has given it more", grown)
    work.apply(pod("late", pod_spec(container(requests=cpu(2 * ROOM)), on="n1")))
    await work.waits("late", "1 Insufficient cpu")


async def test_who_is_killed_for_memory_leaves_its_room(work: Work, free: int) -> None:
    greedy = container(
        command=["sh", "-c", "sleep 3; tail /dev/zero"], requests=cpu(free - ROOM), limits={"memory": "16Mi"}
    )
    work.apply(pod("greedy", pod_spec(greedy, on="n1", restartPolicy="Never")))
    await work.run(["greedy"])
    work.apply(pod("next", pod_spec(container(requests=cpu(2 * ROOM)), on="n1")))
    assert (await work.ends("greedy"))["reason"] == "OOMKilled"
    await work.run(["next"])


async def test_a_pod_without_its_image_keeps_its_room_until_it_goes(work: Work, free: int) -> None:
    lacking = container(requests=cpu(free - ROOM)) | {"image": "registry.invalid/none:1"}
    work.apply(pod("lacking", pod_spec(lacking, on="n1")))

    async def failed() -> bool:
        statuses = (await work.pods())["lacking"].get("status", {}).get("containerStatuses") or []
        return any(
            one["state"].get("waiting", {}).get("reason") in ("ErrImagePull", "ImagePullBackOff") for one in statuses
        )

    await work.until("the image cannot be had", failed)
    work.apply(pod("next", pod_spec(container(requests=cpu(2 * ROOM)), on="n1")))
    await work.waits("next", "1 Insufficient cpu")
    await work.delete("lacking")
    await work.run(["next"])


async def test_a_pod_that_the_kubelet_turns_down_takes_no_room(work: Work, free: int) -> None:
    work.apply(pod("ours", pod_spec(container(requests=cpu(free - 2 * ROOM)), on="n1")))
    await work.run(["ours"])
    # as of another scheduler, in the same instant
    other = pod_spec(container(requests=cpu(3 * ROOM)), scheduler="another", nodeName="n1")
    work.apply(pod("theirs", other))

    async def turned_down() -> bool:
        return bool((await work.pods())["theirs"].get("status", {}).get("reason") == "OutOfcpu")

    await work.until("the kubelet turns it down", turned_down)
    work.apply(pod("next", pod_spec(container(requests=cpu(2 * ROOM)), on="n1")))
    await work.run(["next"])


@pytest.fixture
async def disk(work: Work) -> AsyncIterator[str]:
    """A storage class with one local volume, on n2; its name."""
    name = work.namespace
    (work.cluster.nodes["n2"].root / "var/local/disk").mkdir(parents=True, exist_ok=True)
    here = {"matchExpressions": [{"key": HOST, "operator": "In", "values": ["n2"]}]}
    volume: Json = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": name,
        "local": {"path": "/var/local/disk"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [here]}},
    }
    meta = {"metadata": {"name": name}}
    late = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    work.apply(
        {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", **meta, **late},
        {"apiVersion": "v1", "kind": "PersistentVolume", **meta, "spec": volume},
    )
    yield name
    work.kubectl("delete", "storageclass,persistentvolume", name, "--wait=false")


async def test_a_pod_goes_where_its_local_volume_is_and_writes_to_it(work: Work, disk: str) -> None:
    claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": disk, "resources": {"requests": {"storage": "1Gi"}}}
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    mounts = [{"name": "data", "mountPath": "/data"}]
    write = ["sh", "-c", "echo written > /data/file; sleep 3600"]
    work.apply(
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": claim},
        pod("writer", pod_spec(container(command=write, volumeMounts=mounts), volumes=volumes)),
    )
    await work.run(["writer"])
    file = work.cluster.nodes["n2"].root / "var/local/disk/file"
    await work.until("the file is on the node", file.exists)
    assert file.read_text() == "written\n"
