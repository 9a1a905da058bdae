# SPDX-License-Identifier: Apache-2.0
"""Resource claims of PodGroups, live, and what wakes pods that wait for devices: classes, taint rules, freed claims."""

from typing import Any

import pytest

from koordpy.engine.binding.claim_calls import FINALIZER
from tests.engine.live import LONG_LEASE, Live, gang, in_virtual_time, live, pod, until
from tests.engine.test_extended_claims import DRIVER, asking, bare, given, offer
from tests.engine.test_releases import finalizers
from tests.engine.test_reservations import CLAIMS_OF_DEVICES, devices, status
from tests.engine.test_workloads import serve

GROUPS = "podgroups.scheduling.k8s.io"
RULES = "devicetaintrules.resource.k8s.io"
ENTRY = {"name": "gpus", "resourceClaimTemplateName": "t"}


def group(cluster: Live, count: int) -> str:
    """A PodGroup with an entry of a template; returns its uid."""
    spec = {"schedulingPolicy": {"gang": {"minCount": count}}, "resourceClaims": [ENTRY]}
    cluster.server.store.create(GROUPS, {"metadata": {"name": "g", "namespace": "default"}, "spec": spec})
    return str(cluster.server.store.get(GROUPS, "g", "default")["metadata"]["uid"])


def make_claim(cluster: Live, uid: str) -> None:
    """What kube-controller-manager does for the group: its claim, and the claim's name in the group's status."""
    owner = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "name": "g", "uid": uid, "controller": True}
    meta = {"name": "made", "namespace": "default", "ownerReferences": [owner]}
    request = {"name": "gpus", "exactly": {"deviceClassName": DRIVER, "count": 2}}
    cluster.server.store.create(CLAIMS_OF_DEVICES, {"metadata": meta, "spec": {"devices": {"requests": [request]}}})
    made = {"resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": "made"}]}
    cluster.server.store.update(GROUPS, "g", lambda obj: {**obj, "status": made}, namespace="default", status=True)


def member(name: str) -> dict[str, Any]:
    made = pod(name, gpus=0, cpu="1", memory="1Gi")
    made["spec"] |= {"schedulingGroup": {"podGroupName": "g"}, "resourceClaims": [ENTRY]}
    return made


@pytest.mark.parametrize("claim_first", [True, False])
async def test_the_claim_of_a_group_is_allocated_once_and_reserved_for_the_group(claim_first: bool) -> None:
    async with live([bare("n1"), bare("n2")]) as cluster:
        serve(cluster, "scheduling.k8s.io", "v1beta1", "PodGroup")
        async with cluster.running():
            offer(cluster, "n2", 2)
            uid = group(cluster, 2)
            if claim_first:
                make_claim(cluster, uid)
            cluster.create(member("a"), member("b"))
            if not claim_first:
                await until(lambda: "waiting for the resourceclaim" in cluster.condition("a").get("message", ""))
                make_claim(cluster, uid)
            await until(lambda: cluster.bound("a", "b"))
            assert cluster.places() == {"a": "n2", "b": "n2"}
            consumer = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": uid}
            assert status(cluster, "made")["reservedFor"] == [consumer]
            assert devices(cluster, "made") == {"gpu-0", "gpu-1"}


async def test_the_claim_of_a_group_is_free_again_if_no_member_is_bound() -> None:
    async with live([bare("n1")]) as cluster:
        serve(cluster, "scheduling.k8s.io", "v1beta1", "PodGroup")
        async with cluster.running() as scheduler:
            offer(cluster, "n1", 2)
            fault = cluster.server.faults.fail(403, method="POST", path="*/binding")
            make_claim(cluster, group(cluster, 2))
            cluster.create(member("a"), member("b"))
            await until(lambda: fault.hits >= 2)
            for name in ("a", "b"):
                cluster.delete(name)
            await until(lambda: scheduler.releaser.released and status(cluster, "made") == {})
            await until(lambda: FINALIZER not in finalizers(cluster, "made"))


async def test_a_member_that_cannot_be_bound_leaves_the_claim_to_the_bound_members() -> None:
    async with live([bare("n1")]) as cluster:
        serve(cluster, "scheduling.k8s.io", "v1beta1", "PodGroup")
        async with cluster.running():
            offer(cluster, "n1", 2)
            fault = cluster.server.faults.fail(403, method="POST", path="*/b/binding", times=2)
            make_claim(cluster, group(cluster, 2))
            cluster.create(member("a"), member("b"))
            await until(lambda: cluster.bound("a") and fault.hits)
            assert devices(cluster, "made") == {"gpu-0", "gpu-1"}
            await until(lambda: cluster.bound("b"))
            assert cluster.places() == {"a": "n1", "b": "n1"}


# -- wake-ups ----------------------------------------------------------------------------------------------------------


async def test_a_class_that_maps_the_resource_wakes_the_pod_and_the_gang() -> None:
    async with live([bare("n1"), bare("n2")]) as cluster, cluster.running():
        offer(cluster, "n1", 4)
        offer(cluster, "n2", 2)
        store = cluster.server.store
        found = store.get("deviceclasses.resource.k8s.io", DRIVER)
        store.remove("deviceclasses.resource.k8s.io", DRIVER)
        cluster.create(asking("p"), *gang("job", 2, gpus=2))
        await until(lambda: "Insufficient" in cluster.condition("p").get("message", ""))
        await until(lambda: cluster.condition("job-0"))
        store.create("deviceclasses.resource.k8s.io", {"metadata": {"name": DRIVER}, "spec": found["spec"]})
        await until(lambda: cluster.bound("p", "job-0", "job-1"))


@in_virtual_time
async def test_a_gang_is_woken_by_new_slices_and_by_the_devices_of_a_deleted_pod() -> None:
    async with live([bare("n1"), bare("n2")]) as cluster, cluster.running(lease=LONG_LEASE):
        offer(cluster, "n1", 2)
        cluster.create(*gang("one", 2, gpus=2))
        await until(lambda: cluster.condition("one-0"))
        offer(cluster, "n2", 2)
        await until(lambda: cluster.bound("one-0", "one-1"))
        cluster.create(*gang("two", 2, gpus=2))
        await until(lambda: cluster.condition("two-0"))
        for name in ("one-0", "one-1"):
            cluster.delete(name)
        await until(lambda: cluster.bound("two-0", "two-1"))
        assert set(given(cluster)) == {"two-0", "two-1"}


async def test_a_taint_rule_keeps_devices_back_until_it_is_deleted() -> None:
    async with live([bare("n1")]) as cluster:
        taint = {"key": "example.com/broken", "effect": "NoSchedule"}
        rule = {"metadata": {"name": "r"}, "spec": {"deviceSelector": {"driver": DRIVER}, "taint": taint}}
        cluster.server.store.create(RULES, rule)
        async with cluster.running():
            offer(cluster, "n1", 2)
            cluster.create(asking("p"))
            await until(lambda: "cannot allocate all claims" in cluster.condition("p").get("message", ""))
            cluster.server.store.remove(RULES, "r")
            await until(lambda: cluster.bound("p"))


async def test_without_the_right_to_read_taint_rules_everything_else_works(caplog: pytest.LogCaptureFixture) -> None:
    async with live([bare("n1")]) as cluster:
        cluster.server.faults.fail(403, path="*/devicetaintrules")
        async with cluster.running():
            offer(cluster, "n1", 2)
            cluster.create(asking("p"))
            await until(lambda: cluster.bound("p"))
    assert any("no right to list and watch devicetaintrules" in record.message for record in caplog.records)
