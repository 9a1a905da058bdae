# SPDX-License-Identifier: Apache-2.0
"""What wakes whom: ended nominations, storage, devices (kube-parity.md 4.3)."""

import asyncio
from typing import Any

import pytest
from msgspec import convert

from koordpy.api import keys
from koordpy.api.claim_objects import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from koordpy.api.custom_objects import Device, DeviceAllocation, DeviceStatus
from koordpy.api.objects import Condition, ObjectMeta, Pod
from koordpy.api.storage_objects import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from koordpy.engine.wakeups import BY_FILTER, Wake, helpful, of_device, of_devices, of_pod, of_storage
from koordpy.pods.pod_info import PodInfo, pod_info
from tests.engine.live import Live, gang, in_virtual_time, live, pod, small, until
from tests.engine.storage import HOST, LOCAL, MADE, Storage, pod_with

NAME = {"metadata": {"name": "a", "namespace": "ns"}}
REFERENCE = {"namespace": "ns", "name": "c", "uid": "u"}


def info(node: str = "", nominated: str = "", cpu: str = "1", **meta: Any) -> PodInfo:
    manifest = {
        "metadata": {**NAME["metadata"], **meta},
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
        "status": {"nominatedNodeName": nominated},
    }
    return pod_info(convert(manifest, Pod), scheduler_names=frozenset({"koord-scheduler"}))


@pytest.mark.parametrize(
    ("before", "after", "room"),
    [
        (info(nominated="n1"), info(node="n2"), True),
        (info(nominated="n1"), info(node="n1"), False),
        (info(nominated="n1"), None, True),
        (info(nominated="n1"), info(), True),
        (info(nominated="n1"), info(nominated="n2"), True),
        (info(nominated="n1"), info(nominated="n1"), False),
        (info(nominated="n1", cpu="2"), info(nominated="n1", cpu="1"), True),
        (info(nominated="n1", cpu="1"), info(nominated="n1", cpu="2"), False),
        (info(nominated="n1"), info(nominated="n1", deletionTimestamp="2026-01-01T00:00:00Z"), True),
        (info(), info(nominated="n1"), False),
    ],
)
def test_room_that_a_nomination_kept_is_free_once_it_ends(before: PodInfo, after: PodInfo | None, room: bool) -> None:
    assert bool(of_pod(before, after) & Wake.CAPACITY_FREED) is room


@pytest.mark.parametrize("gang", [False, True])
def test_a_device_whose_health_changes_may_help_a_pod_that_lacks_a_resource(gang: bool) -> None:
    before, after = (a(Device, spec={"devices": [{"type": "gpu", "minor": 0, "health": one}]}) for one in (True, False))
    assert of_device(before, after) & helpful(["NodeResourcesFit"], gang=gang)


@pytest.mark.parametrize("plugin", sorted(BY_FILTER))
@pytest.mark.parametrize("gang", [False, True])
def test_a_quota_that_changes_may_open_victims_to_whoever_waits(plugin: str, gang: bool) -> None:
    assert Wake.QUOTA in helpful([plugin], gang=gang)


def a(kind: Any, **fields: Any) -> Any:
    return convert({**NAME, **fields}, kind)


def csi(count: int | None) -> Any:
    allocatable = {"allocatable": {"count": count}} if count is not None else {}
    return a(CSINode, spec={"drivers": [{"name": "d", **allocatable}]})


UNREAD = convert({"metadata": {"name": "a", "annotations": {keys.UNREADABLE: "spec: a number"}}}, CSINode)
FREE = a(PersistentVolume, spec={"storageClassName": "s"}, status={"phase": "Available"})
TAKEN = a(PersistentVolume, spec={"storageClassName": "s", "claimRef": REFERENCE}, status={"phase": "Bound"})
CLAIM = a(PersistentVolumeClaim)
ASKS, ASKS_NOT = a(CSIDriver, spec={"storageCapacity": True}), a(CSIDriver)


