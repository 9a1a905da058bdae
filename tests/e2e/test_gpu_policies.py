# SPDX-License-Identifier: Apache-2.0
"""Who may write what about GPUs: the chart's admission policies on the real API server, and the agent under them."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from koordpy.api import keys
from tests.e2e.client import APPLY, Client, Refused, condition, pod_manifest, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.installed import KOORD, RELEASE, Install, Installed, Json, enforced
from tests.e2e.process import Process, eventually

NOT_OF_PODS = {keys.DEVICE_BOOT, keys.PROVISIONING_FOR, keys.PROVISIONING_ATTEMPT}
DEVICES = f"/apis/{KOORD}/v1alpha1/devices"
ALLOCATION, VISIBLE = (
    "topology.scheduling.koordinator.sh/gpu",
    "topology.scheduling.koordinator.sh/nvidia-visible-devices",
)
CUDA, ALLOCATED = (
    "topology.scheduling.koordinator.sh/cuda-visible-devices.0",
    "scheduling.koordinator.sh/device-allocated",
)
OURS, OTHERS = "koord-scheduler", "default-scheduler"
PLUGIN = {"agent": {"enabled": True, "delivery": "device-plugin"}}


async def token_of(api: Client, installed: Installed, account: str, *, node: str = "") -> str:
    """A token of an account; node: as the kubelet of a node gets it for a pod there."""
    spec: Json = {"expirationSeconds": 3600}
    if node:
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Node", "name": node}
    wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    answer = await api.create(f"/api/v1/namespaces/{installed.namespace}/serviceaccounts/{account}/token", wanted)
    return str(answer["status"]["token"])


@asynccontextmanager
async def account_of(
    api: Client, installed: Installed, plane: ControlPlane, account: str, *, node: str = ""
) -> AsyncIterator[Client]:
    token = await token_of(api, installed, account, node=node)
    async with Client(plane.url, token=token, ca=plane.ca) as client:
        yield client


def gpu_pod(
    name: str, *, scheduler: str = OURS, annotations: Json | None = None, env: list[Json] | None = None
) -> Json:
    manifest = pod_manifest(name, scheduler=scheduler, requests={"nvidia.com/gpu": "1"})
    manifest["metadata"]["annotations"] = annotations or {}
    if env:
        manifest["spec"]["containers"][0]["env"] = env
    return manifest


async def refused(call: object, said: str) -> None:
    with pytest.raises(Refused) as raised:
        await call  # type: ignore[misc]
    assert raised.value.status == 403, raised.value
    assert said in raised.value.message


async def test_nobody_but_the_scheduler_says_which_gpus_a_pod_has(
    api: Client, install: Install, controlplane: ControlPlane
) -> None:
    installed = await install()
    (node,) = await api.make_nodes(1)
    await enforced(api)
    for key in (ALLOCATION, VISIBLE, CUDA):
        for scheduler in (OURS, OTHERS):
            await refused(api.create(pods_path(), gpu_pod("p", scheduler=scheduler, annotations={key: "0"})), key)
    for key in (ALLOCATED, "ALIYUN_COM_GPU_ID_0"):
        await refused(api.create(pods_path(), gpu_pod("p", annotations={key: "0"})), key)
        await api.create(pods_path(), gpu_pod("of-others", scheduler=OTHERS, annotations={key: "0"}))
        await api.delete(f"{pods_path()}/of-others")

    pod = await api.create(pods_path(), gpu_pod("p", annotations={"note": "mine"}))
    path = f"{pods_path()}/p"
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", "uid": pod["metadata"]["uid"], "annotations": {ALLOCATION: '{"allocatedGPUs": {}}'}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    await installed.client.create(f"{path}/binding", binding)
    assert (await api.get(path))["metadata"]["annotations"][ALLOCATION]
    await api.patch(path, {"metadata": {"annotations": {"note": "changed"}}})
    await refused(api.patch(path, {"metadata": {"annotations": {ALLOCATION: "{}"}}}), f"writes {ALLOCATION}")
    await refused(api.patch(path, {"metadata": {"annotations": {VISIBLE: "all"}}}), f"writes {VISIBLE}")
    await refused(api.patch(path, {"metadata": {"annotations": {ALLOCATION: None}}}), f"removes {ALLOCATION}")
    await refused(api.patch(f"{path}/status", {"metadata": {"annotations": {CUDA: "all"}}}), f"writes {CUDA}")
    await api.patch(f"{path}/status", {"status": {"phase": "Running"}})


async def test_nobody_else_says_of_our_pods_what_the_scheduler_says(api: Client, install: Install) -> None:
    await install()
    await enforced(api)
    for key in {*keys.WRITTEN, f"{keys.GPU_CUDA_VISIBLE_PREFIX}init-0"} - NOT_OF_PODS:
        await refused(api.create(pods_path(), gpu_pod("p", annotations={key: "0"})), key)
    await api.create(pods_path(), gpu_pod("p", scheduler=OTHERS, annotations={keys.BOUND_RANK: "0"}))


async def test_schedulers_and_agents_of_other_releases_write_where_they_are_named(
    api: Client, install: Install, controlplane: ControlPlane
) -> None:
    """Two releases with the policies of both: each lets in its own accounts, and here those of the other."""
    installed = await install(PLUGIN)
    for name in ("green", "green-agent", "blue"):
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
        await api.create(f"/api/v1/namespaces/{installed.namespace}/serviceaccounts", account)
    prefix = f"system:serviceaccount:{installed.namespace}:"
    names = {"schedulers": [f"{prefix}green"], "agents": [f"{prefix}green-agent"]}
    await install({**PLUGIN, "gpuPolicies": names})
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "theirs"}}
    everybody = {"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "system:serviceaccounts"}
    admin = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    await api.create(bindings, {**role, "subjects": [everybody], "roleRef": admin})
    here, there = await api.make_nodes(2)
    await enforced(api)
    try:
        async with (
            account_of(api, installed, controlplane, "green") as green,
            account_of(api, installed, controlplane, "blue") as blue,
            account_of(api, installed, controlplane, "green-agent", node=here) as agent,
        ):
            written = gpu_pod("p", annotations={keys.BOUND_RANK: "0"})
            dry = pods_path() + "?dryRun=All"

            async def let_in() -> bool:
                try:
                    await green.create(dry, written)
                except Refused:
                    return False
                return True

            await eventually(let_in, what="the named scheduler is let in")
            await refused(blue.create(dry, written), "only the scheduler writes")
            force = "?fieldManager=koordpy-agent&force=true&dryRun=All"
            await agent.call("PATCH", f"{DEVICES}/{here}{force}", device(here), content=APPLY)
            for other, name in ((blue, here), (agent, there)):
                path = f"{DEVICES}/{name}{force}"
                await refused(other.call("PATCH", path, device(name), content=APPLY), "only the agent of the node")
    finally:
        await api.delete(f"{bindings}/theirs")


async def test_a_gpu_pod_of_ours_does_not_name_its_gpus_itself(api: Client, install: Install) -> None:
    await install()
    await enforced(api)
    every = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
    await refused(api.create(pods_path(), gpu_pod("p", env=[every])), "the scheduler chooses the GPUs")
    second = gpu_pod("p")
    second["spec"]["initContainers"] = [
        {"name": "init", "image": "x", "env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]}
    ]
    await refused(api.create(pods_path(), second), "the scheduler chooses the GPUs")
    field = {"fieldRef": {"fieldPath": f"metadata.annotations['{VISIBLE}']"}}
    for name, env in (("void", {"value": "void"}), ("injected", {"valueFrom": field})):
        await api.create(pods_path(), gpu_pod(name, env=[{"name": "NVIDIA_VISIBLE_DEVICES", **env}]))
    await api.create(pods_path(), gpu_pod("others", scheduler=OTHERS, env=[every]))
    no_gpu = pod_manifest("no-gpu", scheduler=OURS)
    no_gpu["spec"]["containers"][0]["env"] = [every]
    await api.create(pods_path(), no_gpu)


def device(name: str) -> Json:
    return {"apiVersion": f"{KOORD}/v1alpha1", "kind": "Device", "metadata": {"name": name}, "spec": {"devices": []}}


async def test_an_agent_writes_the_device_and_the_pods_of_its_own_node_only(
    api: Client, install: Install, controlplane: ControlPlane
) -> None:
    installed = await install(PLUGIN)
    here, there = await api.make_nodes(2)
    await enforced(api)
    pods = {}
    for name, node in (("here", here), ("there", there)):
        pods[name] = await api.create(pods_path(), gpu_pod(name))
        await api.bind(pods[name], node)
    async with account_of(api, installed, controlplane, f"{RELEASE}-agent", node=here) as agent:
        force = "?fieldManager=koordpy-agent&force=true"
        await agent.call("PATCH", f"{DEVICES}/{here}{force}", device(here), content=APPLY)
        only = "only the agent of the node may write a Device"
        await refused(agent.call("PATCH", f"{DEVICES}/{there}{force}", device(there), content=APPLY), only)
        await refused(api.create(DEVICES, device(there)), only)
        await refused(
            api.patch(f"{DEVICES}/{here}", {"spec": {"devices": []}, "metadata": {"labels": {"a": "b"}}}), only
        )
        swap = {"metadata": {"annotations": {ALLOCATION: "{}", VISIBLE: "GPU-1", CUDA: "GPU-1", ALLOCATED: "{}"}}}
        await agent.patch(f"{pods_path()}/here", swap)
        await refused(agent.patch(f"{pods_path()}/there", swap), "")
        nothing = "nothing but the annotations"
        for change in (
            {"metadata": {"annotations": {"note": "x"}}},
            {"metadata": {"labels": {"a": "b"}}},
            {"metadata": {"finalizers": ["a.example/b"]}},
            {"spec": {"activeDeadlineSeconds": 5}},
        ):
            await refused(agent.patch(f"{pods_path()}/here", change), nothing)
        for method, path in (("GET", "/api/v1/secrets"), ("DELETE", f"{DEVICES}/{here}"), ("GET", "/api/v1/nodes")):
            await refused(agent.call(method, path), "")
    await api.delete(f"{DEVICES}/{here}")


async def test_an_agent_writes_the_links_to_its_own_node_only_and_nothing_else_of_it(
    api: Client, install: Install, controlplane: ControlPlane
) -> None:
    here, there = await api.make_nodes(2)
    account, nodes = f"{RELEASE}-agent", "/api/v1/nodes"
    links = {"metadata": {"annotations": {"GSOC_ID_0_1": "NV4"}}}
    installed = await install({"agent": {"enabled": True}})
    await enforced(api)
    async with account_of(api, installed, controlplane, account, node=here) as agent:
        await refused(agent.patch(f"{nodes}/{here}", links), "cannot patch")
    installed = await install({"agent": {"enabled": True, "gsocAnnotations": True}})
    await enforced(api)
    async with account_of(api, installed, controlplane, account, node=here) as agent:

        async def let_in() -> bool:
            try:
                await agent.patch(f"{nodes}/{here}", links)
            except Refused:
                return False
            return True

        await eventually(let_in, what="the right is known")
        await agent.patch(f"{nodes}/{here}", {"metadata": {"annotations": {"GSOC_ID_0_1": None, "GSOC_ID_1_2": "PIX"}}})
        for change in (
            {"metadata": {"annotations": {"note": "x"}}},
            {"metadata": {"labels": {"a": "b"}}},
            {"metadata": {"finalizers": ["a.example/b"]}},
            {"spec": {"unschedulable": True}},
        ):
            await refused(agent.patch(f"{nodes}/{here}", change), "nothing but the annotations GSOC_ID_")
        await refused(agent.patch(f"{nodes}/{there}", links), "only change its own node")
        status = {"status": {"capacity": {"nvidia.com/gpu": "8"}}}
        await refused(agent.patch(f"{nodes}/{here}/status", status), "cannot patch")
    assert (await api.get(f"{nodes}/{here}"))["metadata"]["annotations"]["GSOC_ID_1_2"] == "PIX"


async def test_the_agent_reports_with_the_rights_of_the_chart(
    api: Client, install: Install, controlplane: ControlPlane, tmp_path: Path
) -> None:
    installed = await install({"agent": {"enabled": True, "gsocAnnotations": True}})
    (node,) = await api.make_nodes(1)
    await enforced(api)
    machine = tmp_path / "machine.yaml"
    machine.write_text("gpus: 4\nfabric: 18\nfaults: [{poll: 3, uuid: GPU-2, xid: 79}]\n")
    kubeconfig = controlplane.kubeconfig("agent", token=await token_of(api, installed, f"{RELEASE}-agent", node=node))
    command = [
        sys.executable,
        "-m",
        "koordpy",
        "agent",
        "--node",
        node,
        "--backend",
        f"fake:{machine}",
        "--gsoc-annotations",
        "--poll",
        "0.5",
    ]
    process = Process("agent", [*command, "--kubeconfig", kubeconfig], log=tmp_path / "agent.log")
    with process:

        async def lost() -> bool:
            try:
                found = await api.get(f"{DEVICES}/{node}")
            except Refused:
                return False
            healthy = [entry["health"] for entry in found["spec"]["devices"]]
            ready = (condition(found, "Ready") or {}).get("status")
            return healthy == [True, True, False, True] and ready == "True"

        await eventually(lost, what="the lost GPU is reported", processes=[process])
        found = await api.get(f"{DEVICES}/{node}")
        assert (
            found["metadata"]["ownerReferences"][0]["uid"]
            == (await api.get(f"/api/v1/nodes/{node}"))["metadata"]["uid"]
        )
        annotations = (await api.get(f"/api/v1/nodes/{node}"))["metadata"]["annotations"]
        pairs = {(a, b) for a in range(4) for b in range(a + 1, 4)}
        assert {f"GSOC_ID_{a}_{b}" for a, b in pairs} <= set(annotations)
        assert process.stop() == 0
    await api.delete(f"{DEVICES}/{node}")


@pytest.mark.parametrize("served", [OURS, OTHERS])
async def test_without_a_replica_of_the_webhook_only_gpu_pods_are_refused(
    served: str, api: Client, install: Install
) -> None:
    """A cluster must be able to start while no replica answers, also where koordpy is its only scheduler."""
    closed = {"enabled": True, "renderCertificate": True, "url": "https://127.0.0.1:9"}
    installed = await install(
        {"webhook": closed, "gpuPolicies": {"enabled": False}, "config": {"schedulerNames": [served]}}
    )

    async def create(scheduler: str, *, namespace: str = "default", init: bool = False, **requests: str) -> Json:
        manifest = pod_manifest("p", scheduler=scheduler, requests=requests)
        if init:
            (container,) = manifest["spec"]["containers"]
            manifest["spec"]["initContainers"] = [{**container, "name": "first"}]
            container["resources"] = {}
        return await api.create(f"{pods_path(namespace)}?dryRun=All", manifest)

    gpu = {"nvidia.com/gpu": "1"}

    async def is_refused() -> bool:
        try:
            await create(served, **gpu)
        except Refused as refusal:
            return "gpu-variables.koordpy.io" in refusal.message
        return False

    await eventually(is_refused, what="the webhook is asked")
    for asked in (gpu, {"koordinator.sh/gpu": "100"}, {"aliyun.com/gpu-count": "1"}):
        for init in (False, True):
            with pytest.raises(Refused, match=r"gpu-variables\.koordpy\.io"):
                await create(served, init=init, **asked)
    await create(served, cpu="1")
    await create(served, init=True, cpu="1")
    await create(served, **{"huawei.com/Ascend910": "1"})
    await create("another-scheduler", **gpu)
    for namespace in ("kube-system", installed.namespace):
        await create(served, namespace=namespace, **gpu)
