# SPDX-License-Identifier: Apache-2.0
"""What the documentation of each project starts with, in our own words: as manifests, as a folder of them, and as a
dump in which their pods exist already."""

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from koordpy.offline import offline_options
from tests.workloads.cluster import Answer, Json, job, jobset, nodes, role, simulate, template, workload

NAMED = {"gang.scheduling.koordinator.sh/name": "pi", "gang.scheduling.koordinator.sh/min-available": "2"}
CPU, GPU = template(), template(gpu=1)
STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


class Example(NamedTuple):
    """objects: what a user writes; minima: gang -> members that start together; made: pods."""

    objects: tuple[Json, ...]
    minima: dict[str, int]
    made: int
    suffixed: bool = False
    """Whether the controller gives its pods random names."""


def _uid(made: Json, uid: str) -> Json:
    made["metadata"]["uid"] = uid
    return made


def _spark(name: str, part: str) -> Json:
    made = template(NAMED if part == "executor" else {}, {"spark-role": part, "spark-app-selector": "spark-1"})
    meta = {"name": name, **made["metadata"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": made["spec"]}


EXAMPLES = {
    # a work queue with a fixed division: each index takes its share
    "job": Example((job("division", 5),), {"division": 5}, 5, suffixed=True),
    # a coordinator, and workers over two slices
    "jobset": Example(
        (jobset(role("leader", 1, 1, CPU), role("slices", 2, 4, GPU)),), {"js:leader": 1, "js:slices": 8}, 9, True
    ),
    # serving a model over several hosts, two copies of it
    "lws": Example(
        (
            workload(
                "leaderworkerset.x-k8s.io/v1",
                "LeaderWorkerSet",
                "serve",
                {
                    "replicas": 2,
                    "leaderWorkerTemplate": {"size": 3, "leaderTemplate": CPU, "workerTemplate": GPU},
                },
            ),
        ),
        {"serve-0": 3, "serve-1": 3},
        6,
    ),
    # digits on a master and a worker
    "pytorchjob": Example(
        (
            workload(
                "kubeflow.org/v1",
                "PyTorchJob",
                "digits",
                {"pytorchReplicaSpecs": {kind: {"replicas": 1, "template": GPU} for kind in ("Master", "Worker")}},
            ),
        ),
        {"digits:master": 1, "digits:worker": 1},
        2,
    ),
    # all-reduce: a launcher that starts two workers
    "mpijob": Example(
        (
            workload(
                "kubeflow.org/v2beta1",
                "MPIJob",
                "reduce",
                {
                    "slotsPerWorker": 1,
                    "mpiReplicaSpecs": {
                        "Launcher": {"replicas": 1, "template": CPU},
                        "Worker": {"replicas": 2, "template": GPU},
                    },
                },
            ),
        ),
        {"reduce:launcher": 1, "reduce:worker": 2},
        3,
        suffixed=False,
    ),
    # fine-tuning by a runtime of the platform's
    "trainjob": Example(
        (
            workload(
                "trainer.kubeflow.org/v1alpha1",
                "ClusterTrainingRuntime",
                "torch",
                {
                    "mlPolicy": {"numNodes": 1},
                    "template": {
                        "spec": {
                            "replicatedJobs": [
                                {
                                    "name": "node",
                                    "template": {"metadata": {"labels": STEP}, "spec": {"template": GPU}},
                                }
                            ]
                        }
                    },
                },
            ),
            workload(
                "trainer.kubeflow.org/v1alpha1",
                "TrainJob",
                "tune",
                {"runtimeRef": {"name": "torch"}, "trainer": {"numNodes": 2}},
            ),
        ),
        {"tune": 2},
        2,
        suffixed=True,
    ),
    # a head, and a group of workers that may grow
    "raycluster": Example(
        (
            workload(
                "ray.io/v1",
                "RayCluster",
                "ray",
                {
                    "headGroupSpec": {"template": CPU},
                    "workerGroupSpecs": [
                        {"groupName": "small", "replicas": 2, "minReplicas": 1, "maxReplicas": 5, "template": CPU}
                    ],
                },
            ),
        ),
        {"ray:headgroup": 1, "ray:small": 2},
        3,
        suffixed=True,
    ),
    # executors, as their driver creates them
    "spark": Example((_spark("pi-exec-1", "executor"), _spark("pi-exec-2", "executor")), {"pi": 2}, 2),
    # a server with a volume each: no gang
    "statefulset": Example(
        (
            workload(
                "apps/v1",
                "StatefulSet",
                "web",
                {"replicas": 3, "serviceName": "web", "selector": {"matchLabels": {"app": "web"}}, "template": CPU},
            ),
        ),
        {},
        3,
    ),
}
TOP = tuple(name for name in EXAMPLES if name != "spark")
"""Those whose pods are made."""


def room(count: int) -> list[Json]:
    return [*nodes(count, cpu=4, gpu=1)]


def minima(answer: Answer) -> dict[str, int]:
    return {name: gang["minMember"] for name, gang in answer.gangs.items()}


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_a_user_writes_starts_as_a_whole_or_not_at_all(name: str, tmp_path: Path) -> None:
    one = EXAMPLES[name]
    answer = simulate(tmp_path, *room(10), *one.objects)
    assert (minima(answer), len(answer.bound), answer.pending) == (one.minima, one.made, [])
    assert all(gang["origin"] for gang in answer.gangs.values())
    if one.minima:
        taken = [{**node, "spec": {"unschedulable": True}} for node in room(10)]
        assert simulate(tmp_path, *taken, *one.objects).bound == []


def test_a_folder_of_all_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from koordpy.cli.main import main

    folder = tmp_path / "all"
    folder.mkdir()
    for name, one in {**EXAMPLES, "nodes": Example(tuple(room(40)), {}, 0)}.items():
        (folder / f"{name}.yaml").write_text("\n---\n".join(map(json.dumps, one.objects)))
    assert main(["simulate", "-f", str(folder), "-o", "json", "--fail-pending"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["bindings"]) == sum(one.made for one in EXAMPLES.values())
    found = {gang["name"].removeprefix("default/"): gang["minMember"] for gang in document["gangs"]}
    assert found == {gang: least for one in EXAMPLES.values() for gang, least in one.minima.items()}
    made = {(one["kind"], one["name"]): one["made"] for one in document["workloads"]}
    assert len(made) == len(TOP) and 0 not in made.values()


def dump_of(one: Example, path: Path) -> tuple[list[Json], list[Json]]:
    """(objects as an API server has them, the pods of theirs, each on a node of its own)."""
    objects = [_uid(json.loads(json.dumps(made)), f"uid-{i}") for i, made in enumerate(one.objects)]
    path.write_text("\n---\n".join(map(json.dumps, [*room(10), *objects])))
    ready = offline_options.prepare(
        argparse.Namespace(
            paths=[str(path)], now=offline_options.DEFAULT_NOW, config=None, scheduler_names=None, started=[]
        )
    )
    pods = []
    for i, info in enumerate(sorted(ready.state.pods(), key=lambda info: info.name)):
        pod = json.loads(msgspec.json.encode(info.pod))
        pod |= {"apiVersion": "v1", "kind": "Pod", "status": {"phase": "Running"}}
        pod["spec"]["nodeName"] = f"n{i}"
        if one.suffixed:
            pod["metadata"]["name"] += f"-x{i}yz"
        pods.append(pod)
    return objects, pods


@pytest.mark.parametrize("name", TOP)
def test_a_dump_in_which_the_pods_exist(name: str, tmp_path: Path) -> None:
    """`kubectl get -A -o yaml`: nothing is made twice; of one that is gone only that one is made again."""
    one = EXAMPLES[name]
    objects, pods = dump_of(one, tmp_path / "written.yaml")
    assert len(pods) == one.made
    listed = {"apiVersion": "v1", "kind": "List", "items": [*room(10), *objects, *pods]}
    answer = simulate(tmp_path, listed)
    (told,) = answer.workloads.values()
    assert (told["made"], told["present"], answer.bound, answer.pending) == (0, one.made, [], [])
    assert minima(answer) == one.minima
    listed["items"] = [*room(10), *objects, *pods[:-1]]
    again = simulate(tmp_path, listed)
    (told,) = again.workloads.values()
    assert (told["made"], told["present"], len(again.bound)) == (1, one.made - 1, 1)
    assert minima(again) == one.minima


@pytest.mark.parametrize("cpu", [1, 2, 3])
def test_a_driver_of_spark_starts_before_its_executors(cpu: int, tmp_path: Path) -> None:
    driver, executors = _spark("pi-driver", "driver"), EXAMPLES["spark"].objects
    assert simulate(tmp_path, *nodes(1, cpu), driver).bound == ["pi-driver"]
    there = {**driver, "spec": {**driver["spec"], "nodeName": "n0"}}
    late = simulate(tmp_path, *nodes(1, cpu), there, *executors)
    assert late.bound == ([] if cpu < 3 else ["pi-exec-1", "pi-exec-2"])
    together = simulate(tmp_path, *nodes(1, cpu), driver, *executors)
    assert together.bound == ["pi-driver", *late.bound]
