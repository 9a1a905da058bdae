# SPDX-License-Identifier: Apache-2.0
"""The watch that measurements rest on: nothing is missed when the server ends it, nothing waits for a dead one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from bench.live.watching import PodWatch
from koordpy.apiserver.embedded_server import ApiServer
from tests.e2e.client import MERGE, Client, pod_manifest, pods_path
from tests.faults import FaultyServer

WITHIN_S = 60.0


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with FaultyServer(bookmark_seconds=0.05) as running:
        yield running


@pytest.fixture
async def api(server: ApiServer) -> AsyncIterator[Client]:
    async with Client(server.url) as client:
        yield client


async def make(api: Client, name: str, *, node: str = "", **labels: str) -> str:
    spec = {"nodeName": node} if node else {}
    made = await api.create(pods_path(), pod_manifest(name, scheduler="nobody", labels=labels, spec=spec))
    uid: str = made["metadata"]["uid"]
    return uid


async def tell(api: Client, name: str, message: str) -> None:
    body = {"status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "X", "message": message}]}}
    await api.patch(f"{pods_path()}/{name}/status", body, content=MERGE)


async def test_who_was_bound_and_who_was_told_why(api: Client) -> None:
    there = await make(api, "there", node="n1")
    async with PodWatch(api).running() as watch:
        assert watch.pods.keys() == watch.bound_at.keys() == {there}
        bound, told, silent = [await make(api, name) for name in ("bound", "told", "silent")]
        await api.bind(await api.get(f"{pods_path()}/bound"), "n1")
        await tell(api, "silent", "")
        await tell(api, "told", "0/1 nodes are available")
        assert await watch.until(lambda: {bound} <= watch.bound_at.keys() and bool(watch.told_at), within_s=WITHIN_S)
        assert watch.told_at.keys() == {told}, "a verdict without words tells nobody anything"
        assert watch.pods[told].verdict == "0/1 nodes are available"
        assert watch.writes == {bound: 1, told: 1, silent: 1} and not watch.moved
        assert watch.bound_at[bound] > watch.bound_at[there]


async def test_only_pods_of_the_selector_are_seen(api: Client) -> None:
    async with PodWatch(api, selector="wave=a").running() as watch:
        await make(api, "other", wave="b")
        mine = await make(api, "mine", wave="a")
        assert await watch.until(lambda: bool(watch.pods), within_s=WITHIN_S)
        assert watch.pods.keys() == {mine}


@pytest.mark.parametrize("abort", [False, True])
async def test_a_watch_that_the_server_ends_is_resumed(server: ApiServer, api: Client, abort: bool) -> None:
    async with PodWatch(api).running() as watch:
        uids = set()
        for i in range(5):
            uids.add(await make(api, f"p{i}"))
            assert await watch.until(lambda: uids <= watch.pods.keys(), within_s=WITHIN_S)
            server.faults.drop_watches("pods", abort=abort)
        uids.add(await make(api, "last"))
        assert await watch.until(lambda: uids <= watch.pods.keys(), within_s=WITHIN_S)


async def test_after_an_expired_version_the_list_tells_what_was_missed(server: ApiServer, api: Client) -> None:
    gone = await make(api, "gone")
    async with PodWatch(api).running() as watch:
        assert await watch.until(lambda: gone in watch.pods, within_s=WITHIN_S)
        server.faults.fail(503, method="WATCH", times=3)
        server.faults.drop_watches("pods")
        await api.delete(f"{pods_path()}/gone")
        new = await make(api, "new", node="n1")
        server.faults.expire_versions()
        # lists fail as well for a while: a measurement of minutes must not end with one bad answer
        server.faults.fail(429, method="GET", path="/api/v1/pods", times=2)
        assert await watch.until(lambda: watch.pods.keys() == {new}, within_s=WITHIN_S)
        assert new in watch.bound_at


async def test_lists_come_in_chunks(api: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.live.watching.CHUNK", 3)
    uids = {await make(api, f"p{i}") for i in range(10)}
    async with PodWatch(api).running() as watch:
        assert watch.pods.keys() == uids


async def test_whoever_waits_for_a_watch_that_broke_is_told_so(api: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: PodWatch, pod: object) -> None:
        raise ArithmeticError("a bug of the watch")

    async def wait_for_nothing() -> None:
        async with PodWatch(api).running() as watch:
            monkeypatch.setattr(PodWatch, "_saw", broken)
            await make(api, "a")
            await watch.until(lambda: False, within_s=60)

    with pytest.raises(ArithmeticError, match="a bug of the watch"):
        await asyncio.wait_for(wait_for_nothing(), WITHIN_S)


async def test_waiting_ends_in_time(api: Client) -> None:
    async with PodWatch(api).running() as watch:
        assert not await watch.until(lambda: False, within_s=0.05)
