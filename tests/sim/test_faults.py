# SPDX-License-Identifier: Apache-2.0
"""Faults on purpose: each hits what it names, and no more often than it says."""

import asyncio
from collections.abc import Callable

import aiohttp
import pytest

from koordpy.apiserver.embedded_server import ApiServer
from tests.faults import FaultyServer
from tests.sim.client import PODS, Client, pod


@pytest.mark.parametrize("code", [409, 429, 500, 503])
async def test_the_next_requests_of_a_route_fail(server: ApiServer, client: Client, code: int) -> None:
    server.store.create("pods", pod("a"))
    fault = server.faults.fail(code, method="POST", path="*/binding", times=2, retry_after=7 if code == 429 else None)
    assert (await client.get(f"{PODS}/a"))[0] == 200
    for _ in range(2):
        status, body = await client.bind("a", "n1")
        assert status == code and body["kind"] == "Status"
    assert client.headers.get("Retry-After") == ("7" if code == 429 else None)
    assert "nodeName" not in server.store.get("pods", "a")["spec"]
    assert (await client.bind("a", "n1"))[0] == 201
    assert fault.hits == 2


async def test_a_lost_answer_leaves_the_write_done(server: ApiServer, client: Client) -> None:
    server.store.create("pods", pod("a"))
    server.store.create("pods", pod("b"))
    server.faults.fail(500, path="*/a/binding", times=1, after=True)
    server.faults.fail("drop", path="*/b/binding", times=1, after=True)
    assert (await client.bind("a", "n1"))[0] == 500
    with pytest.raises(aiohttp.ClientError):
        await client.bind("b", "n1")
    assert [item["spec"]["nodeName"] for item in server.store.list("pods")] == ["n1", "n1"]


async def test_timeouts_and_cut_connections(server: ApiServer, client: Client) -> None:
    server.faults.fail("timeout", path="/version", times=1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.get("/version"), 0.2)
    server.faults.fail("drop", method="POST", path=PODS, times=1)
    with pytest.raises(aiohttp.ClientError):
        await client.post(PODS, pod("a"))
    assert server.store.list("pods") == []
    assert (await client.get("/version"))[0] == 200


async def failures(server: ApiServer, client: Client, seed: int) -> list[int]:
    server.faults.clear()
    server.faults.seed(seed)
    server.faults.fail(500, path="/version", share=0.5)
    return [(await client.get("/version"))[0] for _ in range(40)]


async def test_a_share_is_drawn_from_the_seed(server: ApiServer, client: Client) -> None:
    first = await failures(server, client, 1)
    assert 5 < first.count(500) < 35
    assert await failures(server, client, 1) == first
    assert await failures(server, client, 2) != first


async def test_watches_are_dropped(server: ApiServer, client: Client) -> None:
    pods = await client.watch(PODS, f"resourceVersion={server.store.version}")
    nodes = await client.watch("/api/v1/nodes", f"resourceVersion={server.store.version}")
    assert server.faults.drop_watches("pods") == 1
    assert await pods.ended()
    server.store.create("nodes", {"metadata": {"name": "n1"}})
    assert await nodes.kinds_and_names(1) == [("ADDED", "n1")]
    assert server.faults.drop_watches(abort=True) == 1
    assert await nodes.ended()


async def test_a_watch_can_be_refused_at_its_start(server: ApiServer, client: Client) -> None:
    server.faults.fail(410, method="WATCH", path="/api/v1/pods", times=1)
    assert (await client.get("/api/v1/pods"))[0] == 200
    status, body = await client.get("/api/v1/pods?watch=true")
    assert (status, body["reason"]) == (410, "Expired")


@pytest.mark.parametrize("change", [lambda f: f.pause(), lambda f: setattr(f, "latency_seconds", 60.0)])
async def test_a_paused_or_slow_server_answers_later(
    server: ApiServer, client: Client, change: Callable[[object], None]
) -> None:
    change(server.faults)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.get("/version"), 0.1)
    server.faults.clear()
    assert (await client.get("/version"))[0] == 200


async def test_a_server_stops_while_requests_hang(client: Client) -> None:
    async with FaultyServer() as other:
        hanging = Client(other.url)
        other.faults.fail("timeout", path="/version")
        await hanging.watch(PODS, f"resourceVersion={other.store.version}")
        waiting = asyncio.create_task(hanging.get("/version"))
        await asyncio.sleep(0.05)
    with pytest.raises((aiohttp.ClientError, TimeoutError)):
        await asyncio.wait_for(waiting, 60)
    await hanging.close()
