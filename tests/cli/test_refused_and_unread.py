# SPDX-License-Identifier: Apache-2.0
"""What simulate says of objects whose pods are not made here, of names that stand beside templates, and of pods that an
API server refuses."""

from pathlib import Path
from typing import Any

import pytest

from tests.workloads.cluster import Json, job, jobset, nodes, pod, role, simulate, template, workload

OURS, THEIRS = "koord-scheduler", "default-scheduler"
FAIL = ("--fail-pending",)


def pod_spec(scheduler: str = OURS) -> Json:
    return {**template()["spec"], "schedulerName": scheduler}


def grove(scheduler: str = OURS) -> Json:
    cliques = [{"name": "router", "spec": {"replicas": 2, "podSpec": pod_spec(scheduler)}}]
    return workload("grove.io/v1alpha1", "PodCliqueSet", "serve", {"replicas": 1, "template": {"cliques": cliques}})


def dynamo(scheduler: str = OURS) -> Json:
    services = {"decode": {"replicas": 1, "extraPodSpec": {"schedulerName": scheduler}}}
    return workload("nvidia.com/v1alpha1", "DynamoGraphDeployment", "serve", {"services": services})


def argo(scheduler: str = OURS, **more: Any) -> Json:
    steps = [{"name": "a", "container": {"name": "c", "image": "i"}}]
    return workload(
        "argoproj.io/v1alpha1", "Workflow", "serve", {"schedulerName": scheduler, "templates": steps}, **more
    )


def tekton(scheduler: str = OURS) -> Json:
    return workload("tekton.dev/v1", "TaskRun", "serve", {"podTemplate": {"schedulerName": scheduler}})


def wrapped(scheduler: str = OURS) -> Json:
    inner = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": pod_spec(scheduler)}}}
    return workload("workload.codeflare.dev/v1beta2", "AppWrapper", "serve", {"components": [{"template": inner}]})


def test_a_pod_above_a_reading_limit_is_a_fault_of_the_input(tmp_path: Path) -> None:
    """Of a manifest, and of the template of a workload; not a traceback."""
    terms = [
        {"topologyKey": f"example.com/key-{i:06}", "labelSelector": {"matchLabels": {"a": "b"}}} for i in range(400)
    ]
    affinity = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}
    text = " bytes of pod affinity and topology spread constraints, at most 8192 are read"
    own = pod("p")
    own["spec"].update(affinity)
    made = job("train", 2)
    made["spec"]["template"]["spec"].update(affinity)
    for given, about in ((own, "Pod default/p: spec: "), (made, "Pod/default/train-0: spec: ")):
        answer = simulate(tmp_path, *nodes(2), given)
        [line] = answer.err.splitlines()
        assert answer.status == 2 and about in line and line.endswith(text)


KINDS = pytest.mark.parametrize("make", [grove, dynamo, argo, tekton, wrapped])


@KINDS
def test_an_object_that_is_not_read_and_names_koordpy_has_no_pods(make: Any, tmp_path: Path) -> None:
    answer = simulate(tmp_path, *nodes(2), make(), args=FAIL)
    told = [line for line in answer.err.splitlines() if make()["kind"] in line]
    assert answer.status == 1 and len(told) == 1
    assert f"{make()['kind']} default/serve: " in told[0] and "koordpy does not create its pods" in told[0]
    assert simulate(tmp_path, *nodes(2), make()).status == 0
    near = simulate(tmp_path, *nodes(2), make("koord-schedulr"), args=FAIL)
    assert near.status == 1 and "did you mean koord-scheduler?" in near.err


@KINDS
def test_an_object_of_another_scheduler_does_not_count(make: Any, tmp_path: Path) -> None:
    answer = simulate(tmp_path, *nodes(2), make(THEIRS), args=FAIL)
    assert answer.status == 0 and f"{make()['kind']} of " in answer.err and "is not read: ignored" in answer.err


@KINDS
def test_an_object_whose_pods_are_there_counts_by_them(make: Any, tmp_path: Path) -> None:
    bare = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "serve-0"}, "spec": pod_spec()}
    assert simulate(tmp_path, *nodes(1), make(), bare, args=FAIL).status == 0


@pytest.mark.parametrize(
    ("made", "status"),
    [
        (argo(status={"phase": "Succeeded"}), 0),
        (argo(status={"phase": "Running"}), 1),
        (workload("argoproj.io/v1alpha1", "Workflow", "serve", {"suspend": True, "schedulerName": OURS}), 0),
        ({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "t"}, "template": {"spec": pod_spec()}}, 0),
        (
            {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
             "metadata": {"name": "c"}, "profiles": [{"schedulerName": OURS}]},
            0,
        ),
    ],
)  # fmt: skip
def test_what_has_ended_or_is_no_workload_does_not_count(made: Json, status: int, tmp_path: Path) -> None:
    assert simulate(tmp_path, *nodes(1), made, args=FAIL).status == status


