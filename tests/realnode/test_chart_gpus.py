# SPDX-License-Identifier: Apache-2.0
"""The agent as the chart runs it: our device plugin, and variables by the webhook behind its real Service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.chart import Helm
from tests.e2e.client import STRATEGIC, Json, condition, pods_path
from tests.e2e.process import eventually
from tests.realnode.gpus import DEVICES, chosen, failed, gpu_job, gpu_pod, links, seen_inside
from tests.realnode.release import NAMESPACE, Release, fake_machine
from tests.realnode.work import Work, container, pod, pod_spec, running

MACHINE = {"gpus": 4, "links": links((2, 3, "NV4"), gpus=4)}
NODE = "n1"
AGENTS = "app.kubernetes.io%2Fcomponent%3Dagent"
PROCESSES = """
from pathlib import Path
from koordpy.agent.plugin.control_groups import ControlGroups
print(ControlGroups(Path("/host/sys/fs/cgroup")).has_processes("{uid}"))
"""
COUNTED = "aliyun.com/gpu"
FRESH_CONNECTIONS = 60
"""To each replica of the webhook."""
CLIENT: Json = {
    "apiVersion": "v1",
    "kind": "Config",
    "users": [{"name": "client", "user": {"token": "none"}}],
    "contexts": [{"name": "only", "context": {"cluster": "one", "user": "client"}}],
    "current-context": "only",
}
RUNTIME_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
RUNTIME_CLASS = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass"}


@pytest.fixture
async def release(alone: Work, helm: Helm, image: str) -> AsyncIterator[Release]:
    """Not installed yet; gone at the end, with the Device of its node."""
    made = Release(helm, alone)
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
    # the node's control groups tell the agent that a pod runs
    (agent,) = await work.api.items(f"{pods_path(NAMESPACE)}?labelSelector={AGENTS}")
    kubectl, name = work.cluster.plane.kubectl, agent["metadata"]["name"]
    asking = PROCESSES.format(uid=seen["pair"]["metadata"]["uid"])
    told = kubectl("exec", f"--namespace={NAMESPACE}", name, "--", "/opt/koordpy/bin/python", "-c", asking)
    assert told.split() == ["True"]
    # a Job that starts while the DaemonSet replaces the agent loses no pod
    await work.delete("pair", "one")
    kubectl("delete", "pod", f"--namespace={NAMESPACE}", name, "--wait=false")
    await asyncio.sleep(0.8)
    work.apply(gpu_job("train", 4))

    async def run() -> bool:
        found = await work.pods()
        assert failed(found) == {}
        return len(found) == 4 and all(map(running, found.values()))

    await work.until("the Job's pods run", run)
    (after,) = await work.api.items(f"{pods_path(NAMESPACE)}?labelSelector={AGENTS}")
    assert after["metadata"]["uid"] != agent["metadata"]["uid"]


async def answers_fresh_connections(release: Release, folder: Path) -> None:
    """Each replica answers every new connection of a Go client, as an API server is one: its ClientHello is larger than
    a packet of this network."""
    found = await release.work.api.items(
        f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app.kubernetes.io/name=koordpy"
    )
    addresses = [one["status"]["podIP"] for one in found if one["status"].get("podIP")]
    assert addresses
    at_a_time = asyncio.Semaphore(8)
    kubectl = str(release.work.cluster.plane.assets / "kubectl")

    def configured(address: str) -> Path:
        cluster = {"server": f"https://{address}:9443", "insecure-skip-tls-verify": True}
        file = folder / f"{address}.kubeconfig"
        file.write_text(json.dumps({**CLIENT, "clusters": [{"name": "one", "cluster": cluster}]}))
        return file

    async def ask(file: Path) -> str:
        asking = ["--kubeconfig", str(file), "--request-timeout=10s", "get", "--raw", "/"]
        async with at_a_time:
            client = await asyncio.create_subprocess_exec(kubectl, *asking, stderr=asyncio.subprocess.PIPE)
            return (await client.communicate())[1].decode()

    # each is complete before the first client reads it
    files = [configured(address) for address in addresses]
    answers = await asyncio.gather(*(ask(file) for file in files for _ in range(FRESH_CONNECTIONS)))
    assert [one for one in answers if "NotFound" not in one] == []


async def test_the_webhook_behind_its_service_names_the_gpus_to_each_container(
    release: Release, tmp_path: Path
) -> None:
    work = release.work
    # a resource that no plugin offers, nor did before: the kubelet only counts it
    status = {"status": {"capacity": {COUNTED: "4"}, "allocatable": {COUNTED: "4"}}}
    await work.api.patch(f"/api/v1/nodes/{NODE}/status", status, content=STRATEGIC)
    # without it the agent says that nothing can be delivered
    await work.api.create(RUNTIME_CLASSES, {**RUNTIME_CLASS, "metadata": {"name": "nvidia"}, "handler": "runc"})
    try:
        await install(release, "env", webhook={"enabled": True})
        show = ["sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES; sleep 3600"]
        two = container("two", show, requests={"cpu": "1m", COUNTED: "2"}, limits={COUNTED: "2"})
        none = container("none", show)

        async def made() -> bool:
            return bool((await work.api.get(f"{DEVICES}/{NODE}"))["spec"]["devices"])

        await eventually(made, what="the agent writes the Device", within_s=60)
        await answers_fresh_connections(release, tmp_path)
        work.apply(pod("pair", pod_spec(two, none)))
        seen = (await work.run(["pair"]))["pair"]
        assert chosen(seen) == {"two": ["GPU-2", "GPU-3"]}
        assert seen_inside(work, "pair", "two") == ["GPU-2", "GPU-3"]
        assert seen_inside(work, "pair", "none") == ["void"]
    finally:
        await work.api.delete(f"{RUNTIME_CLASSES}/nvidia")
        gone: Json = {"status": {"capacity": {COUNTED: None}, "allocatable": {COUNTED: None}}}
        await work.api.patch(f"/api/v1/nodes/{NODE}/status", gone, content=STRATEGIC)
