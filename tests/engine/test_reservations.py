# SPDX-License-Identifier: Apache-2.0
"""Pods with resource claims, live: allocated and reserved before any Binding."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from koordpy.engine.scheduler import Scheduler
from tests.engine.live import Live, in_virtual_time, live, pod, small, until
from tests.engine.storage import hold_writes

DRIVER = "gpu.example.com"
CLAIMS_OF_DEVICES = "resourceclaims.resource.k8s.io"
TOLD = {"opaque": {"driver": DRIVER, "parameters": {"sharing": "none"}}}


def offer(cluster: Live, node: str, *devices: str) -> None:
    """A driver's devices on a node, and its class."""
    store = cluster.server.store
    if not store.list("deviceclasses.resource.k8s.io"):
        selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
        spec: dict[str, Any] = {"selectors": [selector], "config": [TOLD]}
        store.create("deviceclasses.resource.k8s.io", {"metadata": {"name": "gpu"}, "spec": spec})
    store.create("resourceslices.resource.k8s.io", devices_of(node, *devices))


def devices_of(node: str, *names: str) -> dict[str, Any]:
    """The slice of a node's devices."""
    spec = {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": name} for name in names],
    }
    return {"metadata": {"name": f"of-{node}"}, "spec": spec}


def claim(cluster: Live, name: str, count: int = 1) -> None:
    request = {"name": "gpus", "exactly": {"deviceClassName": "gpu", "count": count}}
    spec = {"devices": {"requests": [request]}}
    cluster.server.store.create(
        "resourceclaims.resource.k8s.io", {"metadata": {"name": name, "namespace": "default"}, "spec": spec}
    )


def claiming(name: str, *claims: str, **options: Any) -> dict[str, Any]:
    manifest = pod(name, **{"gpus": 0, "cpu": "1", "memory": "1Gi", **options})
    manifest["spec"]["resourceClaims"] = [{"name": one, "resourceClaimName": one} for one in claims]
    return manifest


def status(cluster: Live, name: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.server.store.get("resourceclaims.resource.k8s.io", name, "default").get(
        "status", {}
    )
    return found


def devices(cluster: Live, name: str) -> set[str]:
    return {one["device"] for one in status(cluster, name).get("allocation", {}).get("devices", {}).get("results", [])}


async def die_after_allocation(cluster: Live) -> None:
    """A process that has allocated `data` to the pod `p` dies, as it were, before it binds or takes anything back."""
    cluster.server.faults.fail(500, method="POST", path="*/binding")
    async with cluster.running() as scheduler:
        scheduler.releaser._may_write = lambda: False
        cluster.create(claiming("p", "data"))
        await until(lambda: users(cluster, "data") == {"p"})
    cluster.server.faults.clear()


def users(cluster: Live, name: str) -> set[str]:
    return {one["name"] for one in status(cluster, name).get("reservedFor", [])}


async def test_a_claim_is_allocated_and_reserved_before_the_pod_is_bound() -> None:
    async with live([small("n1"), small("n2")]) as cluster, cluster.running():
        offer(cluster, "n2", "gpu-0", "gpu-1")
        claim(cluster, "two", 2)
        cluster.server.faults.fail(500, method="POST", path="*/binding", times=1)
        cluster.create(claiming("p", "two"))
        await until(lambda: cluster.bound("p"))
        assert cluster.places() == {"p": "n2"}
        found = status(cluster, "two")
        assert devices(cluster, "two") == {"gpu-0", "gpu-1"}
        assert found["reservedFor"] == [
            {"resource": "pods", "name": "p", "uid": cluster.pods()["p"]["metadata"]["uid"]}
        ]
        meta = cluster.server.store.get("resourceclaims.resource.k8s.io", "two", "default")["metadata"]
        assert meta["finalizers"] == ["resource.kubernetes.io/delete-protection"]
        assert found["allocation"]["devices"]["config"] == [{"source": "FromClass", **TOLD}]
        (term,) = found["allocation"]["nodeSelector"]["nodeSelectorTerms"]
        assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]


