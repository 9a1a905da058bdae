# SPDX-License-Identifier: Apache-2.0
"""Corners of the rules of workloads: pods that nobody owns, names that meet, roles of others, what ends a job."""

from pathlib import Path
from typing import Any

import pytest

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

JOB_NAME = "training.kubeflow.org/job-name"
VOLCANO = "scheduling.k8s.io/group-name"
UNREACHABLE = "node.kubernetes.io/unreachable"


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


def of_volcano(name: str, task: str = "", **more: Any) -> Json:
    return bare(name, template={"notes": {VOLCANO: "g", **({"volcano.sh/task-spec": task} if task else {})}}, **more)


def volcano_group(**spec: Any) -> Json:
    return workload("scheduling.volcano.sh/v1beta1", "PodGroup", "g", spec)


def test_who_has_succeeded_counts_for_a_volcano_group(tmp_path: Path) -> None:
    owner = {"apiVersion": "example.com/v1", "kind": "Work", "name": "w", "uid": "w1"}
    ended = of_volcano("a", owner=owner, status={"phase": "Succeeded"})
    waiting = [of_volcano(name, owner=owner) for name in "bc"]
    answer = simulate(tmp_path, *nodes(2), volcano_group(minMember=3), ended, *waiting)
    assert answer.bound == ["b", "c"]
    tasks = volcano_group(minMember=3, minTaskMember={"a": 1, "b": 2})
    ended = of_volcano("a0", "a", owner=owner, status={"phase": "Succeeded"})
    answer = simulate(tmp_path, *nodes(2), tasks, ended, *(of_volcano(f"b{i}", "b", owner=owner) for i in range(2)))
    assert answer.bound == ["b0", "b1"]


def test_min_resources_hold_a_volcano_group_with_tasks(tmp_path: Path) -> None:
    group = volcano_group(minMember=1, minTaskMember={"a": 1}, minResources={"cpu": 9})
    answer = simulate(tmp_path, *nodes(2), group, of_volcano("a", "a"))
    assert "minResources do not fit: cpu 9, free 2" in answer.message("a")


def hypernode(name: str, tier: int, kind: str, *members: str) -> Json:
    listed = [{"type": kind, "selector": {"exactMatch": {"name": one}}} for one in members]
    spec = {"tier": tier, "members": listed}
    return {"apiVersion": "topology.volcano.sh/v1alpha1", "kind": "HyperNode", "metadata": {"name": name}, "spec": spec}


def test_a_tier_is_that_of_the_hypernodes(tmp_path: Path) -> None:
    racks = [hypernode("s0", 1, "Node", "n0"), hypernode("s1", 1, "Node", "n1", "n2")]
    world = [*nodes(3), *racks, hypernode("t", 3, "HyperNode", "s0", "s1")]
    pods = [of_volcano(name) for name in "abc"]

    def asking(tier: int) -> Json:
        return volcano_group(minMember=3, networkTopology={"mode": "hard", "highestTierAllowed": tier})

    assert simulate(tmp_path, *world, asking(3), *pods).bound == ["a", "b", "c"]
    held = simulate(tmp_path, *world, asking(2), *pods)
    assert "highestTierAllowed 2, the tree has 2 layers above the nodes" in held.message("a")
    # its own annotation is nearer, also where it asks for nothing
    nearer = {**asking(2), "metadata": {"name": "g", "annotations": {NETWORK: "{}"}}}
    assert simulate(tmp_path, *world, nearer, *pods).bound == ["a", "b", "c"]


def test_a_mode_of_a_volcano_group_that_is_none_of_both_is_taken_as_hard(tmp_path: Path) -> None:
    world = [*nodes(3), hypernode("s0", 1, "Node", "n0"), hypernode("s1", 1, "Node", "n1", "n2")]
    pods = [of_volcano(name) for name in "abc"]
    group = volcano_group(minMember=3, networkTopology={"mode": "Hard", "highestTierAllowed": 1})
    answer = simulate(tmp_path, *world, group, *pods)
    assert (answer.bound, answer.pending) == ([], ["a", "b", "c"])
    assert "spec.networkTopology.mode: 'Hard' is none of hard, soft" in answer.err


