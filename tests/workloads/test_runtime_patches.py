# SPDX-License-Identifier: Apache-2.0
"""What TrainJobs change of their runtimes, in the fields of each version of Trainer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.workloads.cluster import MIN, Json, nodes, simulate, template, workload

STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
Change = Callable[[Json, str], Json]


def runtime(pod: Json, *before: Json, meta: Json | None = None) -> Json:
    node = {"name": "node", "template": {"metadata": {"labels": {STEP: "trainer"}}, "spec": {"template": pod}}}
    inner = {"metadata": meta or {}, "spec": {"replicatedJobs": [*before, node]}}
    spec = {"mlPolicy": {"numNodes": 2}, "template": inner}
    return workload("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime", "torch", spec)


def train_job(**spec: Any) -> Json:
    return workload("trainer.kubeflow.org/v1alpha1", "TrainJob", "tj", {"runtimeRef": {"name": "torch"}, **spec})


def by_spec_overrides(spec: Json, job: str) -> Json:
    return {"podSpecOverrides": [{"targetJobs": [{"name": job}], **spec}]}


def by_template_overrides(spec: Json, job: str) -> Json:
    return {"podTemplateOverrides": [{"manager": "me", "targetJobs": [{"name": job}], "spec": spec}]}


def by_patches(spec: Json, job: str) -> Json:
    patch = {"replicatedJobs": [{"name": job, "template": {"spec": {"template": {"spec": spec}}}}]}
    return {"runtimePatches": [{"manager": "example.com/me", "trainingRuntimeSpec": {"template": {"spec": patch}}}]}


EVERY_VERSION = pytest.mark.parametrize("change", [by_spec_overrides, by_template_overrides, by_patches])
TAINTS = [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoSchedule"}]


def pool(name: str, count: int, *taints: Json, cpu: int = 1) -> list[Json]:
    made = nodes(count, cpu, name, labels={"pool": name})
    for one in made:
        one["spec"] = {"taints": list(taints)}
    return made


@EVERY_VERSION
@pytest.mark.parametrize(
    ("given", "patch", "on"),
    [
        pytest.param({}, {"nodeSelector": {"pool": "y"}}, ["y0", "y1"], id="a selector"),
        pytest.param({"nodeSelector": {"pool": "x"}}, {"nodeSelector": {"pool": "y"}}, ["y0", "y1"], id="its value"),
        pytest.param({"nodeSelector": {"pool": "y"}}, {"nodeSelector": {"zone": "z"}}, [], id="maps are merged"),
        pytest.param(
            {"nodeSelector": {"pool": "y"}}, {"nodeSelector": {"pool": None}}, ["y0", "y1"], id="null is absent"
        ),
        pytest.param(
            {"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]}, [], id="tolerations are replaced"
        ),
        pytest.param(
            {"nodeSelector": {"pool": "t"}}, {"tolerations": [{"key": "a"}, {"key": "b"}]}, ["t0", "t1"], id="tolerated"
        ),
        pytest.param(
            {"nodeSelector": {"pool": "y"}},
            {"containers": [{"name": "c", "env": [{"name": "A", "value": "1"}]}]},
            ["y0", "y1"],
            id="containers by name",
        ),
        pytest.param({}, {"schedulingGates": [{"name": "wait"}]}, [], id="gates"),
    ],
)
def test_patches_are_merged_as_for_pods(
    change: Change, given: Json, patch: Json, on: list[str], tmp_path: Path
) -> None:
    wants = {"nodeSelector": {"pool": "t"}} if "tolerations" in given else {}
    base = template(**{**wants, **{k: v for k, v in given.items() if k != "tolerations"}})
    base["spec"]["tolerations"] = [{"operator": "Exists", **one} for one in given.get("tolerations", ())]
    if "tolerations" in patch:
        patch = {**patch, "tolerations": [{"operator": "Exists", **one} for one in patch["tolerations"]]}
    cluster = [*pool("x", 2), *pool("y", 2), *pool("t", 2, *TAINTS)]
    answer = simulate(tmp_path, *cluster, runtime(base), train_job(**change(patch, "node")))
    placed = sorted(one["node"] for one in answer.document["bindings"])
    assert placed == on and answer.status == 0, answer.err


@EVERY_VERSION
@pytest.mark.parametrize("kept", [True, False])
def test_volumes_are_merged_by_name(change: Change, kept: bool, tmp_path: Path) -> None:
    """A volume of the runtime that asks for a claim which is not there holds the pods, whatever else is added."""
    source = {"persistentVolumeClaim": {"claimName": "lost"}} if kept else {"emptyDir": {}}
    base = runtime(template(volumes=[{"name": "data", **source}]))
    patch = {"volumes": [{"name": "more", "emptyDir": {}}]}
    answer = simulate(tmp_path, *nodes(2), base, train_job(**change(patch, "node")))
    assert bool(answer.bound) is not kept
    lost = {"volumes": [{"name": "more", "persistentVolumeClaim": {"claimName": "lost"}}]}
    assert simulate(tmp_path, *nodes(2), base, train_job(**change(lost, "node"))).bound == []


@EVERY_VERSION
def test_init_containers_keep_what_a_patch_does_not_say(change: Change, tmp_path: Path) -> None:
    first = {"name": "a", "image": "i", "resources": {"requests": {"cpu": 2}}}
    patch = {"initContainers": [{"name": "a", "env": [{"name": "A", "value": "1"}]}]}
    base = runtime(template(initContainers=[first]))
    assert simulate(tmp_path, *nodes(2), base, train_job(**change(patch, "node"))).bound == []
    assert len(simulate(tmp_path, *nodes(2, cpu=2), base, train_job(**change(patch, "node"))).bound) == 2


def test_overrides_without_target_jobs_are_for_every_job_and_later_ones_win(tmp_path: Path) -> None:
    first = {"name": "first", "template": {"spec": {"template": template()}}}
    overrides = [
        {"spec": {"nodeSelector": {"pool": "x"}}},
        {"targetJobs": [{"name": "node"}], "spec": {"nodeSelector": {"pool": "y"}}},
    ]
    made = train_job(podTemplateOverrides=overrides)
    answer = simulate(tmp_path, *pool("x", 1), *pool("y", 2), runtime(template(), first), made)
    found = {one["pod"]: one["node"][0] for one in answer.document["bindings"]}
    assert found == {"tj-first-0-0": "x", "tj-node-0-0": "y", "tj-node-0-1": "y"}


@pytest.mark.parametrize(
    "change",
    [
        {"podTemplateOverrides": [{"targetJobs": [{"name": "node"}], "metadata": {"annotations": {MIN: "1"}}}]},
        {"runtimePatches": [{"trainingRuntimeSpec": {"template": {"metadata": {"annotations": {MIN: "1"}}}}}]},
        {"runtimePatches": [{"trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [
            {"name": "node", "template": {"spec": {"template": {"metadata": {"annotations": {MIN: "1"}}}}}},
        ]}}}}]},
        {"annotations": {MIN: "1"}},
    ],
)  # fmt: skip
def test_annotations_of_a_patch_count(change: Json, tmp_path: Path) -> None:
    assert simulate(tmp_path, *nodes(1), runtime(template()), train_job()).bound == []
    answer = simulate(tmp_path, *nodes(1), runtime(template()), train_job(**change))
    assert answer.bound == ["tj-node-0-0"], answer.err


@EVERY_VERSION
def test_jobs_and_fields_that_trainer_refuses_are_told(change: Change, tmp_path: Path) -> None:
    answer = simulate(tmp_path, *nodes(2), runtime(template()), train_job(**change({"nodeSelector": {}}, "x")))
    assert answer.status == 2 and 'name: no replicatedJob "x" in the runtime' in answer.err
    odd = {"priority": 5, "containers": [{"name": "c", "resources": {}}, {"name": "new"}]}
    answer = simulate(tmp_path, *nodes(2), runtime(template()), train_job(**change(odd, "node")))
    for text in (
        "priority: not a field that a TrainJob can change: the API server would reject it",
        "containers[0].resources: not a field that a TrainJob can change: the API server would reject it",
        'containers[1].name: no container "new" in the runtime: the API server would reject it',
    ):
        assert text in answer.err, answer.err


@EVERY_VERSION
def test_what_a_patch_breaks_is_told_of_the_train_job(change: Change, tmp_path: Path) -> None:
    patch = {"tolerations": "all"}
    answer = simulate(tmp_path, *nodes(2), runtime(template()), train_job(**change(patch, "node")))
    assert answer.status == 2 and "TrainJob default/tj: spec." in answer.err and "tolerations" in answer.err
