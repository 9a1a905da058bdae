# SPDX-License-Identifier: Apache-2.0
"""Worked examples of workloads: what starts, what waits, and what is said of it."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from koordpy.api import keys
from koordpy.cli import cluster_views
from koordpy.cli.cluster_reading import ReadCluster
from koordpy.offline.offline_options import DEFAULT_NOW
from koordpy.offline.preparing import prepared
from tests.workloads.cluster import (
    MIN,
    NETWORK,
    Answer,
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

QUOTA = "quota.scheduling.koordinator.sh/name"
PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"
KUBEFLOW, RAY = "kubeflow.org/v1", "ray.io/v1"


def pytorch(workers: int = 8, least: Any = None, **more: Any) -> Json:
    spec: Json = {
        "pytorchReplicaSpecs": {
            "Master": {"replicas": 1, "template": template()},
            "Worker": {"replicas": workers, "template": template()},
        },
        **more,
    }
    if least is not None:
        spec["runPolicy"] = {"schedulingPolicy": {"minAvailable": least}}
    return workload(KUBEFLOW, "PyTorchJob", "pt", spec)


def lws(replicas: int = 1, size: int = 3, notes: Json | None = None, **spec: Any) -> Json:
    inner = {"size": size, "workerTemplate": template(), **spec.pop("inner", {})}
    body = {"replicas": replicas, "leaderWorkerTemplate": inner, **spec}
    return workload("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "llm", body, notes)


def test_all_or_nothing_of_an_indexed_job(tmp_path: Path) -> None:
    answer = simulate(tmp_path, *nodes(2), job())
    assert answer.bound == [] and answer.gangs["train"]["minMember"] == 3
    assert "needed 3, available in the cluster: 2" in answer.message("train-0")
    assert answer.gangs["train"]["origin"] == "3 members of Job train (Indexed, parallelism 3)"


@pytest.mark.parametrize("spec", [{"completionMode": "NonIndexed"}, {"completions": 6}])
def test_jobs_of_independent_pods_are_plain(tmp_path: Path, spec: Json) -> None:
    answer = simulate(tmp_path, *nodes(2), job(**spec))
    assert (len(answer.bound), len(answer.pending), answer.gangs) == (2, 1, {})


def test_a_least_parallelism(tmp_path: Path) -> None:
    answer = simulate(tmp_path, *nodes(2), job(notes={PARALLELISM: "2"}))
    assert (answer.bound, answer.pending) == (["train-0", "train-1"], ["train-2"])
    assert answer.gangs["train"]["origin"].endswith(f", at least 2 by {PARALLELISM}")


def test_who_has_succeeded_is_wanted_no_more(tmp_path: Path) -> None:
    ended = [pod(f"train-{i}", i, status={"phase": "Succeeded"}) for i in (0, 1)]
    runs = pod("train-2", 2, node="n0")
    made = job(number=4, meta={"uid": "j1"})
    answer = simulate(tmp_path, *nodes(2), made, *ended, runs)
    assert (answer.bound, answer.gangs["train"]["minMember"]) == (["train-3"], 2)
    assert answer.workloads["train"] == {
        "kind": "Job", "namespace": "default", "name": "train", "made": 1, "present": 3, "waiting": [], "note": "",
    }  # fmt: skip


DRIVER, WORKERS = role("driver", 1, 1), role("workers", 1, 2)


def depends(state: str) -> Json:
    return jobset(DRIVER, {**WORKERS, "dependsOn": [{"name": "driver", "status": state}]})


def test_a_step_that_waits_for_ready_comes_a_round_later(tmp_path: Path) -> None:
    answer = simulate(tmp_path, *nodes(3), depends("Ready"))
    assert answer.rounds == {"js-driver-0-0": 1, "js-workers-0-0": 2, "js-workers-0-1": 2}
    assert sorted(answer.gangs) == ["js:driver", "js:workers"]
    short = simulate(tmp_path, *nodes(2), depends("Ready"))
    assert short.bound == ["js-driver-0-0"]
    assert "needed 2" in short.message("js-workers-0-0")


def test_a_step_that_waits_for_complete_has_to_be_named(tmp_path: Path) -> None:
    answer = simulate(tmp_path, *nodes(3), depends("Complete"))
    assert (answer.bound, answer.pending) == (["js-driver-0-0"], [])
    assert answer.workloads["js"]["waiting"] == [{"role": "workers", "pods": 2, "for": "role driver Complete"}]
    for given in ("workers", "js:workers", "default/js:workers", "default/workers"):
        later = simulate(tmp_path, *nodes(3), depends("Complete"), args=("--started", given))
        assert later.bound == ["js-workers-0-0", "js-workers-0-1"]
    wrong = simulate(tmp_path, *nodes(3), depends("Complete"), args=("--started", "worker"))
    assert wrong.status == 2 and "--started worker: no workload of the input has such a role" in wrong.err


def test_a_total_is_filled_in_the_order_of_roles(tmp_path: Path) -> None:
    answer = simulate(tmp_path, *nodes(6), pytorch(least=5))
    assert [answer.gangs[name]["minMember"] for name in ("pt:master", "pt:worker")] == [1, 4]
    assert answer.pending == ["pt-worker-5", "pt-worker-6", "pt-worker-7"]


def test_pods_for_cpus_do_not_stand_for_pods_with_gpus(tmp_path: Path) -> None:
    groups = [
        {"groupName": "cpu", "replicas": 8, "maxReplicas": 8, "template": template()},
        {"groupName": "gpu", "replicas": 4, "maxReplicas": 4, "template": template(gpu=1)},
    ]
    spec = {"headGroupSpec": {"template": template()}, "workerGroupSpecs": groups}
    made = workload(RAY, "RayCluster", "rc", spec)
    answer = simulate(tmp_path, *nodes(1, cpu=20, name="c"), *nodes(1, cpu=4, name="g", gpu=2), made)
    assert answer.bound == [] and answer.gangs["rc:gpu"]["minMember"] == 4
    enough = simulate(tmp_path, *nodes(1, cpu=20, name="c"), *nodes(1, cpu=4, name="g", gpu=4), made)
    assert len(enough.bound) == 13 and enough.ranks["rc-head"] == 0


def test_each_group_of_a_leader_worker_set_is_a_gang(tmp_path: Path) -> None:
    answer = simulate(tmp_path, *nodes(4), lws(replicas=2))
    assert answer.ranks == {"llm-0": 0, "llm-0-1": 1, "llm-0-2": 2}
    assert answer.gangs["llm-1"]["origin"] == "3 members of LeaderWorkerSet llm, group 1 (size 3)"


def test_workers_come_after_a_leader_that_is_ready(tmp_path: Path) -> None:
    answer = simulate(tmp_path, *nodes(2), lws(startupPolicy="LeaderReady"))
    assert answer.rounds == {"llm-0": 1}
    assert "needed 2, available in the cluster: 1" in answer.message("llm-0-1")
    assert sorted(answer.gangs) == ["llm-0:leader", "llm-0:workers"]


def test_a_pod_group_that_sums_the_steps_of_a_train_job_is_passed_over(tmp_path: Path) -> None:
    owner = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "name": "tj", "uid": "t1"}
    group = workload(
        "scheduling.x-k8s.io/v1alpha1", "PodGroup", "tj", {"minMember": 3},
        meta={"ownerReferences": [{**owner, "controller": True}]},
    )  # fmt: skip
    named = template(labels={"scheduling.x-k8s.io/pod-group": "tj"})
    later = {**role("node", 1, 2, named), "dependsOn": [{"name": "init", "status": "Complete"}]}
    runtime = {"template": {"spec": {"replicatedJobs": [role("init", 1, 1, named), later]}}}
    trainer = "trainer.kubeflow.org/v1alpha1"
    objects = [
        *nodes(3),
        group,
        workload(trainer, "ClusterTrainingRuntime", "rt", runtime),
        workload(trainer, "TrainJob", "tj", {"runtimeRef": {"name": "rt"}}, meta={"uid": "t1"}),
    ]
    answer = simulate(tmp_path, *objects)
    assert answer.bound == ["tj-init-0-0"]
    assert (
        "PodGroup default/tj: minMember 3 can never exist at once, TrainJob tj has steps of 1 and 2: each step is its"
        " own gang" in answer.err
    )
    assert answer.gangs["tj:init"]["workload"] == {
        "kind": "TrainJob", "namespace": "default", "name": "tj", "role": "init",
    }  # fmt: skip


GROUP_LABEL, VOLCANO_GROUP = "scheduling.x-k8s.io/pod-group", "scheduling.k8s.io/group-name"
LATE = "creates role launcher when"


POD_GROUPS = ("scheduling.x-k8s.io/v1alpha1", "scheduling.volcano.sh/v1beta1")


def written_by_operator(group_api: str, kind: str, api: str, least: int) -> tuple[Json, Json]:
    """The PodGroup that an operator writes for its workload `w`, and a pod template that names it."""
    owner = {"apiVersion": api, "kind": kind, "name": "w", "uid": "w1", "controller": True}
    group = workload(group_api, "PodGroup", "w", {"minMember": least}, meta={"ownerReferences": [owner]})
    is_volcano = "volcano" in group_api
    return group, template(notes={VOLCANO_GROUP: "w"}) if is_volcano else template(labels={GROUP_LABEL: "w"})


@pytest.mark.parametrize("group_api", POD_GROUPS)
@pytest.mark.parametrize(
    ("policy", "least", "room", "bound", "warning"),
    [
        ("WaitForWorkersReady", 3, 3, 3, "minMember 3 can never start together, MPIJob w creates role launcher when"),
        ("WaitForWorkersReady", 3, 1, 0, LATE),
        ("WaitForWorkersReady", 2, 3, 3, ""),
        ("WaitForWorkersReady", 1, 3, 3, ""),
        ("WaitForWorkersReady", 4, 3, 0, ""),
        ("AtStartup", 3, 3, 3, ""),
        ("AtStartup", 3, 2, 0, ""),
        ("AtStartup", 4, 4, 0, ""),
    ],
)
def test_a_pod_group_that_counts_a_launcher_created_after_the_workers_is_passed_over(
    tmp_path: Path, group_api: str, policy: str, least: int, room: int, bound: int, warning: str
) -> None:
    api = "kubeflow.org/v2beta1"
    group, named = written_by_operator(group_api, "MPIJob", api, least)
    roles = {"Launcher": {"template": named}, "Worker": {"replicas": 2, "template": named}}
    spec = {"launcherCreationPolicy": policy, "mpiReplicaSpecs": roles}
    answer = simulate(tmp_path, *nodes(room), group, workload(api, "MPIJob", "w", spec, meta={"uid": "w1"}))
    assert len(answer.bound) == bound
    assert warning in answer.err if warning else LATE not in answer.err
    assert sorted(answer.gangs) == (
        ["w:launcher", "w:worker"] if warning and bound else ["w:worker"] if warning else ["w"]
    )


@pytest.mark.parametrize("group_api", POD_GROUPS)
@pytest.mark.parametrize(
    ("state", "least", "bound", "warning"),
    [
        ("Ready", 3, 3, "minMember 3 can never start together, TrainJob w creates role launcher when role node Ready"),
        ("Ready", 2, 3, ""),
        ("Ready", 4, 3, "minMember 4 can never exist at once, TrainJob w has steps of 3: each step is its own gang"),
        ("Complete", 3, 2, "minMember 3 can never exist at once, TrainJob w has steps of 2 and 1"),
    ],
)
def test_roles_of_a_train_job_that_wait_for_others_are_their_own_gangs(
    tmp_path: Path, group_api: str, state: str, least: int, bound: int, warning: str
) -> None:
    trainer = "trainer.kubeflow.org/v1alpha1"
    group, named = written_by_operator(group_api, "TrainJob", trainer, least)
    later = {**role("launcher", 1, 1, named), "dependsOn": [{"name": "node", "status": state}]}
    runtime = {"template": {"spec": {"replicatedJobs": [role("node", 1, 2, named), later]}}}
    objects = [
        *nodes(3),
        group,
        workload(trainer, "ClusterTrainingRuntime", "rt", runtime),
        workload(trainer, "TrainJob", "w", {"runtimeRef": {"name": "rt"}}, meta={"uid": "w1"}),
    ]
    answer = simulate(tmp_path, *objects)
    assert len(answer.bound) == bound
    assert warning in answer.err if warning else "can never" not in answer.err


@pytest.mark.parametrize(("gpus", "bound"), [(1, 0), (2, 4)])
def test_the_tasks_of_volcano_have_their_own_minima(tmp_path: Path, gpus: int, bound: int) -> None:
    group = workload("scheduling.volcano.sh/v1beta1", "PodGroup", "g", {"minMember": 3, "minTaskMember": {"gpu": 2}})
    pods = []
    for i, task in enumerate(("cpu", "cpu", "gpu", "gpu")):
        notes = {"scheduling.k8s.io/group-name": "g", "volcano.sh/task-spec": task}
        made = template(notes, gpu=int(task == "gpu"))
        meta = {"name": f"{task}-{i}", "annotations": notes}
        pods.append({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": made["spec"]})
    answer = simulate(tmp_path, *nodes(1, cpu=9, gpu=gpus), group, *pods)
    assert len(answer.bound) == bound
    assert {name: one["minMember"] for name, one in answer.gangs.items()} == {"g:cpu": 1, "g:gpu": 2}
    short = simulate(tmp_path, *nodes(1, cpu=9, gpu=gpus), group, *pods[1:3])
    assert "gang default/g: waiting for members, 2 of minMember 3 exist" in short.message("cpu-1")


def test_a_hole_is_as_large_as_what_exists_of_it(tmp_path: Path) -> None:
    pods = [
        pod("train-0", 0, node="n0"),
        pod("train-1", 1),
        pod("train-2", 2, spec={"schedulingGates": [{"name": "x/held"}]}),
    ]
    answer = simulate(tmp_path, *nodes(3), job(meta={"uid": "j1"}), *pods)
    assert answer.bound == ["train-1"]
    assert answer.gangs["train"]["message"] == "2 of 3 members, Job train has not made the others"
    assert answer.gangs["train"]["status"] == "Incomplete"


def test_hard_layers_hold_for_all_roles(tmp_path: Path) -> None:
    must = {NETWORK: '{"gatherStrategy": [{"layer": "blockLayer", "strategy": "MustGather"}]}'}
    tree = workload(
        "scheduling.koordinator.sh/v1alpha1", "ClusterNetworkTopology", "default",
        {
            "hierarchy": [
                {"layerName": "blockLayer", "labelKey": "block", "parentTopologyLayer": ""},
                {"layerName": "nodeLayer", "parentTopologyLayer": "blockLayer"},
            ]
        },
    )  # fmt: skip
    blocks = [*nodes(3, name="a", labels={"block": "a"}), *nodes(2, name="b", labels={"block": "b"})]
    answer = simulate(tmp_path, *blocks, tree, jobset(role("w", 2, 2), notes=must))
    assert answer.bound == []
    fits = simulate(tmp_path, *blocks, tree, jobset(role("w", 1, 3), notes=must))
    assert {one["node"] for one in fits.document["bindings"]} == {"a0", "a1", "a2"}


def test_a_role_of_its_own_minimum_keeps_it(tmp_path: Path) -> None:
    made = jobset(DRIVER, role("workers", 1, 4, template({MIN: "2"})))
    answer = simulate(tmp_path, *nodes(3), made)
    assert {name: one["minMember"] for name, one in answer.gangs.items()} == {"js:driver": 1, "js:workers": 2}


def test_podgroups_of_a_podgang_that_lie_in_one_domain_each_or_together(tmp_path: Path) -> None:
    def grove(*together: str, each: bool = False) -> list[Json]:
        pack = {"topologyConstraint": {"packConstraint": {"required": "rack"}}}
        groups = [
            {"name": name, "minReplicas": 2, "podReferences": [{"name": f"{name}{i}"} for i in range(2)]}
            | (pack if each else {})
            for name in "abc"
        ]
        configs = [{"podGroupNames": list(together), **pack}] if together else []
        spec = {"podgroups": groups, "topologyConstraintGroupConfigs": configs}
        gang = workload("scheduler.grove.io/v1alpha1", "PodGang", "pg", spec, meta={"uid": "g"})
        return [gang, *(pod(f"{name}{i}", owner="", uid="") for name in "abc" for i in range(2))]

    def racks(answer: Answer) -> dict[str, set[str]]:
        found = {one["pod"]: one["node"][0] for one in answer.document["bindings"]}
        return {name: {found[f"{name}{i}"] for i in range(2)} for name in "abc"} if found else {}

    sizes = {"x": 3, "y": 2, "z": 2}
    there = [one for name, size in sizes.items() for one in nodes(size, name=name, labels={"rack": name})]
    loose = nodes(2, name="u")
    assert all(len(rack) == 1 for rack in racks(simulate(tmp_path, *there, *loose, *grove(each=True))).values())
    assert not racks(simulate(tmp_path, *there, *loose, *grove("a", "b")))
    wide = nodes(4, name="w", labels={"rack": "w"})
    found = racks(simulate(tmp_path, *there, *wide, *grove("a", "b", each=True)))
    assert found["a"] == found["b"] == {"w"} and len(found["c"]) == 1


def volcano(name: str, task: str = "", **labels: str) -> Json:
    notes = {"scheduling.k8s.io/group-name": "g", **({"volcano.sh/task-spec": task} if task else {})}
    return pod(name, owner="", uid="", template={"notes": notes, "labels": labels})


def volcano_group(**spec: Any) -> Json:
    return workload("scheduling.volcano.sh/v1beta1", "PodGroup", "g", spec)


TREE = {
    "apiVersion": "scheduling.koordinator.sh/v1alpha1",
    "kind": "ClusterNetworkTopology",
    "metadata": {"name": "default"},
    "spec": {
        "networkTopologySpec": [
            {"topologyLayer": "blockLayer", "labelKey": ["block"]},
            {"topologyLayer": "nodeTopologyLayer", "parentTopologyLayer": "blockLayer"},
        ]
    },
}


def test_pods_of_a_subgroup_of_volcano_lie_in_one_domain(tmp_path: Path) -> None:
    there = [one for name, size in (("a", 3), ("b", 2)) for one in nodes(size, name=name, labels={"block": name})]
    pods = [volcano(f"p{part}{i}", f"t{i}", part=part) for part in "xy" for i in range(2)]

    def answer(mode: str = "hard", tier: int = 1) -> Answer:
        network = {"mode": mode, "highestTierAllowed": tier}
        policy = {"name": "s", "labelSelector": {"matchExpressions": [{"key": "part", "operator": "Exists"}]}}
        group = volcano_group(
            minMember=4, subGroupPolicy=[{**policy, "matchLabelKeys": ["part"], "networkTopology": network}]
        )
        return simulate(tmp_path, TREE, *there, group, *pods)

    blocks: dict[str, set[str]] = {"x": set(), "y": set()}
    for one in answer().document["bindings"]:
        blocks[one["pod"][1]].add(one["node"][0])
    assert sorted(map(sorted, blocks.values())) == [["a"], ["b"]]
    soft = answer("soft")
    assert len(soft.bound) == 4 and "networkTopology with mode soft is ignored" in soft.err
    assert "highestTierAllowed 3, the tree has 1 layer above the nodes" in answer(tier=3).message("px0")


@pytest.mark.parametrize(
    ("queue", "listed", "bound"),
    [
        ("team", [], 1),
        ("nobody", [], 3),
        ("", [], 3),
        ("nobody", ["default"], 1),  # no ElasticQuota of that name: as if no queue were named
    ],
)
def test_pods_without_a_quota_count_in_the_queue_of_their_group(
    queue: str, listed: list[str], bound: int, tmp_path: Path
) -> None:
    quota = {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "ElasticQuota",
        "metadata": {"name": "team", "annotations": {keys.QUOTA_NAMESPACES: json.dumps(listed)}},
        "spec": {"min": {"cpu": "1"}, "max": {"cpu": "1"}},
    }
    group = volcano_group(minMember=1, queue=queue)
    answer = simulate(tmp_path, *nodes(3), quota, group, *(volcano(f"p{i}") for i in range(3)))
    assert len(answer.bound) == bound and answer.status == 0
    used = next(one["used"] for one in answer.document["quotas"] if one["name"] == "default/team")
    assert used == {"cpu": "1" if bound == 1 else "0"}
    own = simulate(tmp_path, *nodes(3), quota, volcano_group(minMember=1, queue="x"), volcano("p0", **{QUOTA: "team"}))
    assert own.bound == ["p0"]


@pytest.mark.parametrize(("queue", "told"), [("team", "team"), ("default", "koordinator-default-quota")])
def test_of_who_waits_the_queue_of_a_group_is_told_where_it_is_a_quota(queue: str, told: str, tmp_path: Path) -> None:
    quota = {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "ElasticQuota",
        "metadata": {"name": "team"},
        "spec": {"min": {"cpu": "1"}, "max": {"cpu": "1"}},
    }
    file = tmp_path / "input.yaml"
    given = (*nodes(1), quota, volcano_group(minMember=1, queue=queue), volcano("p0"))
    file.write_text("\n---\n".join(map(json.dumps, given)))
    ready = prepared(
        argparse.Namespace(paths=[str(file)], config=None, now=DEFAULT_NOW, started=[], scheduler_names=[])
    )
    cluster = ReadCluster(ready.state, ready.config, ready.now.timestamp(), 0.0, "1", "", "default", "", [])
    found = cluster_views.queue(argparse.Namespace(namespace=None), cluster)
    assert [one["quota"] for one in found["units"]] == [told]


@pytest.mark.parametrize(
    ("group", "workers"),
    [
        ({}, 0),
        ({"minReplicas": 0, "maxReplicas": 4}, 0),
        ({"minReplicas": 2, "maxReplicas": 4}, 2),
        ({"replicas": 1, "minReplicas": 2, "maxReplicas": 4}, 2),
        ({"replicas": 9, "maxReplicas": 4}, 4),
        ({"replicas": 3}, 3),
        ({"maxReplicas": 0}, 0),
        ({"minReplicas": 2, "numOfHosts": 2}, 4),
        ({"minReplicas": 2, "suspend": True}, 0),
    ],
)
@pytest.mark.parametrize("kind", ["RayCluster", "RayJob", "RayService"])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_group_of_ray_has_the_replicas_that_kuberay_gives_it(
    group: Json, workers: int, kind: str, scaled: bool, tmp_path: Path
) -> None:
    groups = [{"groupName": "g", "template": template(), **group}]
    cluster: Json = {"headGroupSpec": {"template": template()}, "workerGroupSpecs": groups}
    cluster["enableInTreeAutoscaling"] = scaled
    cluster["autoscalerOptions"] = {"resources": {"requests": {"cpu": "100m"}}}
    spec = {"RayCluster": cluster, "RayJob": {"rayClusterSpec": cluster}, "RayService": {"rayClusterConfig": cluster}}
    answer = simulate(tmp_path, *nodes(12, cpu=2), workload("ray.io/v1", kind, "r", spec[kind]))
    assert answer.bound == sorted(["r-head", *(f"r-g-worker-{i}" for i in range(workers))])
