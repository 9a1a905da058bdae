# SPDX-License-Identifier: Apache-2.0
"""Devices with binding conditions and devices that several claims share, live; and gates that the API server lacks."""

import copy
import uuid
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from koordpy.config.dra_settings import Dra
from tests.engine.card_scenes import ask_for_conditions, report
from tests.engine.live import QUICK, Live, in_virtual_time, live, small, until
from tests.engine.test_extended_claims import asking, bare
from tests.engine.test_extended_claims import offer as offer_gpus
from tests.engine.test_releases import finalizers
from tests.engine.test_reservations import CLAIMS_OF_DEVICES, DRIVER, claim, claiming, devices, offer, status, users

SLICES = "resourceslices.resource.k8s.io"


async def test_a_pod_is_bound_when_its_devices_are_ready() -> None:
    async with live([small("n1")]) as cluster, cluster.running():
        offer(cluster, "n1", "a")
        ask_for_conditions(cluster)
        claim(cluster, "data")
        cluster.create(claiming("p", "data"))
        await until(lambda: users(cluster, "data") == {"p"})
        (result,) = status(cluster, "data")["allocation"]["devices"]["results"]
        assert (result["bindingConditions"], result["bindingFailureConditions"]) == (["ready"], ["broken"])
        assert status(cluster, "data")["allocation"]["allocationTimestamp"].endswith("Z")
        note = "waiting for binding conditions for device on node n1"
        await until(lambda: ("BindingConditionsPending", "Scheduling", note) in told(cluster))
        assert not cluster.bound("p")
        report(cluster, "data")
        await until(lambda: cluster.bound("p"))


def told(cluster: Live) -> set[tuple[str, str, str]]:
    return {(one["reason"], one["action"], one["message"]) for one in cluster.events()}


async def test_a_failed_device_frees_the_claim_and_the_pod_says_why() -> None:
    async with live([small("n1")]) as cluster, cluster.running():
        offer(cluster, "n1", "a")
        ask_for_conditions(cluster)
        claim(cluster, "data")
        cluster.create(claiming("p", "data"))
        await until(lambda: users(cluster, "data") == {"p"})
        cluster.server.store.remove(SLICES, "of-n1")
        report(cluster, "data", "broken")
        text = 'claim data binding failed: reason=Attached, message="by the fabric"'
        await until(lambda: text in cluster.condition("p").get("message", "") or status(cluster, "data") == {})
        await until(lambda: status(cluster, "data") == {} and not finalizers(cluster, "data"))
        pool = {"name": "n1", "generation": 2, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": "n1", "pool": pool, "devices": [{"name": "b"}]}
        cluster.server.store.create(SLICES, {"metadata": {"name": "new"}, "spec": spec})
        await until(lambda: cluster.bound("p"))
        assert devices(cluster, "data") == {"b"}


@in_virtual_time
async def test_devices_that_do_not_become_ready_in_time_are_free_again() -> None:
    settings = replace(QUICK, config=structs.replace(QUICK.config, dra=Dra(binding_timeout=20.0)))
    async with live([small("n1")]) as cluster, cluster.running(settings):
        offer(cluster, "n1", "a")
        ask_for_conditions(cluster)
        claim(cluster, "data")
        cluster.create(claiming("p", "data"))
        await until(lambda: users(cluster, "data") == {"p"})
        await until(lambda: "device binding timeout" in cluster.condition("p").get("message", ""))
        await until(lambda: users(cluster, "data") == {"p"})
        report(cluster, "data")
        await until(lambda: cluster.bound("p"))


async def test_a_pod_that_is_deleted_while_it_waits_leaves_nothing_reserved() -> None:
    async with live([small("n1")]) as cluster, cluster.running():
        offer(cluster, "n1", "a")
        ask_for_conditions(cluster)
        claim(cluster, "data")
        cluster.create(claiming("p", "data"))
        await until(lambda: users(cluster, "data") == {"p"})
        cluster.delete("p")
        await until(lambda: status(cluster, "data") == {})


# -- shares ------------------------------------------------------------------------------------------------------------


def shared_device(cluster: Live) -> None:
    """One device of 80Gi that many claims may share, at least 10Gi each."""
    offer(cluster, "n1", "a")
    policy = {"default": "20Gi", "validRange": {"min": "10Gi"}}
    capacity = {"memory": {"value": "80Gi", "requestPolicy": policy}}
    device = {"name": "a", "allowMultipleAllocations": True, "capacity": capacity}
    change = {"devices": [device]}
    cluster.server.store.update(SLICES, "of-n1", lambda obj: {**obj, "spec": {**obj["spec"], **change}})


def sharing(cluster: Live, name: str, memory: str) -> None:
    exactly = {"deviceClassName": "gpu", "count": 1, "capacity": {"requests": {"memory": memory}}}
    spec = {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}
    cluster.server.store.create(CLAIMS_OF_DEVICES, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})


