# SPDX-License-Identifier: Apache-2.0
"""Room that nominations keep, unit by unit: what is given up while another's is being cleared stays given up."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

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