@in_virtual_time
async def test_no_device_is_given_to_two_claims_however_fast_their_pods_come() -> None:
    async with live([small("n1"), small("n2")]) as cluster, cluster.running():
        offer(cluster, "n1", "a", "b")
        offer(cluster, "n2", "c", "d")
        for i in range(5):
            claim(cluster, f"c{i}")
            cluster.create(claiming(f"p{i}", f"c{i}", cpu="0"))
            await asyncio.sleep(0.01)
        await until(lambda: len(cluster.places()) == 4)
        (left,) = {f"p{i}" for i in range(5)} - set(cluster.places())
        await until(lambda: "cannot allocate all claims" in cluster.condition(left).get("message", ""))
        given = [device for i in range(5) for device in devices(cluster, f"c{i}")]
        assert sorted(given) == ["a", "b", "c", "d"]


async def test_a_device_is_kept_while_its_allocation_is_under_way() -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        offer(cluster, "n1", "a")
        claim(cluster, "first")
        claim(cluster, "second")
        write = hold_writes(scheduler.reserver._calls)
        cluster.create(claiming("p", "first"))
        await until(lambda: len(scheduler.committer.waiting_for_claims) == 1)
        cluster.create(claiming("q", "second"))
        await until(lambda: "cannot allocate all claims" in cluster.condition("q").get("message", ""))
        assert not devices(cluster, "first")
        write.set()
        await until(lambda: cluster.bound("p"))


async def test_a_claim_of_several_pods_is_allocated_once_and_reserved_for_all() -> None:
    async with live([small("n1"), small("n2")]) as cluster, cluster.running():
        offer(cluster, "n1", "a")
        offer(cluster, "n2", "b")
        claim(cluster, "shared")
        for name in ("p", "q", "r"):
            cluster.create(claiming(name, "shared"))
        await until(lambda: cluster.bound("p", "q", "r"))
        assert len(set(cluster.places().values())) == 1
        assert users(cluster, "shared") == {"p", "q", "r"}
        assert len(devices(cluster, "shared")) == 1


async def test_a_reservation_that_meets_another_is_made_beside_it() -> None:
    async with live([small("n1")]) as cluster:
        offer(cluster, "n1", "a")
        claim(cluster, "data")
        cluster.server.faults.fail(409, method="PATCH", path="*/resourceclaims/*", times=3)
        async with cluster.running():
            cluster.create(claiming("p", "data"))
            await until(lambda: cluster.bound("p"))
            assert users(cluster, "data") == {"p"}


async def test_without_the_right_to_protect_claims_they_are_allocated_all_the_same() -> None:
    async with live([small("n1")]) as cluster, cluster.running():
        offer(cluster, "n1", "a")
        claim(cluster, "data")
        cluster.server.faults.fail(403, method="PATCH", path="*/resourceclaims/data")
        cluster.create(claiming("p", "data"))
        await until(lambda: cluster.bound("p"))
        assert devices(cluster, "data") == {"a"}


async def test_a_claim_that_another_allocated_first_is_followed() -> None:
    async with live([small("n1"), small("n2")]) as cluster:
        offer(cluster, "n1", "a")
        offer(cluster, "n2", "b")
        claim(cluster, "data")
        async with cluster.running() as scheduler:
            patch = scheduler.reserver._calls._client.patch
            planned: list[str] = []

            async def race(path: str, body: Any, **options: Any) -> Any:
                if path.endswith("/status") and "resourceclaims" in path and not planned:
                    (result,) = body["status"]["allocation"]["devices"]["results"]
                    planned.append(result["device"])
                    pool, device = ("n2", "b") if result["device"] == "a" else ("n1", "a")
                    fields = [{"key": "metadata.name", "operator": "In", "values": [pool]}]
                    theirs = {
                        "devices": {"results": [{**result, "pool": pool, "device": device}]},
                        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
                    }
                    cluster.server.store.update(
                        "resourceclaims.resource.k8s.io",
                        "data",
                        lambda obj: {**obj, "status": {"allocation": theirs}},
                        namespace="default",
                        status=True,
                    )
                return await patch(path, body, **options)

            scheduler.reserver._calls._client.patch = race  # type: ignore[method-assign]
            cluster.create(claiming("p", "data"))
            await until(lambda: cluster.bound("p"))
        assert cluster.places() == {"p": "n2" if planned == ["a"] else "n1"}
        assert users(cluster, "data") == {"p"}


