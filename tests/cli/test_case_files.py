# SPDX-License-Identifier: Apache-2.0
"""Suggestions and messages for the pending units of a folder of case files: tried, and equal in both commands."""

from pathlib import Path

import pytest
import yaml

from koordpy.cli.main import main
from tests.cli.case_files import cases, files_of, left_by
from tests.cli.test_explanations_hold import Tally, try_cases

EXPANDER = """
import pathlib, yaml

def read(paths):
    for file in sorted(pathlib.Path(paths[0]).rglob("*.yaml")):
        for case in yaml.safe_load(file.read_text()):
            yield f"{file.parent.name}/{case['name']}", case

def expand(case):
    return list(yaml.safe_load_all(case["manifests"]))
"""


def node(name: str, cpu: int, labels: str = "") -> str:
    amounts = f"{{cpu: '{cpu}', memory: 8Gi, pods: '20'}}"
    meta = f"{{name: {name}, labels: {{kubernetes.io/hostname: {name}{labels}}}}}"
    return f"\n---\n{{apiVersion: v1, kind: Node, metadata: {meta}, status: {{allocatable: {amounts}}}}}"


def pod(name: str, cpu: int = 1, *, meta: str = "", spec: str = "") -> str:
    containers = f"[{{name: c, image: i, resources: {{requests: {{cpu: '{cpu}'}}}}}}]"
    return f"""
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: default{meta}}}
spec: {{schedulerName: koord-scheduler, containers: {containers}{spec}}}"""


SET = """
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: web, namespace: default, uid: web}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i}]}}"""
OF_SET = (
    ", labels: {app: web}"
    ", ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web, uid: web, controller: true}]"
)
VOLCANO = """
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: g, namespace: default}
spec: {minMember: 3"""
OF_VOLCANO = ", annotations: {scheduling.k8s.io/group-name: g}"
THREE = "".join(pod(f"g-{i}", meta=OF_VOLCANO) for i in range(3))
SPINES = """
---
apiVersion: scheduling.koordinator.sh/v1alpha1
kind: ClusterNetworkTopology
metadata: {name: default}
spec:
  hierarchy:
  - {layerName: nodeLayer, parentTopologyLayer: spineLayer}
  - {layerName: spineLayer, labelKey: spine}
---
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: PodGroup
metadata:
  name: g
  namespace: default
  annotations:
    gang.scheduling.koordinator.sh/networkTopologyAware: >-
      {"gatherStrategy": [{"layer": "spineLayer", "strategy": "MustGather"}]}
spec: {minMember: 2}
"""
OF_GANG = ", labels: {pod-group.scheduling.sigs.k8s.io: g}"
NO_TERM = ", affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: []}}}"

DEVICES = """
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu}
spec: {selectors: [{cel: {expression: 'device.driver == "gpu.example.com"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: n1-gpu}
spec:
  driver: gpu.example.com
  nodeName: n1
  pool: {name: n1, generation: 1, resourceSliceCount: 1}
  devices: [{name: gpu-0}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: t, namespace: default}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu}}]}}}
"""
CLAIM = ", resourceClaims: [{name: g, resourceClaimTemplateName: t}]"

OF_NONE = ", labels: {pod-group.scheduling.sigs.k8s.io: none}"

CASES: dict[str, tuple[str, str, set[str], str]] = {
    "a smaller minMember of a PodGroup of Volcano": (
        f"{node('n1', 2)}{VOLCANO}}}{THREE}",
        "g-0",
        {"minMember of PodGroup default/g were 2 (it is 3)"},
        "minMember of PodGroup default/g were 2 (it is 3)",
    ),
    "a PodGroup of Volcano whose subgroups need the members": (
        f"{node('n1', 2)}{VOLCANO}, subGroupPolicy: [{{name: s, subGroupSize: 3, minSubGroups: 1}}]}}{THREE}",
        "g-0",
        set(),
        "minMember",
    ),
    "a pod that its controller replaces": (
        node("n1", 2) + SET + pod("web-0", meta=OF_SET, spec=", nodeName: n1") + pod("p", 2),
        "p",
        {
            "node n1 had 1 more cpu free (now 1), for example after pod default/web-0 completed"
            " without being replaced by ReplicaSet default/web"
        },
        "completed",
    ),
    "a pod of the same controller": (
        node("n1", 1)
        + SET.replace("replicas: 1", "replicas: 2")
        + pod("web-0", meta=OF_SET, spec=", nodeName: n1")
        + pod("web-1", meta=OF_SET),
        "web-1",
        set(),
        "completed",
    ),
    "a new node has devices for claims": (
        node("n1", 8) + DEVICES + pod("p-0", spec=CLAIM) + pod("p-1", spec=CLAIM),
        "p-1",
        {"there were 1 more node with 8 cpu in the cluster, like node n1"},
        "more node",
    ),
    "never fits because of labels": (
        SPINES + node("n1", 1) + node("n2", 1) + pod("g-0", meta=OF_GANG) + pod("g-1", meta=OF_GANG),
        "g-0",
        {"the gather strategy for spineLayer were PreferGather instead of MustGather"},
        "spineLayer",
    ),
    "a PodGroup that does not exist": (
        node("n1", 2) + pod("g-0", meta=OF_NONE) + pod("g-1", meta=OF_NONE),
        "g-0",
        {"PodGroup default/none existed with minMember 2"},
        "PodGroup",
    ),
    "a claim that does not exist": (
        node("n1", 2) + pod("p", spec=", volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]"),
        "p",
        {"PersistentVolumeClaim default/data existed, with a volume that every node can use"},
        "Claim",
    ),
    "no node ever matches": (
        node("n1", 1) + pod("p", spec=NO_TERM),
        "p",
        {"its required node affinity were removed"},
        "node affinity",
    ),
}
"""Name -> (manifests, pending pod, suggestions that contain the last text, that text)."""


def folder_of(path: Path) -> Path:
    """A folder with all cases, and the script that expands them."""
    (path / "run_cases.py").write_text(EXPANDER)
    folder = path / "cases" / "topic"
    folder.mkdir(parents=True)
    made = [{"name": name, "manifests": text, "expect": {"pending": [who]}} for name, (text, who, *_) in CASES.items()]
    left_out = {"name": "of files", "manifests": "", "args": ["-f", "x.yaml"], "expect": {}}
    (folder / "file.yaml").write_text(yaml.safe_dump([*made, left_out]))
    return path / "cases"


@pytest.mark.parametrize("name", CASES)
def test_a_case_is_told_what_helps(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, who, expected, text = CASES[name]
    folder = folder_of(tmp_path)
    [case] = [one for one in cases(folder, f"topic/{name}") if one.name == f"topic/{name}"]
    tally = Tally()
    assert list(tally.faults(case, tmp_path)) == []
    assert (tally.cases, tally.units, tally.wrong, tally.otherwise) == (1, 1, 0, 0)
    left = left_by(files_of(case.manifests, {}, tmp_path), {})
    (tmp_path / "left.yaml").write_text(yaml.safe_dump_all(left.documents))
    assert main(["explain", "-f", str(tmp_path / "left.yaml"), "--pod", f"default/{who}", "-o", "json"]) == 0
    said = yaml.safe_load(capsys.readouterr().out)["wouldFitIf"]
    assert {line for line in said if text in line} == expected
    assert tally.suggestions == len(said)


def test_a_folder_is_tried_by_part_of_a_name(tmp_path: Path) -> None:
    tally = try_cases(folder_of(tmp_path), "of the same controller")
    assert (tally.cases, tally.units) == (1, 1)
