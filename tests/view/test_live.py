# SPDX-License-Identifier: Apache-2.0
"""Documents of a cluster that goes on: changes add up, a slow reader costs nothing, what cannot be had is a line."""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from bench import objects
from koordpy.api import keys
from koordpy.cli import view_command as view
from koordpy.cli.main import main
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.demo.acts import read_cluster
from koordpy.demo.demo_cluster import Stage
from koordpy.devices.family_registry import make_state
from koordpy.explain.explanation import explain
from koordpy.observe.health_endpoints import HealthServer
from koordpy.view import live_documents
from koordpy.view.document_rows import Remarks
from koordpy.view.live_documents import CHANGE, WHOLE, Feed, NotReadyError, UnknownUnitError
from koordpy.view.page_server import Pages, SourceError, Upstream, page_of
from tests.view.test_document import merged

GPU = keys.GPU_RESOURCES[0]
CONFIG = KoordpyConfiguration()


class Cluster:
    """A state that a feed looks at."""

    def __init__(self) -> None:
        self.state = make_state(gpu=CONFIG.gpu)
        self.state.upsert(objects.node("n0", {GPU: "8", "cpu": "64"}))
        self.count = 0
        self.ready = True
        self.looks = 0
        self.source = "s"

    def take(self) -> Any:
        self.looks += 1
        if not self.ready:
            raise NotReadyError("the cluster is still being read: pods")
        return self.state.snapshot(float(self.looks)), Remarks(source=self.source)

    def add(self) -> None:
        self.count += 1
        self.state.upsert(objects.pod(f"p{self.count}", {GPU: "1", "cpu": "1"}, at="n0"))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(live_documents, "PACE_SECONDS", 0.01)
    return Cluster()


@pytest.fixture
def feed(cluster: Cluster) -> Feed:
    return Feed(cluster.take, CONFIG, pace=0.0)


@pytest.fixture
async def scheduler(feed: Feed) -> AsyncIterator[Callable[..., Any]]:
    """Starts health endpoints as a scheduler has them; their address."""
    started = []

    async def start(*, view: bool = True, guard: Any = None) -> str:
        given = {"guard": guard} if guard is not None else {}
        server = HealthServer(
            "127.0.0.1:0", live={}, ready={}, handlers=Pages(feed).handlers() if view else None, **given
        )
        await server.start()
        started.append(server)
        return f"127.0.0.1:{server.port}"

    yield start
    for server in started:
        await server.stop()


async def test_a_whole_one_then_changes_that_add_up_to_it(cluster: Cluster, feed: Feed) -> None:
    events = feed.events()
    name, body = await anext(events)
    assert name == WHOLE
    document = json.loads(body)
    for _ in range(3):
        cluster.add()
        name, body = await anext(events)
        assert name == CHANGE
        document = merged(document, json.loads(body))
    whole = json.loads(await feed.document())
    # A busy machine takes further looks at the same state.
    assert {**document, "taken": 0} == {**whole, "taken": 0}
    await events.aclose()
    assert len(document["pods"]) == 3


async def test_nothing_is_done_without_a_reader(cluster: Cluster, feed: Feed) -> None:
    events = feed.events()
    await anext(events)
    await events.aclose()
    cluster.add()
    assert feed._running is None


async def test_a_late_reader_gets_a_whole_one_and_nothing_is_kept_for_it(cluster: Cluster, feed: Feed) -> None:
    slow, quick = feed.events(), feed.events()
    await anext(slow)
    await anext(quick)
    for _ in range(5):
        cluster.add()
        assert (await anext(quick))[0] == CHANGE
    name, body = await anext(slow)
    assert name == WHOLE
    assert len(json.loads(body)["pods"]) == 5
    cluster.add()
    assert (await anext(slow))[0] == CHANGE
    await slow.aclose()
    await quick.aclose()


