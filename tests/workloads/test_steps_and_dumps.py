# SPDX-License-Identifier: Apache-2.0
"""Steps of workloads as they begin, dumps of which pods exist already, and templates that differ within a role."""

import json
import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml

from koordpy.cli.main import main
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

BLOCK = "net/block"
EXCLUSIVE = {"alpha.jobset.sigs.k8s.io/exclusive-topology": BLOCK}
JOBSET, LWS, KUBEFLOW = "jobset.sigs.k8s.io/", "leaderworkerset.sigs.k8s.io/", "training.kubeflow.org/"
REPLICAS = json.dumps({"gatherStrategy": [{"layer": "blockLayer", "strategy": "MustGather", "scope": "replica"}]})
TREE = workload(
    "scheduling.koordinator.sh/v1alpha1",
    "ClusterNetworkTopology",
    "default",
    {
        "hierarchy": [
            {"layerName": "blockLayer", "labelKey": BLOCK, "parentTopologyLayer": "ClusterTopologyLayer"},
            {"layerName": "nodeLayer", "parentTopologyLayer": "blockLayer"},
        ]
    },
)


def blocks(*sizes: int) -> list[Json]:
    """Blocks b0, b1, ... of one-slot nodes b0-0, b0-1, ..."""
    return [one for i, n in enumerate(sizes) for one in nodes(n, name=f"b{i}-", labels={BLOCK: f"b{i}"})]


def owned(made: Json, api: str, kind: str, name: str, uid: str) -> Json:
    made["metadata"]["ownerReferences"] = [
        {"apiVersion": api, "kind": kind, "name": name, "uid": uid, "controller": True}
    ]
    return made


def labelled(name: str, labels: Json, node: str = "", **more: Any) -> Json:
    made = pod(name, node=node, template={"labels": labels}, **more)
    made["metadata"]["labels"] = labels
    return made


def of_jobset(j: int, i: int, node: str = "") -> Json:
    """A pod of Job js-w-J as its controller names it."""
    own = {"jobset-name": "js", "jobset-uid": "js1", "replicatedjob-name": "w", "job-index": str(j)}
    labels = {JOBSET + key: value for key, value in {**own, "restart-attempt": "0"}.items()}
    labels |= {"batch.kubernetes.io/job-completion-index": str(i), "batch.kubernetes.io/job-name": f"js-w-{j}"}
    made = labelled(f"js-w-{j}-{i}-abcde", labels, node)
    return owned(made, "batch/v1", "Job", f"js-w-{j}", f"js1/js-w-{j}")


def with_uid(made: Json, uid: str) -> Json:
    made["metadata"]["uid"] = uid
    return made


def leader_worker_set(notes: Json | None = None, *, leader: Json | None = None, **spec: Any) -> Json:
    inner = {"size": 3, "workerTemplate": spec.pop("worker", template())}
    if leader is not None:
        inner["leaderTemplate"] = leader
    return workload(
        "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "llm", {"leaderWorkerTemplate": inner, **spec}, notes
    )


def minima(answer: Answer) -> dict[str, int]:
    return {name: gang["minMember"] for name, gang in answer.gangs.items()}


# -- what is said ---------------------------------------------------------------------------------------------------


def test_slots_are_counted_without_regard_to_parts_that_have_begun(tmp_path: Path) -> None:
    made = with_uid(jobset(role("w", 2, 2), notes={NETWORK: REPLICAS}), "js1")
    answer = simulate(tmp_path, TREE, *blocks(1, 3), made, of_jobset(0, 0, "b0-0"))
    text = "gang default/js: needed 3, available in the cluster: 3; each replica (largest 2) in one blockLayer."
    assert answer.bound == [] and text in answer.message("js-w-0-1")