def allocated(cluster: Live, name: str, device: str, *, pool: str, only_there: bool = True) -> None:
    """Another scheduler gives a claim a device of a node's pool, for that node or for all of them."""
    result = {"request": "gpus", "driver": DRIVER, "pool": pool, "device": device}
    given: dict[str, Any] = {"devices": {"results": [result]}}
    if only_there:
        fields = [{"key": "metadata.name", "operator": "In", "values": [pool]}]
        given["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": fields}]}
    cluster.server.store.update(
        CLAIMS_OF_DEVICES, name, lambda obj: {**obj, "status": {"allocation": given}}, namespace="default", status=True
    )


def before_the_first_write(scheduler: Scheduler, change: Callable[[], None]) -> None:
    """What another does after the plan and before the claim is written for the first time."""
    patch, left = scheduler.reserver._calls._client.patch, [change]

    async def after_the_change(path: str, body: Any, **options: Any) -> Any:
        if path.endswith("/status") and "resourceclaims" in path and left:
            left.pop()()
        return await patch(path, body, **options)

    scheduler.reserver._calls._client.patch = after_the_change  # type: ignore[method-assign]


async def test_a_claim_that_is_moved_to_another_node_before_it_is_reserved_takes_its_pod_along() -> None:
    async with live([small("n1"), small("n2")]) as cluster:
        offer(cluster, "n1", "a")
        offer(cluster, "n2", "b")
        claim(cluster, "data")
        allocated(cluster, "data", "a", pool="n1")
        async with cluster.running() as scheduler:
            before_the_first_write(scheduler, lambda: allocated(cluster, "data", "b", pool="n2"))
            cluster.create(claiming("p", "data"))
            await until(lambda: cluster.bound("p"))
        assert (cluster.places(), devices(cluster, "data"), users(cluster, "data")) == ({"p": "n2"}, {"b"}, {"p"})


async def test_a_claim_whose_devices_can_be_used_everywhere_ties_its_pod_to_no_node() -> None:
    async with live([small("n1", gpus=0), small("n2")]) as cluster, cluster.running():
        offer(cluster, "n1", "a")
        claim(cluster, "data")
        allocated(cluster, "data", "a", pool="n1", only_there=False)
        cluster.create(claiming("p", "data", gpus=1))
        await until(lambda: cluster.bound("p"))
        assert (cluster.places(), users(cluster, "data")) == ({"p": "n2"}, {"p"})


