# SPDX-License-Identifier: Apache-2.0
"""The HTTP endpoints as somebody on the pod network asks them."""

import asyncio
import contextlib
import io
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from koordpy.observe import health_endpoints, log_lines
from koordpy.observe.health_endpoints import HealthServer, from_loopback
from koordpy.observe.metrics import Metrics


async def anybody(_: web.Request) -> str:
    return ""


@asynccontextmanager
async def serving(**given: Any) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    server = HealthServer("127.0.0.1:0", live={}, ready={}, **given)
    await server.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield session, f"http://127.0.0.1:{server.port}"
    finally:
        await server.stop()


async def test_metrics_are_rendered_once_for_all_who_ask_in_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    renders = 0
    real = metrics.render

    def render() -> bytes:
        nonlocal renders
        renders += 1
        return real()

    monkeypatch.setattr(metrics, "render", render)
    monkeypatch.setattr(health_endpoints, "METRICS_SECONDS", 3600.0)
    async with serving(metrics=metrics) as (session, url):

        async def scrape() -> bytes:
            async with session.get(f"{url}/metrics") as response:
                return await response.read()

        pages = await asyncio.gather(*(scrape() for _ in range(50)))
    assert renders == 1
    assert len(set(pages)) == 1
    assert b"koordpy_build_info" in pages[0]


async def test_a_big_answer_comes_whole_and_one_at_a_time() -> None:
    shown, most = 0, 0

    def snapshot() -> bytes:
        nonlocal shown, most
        shown += 1
        most = max(most, shown)
        shown -= 1
        return b"[" + b"1," * 1_000_000 + b"1]"

    async with serving(debug={"snapshot": lambda: snapshot}, guard=anybody) as (session, url):

        async def ask() -> int:
            async with session.get(f"{url}/debug/snapshot") as response:
                body = await response.read()
                assert response.status != 200 or len(body) == 2_000_003
                return response.status

        found = await asyncio.gather(*(ask() for _ in range(20)))
        assert most == 1
        assert set(found) == {200, 429}
        assert found.count(200) >= health_endpoints.SHOWING
        assert await ask() == 200


async def test_what_is_not_ready_in_time_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_endpoints, "SHOW_SECONDS", 0.05)
    given_up = threading.Event()

    def slow() -> bytes:
        given_up.wait(60)
        return b"[]"

    async with serving(debug={"snapshot": lambda: slow}, guard=anybody) as (session, url):
        try:
            async with session.get(f"{url}/debug/snapshot") as response:
                assert (response.status, await response.text()) == (503, "/debug/snapshot: not ready within 0.05 s\n")
        finally:
            given_up.set()


async def test_only_who_is_let_in_sees_debug_and_configz() -> None:
    async def nobody(_: web.Request) -> str:
        return "not you"

    given = {"debug": {"queue": list}, "configuration": dict}
    async with serving(**given, guard=nobody) as (session, url):
        for path in ("/debug/queue", "/configz"):
            async with session.get(url + path) as response:
                assert (response.status, await response.text()) == (403, f"{path}: not you\n")
        async with session.get(f"{url}/livez") as response:
            assert response.status == 200
    async with serving(**given) as (session, url), session.get(f"{url}/debug/queue") as response:
        assert response.status == 200  # over the loopback interface


@pytest.mark.parametrize(
    ("remote", "may"), [("127.0.0.1", True), ("::1", True), ("10.1.2.3", False), ("", False), ("x", False)]
)
async def test_the_loopback_interface_is_told_by_the_address(remote: str, may: bool) -> None:
    request: Any = type("Request", (), {"remote": remote})()
    assert (await from_loopback(request) == "") is may


@pytest.mark.parametrize("size", [8_000, 100_000, 5_000_000])
async def test_a_long_header_is_refused_and_fills_no_log(size: int) -> None:
    root, server, lines = logging.getLogger(), logging.getLogger("aiohttp.server"), io.StringIO()
    kept = root.handlers[:], root.level
    try:
        log_lines.configure(stream=lines)
        async with serving() as (session, url):
            with contextlib.suppress(aiohttp.ClientError, ConnectionError):  # closed while it was still sent
                async with session.get(f"{url}/livez", headers={"X-Long": "x" * size}) as response:
                    assert response.status == (200 if size < 8_190 else 400)
            async with session.get(f"{url}/livez") as response:
                assert response.status == 200
        assert "ERROR" not in lines.getvalue()
        server.error("a fault of ours")
        assert "a fault of ours" in lines.getvalue()
    finally:
        root.handlers[:], root.level = kept
