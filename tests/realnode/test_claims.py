# SPDX-License-Identifier: Apache-2.0
"""Resource claims on real nodes: each container has exactly the devices that koordpy allocated to its claims."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from koordpy.api import keys
from tests.e2e.client import Json
from tests.loudly import skip_loudly
from tests.realnode.claims import (
    DRIVER,
    EXTENDED,
    ClaimDriver,
    Offer,
    allocated,
    cards,
    channel_template,
    channels,
    claim,
    claim_template,
    driving,
    seen_devices,
)
from tests.realnode.needs import containerd_major
from tests.realnode.work import Work, container, pod, pod_group, pod_spec

NODE = "n1"


@pytest.fixture(autouse=True)
def cdi(request: pytest.FixtureRequest, able: None) -> None:
    """Skips where the runtime gives containers no CDI devices."""
    if containerd_major() < 2:
        skip_loudly(request, "resource claims on real nodes", "they need containerd 2: make e2e-realnode CONTAINERD=2")


def claiming(name: str, *, gang: str = "", **source: str) -> Json:
    """A pod with one claim. source: resourceClaimName or resourceClaimTemplateName."""
    main = container()
    main["resources"]["claims"] = [{"name": "devices"}]
    return pod(name, pod_spec(main, resourceClaims=[{"name": "devices", **source}]), gang=gang)


async def claims_of(work: Work) -> dict[str, list[str]]:
    """Pod -> devices of its claims, by the status of the claims."""
    path = f"/apis/resource.k8s.io/v1/namespaces/{work.namespace}/resourceclaims"
    found: dict[str, list[str]] = {}
    for one in await work.api.items(path):
        for consumer in one.get("status", {}).get("reservedFor", ()):
            found[consumer["name"]] = sorted(found.get(consumer["name"], []) + allocated(one))
    return found


async def check(
    work: Work, offer: Offer, drivers: dict[str, ClaimDriver], counts: dict[str, int]
) -> dict[str, list[str]]:
    """Waits until the pods run, and compares claims, drivers and containers; pod -> devices. counts: pod -> devices."""
    await work.run(counts)
    booked = await claims_of(work)
    seen = {name: seen_devices(work, name, offer) for name in counts}
    assert seen == {name: booked[name] for name in counts}
    assert {name: len(devices) for name, devices in seen.items()} == counts
    assert not any(driver.prepared_twice for driver in drivers.values())
    return seen


async def test_pods_that_are_created_at_once_have_the_devices_of_their_claims(work: Work) -> None:
    offer = cards(8)
    async with driving(work, [NODE], offer) as drivers:
        odd = f'device.attributes["{DRIVER}"].model == "b"'
        templates = {"a": "two", "b": "one", "c": "odd", "d": "one", "e": "two"}
        work.apply(
            claim_template("two", 2),
            claim_template("one", 1),
            claim_template("odd", 2, odd),
            *(claiming(name, resourceClaimTemplateName=template) for name, template in templates.items()),
        )
        seen = await check(work, offer, drivers, {"a": 2, "b": 1, "c": 2, "d": 1, "e": 2})
        assert all(int(device.removeprefix("card")) % 2 for device in seen["c"])
        given = Counter(device for devices in seen.values() for device in devices)
        assert set(given.values()) == {1} and len(given) == 8
        work.apply(claiming("late", resourceClaimTemplateName="two"))
        await work.waits("late", "cannot allocate all claims")
        await work.delete("a")
        await check(work, offer, drivers, {"late": 2})


async def test_pods_that_share_a_claim_have_its_devices(work: Work) -> None:
    offer = cards(4)
    async with driving(work, [NODE], offer) as drivers:
        work.apply(claim("shared", 2), *(claiming(name, resourceClaimName="shared") for name in ("x", "y")))
        seen = await check(work, offer, drivers, {"x": 2, "y": 2})
        assert seen["x"] == seen["y"]


async def test_a_gang_whose_pods_ask_for_an_extended_resource_gets_devices_of_the_class(work: Work) -> None:
    offer = cards(8)
    async with driving(work, [NODE], offer) as drivers:
        members = [f"member-{number}" for number in range(3)]
        limits = {EXTENDED: "2"}
        main = container(requests={"cpu": "1m", **limits}, limits=limits)
        work.apply(pod_group("cards", 3), *(pod(name, pod_spec(main), gang="cards") for name in members))
        seen = await check(work, offer, drivers, dict.fromkeys(members, 2))
        assert len({device for devices in seen.values() for device in devices}) == 6


async def test_a_compute_domain_of_two_nodes_starts_in_one_block_and_has_a_channel_on_each(
    work: Work, blocks: dict[str, str]
) -> None:
    """NVIDIA's controller makes the template, and its driver the channels; both are stand-ins here. n1 and n3 are in
    one block, as nodes of one NVLink rack would be."""
    offer = channels()
    gather = json.dumps({"gatherStrategy": [{"layer": "blockLayer", "strategy": "MustGather"}]})
    async with driving(work, sorted(blocks), offer) as drivers:
        for domain in ("first", "second"):
            work.apply(
                channel_template(f"{domain}-channel"),
                pod_group(domain, 2, {keys.GANG_TOPOLOGY: gather}),
                *(claiming(f"{domain}-{i}", gang=domain, resourceClaimTemplateName=f"{domain}-channel") for i in "01"),
            )
            if domain == "first":
                seen = await check(work, offer, drivers, {"first-0": 1, "first-1": 1})
                assert seen == {"first-0": ["channel-0"], "first-1": ["channel-0"]}
                pods = await work.pods()
                assert {pods[name]["spec"]["nodeName"] for name in seen} == {"n1", "n3"}
        # a node has one channel, and the free one is in the other block
        await work.waits("second-0", "second")
        await work.delete("first-0", "first-1")
        await check(work, offer, drivers, {"second-0": 1, "second-1": 1})
