"""`python -m koordpy.sim` and `python -m koordpy.sim.kubelet` as processes."""

import asyncio
import signal
import sys
from pathlib import Path

from tests.sim.client import PODS, Client, pod


async def start(*arguments: str) -> asyncio.subprocess.Process:
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    return await asyncio.create_subprocess_exec(sys.executable, "-m", *arguments, stdout=pipe, stdin=nothing)


async def end(process: asyncio.subprocess.Process) -> int:
    if process.returncode is None:
        process.send_signal(signal.SIGINT)
    try:
        return await asyncio.wait_for(process.wait(), 60)
    except TimeoutError:
        process.kill()
        raise


async def test_a_server_process_with_nodes_and_a_kubelet_beside_it(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    server = await start("koordpy.sim", "--nodes", "3", "--kubeconfig", str(kubeconfig))
    assert server.stdout is not None
    try:
        url = (await asyncio.wait_for(server.stdout.readline(), 60)).decode().strip()
        assert url in kubeconfig.read_text()
        client = Client(url)
        kubelet = await start("koordpy.sim.kubelet", "--kubeconfig", str(kubeconfig))
        try:
            _, nodes = await client.get("/api/v1/nodes")
            assert [node["metadata"]["name"] for node in nodes["items"]] == ["node-0", "node-1", "node-2"]
            await client.post(PODS, pod("a"))
            await client.bind("a", "node-0")
            watch = await client.watch(PODS)
            async with asyncio.timeout(60):
                while (await watch.next())["object"]["status"]["phase"] != "Running":
                    pass
        finally:
            assert await end(kubelet) == 0
            await client.close()
    finally:
        assert await end(server) == 0
