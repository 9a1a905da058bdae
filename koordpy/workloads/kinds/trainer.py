"""TrainJob: the JobSet that its runtime makes of it.

Source: workloads.md 10.2.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from koordpy.workloads.source import Head, Source, owned_object

STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
NAMED = ("replicatedJobs", "containers")
"""Lists whose entries are known by their names."""


def runtime_key(source: Source, namespace: str) -> tuple[str, str, str]:
    """(kind, namespace, name) of the runtime that a TrainJob names."""
    ref = source.at("spec", "runtimeRef")
    ref.knows("apiGroup")
    kind = ref.text("kind", "ClusterTrainingRuntime")
    return kind, namespace if kind == "TrainingRuntime" else "", ref.text("name")


def checked_runtime(source: Source) -> Mapping[str, Any]:
    """A runtime without fields that say nothing; takes down what is of a wrong type in it."""
    source = Source(_given(source.raw), faults=source.faults, asked=source.asked)
    source.at("spec", "mlPolicy").count("numNodes", 1)
    for job in source.at("spec", "template", "spec").list("replicatedJobs"):
        job.text("name")
        pod = job.at("template", "spec", "template", "spec")
        for container in (*pod.list("containers"), *pod.list("initContainers")):
            container.text("name")
    return source.raw


def _given(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _given(part) for name, part in value.items() if part is not None}
    return [_given(part) for part in value if part is not None] if isinstance(value, list) else value


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


def _pod(job: Mapping[str, Any]) -> dict[str, Any]:
    """The pod's spec of a replicatedJob, to be changed."""
    found = job
    for name in ("template", "spec", "template", "spec"):
        found = found.setdefault(name, {})  # type: ignore[attr-defined]
    return found  # type: ignore[return-value]


def _sized(job: dict[str, Any], number: int) -> None:
    spec = job.setdefault("template", {}).setdefault("spec", {})
    spec["parallelism"] = spec["completions"] = number


def _trains(job: Mapping[str, Any]) -> bool:
    source = Source(job)
    places = (
        source.at("template", "metadata"),
        source.at("metadata"),
        source.at("template", "spec", "template", "metadata"),
    )
    return any(one.strings("labels").get(STEP) == "trainer" for one in places)


def jobset_of(source: Source, head: Head, runtime: Mapping[str, Any]) -> dict[str, Any]:
    """The JobSet that a TrainJob's controller makes."""
    run = Source(runtime)
    template = deepcopy(dict(run.at("spec", "template").raw))
    spec: Any = template.get("spec", {})
    trainer = source.at("spec", "trainer")
    policy = run.at("spec", "mlPolicy")
    nodes = trainer.maybe("numNodes")
    number = nodes if nodes is not None else policy.count("numNodes", 1)
    jobs: Sequence[dict[str, Any]] = [one for one in spec.get("replicatedJobs", ()) if isinstance(one, dict)]
    mpi = policy.has("mpi")
    launcher_runs = policy.at("mpi").flag("runLauncherAsNode")
    for job in jobs:
        if mpi and job.get("name") == "node":
            _sized(job, max(1, number - 1) if launcher_runs else number)
        elif not mpi and _trains(job):
            _sized(job, number)
        if _trains(job) or job.get("name") == "node" or (launcher_runs and job.get("name") == "launcher"):
            _resources(job, trainer)
    for patch in source.at("spec").list("runtimePatches"):
        change = patch.at("trainingRuntimeSpec", "template", "spec").raw
        spec = merged(spec, change)
    suspended = source.at("spec").flag("suspend") or spec.get("suspend") is True
    meta = run.at("spec", "template", "metadata")
    made = owned_object(head, "jobset.x-k8s.io/v1alpha2", "JobSet", meta, {**spec, "suspend": suspended})
    return {**made, "status": {"conditions": _over(source)}}


def _over(source: Source) -> list[Mapping[str, Any]]:
    found = source.at("status").raw.get("conditions")
    entries = [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []
    names = {"Complete": "Completed", "Failed": "Failed"}
    return [{**one, "type": names[one["type"]]} for one in entries if one.get("type") in names]


def _resources(job: Mapping[str, Any], trainer: Source) -> None:
    asked = trainer.at("resourcesPerNode").raw
    if not asked:
        return
    for container in _pod(job).get("containers", ()):
        if isinstance(container, dict) and container.get("name") == "node":
            container["resources"] = merged(container.get("resources"), asked)