def test_the_way_out_for_independent_tasks_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def misses(*objects: Json, config: Json | None = None) -> list[str]:
        from koordpy.cli.main import main

        path, settings = tmp_path / "in.yaml", tmp_path / "config.json"
        path.write_text("\n---\n".join(json.dumps(one) for one in objects))
        settings.write_text(json.dumps(config or {}))
        assert main(["explain", "-f", str(path), "--config", str(settings), "--pod", "train-0", "-o", "json"]) == 0
        found: list[str] = json.loads(capsys.readouterr().out)["wouldFitIf"]
        return found

    way = (
        'its pods were not a gang: annotation gang.scheduling.koordinator.sh/auto: "off" on Job train makes them '
        "plain pods"
    )
    more = "there were 1 more node with 1 cpu in the cluster, like node n0"
    fewer = f"annotation {MIN} of Job train were 2 (now 3 members must start together)"
    assert misses(*nodes(2), job()) == [fewer, more]  # as plain pods, one of them would still wait
    assert simulate(tmp_path, *nodes(2), job(notes={MIN: "2"})).bound == ["train-0", "train-1"]
    gather = {"gangs": {"defaults": {"gather": [{"layer": "blockLayer", "strategy": "MustGather"}]}}}
    assert misses(TREE, *blocks(2, 2), job(), config=gather)[-1] == way
    assert way not in misses(TREE, *blocks(1, 1), job(), config=gather)
    assert way not in misses(*nodes(3), job())  # it can start
    assert way not in misses(*nodes(2), job(notes={MIN: "3"}))  # somebody asked for the gang
    assert way not in misses(*nodes(2), job(notes={"gang.scheduling.koordinator.sh/auto": "on"}))


# -- steps ------------------------------------------------------------------------------------------------------------


