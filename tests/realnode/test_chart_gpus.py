"""The agent as the chart runs it: our device plugin, and variables by the webhook behind its real Service."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from tests.e2e.chart import Helm
from tests.e2e.client import STRATEGIC, Json, condition
from tests.e2e.process import eventually
from tests.realnode.gpus import DEVICES, chosen, gpu_pod, links, seen_inside
from tests.realnode.release import NAMESPACE, Release, fake_machine
from tests.realnode.work import Work, container, pod, pod_spec

MACHINE = {"gpus": 4, "links": links((2, 3, "NV4"), gpus=4)}
NODE = "n1"
COUNTED = "aliyun.com/gpu"


@pytest.fixture
async def release(alone: Work, helm: Helm, image: str) -> AsyncIterator[Release]:
    """Not installed yet; gone at the end, with the Device of its node."""
    made = Release(helm, alone, image)
    if NAMESPACE not in [one["metadata"]["name"] for one in await alone.api.items("/api/v1/namespaces")]:
        await alone.api.make_namespace(NAMESPACE)
    # what NVIDIA's feature discovery would do
    await alone.api.patch(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": {"nvidia.com/gpu.present": "true"}}})
    yield made
    await alone.api.patch(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": {"nvidia.com/gpu.present": None}}})
    await alone.clear()
    await made.uninstall()
    await alone.api.delete(f"{DEVICES}/{NODE}")


async def install(release: Release, delivery: str, **values: object) -> None:
    machine, agent = fake_machine(MACHINE)
    release.work.cluster.plane.kubectl("apply", "-f", "-", stdin=json.dumps(machine))
    await release.install({"agent": {**agent, "enabled": True, "delivery": delivery}, **values})


async def test_the_charts_agent_delivers_what_was_chosen_as_a_device_plugin(release: Release) -> None:
    # ready is who the kubelet knows: helm has waited for it
    await install(release, "device-plugin")
    work = release.work
    device = await work.api.get(f"{DEVICES}/{NODE}")
    assert (condition(device, "DeliveryUnavailable") or {})["status"] == "False"
    work.apply(gpu_pod("pair", 2), gpu_pod("one", 1))
    seen = await work.run(["pair", "one"])
    for name, one in seen.items():
        assert seen_inside(work, name, "c0") == chosen(one)["c0"]
    assert seen_inside(work, "pair", "c0") == ["GPU-2", "GPU-3"]
    assert seen_inside(work, "one", "c0") != []


async def test_the_webhook_behind_its_service_names_the_gpus_to_each_container(release: Release) -> None:
    work = release.work
    # a resource that no plugin offers, nor did before: the kubelet only counts it
    status = {"status": {"capacity": {COUNTED: "4"}, "allocatable": {COUNTED: "4"}}}
    await work.api.patch(f"/api/v1/nodes/{NODE}/status", status, content=STRATEGIC)
    try:
        await install(release, "env", webhook={"enabled": True})
        show = ["sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES; sleep 3600"]
        two = container("two", show, requests={"cpu": "1m", COUNTED: "2"}, limits={COUNTED: "2"})
        none = container("none", show)

        async def made() -> bool:
            return bool((await work.api.get(f"{DEVICES}/{NODE}"))["spec"]["devices"])

        await eventually(made, what="the agent writes the Device", within_s=60)
        work.apply(pod("pair", pod_spec(two, none)))
        seen = (await work.run(["pair"]))["pair"]
        assert chosen(seen) == {"two": ["GPU-2", "GPU-3"]}
        assert seen_inside(work, "pair", "two") == ["GPU-2", "GPU-3"]
        assert seen_inside(work, "pair", "none") == ["void"]
    finally:
        gone: Json = {"status": {"capacity": {COUNTED: None}, "allocatable": {COUNTED: None}}}
        await work.api.patch(f"/api/v1/nodes/{NODE}/status", gone, content=STRATEGIC)
