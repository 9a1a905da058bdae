# SPDX-License-Identifier: Apache-2.0
"""The rules of workloads one by one: what is a gang, its minimum, who holds it, what is made."""

import json
from itertools import product
from pathlib import Path

import pytest
import yaml

from koordpy.apiserver.applied_patches import strategic
from koordpy.cli.main import main
from koordpy.workloads.kinds.batch_jobs import job_part
from koordpy.workloads.pod_indexes import indexes
from koordpy.workloads.workload_manifest import Source
from tests.workloads.cluster import (
    AUTO,
    MIN,
    NETWORK,
    Json,
    job,
    jobset,
    nodes,
    pod,
    role,
    simulate,
    template,
    workload,
)

GROUP = "scheduling.x-k8s.io/pod-group"
JOB_UID: Json = {"uid": "j1"}


def wanted(parallelism: int, completions: int | None, seen: int, told: int, failed: str = "") -> int:
    """As the Job controller counts, by the API's own words."""
    done = max(seen, told)
    if completions is None:
        return parallelism if not done else 0
    return max(0, min(parallelism, completions - done - len(indexes(failed))))


def test_wanted_by_every_state_of_a_small_job() -> None:
    for parallelism, completions, seen, told in product(range(4), (None, 0, 1, 3, 5), range(4), range(4)):
        for failed in ("", "0", "1-2") if completions else ("",):
            spec = {"completions": completions, "parallelism": parallelism, "template": template()}
            status = {"succeeded": told, "failedIndexes": failed}
            part = job_part(Source({"spec": spec, "status": status}), "j", "u")
            assert part.wanted(seen, 0) == wanted(parallelism, completions, seen, told, failed)


def test_indexes_are_read_as_the_status_writes_them() -> None:
    assert indexes("0,2-4,7") == {0, 2, 3, 4, 7}
    assert indexes("") == indexes("x") == indexes("-") == frozenset()


@pytest.mark.parametrize(
    ("given", "is_gang"),
    [
        (job(), True),
        (job(number=1), False),
        (job(number=1, notes={AUTO: "on"}), True),
        (job(completionMode="NonIndexed"), False),
        (job(completionMode="NonIndexed", notes={AUTO: "on"}), True),
        (job(completionMode="NonIndexed", pod=template({MIN: "1"})), True),
        (job(notes={AUTO: "off"}), False),
        (job(pod=template({AUTO: "off"}), notes={AUTO: "on"}), False),
        (job(pod=template({AUTO: "on"}), notes={AUTO: "off"}), True),
        (workload("apps/v1", "StatefulSet", "s", {"replicas": 2, "template": template()}), False),
        (workload("apps/v1", "StatefulSet", "s", {"replicas": 2, "template": template()}, {AUTO: "on"}), True),
        (workload("apps/v1", "ReplicaSet", "s", {"replicas": 2, "template": template()}, {AUTO: "on"}), False),
        (workload("apps/v1", "ReplicaSet", "s", {"replicas": 2, "template": template({MIN: "2"})}), True),
        (workload("apps/v1", "Deployment", "s", {"replicas": 2, "template": template({MIN: "2"})}), True),
        (workload("apps/v1", "DaemonSet", "s", {"template": template({MIN: "2"})}), False),
        (jobset(role("a", 1, 1)), False),
        (jobset(role("a", 1, 1), role("b", 1, 1)), True),
    ],
)
def test_which_workloads_are_gangs(given: Json, is_gang: bool, tmp_path: Path) -> None:
    answer = simulate(tmp_path, *nodes(4), given)
    assert answer.status == 0 and bool(answer.gangs) is is_gang and not answer.pending


@pytest.mark.parametrize(
    ("gangs", "is_gang"),
    [
        ({}, True),
        ({"auto": "labels"}, False),
        ({"auto": "off"}, False),
        ({"kinds": ["JobSet"]}, False),
        ({"namespaces": {"default": {"auto": "off"}}}, False),
        ({"auto": "off", "namespaces": {"default": {"auto": "workloads"}}}, True),
    ],
)
def test_the_configuration_has_the_last_word(gangs: Json, is_gang: bool, tmp_path: Path) -> None:
    answer = simulate(tmp_path, *nodes(3), job(notes={AUTO: "on"}), config={"gangs": gangs})
    assert bool(answer.gangs) is is_gang