# -- a schedulerName beside the template -------------------------------------------------------------------------------


def plain() -> Json:
    made = template()
    del made["spec"]["schedulerName"]
    return made


def ray(**head: Any) -> Json:
    return workload("ray.io/v1", "RayCluster", "r", {"headGroupSpec": {"template": plain(), **head}})


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (
            job(pod=plain(), schedulerName=OURS),
            "spec.schedulerName: is ignored there: set spec.template.spec.schedulerName",
        ),
        (
            job(pod={**plain(), "schedulerName": OURS}),
            "spec.template.schedulerName: is ignored there: set spec.template.spec.schedulerName",
        ),
        ({**job(pod=plain()), "schedulerName": OURS}, "schedulerName: is ignored there: set spec.template.spec"),
        (
            jobset(role("w", 1, 1, plain()), schedulerName=OURS),
            "spec.schedulerName: is ignored there: set spec.replicatedJobs[0].template.spec.template.spec.scheduler",
        ),
        (
            workload("apps/v1", "Deployment", "d", {"template": plain(), "schedulerName": OURS}),
            "spec.schedulerName: is ignored there: set spec.template.spec.schedulerName",
        ),
        (
            ray(schedulerName=OURS),
            "spec.headGroupSpec.schedulerName: is ignored there: set spec.headGroupSpec.template.spec.schedulerName",
        ),
        (
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "p"},
                "schedulerName": OURS,
                "spec": plain()["spec"],
            },
            "schedulerName: is ignored there: set spec.schedulerName",
        ),
    ],
)
def test_a_scheduler_name_beside_the_template_is_told_and_counts(made: Json, text: str, tmp_path: Path) -> None:
    name = f"{made['kind']} default/{made['metadata']['name']}"
    answer = simulate(tmp_path, *nodes(4), made, args=FAIL)
    assert answer.status == 1 and f"{name}: {text}" in answer.err, answer.err


def test_a_scheduler_name_beside_one_that_is_read_does_not_count(tmp_path: Path) -> None:
    answer = simulate(tmp_path, *nodes(3), job(schedulerName=OURS), args=FAIL)
    assert answer.status == 0 and "spec.schedulerName: is ignored there" in answer.err
    answer = simulate(tmp_path, *nodes(3), job(pod=plain(), schedulerName=THEIRS), args=FAIL)
    assert answer.status == 0 and "spec.schedulerName: is ignored there" in answer.err
    submitter = {"rayClusterSpec": {"headGroupSpec": {"template": template()}}, "submitterPodTemplate": template()}
    assert "is ignored there" not in simulate(tmp_path, *nodes(1), workload("ray.io/v1", "RayJob", "r", submitter)).err


# -- managedBy, and what RayJobs do not make ---------------------------------------------------------------------------

KUEUE = "kueue.x-k8s.io/multikueue"
WORKER = {"replicas": 2, "template": template()}
HEAD = {"headGroupSpec": {"template": template()}}


@pytest.mark.parametrize(
    ("make", "own"),
    [
        (lambda by: job(number=2, managedBy=by), "kubernetes.io/job-controller"),
        (lambda by: jobset(role("w", 1, 2), managedBy=by), "jobset.sigs.k8s.io/jobset-controller"),
        (
            lambda by: workload("batch/v1", "CronJob", "c", {"jobTemplate": {
                "spec": {"parallelism": 2, "completions": 2, "template": template(), "managedBy": by},
            }}),
            "kubernetes.io/job-controller",
        ),
        (
            lambda by: workload("kubeflow.org/v1", "PyTorchJob", "p", {
                "runPolicy": {"managedBy": by}, "pytorchReplicaSpecs": {"Worker": WORKER},
            }),
            "kubeflow.org/training-operator",
        ),
        (
            lambda by: workload("kubeflow.org/v2beta1", "MPIJob", "m", {
                "runPolicy": {"managedBy": by}, "mpiReplicaSpecs": {"Worker": WORKER},
            }),
            "kubeflow.org/mpi-operator",
        ),
        (
            lambda by: workload("ray.io/v1", "RayCluster", "r", {
                **HEAD, "managedBy": by,
                "workerGroupSpecs": [{"groupName": "g", "replicas": 1, "template": template()}],
            }),
            "ray.io/kuberay-operator",
        ),
        (
            lambda by: workload("ray.io/v1", "RayJob", "r", {"managedBy": by, "rayClusterSpec": {
                **HEAD, "workerGroupSpecs": [{"groupName": "g", "replicas": 1, "template": template()}],
            }}),
            "ray.io/kuberay-operator",
        ),
    ],
)  # fmt: skip
def test_pods_of_another_controller_are_not_made(make: Any, own: str, tmp_path: Path) -> None:
    answer = simulate(tmp_path, *nodes(2), make(KUEUE), args=FAIL)
    made = next(iter(answer.workloads.values()))
    assert answer.bound == answer.pending == [] and answer.status == 0 and answer.gangs == {}
    assert made["made"] == 0 and made["waiting"] == [] and made["note"] == f"managed by {KUEUE}"
    assert f"managedBy {KUEUE}: that controller creates its pods, koordpy does not" in answer.err
    for by in (own, None):
        answer = simulate(tmp_path, *nodes(2), make(by))
        assert len(answer.bound) == 2 and "managedBy" not in answer.err, answer.document


