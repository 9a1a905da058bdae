# SPDX-License-Identifier: Apache-2.0
"""Child objects that a workload's controller creates and that create the pods, such as the JobSet of a TrainJob.

A child has the name of its workload. Rules: workloads.md 10.1 and 10.2.
"""

from dataclasses import replace
from typing import Any

from koordpy.api.uids import made_up_uid
from koordpy.apiserver.applied_patches import strategic
from koordpy.offline.runtime_patches import patched
from koordpy.workloads.kinds.kind_registry import Child
from koordpy.workloads.workload_manifest import Head, ReadFields, Source, can_make, conditions

STEP = "trainer.kubeflow.org/trainjob-ancestor-step"


def _owned(head: Head, api_version: str, kind: str, meta: Source) -> Head:
    """Returns the head (identity and metadata) of a child object with its parent's name.

    meta: source of its labels and annotations.
    """
    return replace(
        head,
        api_version=api_version,
        kind=kind,
        uid=made_up_uid(kind, head.uid, head.name),
        labels=meta.strings("labels"),
        annotations=meta.strings("annotations"),
        owner=head.reference,
    )


def child_of(child: Child, source: Source, head: Head) -> tuple[Source, Head]:
    """Returns the child of a workload. Its spec is a part of the workload's spec; both are suspended together."""
    spec, held = source.at(*child.spec), source.at("spec").flag("suspend")
    raw = {"spec": {**spec.raw, "suspend": True} if held else spec.raw}
    inner = Source(raw, "", source.faults, source.read_fields, spec.path)
    return inner, _owned(head, child.api_version, child.kind, source.at(*child.meta))


def runtime_key(source: Source, namespace: str) -> tuple[str, str, str]:
    """Returns (kind, namespace, name) of the runtime that a TrainJob references."""
    ref = source.at("spec", "runtimeRef")
    ref.knows("apiGroup")
    kind = ref.text("kind", "ClusterTrainingRuntime")
    return kind, namespace if kind == "TrainingRuntime" else "", ref.text("name")


def _trains(job: Source) -> bool:
    places = (job.at("template", "metadata"), job.at("metadata"), job.at("template", "spec", "template", "metadata"))
    return any(one.strings("labels").get(STEP) == "trainer" for one in places)


def _change(job: Source, trainer: Source, policy: Source) -> dict[str, Any]:
    """Returns the patch of a replicatedJob: number of nodes and resources as the trainer and the policy set them."""
    name, trains, mpi = job.text("name"), _trains(job), policy.has("mpi")
    launcher_runs = policy.at("mpi").flag("runLauncherAsNode")
    asked_by = trainer if trainer.has("numNodes") else policy
    number = asked_by.count("numNodes", 1)
    can_make(asked_by, "numNodes", number)
    spec: dict[str, Any] = {}
    if name == "node" if mpi else trains:
        spec["parallelism"] = spec["completions"] = max(1, number - 1) if launcher_runs and mpi else number
    asked = trainer.at("resourcesPerNode").raw
    containers = job.at("template", "spec", "template", "spec").list("containers")
    is_there = any(one.text("name") == "node" for one in containers)
    if asked and is_there and (trains or name == "node" or (launcher_runs and name == "launcher")):
        spec["template"] = {"spec": {"containers": [{"name": "node", "resources": asked}]}}
    return {"template": {"spec": spec}}


def jobset_of(source: Source, head: Head, runtime: Source) -> tuple[Source, Head]:
    """Returns the JobSet that the controller of a TrainJob creates.

    It is the JobSet in the runtime with the TrainJob's patches, then with the trainer's number of nodes and resources.
    """
    template, spec = runtime.at("spec", "template"), source.at("spec")
    trainer, policy = spec.at("trainer"), runtime.at("spec", "mlPolicy")
    meta, made = patched(spec, template)
    jobs = Source(made).list("replicatedJobs")
    made = {**made, "replicatedJobs": [strategic(job.raw, _change(job, trainer, policy)) for job in jobs]}
    made["suspend"] = spec.flag("suspend") or made.get("suspend") is True
    names = {"Complete": "Completed", "Failed": "Failed"}
    ended = [{"type": names[one], "status": "True"} for one in names if conditions(source, one)]
    inner = Source({"spec": made, "status": {"conditions": ended}}, read_fields=source.read_fields and ReadFields())
    return inner, _owned(head, "jobset.x-k8s.io/v1alpha2", "JobSet", meta)