def of_jobset(name: str, role_name: str, attempt: int = 0, index: int = 0, **more: Any) -> Json:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name.rpartition("-")[0], "uid": f"u-{name}-{attempt}"}
    made = bare(name, owner=owner, **more)
    said = {"jobset-name": "js", "replicatedjob-name": role_name, "job-index": "0", "restart-attempt": str(attempt)}
    made["metadata"]["labels"] |= {f"jobset.sigs.k8s.io/{key}": text for key, text in said.items()}
    made["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] = str(index)
    return made


def test_a_pod_of_an_earlier_run_begins_no_step(tmp_path: Path) -> None:
    after = role("workers", 1, 2, dependsOn=[{"name": "driver", "status": "Ready"}])
    made = jobset(role("driver", 1, 1), after)
    made["status"] = {"restarts": 1}
    old = of_jobset("js-workers-0-0", "workers", node="n0")
    answer = simulate(tmp_path, *nodes(2), made, old)
    assert answer.bound == ["js-driver-0-0"]
    assert answer.workloads["js"]["waiting"] == []  # they came when the driver ran, and find no room
    answer = simulate(tmp_path, *nodes(1), made, old)
    assert answer.workloads["js"]["waiting"] == [{"role": "workers", "pods": 2, "for": "role driver Ready"}]


def test_who_names_a_workload_that_is_finished_waits_for_nobody(tmp_path: Path) -> None:
    over = job("b", 2, status={"conditions": [{"type": "Complete", "status": "True"}]})
    answer = simulate(
        tmp_path, *nodes(2), job("a", 2, notes={"gang.scheduling.koordinator.sh/groups": '["default/b"]'}), over
    )
    assert answer.bound == ["a-0", "a-1"]


TOPOLOGY: Json = {
    "apiVersion": "scheduling.koordinator.sh/v1alpha1",
    "kind": "ClusterNetworkTopology",
    "metadata": {"name": "default"},
    "spec": {
        "hierarchy": [
            {"layerName": "nodeLayer", "parentTopologyLayer": "blockLayer"},
            {"layerName": "blockLayer", "labelKey": "block", "parentTopologyLayer": "ClusterTopologyLayer"},
        ]
    },
}


def blocks(**sizes: int) -> list[Json]:
    made = (nodes(size, name=name, labels={"block": name}) for name, size in sizes.items())
    return [TOPOLOGY, *(node for some in made for node in some)]


def test_pods_of_a_role_of_another_scheduler_attract(tmp_path: Path) -> None:
    wish = {NETWORK: '{"gatherStrategy": [{"layer": "blockLayer", "strategy": "PreferGather"}]}'}
    driver = template(schedulerName="default-scheduler")
    made = jobset(role("driver", 1, 1, driver), role("workers", 1, 2), notes=wish)
    runs = of_jobset("js-driver-0-0", "driver", scheduler="default-scheduler", node="y0")
    answer = simulate(tmp_path, *blocks(x=2, y=3), made, runs)
    assert {one["node"] for one in answer.document["bindings"]} == {"y1", "y2"}


def test_a_leader_outside_all_subgroups_lies_by_itself(tmp_path: Path) -> None:
    wish = {NETWORK: '{"gatherStrategy": [{"layer": "blockLayer", "strategy": "MustGather", "scope": "replica"}]}'}
    inner = {
        "size": 5,
        "workerTemplate": template(),
        "subGroupPolicy": {"subGroupSize": 2, "subGroupPolicyType": "LeaderExcluded"},
    }
    spec = {"replicas": 1, "leaderWorkerTemplate": inner}
    made = workload("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "llm", spec, wish)
    assert len(simulate(tmp_path, *blocks(x=2, y=2, z=1), made).bound) == 5


def test_minima_of_halves_of_a_role_and_of_pods_without_a_template(tmp_path: Path) -> None:
    exclusive = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "block"}
    made = jobset(role("w", 2, 2, template({MIN: "3"})), notes=exclusive)
    answer = simulate(tmp_path, *blocks(x=2, y=2), made)
    assert {name: one["minMember"] for name, one in answer.gangs.items()} == {"js:w-leaders": 2, "js:w-followers": 1}
    refs = [{"namespace": "default", "name": f"a{i}"} for i in range(2)]
    groups = {"podgroups": [{"name": "a", "minReplicas": 2, "podReferences": refs}]}
    gang = workload("scheduler.grove.io/v1alpha1", "PodGang", "pg", groups)
    pods = [bare(f"a{i}", template={"notes": {MIN: "1"}}) for i in range(2)]
    answer = simulate(tmp_path, *nodes(1), gang, *pods)
    assert (answer.bound, answer.gangs["pg"]["minMember"]) == (["a0"], 1)


def test_a_total_on_the_template_of_any_role(tmp_path: Path) -> None:
    kai = "kai.scheduler/batch-min-member"
    answer = simulate(tmp_path, *nodes(3), jobset(role("a", 1, 2), role("b", 1, 2, template({kai: "3"}))))
    assert {name: one["minMember"] for name, one in answer.gangs.items()} == {"js:a": 2, "js:b": 1}
    assert kai not in answer.err


def test_two_gangs_never_become_one(tmp_path: Path) -> None:
    replicas = {"Worker": {"replicas": 2, "template": template()}}
    torch = workload("kubeflow.org/v1", "PyTorchJob", "a", {"pytorchReplicaSpecs": replicas})
    answer = simulate(tmp_path, *nodes(3), torch, job("a-job", 2), job("a", 2))
    assert {name: one["members"] for name, one in answer.gangs.items()} == {"a": 2, "a-job": 2, "a-job-job": 2}


def test_slots_are_filled_by_what_is_there(tmp_path: Path) -> None:
    daemon = workload("apps/v1", "DaemonSet", "ds", {"template": template()}, meta={"uid": "d1"})
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "ds", "uid": "d1"}
    answer = simulate(tmp_path, *nodes(2), daemon, bare("ds-x7k2p", owner=owner, node="n0"))
    assert answer.bound == ["ds-n1"]
    # of two pods of one index one counts
    twice = [pod("train-0", 0, node="n0"), pod("train-0b", 0, node="n1")]
    answer = simulate(tmp_path, *nodes(4), job(number=3, meta={"uid": "j1"}), *twice)
    assert answer.bound == ["train-1", "train-2"]


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("elasticPolicy", {"minReplicas": 5}),
        ("runPolicy", {"schedulingPolicy": {"minAvailable": 5}}),
    ],
)
def test_a_total_above_all_members_holds_whoever_says_it(tmp_path: Path, field: str, said: Json) -> None:
    replicas = {"Master": {"template": template()}, "Worker": {"replicas": 3, "template": template()}}
    made = workload("kubeflow.org/v1", "PyTorchJob", "pt", {"pytorchReplicaSpecs": replicas, field: said})
    answer = simulate(tmp_path, *nodes(4), made)
    assert answer.bound == []
    assert answer.message("pt-worker-0").endswith("cannot be read: 5 is more than the 4 members of PyTorchJob pt")