async def test_a_reader_that_takes_no_byte_is_let_go(
    cluster: Cluster, feed: Feed, scheduler: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("koordpy.view.page_server.WRITE_SECONDS", 0.2)
    cluster.source = "x" * (1 << 24)  # more than sockets hold
    host, _, port = (await scheduler()).partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 10)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(b"GET /debug/view/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    async with asyncio.timeout(10):
        while not feed._listeners:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        while feed._listeners:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert reader is not None
    writer.close()


async def test_a_scheduler_is_seen_through_its_health_port(cluster: Cluster, scheduler: Callable[..., Any]) -> None:
    cluster.state.upsert(objects.pod("waits", {GPU: "9"}))
    async with Upstream(await scheduler()) as upstream:
        assert json.loads(await upstream.document())["version"] == 1
        events = upstream.events()
        assert (await anext(events))[0] == WHOLE
        cluster.add()
        name, body = await anext(events)
        assert (name, list(json.loads(body)["pods"])) == (CHANGE, ["default/p1"])
        await events.aclose()  # type: ignore[attr-defined]
        told = json.loads(await upstream.explain("default/waits"))
        assert told["help"] == list(explain(cluster.state.snapshot(0.0), CONFIG, "default/waits").would_fit_if)
        assert any(GPU in one for one in told["help"])
        with pytest.raises(SourceError, match="default/nobody is not pending"):
            await upstream.explain("default/nobody")


async def _refuses(_: web.Request) -> str:
    return "needs a bearer token (debugAccess)"


async def _asks(request: web.Request) -> str:
    return "" if request.headers.get("Authorization") == "Bearer right" else "this token is nobody's"


async def test_who_may_not_see_it_is_told(scheduler: Callable[..., Any]) -> None:
    async with Upstream(await scheduler(guard=_refuses)) as upstream:
        with pytest.raises(SourceError, match=r"needs a bearer token") as refused:
            await upstream.document()
        assert refused.value.status == 403
        with pytest.raises(SourceError, match="needs a bearer token"):
            await anext(upstream.events())
    address = await scheduler(guard=_asks)
    async with Upstream(address, token="wrong") as upstream:
        with pytest.raises(SourceError, match="this token is nobody's"):
            await upstream.explain("x")
    async with Upstream(address, token="right") as upstream:
        assert await upstream.document()


async def test_what_is_not_there_is_told(cluster: Cluster, scheduler: Callable[..., Any]) -> None:
    async with Upstream("127.0.0.1:9") as upstream:
        with pytest.raises(SourceError, match=r"127.0.0.1:9 cannot be reached"):
            await upstream.document()
    async with Upstream(await scheduler(view=False)) as upstream:
        with pytest.raises(SourceError, match="it serves no view: it runs with --no-view, or its version is too old"):
            await anext(upstream.events())
    cluster.ready = False
    async with Upstream(await scheduler()) as upstream:
        with pytest.raises(SourceError, match="still being read: pods"):
            await upstream.document()


async def test_a_page_of_another_name_may_not_read_it(feed: Feed) -> None:
    async with page_of(feed) as url, aiohttp.ClientSession() as session:
        async with session.get(url, headers={"Host": "evil.example:80"}) as response:
            assert response.status == 403
            assert "use 127.0.0.1 or localhost" in await response.text()
        async with session.get(url) as response:
            policy = response.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe-inline" not in policy.partition("style-src")[0]
        async with session.post(url) as response:
            assert response.status == 405
        async with session.get(f"{url}view") as response:
            assert response.headers["Content-Encoding"] in ("gzip", "deflate")
            assert (await response.json())["version"] == 1


@pytest.mark.parametrize(("words", "line"), [
    (["--scheduler", "nonsense"], "--scheduler: 'nonsense' is not a valid listen address"),
    (["--scheduler", "h:1", "--token-file", "/nowhere"], "--token-file /nowhere: "),
    (["-f", "examples/plain-pod.yaml", "--token-file", "x"], "--token-file: requires --scheduler"),
    (["-f", "examples/cluster", "--address", "0.0.0.0:0"], "0.0.0.0:0 is not on the loopback interface"),
])  # fmt: skip
def test_bad_options_are_named(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", *words]) == 2
    assert line in capsys.readouterr().err


async def test_a_cluster_is_read_by_its_kubeconfig_and_nothing_is_written() -> None:
    options = argparse.ArgumentParser()
    view.add_arguments(options)
    async with Stage() as stage:
        await stage.create(read_cluster())
        box = {"name": "main", "image": "i", "resources": {"limits": {GPU: "9"}}}
        spec = {"schedulerName": CONFIG.scheduler_names[0], "containers": [box]}
        pods = [
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "waits", "namespace": "default"}, "spec": spec}
        ]
        await stage.create(pods)
        written = stage.server.store.version
        async with view._cluster(options.parse_args(["--kubeconfig", str(stage.kubeconfig)])) as source:
            async with asyncio.timeout(20):
                while True:
                    try:
                        document = json.loads(await source.document())
                        break
                    except NotReadyError:
                        await asyncio.sleep(0.05)
            assert len(document["nodes"]) == 64
            (unit,) = document["queue"]["units"]
            assert unit["unit"] == "default/waits"
            assert "0/64 nodes are available" in unit["message"]
            await stage.create([{**pods[0], "metadata": {"name": "later", "namespace": "default"}}])
            async with asyncio.timeout(20):
                async for _, body in source.events():
                    if b"default/later" in body:
                        break
        assert stage.server.store.version == written + 1


async def test_a_unit_that_does_not_wait_is_no_unit(feed: Feed) -> None:
    with pytest.raises(UnknownUnitError):
        await feed.explain("gang:default/none")
