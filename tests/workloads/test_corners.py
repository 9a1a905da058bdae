"""Corners of the rules of workloads: pods that nobody owns, names that meet, roles of others, what ends a job."""

from pathlib import Path
from typing import Any

from tests.workloads.cluster import AUTO, MIN, Json, job, jobset, nodes, pod, role, simulate, template, workload

JOB_NAME = "training.kubeflow.org/job-name"
VOLCANO = "scheduling.k8s.io/group-name"


def bare(name: str, *, scheduler: str = "koord-scheduler", owner: Json | None = None, **more: Any) -> Json:
    made = pod(name, **more)
    made["metadata"]["ownerReferences"] = [{**owner, "controller": True}] if owner else []
    made["metadata"]["labels"].pop("batch.kubernetes.io/job-name")
    made["spec"]["schedulerName"] = scheduler
    return made


def test_a_pod_that_lost_its_owner_is_plain(tmp_path: Path) -> None:
    orphan = pod("train-0", 0, node="n0")
    orphan["metadata"]["ownerReferences"] = []
    answer = simulate(tmp_path, *nodes(3), job(number=2, meta={"uid": "j1"}), orphan)
    assert answer.workloads["train"]["present"] == 0
    assert answer.bound == ["train-0-job", "train-1"]
    # where the manifest has no uid, labels tell
    answer = simulate(tmp_path, *nodes(3), job(number=2), orphan)
    assert (answer.workloads["train"]["present"], answer.bound) == (1, ["train-1"])


def test_an_mpi_job_whose_launcher_has_succeeded_wants_no_workers(tmp_path: Path) -> None:
    replicas = {"Launcher": {"replicas": 1, "template": template()}, "Worker": {"replicas": 2, "template": template()}}
    made = workload("kubeflow.org/v2beta1", "MPIJob", "mpi", {"mpiReplicaSpecs": replicas}, meta={"uid": "m1"})
    owner = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "name": "mpi", "uid": "m1"}
    launcher = bare("mpi-launcher", owner=owner, status={"phase": "Succeeded"})
    launcher["metadata"]["labels"] |= {JOB_NAME: "mpi", "training.kubeflow.org/job-role": "launcher"}
    answer = simulate(tmp_path, *nodes(3), made, launcher)
    assert (answer.bound, answer.pending) == ([], [])


def test_nobody_waits_for_a_role_of_another_scheduler(tmp_path: Path) -> None:
    groups = [
        {"name": name, "minReplicas": len(pods), "podReferences": [{"namespace": "default", "name": p} for p in pods]}
        for name, pods in (("a", ["a-0"]), ("b", ["b-0", "b-1"]))
    ]
    gang = workload("scheduler.grove.io/v1alpha1", "PodGang", "pg", {"podgroups": groups})
    pods = [bare("a-0", scheduler="default-scheduler"), bare("b-0"), bare("b-1")]
    answer = simulate(tmp_path, *nodes(3), gang, *pods)
    assert answer.bound == ["b-0", "b-1"]


def test_a_name_that_an_earlier_document_makes_gets_the_kind(tmp_path: Path) -> None:
    sets = {"replicas": 2, "podManagementPolicy": "Parallel", "template": template()}
    answer = simulate(tmp_path, *nodes(4), job("x", 2), workload("apps/v1", "StatefulSet", "x", sets))
    assert answer.bound == ["x-0", "x-0-statefulset", "x-1", "x-1-statefulset"]


def test_what_a_volcano_group_needs_above_its_tasks_comes_from_members_that_exist(tmp_path: Path) -> None:
    group = workload("scheduling.volcano.sh/v1beta1", "PodGroup", "g", {"minMember": 3, "minTaskMember": {"b": 1}})
    pods = [bare(name, template={"notes": {VOLCANO: "g", "volcano.sh/task-spec": name[0]}}) for name in ("a-0", "a-1")]
    pods[1]["spec"]["schedulingGates"] = [{"name": "x"}]
    pods += [bare(f"b-{i}", template={"notes": {VOLCANO: "g", "volcano.sh/task-spec": "b"}}) for i in range(3)]
    answer = simulate(tmp_path, *nodes(6), group, *pods)
    assert answer.bound == ["a-0", "b-0", "b-1", "b-2"]


def test_daemons_are_never_a_gang(tmp_path: Path) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d1"}
    pods = [bare(f"d-{i}", owner=owner, template={"notes": {MIN: "3"}}) for i in range(2)]
    answer = simulate(tmp_path, *nodes(2), *pods)
    assert (answer.bound, answer.gangs) == (["d-0", "d-1"], {})


def test_what_stands_on_a_cron_job_itself_does_not_count(tmp_path: Path) -> None:
    inner = job(number=3)["spec"]
    cron = workload(
        "batch/v1", "CronJob", "c", {"schedule": "* * * * *", "jobTemplate": {"spec": inner}}, {AUTO: "off"}
    )
    answer = simulate(tmp_path, *nodes(2), cron)
    assert (answer.bound, answer.gangs["c"]["minMember"]) == ([], 3)


def test_two_runs_of_one_name_are_two_gangs(tmp_path: Path) -> None:
    def run(uid: str, name: str, node: str = "") -> Json:
        owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "pt", "uid": uid}
        made = bare(name, owner=owner, node=node)
        made["metadata"]["labels"][JOB_NAME] = "pt"
        made["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:0{1 if node else 2}Z"
        made["spec"]["containers"][0]["env"] = [{"name": "PET_NNODES", "value": "2"}]
        return made

    old, new = "aaaaaaaa1111", "bbbbbbbb2222"
    pods = [run(old, "pt-0", "n0"), run(new, "pt-0b"), run(new, "pt-1b")]
    answer = simulate(tmp_path, *nodes(2), *pods)
    assert answer.bound == []
    assert answer.gangs["pt"]["minMember"] == 2
    assert answer.gangs["pt@aaaaaaaa"]["message"] == "1 of 2 members, PyTorchJob pt has not made the others"
    assert simulate(tmp_path, *nodes(3), *pods).bound == ["pt-0b", "pt-1b"]


def test_a_name_that_pods_name_themselves_gets_the_kind(tmp_path: Path) -> None:
    def of_kueue(i: int) -> Json:
        labels = {"kueue.x-k8s.io/pod-group-name": "train"}
        notes = {"kueue.x-k8s.io/pod-group-total-count": "2"}
        return bare(f"k-{i}", template={"labels": labels, "notes": notes})

    answer = simulate(tmp_path, *nodes(3), job(number=2), of_kueue(0))
    assert (answer.bound, answer.gangs["train-kueue"]["minMember"]) == (["train-0", "train-1"], 2)


def test_a_role_is_named_where_the_spec_has_another(tmp_path: Path) -> None:
    driver = template(schedulerName="default-scheduler")
    made = jobset(role("driver", 1, 1, driver), role("workers", 1, 2, template({MIN: "5"})))
    answer = simulate(tmp_path, *nodes(2), made)
    assert "5 is more than the 2 members of role workers" in answer.message("js-workers-0-0")