@pytest.mark.parametrize(
    ("notes", "pod_notes", "text"),
    [
        ({MIN: "two"}, {}, f"annotation {MIN} cannot be read: 'two' is no whole number"),
        ({MIN: "4"}, {}, f"annotation {MIN} cannot be read: 4 is more than the 3 members of Job train"),
        ({}, {AUTO: "maybe"}, f"annotation {AUTO} cannot be read: 'maybe' is neither on nor off"),
    ],
)
def test_what_cannot_be_read_holds_the_gang(notes: Json, pod_notes: Json, text: str, tmp_path: Path) -> None:
    answer = simulate(tmp_path, *nodes(3), job(notes=notes, pod=template(pod_notes)))
    assert answer.bound == [] and answer.message("train-0") == f"gang default/train: {text}"
    assert answer.gangs["train"]["status"] == "Invalid"


def test_a_role_that_lacks_members_waits_alone_beside_one_that_runs(tmp_path: Path) -> None:
    """Two present pods of three whose other is gone for now: only a PodGang names pods that nobody makes."""
    refs = {name: [{"namespace": "default", "name": f"{name}-{i}"} for i in range(2)] for name in ("a", "b")}
    groups = [{"name": name, "minReplicas": 2, "podReferences": found} for name, found in refs.items()]
    gang = workload("scheduler.grove.io/v1alpha1", "PodGang", "pg", {"podgroups": groups})

    def member(name: str, node: str = "") -> Json:
        spec = {**template()["spec"], **({"nodeName": node} if node else {})}
        status = {"phase": "Running" if node else "Pending"}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec, "status": status}

    waits = simulate(tmp_path, *nodes(4), gang, member("a-0"), member("a-1"), member("b-0"))
    assert waits.bound == []
    assert waits.message("a-0") == "gang default/pg:b: waiting for members, 1 of minMember 2 exist"
    runs = simulate(tmp_path, *nodes(4), gang, member("a-0", "n0"), member("a-1"), member("b-0"))
    assert runs.bound == ["a-1"]
    assert runs.message("b-0") == "gang default/pg:b: waiting for members, 1 of minMember 2 exist"


def test_pods_of_a_dump_are_not_made_twice(tmp_path: Path) -> None:
    made = job(meta=JOB_UID)
    there = [pod("train-0-x", 0, node="n0"), pod("train-1-x", 1, status={"phase": "Failed"})]
    answer = simulate(tmp_path, *nodes(3), made, *there)
    assert answer.bound == ["train-1", "train-2"]
    assert (answer.workloads["train"]["made"], answer.workloads["train"]["present"]) == (2, 1)


def test_a_pod_of_an_index_that_a_job_has_no_more_counts_for_nothing(tmp_path: Path) -> None:
    """An elastic Job that was scaled down: as many are made as its gang waits for."""
    late = pod("train-4-x", 4, status={"phase": "Succeeded"}, node="n0")
    answer = simulate(tmp_path, *nodes(2), job(number=2, meta=JOB_UID), late)
    assert answer.bound == ["train-0", "train-1"] and answer.gangs["train"]["minMember"] == 2


def test_pods_of_another_run_are_no_members(tmp_path: Path) -> None:
    older = [pod(f"train-{i}-x", i, uid="j0", node=f"n{i}") for i in range(2)]
    answer = simulate(tmp_path, *nodes(4), job(meta=JOB_UID), *older)
    assert answer.bound == [] and answer.gangs["train"]["members"] == 3


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (job(completions=None), "spec.completions: required where completionMode is Indexed"),
        (job(pod={"spec": {}}), "spec.template.spec.containers: required"),
        (job(parallelism=-1), "spec.parallelism: -1 is negative"),
        (job(number=100_001), "spec.parallelism: makes 100001 pods, 100000 at most"),
        (jobset(role("a", 1, 1), role("a", 1, 1)), 'spec.replicatedJobs[1].name: "a" is given twice'),
        (
            jobset(role("a", 1, 1), {**role("b", 1, 1), "dependsOn": [{"name": "x", "status": "Ready"}]}),
            'spec.replicatedJobs[1].dependsOn[0].name: no replicatedJob "x" before it',
        ),
        (
            workload("batch/v1", "CronJob", "c", {"jobTemplate": {"spec": {"template": {"spec": {}}}}}),
            "spec.jobTemplate.spec.template.spec.containers: required",
        ),
        (
            workload("trainer.kubeflow.org/v1alpha1", "TrainJob", "tj", {"runtimeRef": {"name": "torch"}}),
            'spec.runtimeRef: ClusterTrainingRuntime "torch" is not in the input',
        ),
    ],
)
def test_faults_name_object_and_field(given: Json, text: str, tmp_path: Path) -> None:
    answer = simulate(tmp_path, *nodes(1), given)
    name = given["metadata"]["name"]
    assert answer.status == 2 and f"{given['kind']} default/{name}: {text}\n" in answer.err


