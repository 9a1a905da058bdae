# SPDX-License-Identifier: Apache-2.0
"""The command that dumps a cluster names every kind that the offline commands read, served or not."""

import asyncio
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from koordpy.cli.main import main
from koordpy.offline.read_kinds import _KINDS
from koordpy.workloads.kinds.kind_registry import GANG_KINDS, RUNTIMES, VOLCANO_GROUP, watched
from tests.docs.worked import ROOT
from tests.faults import FaultyServer

KUBECTL = shutil.which("kubectl")
PAGE = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
NOT_DUMPED = {("", "ConfigMap")}
"""Those of kube-system are asked for beside it: the others are nobody's business."""

VERSIONS: dict[object, str] = {
    "scheduling.sigs.k8s.io": "v1alpha1",
    "scheduling.x-k8s.io": "v1alpha1",
    "scheduling.koordinator.sh": "v1alpha1",
    ("scheduling.k8s.io", "PodGroup"): "v1alpha2",
    ("scheduling.k8s.io", "Workload"): "v1alpha2",
    "topology.volcano.sh": "v1alpha1",
    "scheduling.volcano.sh": "v1beta1",
    "jobset.x-k8s.io": "v1alpha2",
    "trainer.kubeflow.org": "v1alpha1",
    "scheduler.grove.io": "v1alpha1",
}
"""Group, or group and kind -> the version that is served; v1 of the others."""
HIERARCHY = [{"layerName": "nodeLayer", "parentTopologyLayer": "ClusterTopologyLayer"}]
TEMPLATE = {"spec": {"containers": [{"name": "c", "image": "i"}], "schedulerName": "koord-scheduler"}}
WITHOUT_PODS = {"replicas": 0, "template": TEMPLATE}
BODIES: dict[str, dict[str, object]] = {
    "ResourceSlice": {"spec": {"driver": "d", "nodeName": "n1", "pool": {"name": "n1", "resourceSliceCount": 1}}},
    "ClusterNetworkTopology": {"spec": {"hierarchy": HIERARCHY}},
    "Job": {"spec": {"template": TEMPLATE}},
    **{kind: {"spec": WITHOUT_PODS} for kind in ("ReplicaSet", "ReplicationController", "StatefulSet")},
    "LeaderWorkerSet": {"spec": {"leaderWorkerTemplate": {"workerTemplate": TEMPLATE}}},
    "RayCluster": {"spec": {"headGroupSpec": {"template": TEMPLATE}}},
    "Pod": {"spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": "one-0"}, "status": {"phase": "Running"}},
    "StorageClass": {"provisioner": "disks.example.com"},
    "PriorityClass": {"value": 7},
    "HyperNode": {"spec": {"tier": 1}},
    "TrainJob": {"spec": {"runtimeRef": {"name": "runtime"}}},
}
"""What objects of a kind do not go without."""
NAMES = {"ClusterNetworkTopology": "default", "ClusterTrainingRuntime": "runtime"}


def command() -> str:
    """The pipeline of the page, from its first line to the one that writes cluster.json."""
    (found,) = re.findall(r"^    (kubectl api-resources .*?> cluster\.json)$", PAGE, re.M | re.S)
    return str(found)


def plural(kind: str) -> str:
    name = kind.lower()
    if name.endswith("s"):
        return f"{name}es"
    return f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"


def asked_for(names: list[str]) -> list[str]:
    """What the page's grep lets through."""
    words = command().partition("| ")[2].rpartition("| paste")[0]
    done = subprocess.run(["sh", "-c", words], input="\n".join(names), capture_output=True, text=True, check=False)
    return done.stdout.split()


def test_it_asks_for_every_kind_that_is_read_and_no_other() -> None:
    kinds = dict.fromkeys(one for one in _KINDS if one not in NOT_DUMPED)
    kinds |= dict.fromkeys((one.group, one.kind) for one in watched(GANG_KINDS))
    kinds |= dict.fromkeys((*RUNTIMES, VOLCANO_GROUP))
    read = [".".join(filter(None, (plural(kind), group))) for group, kind in kinds]
    strange = ["secrets", "configmaps", "events", "pods.metrics.k8s.io", "nodes.metrics.k8s.io"]
    strange += ["cronjobs.batch", "deployments.apps", "daemonsets.apps"]  # their pods would be made, or are of others
    assert asked_for([*read, *strange]) == read


def dumped() -> list[dict[str, object]]:
    """One object of every kind that the page's command names, as an API server gives them."""
    kinds = [one for one in _KINDS if one not in NOT_DUMPED]
    kinds += [(one.group, one.kind) for one in watched(GANG_KINDS)] + [*RUNTIMES, VOLCANO_GROUP]
    found: list[dict[str, object]] = []
    for number, (group, kind) in enumerate(dict.fromkeys(kinds)):
        meta: dict[str, object] = {"name": NAMES.get(kind, f"one-{number}"), "uid": f"uid-{number}"}
        version = VERSIONS.get((group, kind)) or VERSIONS.get(group, "v1")
        head = {"apiVersion": f"{group}/{version}" if group else version, "kind": kind}
        found.append(
            {**head, "metadata": {**meta, "creationTimestamp": "2026-01-01T00:00:00Z"}, **BODIES.get(kind, {})}
        )
    return found


def test_every_kind_that_it_dumps_is_taken_without_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cluster.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": dumped()}))
    assert main(["simulate", "-f", str(tmp_path / "cluster.json"), "-o", "json"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not on the PATH")
async def test_it_dumps_a_cluster_that_serves_not_all_of_them(tmp_path: Path) -> None:
    """And the dump is what simulate reads."""
    async with FaultyServer() as server:
        server.store.create("nodes", {"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "4", "pods": "9"}}})
        group = {"metadata": {"name": "g", "namespace": "default"}, "spec": {"minMember": 1}}
        server.store.create("podgroups.scheduling.sigs.k8s.io", group)
        (tmp_path / "kubeconfig").write_text(server.kubeconfig())
        environment = {**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig"), "HOME": str(tmp_path)}
        process = await asyncio.create_subprocess_exec("sh", "-c", command(), cwd=tmp_path, env=environment)
        assert await asyncio.wait_for(process.wait(), 120) == 0
    dumped = {item["kind"] for item in json.loads((tmp_path / "cluster.json").read_text())["items"]}
    assert {"Node", "PodGroup", "Namespace"} <= dumped
    assert main(["simulate", "-f", str(tmp_path / "cluster.json")]) == 0
