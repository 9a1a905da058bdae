# SPDX-License-Identifier: Apache-2.0
"""The table of everyday mistakes says what koordpy says: each is made here, and its words are those of the page."""

import contextlib
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordpy.cli.main import main
from tests.docs.worked import ROOT

PAGE = (ROOT / "docs" / "explain-a-pending-gang.md").read_text(encoding="utf-8")
GPU, GROUP = "nvidia.com/gpu", "pod-group.scheduling.sigs.k8s.io"
QUOTA = "quota.scheduling.koordinator.sh"
NETWORK = "gang.scheduling.koordinator.sh/networkTopologyAware"
Json = dict[str, Any]


def node(i: int, **spec: Any) -> Json:
    labels = {"net/block": f"b{i // 2}", "gpu": "h100"}
    status = {"allocatable": {"cpu": "96", "memory": "1Ti", "pods": "110", GPU: "8"}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{i}", "labels": labels}, "spec": spec,
            "status": status}  # fmt: skip


NODES = [node(i) for i in range(4)]
LAYERS = [
    {"layerName": "blockLayer", "labelKey": "net/block", "parentTopologyLayer": "ClusterTopologyLayer"},
    {"layerName": "nodeLayer", "parentTopologyLayer": "blockLayer"},
]
TOPOLOGY = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "ClusterNetworkTopology",
            "metadata": {"name": "default"}, "spec": {"hierarchy": LAYERS}}  # fmt: skip


def pod(name: str = "p", *, labels: Json | None = None, resource: str = GPU, amount: int = 1, **spec: Any) -> Json:
    container = {"name": "c", "image": "i", "resources": {"limits": {resource: str(amount)}}}
    spec = {"schedulerName": "koord-scheduler", "containers": [container], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels or {}}, "spec": spec}


def gang(minimum: int, count: int, *, called: str = "train", notes: Json | None = None, **settings: Any) -> list[Json]:
    group = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup",
             "metadata": {"name": "train", "annotations": notes or {}}, "spec": {"minMember": minimum}}  # fmt: skip
    labels = {GROUP: called, **settings.pop("labels", {})}
    return [group, *(pod(f"p-{i}", labels=labels, amount=8, **settings) for i in range(count))]


def of_job(number: int, there: int, **spec: Any) -> list[Json]:
    """An Indexed Job, and its first pods."""
    template = {"spec": pod(amount=8, restartPolicy="Never")["spec"]}
    sizes = {"completionMode": "Indexed", "completions": number, "parallelism": number}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "uid": "j"},
           "spec": {**sizes, "template": template, **spec}}  # fmt: skip
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "j", "controller": True}
    pods = [
        pod(f"train-{i}", labels={"batch.kubernetes.io/job-completion-index": str(i)}, amount=8) for i in range(there)
    ]
    return [job, *({**one, "metadata": {**one["metadata"], "ownerReferences": [owner]}} for one in pods)]


def only_waiting() -> list[Json]:
    """A gang of four of which three run."""
    group, *pods = gang(4, 4, notes={"gang.scheduling.koordinator.sh/match-policy": "only-waiting"})
    return [group, *({**one, "spec": {**one["spec"], "nodeName": f"n{i}"}} for i, one in enumerate(pods[1:])), pods[0]]


def with_notes(objects: list[Json], notes: Json) -> list[Json]:
    """The objects, their pods annotated."""
    return [
        {**one, "metadata": {**one["metadata"], "annotations": notes}} if one["kind"] == "Pod" else one
        for one in objects
    ]


def quota(name: str, *, parent: bool = False) -> Json:
    labels = {f"{QUOTA}/is-parent": "true"} if parent else {}
    return {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota",
            "metadata": {"name": name, "labels": labels}, "spec": {"max": {GPU: 8}}}  # fmt: skip


def of(quota_name: str) -> Json:
    return {f"{QUOTA}/name": quota_name}


def gather(layer: str, strategy: str, multiple: int = 0) -> Json:
    rule = {"layer": layer, "strategy": strategy, **({"podCountMultiple": multiple} if multiple else {})}
    return {NETWORK: json.dumps({"gatherStrategy": [rule]})}


DISK = [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]
CLAIM = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
         "spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}}}  # fmt: skip
CLASS = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "fast"}, "provisioner": "x"}
FIND = {"cel": {"expression": 'device.driver.find("g") == "g"'}}
REQUEST = {"name": "r", "exactly": {"deviceClassName": "gpu", "selectors": [FIND]}}
GPUS = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}}
EITHER = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "either"},
          "spec": {"devices": {"requests": [REQUEST]}}}  # fmt: skip