@pytest.mark.parametrize(
    ("before", "after", "wake", "claim"),
    [
        (None, FREE, Wake.VOLUME, ""),
        (TAKEN, FREE, Wake.VOLUME, ""),
        (FREE, TAKEN, Wake.NOTHING, "ns/c"),
        (None, TAKEN, Wake.NOTHING, "ns/c"),
        (FREE, None, Wake.NOTHING, ""),
        (FREE, a(PersistentVolume, spec={"storageClassName": "s"}, status={"phase": "Available"}), Wake.NOTHING, ""),
        (None, CLAIM, Wake.NOTHING, "ns/a"),
        (CLAIM, a(PersistentVolumeClaim, spec={"volumeName": "v"}), Wake.NOTHING, "ns/a"),
        (CLAIM, None, Wake.NOTHING, ""),
        (None, a(StorageClass, provisioner="p"), Wake.STORAGE_CLASS, ""),
        (None, csi(3), Wake.NOTHING, ""),
        (csi(3), csi(4), Wake.ATTACHABLE, ""),
        (csi(3), csi(None), Wake.ATTACHABLE, ""),
        (csi(4), csi(3), Wake.NOTHING, ""),
        (csi(3), None, Wake.ATTACHABLE, ""),
        (UNREAD, csi(3), Wake.ATTACHABLE, ""),
        (None, a(VolumeAttachment), Wake.NOTHING, ""),
        (a(VolumeAttachment), None, Wake.ATTACHABLE, ""),
        (None, ASKS, Wake.NOTHING, ""),
        (ASKS, ASKS_NOT, Wake.STORAGE_CAPACITY, ""),
        (ASKS_NOT, ASKS, Wake.NOTHING, ""),
        (ASKS, None, Wake.STORAGE_CAPACITY, ""),
        (None, a(CSIStorageCapacity, capacity="1Gi"), Wake.STORAGE_CAPACITY, ""),
        (a(CSIStorageCapacity), None, Wake.NOTHING, ""),
    ],
)
def test_a_change_of_storage_wakes_those_that_it_can_help(before: Any, after: Any, wake: Wake, claim: str) -> None:
    assert of_storage(before, after) == (wake, claim)


