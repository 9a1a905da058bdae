# SPDX-License-Identifier: Apache-2.0
"""/debug/snapshot holds every kind that is read: what is said offline of it is what was said live."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordpy.api import keys
from koordpy.cli.main import main
from koordpy.config.configuration import PodTopologySpreadArgs
from koordpy.config.node_failures import Autoscaling, Provisioning
from koordpy.engine.scheduler import Scheduler
from koordpy.offline.read_kinds import _KINDS
from tests.docs.worked import ROOT
from tests.engine.live import Live, live, until
from tests.scenarios.npus import N910, ids

Manifest = dict[str, Any]
GROUPS = (keys.GROUP_SIGS, keys.GROUP_X)
DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"
NOT_WATCHED = {"Workload", "ResourceClaimTemplate", "ComputeDomain"}
"""Their pod groups and claims are what decides."""
OTHERS = {
    (keys.GROUP_X, "v1alpha1"): ("ElasticQuota",),
    (keys.GROUP_UPSTREAM, "v1alpha2"): ("PodGroup",),
    (keys.GROUP_VOLCANO_TOPOLOGY, "v1alpha1"): ("HyperNode",),
    (keys.GROUP_NODE_TOPOLOGY, "v1alpha2"): ("NodeResourceTopology",),
    (keys.GROUP_AUTOSCALING, "v1"): ("ProvisioningRequest",),
}
"""Kinds whose definitions koordpy reads and does not ship."""
SPECS: dict[str, Manifest] = {
    "ResourceSlice": {"spec": {"driver": "d", "nodeName": "n1", "pool": {"name": "n1", "resourceSliceCount": 1}}},
    "ConfigMap": {"metadata": {"name": keys.SWITCH_TABLE, "namespace": keys.SYSTEM_NAMESPACE}},
    "Pod": {"spec": {"containers": [{"name": "c", "image": "i"}]}},
    "StorageClass": {"provisioner": "disks.example.com"},
    "PriorityClass": {"value": 7},
    "HyperNode": {"spec": {"tier": 1}},
    "ClusterNetworkTopology": {
        "spec": {"hierarchy": [{"layerName": keys.NODE_LAYER, "parentTopologyLayer": keys.CLUSTER_LAYER}]}
    },
}


def make(cluster: Live, manifest: Manifest) -> None:
    """What kubectl apply does."""
    group = manifest["apiVersion"].rpartition("/")[0]
    (resource,) = (one for one in cluster.server.store.registry if (one.group, one.kind) == (group, manifest["kind"]))
    if resource.namespaced:
        manifest["metadata"].setdefault("namespace", "default")
    cluster.server.store.create(resource.shelf, manifest)


def define(cluster: Live) -> None:
    loose = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    for (group, version), kinds in OTHERS.items():
        for kind in kinds:
            plural = f"{kind.lower()[:-1]}ies" if kind.endswith("y") else f"{kind.lower()}s"
            names = {"plural": plural, "kind": kind}
            versions = [{"name": version, "served": True, "storage": True, "schema": loose}]
            scope = "Cluster" if kind in ("HyperNode", "NodeResourceTopology") else "Namespaced"
            spec = {"group": group, "names": names, "scope": scope, "versions": versions}
            cluster.server.store.create(DEFINITIONS, {"metadata": {"name": f"{names['plural']}.{group}"}, "spec": spec})


def dumped(scheduler: Scheduler) -> list[Manifest]:
    items: list[Manifest] = json.loads(scheduler.inspection.snapshot()())["items"]
    return items


async def test_it_holds_every_kind_that_the_offline_commands_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = {(group, kind) for group, kind in _KINDS if kind not in NOT_WATCHED}
    async with live() as cluster:
        define(cluster)
        versions = {(one.group, one.kind): one for one in cluster.server.store.registry}
        for number, at in enumerate(sorted(kinds)):
            resource = versions[at]
            meta = {"name": f"one-{number}", **({"namespace": "default"} if resource.namespaced else {})}
            manifest = {"metadata": meta, **SPECS.get(resource.kind, {})}
            cluster.server.store.create(resource.shelf, manifest)
        requests = Autoscaling(provisioning=Provisioning(mode="all"))  # read only with a mode
        spread = PodTopologySpreadArgs(defaulting_type="System")
        async with cluster.running(constraints=spread, autoscaling=requests) as scheduler:
            await until(lambda: {(_group(item), item["kind"]) for item in dumped(scheduler)} == kinds)
            (tmp_path / "dump.json").write_bytes(scheduler.inspection.snapshot()())
    assert main(["simulate", "-f", str(tmp_path / "dump.json")]) == 0, capsys.readouterr().err


def _group(item: Manifest) -> str:
    return str(item["apiVersion"].rpartition("/")[0])


async def test_of_an_object_in_two_groups_it_holds_the_one_that_counts() -> None:
    async with live() as cluster:
        define(cluster)
        for group in GROUPS:
            meta = {"name": "g", "namespace": "default"}
            cluster.server.store.create(f"podgroups.{group}", {"metadata": meta, "spec": {"minMember": 2}})
        async with cluster.running() as scheduler:
            await until(lambda: cluster.is_known_to(scheduler, *(f"podgroups.{group}" for group in GROUPS)))
            groups = [item["apiVersion"] for item in dumped(scheduler) if item["kind"] == "PodGroup"]
            assert groups == [f"{keys.GROUP_SIGS}/v1alpha1"]


def of_examples(*files: str) -> list[Manifest]:
    documents = [
        one for file in files for one in yaml.safe_load_all((ROOT / "examples" / file).read_text(encoding="utf-8"))
    ]
    return [manifest for document in documents for manifest in document.get("items", [document])]


def asking(resource: str, product: str = "") -> list[Manifest]:
    """A node of eight devices, and a pod that asks for them all."""
    amounts = {"cpu": "8", "memory": "8Gi", "pods": "8", resource: "8"}
    labels = {keys.ACCELERATOR_TYPE: product} if product else {}
    node = {"metadata": {"name": "n1", "labels": labels}, "status": {"capacity": amounts, "allocatable": amounts}}
    whole = {resource: "8"}
    container = {"name": "c", "image": "i", "resources": {"requests": whole, "limits": whole}}
    spec = {"schedulerName": keys.DEFAULT_SCHEDULER_NAME, "containers": [container]}
    return [
        {"apiVersion": "v1", "kind": "Node", **node},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec},
    ]


SICK_GPU = {
    "apiVersion": "scheduling.koordinator.sh/v1alpha1",
    "kind": "Device",
    "metadata": {"name": "n1"},
    "spec": {"devices": [{"type": "gpu", "minor": i, "id": f"GPU-{i}", "health": i != 7} for i in range(8)]},
}
SICK_NPU = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": f"{keys.DEVICE_INFO_PREFIX}n1", "namespace": keys.SYSTEM_NAMESPACE},
    "data": {keys.DEVICE_INFO_KEY: json.dumps({"DeviceInfo": {"DeviceList": {N910: ids(range(7))}}})},
}


@pytest.mark.parametrize(
    "manifests",
    [
        pytest.param([*asking("nvidia.com/gpu"), SICK_GPU], id="a GPU that is sick"),
        pytest.param([*asking(N910, "module-910b-8"), SICK_NPU], id="an NPU that is sick"),
        pytest.param(of_examples("quotas/tree.yaml"), id="a quota"),
        pytest.param(of_examples("preemption/not-enough.yaml"), id="priorities"),
        pytest.param(
            of_examples("cluster/nodes.yaml", "cluster/topology.yaml", "does-not-fit.yaml"), id="a layer of the network"
        ),
    ],
)
async def test_what_is_said_offline_of_a_pod_that_waits_is_what_it_was_told(
    manifests: list[Manifest], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with live() as cluster:
        for manifest in manifests:
            make(cluster, manifest)
        async with cluster.running() as scheduler:
            await until(lambda: all(map(_settled, cluster.pods().values())))
            conditions = {f"default/{name}": cluster.condition(name) for name in cluster.pods()}
            told = {name: one["message"] for name, one in conditions.items() if one.get("status") == "False"}
            (tmp_path / "dump.json").write_bytes(scheduler.inspection.snapshot()())
    assert told
    assert main(["simulate", "-f", str(tmp_path / "dump.json"), "-o", "json"]) == 0
    said = json.loads(capsys.readouterr().out)["pending"]
    assert {f"{one['namespace']}/{one['pod']}": one["message"] for one in said} == told


def _settled(pod: Manifest) -> bool:
    """It has a node or knows why not."""
    return bool(pod["spec"].get("nodeName") or pod.get("status", {}).get("conditions"))