def test_pods_that_another_controller_has_made_are_a_gang_all_the_same(tmp_path: Path) -> None:
    made = job(number=2, managedBy="example.com/own", meta={"uid": "j1"})
    answer = simulate(tmp_path, *nodes(2), made, pod("train-0", 0), pod("train-1", 1))
    assert answer.bound == ["train-0", "train-1"] and answer.gangs["train"]["minMember"] == 2
    assert simulate(tmp_path, *nodes(2), made, pod("train-0", 0)).bound == []


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("", "the pod that submits it is not created (submissionMode K8sJobMode)"),
        ("K8sJobMode", "the pod that submits it is not created (submissionMode K8sJobMode)"),
        ("SidecarMode", "the container of its head that submits it is not created (submissionMode SidecarMode)"),
        ("HTTPMode", ""),
        ("InteractiveMode", ""),
    ],
)
def test_what_submits_a_ray_job_is_told(mode: str, text: str, tmp_path: Path) -> None:
    spec = {"rayClusterSpec": HEAD, **({"submissionMode": mode} if mode else {})}
    answer = simulate(tmp_path, *nodes(1), workload("ray.io/v1", "RayJob", "r", spec))
    assert answer.bound == ["r-head"] and (text in answer.err if text else "submits" not in answer.err)


# -- what an API server refuses of resources ---------------------------------------------------------------------------

GPU = "nvidia.com/gpu"


def asking(resources: Json, field: str = "containers") -> Json:
    made = template()
    one = {"name": "main", "image": "i", "resources": resources}
    if field == "resources":
        return template(resources=resources)
    made["spec"][field] = [one]
    return made


@pytest.mark.parametrize("whole", ["Pod", "Job"])
@pytest.mark.parametrize(
    ("field", "resources", "text"),
    [
        ("containers", {"requests": {GPU: 1}}, "container main requests nvidia.com/gpu without a limit"),
        ("initContainers", {"requests": {GPU: 1}}, "container main requests nvidia.com/gpu without a limit"),
        ("containers", {"requests": {GPU: 1}, "limits": {GPU: 2}}, "requests 1 of nvidia.com/gpu with a limit of 2"),
        ("containers", {"requests": {GPU: "1"}, "limits": {GPU: "1000m"}}, ""),
        ("containers", {"limits": {GPU: 1}}, ""),
        ("containers", {"requests": {"rdma/hca": 1}}, "container main requests rdma/hca without a limit"),
        ("containers", {"requests": {"hugepages-2Mi": "4Mi", "cpu": 1}}, "requests hugepages-2Mi without a limit"),
        ("containers", {"limits": {"hugepages-2Mi": "4Mi"}}, "requests huge pages without cpu or memory"),
        ("containers", {"limits": {"hugepages-2Mi": "4Mi", "memory": "1Gi"}}, ""),
        ("containers", {"requests": {"cpu": 2}, "limits": {"cpu": 1}}, "requests 2 of cpu, more than its limit of 1"),
        ("containers", {"requests": {"cpu": 1}, "limits": {"cpu": 2}}, ""),
        ("containers", {"requests": {"gpu": 1}}, "requests gpu, which is not a container resource"),
        ("resources", {"limits": {GPU: 1}}, "resources of a pod are cpu, memory and hugepages-*"),
        ("resources", {"requests": {GPU: 1}}, "resources of a pod are cpu, memory and hugepages-*"),
        ("resources", {"requests": {"cpu": 1}, "limits": {"cpu": 2}}, ""),
    ],
)
def test_resources_that_an_api_server_refuses_are_told(
    whole: str, field: str, resources: Json, text: str, tmp_path: Path
) -> None:
    made = asking(resources, field)
    bare = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train"}, "spec": made["spec"]}
    answer = simulate(tmp_path, *nodes(1), bare if whole == "Pod" else job(number=1, pod=made))
    assert answer.status == 0
    if not text:
        assert "refuses" not in answer.err
        return
    at = "spec." if whole == "Pod" else "spec.template.spec."
    told = [line for line in answer.err.splitlines() if text in line]
    assert len(told) == 1 and f"{whole} default/train: {at}{field}" in told[0], answer.err


def test_a_part_of_a_gpu_is_a_fault(tmp_path: Path) -> None:
    answer = simulate(tmp_path, *nodes(1), job(number=1, pod=asking({"limits": {GPU: "500m"}})))
    assert answer.status == 2 and "spec.template.spec.containers[0].resources.limits[nvidia.com/gpu]" in answer.err
