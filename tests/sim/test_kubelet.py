"""The fake kubelet over HTTP: start, end, deletion, and its own resilience."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from koordpy.engine.apiserver.credentials import load_access
from koordpy.sim.kubelet import RUNTIME, FakeKubelet
from koordpy.sim.server import ApiServer
from tests.sim.client import PODS, Client, pod


@pytest.fixture
async def kubelet(server: ApiServer) -> AsyncIterator[FakeKubelet]:
    async with FakeKubelet(server.url) as running:
        yield running


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the state is a plain mapping
            await asyncio.sleep(0.01)


def phase(server: ApiServer, name: str) -> Any:
    return server.store.get("pods", name)["status"]["phase"]


def gone(server: ApiServer, name: str) -> bool:
    return ("default", name) not in server.store.shelf("pods").entries


def annotated(name: str, runtime: str) -> dict:
    return {**pod(name), "metadata": {"name": name, "annotations": {RUNTIME: runtime}}}


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


async def test_an_annotated_pod_succeeds_in_time(server: ApiServer, client: Client, kubelet: FakeKubelet) -> None:
    server.store.create("pods", annotated("short", "10ms"))
    server.store.create("pods", annotated("long", "1h"))
    server.store.create("pods", annotated("odd", "soon"))
    for name in ("short", "long", "odd"):
        await client.bind(name, "n1")
    await until(lambda: phase(server, "short") == "Succeeded")
    status = server.store.get("pods", "short")["status"]
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    assert {c["type"]: c["status"] for c in status["conditions"]}["Ready"] == "False"
    await until(lambda: phase(server, "long") == phase(server, "odd") == "Running")


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
    async with FakeKubelet(server.url):
        await until(lambda: all(item["status"]["phase"] == "Running" for item in server.store.list("pods")))


@pytest.mark.parametrize("trouble", ["dropped", "aborted", "expired", "errors"])
async def test_it_survives_trouble(server: ApiServer, client: Client, kubelet: FakeKubelet, trouble: str) -> None:
    server.store.create("pods", pod("a", nodeName="n1"))
    await until(lambda: phase(server, "a") == "Running")
    if trouble == "errors":
        server.faults.fail(500, path="*/pods/b/status", times=1)
        server.faults.fail(500, method="WATCH", times=2)
    if trouble == "expired":
        server.faults.expire_versions()
    server.faults.drop_watches(abort=trouble == "aborted")
    server.store.create("pods", pod("b", nodeName="n1"))
    server.store.delete("pods", "a")
    await until(lambda: gone(server, "a") and phase(server, "b") == "Running")


async def test_the_kubeconfig_of_the_server_is_understood(server: ApiServer, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(server.kubeconfig())
    assert (await load_access(str(file))).server == server.url


async def test_it_goes_on_when_the_server_comes_back(server: ApiServer, kubelet: FakeKubelet) -> None:
    server.store.create("pods", pod("a", nodeName="n1"))
    await until(lambda: phase(server, "a") == "Running")
    port = int(server.url.rpartition(":")[2])
    await server.stop()
    server.store.create("pods", pod("b", nodeName="n1"))
    await server.start(port=port)
    await until(lambda: phase(server, "b") == "Running")
