# SPDX-License-Identifier: Apache-2.0
"""What of a workload is not what its author meant is told, and nothing else is."""

import argparse
import json
from pathlib import Path

import pytest

from koordpy.api import keys
from koordpy.cli.main import main
from koordpy.offline.offline_options import DEFAULT_NOW, prepare
from koordpy.planner.planning_round import plan_round
from tests.cli.test_manifests import NODE, written

POD = "{schedulerName: koord-scheduler, restartPolicy: Never, containers: [{name: c, image: i}]}"
TEMPLATE = f"template: {{spec: {POD}}}"
INDEXED = f"completionMode: Indexed, parallelism: 2, completions: 2, {TEMPLATE}"


def obj(kind: str, spec: str, meta: str = "name: x", version: str = "batch/v1") -> str:
    return f"apiVersion: {version}\nkind: {kind}\nmetadata: {{{meta}}}\nspec: {{{spec}}}\n"


def told(folder: Path, capsys: pytest.CaptureFixture[str], *texts: str) -> list[str]:
    path = written(folder, "---\n".join((NODE, *texts)), "in.yaml")
    assert main(["simulate", "-f", path, "-o", "json"]) == 0
    lines = capsys.readouterr().err.splitlines()
    return [line.replace(f"{path}: ", "").removeprefix("warning: ") for line in lines]


def kubeflow(spec: str, kind: str = "PyTorchJob") -> str:
    return obj(kind, spec, version="kubeflow.org/v1")


def unknown(path: str, right: str) -> str:
    return f"{path}: unknown field, not read, did you mean {right}?"


