# SPDX-License-Identifier: Apache-2.0
"""Room that nominations keep, unit by unit: what is given up while another's is being cleared stays given up."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from koordpy.api.claim_objects import ClaimConsumer
from koordpy.api.objects import Pod
from koordpy.devices.family_registry import make_state
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.credentials import ClusterAccess
from koordpy.engine.evictions.eviction_calls import EvictionCalls
from koordpy.engine.evictions.nominations import Nominations
from koordpy.engine.scheduling_queue import UnitQueue
from koordpy.engine.watching.feeds import Feeds
from koordpy.pods.pod_info import PodInfo
from tests.engine.parts import a_context
from tests.planning.node_rules import node
from tests.planning.test_filter_dra import CLASS, asks, held, offers, resource_claim, user


class SlowCalls(EvictionCalls):
    """Patches that wait for `go`; `sent` says whose nomination was taken back."""

    def __init__(self, client: ApiClient) -> None:
        super().__init__(a_context(client=client))
        self.go, self.under_way, self.sent = asyncio.Event(), asyncio.Event(), []

    async def patch(self, info: PodInfo, body: Mapping[str, Any]) -> bool:
        self.under_way.set()
        await self.go.wait()
        self.sent.append(info.key)
        return True


def nominated(name: str, node: str) -> Pod:
    wire = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"schedulerName": "koord-scheduler", "containers": [{"name": "c"}]},
        "status": {"phase": "Pending", "nominatedNodeName": node},
    }
    return msgspec.convert(wire, Pod)


async def test_a_unit_that_is_refused_while_another_is_given_up_ends_no_loop() -> None:
    state = make_state(scheduler_names=("koord-scheduler",))
    for name in ("a", "b"):
        state.upsert(nominated(name, "a-node-that-is-gone"))
    async with ApiClient(ClusterAccess("http://127.0.0.1:9")) as client:
        calls = SlowCalls(client)
        queue = UnitQueue()
        feeds = Feeds(client, state, queue)
        for info in state.pods():
            feeds.pods.enqueue(info, event="PodAdd")
        (tried, other) = queue.take(light_pods=2)
        nominations = Nominations(a_context(feeds=feeds), calls)
        nominations.restore()
        looking = asyncio.create_task(nominations.look())
        await asyncio.wait_for(calls.under_way.wait(), 60)
        waits = state.pod("default/b")
        assert waits is not None
        nominations.refused("default/b", [waits])
        calls.go.set()
        await asyncio.wait_for(looking, 60)
        await asyncio.wait_for(asyncio.gather(*nominations.tasks), 60)
    assert calls.sent == ["default/a", "default/b"]
    assert (tried.has_changed, other.has_changed) == (True, False)


CONSUMERS = {
    "none": (["other"], False),
    "the victim": (["v"], True),
    "the victim and a deleted pod": (["v", "other"], True),
    "the victim and a running pod": (["v", "runs"], False),
}


@pytest.mark.parametrize(("consumers", "waits"), CONSUMERS.values(), ids=CONSUMERS)
async def test_a_nomination_stays_until_the_devices_of_its_victim_are_free(consumers: list[str], waits: bool) -> None:
    reserved = [ClaimConsumer(resource="pods", name=name, uid=f"uid-{name}") for name in consumers]
    claim = resource_claim("of-v", asks(), allocation=held("d0", at="n2"), reserved_for=reserved)
    await _refused([claim], victims={"default/v": "uid-v"}, waits=waits)


PLACES = {
    "on its node": ("n1", ["other"], True),
    "elsewhere": ("n2", ["other"], False),
    "in use": ("n1", ["runs"], False),
}


@pytest.mark.parametrize(("at", "consumers", "waits"), PLACES.values(), ids=PLACES)
async def test_a_restored_nomination_stays_while_deleted_pods_have_devices(
    at: str, consumers: list[str], waits: bool
) -> None:
    reserved = [ClaimConsumer(resource="pods", name=name, uid=f"uid-{name}") for name in consumers]
    claim = resource_claim("c", asks(), allocation=held("d0", at=at), reserved_for=reserved)
    await _refused([claim], victims={}, waits=waits)


async def _refused(objects: list[Any], *, victims: Mapping[str, str], waits: bool) -> None:
    """A nominated pod is planned in vain while its victims are deleted; its nomination stays only if it waits."""
    state = make_state(scheduler_names=("koord-scheduler",), live=True)
    runs = user("runs", at="n1")
    runs = replace(runs, metadata=replace(runs.metadata, uid="uid-runs"))
    for one in (node("n1:4"), node("n2:4"), CLASS, offers("n1", "d0"), offers("n2", "d0"), runs, *objects):
        state.upsert(one)
    state.upsert(nominated("a", "n1"))
    async with ApiClient(ClusterAccess("http://127.0.0.1:9")) as client:
        calls = SlowCalls(client)
        calls.go.set()
        queue = UnitQueue()
        feeds = Feeds(client, state, queue)
        info = state.pod("default/a")
        assert info is not None
        feeds.pods.enqueue(info, event="PodAdd")
        (entry,) = queue.take(light_pods=2)
        nominations = Nominations(a_context(feeds=feeds), calls)
        if victims:
            nominations.reserve("default/a", [("default/a", info.uid, "n1")], nominations._clock() + 90, victims)
        else:
            nominations.restore()
        await nominations.look()
        assert entry.has_changed is not waits, "planned again once its victims are gone"
        nominations.refused("default/a", [info])
        await asyncio.gather(*nominations.tasks)
        assert calls.sent == ([] if waits else ["default/a"])
