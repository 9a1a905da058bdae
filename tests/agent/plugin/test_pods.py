# SPDX-License-Identifier: Apache-2.0
"""The node's pods at an API server: what is reserved, and what is written when two pods got each other's GPUs."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from koordpy.agent.gpu_facts import MachineGpu
from koordpy.agent.plugin.delivery_ledger import ReservedGpus
from koordpy.agent.plugin.node_pods import NodePods
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.credentials import ClusterAccess
from tests.agent.plugin.test_annotations import CUDA, GPU, notes
from tests.clusters import node
from tests.faults import FaultyServer

GPUS = [MachineGpu(index=n, minor=n, uuid=f"GPU-{n}") for n in range(4)]
PODS = "/api/v1/namespaces/default/pods"


def container(name: str, gpus: int) -> dict[str, Any]:
    amounts = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return {"name": name, "image": "x", "resources": {"requests": amounts, "limits": amounts}}


def pod(
    name: str, *gpus: int, on: str = "n1", annotations: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"nodeName": on, "containers": [container(f"c{i}", n) for i, n in enumerate(gpus)], **spec},
    }


@pytest.fixture
async def client() -> AsyncIterator[ApiClient]:
    async with FaultyServer() as server, ApiClient(ClusterAccess(server=server.url)) as running:
        for name in ("n1", "n2"):
            await running.post("/api/v1/nodes", node(name))
        yield running


def pods_of(client: ApiClient) -> NodePods:
    return NodePods(client, "n1", resource="nvidia.com/gpu", gpus=lambda: GPUS)


async def test_containers_have_reserved_what_the_annotation_says(client: ApiClient) -> None:
    inits = [container("init", 2), {**container("side", 1), "restartPolicy": "Always"}]
    both = {**notes([0], [], [2, 3]), f"{CUDA}init-0": "GPU-0,GPU-2", f"{CUDA}init-1": "GPU-1"}
    await client.post(PODS, pod("a", 1, 0, 2, annotations=both, initContainers=inits))
    await client.post(PODS, pod("elsewhere", 1, on="n2", annotations=notes([1])))
    await client.post(PODS, pod("silent", 1))
    odd = {"broken": "[", "endless": '{"allocatedGPUs":{"0":[1e999]}}', "deep": "[" * 20_000}
    for name, text in odd.items():
        await client.post(PODS, pod(name, 1, annotations={GPU: text}))
    await client.post(PODS, pod("short", 2, annotations=notes([1])))
    await client.post(PODS, pod("unknown", 1, annotations=notes([9])))
    await client.post(PODS, pod("none", 0))
    found = {
        (one.pod, part.place, part.container): (part.gpus, part.passing)
        for one in await pods_of(client).read()
        for part in one.parts
    }
    assert found == {
        ("a", "init-0", "init"): (("GPU-0", "GPU-2"), True),
        ("a", "init-1", "side"): (("GPU-1",), False),
        ("a", "0", "c0"): (("GPU-0",), False),
        ("a", "2", "c2"): (("GPU-2", "GPU-3"), False),
        **{(name, "0", "c0"): ((), False) for name in ("silent", *odd, "short", "unknown")},
    }


async def test_a_pod_that_was_admitted_or_deleted_is_asked_for_nothing_more(client: ApiClient) -> None:
    await client.post(PODS, pod("a", 1, annotations=notes([0])))
    await client.post(PODS, pod("b", 1, annotations=notes([1])))
    await client.patch(f"{PODS}/b/status", {"status": {"startTime": "2026-01-01T00:00:00Z"}})
    assert {one.pod: one.settled for one in await pods_of(client).read()} == {"a": False, "b": True}


def exchanged(*pods: ReservedGpus) -> list[ReservedGpus]:
    """Each with the GPUs of the next."""
    return [one.with_gpus(other.gpus) for one, other in zip(pods, [*pods[1:], pods[0]], strict=True)]


async def test_an_exchange_is_written_on_both_pods(client: ApiClient) -> None:
    await client.post(PODS, pod("a", 1, annotations=notes([0])))
    await client.post(PODS, pod("b", 1, annotations=notes([1])))
    pods = pods_of(client)
    a, b = sorted(await pods.read(), key=lambda one: one.pod)
    await pods.write(exchanged(a, b))
    found = {one.pod: one.parts[0].gpus for one in await pods.read()}
    assert found == {"a": ("GPU-1",), "b": ("GPU-0",)}
    written = await client.get(f"{PODS}/a", type=dict[str, Any])
    assert {**notes([1])}.items() <= written["metadata"]["annotations"].items()


async def test_at_no_moment_of_an_exchange_is_one_of_the_gpus_free(client: ApiClient) -> None:
    for name, minors in (("a", [0]), ("b", [1]), ("c", [2])):
        await client.post(PODS, pod(name, 1, annotations=notes(minors)))
    pods = pods_of(client)
    a, b, c = sorted(await pods.read(), key=lambda one: one.pod)
    seen = []
    patch = client.patch

    async def watched(path: str, body: Any, **options: Any) -> Any:
        result = await patch(path, body, **options)
        page = await client.list_page(PODS, type=dict[str, Any])
        held: set[str] = set()
        for one in page.items or ():
            for minors in json.loads(one["metadata"]["annotations"][GPU])["allocatedGPUs"].values():
                held |= set(minors)
        seen.append(held)
        return result

    client.patch = watched  # type: ignore[method-assign]
    await pods.write(exchanged(a, b, c))
    assert len(seen) == 6
    assert all(held == {"0", "1", "2"} for held in seen)


async def test_a_pod_that_has_gone_or_was_made_anew_is_passed_over(client: ApiClient) -> None:
    await client.post(PODS, pod("a", 1, annotations=notes([0])))
    await client.post(PODS, pod("b", 1, annotations=notes([1])))
    pods = pods_of(client)
    a, b = sorted(await pods.read(), key=lambda one: one.pod)
    await client.request("DELETE", f"{PODS}/a", body={"gracePeriodSeconds": 0})
    await client.post(PODS, pod("a", 1, annotations=notes([3])))
    await pods.write(exchanged(a, b))
    found = {one.pod: one.parts[0].gpus for one in await pods.read()}
    assert found == {"a": ("GPU-3",), "b": ("GPU-0",)}


@pytest.mark.parametrize(
    ("phase", "states", "finished", "ended"),
    [
        ("Running", [{"running": {}}], False, False),
        ("Running", [{"terminated": {"exitCode": 0}}], False, False),
        ("Succeeded", [{"terminated": {"exitCode": 0}}], True, True),
        ("Failed", [], True, True),
        ("Failed", [{"terminated": {"exitCode": 1}}, {"running": {}}], True, False),
        ("Failed", [{"waiting": {}}], True, False),
    ],
)
async def test_a_phase_that_its_kubelet_did_not_write_is_told_by_containers_that_run(
    client: ApiClient, phase: str, states: list[Any], finished: bool, ended: bool
) -> None:
    await client.post(PODS, pod("a", 1, annotations=notes([0]), terminationGracePeriodSeconds=7))
    statuses = [{"name": f"c{n}", "state": state} for n, state in enumerate(states)]
    await client.patch(f"{PODS}/a/status", {"status": {"phase": phase, "containerStatuses": statuses}})
    (found,) = await pods_of(client).read()
    assert (found.finished, found.ended, found.grace_seconds) == (finished, ended, 7.0)


async def test_a_pod_of_the_gpushare_form_is_marked_once_it_has_its_gpus(client: ApiClient) -> None:
    waits = {"ALIYUN_COM_GPU_ASSIGNED": "false", "ALIYUN_COM_GPU_ASSUME_TIME": "1"}
    await client.post(PODS, pod("a", 1, annotations={**notes([0]), **waits}))
    await client.post(PODS, pod("b", 1, annotations={**notes([1]), **waits}))
    await client.post(PODS, pod("c", 1, annotations=notes([2])))
    pods = pods_of(client)
    uids = {one.pod: one.uid for one in await pods.read()}
    await pods.confirm([uids["a"], uids["c"], "gone"])
    marks = {}
    for name in "abc":
        found = (await client.get(f"{PODS}/{name}", type=dict[str, Any]))["metadata"]["annotations"]
        marks[name] = found.get("ALIYUN_COM_GPU_ASSIGNED"), int(found.get("ALIYUN_COM_GPU_ASSUME_TIME", "0")) > 1
    assert marks == {"a": ("true", True), "b": ("false", False), "c": (None, False)}
