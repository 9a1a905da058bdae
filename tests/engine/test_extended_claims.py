# SPDX-License-Identifier: Apache-2.0
"""Extended resources that devices serve, live: the claim is created, allocated and named in the pod's status before the
Binding, and each failing write on the way leaves nothing behind."""

from typing import Any

import pytest

from koordpy.engine.binding.claim_calls import FINALIZER
from tests.engine.live import Live, gang, in_virtual_time, live, node, pod, until
from tests.engine.test_releases import deleted_instead_of_bound

CLAIMS = "resourceclaims.resource.k8s.io"
GPU = "nvidia.com/gpu"
SOON = {"rediscovery_seconds": 1.0, "sweep_seconds": 0.1}
"""A missing right is tried again soon."""
DRIVER = "gpu.nvidia.com"


def bare(name: str, **options: Any) -> dict[str, Any]:
    """A node whose GPUs only a driver's slices list."""
    return node(name, **{"gpus": 0, "cpu": 8, "memory_gib": 64, **options})


def offer(cluster: Live, at: str, count: int) -> None:
    store = cluster.server.store
    if not store.list("deviceclasses.resource.k8s.io"):
        selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
        spec: dict[str, Any] = {"selectors": [selector], "extendedResourceName": GPU}
        store.create("deviceclasses.resource.k8s.io", {"metadata": {"name": DRIVER}, "spec": spec})
    spec = {
        "driver": DRIVER,
        "nodeName": at,
        "pool": {"name": at, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"gpu-{i}"} for i in range(count)],
    }
    store.create("resourceslices.resource.k8s.io", {"metadata": {"name": f"of-{at}"}, "spec": spec})


def claims(cluster: Live) -> list[dict[str, Any]]:
    return cluster.server.store.list(CLAIMS)


def given(cluster: Live) -> dict[str, list[tuple[str, str]]]:
    """Pod -> (pool, device) of each result of its claim, by the claim's owner."""
    out: dict[str, list[tuple[str, str]]] = {}
    for one in claims(cluster):
        (owner,) = one["metadata"]["ownerReferences"]
        results = one.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
        out.setdefault(owner["name"], []).extend((r["pool"], r["device"]) for r in results)
    return {name: sorted(devices) for name, devices in out.items()}


def asking(name: str, gpus: int = 2) -> dict[str, Any]:
    return pod(name, gpus=gpus, cpu="1", memory="1Gi")


