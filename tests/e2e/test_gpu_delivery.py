# SPDX-License-Identifier: Apache-2.0
"""Delivery by env on the real API server: the webhook it calls, the policies, the scheduler and the annotations."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from koordpy.api.keys import GPU_RESOURCES
from koordpy.operator.webhook import PATH, Webhook
from tests.e2e.chart import Helm, Release
from tests.e2e.client import Client, Refused, pod_manifest, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.installed import KOORD, Install, Json
from tests.e2e.process import Process, eventually, koordpy_run
from tests.e2e.test_gpu_policies import ALLOCATION, CUDA, DEVICES, OTHERS, VISIBLE, gpu_pod
from tests.operator.test_injection import container, review

UUIDS = [f"GPU-{n}" for n in range(4)]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def write_certificates(release: Release, folder: Path) -> str:
    """The Secret's files as the kubelet would mount them; the PEM of the authority."""
    data = release.of("Secret")["data"]
    for name, text in data.items():
        (folder / name).write_bytes(base64.b64decode(text))
    return base64.b64decode(data["ca.crt"]).decode()


def device(node: str, *, delivery: str) -> Json:
    entries = [{"type": "gpu", "minor": n, "id": uuid, "health": True} for n, uuid in enumerate(UUIDS)]
    matrix = [["X" if i == j else ("NV4" if i // 2 == j // 2 else "SYS") for j in range(4)] for i in range(4)]
    return {
        "apiVersion": f"{KOORD}/v1alpha1",
        "kind": "Device",
        "metadata": {"name": node, "labels": {"scheduling.koordinator.sh/gpu-delivery": delivery}},
        "spec": {"devices": entries, "topologies": {"gpu": [{"name": "links", "topology": json.dumps(matrix)}]}},
    }


async def test_a_gpu_pod_gets_its_variables_its_gpus_and_their_names(
    api: Client, install: Install, controlplane: ControlPlane, tmp_path: Path
) -> None:
    port = free_port()
    installed = await install({"webhook": {"enabled": True, "url": f"https://127.0.0.1:{port}"}})
    (node,) = await api.make_nodes(1, allocatable={"cpu": "8", "memory": "64Gi", "pods": "20", "nvidia.com/gpu": "4"})
    await api.create(DEVICES, device(node, delivery="env"))
    write_certificates(installed.release, tmp_path)
    kubeconfig = controlplane.kubeconfig("webhook", token=installed.token)
    flags = ["--webhook-address", f"127.0.0.1:{port}", "--webhook-certificates", str(tmp_path)]
    flags += ["--bind-address", "127.0.0.1:0", "--leader-elect=false"]
    process = koordpy_run(*flags, kubeconfig=kubeconfig, folder=tmp_path)
    try:
        with process:
            await served(api, process)
            await api.create(pods_path(), gpu_pod("train"))
            others = await api.create(pods_path(), gpu_pod("others", scheduler=OTHERS))
            assert "env" not in others["spec"]["containers"][0]

            # as much as an API server lets a pod have: it is answered, container by container
            dry = pods_path() + "?dryRun=All"
            made = await api.create(dry, of_containers(1_000))
            assert all([one["name"] for one in c["env"]][:1] == ["B"] and len(c["env"]) > 1 for c in containers(made))
            with pytest.raises(Refused, match="1001 containers"):
                await api.create(dry, of_containers(1_001))

            async def bound() -> Json | None:
                found = await api.get(f"{pods_path()}/train")
                return found if found["spec"].get("nodeName") else None

            pod = await eventually(bound, what="the pod is bound", processes=[process])
            notes = pod["metadata"]["annotations"]
            (minors,) = json.loads(notes[ALLOCATION])["allocatedGPUs"].values()
            assert [notes[VISIBLE], notes[CUDA]] == [UUIDS[int(minors[0])]] * 2
            fields = {e["name"]: e["valueFrom"]["fieldRef"]["fieldPath"] for e in pod["spec"]["containers"][0]["env"]}
            assert fields == {
                "NVIDIA_VISIBLE_DEVICES": f"metadata.annotations['{VISIBLE}']",
                "CUDA_VISIBLE_DEVICES": f"metadata.annotations['{CUDA}']",
            }
            assert await asyncio.to_thread(process.stop) == 0

        # without the webhook our GPU pods are not let in, and nobody else's notice
        with pytest.raises(Refused, match=r"gpu-variables\.koordpy\.io"):
            await api.create(pods_path(), gpu_pod("late"))
        await api.create(pods_path(), pod_manifest("unharmed", scheduler=OTHERS))
    finally:
        await api.delete(f"{DEVICES}/{node}")


def containers(pod: Json) -> list[Json]:
    found: list[Json] = pod["spec"]["containers"]
    return found


def of_containers(count: int) -> Json:
    """A pod of so many containers with a GPU each; of 1,000 nearly three megabytes, which is what API servers take."""
    pod = gpu_pod("large", env=[{"name": "B", "value": "b" * 2_600}])
    (one,) = containers(pod)
    pod["spec"]["containers"] = [{**one, "name": f"c{number}"} for number in range(count)]
    return pod


async def served(api: Client, process: Process) -> None:
    """The API server has seen the webhook and the webhook answers."""

    async def injects() -> bool:
        try:
            made = await api.create(pods_path() + "?dryRun=All", gpu_pod("probe"))
        except Refused:
            return False
        return "env" in made["spec"]["containers"][0]

    await eventually(injects, what="the webhook answers", processes=[process])


async def test_a_pod_without_its_variables_is_not_bound_where_gpus_come_by_env(
    api: Client, install: Install, controlplane: ControlPlane, tmp_path: Path
) -> None:
    installed = await install()
    (node,) = await api.make_nodes(1, allocatable={"cpu": "8", "memory": "64Gi", "pods": "20", "nvidia.com/gpu": "4"})
    await api.create(DEVICES, device(node, delivery="env"))
    try:
        with installed.run(controlplane.kubeconfig("plain", token=installed.token), tmp_path) as process:
            await api.create(pods_path(), gpu_pod("bare"))

            async def told() -> bool:
                pod = await api.get(f"{pods_path()}/bare")
                conditions = pod.get("status", {}).get("conditions", [])
                return any("deliver GPUs by env and the pod lacks" in c.get("message", "") for c in conditions)

            await eventually(told, what="the pod is told", processes=[process])
            assert await asyncio.to_thread(process.stop) == 0
    finally:
        await api.delete(f"{DEVICES}/{node}")


async def test_a_new_certificate_is_taken_without_a_restart(helm: Helm, tmp_path: Path) -> None:
    values = {"webhook": {"enabled": True, "url": "https://127.0.0.1:9443"}}
    authority = write_certificates(helm.render(values), tmp_path)
    hook = Webhook("127.0.0.1:0", tmp_path, resources=GPU_RESOURCES)
    await hook.start()
    try:
        assert (await asked(hook.port, authority))["response"]["patchType"] == "JSONPatch"
        renewed = write_certificates(helm.render(values), tmp_path)
        assert renewed != authority
        hook.reload()
        assert (await asked(hook.port, renewed))["response"]["allowed"]
    finally:
        await hook.stop()


async def asked(port: int, authority: str) -> dict[str, Any]:
    trust = ssl.create_default_context(cadata=authority)
    url = f"https://127.0.0.1:{port}{PATH}"
    async with aiohttp.ClientSession() as session, session.post(url, json=review(container(1)), ssl=trust) as reply:
        found: dict[str, Any] = await reply.json()
        return found
