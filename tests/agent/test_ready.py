# SPDX-License-Identifier: Apache-2.0
"""The command as a whole with a kubelet beside it: when it is ready, and what the Device says until then."""

import argparse
import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from koordpy.agent.agent_loop import NodeAgent
from koordpy.agent.backends.file_backend import read_fake
from koordpy.agent.gpu_health import HealthBook
from koordpy.agent.publisher import DEVICES
from koordpy.apiserver.embedded_server import ApiServer
from koordpy.cli.agent_command import _serve, add_arguments
from koordpy.cli.main import main
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.credentials import ClusterAccess
from tests.agent.plugin.kubelet import Kubelet
from tests.agent.plugin.test_annotations import notes
from tests.agent.plugin.test_pods import PODS, pod
from tests.clusters import node
from tests.e2e.process import eventually
from tests.e2e.test_gpu_delivery import free_port
from tests.faults import FaultyServer


@pytest.fixture
def folder() -> Any:
    # not in tmp_path: the path of a unix socket ends after 107 characters
    with tempfile.TemporaryDirectory(prefix="agent-") as name:
        for one in ("device-plugins", "pod-resources"):
            (Path(name) / one).mkdir()
        yield Path(name)


@asynccontextmanager
async def agent(server: ApiServer, folder: Path, *words: str) -> AsyncIterator[str]:
    """A running agent of two GPUs; the URL of its health."""
    config = folder / "kubeconfig"
    cluster = {"clusters": [{"name": "c", "cluster": {"server": server.url}}]}
    context = {"contexts": [{"name": "c", "context": {"cluster": "c", "user": ""}}], "current-context": "c"}
    config.write_text(yaml.safe_dump({**cluster, **context}))
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    port = free_port()
    line = ["--node", "n1", "--kubeconfig", str(config), "--kubelet-folder", str(folder), "--poll", "30", *words]
    args = parser.parse_args([*line, "--bind-address", f"127.0.0.1:{port}"])
    one = NodeAgent("n1", read_fake("gpus: 2", name="m"), HealthBook(), delivery=args.delivery)
    task = asyncio.create_task(_serve(one, args))
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def ready(url: str) -> str:
    """What /readyz says in full; empty where nobody answers."""
    try:
        async with aiohttp.ClientSession() as http, http.get(f"{url}/readyz?verbose") as answer:
            return f"{answer.status} {await answer.text()}"
    except aiohttp.ClientError:
        return ""


async def delivery(client: ApiClient) -> tuple[str, str]:
    """(status, message) of the Device's condition DeliveryUnavailable."""
    found = await client.get_or_none(f"{DEVICES}/n1", type=dict[str, Any])
    conditions = (found or {}).get("status", {}).get("conditions", ())
    return next(((c["status"], c["message"]) for c in conditions if c["type"] == "DeliveryUnavailable"), ("", ""))


async def test_the_agent_is_ready_while_the_kubelet_knows_of_its_plugin(folder: Path) -> None:
    async with FaultyServer() as server, ApiClient(ClusterAccess(server=server.url)) as client:
        await client.post("/api/v1/nodes", node("n1"))
        kubelet = Kubelet(folder / "device-plugins", folder / "pod-resources" / "kubelet.sock")
        async with agent(server, folder, "--delivery", "device-plugin") as url:

            async def lacking() -> bool:
                status, why = await delivery(client)
                return status == "True" and f"there is no {folder}/device-plugins/kubelet.sock" in why

            async def delivers() -> bool:
                return (await delivery(client))[0] == "False" and (await ready(url)).startswith("200 ")

            await eventually(lacking, what="the Device says what is lacking")
            said = await ready(url)
            assert said.startswith("503 [+]device ok\n[-]device-plugin failed: the device plugin is not registered")
            await kubelet.start()
            await eventually(delivers, what="the agent delivers")
            await kubelet.stop()
            kubelet.empty()
            await eventually(lacking, what="the Device says what is lacking")
            await kubelet.start()
            await eventually(delivers, what="the agent delivers")
            await kubelet.stop()


async def test_an_agent_that_is_told_to_end_says_so_in_the_device_and_serves_pods_that_are_bound(folder: Path) -> None:
    async with FaultyServer() as server, ApiClient(ClusterAccess(server=server.url)) as client:
        await client.post("/api/v1/nodes", node("n1"))
        kubelet = Kubelet(folder / "device-plugins", folder / "pod-resources" / "kubelet.sock")
        await kubelet.start()
        async with agent(server, folder, "--delivery", "device-plugin") as url:
            await kubelet.until(lambda: len(kubelet.devices) == 2)

            async def delivers() -> bool:
                return (await delivery(client))[0] == "False"

            async def ending() -> bool:
                return await delivery(client) == ("True", "the agent is ending")

            await eventually(delivers, what="the agent delivers")
            await client.post(PODS, pod("a", 1, annotations=notes([1])))
            os.kill(os.getpid(), signal.SIGTERM)
            await eventually(ending, what="the Device says that the agent ends")
            assert await kubelet.admit("a", 1, container="c0") == ["GPU-1"]
            assert (await ready(url)).startswith("503 ")
            await client.patch(f"{PODS}/a/status", {"status": {"startTime": "2026-01-01T00:00:00Z"}})

            async def ended() -> bool:
                return not await ready(url)

            await eventually(ended, what="the agent has ended")
        assert (await delivery(client))[0] == "True"
        await kubelet.stop()


async def test_an_agent_without_plugin_is_ready_once_its_device_is_written(folder: Path) -> None:
    async with FaultyServer() as server, ApiClient(ClusterAccess(server=server.url)) as client:
        async with agent(server, folder) as url:

            async def refused() -> bool:
                return "[-]device failed: " in await ready(url)

            async def written() -> bool:
                return (await ready(url)).startswith("200 ")

            await eventually(refused, what="it is not ready")
            await client.post("/api/v1/nodes", node("n1"))
        async with agent(server, folder) as url:
            await eventually(written, what="it is ready")
            assert (await delivery(client))[0] == "False"


def test_an_address_that_is_none_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agent", "--node", "n", "--backend", "fake:/no", "--bind-address", "80"]) == 2
    err = capsys.readouterr().err
    assert "--bind-address: '80' is not a valid listen address" in err and err.count("\n") == 1
