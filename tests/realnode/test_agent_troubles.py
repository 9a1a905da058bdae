# SPDX-License-Identifier: Apache-2.0
"""The device plugin in trouble: what is away for seconds fails no pod, and no GPU ever has two holders."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest

from tests.e2e.client import Json
from tests.realnode.gpus import DEVICES, GPU, GpuNode, agree, failed, gpu_job, gpu_nodes, gpu_pod, names
from tests.realnode.namespaces import ip
from tests.realnode.work import Work, pod_group

EIGHT = {"gpus": 8}


async def test_an_api_server_that_is_away_fails_no_pod_of_a_gang_that_is_being_admitted(work: Work) -> None:
    (server,) = [one for one in work.cluster.plane.processes if one.name == "kube-apiserver"]
    async with gpu_nodes(work, {"n1": {"gpus": 16}}) as nodes:
        gang = [gpu_pod(f"gang-{n}", 1, gang="gang", on="n1") for n in range(12)]
        work.apply(pod_group("gang", 12), *gang)

        async def bound() -> bool:
            return any(one["spec"].get("nodeName") for one in (await work.pods()).values())

        await work.until("the first is bound", bound)
        server.kill()
        await asyncio.sleep(6)
        server.start()

        async def back() -> bool:
            with contextlib.suppress(Exception):
                return bool(await work.pods())
            return False

        await work.until("the API server is back", back)
        await work.run(names(gang))
        await agree(work, nodes, names(gang))
        assert failed(await work.pods()) == {}


async def test_a_job_that_starts_while_its_nodes_agent_is_replaced_loses_no_pod(work: Work) -> None:
    async with gpu_nodes(work, {"n1": EIGHT}) as nodes:
        (node,) = nodes
        # bound when the agent is told to end: it is still served
        work.apply(gpu_pod("before", 1, on="n1"))

        async def bound() -> bool:
            return bool((await work.pods())["before"]["spec"].get("nodeName"))

        await work.until("a pod is bound", bound)
        replacing = asyncio.create_task(node.restart_agent(crash=False, away_s=2))
        await asyncio.sleep(0.8)
        work.apply(gpu_job("train", 7))

        async def made() -> list[str]:
            found = [name for name in await work.pods() if name.startswith("train-")]
            return found if len(found) == 7 else []

        started = await work.until("the Job's pods are made", made)
        await replacing
        await work.run(["before", *started])
        assert failed(await work.pods()) == {}
        assert not node.held_twice()


@contextlib.asynccontextmanager
async def cut_off(node: GpuNode) -> AsyncIterator[None]:
    """The node's cable is out."""
    cable = f"node{node.node.number}"
    ip(f"link set {cable} down")
    try:
        yield
    finally:
        ip(f"link set {cable} up")


def delete_by_force(work: Work, name: str) -> None:
    work.kubectl("delete", "pod", name, "--force", "--grace-period=0", "--wait=false")


async def runs_after(work: Work, node: GpuNode, name: str) -> None:
    """The pod, which has all GPUs, runs at last, and found none of them in use."""
    await work.run([name], within_s=90)
    assert failed(await work.pods()) == {}
    assert not node.held_twice()


@pytest.mark.parametrize("cut", [False, True], ids=["in reach", "cut off"])
async def test_gpus_of_a_pod_that_was_deleted_by_force_are_given_once_it_has_ended(work: Work, cut: bool) -> None:
    async with gpu_nodes(work, {"n1": EIGHT}) as nodes:
        (node,) = nodes
        work.apply(gpu_pod("lingers", 8, on="n1", lingers=8))
        await work.run(["lingers"])
        work.apply(gpu_pod("next", 8, on="n1"))
        await work.waits("next", "Insufficient nvidia.com/gpu")
        async with cut_off(node) if cut else contextlib.nullcontext():
            delete_by_force(work, "lingers")
            await asyncio.sleep(6 if cut else 0)
        await runs_after(work, node, "next")
        # and it was the end of the first that was waited for, not of its whole grace period
        await agree(work, nodes, ["next"])


async def test_gpus_of_a_pod_whose_node_was_deleted_and_added_are_given_once_it_has_ended(work: Work) -> None:
    async with gpu_nodes(work, {"n1": EIGHT}) as nodes:
        (node,) = nodes
        work.apply(gpu_pod("lingers", 8, on="n1", lingers=8))
        await work.run(["lingers"])
        before = await node.device()
        await work.api.delete("/api/v1/nodes/n1")
        delete_by_force(work, "lingers")
        # it registers its Node, and finds containers of a pod that it has never heard of
        await node.restart_kubelet()

        async def written() -> bool:
            found = await work.api.items(DEVICES)
            return bool(found and found[0]["metadata"]["uid"] != before["metadata"]["uid"])

        await work.until("its Device is written for the new Node", written)
        work.apply(gpu_pod("next", 8, on="n1"))
        await runs_after(work, node, "next")


RETRIED = {
    "completionMode": "Indexed",
    "backoffLimitPerIndex": 6,
    "maxFailedIndexes": 0,
    "podFailurePolicy": {
        "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
    },
}
"""As docs/jobs.md has it: an index whose pod its kubelet did not admit is tried again."""


async def test_a_job_ends_well_though_agents_crash_and_kubelets_are_killed_while_its_pods_start(work: Work) -> None:
    async with gpu_nodes(work, {name: {"gpus": 8} for name in ("n1", "n2")}) as nodes:
        work.apply(gpu_job("burst", 24, seconds=2, parallelism=12, **RETRIED))
        for node in nodes:
            await asyncio.sleep(1)
            await node.restart_agent()
            await node.restart_kubelet(crash=True)

        async def status() -> Json:
            found: Json = json.loads(work.kubectl("get", "job", "burst", "-o", "json"))["status"]
            return found

        async def done() -> bool:
            now = await status()
            assert not [one for one in now.get("conditions", ()) if one["type"] == "Failed"]
            return bool(now.get("succeeded") == 24)

        await work.until("the Job is done", done, within_s=150)
        assert not [line for node in nodes for line in node.held_twice()]
        for node in nodes:
            node_now = await node.api.get(f"/api/v1/nodes/{node.node.name}")
            assert node_now["status"]["allocatable"][GPU] == "8"