def test_pods_that_are_made_after_the_last_round_wait(tmp_path: Path) -> None:
    later = {**role("workers", 1, 2), "dependsOn": [{"name": "driver", "status": "Ready"}]}
    answer = simulate(tmp_path, *nodes(3), jobset(role("driver", 1, 1), later), args=("--rounds", "1"))
    assert (answer.bound, answer.pending) == (["js-driver-0-0"], ["js-workers-0-0", "js-workers-0-1"])
    assert answer.message("js-workers-0-0") == "created after the last round of the simulation and not planned yet"
    gang = answer.gangs["js:workers"]
    assert (gang["members"], gang["bound"], gang["status"]) == (2, 0, "Unschedulable")
    assert gang["workload"] == {"kind": "JobSet", "namespace": "default", "name": "js", "role": "workers"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "js-workers-0-1",
            ": role workers of JobSet js waits for role driver Ready, --started js:workers creates its pods",
        ),
        ("js-workers-0-2", ""),
        (
            "llm-0-1",
            ": role workers of LeaderWorkerSet llm waits for leader Ready, --started llm:workers creates its pods",
        ),
    ],
)
def test_a_pod_of_a_later_role_is_explained_in_the_round_that_has_it(
    name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without capacity for the role before it no round has the pod."""
    later = {**role("workers", 1, 2), "dependsOn": [{"name": "driver", "status": "Ready"}]}
    from koordpy.cli.main import main

    groups = leader_worker_set(startupPolicy="LeaderReady")
    path = tmp_path / "in.yaml"
    path.write_text("\n---\n".join(map(json.dumps, [*nodes(3), jobset(role("driver", 1, 1), later), groups])))
    asked = ["explain", "-f", str(path), "--pod", name, "-o", "json"]
    assert main([*asked, "--started", "workers"]) == (0 if said else 2)
    capsys.readouterr()
    assert main(asked) == (0 if said else 2)
    told = capsys.readouterr()
    if not said:
        assert told.err == f"--pod {name}: no such pod in the input\n"
        return
    assert json.loads(told.out)["round"] == 2
    assert main([*asked, "--rounds", "1"]) == 0
    assert (
        json.loads(capsys.readouterr().out)["message"]
        == "created after the last round of the simulation and not planned yet"
    )
    (node,) = nodes(1)
    closed = {**node, "spec": {"unschedulable": True}}
    path.write_text("\n---\n".join(map(json.dumps, [closed, jobset(role("driver", 1, 1), later), groups])))
    assert main(asked) == 2
    assert capsys.readouterr().err == f"--pod {name}: no round of the simulation has this pod{said}\n"


@pytest.mark.parametrize("given", ["w", "w-followers", "js:w"])
def test_who_follows_a_pod_waits_for_its_node_though_its_role_has_begun(given: str, tmp_path: Path) -> None:
    later = {**role("w", 2, 2), "dependsOn": [{"name": "init", "status": "Complete"}]}
    made = jobset(role("init", 1, 1), later, notes=EXCLUSIVE)
    answer = simulate(tmp_path, TREE, *blocks(2, 2), made, args=("--started", given))
    assert answer.rounds == {"js-w-0-0": 1, "js-w-1-0": 1, "js-w-0-1": 2, "js-w-1-1": 2}
    groups = leader_worker_set({LWS + "exclusive-topology": BLOCK})
    answer = simulate(tmp_path, TREE, *blocks(3), groups, args=("--started", "workers"))
    assert answer.rounds == {"llm-0": 1, "llm-0-1": 2, "llm-0-2": 2}


def test_a_role_that_follows_many_others_on_countless_ways_has_begun_at_once(tmp_path: Path) -> None:
    first, second = role("r0", 1, 1), {**role("r1", 1, 1), "dependsOn": [{"name": "r0", "status": "Complete"}]}
    later = [{**role(f"r{i}", 1, 1), "dependsOn": [{"name": f"r{j}"} for j in range(1, i)]} for i in range(2, 40)]
    answer = simulate(tmp_path, *nodes(40), jobset(first, second, *later), args=("--started", "r39"))
    assert answer.rounds == {f"js-r{i}-0-0": 1 for i in range(1, 40)}


def test_who_follows_finds_its_leader_by_index_not_by_name(tmp_path: Path) -> None:
    made = with_uid(jobset(role("w", 1, 2), notes=EXCLUSIVE), "js1")
    answer = simulate(tmp_path, TREE, *blocks(2, 2), made, of_jobset(0, 0, "b1-0"))
    assert [(one["pod"], one["node"]) for one in answer.document["bindings"]] == [("js-w-0-1", "b1-1")]


@pytest.mark.parametrize("state", ["Ready", "Complete"])
def test_a_role_without_jobs_is_ready_and_complete(tmp_path: Path, state: str) -> None:
    later = {**role("b", 1, 2), "dependsOn": [{"name": "a", "status": state}]}
    answer = simulate(tmp_path, *nodes(2), jobset(role("a", 0, 1), later))
    assert answer.bound == ["js-b-0-0", "js-b-0-1"]


def test_an_unknown_state_that_a_role_depends_on_is_a_fault(tmp_path: Path) -> None:
    later = {**role("b", 1, 1), "dependsOn": [{"name": "a", "status": "Reddy"}]}
    answer = simulate(tmp_path, *nodes(1), jobset(role("a", 1, 1), later))
    assert answer.status == 2
    assert "spec.replicatedJobs[1].dependsOn[0].status: 'Reddy' is neither Ready nor Complete" in answer.err


# -- templates that differ --------------------------------------------------------------------------------------------


def test_pods_of_a_group_that_another_scheduler_places_are_not_waited_for(tmp_path: Path) -> None:
    others = template(schedulerName="default-scheduler")
    made = leader_worker_set(leader=others)
    answer = simulate(tmp_path, *nodes(2), made)
    assert (answer.bound, minima(answer)) == (["llm-0-1", "llm-0-2"], {"llm-0:workers": 2})
    origin = "2 members of LeaderWorkerSet llm, group 0, role workers (size 3)"
    assert answer.gangs["llm-0:workers"]["origin"] == origin
    assert simulate(tmp_path, *nodes(1), made).bound == []
    assert simulate(tmp_path, *nodes(1), leader_worker_set(leader=template(), worker=others)).bound == ["llm-0"]


def test_a_minimum_on_the_template_of_leader_and_workers_is_of_both(tmp_path: Path) -> None:
    own = template({MIN: "2"})
    answer = simulate(tmp_path, *nodes(3), leader_worker_set(worker=own, startupPolicy="LeaderReady"))
    assert minima(answer) == {"llm-0:leader": 1, "llm-0:workers": 1}
    # that of the workers' own template is theirs
    answer = simulate(
        tmp_path, *nodes(3), leader_worker_set(leader=template(), worker=own, startupPolicy="LeaderReady")
    )
    assert minima(answer) == {"llm-0:leader": 1, "llm-0:workers": 2}
    # where they are one role it is of the group
    answer = simulate(tmp_path, *nodes(2), leader_worker_set(leader=template(), worker=own))
    assert (minima(answer), answer.bound) == ({"llm-0": 2}, ["llm-0", "llm-0-1"])
    more = template({MIN: "5"})
    answer = simulate(tmp_path, *nodes(3), leader_worker_set(worker=more, startupPolicy="LeaderReady"))
    assert answer.message("llm-0").endswith("5 is more than the 3 members of LeaderWorkerSet llm")


def test_once_satisfied_holds_where_a_member_has_succeeded(tmp_path: Path) -> None:
    ended = pod("train-0", 0, status={"phase": "Succeeded"})
    policy = {"gang.scheduling.koordinator.sh/match-policy": "once-satisfied"}
    answer = simulate(tmp_path, *nodes(1), job(notes=policy, meta={"uid": "j1"}), ended)
    assert (answer.bound, answer.pending) == (["train-1"], ["train-2"])
    assert simulate(tmp_path, *nodes(1), job(meta={"uid": "j1"}), ended).bound == []


# -- dumps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_job", [True, False])
def test_a_launcher_goes_by_the_name_that_its_job_gives_it(*, with_job: bool, tmp_path: Path) -> None:
    replicas = {"Launcher": {"replicas": 1, "template": template()}, "Worker": {"replicas": 1, "template": template()}}
    made = workload("kubeflow.org/v2beta1", "MPIJob", "mpi", {"mpiReplicaSpecs": replicas}, meta={"uid": "m1"})
    launches = job("mpi-launcher", meta={"uid": "l1"}, completionMode=None, completions=None, parallelism=None)
    owned(launches, "kubeflow.org/v2beta1", "MPIJob", "mpi", "m1")
    runs = labelled("mpi-launcher-abcde", {KUBEFLOW + "job-name": "mpi", KUBEFLOW + "job-role": "launcher"}, "n0")
    owned(runs, "batch/v1", "Job", "mpi-launcher", "l1")
    answer = simulate(tmp_path, *nodes(3), made, *([launches] if with_job else []), runs)
    assert answer.bound == ["mpi-worker-0"]
    assert (answer.workloads["mpi"]["made"], answer.workloads["mpi"]["present"]) == (1, 1)


def test_pods_of_a_deployment_count_without_their_replica_set(tmp_path: Path) -> None:
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template(labels={"app": "web"})}
    made = workload("apps/v1", "Deployment", "web", spec, meta={"uid": "d1"})
    runs = owned(labelled("web-5f7-x", {"app": "web"}, "n0"), "apps/v1", "ReplicaSet", "web-5f7", "r1")
    other = owned(labelled("api-5f7-x", {"app": "web"}, "n1"), "apps/v1", "ReplicaSet", "api-5f7", "r2")
    answer = simulate(tmp_path, *nodes(4), made, runs, other)
    assert (answer.bound, answer.workloads["web"]["present"]) == (["web-0"], 1)


def test_a_cron_job_is_finished_once_all_of_its_jobs_are(tmp_path: Path) -> None:
    def run(name: str, **more: Any) -> Json:
        return owned(job(name, 1, meta={"uid": name}, **more), "batch/v1", "CronJob", "c", "c1")

    body = {"schedule": "0 * * * *", "jobTemplate": {"spec": job(number=1)["spec"]}}
    cron = workload("batch/v1", "CronJob", "c", body, meta={"uid": "c1"})
    over = run("c-1", status={"conditions": [{"type": "Complete", "status": "True"}]})
    both = simulate(tmp_path, *nodes(1), cron, run("c-2"), over).workloads["c"]
    assert (both["made"], both["note"]) == (1, "")
    assert simulate(tmp_path, *nodes(1), cron, over).workloads["c"]["note"] == "finished"


def test_too_many_pods_are_told_at_the_field_that_says_so(tmp_path: Path) -> None:
    body = {"schedule": "0 * * * *", "jobTemplate": {"spec": job(number=200_000)["spec"]}}
    worker = {"Worker": {"replicas": 200_000, "template": template()}}
    group = {"groupName": "g", "replicas": 200_000, "template": template()}
    cluster = {"headGroupSpec": {"template": template()}, "workerGroupSpecs": [group]}
    for given, field in (
        (workload("batch/v1", "CronJob", "c", body), "spec.jobTemplate.spec.parallelism"),
        (workload("kubeflow.org/v1", "PyTorchJob", "p", {"pytorchReplicaSpecs": worker}), "spec.pytorchReplicaSpecs"),
        (workload("ray.io/v1", "RayJob", "r", {"rayClusterSpec": cluster}), "spec.rayClusterSpec.workerGroupSpecs"),
    ):
        answer = simulate(tmp_path, *nodes(1), given)
        assert answer.status == 2 and f": {field}: makes 20000" in answer.err


def test_who_declines_a_gang_is_not_told_of_the_keys_that_would_make_it(tmp_path: Path) -> None:
    labels, count = {"kueue.x-k8s.io/pod-group-name": "g"}, {"kueue.x-k8s.io/pod-group-total-count": "2"}
    off = {**count, "gang.scheduling.koordinator.sh/auto": "off"}

    def alone(notes: Json) -> Answer:
        made = labelled("p", labels)
        made["metadata"] |= {"annotations": notes, "ownerReferences": []}
        return simulate(tmp_path, *nodes(1), made)

    assert (alone(off).bound, alone(off).err) == (["p"], "")
    assert alone(count).bound == []


LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")


def test_objects_that_are_made_have_valid_identities(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    roles = [{"name": "node", "template": {"metadata": {"labels": step}, "spec": {"template": template()}}}]
    runtime = workload(
        "trainer.kubeflow.org/v1alpha1",
        "ClusterTrainingRuntime",
        "torch",
        {"template": {"spec": {"replicatedJobs": roles}}},
    )
    train = workload("trainer.kubeflow.org/v1alpha1", "TrainJob", "tj", {"runtimeRef": {"name": "torch"}})
    cron = workload("batch/v1", "CronJob", "c", {"jobTemplate": {"spec": {"template": template()}}})
    given = [*nodes(9), jobset(role("w", 2, 2)), leader_worker_set(), runtime, train, cron, job("a", 2)]
    path = tmp_path / "in.yaml"
    path.write_text(yaml.safe_dump_all(given))
    runs = []
    for _ in range(2):
        assert main(["simulate", "-f", str(path), "-o", "manifests"]) == 0
        runs.append(capsys.readouterr().out)
    assert runs[0] == runs[1]
    pods = [one for one in yaml.safe_load_all(runs[0]) if one["kind"] == "Pod"]
    metas = [one["metadata"] for one in pods]
    assert len(pods) == len({one["uid"] for one in metas}) >= 4 + 3 + 1 + 2
    assert any("batch.kubernetes.io/controller-uid" in one["labels"] for one in metas)
    for meta in metas:
        uids = [meta["uid"], *(owner["uid"] for owner in meta["ownerReferences"])]
        assert [str(UUID(one)) for one in uids] == uids
        odd = {k: v for k, v in meta["labels"].items() if len(v) > 63 or not LABEL_VALUE.fullmatch(v)}
        assert odd == {}
        if of := meta["labels"].get("batch.kubernetes.io/controller-uid"):
            assert of == meta["ownerReferences"][0]["uid"]