JOBSET = "jobset.x-k8s.io/v1alpha2"
RAY = "ray.io/v1"
REPLICA = f"{{replicas: 1, {TEMPLATE}}}"
HEAD = f"headGroupSpec: {{{TEMPLATE}}}"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (obj("Job", f"paralelism: 4, {TEMPLATE}"), unknown("spec.paralelism", "parallelism")),
        (
            obj("Job", INDEXED.replace("containers", "nodeSelectr: {a: b}, containers")),
            unknown("spec.template.spec.nodeSelectr", "nodeSelector"),
        ),
        (
            obj("Job", f"completionMode: indexed, {TEMPLATE}"),
            "spec.completionMode: 'indexed' is none of NonIndexed, Indexed: the API server would reject it",
        ),
        (
            obj("Job", INDEXED.replace("Never", "Always")),
            "spec.template.spec.restartPolicy: 'Always' is none of Never, OnFailure: the API server would reject it",
        ),
        (
            obj(
                "JobSet",
                f"replicatedJobs: [{{name: a, template: {{spec: {{{TEMPLATE.replace('Never', 'Always')}}}}}}}]",
                version=JOBSET,
            ),
            "spec.replicatedJobs[0].template.spec.template.spec.restartPolicy: 'Always' is none of Never, OnFailure: "
            "the API server would reject it",
        ),
        (
            obj("CronJob", f"jobTemplate: {{spec: {{completion: 2, {TEMPLATE}}}}}"),
            unknown("spec.jobTemplate.spec.completion", "completions"),
        ),
        (
            obj("JobSet", "replicatedJob: []", version=JOBSET),
            unknown("spec.replicatedJob", "replicatedJobs"),
        ),
        (
            obj(
                "JobSet",
                f"replicatedJobs: [{{name: a, template: {{spec: {{{TEMPLATE}}}}}}}], startPolicy: {{}}",
                version=JOBSET,
            ),
            unknown("spec.startPolicy", "startupPolicy"),
        ),
        (
            kubeflow(f"pytorchReplicaSpec: {{Worker: {REPLICA}}}"),
            unknown("spec.pytorchReplicaSpec", "pytorchReplicaSpecs"),
        ),
        (
            kubeflow(f"pytorchReplicaSpecs: {{Master: {REPLICA}, Workers: {REPLICA}}}"),
            unknown("spec.pytorchReplicaSpecs.Workers", "Worker"),
        ),
        (obj("RayCluster", f"{HEAD}, workerGroups: []", version=RAY), unknown("spec.workerGroups", "workerGroupSpecs")),
        (
            obj(
                "LeaderWorkerSet",
                f"leaderWorkerTemplate: {{sizes: 2, workerTemplate: {{spec: {POD}}}}}",
                version="leaderworkerset.x-k8s.io/v1",
            ),
            unknown("spec.leaderWorkerTemplate.sizes", "size"),
        ),
        (obj("StatefulSet", f"replica: 3, {TEMPLATE}", version="apps/v1"), unknown("spec.replica", "replicas")),
        (obj("Deployment", f"replica: 3, {TEMPLATE}", version="apps/v1"), unknown("spec.replica", "replicas")),
        (
            obj("Job", INDEXED, version="batch/v1beta1"),
            "apiVersion: batch/v1beta1 is not served, use batch/v1: the API server would reject it",
        ),
        (
            obj("Job", INDEXED, "name: X_Y"),
            "metadata.name: 'X_Y' is not a valid object name: the API server would reject it",
        ),
        (
            obj("Job", INDEXED, "name: x, annotations: {gang.scheduling.koordinator.sh/min-avail: '2'}"),
            f"annotation {keys.GANG_PREFIX}min-avail is not read, did you mean annotation {keys.GANG_MIN}?",
        ),
        (
            obj("Job", INDEXED, f"name: x, labels: {{{keys.LABEL_POD_GROUP}: g}}"),
            f"label {keys.LABEL_POD_GROUP} has no effect on a Job: set it on its pods, "
            f"spec.template.metadata.labels[{keys.LABEL_POD_GROUP}]",
        ),
        (
            obj(
                "Deployment", f"replicas: 2, {TEMPLATE}", f"name: x, annotations: {{{keys.GANG_AUTO}: 'on'}}", "apps/v1"
            ),
            f'annotation {keys.GANG_AUTO} "on" does not make a gang of a Deployment: annotation {keys.GANG_MIN} on its '
            "pod template does",
        ),
        (
            obj("Deployment", f"replicas: 2, {TEMPLATE}", f"name: x, annotations: {{{keys.GANG_MIN}: '2'}}", "apps/v1"),
            f"annotation {keys.GANG_MIN} does not make a gang of a Deployment: annotation {keys.GANG_MIN} on its pod "
            "template does",
        ),
    ],
)
def test_slips_of_workloads_are_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, line: str
) -> None:
    assert [one for one in told(tmp_path, capsys, text) if line in one] == [
        f"document 2: {text.splitlines()[1].removeprefix('kind: ')} default/"
        f"{text.partition('name: ')[2].partition(',')[0].partition('}')[0]}: {line}"
    ]


def test_nothing_is_said_of_fields_that_are_theirs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = Path(__file__).with_name("whole_workloads.yaml").read_text(encoding="utf-8")
    lines = told(tmp_path, capsys, text)
    assert [one for one in lines if "no gather goal" not in one and "ElasticQuota" not in one] == []


def test_of_roles_of_two_schedulers_it_is_said_that_they_do_not_start_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = REPLICA.replace("schedulerName: koord-scheduler, ", "")
    lines = told(tmp_path, capsys, kubeflow(f"pytorchReplicaSpecs: {{Master: {bare}, Worker: {REPLICA}}}"))
    assert (
        "PyTorchJob default/x: role master has schedulerName default-scheduler, "
        "role worker has schedulerName koord-scheduler: the roles will not start together" in lines
    )


@pytest.mark.parametrize("policy", ["OrderedReady", "Parallel"])
def test_a_gang_of_pods_that_come_one_by_one_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str
) -> None:
    names = f"metadata: {{annotations: {{{keys.GANG_NAME}: g, {keys.GANG_MIN}: '3'}}}}, "
    spec = f"podManagementPolicy: {policy}, replicas: 3, {TEMPLATE.replace('{spec', '{' + names + 'spec')}"
    made = obj("StatefulSet", spec, version="apps/v1")
    found = [one for one in told(tmp_path, capsys, made) if "OrderedReady" in one]
    path = written(tmp_path, "---\n".join((NODE, made)), "in.yaml")
    assert main(["simulate", "-f", path, "--fail-pending"]) == (policy == "OrderedReady")
    assert found == (
        [
            "StatefulSet default/x: podManagementPolicy OrderedReady makes pods one by one: gang default/g needs 3 "
            "members and never starts (use podManagementPolicy: Parallel)"
        ]
        if policy == "OrderedReady"
        else []
    )