FIXED = a(ResourceClaim, status={"allocation": {}, "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]})
SHARED = a(
    ResourceClaim,
    status={"allocation": {}, "reservedFor": [{"resource": "pods", "name": "p", "uid": uid} for uid in ("u", "gone")]},
)
LEFT = a(ResourceClaim, status={"allocation": {}})
OPEN = a(ResourceClaim)
MAPPING = a(DeviceClass, spec={"extendedResourceName": "nvidia.com/gpu"})
OFFERED = Wake.DYNAMIC_DEVICE | Wake.DEVICE_OFFER


@pytest.mark.parametrize(
    ("before", "after", "wake", "claim"),
    [
        (None, OPEN, Wake.NOTHING, "ns/a"),
        (OPEN, FIXED, Wake.NOTHING, "ns/a"),
        (FIXED, SHARED, Wake.NOTHING, "ns/a"),
        (SHARED, FIXED, Wake.DYNAMIC_DEVICE, "ns/a"),
        (FIXED, LEFT, Wake.NOTHING, "ns/a"),
        (LEFT, OPEN, Wake.DYNAMIC_DEVICE, "ns/a"),
        (FIXED, None, Wake.DYNAMIC_DEVICE, "ns/a"),
        (None, a(ResourceSlice), OFFERED, ""),
        (a(ResourceSlice), None, OFFERED, ""),
        (None, a(DeviceTaintRule), OFFERED, ""),
        (a(DeviceTaintRule), None, OFFERED, ""),
        (None, a(DeviceClass), OFFERED, ""),
        (a(DeviceClass), None, Wake.NOTHING, ""),
        (None, MAPPING, OFFERED | Wake.EXTENDED_RESOURCE, ""),
        (MAPPING, a(DeviceClass), OFFERED | Wake.EXTENDED_RESOURCE, ""),
        (MAPPING, None, OFFERED | Wake.EXTENDED_RESOURCE, ""),
    ],
)
def test_a_change_of_devices_wakes_those_that_it_can_help(before: Any, after: Any, wake: Wake, claim: str) -> None:
    assert of_devices(before, after) == (wake, claim)


def nominated(cluster: Live, name: str, to: str) -> None:
    cluster.server.store.update(
        "pods",
        name,
        lambda obj: {**obj, "status": {**obj.get("status", {}), "nominatedNodeName": to}},
        namespace="default",
        status=True,
    )


@pytest.mark.parametrize("end", ["deleted", "cleared", "bound elsewhere"])
@in_virtual_time
async def test_a_pod_kept_out_by_a_nomination_is_bound_when_that_ends(end: str) -> None:
    async with live([small("n1")]) as cluster, cluster.running():
        cluster.create(pod("vip", gpus=0, cpu="4", memory="1Gi", scheduler_name="another"))
        nominated(cluster, "vip", "n1")
        await asyncio.sleep(0.05)
        cluster.pod("p", cpu="2")
        await until(lambda: "Insufficient cpu" in cluster.condition("p").get("message", ""))
        if end == "deleted":
            cluster.delete("vip")
        elif end == "cleared":
            nominated(cluster, "vip", "")
        else:
            cluster.bind("vip", "elsewhere")
        await until(lambda: cluster.bound("p"))
        assert cluster.places()["p"] == "n1"


@pytest.mark.parametrize("change", ["one succeeds", "one more comes"])
@in_virtual_time
async def test_a_gang_of_which_too_few_wait_is_tried_when_one_of_its_own_changes(change: str) -> None:
    async with live([small("n1")]) as cluster, cluster.running():
        group, *members = gang("g", 4, min_member=2, gpus=0, annotations={keys.GANG_MATCH_POLICY: "only-waiting"})
        cluster.create(group, *members[:2])
        await until(lambda: cluster.bound("g-0", "g-1"))
        cluster.create(members[2])
        too_few = "gang default/g: waiting for members, 1 of minMember 2 wait or have Succeeded (only-waiting)"
        await until(lambda: cluster.condition("g-2").get("message") == too_few)
        if change == "one succeeds":
            done = lambda old: {**old, "status": {**old["status"], "phase": "Succeeded"}}  # noqa: E731
            cluster.server.store.update("pods", "g-0", done, namespace="default", status=True)
        else:
            cluster.create(members[3])
        await until(lambda: cluster.bound("g-2"))


async def test_claims_of_others_wake_nobody() -> None:
    """A pod waits for a volume; claims come, are selected and bound, and it is not tried once more."""
    kinds = ("pods", "persistentvolumes", "persistentvolumeclaims", "storageclasses.storage.k8s.io")
    async with live([small("n1", labels={HOST: "n1"})]) as cluster, cluster.running() as scheduler:
        storage = Storage(cluster.server)
        storage.classes()
        storage.claim("mine", LOCAL)
        cluster.create(pod_with("p", "mine"))
        await until(lambda: cluster.condition("p"))
        await cluster.at_rest(scheduler, *kinds)
        tried = cluster.planner.tried("default/p")
        for i in range(3):
            storage.claim(f"theirs-{i}", MADE)
            storage.volume(f"v-{i}", "n1", class_name=MADE)
            storage.take(f"v-{i}", f"theirs-{i}")
        await cluster.at_rest(scheduler, *kinds)
        # each volume was free for a moment
        assert cluster.planner.tried("default/p") - tried <= 3
        tried = cluster.planner.tried("default/p")
        for i in range(3):
            storage.give(f"v-{i}", f"theirs-{i}")
        await cluster.at_rest(scheduler, *kinds)
        assert cluster.planner.tried("default/p") == tried
        storage.volume("v", "n1")
        async with storage.controller():
            await until(lambda: cluster.bound("p"))


@in_virtual_time
async def test_a_dry_run_counts_a_pod_that_it_would_bind_once() -> None:
    async with live([small("n1")]) as cluster, cluster.running(dry_run=True) as scheduler:
        for i in range(3):
            cluster.pod(f"p{i}")
        counted = scheduler.metrics.attempts.labels("scheduled", "koord-scheduler")
        await until(lambda: counted._value.get() == 3)
        cluster.pod("later")
        cluster.server.store.update(
            "pods",
            "p0",
            lambda obj: {**obj, "metadata": {**obj["metadata"], "labels": {"a": "b"}}},
            namespace="default",
        )
        await until(lambda: counted._value.get() == 4)
        await asyncio.sleep(0.1)
        assert counted._value.get() == 4 and cluster.places() == {}


def device(unavailable: str = "", allocations: int = 0) -> Device:
    conditions = [Condition(type="DeliveryUnavailable", status=unavailable)] if unavailable else []
    entries = [DeviceAllocation(type="gpu")] * allocations
    return Device(metadata=ObjectMeta(name="n1"), status=DeviceStatus(conditions=conditions, allocations=entries))


@pytest.mark.parametrize(
    ("before", "after", "wake"),
    [
        (device("True"), device("False"), Wake.DEVICE),
        (device("True"), device(), Wake.DEVICE),
        (device("False"), device("True"), Wake.DEVICE),
        (device(), device("False"), Wake.NOTHING),
        (device("True"), device("True", allocations=1), Wake.NOTHING),
    ],
)
def test_of_a_device_s_status_only_delivery_counts(before: Device, after: Device, wake: Wake) -> None:
    assert of_device(before, after) == wake