MISTAKES: dict[str, list[Json]] = {
    "Ignored": [*NODES, pod(schedulerName="koordscheduler")],
    "koordpy handles koord-scheduler": [*NODES, pod(schedulerName="koordscheduler")],
    "pod has scheduling gates: ": [*NODES, pod(schedulingGates=[{"name": "kueue"}])],
    "gang default/trian: PodGroup not found": [*NODES, *gang(2, 2, called="trian")],
    "Incomplete": [*NODES, gang(2, 0)[0], pod(labels={"podgroup.scheduling.sigs.k8s.io": "train"})],
    "is not read, did you mean label pod-group.scheduling.sigs.k8s.io?": [
        *NODES, gang(2, 0)[0], pod(labels={"podgroup.scheduling.sigs.k8s.io": "train"}),
    ],
    "is not read by koordpy": [*NODES, *gang(2, 2, notes={"gang.scheduling.koordinator.sh/colour": "red"})],
    "is not read yet": [*NODES, *gang(2, 2, notes={"gang.scheduling.koordinator.sh/slice": "on"})],
    "is not read on a pod of a PodGroup: it is an annotation of a PodGroup": [
        *NODES, *with_notes(gang(2, 2), {NETWORK: "{}"}),
    ],
    "is YuniKorn's key and ignored: the pod is in no gang": [
        *NODES, *with_notes([pod()], {"yunikorn.apache.org/task-group-name": "g"}),
    ],
    "spec.minMember is 0: its pods start one by one": [*NODES, *gang(0, 2)],
    "topology ignored: no gather goal set": [*NODES, TOPOLOGY, *gang(2, 2)],
    "cannot be read: 'strict' is neither Strict nor NonStrict: Strict holds": [
        *NODES, *gang(2, 2, notes={"gang.scheduling.koordinator.sh/mode": "strict"}),
    ],
    "gang default/train: annotation ": [*NODES, *gang(2, 2, notes={"gang.scheduling.koordinator.sh/mod": "NonStrict"})],
    "gatherStratgy: unknown field, did you mean gatherStrategy?": [
        *NODES, TOPOLOGY, *gang(2, 2, notes={NETWORK: json.dumps({"gatherStratgy": []})}),
    ],
    "spec.minMembers: unknown field, did you mean minMember?": [
        *NODES, {**gang(2, 2)[0], "spec": {"minMembers": 2}}, *gang(2, 2)[1:],
    ],
    "unknown field, not read, did you mean tolerations?": [*NODES, pod(toleration=[])],
    "the API server would reject it": [*NODES, pod(nodeSelector={"zone": "a b"})],
    "waiting for members, 1 of minMember 4 wait or have Succeeded (only-waiting)": [
        *NODES, *only_waiting(),
    ],
    "waiting for members, 3 of minMember 4 exist": [*NODES, *gang(4, 3)],
    "4 Insufficient nvidia.com/gpu": [*NODES, pod(amount=16)],
    "it requested 8 nvidia.com/gpu (it requests 16)": [*NODES, pod(amount=16)],
    "it requested nvidia.com/gpu instead of nvidia.com/gpus, which no node has": [
        *NODES,
        pod(resource="nvidia.com/gpus"),
    ],
    "needed 6, available in the cluster: 4": [*NODES, *gang(6, 6)],
    "node(s) were unschedulable": [node(0, unschedulable=True), pod()],
    "node(s) had untolerated taint(s)": [node(0, taints=[{"key": GPU, "effect": "NoSchedule"}]), pod()],
    "nvidia.com/gpu:NoSchedule": [node(0, taints=[{"key": GPU, "effect": "NoSchedule"}]), pod()],
    "didn't match Pod's node affinity/selector": [*NODES, pod(nodeSelector={"gpu": "H100"})],
    'persistentvolumeclaim "data" not found': [*NODES, pod(volumes=DISK)],
    "pod has unbound immediate PersistentVolumeClaims": [*NODES, CLAIM, CLASS, pod(volumes=DISK)],
    "quota org is a parent: use one of its leaves": [*NODES, quota("org", parent=True), pod(labels=of("org"))],
    "there is no ElasticQuota labb: this pod counts in quota koordinator-default-quota": [
        *NODES,
        quota("lab"),
        pod(labels=of("labb")),
    ],
    'unknown layer "rackLayer"': [*NODES, TOPOLOGY, *gang(2, 2, notes=gather("rackLayer", "MustGather"))],
    "no ClusterNetworkTopology": [*NODES, *gang(2, 2, notes=gather("blockLayer", "MustGather"))],
    "podCountMultiple blockLayer=3 were removed": [
        *NODES, TOPOLOGY, *gang(4, 4, notes=gather("blockLayer", "PreferGather", 3)),
    ],
    "never fits: the cluster has room for 4 members, 40 are required": [*NODES, *of_job(40, 40)],
    "Job train is suspended": [*NODES, *of_job(2, 2, suspend=True)],
    "Job train wants 2 pods, and there are more": [*NODES, *of_job(2, 3)],
    "unsupported: ": [*NODES, GPUS, EITHER, pod(resourceClaims=[{"name": "d", "resourceClaimName": "either"}])],
}  # fmt: skip


def asked(objects: Iterable[Json], folder: Path) -> str:
    """What simulate, and explain of the first pod, say."""
    file = folder / "in.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    name = next(
        one["metadata"]["name"] for one in yaml.safe_load_all(file.read_text(encoding="utf-8")) if one["kind"] == "Pod"
    )
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        status = main(["simulate", "-f", str(file)])
        assert main(["explain", "-f", str(file), "--pod", f"default/{name}"]) == status
    assert status in (0, 2)
    return out.getvalue()


@pytest.mark.parametrize("words", MISTAKES)
def test_the_page_quotes_what_is_said(words: str, tmp_path: Path) -> None:
    assert words in asked(MISTAKES[words], tmp_path)
    assert words in PAGE


def test_every_row_of_the_table_is_held_to_it() -> None:
    table = PAGE.partition("## Common mistakes")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and "what you see" not in line]
    assert len(rows) >= 15
    assert [row for row in rows if not any(words in row for words in MISTAKES)] == []