@pytest.mark.parametrize("least", ["0", "-1", "1"])
def test_a_minimum_of_nothing_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str], least: str) -> None:
    roles = ", ".join(f"{{name: {name}, template: {{spec: {{{INDEXED}}}}}}}" for name in "ab")
    notes = f"name: x, annotations: {{{keys.GANG_MIN}: '{least}'}}"
    for text in (
        obj("Job", INDEXED, notes),
        obj("JobSet", f"replicatedJobs: [{roles}]", notes, version=JOBSET),
        obj("Job", INDEXED.replace("{spec", f"{{metadata: {{annotations: {{{keys.GANG_MIN}: '{least}'}}}}, spec")),
    ):
        kind = text.splitlines()[1].removeprefix("kind: ")
        line = f"{kind} default/x: annotation {keys.GANG_MIN} is {least}: its pods start one by one"
        assert told(tmp_path, capsys, text) == ([] if least == "1" else [line])


def test_a_podgroup_that_no_pod_names_beside_a_job_of_its_name_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = obj("PodGroup", "minMember: 2", version="scheduling.sigs.k8s.io/v1alpha1")
    said = f"PodGroup default/x: no pod references it. Is the label {keys.LABEL_POD_GROUP}: x missing in the pod "
    assert any(one.startswith(said) for one in told(tmp_path, capsys, group, obj("Job", INDEXED)))
    assert main(["simulate", "-f", str(tmp_path / "in.yaml"), "-o", "json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["gangs"]
    assert listed["workload"]["kind"] == "Job"
    labelled = INDEXED.replace("{spec", f"{{metadata: {{labels: {{{keys.LABEL_POD_GROUP}: x}}}}, spec")
    assert not any("no pod references it" in one for one in told(tmp_path, capsys, group, obj("Job", labelled)))


def test_a_dump_without_the_workloads_of_its_pods_is_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = "{apiVersion: batch/v1, kind: Job, name: x, uid: u, controller: true}"
    meta = f"name: x-%d, labels: {{{keys.JOB_COMPLETION_INDEX}: '%d'}}, ownerReferences: [{owner}]"
    pods = [
        f"apiVersion: v1\nkind: Pod\nmetadata: {{{meta % (i, i)}}}\nspec: {POD.replace('{s', '{nodeName: n1, s')}\n"
        for i in range(2)
    ]
    said = (
        "1 Job that pods belong to is not in the input: default/x, so their pods are scheduled one by one, not as "
        "gangs (if this is a dump, add jobs to kubectl get)"
    )
    assert said in told(tmp_path, capsys, *pods)
    assert said not in told(tmp_path, capsys, *pods, obj("Job", INDEXED, "name: x, uid: u"))


def test_what_has_only_a_beginning_of_a_name_is_numbered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = obj("Job", INDEXED, "generateName: run-")
    path = written(tmp_path, "---\n".join((NODE, text, text)), "in.yaml")
    assert main(["simulate", "-f", path]) == 0
    out = capsys.readouterr().out
    assert "default/run-0-1" in out and "default/run-1-0" in out


def test_what_is_told_of_a_job_offline_is_an_event_on_it_in_a_cluster(tmp_path: Path) -> None:
    meta = "name: x, annotations: {gang.scheduling.koordinator.sh/mod: Strict}"
    args = argparse.Namespace(
        paths=[written(tmp_path, "---\n".join((NODE, obj("Job", INDEXED, meta))), "in.yaml")],
        now=DEFAULT_NOW,
        config=None,
        scheduler_names=None,
        started=[],
    )
    ready = prepare(args)
    plan = plan_round(ready.state.snapshot(ready.now.timestamp()), ready.config)
    assert (
        "Job default/x",
        f"annotation {keys.GANG_PREFIX}mod is not read, did you mean annotation {keys.GANG_MODE}?",
    ) in [*plan.warnings]
