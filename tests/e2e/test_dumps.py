# SPDX-License-Identifier: Apache-2.0
"""A dump of a live cluster, as `kubectl get -o yaml` writes it, is planned offline as the scheduler then does it.

Gangs with a network, GPU groups, a SuperPoD job and plain pods together; what was bound before is part of the dump.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
import yaml

from koordpy.api import keys
from tests.e2e.client import Client, condition, pod_manifest, pods_path
from tests.e2e.controlplane import ControlPlane
from tests.e2e.dumped import Json, offline, planned, said
from tests.e2e.process import Process, eventually
from tests.e2e.test_ascend import CHIP, OURS, make_job, make_servers
from tests.e2e.test_ascend import worker as npu_worker
from tests.e2e.test_gangs import by_name, must
from tests.e2e.test_gpu_groups import GPU, device
from tests.e2e.test_gpu_groups import worker as gpu_worker
from tests.e2e.test_gpu_policies import DEVICES
from tests.e2e.test_scheduler import GROUPS, LEASE, TOPOLOGIES, start

MACHINES = [f"n{i}" for i in range(8)]
SERVERS = [f"s{pod}-{i}" for pod, size in ((0, 3), (1, 5)) for i in range(size)]
NODES = len(MACHINES) + len(SERVERS)
KINDS = (
    "namespaces,nodes,pods,priorityclasses,podgroups.scheduling.sigs.k8s.io,elasticquotas.scheduling.sigs.k8s.io,"
    "devices.scheduling.koordinator.sh,clusternetworktopologies"
)


@pytest.fixture
async def cluster(api: Client, crds: list[str]) -> AsyncIterator[Client]:
    """Eight GPU machines in two blocks, and two SuperPoDs of three and five nodes."""
    room = {"cpu": "96", "memory": "1024Gi", "pods": "110", GPU: "8"}
    blocks = [{"net/block": f"b{i // 4}"} for i in range(len(MACHINES))]
    await api.make_nodes(len(MACHINES), allocatable=room, name=MACHINES.__getitem__, labels=blocks.__getitem__)
    for name in MACHINES:
        await api.create(DEVICES, device(name, sick=(7,) if name == "n7" else ()))
    places = {name: {keys.SUPER_POD_ID: name[1]} for name in SERVERS}
    await make_servers(api, SERVERS, chips=16, product="module-a3-16-super-pod", labels=places)
    layers = [
        {"topologyLayer": "blockLayer", "labelKey": ["net/block"], "parentTopologyLayer": "ClusterTopologyLayer"},
        {"topologyLayer": "nodeTopologyLayer", "parentTopologyLayer": "blockLayer"},
    ]
    head = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "ClusterNetworkTopology"}
    body = {**head, "metadata": {"name": "default"}, "spec": {"networkTopologySpec": layers}}
    await api.create(TOPOLOGIES, body)
    yield api
    for path in (pods_path(), GROUPS, DEVICES, TOPOLOGIES, LEASE):
        await api.delete(path)


async def make_gang(
    api: Client, name: str, size: int, gpus: int, *, notes: Json | None = None, group: str = ""
) -> None:
    meta = {"name": name, "annotations": notes or {}}
    head = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup", "metadata": meta}
    await api.create(GROUPS, {**head, "spec": {"minMember": size}})
    for i in range(size):
        await api.create(pods_path(), member(name, i, gpus, group=group))


def member(gang: str, i: int, gpus: int, *, group: str = "") -> Json:
    pod = gpu_worker(f"{gang}-{i}", gpus, group=group)
    pod["metadata"]["labels"][keys.LABEL_POD_GROUP] = gang
    return pod


def kubectl_dump(controlplane: ControlPlane) -> Json:
    """Everything with kubectl, back from its YAML."""
    items: list[Json] = []
    for arguments in (["-A", KINDS], ["-n", "kube-system", "configmaps"]):
        command = [controlplane.assets / "kubectl", "--kubeconfig", controlplane.kubeconfig(), "get", "-o", "yaml"]
        answer = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=True)
        items += yaml.safe_load(answer.stdout)["items"]
    return {"apiVersion": "v1", "kind": "List", "items": items}


async def snapshot(process: Process) -> Json:
    """/debug/snapshot of a scheduler that runs."""
    (port,) = re.findall(r"health checks and metrics are served on port (\d+)", process.log.read_text(encoding="utf-8"))
    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/debug/snapshot") as answer:
        found: Json = await answer.json()
        return found


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def live_as_offline(
    controlplane: ControlPlane, folder: Path, api: Client, name: str
) -> tuple[Json, dict[str, Json], Json]:
    """Plans a dump, lets a scheduler do the same, compares; the dump, the pods afterwards and the simulation.

    What the scheduler then shows of the cluster is planned, too: those that wait are all there is, and told the same.

    What pods were told before is taken away: counts that merely change would be held back for half a minute.
    """
    for pod in (await by_name(api)).values():
        if not pod["spec"].get("nodeName"):
            await api.patch(f"{pods_path()}/{pod['metadata']['name']}/status", {"status": {"conditions": None}})
    dumped = kubectl_dump(controlplane)
    expected = offline("simulate", dumped, folder, "--now", now())
    want = planned(expected)
    # what nobody's change could help is not tried again: pods keep what they were told when they were tried
    first = offline("simulate", dumped, folder, "--now", now(), "--rounds", "1")
    waiting = {one["pod"]: one for one in first["pending"]}
    assert planned(first) == want
    told = {pod: (one["reason"], one["message"]) for pod, one in waiting.items()}

    def heard(pods: dict[str, Json]) -> dict[str, tuple[str, str]]:
        found = {pod: condition(pods[pod], "PodScheduled") or {} for pod in waiting}
        return {pod: (one.get("reason", ""), one.get("message", "")) for pod, one in found.items()}

    with start(controlplane, folder, name) as process:

        async def settled() -> dict[str, Json]:
            pods = await by_name(api)
            there = all(pods[pod]["spec"].get("nodeName") for pod in want)
            return pods if there and all(message for _, message in heard(pods).values()) else {}

        pods = await eventually(settled, what="everything bound or told", processes=[process])
        shown = await snapshot(process)
        assert await asyncio.to_thread(process.stop) == 0
    seen = offline("simulate", shown, folder, "--now", now(), "--rounds", "1")
    assert {one["pod"]: (one["reason"], one["message"]) for one in seen["pending"]} == told and not planned(seen)
    assert said(pods, expected) == want
    as_condition = {"NeverFits": "Unschedulable"}  # a reason of offline output alone
    assert heard(pods) == {pod: (as_condition.get(reason, reason), text) for pod, (reason, text) in told.items()}
    assert {pod["metadata"]["name"] for pod in pods.values() if not pod["spec"].get("nodeName")} == set(waiting)
    return dumped, pods, expected


async def test_a_dump_is_planned_offline_as_it_is_live(
    controlplane: ControlPlane, tmp_path: Path, cluster: Client
) -> None:
    await make_gang(cluster, "g", 3, 8, notes=must("blockLayer"))
    await make_gang(cluster, "x", 3, 3, group="x")
    for i in range(2):
        await cluster.create(pods_path(), gpu_worker(f"w-{i}", 2, group="w"))
        await cluster.create(pods_path(), pod_manifest(f"plain-{i}", scheduler=OURS, requests={"cpu": "3"}))
    await make_job(cluster, "job", 4, 16, annotations={keys.SP_BLOCK: "32"})
    await make_gang(cluster, "large", 5, 8, notes=must("blockLayer"))
    await cluster.create(pods_path(), npu_worker("odd", 3))
    linked = gpu_worker("linked", 2)
    linked["metadata"]["annotations"] = {keys.GPU_MIN_BANDWIDTH: "500"}
    await cluster.create(pods_path(), linked)
    dumped, pods, expected = await live_as_offline(controlplane, tmp_path, cluster, "first")
    assert {name.partition("-")[0] for name in planned(expected)} == {"g", "x", "w", "plain", "job"}
    assert {one["pod"].partition("-")[0] for one in expected["pending"]} == {"large", "odd", "linked"}
    before = offline("explain", dumped, tmp_path, "--now", now(), "--pod", "default/job-1")
    (place,) = (one["node"] for one in before["nodes"] if one["scores"].get("AscendAffinity") == 200)
    assert place == pods["job-1"]["spec"]["nodeName"]

    # members and ranks are lost, others come; the rest of the dump is what the scheduler itself has written
    for name in ("g-1", "job-2", "w-0"):
        await cluster.delete(f"{pods_path()}/{name}")
    pods = await by_name(cluster)
    other = await cluster.create(pods_path(), npu_worker("other", 16, scheduler="volcano"))
    await cluster.bind(other, "s1-2", annotations={CHIP: ",".join(f"Ascend910-{k}" for k in range(16))})
    await cluster.create(pods_path(), npu_worker("job-2", 16, job="job"))
    await cluster.create(pods_path(), member("g", 1, 8))
    await cluster.create(pods_path(), gpu_worker("w-0", 2, group="w"))
    await make_gang(cluster, "late", 2, 4, notes=prefer("blockLayer"))
    dumped, pods, expected = await live_as_offline(controlplane, tmp_path, cluster, "second")
    assert set(planned(expected)) == {"g-1", "job-2", "w-0", "late-0", "late-1"}

    # and what explain says of each node is what the pod was told
    found = offline("explain", kubectl_dump(controlplane), tmp_path, "--now", now(), "--pod", "default/linked")
    assert found["feasibleNodes"] == 0 and len(found["nodes"]) == NODES
    counted = Counter(reason["message"] for one in found["nodes"] for reason in one["reasons"])
    message = (condition(pods["linked"], "PodScheduled") or {})["message"]
    heard = re.match(rf"0/{NODES} nodes are available: (.*?)\. ", f"{message} ")
    assert heard, message
    assert {text: int(n) for n, text in re.findall(r"(\d+) ([^,]+)", heard[1])} == counted


def prefer(layer: str) -> Json:
    return {keys.GANG_TOPOLOGY: json.dumps({"gatherStrategy": [{"layer": layer, "strategy": "PreferGather"}]})}