async def test_claims_share_a_device_with_own_random_ids_and_amounts() -> None:
    async with live([small("n1")]) as cluster, cluster.running():
        shared_device(cluster)
        for name, memory in (("one", "30Gi"), ("two", "5Gi"), ("three", "60Gi")):
            sharing(cluster, name, memory)
            cluster.create(claiming(name, name, cpu="0"))
        await until(lambda: len(cluster.places()) == 2)
        results = {name: status(cluster, name)["allocation"]["devices"]["results"][0] for name in cluster.places()}
        amounts = {name: one["consumedCapacity"]["memory"] for name, one in results.items()}
        assert amounts.items() <= {"one": "30Gi", "two": "10Gi", "three": "60Gi"}.items()
        ids = {uuid.UUID(one["shareID"]) for one in results.values()}
        assert len(ids) == 2 and all(one.version == 4 for one in ids)


# -- gates -------------------------------------------------------------------------------------------------------------


def without(scheduler: Any, *fields: str) -> None:
    """The API server drops fields of results, as one without their gate does."""
    patch = scheduler.reserver._calls._client.patch

    async def dropping(path: str, body: Any, **options: Any) -> Any:
        body = copy.deepcopy(body)
        written = body.get("status") or {}
        allocation = written.get("allocation") or {}
        for part in (written, allocation, *allocation.get("devices", {}).get("results", [])):
            for field in fields:
                part.pop(field, None)
        return await patch(path, body, **options)

    scheduler.reserver._calls._client.patch = dropping


@pytest.mark.parametrize(
    ("field", "gate"), [("shareID", "DRAConsumableCapacity"), ("bindingConditions", "DRADeviceBindingConditions")]
)
async def test_a_dropped_field_is_undone_and_its_devices_are_refused(
    field: str, gate: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        shared_device(cluster)
        if field == "bindingConditions":
            ask_for_conditions(cluster)
        without(scheduler, field)
        claim(cluster, "data")
        cluster.create(claiming("p", "data"))
        await until(lambda: f"1 unsupported: {gate} is off" in cluster.condition("p").get("message", ""))
        assert status(cluster, "data") == {} and not cluster.bound("p")
        text = f"the API server dropped {field}: is {gate} on?"
        assert [one.message for one in caplog.records if one.message == text] == [text]
        await until(lambda: ("FeatureDisabled", "Validating", text) in told(cluster))


async def test_without_the_gate_of_extended_resources_they_are_refused() -> None:
    async with live([bare("n1")]) as cluster, cluster.running() as scheduler:
        offer_gpus(cluster, "n1", 2)
        without(scheduler, "extendedResourceClaimStatus")
        cluster.create(asking("p"))
        await until(lambda: "1 unsupported: DRAExtendedResource is off" in cluster.condition("p").get("message", ""))
        text = "the API server dropped extendedResourceClaimStatus: is DRAExtendedResource on?"
        await until(lambda: ("FeatureDisabled", "Validating", text) in told(cluster))
        await until(lambda: not cluster.server.store.list(CLAIMS_OF_DEVICES))
