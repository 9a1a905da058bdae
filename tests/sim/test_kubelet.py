"""The fake kubelet: start, end, deletion."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from koordpy.engine.apiserver.credentials import load_access
from koordpy.sim.kubelet import FakeKubelet
from koordpy.sim.server import ApiServer
from tests.sim.client import PODS, Client, pod


@pytest.fixture
async def kubelet(server: ApiServer) -> AsyncIterator[FakeKubelet]:
    with closing(FakeKubelet(server.store)) as running:
        yield running


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the state is a plain mapping
            await asyncio.sleep(0.01)


def phase(server: ApiServer, name: str) -> Any:
    return server.store.get("pods", name)["status"]["phase"]


def gone(server: ApiServer, name: str) -> bool:
    return ("default", name) not in server.store.shelf("pods").entries


async def test_bound_pods_run_and_others_wait(server: ApiServer, client: Client, kubelet: FakeKubelet) -> None:
    server.store.create("pods", pod("free"))
    server.store.create("pods", pod("a"))
    await client.bind("a", "n1")
    await until(lambda: phase(server, "a") == "Running")
    status = server.store.get("pods", "a")["status"]
    conditions = {c["type"]: c["status"] for c in status["conditions"]}
    wanted = ("PodScheduled", "Ready", "ContainersReady", "Initialized", "PodReadyToStartContainers")
    assert all(conditions[kind] == "True" for kind in wanted) and status["startTime"]
    assert status["containerStatuses"][0]["state"]["running"]
    assert phase(server, "free") == "Pending"


async def test_deleted_pods_vanish_and_their_names_can_be_used_again(
    server: ApiServer, client: Client, kubelet: FakeKubelet
) -> None:
    server.store.create("pods", pod("a"))
    await client.bind("a", "n1")
    await until(lambda: phase(server, "a") == "Running")
    await client.delete(f"{PODS}/a")
    await until(lambda: gone(server, "a"))
    server.store.create("pods", pod("a"))
    await client.bind("a", "n2")
    await until(lambda: phase(server, "a") == "Running")


async def test_what_was_bound_before_it_started_runs_too(server: ApiServer) -> None:
    for at in range(1100):
        server.store.create("pods", pod(f"p-{at}", nodeName="n1"))
    with closing(FakeKubelet(server.store)):
        await until(lambda: all(item["status"]["phase"] == "Running" for item in server.store.list("pods")))


async def test_the_kubeconfig_of_the_server_is_understood(server: ApiServer, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(server.kubeconfig())
    assert (await load_access(str(file))).server == server.url