def test_a_name_that_another_gang_has_is_taken_whatever_roles_stand_behind_it(tmp_path: Path) -> None:
    made = jobset(role("driver", 1, 1), role("workers", 1, 2))
    group = workload("scheduling.sigs.k8s.io/v1alpha1", "PodGroup", "js", {"minMember": 1})
    member = bare("p", template={"labels": {"pod-group.scheduling.sigs.k8s.io": "js"}})
    answer = simulate(tmp_path, *nodes(4), group, member, made)
    assert sorted(answer.gangs) == ["js", "js-jobset:driver", "js-jobset:workers"]
    answer = simulate(tmp_path, *nodes(4), group, made)
    assert sorted(answer.gangs) == ["js", "js:driver", "js:workers"], "a PodGroup without pods takes nobody's name"
    answer = simulate(tmp_path, *nodes(5), job("js", 2), made)
    assert sorted(answer.gangs) == ["js", "js-jobset:driver", "js-jobset:workers"]


def test_a_pod_that_has_the_name_of_a_slot_is_present_whosever_it_is(tmp_path: Path) -> None:
    sets = workload("apps/v1", "StatefulSet", "db", {"replicas": 2, "template": template()})
    daemon = workload("apps/v1", "DaemonSet", "ds", {"template": template()})
    answer = simulate(tmp_path, *nodes(4), sets, daemon, bare("db-0", node="n0"), bare("ds-n1", node="n1"))
    told = {name: (one["made"], one["present"]) for name, one in answer.workloads.items()}
    assert told == {"db": (1, 1), "ds": (3, 1)}
    assert "db-1" in answer.bound


