# SPDX-License-Identifier: Apache-2.0
"""The control plane that everything else here stands on: what it serves, and how the API server binds a pod."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.assets import REPOSITORY
from tests.e2e.client import Client, Refused, condition, pod_manifest, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.gang_api import GangApi, kubernetes_version, minor_of
from tests.e2e.process import eventually

NOBODY = "nobody"
PINNED = REPOSITORY / "controlplane" / "kubernetes"
TRAINING = {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "8"}


async def test_it_is_a_pinned_version_of_kubernetes(api: Client, assets: Path) -> None:
    """Version of the API server: that of the binary; unless another folder was given, one that build.sh builds."""
    version = await api.get("/version")
    built = kubernetes_version(assets)
    assert version["gitVersion"] == f"v{built}"
    minor = f"{version['major']}.{version['minor']}"
    assert minor == ".".join(map(str, minor_of(built)))
    if "KUBEBUILDER_ASSETS" not in os.environ:
        pinned = (PINNED / minor / "go.mod").read_text()
        assert f"k8s.io/kubernetes v{built} " in pinned


async def test_nodes_are_ready_and_untainted_with_their_labels_and_room(api: Client) -> None:
    names = await api.make_nodes(40, labels=lambda i: {"topology.block": f"b{i // 16}"})

    nodes = {node["metadata"]["name"]: node for node in await api.items("/api/v1/nodes")}
    assert sorted(nodes) == names
    assert all("taints" not in node["spec"] for node in nodes.values())
    assert all(node["status"]["allocatable"]["nvidia.com/gpu"] == "8" for node in nodes.values())
    assert {c["status"] for c in nodes[names[0]]["status"]["conditions"] if c["type"] == "Ready"} == {"True"}
    assert nodes[names[39]]["metadata"]["labels"]["topology.block"] == "b2"
    assert nodes[names[39]]["metadata"]["labels"]["kubernetes.io/hostname"] == names[39]


async def test_clear_leaves_neither_nodes_nor_pods(api: Client) -> None:
    await api.make_nodes(3)
    held = pod_manifest("held", scheduler=NOBODY)
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await api.create(pods_path(), held)

    await api.clear()

    assert await api.items("/api/v1/nodes") == []
    assert await api.items(pods_path()) == []


async def test_a_binding_lands_in_one_write_with_its_annotations(api: Client, namespace: str) -> None:
    node, *_ = await api.make_nodes(1)
    pod = await api.create(
        pods_path(namespace), pod_manifest("a", scheduler=NOBODY, requests=TRAINING, annotations={"kept": "yes"})
    )

    await api.bind(pod, node, annotations={"gang.scheduling.koordinator.sh/rank": "3"})

    async with asyncio.timeout(30):
        events = api.watch(pods_path(namespace), since=pod["metadata"]["resourceVersion"])
        event, bound = await anext(events)
        await events.aclose()
    assert event == "MODIFIED"
    assert bound["spec"]["nodeName"] == node
    assert bound["metadata"]["annotations"] == {"kept": "yes", "gang.scheduling.koordinator.sh/rank": "3"}
    scheduled = condition(bound, "PodScheduled")
    assert scheduled is not None and scheduled["status"] == "True"


async def test_a_binding_for_another_uid_is_a_conflict_and_binds_nothing(api: Client, namespace: str) -> None:
    node, *_ = await api.make_nodes(1)
    pod = await api.create(pods_path(namespace), pod_manifest("a", scheduler=NOBODY))

    with pytest.raises(Refused) as refused:
        await api.bind(pod, node, uid="00000000-0000-0000-0000-000000000000")

    assert (refused.value.status, refused.value.reason) == (409, "Conflict")
    assert "nodeName" not in (await api.get(f"{pods_path(namespace)}/a"))["spec"]


async def test_a_second_binding_is_a_conflict_and_moves_nothing(api: Client, namespace: str) -> None:
    first, second = await api.make_nodes(2)
    pod = await api.create(pods_path(namespace), pod_manifest("a", scheduler=NOBODY))
    await api.bind(pod, first)

    with pytest.raises(Refused) as refused:
        await api.bind(pod, second)

    assert (refused.value.status, refused.value.reason) == (409, "Conflict")
    assert (await api.get(f"{pods_path(namespace)}/a"))["spec"]["nodeName"] == first


async def test_a_user_may_do_what_its_groups_may_and_no_more(assets: Path, controlplane: ControlPlane) -> None:
    async with controlplane.client("system:kube-scheduler") as scheduler:
        assert isinstance(await scheduler.items("/api/v1/nodes"), list)
        with pytest.raises(Refused) as refused:
            await scheduler.items("/api/v1/secrets")
    assert refused.value.status == 403


async def test_kubectl_talks_to_it(api: Client, controlplane: ControlPlane) -> None:
    if not (controlplane.assets / "kubectl").exists():
        pytest.skip("KUBEBUILDER_ASSETS has no kubectl")
    await api.make_nodes(2)

    assert controlplane.kubectl("get", "nodes", "-o", "name").split() == ["node/n00000", "node/n00001"]
    with pytest.raises(subprocess.CalledProcessError, match="non-zero exit status 1") as failed:
        controlplane.kubectl("get", "node", "n00009")
    assert 'nodes "n00009" not found' in failed.value.stderr


async def test_kube_scheduler_places_a_gang_of_the_upstream_api(assets: Path, gangs: GangApi, tmp_path: Path) -> None:
    groups = gangs.groups
    plane = ControlPlane(
        assets, folder=tmp_path, upstream_gangs=True, unlimited=True, controller_manager=True, scheduler=True
    )
    with plane:
        async with plane.client() as api:
            await api.make_nodes(4)
            group = {"metadata": {"name": "g"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 4}}}}
            await api.create(groups, {"apiVersion": gangs.group_version, "kind": "PodGroup", **group})
            gang = {"schedulingGroup": {"podGroupName": "g"}}
            for i in range(4):
                await api.create(
                    pods_path(), pod_manifest(f"g-{i}", scheduler="default-scheduler", requests=TRAINING, spec=gang)
                )

            async def nodes_of_the_gang() -> set[str]:
                nodes = {pod["spec"].get("nodeName", "") for pod in await api.items(pods_path())}
                return nodes if "" not in nodes else set()

            assert len(await eventually(nodes_of_the_gang, what="gang bound", processes=plane.processes)) == 4

            # The controller manager takes the finalizer off the group once its pods are gone.
            await api.clear()
            await api.delete(f"{groups}/g")

            async def group_is_gone() -> bool:
                return not await api.items(groups)

            await eventually(group_is_gone, what="the PodGroup gone", processes=plane.processes)
    assert not any(process.running for process in plane.processes)
