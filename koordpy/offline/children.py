"""Objects that another makes under its own name, which make the pods: of a TrainJob by its runtime.

Source: workloads.md 10.1 and 10.2.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from koordpy.workloads.kinds.registry import Child
from koordpy.workloads.source import AskedFields, Head, Source, can_make, conditions

STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
NAMED = ("replicatedJobs", "containers")
"""Lists whose entries are known by their names."""


def _owned(head: Head, api_version: str, kind: str, meta: Source) -> Head:
    """Who an object of its own name is that another makes; meta: what its labels and annotations are taken from."""
    return replace(
        head,
        api_version=api_version,
        kind=kind,
        uid=f"{head.uid}/{head.name}",
        labels=meta.strings("labels"),
        annotations=meta.strings("annotations"),
        owner=head.reference,
    )


def child_of(child: Child, source: Source, head: Head) -> tuple[Source, Head]:
    """What an object makes: its spec is a part of that one's, and suspended with it."""
    spec, held = source.at(*child.spec), source.at("spec").flag("suspend")
    raw = {"spec": {**spec.raw, "suspend": True} if held else spec.raw}
    inner = Source(raw, "", source.faults, source.asked, spec.path)
    return inner, _owned(head, child.api_version, child.kind, source.at(*child.meta))


def runtime_key(source: Source, namespace: str) -> tuple[str, str, str]:
    """(kind, namespace, name) of the runtime that a TrainJob names."""
    ref = source.at("spec", "runtimeRef")
    ref.knows("apiGroup")
    kind = ref.text("kind", "ClusterTrainingRuntime")
    return kind, namespace if kind == "TrainingRuntime" else "", ref.text("name")


def merged(old: Any, new: Any, field: str = "") -> Any:
    """Strategic merge: maps key by key, lists of named entries by name, other lists replaced."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return {**old, **{key: merged(old.get(key), value, key) for key, value in new.items()}}
    if field in NAMED and isinstance(old, list) and isinstance(new, list):
        found = {str(one.get("name")): one for one in old if isinstance(one, Mapping)}
        for one in new:
            if isinstance(one, Mapping):
                found[str(one.get("name"))] = merged(found.get(str(one.get("name"))), one)
        return list(found.values())
    return new if new is not None else old


def _trains(job: Source) -> bool:
    places = (job.at("template", "metadata"), job.at("metadata"), job.at("template", "spec", "template", "metadata"))
    return any(one.strings("labels").get(STEP) == "trainer" for one in places)


def _change(job: Source, trainer: Source, policy: Source) -> dict[str, Any]:
    """What the trainer of a TrainJob, and the policy of its runtime, say of a replicatedJob: a part of it."""
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
    """The JobSet that a TrainJob's controller makes."""
    template, spec = runtime.at("spec", "template"), source.at("spec")
    trainer, policy = spec.at("trainer"), runtime.at("spec", "mlPolicy")
    made = {**template.at("spec").raw}
    jobs = template.at("spec").list("replicatedJobs")
    made["replicatedJobs"] = [merged(job.raw, _change(job, trainer, policy)) for job in jobs]
    for patch in spec.list("runtimePatches"):
        made = merged(made, patch.at("trainingRuntimeSpec", "template", "spec").raw)
    made["suspend"] = spec.flag("suspend") or made.get("suspend") is True
    names = {"Complete": "Completed", "Failed": "Failed"}
    ended = [{"type": names[one], "status": "True"} for one in names if conditions(source, one)]
    inner = Source({"spec": made, "status": {"conditions": ended}}, asked=source.asked and AskedFields())
    return inner, _owned(head, "jobset.x-k8s.io/v1alpha2", "JobSet", template.at("metadata"))