async def test_the_claim_is_written_in_the_form_of_kube_scheduler() -> None:
    async with live([bare("n1")]) as cluster, cluster.running():
        offer(cluster, "n1", 4)
        cluster.create(asking("p", 2))
        await until(lambda: cluster.bound("p"))
        (found,) = claims(cluster)
        meta, bound = found["metadata"], cluster.pods()["p"]
        assert meta["name"].startswith("p-extended-resources-") and meta["finalizers"] == [FINALIZER]
        assert meta["annotations"] == {"resource.kubernetes.io/extended-resource-claim": "true"}
        uid = bound["metadata"]["uid"]
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": True}
        assert meta["ownerReferences"] == [owner]
        exactly = {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": 2}
        asked = sorted(bound["spec"]["containers"][0]["resources"]["requests"]).index(GPU)
        request = f"container-0-request-{asked}"
        assert found["spec"]["devices"]["requests"] == [{"name": request, "exactly": exactly}]
        assert found["status"]["reservedFor"] == [{"resource": "pods", "name": "p", "uid": uid}]
        assert given(cluster) == {"p": [("n1", "gpu-0"), ("n1", "gpu-1")]}
        mapping = {"containerName": "main", "resourceName": GPU, "requestName": request}
        assert bound["status"]["extendedResourceClaimStatus"] == {
            "resourceClaimName": meta["name"],
            "requestMappings": [mapping],
        }


async def test_a_gang_on_nodes_without_allocatable_gpus_is_placed_as_a_whole() -> None:
    async with live([bare(f"n{i}") for i in range(4)]) as cluster, cluster.running():
        for i in range(4):
            offer(cluster, f"n{i}", 8)
        members = gang("job", 4, gpus=8)
        cluster.create(*members)
        names = [one["metadata"]["name"] for one in members if one["kind"] == "Pod"]
        await until(lambda: cluster.bound(*names))
        assert len(set(cluster.places().values())) == 4
        assert {pool for found in given(cluster).values() for pool, _ in found} == {f"n{i}" for i in range(4)}
        assert all(len(found) == 8 for found in given(cluster).values())


@in_virtual_time
async def test_no_device_serves_two_pods_and_the_last_one_waits_for_a_free_device() -> None:
    async with live([bare("n1")]) as cluster, cluster.running():
        offer(cluster, "n1", 4)
        for i in range(3):
            cluster.create(asking(f"p{i}"))
        await until(lambda: len(cluster.places()) == 2)
        (left,) = {"p0", "p1", "p2"} - set(cluster.places())
        await until(lambda: "cannot allocate all claims" in cluster.condition(left).get("message", ""))
        assert sorted(device for found in given(cluster).values() for device in found) == [
            ("n1", f"gpu-{i}") for i in range(4)
        ]
        gone = next(iter(cluster.places()))
        cluster.delete(gone)
        await until(lambda: cluster.bound(left))
        await until(lambda: set(given(cluster)) == {"p0", "p1", "p2"} - {gone})


async def test_nodes_with_a_device_plugin_and_nodes_with_devices_serve_one_cluster() -> None:
    async with live([bare("n1"), node("n2", gpus=2, cpu=8, memory_gib=64)]) as cluster, cluster.running():
        offer(cluster, "n1", 2)
        for name in ("p", "q"):
            cluster.create(asking(name))
        await until(lambda: cluster.bound("p", "q"))
        assert set(cluster.places().values()) == {"n1", "n2"}
        (served,) = given(cluster)
        assert cluster.places()[served] == "n1"


WRITES = {
    "create": ("POST", "*/resourceclaims"),
    "finalizer": ("PATCH", "*/resourceclaims/p-extended-resources-?????"),
    "allocate": ("PATCH", "*/resourceclaims/p-extended-resources-?????/status"),
    "pod status": ("PATCH", "*/pods/p/status"),
    "bind": ("POST", "*/pods/p/binding"),
}


@pytest.mark.parametrize("effect", [403, 409, 422, 500, "lost", "drop"])
@pytest.mark.parametrize("write", WRITES)
async def test_after_a_failing_write_nothing_is_left_and_the_pod_is_bound_with_one_claim(
    write: str, effect: Any
) -> None:
    """The write fails once: refused, in conflict, failed, or carried out although the reply is lost."""
    method, path = WRITES[write]
    async with live([bare("n1")]) as cluster, cluster.running(**SOON):
        offer(cluster, "n1", 2)
        lost = effect == "lost"
        fault = cluster.server.faults.fail(500 if lost else effect, method=method, path=path, times=1, after=lost)
        cluster.create(asking("p"))
        await until(lambda: cluster.bound("p") and fault.hits == 1)
        await until(lambda: len(claims(cluster)) == 1)
        assert given(cluster) == {"p": [("n1", "gpu-0"), ("n1", "gpu-1")]}
        named = cluster.pods()["p"]["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
        assert named == claims(cluster)[0]["metadata"]["name"]


@pytest.mark.parametrize("write", WRITES)
async def test_a_write_that_keeps_failing_leaves_the_devices_to_others(write: str) -> None:
    method, path = WRITES[write]
    async with live([bare("n1")]) as cluster, cluster.running(**SOON):
        offer(cluster, "n1", 2)
        # the claim's path also serves its release, and creations have one path for all pods
        times = {"finalizer": 3, "create": 1}.get(write)
        fault = cluster.server.faults.fail(500 if write == "finalizer" else 403, method=method, path=path, times=times)
        cluster.create(asking("p"))
        await until(lambda: fault.hits >= 1)
        cluster.delete("p")
        cluster.create(asking("q"))
        await until(lambda: cluster.bound("q"))
        await until(lambda: set(given(cluster)) == {"q"})


async def test_without_the_right_to_create_claims_the_message_names_it_until_it_is_granted() -> None:
    async with live([bare("n1")]) as cluster, cluster.running(**SOON):
        offer(cluster, "n1", 2)
        cluster.server.faults.fail(403, method="POST", path="*/resourceclaims")
        cluster.create(asking("p"))
        await until(lambda: "no right to create resourceclaims" in cluster.condition("p").get("message", ""))
        cluster.server.faults.clear()
        await until(lambda: cluster.bound("p"))


async def test_the_claim_of_a_pod_that_is_deleted_at_its_binding_is_deleted() -> None:
    async with live([bare("n1")]) as cluster, cluster.running() as scheduler:
        offer(cluster, "n1", 2)
        deleted_instead_of_bound(cluster, scheduler, "p")
        cluster.create(asking("p"))
        await until(lambda: scheduler.releaser.released == 1 and not claims(cluster))
        cluster.create(asking("q"))
        await until(lambda: cluster.bound("q"))


async def test_a_claim_that_a_dead_leader_left_is_deleted_and_the_pod_gets_a_new_one() -> None:
    """The node of the first try is full by then."""
    async with live([bare("n1"), bare("n2")]) as cluster:
        offer(cluster, "n1", 2)
        cluster.server.faults.fail(500, method="POST", path="*/binding")
        async with cluster.running() as scheduler:
            scheduler.releaser._may_write = lambda: False
            cluster.create(asking("p"))
            await until(lambda: "extendedResourceClaimStatus" in cluster.pods()["p"]["status"])
        cluster.server.faults.clear()
        (left,) = (one["metadata"]["name"] for one in claims(cluster))
        cluster.pod("filler", cpu="8")
        cluster.bind("filler", "n1")
        offer(cluster, "n2", 2)
        async with cluster.running():
            await until(lambda: cluster.bound("p"))
            await until(lambda: len(claims(cluster)) == 1)
        assert given(cluster) == {"p": [("n2", "gpu-0"), ("n2", "gpu-1")]}
        (found,) = claims(cluster)
        assert found["metadata"]["name"] != left
        named = cluster.pods()["p"]["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
        assert named == found["metadata"]["name"]


async def test_a_pod_that_a_device_plugin_serves_after_all_keeps_no_name_of_a_deleted_claim() -> None:
    async with live([node("n1", gpus=2, cpu=8, memory_gib=64)]) as cluster:
        cluster.create({**asking("p"), "status": {"phase": "Pending"}})
        stale = {"extendedResourceClaimStatus": {"resourceClaimName": "gone", "requestMappings": []}}
        store = cluster.server.store
        store.update(
            "pods", "p", lambda obj: {**obj, "status": {**obj["status"], **stale}}, namespace="default", status=True
        )
        async with cluster.running():
            await until(lambda: cluster.bound("p"))
        assert "extendedResourceClaimStatus" not in cluster.pods()["p"]["status"]
        assert not claims(cluster)
