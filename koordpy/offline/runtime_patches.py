# SPDX-License-Identifier: Apache-2.0
"""Applies the patches of a TrainJob to the JobSet in its training runtime.

Trainer 2.0 has podSpecOverrides, 2.1 podTemplateOverrides, 2.2 and later runtimePatches. All are strategic merge
patches: maps are merged, lists with a merge key are merged item by item, and other lists (tolerations, args) are
replaced. Rules: workloads.md 10.2.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from koordpy.api.field_faults import Fault, key_path
from koordpy.apiserver.applied_patches import strategic
from koordpy.workloads.workload_manifest import Source

OVERRIDES = ("podSpecOverrides", "podTemplateOverrides")
PATCHES = ("runtimePatches", *OVERRIDES)
"""Fields of a TrainJob that patch its runtime."""
_OF_POD = (
    *("serviceAccountName", "volumes", "initContainers", "containers", "imagePullSecrets", "securityContext"),
    *("nodeSelector", "affinity", "tolerations", "schedulingGates", "terminationGracePeriodSeconds"),
)
"""Fields of a pod's spec that a TrainJob may change."""
_OF_CONTAINER = ("name", "env", "volumeMounts", "securityContext")
"""Fields of a container that a TrainJob may change."""


def patched(spec: Source, template: Source) -> tuple[Source, Mapping[str, Any]]:
    """Returns (metadata, spec) of a JobSet: the runtime's `template` with the patches of the TrainJob's `spec`."""
    meta: Mapping[str, Any] = {name: template.at("metadata").strings(name) for name in ("labels", "annotations")}
    given = {name: spec.strings(name) for name in ("labels", "annotations")}
    meta, made = strategic(meta, given), template.at("spec").raw
    jobs = {one.text("name"): _containers(one) for one in template.at("spec").list("replicatedJobs")}
    for change in _overrides(spec, jobs):
        made = strategic(made, change)
    for patch in spec.list("runtimePatches"):
        patch.knows("manager", "time")
        of_jobset = patch.at("trainingRuntimeSpec", "template")
        meta = strategic(meta, _without_nulls(of_jobset.at("metadata").raw))
        inner = of_jobset.at("spec")
        for job in inner.list("replicatedJobs"):
            known = _job_of(job, jobs)
            _look_at(job.at("template", "spec", "template", "spec"), known)
        made = strategic(made, _without_nulls(inner.raw))
    return Source(meta), made


def _containers(job: Source) -> set[str]:
    """Returns the names of the containers of a replicatedJob, including init containers."""
    pod = job.at("template", "spec", "template", "spec")
    return {one.text("name") for field in ("containers", "initContainers") for one in pod.list(field)}


def _overrides(spec: Source, jobs: Mapping[str, set[str]]) -> Iterator[Mapping[str, Any]]:
    """Yields one patch of the JobSet for each override. A patch concerns only the override's target jobs."""
    for field in OVERRIDES:
        for override in spec.list(field):
            override.knows("manager")
            targets = override.list("targetJobs")
            known = [_job_of(target, jobs) for target in targets] or jobs.values()
            raw = _without_nulls(override.raw)
            is_spec = field == "podSpecOverrides"
            if is_spec:
                change = {"spec": {name: value for name, value in raw.items() if name != "targetJobs"}}
            else:
                change = {name: raw[name] for name in ("metadata", "spec") if name in raw}
            _look_at(override if is_spec else override.at("spec"), set().union(*known), "targetJobs")
            wanted = [target.text("name") for target in targets] or jobs
            template = {"spec": {"template": change}}
            yield {"replicatedJobs": [{"name": one, "template": template} for one in wanted if one in jobs]}


def _job_of(target: Source, jobs: Mapping[str, set[str]]) -> set[str]:
    """Returns the names of the containers of the target replicatedJob. If there is no such job, records a fault and
    returns an empty set."""
    name = target.text("name")
    if name not in jobs:
        target.fault("name", f'no replicatedJob "{name}" in the runtime')
    return jobs.get(name, set())


def _look_at(pod: Source, known: set[str], *more: str) -> None:
    """Records fields that Trainer's CRDs do not have, and containers that the runtime does not have.

    pod: the patch of a pod's spec. known: containers of the job. more: allowed fields outside of a pod's spec.
    """
    if pod.read_fields is None:
        return
    odd = [key_path(pod.path, key) for key in pod.raw if key not in (*_OF_POD, *more, "schedulerName")]
    lost: list[tuple[str, str]] = []
    for field in ("containers", "initContainers"):
        for one in pod.list(field):
            odd += [key_path(one.path, key) for key in one.raw if key not in _OF_CONTAINER]
            name = one.text("name")
            lost += [(one.where("name"), name)] if name not in known else []
    told = {Fault(path, "not a field that a TrainJob can change: the API server would reject it"): None for path in odd}
    told |= {
        Fault(path, f'no container "{name}" in the runtime: the API server would reject it'): None
        for path, name in lost
    }
    pod.read_fields.refused |= told


def _without_nulls(raw: Any) -> Any:
    """Returns the value without nulls. An API server drops nulls from a TrainJob, but a patch would delete fields."""
    if isinstance(raw, Mapping):
        return {key: _without_nulls(value) for key, value in raw.items() if value is not None}
    if isinstance(raw, list):
        return [_without_nulls(one) for one in raw if one is not None]
    return raw
