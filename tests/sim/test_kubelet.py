# SPDX-License-Identifier: Apache-2.0
"""The fake kubelet: start, end, deletion."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from koordpy.apiserver.container_ends import CRASHES, KILLED, ON_SIGTERM, SAVES, TERMINATES, Stopping, phase_after
from koordpy.apiserver.embedded_server import ApiServer
from koordpy.apiserver.fake_kubelet import FakeKubelet
from koordpy.engine.client.credentials import load_access
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


@pytest.mark.parametrize("policy", ["Never", "OnFailure", "Always"])
@pytest.mark.parametrize(
    ("stopping", "said", "code", "left"),
    [
        (SAVES, "", 0, "Succeeded"),
        (TERMINATES, "", 143, "Failed"),
        (CRASHES, "", 1, "Failed"),
        (KILLED, "", 137, "Failed"),
        (CRASHES, "0", 0, "Succeeded"),
        (SAVES, "3", 3, "Failed"),
        (SAVES, "ignore", 137, "Failed"),
        (SAVES, "no number", 0, "Succeeded"),
    ],
)
async def test_a_stopped_pod_leaves_the_exit_codes_of_its_containers_behind(
    server: ApiServer, client: Client, stopping: Stopping, said: str, code: int, left: str, policy: str
) -> None:
    ends: list[Any] = []
    server.store.listeners.append(lambda shelf, change: ends.append(change.entry.obj) if shelf == "pods" else None)
    made = pod("a", nodeName="n1", restartPolicy=policy, terminationGracePeriodSeconds=1)
    made["metadata"]["annotations"] = {ON_SIGTERM: said} if said else {}
    with closing(FakeKubelet(server.store, stopping=stopping)):
        server.store.create("pods", made)
        await until(lambda: phase(server, "a") == "Running")
        await client.delete(f"{PODS}/a")
        await until(lambda: gone(server, "a"))
    last = ends[-1]["status"]
    assert last["phase"] == left and "deletionTimestamp" in ends[-1]["metadata"]
    assert last["containerStatuses"][0]["state"]["terminated"]["exitCode"] == code


@pytest.mark.parametrize(
    ("policy", "code", "deleted", "left"),
    [
        ("Never", 0, False, "Succeeded"),
        ("Never", 1, False, "Failed"),
        ("OnFailure", 0, False, "Succeeded"),
        ("OnFailure", 1, False, "Running"),
        ("Always", 0, False, "Running"),
        ("Always", 1, False, "Running"),
        ("Always", 0, True, "Succeeded"),
        ("OnFailure", 143, True, "Failed"),
    ],
)
def test_nothing_is_restarted_in_a_pod_that_is_deleted(policy: str, code: int, deleted: bool, left: str) -> None:
    assert phase_after(code, policy, deleted=deleted) == left