def test_a_finished_ray_job_makes_nothing(tmp_path: Path) -> None:
    cluster = {"headGroupSpec": {"template": template()}, "workerGroupSpecs": []}
    status = {"jobDeploymentStatus": "Complete"}
    made = workload("ray.io/v1", "RayJob", "rj", {"rayClusterSpec": cluster}, status=status)
    answer = simulate(tmp_path, *nodes(2), made)
    assert (answer.bound, answer.workloads["rj"]["note"]) == ([], "finished")


def test_what_is_no_text_is_a_fault(tmp_path: Path) -> None:
    answer = simulate(tmp_path, *nodes(2), job(notes={AUTO: False}))  # type: ignore[dict-item]
    assert answer.status == 2
    assert (
        "metadata.annotations[gang.scheduling.koordinator.sh/auto]: must be a string, not the boolean false"
        in answer.err
    )


def test_items_of_a_joblist_are_jobs_of_its_version(tmp_path: Path) -> None:
    item = {key: value for key, value in job(number=2).items() if key in ("metadata", "spec")}
    listed = {"apiVersion": "batch/v1", "kind": "JobList", "items": [item]}
    assert simulate(tmp_path, *nodes(2), listed).bound == ["train-0", "train-1"]


def test_what_is_no_truth_value_is_a_fault(tmp_path: Path) -> None:
    made = job(number=2)
    made["spec"]["suspend"] = "true"
    answer = simulate(tmp_path, *nodes(2), made)
    assert answer.status == 2
    assert "Job default/train: spec.suspend: must be true or false, not the string 'true'" in answer.err


def runtime(**policy: Any) -> Json:
    trainer = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    node = {"name": "node", "template": {"metadata": trainer, "spec": {"template": template()}}}
    spec = {"mlPolicy": policy, "template": {"spec": {"replicatedJobs": [node]}}}
    meta = {"name": "torch"}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "ClusterTrainingRuntime", "metadata": meta, "spec": spec,
    }  # fmt: skip


def train_job(**spec: Any) -> Json:
    ref = {"runtimeRef": {"name": "torch"}}
    return workload("trainer.kubeflow.org/v1alpha1", "TrainJob", "tj", {**ref, **spec})


def test_faults_of_a_runtime_are_told_of_it(tmp_path: Path) -> None:
    answer = simulate(tmp_path, *nodes(2), runtime(numNodes=-1), train_job())
    assert answer.status == 2
    assert "ClusterTrainingRuntime/torch: spec.mlPolicy.numNodes: -1 is negative" in answer.err
    for path in (("template",), ("template", "spec"), ("template", "spec", "replicatedJobs")):
        broken = runtime(numNodes=2)
        at = broken["spec"]
        for name in path[:-1]:
            at = at[name]
        at[path[-1]] = None
        assert simulate(tmp_path, *nodes(2), broken, train_job()).status in (0, 2)


