# SPDX-License-Identifier: Apache-2.0
"""JobSets, LeaderWorkerSets and RayClusters, made by their own controllers, through what happens to them: steps,
restarts, rolling updates, scaling, suspension, lost pods, whatever becomes of koordpy in the middle (workloads.md 5, 6
and 11)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import yaml

from koordpy.api import keys
from tests.e2e.acts import LEFT_ALONE, Act, Play, play, played, said
from tests.e2e.client import ALLOCATABLE, Json
from tests.e2e.kubelets import on_node, phase_of
from tests.e2e.operators import EXAMPLES, JOBSET, LWS, RAY, Operators, example, operators
from tests.e2e.test_gang_defaults import JOBS
from tests.e2e.test_scheduler import TOPOLOGIES

__all__ = ["operators", "play"]
pytestmark = pytest.mark.controllers
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
SETS = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/default/leaderworkersets"
CLUSTERS = "/apis/ray.io/v1/namespaces/default/rayclusters"
OF_JOBSET, OF_SET, OF_CLUSTER = "jobset.sigs.k8s.io/jobset-name", "leaderworkerset.sigs.k8s.io/name", "ray.io/cluster"
OF_ROLE = "jobset.sigs.k8s.io/replicatedjob-name"
REVISION, GROUP = "leaderworkerset.sigs.k8s.io/template-revision-hash", "leaderworkerset.sigs.k8s.io/group-index"


def template(gpu: int = 1, **spec: Any) -> Json:
    limits = {"nvidia.com/gpu": str(gpu)} if gpu else {"cpu": "1"}
    container = {"name": "main", "image": "example/train:1", "resources": {"limits": limits}}
    body = {"schedulerName": keys.DEFAULT_SCHEDULER_NAME, "terminationGracePeriodSeconds": 1, **spec}
    return {"spec": {**body, "containers": [container]}}


def jobset(name: str, *roles: Json, **spec: Any) -> Json:
    body = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name}}
    return {**body, "spec": {"replicatedJobs": list(roles), **spec}}


def role(name: str, replicas: int, size: int, *, gpu: int = 1, backoff: int = 6, **more: Any) -> Json:
    pods = template(gpu, restartPolicy="Never")
    spec = {"parallelism": size, "completions": size, "backoffLimit": backoff, "template": pods}
    return {"name": name, "replicas": replicas, "template": {"spec": spec}, **more}


def steps(status: str) -> tuple[Json, Json]:
    return role("driver", 1, 1), role("workers", 2, 2, dependsOn=[{"name": "driver", "status": status}])


def serving(replicas: int, size: int, **spec: Any) -> Json:
    inner = {"size": size, "workerTemplate": template(), **spec.pop("inner", {})}
    body = {"replicas": replicas, "leaderWorkerTemplate": inner, **spec}
    kind = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "llm"}}
    return {**kind, "spec": body}


async def both_steps_are_told(act: Act) -> None:
    async def told() -> bool:
        notes = await act.told("JobSet", "js", "GangScheduled")
        return {note.partition(": ")[2].partition(";")[0] for note in notes} == {
            "1 member of JobSet js, role driver (1 Job of 1)",
            "4 members of JobSet js, role workers (2 Jobs of 2)",
        }

    await act.until("the JobSet is told of both steps", told)


@played(LEFT_ALONE)
async def test_a_definition_that_comes_later_is_noticed_and_steps_are_not_waited_for(
    play: Play, operators: Operators
) -> None:
    text, koordpy = "jobsets.jobset.x-k8s.io is not served: its pods are grouped by labels", play.koordpy.leader
    if not operators.running:  # else it was served before
        await said(koordpy, text)
    await operators.start(play.api, JOBSET)
    await said(koordpy, "jobsets of jobset.x-k8s.io/v1alpha2 are served and read")
    act = await play.act("later", 5)
    await act.create(JOBSETS, jobset("js", *steps("Ready")))
    await act.running(f"{OF_JOBSET}=js", 5)
    await both_steps_are_told(act)
    assert koordpy.log.read_text().count(text) <= 1


async def a_step_follows_when_the_one_before_is_ready(act: Act) -> None:
    members = f"{OF_JOBSET}=js"
    await act.cordon_all(1, 2, 3, 4, cordoned=True)
    await act.amid(act.create(JOBSETS, jobset("js", *steps("Ready"))))
    await act.waiting(f"{members},{OF_ROLE}=workers", 4, "js:workers: needed 4, available in the cluster: 0")
    # the driver is deleted while they wait: nothing runs, and all of them are there
    await act.amid(act.delete(*await act.names(members, "Running")))
    await act.waiting(members, 5, "js:workers: needed 5, available in the cluster: 1")
    await act.amid(act.cordon_all(1, 2, 3, 4, cordoned=False))
    await act.running(members, 5)
    await both_steps_are_told(act)


async def a_step_follows_when_the_one_before_is_complete(act: Act) -> None:
    await act.amid(act.create(JOBSETS, jobset("js", *steps("Complete"))))
    (driver,) = await act.running(f"{OF_JOBSET}=js", 1)
    await act.amid(act.ends(driver))
    first, *others = await act.running(f"{OF_JOBSET}=js", 4)
    await act.amid(act.delete(first))
    assert set(others) < set(await act.running(f"{OF_JOBSET}=js", 4))


async def a_jobset_that_restarts_begins_anew_as_a_whole(act: Act) -> None:
    members = f"{OF_JOBSET}=js"
    made = jobset("js", role("driver", 1, 1), role("workers", 2, 2, backoff=0), failurePolicy={"maxRestarts": 3})
    await act.amid(act.create(JOBSETS, made))
    first = await act.running(members, 5)
    # a node is taken, so that the new run has to wait as a whole
    await act.cordon_all(0, cordoned=True)
    await act.amid(act.ends(next(name for name in first if "workers" in name), phase="Failed"))
    again = f"{members},jobset.sigs.k8s.io/restart-attempt=1"
    await act.waiting(again, 5, "available in the cluster: 4")
    await act.amid(act.cordon_all(0, cordoned=False))
    assert set(await act.running(members, 5)).isdisjoint(first)
    # a pod of a running gang is deleted: the hole alone is filled
    gone, *others = await act.names(members, "Running")
    await act.amid(act.delete(gone))
    assert set(others) < set(await act.running(members, 5))
    await act.patch(f"{JOBSETS}/js", suspend=True)
    await act.running(members, 0)
    await act.amid(act.patch(f"{JOBSETS}/js", suspend=False))
    await act.running(members, 5)


async def groups_start_whole_and_grow_and_shrink(act: Act) -> None:
    members = f"{OF_SET}=llm"
    await act.create(SETS, serving(2, 3))

    async def one_runs() -> bool:
        pods = await act.pods(members)
        where = [pod["metadata"]["labels"][GROUP] for pod in pods if phase_of(pod) == "Running"]
        return len(pods) == 6 and len(where) == 3 and len(set(where)) == 1

    await act.until("one group runs, the other waits whole", one_runs)
    waits = {pod["metadata"]["labels"][GROUP] for pod in await act.pods(members) if not on_node(pod)}
    await act.waiting(f"{members},{GROUP}={waits.pop()}", 3, "needed 3, available in the cluster: 2")
    await act.amid(act.make_nodes(4, start=5))
    await act.running(members, 6)
    await act.amid(act.patch(f"{SETS}/llm", replicas=3))
    running = await act.running(members, 9)
    # a worker is deleted: its group is made again as a whole, the others stay
    await act.amid(act.delete("llm-1-1"))
    await act.running(members, 9)
    await act.amid(act.patch(f"{SETS}/llm", replicas=1))
    assert set(await act.running(members, 3)) <= set(running)


async def an_update_rolls_group_by_group(surge: int, act: Act) -> None:
    members = f"{OF_SET}=llm"
    # Not 0 with a surge: the controller copies it to a StatefulSet, where Kubernetes 1.37 rejects 0.
    rolling = {"maxUnavailable": 1, "maxSurge": surge}
    strategy = {"type": "RollingUpdate", "rollingUpdateConfiguration": rolling}
    made = serving(2, 3, rolloutStrategy=strategy)
    await act.create(SETS, made)
    before = await act.running(members, 6)
    (old,) = {pod["metadata"]["labels"][REVISION] for pod in await act.pods(members)}
    inner = made["spec"]["leaderWorkerTemplate"]
    inner["workerTemplate"]["spec"]["containers"][0]["image"] = "example/train:2"
    await act.amid(act.patch(f"{SETS}/llm", leaderWorkerTemplate=inner))

    async def begun() -> bool:
        return any(pod["metadata"]["labels"][REVISION] != old for pod in await act.pods(members))

    await act.until("the update has begun", begun)
    await act.amid()

    async def through() -> bool:
        pods = await act.pods(members)
        new = [pod for pod in pods if pod["metadata"]["labels"][REVISION] != old and phase_of(pod) == "Running"]
        return len(pods) == len(new) == 6

    await act.until("both groups are of the new revision", through)
    assert sorted(await act.names(members, "Running")) == sorted(before)


async def workers_come_when_their_leader_is_ready_and_are_a_gang_of_their_own(act: Act) -> None:
    members = f"{OF_SET}=llm"
    await act.amid(act.create(SETS, serving(1, 3, startupPolicy="LeaderReady")))

    async def leader_runs() -> bool:
        return await act.names(members, "Running") == ["llm-0"] and len(await act.pods(members)) == 3

    await act.until("the leader runs, the workers are made", leader_runs)
    workers = f"{members},leaderworkerset.sigs.k8s.io/worker-index!=0"
    await act.waiting(workers, 2, f"{act.namespace}/llm-0:workers: needed 2, available in the cluster: 1")
    await act.amid(act.make_nodes(1, start=2))
    await act.running(members, 3)
    before = {pod["metadata"]["uid"] for pod in await act.pods(members)}
    # the leader is deleted: its workers go, too, and come again behind the next one
    await act.amid(act.delete("llm-0"))

    async def again() -> bool:
        pods = await act.pods(members)
        running = {pod["metadata"]["uid"] for pod in pods if phase_of(pod) == "Running"}
        return len(running) == 3 and running.isdisjoint(before)

    await act.until("the whole group runs again", again)


async def a_ray_cluster_waits_for_what_needs_gpus_and_scales(act: Act) -> None:
    groups = [
        {"groupName": name, "replicas": n, "minReplicas": 0, "maxReplicas": 9, "template": template(gpu)}
        for name, n, gpu in (("cpu", 5, 0), ("gpu", 4, 1))
    ]
    for group in groups:
        group["rayStartParams"] = {}
    head = {"rayStartParams": {}, "template": template(0)}
    kind = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "tune"}}
    await act.amid(act.create(CLUSTERS, {**kind, "spec": {"headGroupSpec": head, "workerGroupSpecs": groups}}))
    members = f"{OF_CLUSTER}=tune"
    # nine CPU pods do not stand in for the fourth with a GPU
    await act.waiting(members, 10, f"{act.namespace}/tune:headgroup: needed 10")
    groups[1]["replicas"] = 3
    await act.amid(act.patch(f"{CLUSTERS}/tune", workerGroupSpecs=groups))
    first, *_ = [name for name in await act.running(members, 9) if "gpu" in name]
    # a pod of a running gang is deleted
    await act.amid(act.delete(first))
    assert first not in await act.running(members, 9)
    groups[0]["replicas"] = 2
    await act.amid(act.patch(f"{CLUSTERS}/tune", workerGroupSpecs=groups))
    await act.running(members, 6)
    await act.patch(f"{CLUSTERS}/tune", suspend=True)
    await act.running(members, 0)
    await act.amid(act.patch(f"{CLUSTERS}/tune", suspend=False))
    await act.running(members, 6)


async def an_example_starts_as_a_gang(name: str, path: str, members: str, count: int, act: Act) -> None:
    nodes = list(yaml.safe_load_all((EXAMPLES / "cluster" / "nodes.yaml").read_text()))
    await act.make_nodes(9, room=ALLOCATABLE, labels=lambda i: nodes[i]["metadata"]["labels"])
    made = example(name)
    kind, named = made["kind"], made["metadata"]["name"]
    await act.amid(act.create(path, made))
    first, *_ = await act.running(members, count)

    async def told() -> bool:
        return bool(await act.told(kind, named, "GangScheduled"))

    await act.until(f"the {kind} is told of its start", told)
    await act.amid(act.delete(first))
    await act.running(members, count)


@played()
async def test_workloads_of_operators_live_on_whatever_becomes_of_koordpy(play: Play, operators: Operators) -> None:
    await operators.start(play.api, JOBSET, LWS, RAY)
    topology = yaml.safe_load((EXAMPLES / "cluster" / "topology.yaml").read_text())
    await play.api.apply(f"{TOPOLOGIES}/default", topology)
    examples = [
        ("job", JOBS, "job-name=train", 4),
        ("jobset", JOBSETS, f"{OF_JOBSET}=multislice", 9),
        ("leaderworkerset", SETS, f"{OF_SET}=llm", 8),
        ("raycluster", CLUSTERS, f"{OF_CLUSTER}=tune", 6),
    ]
    await play.run(
        {
            "ready": (5, a_step_follows_when_the_one_before_is_ready),
            "complete": (4, a_step_follows_when_the_one_before_is_complete),
            "restart": (5, a_jobset_that_restarts_begins_anew_as_a_whole),
            "groups": (5, groups_start_whole_and_grow_and_shrink),
            "rolling": (9, partial(an_update_rolls_group_by_group, 0)),
            "surging": (9, partial(an_update_rolls_group_by_group, 1)),
            "leader": (2, workers_come_when_their_leader_is_ready_and_are_a_gang_of_their_own),
            "ray": (3, a_ray_cluster_waits_for_what_needs_gpus_and_scales),
            **{f"example-{one[0]}": (0, partial(an_example_starts_as_a_gang, *one)) for one in examples},
        }
    )
    await play.api.delete(f"{TOPOLOGIES}/default")