def test_names_that_are_taken_get_the_kind_behind_them(tmp_path: Path) -> None:
    spec = {"pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": template()}}}
    answer = simulate(tmp_path, *nodes(4), job("x", 2), workload("kubeflow.org/v1", "PyTorchJob", "x", spec))
    assert sorted(answer.gangs) == ["x", "x-pytorchjob"]
    stranger = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train-0"}, "spec": template()["spec"]}
    answer = simulate(tmp_path, *nodes(3), stranger, job(number=2))
    assert answer.bound == ["train-0", "train-0-job", "train-1"]


def test_roles_whose_pods_name_a_gang_are_left_to_it(tmp_path: Path) -> None:
    group = workload("scheduling.x-k8s.io/v1alpha1", "PodGroup", "g", {"minMember": 1})
    driver = role("driver", 1, 1, template(labels={GROUP: "g"}))
    answer = simulate(tmp_path, *nodes(3), group, jobset(driver, role("workers", 1, 2)))
    assert {name: one["bound"] for name, one in answer.gangs.items()} == {"g": 1, "js:workers": 2}


def test_strategic_merge_knows_lists_by_name() -> None:
    old = {"containers": [{"name": "a", "image": "1", "args": ["x"]}, {"name": "b"}], "kept": 1}
    new = {"containers": [{"name": "a", "args": ["y"]}, {"name": "c"}]}
    assert strategic(old, new) == {
        "containers": [{"name": "a", "image": "1", "args": ["y"]}, {"name": "b"}, {"name": "c"}],
        "kept": 1,
    }


def of_jobset(name: str, of: str, number: int) -> Json:
    """A Job that a JobSet has made."""
    prefix = "jobset.sigs.k8s.io/"
    labels = {prefix + "jobset-name": "js", prefix + "replicatedjob-name": of, prefix + "replicatedjob-replicas": "1"}
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "js", "uid": "J", "controller": True}
    return job(name, number, meta={"uid": f"u-{name}", "labels": labels, "ownerReferences": [owner]})


def test_a_jobset_that_is_not_in_the_input_is_known_by_its_jobs(tmp_path: Path) -> None:
    jobs = of_jobset("js-driver-0", "driver", 1), of_jobset("js-workers-0", "workers", 2)
    assert simulate(tmp_path, *nodes(2), *jobs).bound == []
    answer = simulate(tmp_path, *nodes(3), *jobs)
    assert {name: one["bound"] for name, one in answer.gangs.items()} == {"js:driver": 1, "js:workers": 2}
    assert {name: one["made"] for name, one in answer.workloads.items()} == {"js-driver-0": 1, "js-workers-0": 2}


def test_an_elastic_gang_that_runs_is_shown_as_running(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    least = {"kueue.x-k8s.io/job-min-parallelism": "2"}
    path = tmp_path / "in.yaml"
    runs = [pod(f"train-{i}", i, node=f"n{i}") for i in range(2)]
    path.write_text(yaml.safe_dump_all([*nodes(2), job(number=4, notes=least, meta=JOB_UID), *runs]))
    main(["simulate", "-f", str(path)])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("default/train  Sched")]
    assert line.split() == ["default/train", "Scheduled", "2/4", "2", "-", "runs,", "2", "more", "waiting"]


@pytest.mark.parametrize(
    ("number", "least", "said"),
    [(8, 8, " (8 members are not a multiple of 6)"), (11, 7, " (7 to 11 members are not a multiple of 6)"), (8, 6, "")],
)
def test_members_that_are_no_multiple_say_so(tmp_path: Path, number: int, least: int, said: str) -> None:
    layers = {"hierarchy": [{"layerName": "rackLayer", "labelKey": "rack"}]}
    topology = workload("scheduling.koordinator.sh/v1alpha1", "ClusterNetworkTopology", "default", layers)
    rule = {"gatherStrategy": [{"layer": "rackLayer", "strategy": "PreferGather", "podCountMultiple": 6}]}
    notes = {NETWORK: json.dumps(rule), "kueue.x-k8s.io/job-min-parallelism": str(least)}
    room = [*nodes(12, name="a", labels={"rack": "a"})] if said else [*nodes(5, name="a", labels={"rack": "a"})]
    answer = simulate(tmp_path, *room, topology, job(number=number, notes=notes))
    assert not answer.bound
    last = " no new node would help: no number of its members is a multiple of 6" if said else ""
    assert answer.message("train-0").endswith(f"; podCountMultiple rackLayer=6{said}.{last}")
