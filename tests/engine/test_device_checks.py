# SPDX-License-Identifier: Apache-2.0
"""Planned devices that another writer takes or removes while a claim is being written (dra.md 12)."""

from collections.abc import Callable
from typing import Any

import pytest

from koordpy.devices.dra.ledger.claim_book import claim_book
from koordpy.engine.scheduler import Scheduler
from koordpy.pods.claim_refs import DeviceId
from tests.engine.live import Live, live, small, until
from tests.engine.manifests import CLAIMS_OF_DEVICES
from tests.engine.test_device_conditions import SLICES, shared_device, sharing
from tests.engine.test_reservations import DRIVER, claim, claiming, devices, devices_of, offer, status

COUNTERS = "counters"


def meanwhile(scheduler: Scheduler, ending: str, act: Callable[[], None], seen: Callable[[], bool] | None) -> None:
    """Acts as another writer right before the first request to a path that ends so, and waits until it is seen."""
    patch = scheduler.reserver._calls._client.patch
    done = False

    async def late(path: str, body: Any, **options: Any) -> Any:
        nonlocal done
        if path.endswith(ending) and not done:
            done = True
            act()
            if seen is not None:
                await until(seen)
        return await patch(path, body, **options)

    scheduler.reserver._calls._client.patch = late  # type: ignore[method-assign]


def allocate(cluster: Live, name: str, device: str, **more: Any) -> None:
    """Another scheduler allocates a device to a claim that it made."""
    claim(cluster, name)
    result = {"request": "gpus", "driver": DRIVER, "pool": "n1", "device": device, **more}
    allocation = {"devices": {"results": [result]}}
    user = {"resource": "pods", "name": "foreign", "uid": "uid-foreign"}
    changed = {"allocation": allocation, "reservedFor": [user]}
    cluster.server.store.update(
        CLAIMS_OF_DEVICES, name, lambda obj: {**obj, "status": changed}, namespace="default", status=True
    )


def partitions(cluster: Live) -> None:
    """A whole device, and a half of it, on one counter."""
    offer(cluster, "n1", "whole")
    pool = {"name": "n1", "generation": 2, "resourceSliceCount": 2}
    parts = [
        {"name": name, "consumesCounters": [{"counterSet": "card", "counters": {"slices": {"value": str(number)}}}]}
        for name, number in (("whole", 2), ("half", 1))
    ]
    spec = {"driver": DRIVER, "nodeName": "n1", "pool": pool}
    store = cluster.server.store
    sets = [{"name": "card", "counters": {"slices": {"value": "2"}}}]
    store.create(SLICES, {"metadata": {"name": COUNTERS}, "spec": {**spec, "sharedCounters": sets}})
    store.update(SLICES, "of-n1", lambda obj: {**obj, "spec": {**spec, "devices": parts}})


@pytest.mark.parametrize("is_seen", [True, False], ids=["seen before the write", "seen after it"])
@pytest.mark.parametrize("kind", ["whole", "share", "counter"])
async def test_devices_that_another_scheduler_takes_are_given_back(kind: str, is_seen: bool) -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        if kind == "share":
            shared_device(cluster)
            sharing(cluster, "data", "30Gi")
            more = {"shareID": "11111111-0000-4000-8000-000000000001", "consumedCapacity": {"memory": "70Gi"}}
            act, taken = lambda: allocate(cluster, "theirs", "a", **more), "a"
        elif kind == "counter":
            partitions(cluster)
            claim(cluster, "data")
            act, taken = lambda: allocate(cluster, "theirs", "half"), "half"
        else:
            offer(cluster, "n1", "a")
            claim(cluster, "data")
            act, taken = lambda: allocate(cluster, "theirs", "a"), "a"

        def seen() -> bool:
            return bool(claim_book(scheduler.state.families).objects.users(_device(taken)))

        ending = "/resourceclaims/data" if is_seen else "/resourceclaims/data/status"
        meanwhile(scheduler, ending, act, seen if is_seen else None)
        cluster.create(claiming("p", "data"))
        await until(lambda: _exists(cluster, "theirs"))
        await until(lambda: "cannot allocate all claims" in cluster.condition("p").get("message", ""))
        assert status(cluster, "data") == {} and not cluster.bound("p")


def _exists(cluster: Live, name: str) -> bool:
    return any(one["metadata"]["name"] == name for one in cluster.server.store.list(CLAIMS_OF_DEVICES))


def _device(name: str) -> DeviceId:
    return DeviceId(DRIVER, "n1", name)


async def test_a_device_that_leaves_its_slice_before_the_write_is_not_allocated() -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        offer(cluster, "n1", "a")
        claim(cluster, "data")
        changed = devices_of("n1", "b")["spec"] | {"pool": {"name": "n1", "generation": 2, "resourceSliceCount": 1}}

        def act() -> None:
            cluster.server.store.update(SLICES, "of-n1", lambda obj: {**obj, "spec": changed})

        def seen() -> bool:
            return _device("b") in claim_book(scheduler.state.families).objects.offers.by_id

        meanwhile(scheduler, "/resourceclaims/data", act, seen)
        cluster.create(claiming("p", "data"))
        await until(lambda: cluster.bound("p"))
        assert devices(cluster, "data") == {"b"}
