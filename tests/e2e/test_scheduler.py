# SPDX-License-Identifier: Apache-2.0
"""koordpy as a process against the real API server: the examples end as the offline planner says, and faults heal."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordpy.api import keys
from tests.e2e.assets import REPOSITORY
from tests.e2e.client import Client, condition, pod_manifest, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.process import Process, always, eventually, koordpy_run

EXAMPLES = REPOSITORY / "examples"
GROUPS = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/podgroups"
TOPOLOGIES = "/apis/scheduling.koordinator.sh/v1alpha1/clusternetworktopologies"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/koordpy"
BOUND = ["prefer-gather", "must-gather", "pipeline-2x2", "gang-group", "master-workers", "multiples", "plain-pod"]
Json = dict[str, Any]


def documents(path: Path) -> list[Json]:
    files = sorted(path.rglob("*.yaml")) if path.is_dir() else [path]
    return [d for file in files for d in yaml.safe_load_all(file.read_text()) if d]


def offline(*names: str) -> Json:
    """What `koordpy simulate` says of examples on the example cluster."""
    files = [str(EXAMPLES / "cluster"), *(str(EXAMPLES / f"{name}.yaml") for name in names)]
    command = [sys.executable, "-m", "koordpy", "simulate", "-o", "json", *(a for f in files for a in ("-f", f))]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, cwd=REPOSITORY)
    found: Json = json.loads(answer.stdout)
    return found


async def create(api: Client, manifest: Json) -> None:
    path = {
        "Pod": pods_path(),
        "PodGroup": GROUPS,
        "ClusterNetworkTopology": TOPOLOGIES,
        "Node": "/api/v1/nodes",
    }[manifest["kind"]]
    await api.create(path, manifest)
    if manifest["kind"] == "Node":
        # Admission taints new nodes as not ready; nothing here would take that away.
        await api.patch(f"/api/v1/nodes/{manifest['metadata']['name']}", {"spec": {"taints": None}})


@pytest.fixture
async def cluster(api: Client, crds: list[str]) -> AsyncIterator[Client]:
    """The 64 nodes of examples/cluster and their topology; everything of it is gone afterwards."""
    manifests = documents(EXAMPLES / "cluster")
    await api.each(manifests, lambda manifest: create(api, manifest))
    yield api
    await api.delete(pods_path())
    await api.delete(GROUPS)
    await api.delete(TOPOLOGIES)
    await api.delete(LEASE)


@pytest.fixture
async def scheduler(controlplane: ControlPlane, tmp_path: Path, cluster: Client) -> AsyncIterator[Process]:
    """One running scheduler."""
    process = start(controlplane, tmp_path, "koordpy").start()
    yield process
    process.stop()


def start(controlplane: ControlPlane, folder: Path, name: str, *flags: str) -> Process:
    """A scheduler, not started yet, on ports of its own."""
    return koordpy_run(
        "--bind-address", "127.0.0.1:0", *flags, kubeconfig=controlplane.kubeconfig(), folder=folder, name=name
    )


async def places(api: Client) -> dict[str, str]:
    """Pod -> node of the pods that have one."""
    pods = await api.items(pods_path())
    return {p["metadata"]["name"]: p["spec"]["nodeName"] for p in pods if p["spec"].get("nodeName")}


async def gang(
    api: Client, name: str, size: int, *, scheduler: str = keys.DEFAULT_SCHEDULER_NAME, gpus: int = 1
) -> list[Json]:
    """A PodGroup and its pods, as the API server answers them."""
    body = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": name}}
    await api.create(GROUPS, {**body, "spec": {"minMember": size}})
    made: dict[int, Json] = {}

    async def one(i: int) -> None:
        manifest = pod_manifest(
            f"{name}-{i}",
            scheduler=scheduler,
            requests={"cpu": "1", "nvidia.com/gpu": str(gpus)},
            labels={keys.LABEL_POD_GROUP: name},
        )
        made[i] = await api.create(pods_path(), manifest)

    await api.each(range(size), one)
    return [made[i] for i in range(size)]


@pytest.mark.parametrize("name", BOUND)
async def test_an_example_ends_where_the_offline_planner_puts_it(
    name: str, cluster: Client, scheduler: Process
) -> None:
    expected = offline(name)
    want = {b["pod"]: b["node"] for b in expected["bindings"]}
    assert want
    for manifest in documents(EXAMPLES / f"{name}.yaml"):
        await create(cluster, manifest)
        if manifest["kind"] == "Pod":
            # Age breaks ties between gangs; the server's clock counts whole seconds.
            await asyncio.sleep(0)

    async def bound() -> bool:
        return set(await places(cluster)) >= set(want)

    await eventually(bound, what=f"{name} bound", processes=[scheduler])
    assert await places(cluster) == want
    notes = {b["pod"]: b["annotations"] for b in expected["bindings"]}
    for pod in await cluster.items(pods_path()):
        have = pod["metadata"].get("annotations") or {}
        assert {key: have.get(key) for key in notes[pod["metadata"]["name"]]} == notes[pod["metadata"]["name"]]
        assert keys.BOUND_EPOCH in have


async def test_a_gang_that_cannot_fit_is_told_why_and_nothing_of_it_runs(cluster: Client, scheduler: Process) -> None:
    want = {p["pod"]: p["message"] for p in offline("does-not-fit")["pending"]}
    for manifest in documents(EXAMPLES / "does-not-fit.yaml"):
        await create(cluster, manifest)

    async def told() -> bool:
        found = {p["metadata"]["name"]: condition(p, "PodScheduled") for p in await cluster.items(pods_path())}
        return all((found[name] or {}).get("message") == text for name, text in want.items())

    async def announced() -> bool:
        events = await cluster.items("/apis/events.k8s.io/v1/namespaces/default/events")
        return any(event["reason"] == "FailedScheduling" for event in events)

    await eventually(told, what="every pod told", processes=[scheduler])
    await eventually(announced, what="an event FailedScheduling", processes=[scheduler])
    assert await places(cluster) == {}


async def test_a_half_bound_gang_is_finished_after_a_restart(
    controlplane: ControlPlane, tmp_path: Path, cluster: Client
) -> None:
    pods = await gang(cluster, "half", 6, gpus=8)
    for pod, node in zip(pods[:2], ("node-5", "node-6"), strict=True):
        await cluster.bind(pod, node, annotations={keys.BOUND_RANK: pod["metadata"]["name"][-1]})
    with start(controlplane, tmp_path, "after") as process:

        async def whole() -> bool:
            return len(await places(cluster)) == 6

        await eventually(whole, what="the gang whole", processes=[process])
    found = await places(cluster)
    assert (found["half-0"], found["half-1"]) == ("node-5", "node-6") and len(set(found.values())) == 6


async def test_a_scheduler_killed_among_its_bindings_finishes_its_gang(
    controlplane: ControlPlane, tmp_path: Path, cluster: Client
) -> None:
    """kill -9 as soon as the first member is bound; the next process binds the rest, and no node is overfilled."""
    first = start(controlplane, tmp_path, "first", "--kube-api-qps", "40", "--kube-api-burst", "1").start()
    await gang(cluster, "big", 300)

    async def begun() -> bool:
        return bool(await places(cluster))

    await eventually(begun, what="a first binding", every_s=0.02, processes=[first])
    first.kill()
    torn = len(await places(cluster))
    assert 0 < torn < 300, "the process was to die among its bindings"
    with start(controlplane, tmp_path, "second") as second:

        async def whole() -> bool:
            return len(await places(cluster)) == 300

        await eventually(whole, what="the gang whole", within_s=120, processes=[second])
    found = await places(cluster)
    assert max(list(found.values()).count(node) for node in set(found.values())) <= 8


async def test_of_two_replicas_one_leads_and_the_other_takes_over(
    controlplane: ControlPlane, tmp_path: Path, cluster: Client
) -> None:
    ahead = start(controlplane, tmp_path, "ahead").start()
    behind = start(controlplane, tmp_path, "behind")
    both = [ahead, behind]
    try:

        async def holder() -> str:
            leases = await cluster.items("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases")
            return next(
                (e["spec"].get("holderIdentity") or "" for e in leases if e["metadata"]["name"] == "koordpy"), ""
            )

        async def led() -> bool:
            return bool(await holder())

        await eventually(led, what="a leader", processes=[ahead])
        leader = await holder()
        behind.start()
        await gang(cluster, "g", 4)

        async def bound() -> bool:
            return len(await places(cluster)) == 4

        await eventually(bound, what="the gang bound", processes=both)
        await always(lambda: behind.running, what="the standby waits", for_s=3, processes=both)
        epochs = {p["metadata"]["annotations"][keys.BOUND_EPOCH] for p in await cluster.items(pods_path())}
        assert len(epochs) == 1 and await holder() == leader
        ahead.signal(signal.SIGTERM)

        async def other() -> bool:
            return (await holder()) not in ("", leader)

        await eventually(other, what="the other replica leads", processes=[behind])
        await eventually(lambda: not ahead.running, what="the first replica ended")
        assert ahead.exit_status == 0
        await gang(cluster, "h", 4)

        async def more() -> bool:
            return len(await places(cluster)) == 8

        await eventually(more, what="the second gang bound", processes=[behind])
    finally:
        ahead.stop()
        behind.stop()


async def test_the_operator_writes_the_status_of_the_topology_and_of_groups(
    cluster: Client, scheduler: Process
) -> None:
    for manifest in documents(EXAMPLES / "must-gather.yaml"):
        await create(cluster, manifest)

    async def written() -> bool:
        topology = await cluster.get(f"{TOPOLOGIES}/default")
        status = topology.get("status", {})
        if len(status.get("detailStatus", [])) < 3 or (condition(topology, "Valid") or {}).get("status") != "True":
            return False
        groups = await cluster.items(GROUPS)
        return bool(groups) and all(g.get("status", {}).get("scheduled", 0) >= g["spec"]["minMember"] for g in groups)

    await eventually(written, what="status written", processes=[scheduler])
    details = (await cluster.get(f"{TOPOLOGIES}/default"))["status"]["detailStatus"]
    assert details[0]["topologyInfo"]["topologyLayer"] == keys.CLUSTER_LAYER and details[0]["nodeNum"] == 64
