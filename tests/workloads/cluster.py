# SPDX-License-Identifier: Apache-2.0
"""Manifests in, a simulation's answer out, in this process."""

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import yaml

from koordpy.cli.main import main

Json = dict[str, Any]
AUTO = "gang.scheduling.koordinator.sh/auto"
MIN = "gang.scheduling.koordinator.sh/min-available"
NETWORK = "gang.scheduling.koordinator.sh/networkTopologyAware"


def template(notes: Json | None = None, labels: Json | None = None, gpu: int = 0, **spec: Any) -> Json:
    """A pod template of ours that asks for one CPU."""
    resources: Json = {"requests": {"cpu": 1}}
    if gpu:
        resources["limits"] = {"nvidia.com/gpu": gpu}
    container = {"name": "c", "image": "i", "resources": resources}
    meta = {"annotations": notes or {}, "labels": labels or {}}
    return {"metadata": meta, "spec": {"schedulerName": "koord-scheduler", "containers": [container], **spec}}


def nodes(count: int, cpu: int = 1, name: str = "n", gpu: int = 0, labels: Json | None = None) -> list[Json]:
    room = {"cpu": cpu, "pods": 110, **({"nvidia.com/gpu": gpu} if gpu else {})}
    return [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": f"{name}{i}", "labels": labels or {}},
            "status": {"allocatable": room, "capacity": room},
        }
        for i in range(count)
    ]


def workload(api: str, kind: str, name: str, spec: Json, notes: Json | None = None, **more: Any) -> Json:
    meta = {"name": name, **({"annotations": notes} if notes else {}), **more.pop("meta", {})}
    return {"apiVersion": api, "kind": kind, "metadata": meta, "spec": spec, **more}


def job(
    name: str = "train", number: int = 3, *, notes: Json | None = None, pod: Json | None = None, **spec: Any
) -> Json:
    """An Indexed Job with completions = parallelism, unless the spec says otherwise."""
    status, meta = spec.pop("status", {}), spec.pop("meta", {})
    given = {"completionMode": "Indexed", "completions": number, "parallelism": number, **spec}
    body = {"template": pod or template(), **{key: value for key, value in given.items() if value is not None}}
    return workload("batch/v1", "Job", name, body, notes, status=status, meta=meta)


def jobset(*roles: Json, notes: Json | None = None, **spec: Any) -> Json:
    return workload("jobset.x-k8s.io/v1alpha2", "JobSet", "js", {"replicatedJobs": list(roles), **spec}, notes)


def role(name: str, replicas: int, each: int, pod: Json | None = None, **more: Any) -> Json:
    spec = {"parallelism": each, "completions": each, "template": pod or template()}
    return {"name": name, "replicas": replicas, "template": {"spec": spec}, **more}


def pod(
    name: str, index: int | None = None, *, owner: str = "train", uid: str = "j1", node: str = "", **more: Any
) -> Json:
    """A pod of a Job that is there."""
    labels = {"batch.kubernetes.io/job-name": owner}
    if index is not None:
        labels["batch.kubernetes.io/job-completion-index"] = str(index)
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": owner, "uid": uid, "controller": True}
    made = template(**more.pop("template", {}))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {**labels, **made["metadata"]["labels"]},
            "annotations": made["metadata"]["annotations"],
            "ownerReferences": [reference],
        },
        "spec": {**made["spec"], **({"nodeName": node} if node else {}), **more.pop("spec", {})},
        "status": {"phase": "Running" if node else "Pending", **more.pop("status", {})},
    }


class Answer:
    """What `simulate` says."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.err = status, err
        self.document: Json = json.loads(out) if out else {"bindings": [], "pending": [], "gangs": [], "workloads": []}

    @property
    def bound(self) -> list[str]:
        return sorted(one["pod"] for one in self.document["bindings"])

    @property
    def pending(self) -> list[str]:
        return sorted(one["pod"] for one in self.document["pending"])

    def message(self, name: str) -> str:
        return next(one["message"] for one in self.document["pending"] if one["pod"] == name)

    @property
    def rounds(self) -> dict[str, int]:
        return {one["pod"]: one["round"] for one in self.document["bindings"]}

    @property
    def ranks(self) -> dict[str, int]:
        key = "scheduling.koordinator.sh/rank"
        return {one["pod"]: int(one["annotations"][key]) for one in self.document["bindings"]}

    @property
    def gangs(self) -> dict[str, Json]:
        return {one["name"].removeprefix("default/"): one for one in self.document["gangs"]}

    @property
    def workloads(self) -> dict[str, Json]:
        return {one["name"]: one for one in self.document["workloads"]}


def simulate(folder: Path, *objects: Json, args: tuple[str, ...] = (), config: Json | None = None) -> Answer:
    path = folder / "in.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    if config is not None:
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        args = (*args, "--config", str(folder / "config.yaml"))
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(["simulate", "-f", str(path), "-o", "json", *args])
    return Answer(status, out.getvalue(), err.getvalue())
