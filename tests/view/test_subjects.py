# SPDX-License-Identifier: Apache-2.0
"""What a question names: pods, gangs, workloads by their kinds and by their names alone."""

import argparse

import pytest
from msgspec.structs import replace

from koordpy.api.objects import OwnerReference
from koordpy.cache.snapshot import Snapshot
from koordpy.gangs.queue_units import Groups
from koordpy.offline.preparing import prepared
from koordpy.view.subjects import UnknownSubjectError, find, makers_of, parse

WORK = """
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: team, annotations: {gang.scheduling.koordinator.sh/auto: "on"}}
spec:
  parallelism: 3
  completions: 3
  completionMode: Indexed
  template:
    spec:
      schedulerName: koord-scheduler
      restartPolicy: Never
      containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]
---
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: set, namespace: team}
spec:
  replicatedJobs:
  - name: a
    replicas: 2
    template:
      spec:
        parallelism: 2
        completions: 2
        completionMode: Indexed
        template:
          spec:
            schedulerName: koord-scheduler
            restartPolicy: Never
            containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: team}
spec:
  replicas: 2
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec:
      schedulerName: koord-scheduler
      containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: alone, namespace: team}
spec:
  schedulerName: koord-scheduler
  containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]
---
apiVersion: v1
kind: Node
metadata: {name: n}
status: {allocatable: {cpu: "9", memory: 9Gi, pods: "20"}}
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Snapshot, Groups]:
    file = tmp_path_factory.mktemp("subjects") / "work.yaml"
    file.write_text(WORK)
    args = argparse.Namespace(
        paths=[str(file)], config=None, now="2026-01-01T00:00:00Z", scheduler_names=None, started=[]
    )
    ready = prepared(args)
    snapshot = ready.state.snapshot(ready.now.timestamp())
    return snapshot, Groups(snapshot, ready.config.gangs, ready.config.stale_gangs)


@pytest.mark.parametrize(
    ("text", "kind", "pods"),
    [
        ("train", "PodGroup", 3),
        ("job/train", "Job", 3),
        ("jobs/train", "Job", 3),
        ("Job/train", "Job", 3),
        ("job/team/train", "Job", 3),
        ("team/train", "PodGroup", 3),
        ("jobset/set", "JobSet", 4),
        ("jobsets/set", "JobSet", 4),
        ("job/set-a-1", "Job", 2),
        ("deployment/web", "Deployment", 2),
        ("deploy/web", "Deployment", 2),
        ("alone", "Pod", 1),
        ("pod/alone", "Pod", 1),
        ("po/alone", "Pod", 1),
    ],
)
def test_a_name_finds_its_pods(world: tuple[Snapshot, Groups], text: str, kind: str, pods: int) -> None:
    found = find(*world, *parse(text, "team"))
    assert (found.kind, len(found.pods)) == (kind, pods)
    assert all(key.startswith("team/") for key in found.pods)


@pytest.mark.parametrize(
    ("kind", "name", "labels", "makers"),
    [
        ("ReplicaSet", "web-abc", {"pod-template-hash": "abc"}, {("ReplicaSet", "web-abc"), ("Deployment", "web")}),
        ("ReplicaSet", "my-set", {}, {("ReplicaSet", "my-set"), ("Deployment", "my-set")}),
        ("Job", "nightly-29387", {}, {("Job", "nightly-29387"), ("CronJob", "nightly")}),
        ("Job", "set-a", {"jobset.sigs.k8s.io/jobset-name": "set"}, {("JobSet", "set"), ("TrainJob", "set")}),
        (
            "StatefulSet",
            "s",
            {"leaderworkerset.sigs.k8s.io/name": "w"},
            {("StatefulSet", "s"), ("LeaderWorkerSet", "w")},
        ),
    ],
)
def test_the_objects_between_a_workload_and_its_pods_are_seen_through(
    world: tuple[Snapshot, Groups], kind: str, name: str, labels: dict[str, str], makers: set[tuple[str, str]]
) -> None:
    pod = world[0].pods["team/alone"]
    owner = OwnerReference(kind=kind, name=name, uid="u", controller=True)
    meta = replace(pod.pod.metadata, labels=labels, owner_references=[owner])
    made = replace(pod, pod=replace(pod.pod, metadata=meta))
    assert makers <= set(makers_of([made], world[0]))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pod/train", "no pending or running pod named team/train"),
        ("job/alone", "no pending or running Job named team/alone"),
        ("pg/alone", "no pending or running gang named team/alone"),
        ("other/train", "no pending or running pod, gang or workload named other/train"),
        ("jobset/train", "no pending or running JobSet named team/train"),
        ("job/trian", "no pending or running Job named team/trian, did you mean team/train?"),
        ("secret/train", "no pending or running pod, gang or workload named secret/train"),
    ],
)
def test_what_is_not_there_is_told_by_its_kind(world: tuple[Snapshot, Groups], text: str, said: str) -> None:
    with pytest.raises(UnknownSubjectError) as fault:
        find(*world, *parse(text, "team"))
    assert str(fault.value).startswith(said)