@pytest.mark.parametrize("comes_back", [False, True])
async def test_a_claim_that_is_deleted_before_it_is_reserved_voids_the_plan(
    comes_back: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        offer(cluster, "n1", "a")
        claim(cluster, "data")

        def delete() -> None:
            cluster.server.store.remove(CLAIMS_OF_DEVICES, "data", "default")
            if comes_back:
                claim(cluster, "data")

        before_the_first_write(scheduler, delete)
        cluster.create(claiming("p", "data"))
        if not comes_back:
            await until(lambda: 'resourceclaim "data" not found' in cluster.condition("p").get("message", ""))
            assert not cluster.bound("p")
            claim(cluster, "data")
        await until(lambda: cluster.bound("p"))
        assert (users(cluster, "data"), devices(cluster, "data")) == ({"p"}, {"a"})
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_missing_claim_lets_no_pod_through_and_wakes_it_when_it_comes() -> None:
    async with live([small("n1")]) as cluster, cluster.running():
        offer(cluster, "n1", "a")
        cluster.create(claiming("p", "data"))
        await until(lambda: 'resourceclaim "data" not found' in cluster.condition("p").get("message", ""))
        claim(cluster, "data")
        await until(lambda: cluster.bound("p"))


async def test_devices_that_come_wake_the_pod_that_waits_for_them() -> None:
    async with live([small("n1")]) as cluster, cluster.running():
        claim(cluster, "data", 2)
        cluster.create(claiming("p", "data"))
        await until(lambda: cluster.condition("p"))
        offer(cluster, "n1", "a", "b")
        await until(lambda: cluster.bound("p"))


async def test_a_claim_made_for_the_pod_later_is_seen_in_its_status() -> None:
    async with live([small("n1")]) as cluster, cluster.running():
        offer(cluster, "n1", "a")
        manifest = claiming("p", "gpus")
        manifest["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": "t"}]
        cluster.create(manifest)
        await until(lambda: "waiting for the resourceclaim" in cluster.condition("p").get("message", ""))
        claim(cluster, "made")
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "controller": True}
        owner["uid"] = cluster.pods()["p"]["metadata"]["uid"]
        store = cluster.server.store
        store.update(
            "resourceclaims.resource.k8s.io",
            "made",
            lambda obj: {**obj, "metadata": {**obj["metadata"], "ownerReferences": [owner]}},
            namespace="default",
        )
        made = {"resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": "made"}]}
        store.update(
            "pods", "p", lambda obj: {**obj, "status": {**obj["status"], **made}}, namespace="default", status=True
        )
        await until(lambda: cluster.bound("p"))
        assert users(cluster, "made") == {"p"}


async def test_a_process_that_starts_after_the_allocation_goes_on_from_there() -> None:
    async with live([small("n1"), small("n2")]) as cluster:
        offer(cluster, "n1", "a")
        offer(cluster, "n2", "b")
        claim(cluster, "data")
        await die_after_allocation(cluster)
        (first,) = devices(cluster, "data")
        async with cluster.running():
            await until(lambda: cluster.bound("p"))
        assert cluster.places() == {"p": {"a": "n1", "b": "n2"}[first]}
        assert devices(cluster, "data") == {first}


@pytest.mark.parametrize("while_written", ["finalizers", "status"])
async def test_devices_of_a_pod_that_goes_while_they_are_written_are_given_to_nobody_else(while_written: str) -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        offer(cluster, "n1", "a")
        claim(cluster, "first")
        claim(cluster, "second")
        patch, under_way, go_on = scheduler.reserver._calls._client.patch, asyncio.Event(), asyncio.Event()

        async def slow(path: str, body: Any, **options: Any) -> Any:
            if "/resourceclaims/first" in path and path.endswith("/status") == (while_written == "status"):
                under_way.set()
                await go_on.wait()
            return await patch(path, body, **options)

        scheduler.reserver._calls._client.patch = slow  # type: ignore[method-assign]
        cluster.create(claiming("p", "first"))
        await asyncio.wait_for(under_way.wait(), 60)
        cluster.delete("p")
        await until(lambda: scheduler.state.pod("default/p") is None)
        cluster.create(claiming("q", "second"))
        await until(lambda: cluster.bound("q") or cluster.condition("q"))
        go_on.set()
        await until(lambda: cluster.bound("q"))
        await until(lambda: not devices(cluster, "first"))
        assert devices(cluster, "second") == {"a"}


async def test_devices_of_a_write_whose_answer_is_lost_are_free_again_once_the_claim_is_read() -> None:
    async with live([small("n1")]) as cluster, cluster.running(settle_seconds=0.1) as scheduler:
        offer(cluster, "n1", "a")
        claim(cluster, "first")
        claim(cluster, "second")
        cluster.server.faults.fail(503, method="PATCH", path="*/resourceclaims/first/status", times=1)
        cluster.create(claiming("p", "first"))
        await until(lambda: scheduler.reserver._asking)
        cluster.delete("p")
        cluster.create(claiming("q", "second"))
        await until(lambda: cluster.bound("q"))
        assert devices(cluster, "second") == {"a"} and not devices(cluster, "first")