def test_a_class_that_is_not_there_is_told_where_its_author_wrote_it(tmp_path: Path) -> None:
    inner = template(priorityClassName="hi")
    torch = runtime(numNodes=1)
    torch["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"] = inner
    cluster = {"rayClusterSpec": {"headGroupSpec": {"template": inner}}}
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "js", "uid": "J", "controller": True}
    meta = {"labels": {"jobset.sigs.k8s.io/replicatedjob-name": "a"}, "ownerReferences": [owner]}
    given = {
        "Job default/train: spec.template": job(pod=inner),
        "Job default/js-a-0: spec.template": job("js-a-0", pod=inner, meta=meta),
        "CronJob default/c: spec.jobTemplate.spec.template": workload(
            "batch/v1", "CronJob", "c", {"jobTemplate": {"spec": {"template": inner}}}
        ),
        "RayJob default/r: spec.rayClusterSpec.headGroupSpec.template": workload("ray.io/v1", "RayJob", "r", cluster),
        "ClusterTrainingRuntime/torch: spec.template.spec.replicatedJobs[0].template.spec.template": torch,
    }
    answer = simulate(tmp_path, *nodes(2), *given.values(), train_job())
    told = [line.partition(": document ")[2].partition(": ")[2] for line in answer.err.splitlines()]
    assert told == [f"{where}.spec.priorityClassName: no PriorityClass hi in the input" for where in given]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"trainer": {"numNodes": 200_000}}, "spec.trainer.numNodes: makes 200000 pods, 100000 at most"),
        (
            {"runtimePatches": [{"trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [{"name": "x"}]}}}}]},
            "spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[0].name: "
            'no replicatedJob "x" in the runtime',
        ),
    ],
)
def test_what_a_train_job_makes_wrong_of_its_runtime_is_told_of_it(more: Json, text: str, tmp_path: Path) -> None:
    answer = simulate(tmp_path, *nodes(2), runtime(numNodes=1), train_job(**more))
    assert answer.status == 2 and f"TrainJob default/tj: {text}" in answer.err and answer.err.count("\n") == 1


def test_a_job_that_was_scaled_up_has_lost_nobody(tmp_path: Path) -> None:
    together = {
        "internal.scheduling.koordinator.sh/bind-gang-group-id": "default/train@1",
        "internal.scheduling.koordinator.sh/bind-gang-member-count": "3",
    }
    pods = [pod(f"train-{i}", i, node=f"n{i}", template={"notes": together if i < 2 else {}}) for i in range(3)]
    made = job(number=5, notes={"gang.scheduling.koordinator.sh/stale-grace": "0s"}, meta={"uid": "j1"})
    config = {"apiVersion": "koordpy.io/v1alpha1", "kind": "KoordpyConfiguration", "staleGangs": {"enabled": True}}
    answer = simulate(tmp_path, *nodes(3), made, *pods, config=config)
    assert answer.document["evictions"] == []


@pytest.mark.parametrize(
    ("notes", "on_template", "starts"),
    [
        ({}, {}, False),
        ({"scheduling.koordinator.sh/max-runtime": "10m"}, {}, True),
        ({}, {"scheduling.koordinator.sh/max-runtime": "10m"}, True),
        ({"scheduling.koordinator.sh/max-runtime": "10m"}, {"scheduling.koordinator.sh/max-runtime": "3h"}, False),
    ],
)
def test_what_is_written_of_how_long_a_job_runs_comes_before_its_deadline(
    notes: Json, on_template: Json, starts: bool, tmp_path: Path
) -> None:
    config = {"apiVersion": "koordpy.io/v1alpha1", "kind": "KoordpyConfiguration", "queue": {"backfill": True}}
    runs = pod("first-0", 0, owner="first", uid="f1", node="n0", status={"startTime": "2026-01-01T00:00:00Z"})
    runs["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    first = job("first", 1, notes={AUTO: "on"}, meta={"uid": "f1"}, activeDeadlineSeconds=3600)
    short = job("short", 1, notes={AUTO: "on", **notes}, pod=template(on_template), activeDeadlineSeconds=7200)
    answer = simulate(tmp_path, *nodes(2), first, runs, job("large", 2), short, config=config)
    assert answer.bound == (["short-0"] if starts else [])


def test_a_job_that_has_begun_goes_on_though_its_cron_job_is_suspended(tmp_path: Path) -> None:
    template_of = {"spec": job(number=2)["spec"]}
    spec = {"schedule": "* * * * *", "suspend": True, "jobTemplate": template_of}
    cron = workload("batch/v1", "CronJob", "night", spec, meta={"uid": "c1"})
    owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "night", "uid": "c1", "controller": True}
    begun = job("night-7", 2, meta={"ownerReferences": [owner]})
    assert simulate(tmp_path, *nodes(3), cron).workloads["night"]["note"] == "suspended"
    answer = simulate(tmp_path, *nodes(3), cron, begun)
    assert answer.bound == ["night-7-0", "night-7-1"]
    assert (answer.workloads["night"]["made"], answer.workloads["night"]["note"]) == (2, "")


@pytest.mark.parametrize(
    ("on_job", "on_template", "names"),
    [("off", "", []), ("off", "on", ["train"]), ("", "off", []), ("", "", ["pg"])],
)
def test_a_workload_that_wants_no_gang_is_in_no_pod_group_of_kueue_either(
    on_job: str, on_template: str, names: list[str], tmp_path: Path
) -> None:
    said = {"kueue.x-k8s.io/pod-group-total-count": "2", **({AUTO: on_template} if on_template else {})}
    inner = template(said, {"kueue.x-k8s.io/pod-group-name": "pg"})
    made = job(number=2, notes={AUTO: on_job} if on_job else {}, pod=inner, completionMode=None)
    answer = simulate(tmp_path, *nodes(2), made)
    assert (len(answer.bound), list(answer.gangs)) == (2, names)


STALE = {"apiVersion": "koordpy.io/v1alpha1", "kind": "KoordpyConfiguration", "staleGangs": {"enabled": True}}
TOGETHER = {
    "internal.scheduling.koordinator.sh/bind-gang-group-id": "default/train",
    "internal.scheduling.koordinator.sh/bind-gang-member-count": "3",
}


def failed(made: Json, at: str) -> Json:
    state = {"terminated": {"exitCode": 1, "finishedAt": at}}
    return {**made, "status": {"phase": "Failed", "containerStatuses": [{"name": "c", "state": state}]}}


@pytest.mark.parametrize(
    ("at", "notes", "gone"),
    [
        ("2025-12-31T23:58:59Z", TOGETHER, ["train-0", "train-1"]),
        ("2025-12-31T23:59:01Z", TOGETHER, []),
        ("2025-12-31T23:58:59Z", {}, []),
    ],
)
def test_a_job_that_has_lost_a_member_gives_up_when_its_grace_is_over(
    at: str, notes: Json, gone: list[str], tmp_path: Path
) -> None:
    pods = [pod(f"train-{i}", i, node=f"n{i}", template={"notes": notes}) for i in range(2)]
    lost = failed(pod("train-2-x", 2, node="n1"), at)
    answer = simulate(tmp_path, *nodes(2), job(number=3, meta={"uid": "j1"}), *pods, lost, config=STALE)
    assert sorted(one["pod"] for one in answer.document["evictions"]) == gone
    message = answer.gangs["train"]["message"]
    assert message.startswith("gang default/train: never fits: " if gone else "2 of 3 members; "), message


@pytest.mark.parametrize(
    ("spec", "cause"),
    [
        pytest.param(None, "NodeGone", id="gone"),
        pytest.param({"taints": [{"key": UNREACHABLE, "effect": "NoExecute"}]}, "NodeTaint", id="unreachable"),
    ],
)
def test_a_job_is_degraded_as_soon_as_a_node_is_lost(spec: Json | None, cause: str, tmp_path: Path) -> None:
    """The pod on the lost node still exists, but it is no member (repair.md 4.1)."""
    *sound, lost, free = nodes(4)
    cluster = [*sound, free, *([{**lost, "spec": spec}] if spec is not None else [])]
    pods = [pod(f"train-{i}", i, node=f"n{i}", template={"notes": TOGETHER}) for i in range(3)]
    told = simulate(tmp_path, *cluster, job(number=3, meta={"uid": "j1"}), *pods).gangs["train"]
    assert (told["status"], told["bound"]) == ("Degraded", 2)
    assert told["repair"]["lost"] == [{"pod": "default/train-2", "node": "n2", "cause": cause}]
    assert (told["repair"]["missing"], told["repair"]["ranks"], told["repair"]["seats"]) == (1, [2], {"n3": 1})


def test_a_member_that_failed_long_ago_and_was_replaced_does_not_shorten_the_grace(tmp_path: Path) -> None:
    pods = [pod(f"train-{i}", i, node=f"n{i}", template={"notes": TOGETHER}) for i in range(2)]
    before = failed(pod("train-0-x", 0, node="n1"), "2025-12-31T12:00:00Z")
    answer = simulate(tmp_path, *nodes(2), job(number=3, meta={"uid": "j1"}), *pods, before, config=STALE)
    assert (answer.document["evictions"], answer.pending) == ([], ["train-2"])


def test_a_job_all_of_whose_pods_have_failed_needs_all_of_them_again(tmp_path: Path) -> None:
    lost = [failed(pod(f"train-{i}-x", i, node="n0"), "2025-12-31T23:58:59Z") for i in range(3)]
    answer = simulate(tmp_path, *nodes(2), job(number=3, meta={"uid": "j1"}), *lost, config=STALE)
    assert answer.bound == []
    assert answer.message("train-0").endswith("gang default/train: needed 3, available in the cluster: 2.")


def test_a_pod_group_of_volcano_that_has_lost_a_member_gives_up_when_its_grace_is_over(tmp_path: Path) -> None:
    group = workload("scheduling.volcano.sh/v1beta1", "PodGroup", "g", {"minMember": 2})
    named = {"notes": {"scheduling.k8s.io/group-name": "g"}}
    made = [pod(f"p-{i}", None, node=node, template=named) for i, node in enumerate(("n0", "n1", ""))]
    made[1] = failed(made[1], "2025-12-31T23:58:59Z")
    answer = simulate(tmp_path, *nodes(1), group, *made, config=STALE)
    assert [one["pod"] for one in answer.document["evictions"]] == ["p-0"]


def test_pods_that_wait_of_a_workload_that_is_suspended_or_has_ended_are_held(tmp_path: Path) -> None:
    for given, word in (
        ({"suspend": True}, "suspended"),
        ({"status": {"conditions": [{"type": "Failed", "status": "True"}]}}, "finished"),
    ):
        waits = [pod(f"train-{i}", i) for i in range(2)]
        answer = simulate(tmp_path, *nodes(3), job(number=2, meta={"uid": "j1"}, **given), *waits)
        assert answer.bound == []
        assert {answer.message(f"train-{i}") for i in range(2)} == {f"gang default/train: Job train is {word}"}


@pytest.mark.parametrize(
    ("amounts", "said"),
    [
        ({"nvidia.com/gpu": {}}, "spec.minResources[nvidia.com/gpu]: must be a quantity, not a mapping"),
        ({"cpu": [1]}, "spec.minResources.cpu: must be a quantity, not a list"),
        ({"cpu": "lots"}, "spec.minResources.cpu: 'lots' is no quantity (as in 2, 500m, 16Gi)"),
        ([1], "spec.minResources: must be a mapping, not a list"),
    ],
)
def test_amounts_of_a_podgroup_of_volcano_that_cannot_be_read_are_named(
    tmp_path: Path, amounts: object, said: str
) -> None:
    group = workload("scheduling.volcano.sh/v1beta1", "PodGroup", "g", {"minMember": 1, "minResources": amounts})
    answer = simulate(tmp_path, *nodes(1), group)
    assert answer.status == 2 and f"PodGroup default/g: {said}" in answer.err


def test_pods_of_a_job_of_millions_of_indexes_are_found_without_making_them_all(tmp_path: Path) -> None:
    made = job(number=2, completions=10_000_000, meta={"uid": "j1"})
    answer = simulate(tmp_path, *nodes(3), made, pod("train-5", 5, node="n0"))
    assert answer.bound == ["train-0"]


def test_leaders_of_exclusive_jobs_have_the_ranks_of_their_indexes(tmp_path: Path) -> None:
    inner = {
        "name": "w",
        "replicas": 2,
        "template": {"spec": {"parallelism": 3, "completions": 3, "template": template()}},
    }
    notes = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "block"}
    made = workload("jobset.x-k8s.io/v1alpha2", "JobSet", "js", {"replicatedJobs": [inner]}, notes=notes)
    room = [one for block in "ab" for one in nodes(3, name=block, labels={"block": block})]
    bindings = simulate(tmp_path, *room, made).document["bindings"]
    ranks = {one["pod"]: one["annotations"]["scheduling.koordinator.sh/rank"] for one in bindings}
    assert ranks == {f"js-w-{j}-{i}": str(3 * j + i) for j in range(2) for i in range(3)}
