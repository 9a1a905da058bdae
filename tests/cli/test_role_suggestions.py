# SPDX-License-Identifier: Apache-2.0
"""Suggestions for workloads with several roles, each applied to the manifest and simulated: it helps, one less does."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from koordpy.cli.main import main

Json = dict[str, Any]
MIN, GPU = "gang.scheduling.koordinator.sh/min-available", "nvidia.com/gpu"


def node(number: int) -> Json:
    amounts = {"cpu": "4", "memory": "16Gi", "pods": "10", GPU: "8"}
    meta = {"name": f"n{number}", "labels": {"kubernetes.io/hostname": f"n{number}"}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": {"allocatable": amounts}}


def template(gpus: int, notes: Json | None = None) -> Json:
    amounts = {"cpu": "1", **({GPU: str(gpus)} if gpus else {})}
    container = {"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}
    return {
        "metadata": {"annotations": notes or {}},
        "spec": {"schedulerName": "koord-scheduler", "containers": [container]},
    }


def pytorch(gpus: int = 8, notes: Json | None = None, **spec: Any) -> Json:
    roles = {
        "Master": {"replicas": 1, "template": template(0)},
        "Worker": {"replicas": 4, "template": template(gpus, notes)},
    }
    meta = {"name": "train", "namespace": "default"}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": meta} | {
        "spec": {"pytorchReplicaSpecs": roles, **spec}
    }


def job(name: str, pods: int, gpus: int, notes: Json | None = None) -> Json:
    spec = {"completions": pods, "parallelism": pods, "completionMode": "Indexed", "template": template(gpus, notes)}
    return {"name": name, "replicas": 1, "template": {"spec": spec}}


def jobset(gpus: int = 8) -> Json:
    meta = {"name": "train", "namespace": "default"}
    spec = {"replicatedJobs": [job("driver", 1, 0), job("workers", 4, gpus)]}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta, "spec": spec}


def indexed(notes: Json | None = None) -> Json:
    meta = {"name": "train", "namespace": "default"}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, **job("", 4, 8, notes)["template"]}


def deployment() -> Json:
    meta, labels = {"name": "train", "namespace": "default"}, {"app": "train"}
    pods = template(8, {MIN: "3"})
    pods["metadata"]["labels"] = labels
    spec = {"replicas": 3, "selector": {"matchLabels": labels}, "template": pods}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}


class Asked:
    """Runs commands on a workload and some nodes."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._path, self._capsys = folder / "in.json", capsys

    def json(self, documents: list[Json], *words: str) -> Json:
        self._path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))
        assert main([words[0], "-f", str(self._path), "-o", "json", *words[1:]]) == 0
        found: Json = json.loads(self._capsys.readouterr().out)
        return found


def templates(workload: Json) -> dict[str, Json]:
    """Role -> its pod template."""
    spec = workload["spec"]
    if "pytorchReplicaSpecs" in spec:
        return {name.lower(): role["template"] for name, role in spec["pytorchReplicaSpecs"].items()}
    if "replicatedJobs" in spec:
        return {one["name"]: one["template"]["spec"]["template"] for one in spec["replicatedJobs"]}
    return {"": spec["template"]}


def applied(workload: Json, line: str, more: int = 0) -> Json:
    """The workload after a suggestion, with a number that is `more` larger."""
    made: Json = json.loads(json.dumps(workload))
    of_role = r"(?: on the pod template)? of (?:role (\w+) of )?\w+ train"
    if found := re.match(rf"annotation (\S+){of_role} were (\d+)", line):
        meta = templates(made)[found[2] or ""]["metadata"] if "on the pod template" in line else made["metadata"]
        meta.setdefault("annotations", {})[found[1]] = str(int(found[3]) + more)
    elif found := re.match(r"spec\.(\S+) of \w+ train were (\d+)", line):
        *path, last = found[1].split(".")
        place = made["spec"]
        for key in path:
            place = place[key]
        place[last] = int(found[2]) + more
    elif found := re.match(r"(?:it|each pod of role (\w+)) requested (\d+) (\S+)", line):
        resources = templates(made)[found[1] or ""]["spec"]["containers"][0]["resources"]
        for amounts in resources.values():
            amounts[found[3]] = str(int(found[2]) + more)
    else:
        raise AssertionError(line)
    return made


TEMPLATE = f"annotation {MIN} on the pod template of"


@pytest.mark.parametrize(
    ("workload", "nodes", "line"),
    [
        (pytorch(), 3, f"{TEMPLATE} role worker of PyTorchJob train were 3 (now 4 members must start together)"),
        (
            pytorch(notes={MIN: "3"}),
            2,
            f"{TEMPLATE} role worker of PyTorchJob train were 2 (now 3 members must start together)",
        ),
        (
            pytorch(runPolicy={"schedulingPolicy": {"minAvailable": 5}}),
            3,
            "spec.runPolicy.schedulingPolicy.minAvailable of PyTorchJob train were 4 (it is 5)",
        ),
        (pytorch(16), 9, f"each pod of role worker requested 8 {GPU} (it requests 16)"),
        (jobset(), 2, f"{TEMPLATE} role workers of JobSet train were 2 (now 4 members must start together)"),
        (jobset(16), 9, f"each pod of role workers requested 8 {GPU} (it requests 16)"),
        (indexed(), 3, f"annotation {MIN} of Job train were 3 (now 4 members must start together)"),
        (deployment(), 2, f"{TEMPLATE} Deployment train were 2 (now 3 members must start together)"),
        (indexed({MIN: "3"}), 2, f"{TEMPLATE} Job train were 2 (now 3 members must start together)"),
    ],
)
def test_the_role_and_the_setting_that_decide_are_named(
    workload: Json, nodes: int, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask, cluster = Asked(tmp_path, capsys), [node(i) for i in range(nodes)]
    waiting = ask.json([*cluster, workload], "simulate")["pending"]
    assert waiting and not ask.json([*cluster, workload], "simulate")["bindings"]
    pod = next(one["pod"] for one in waiting)
    lines = ask.json([*cluster, workload], "explain", "--pod", pod)["wouldFitIf"]
    assert line in lines
    bound = ask.json([*cluster, applied(workload, line)], "simulate")["bindings"]
    assert bound
    assert not ask.json([*cluster, applied(workload, line, 1)], "simulate")["bindings"]


def test_a_minimum_that_two_settings_share_is_not_suggested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Roles without a minimum of their own get what the others leave of the total, so one change has two effects."""
    workload = pytorch(notes={MIN: "4"}, runPolicy={"schedulingPolicy": {"minAvailable": 5}})
    ask, cluster = Asked(tmp_path, capsys), [node(i) for i in range(3)]
    pod = ask.json([*cluster, workload], "simulate")["pending"][0]["pod"]
    lines = ask.json([*cluster, workload], "explain", "--pod", pod)["wouldFitIf"]
    assert lines and not [line for line in lines if "inAvailable" in line or MIN in line]
