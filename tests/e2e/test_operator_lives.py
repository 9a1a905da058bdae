"""JobSets, LeaderWorkerSets and RayClusters, made by their own controllers, through what happens to them: steps,
restarts, rolling updates, scaling, suspension, lost pods; koordpy dies or hands over in the middle (workloads.md 5, 6
and 11)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from koordpy.api import keys
from tests.e2e.client import Client, Json, pods_path
from tests.e2e.conftest import CRDS
from tests.e2e.controlplane import ControlPlane
from tests.e2e.kubelets import Kubelets, kubelets, on_node, phase_of
from tests.e2e.operators import EXAMPLES, JOBSET, LWS, RAY, Operators, example, operators
from tests.e2e.process import Process
from tests.e2e.test_gang_defaults import JOBS
from tests.e2e.test_job_lives import World
from tests.e2e.test_preemption import EVENTS
from tests.e2e.test_scheduler import TOPOLOGIES, start

__all__ = ["operators"]
pytestmark = pytest.mark.controllers
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
SETS = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/default/leaderworkersets"
CLUSTERS = "/apis/ray.io/v1/namespaces/default/rayclusters"
OF_JOBSET, OF_SET, OF_CLUSTER = "jobset.sigs.k8s.io/jobset-name", "leaderworkerset.sigs.k8s.io/name", "ray.io/cluster"
KILLED, HANDED_OVER = "killed", "handed over"
ONE_GPU = {"cpu": "8", "memory": "32Gi", "pods": "20", "nvidia.com/gpu": "1"}
REVISION, GROUP = "leaderworkerset.sigs.k8s.io/template-revision-hash", "leaderworkerset.sigs.k8s.io/group-index"


def template(gpu: int = 1, **spec: Any) -> Json:
    limits = {"nvidia.com/gpu": str(gpu)} if gpu else {"cpu": "1"}
    container = {"name": "main", "image": "example/train:1", "resources": {"limits": limits}}
    body = {"schedulerName": keys.DEFAULT_SCHEDULER_NAME, "terminationGracePeriodSeconds": 1, **spec}
    return {"spec": {**body, "containers": [container]}}


class Stage(World):
    """Pods are named by a label (`KEY=VALUE`)."""

    def __init__(
        self, api: Client, nodes: Kubelets, operators: Operators, act: str, runs: Callable[[], Process]
    ) -> None:
        """act: what becomes of koordpy (`disturbed`); runs: makes another scheduler."""
        super().__init__(api, runs().start(), nodes)
        self.operators, self.act, self._runs = operators, act, runs

    async def pods(self, name: str) -> list[Json]:
        found = await self.api.items(f"{pods_path()}?labelSelector={quote(name)}")
        return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]

    async def logged(self, text: str) -> None:
        """Waits until koordpy has said this."""
        await self.until(text, lambda: asyncio.to_thread(lambda: text in log_of(self)))

    async def disturbed(self) -> None:
        """koordpy is killed and started again, or the leader ends and one that stood by takes over."""
        if self.act == KILLED:
            await asyncio.to_thread(self.process.kill)
            self.process.start()
        elif self.act == HANDED_OVER:
            await self.logged("leading since now")
            leader, self.process = self.process, self._runs().start()
            await self.logged("waiting for lease")
            assert await asyncio.to_thread(leader.stop) == 0


@pytest.fixture
async def stage(
    request: pytest.FixtureRequest, api: Client, plane: ControlPlane, operators: Operators, tmp_path: Path
) -> AsyncIterator[Stage]:
    """Parameter: nodes of one GPU, and what becomes of koordpy."""
    count, act = request.param
    await api.apply_crds(CRDS)
    await api.make_nodes(count, allocatable=ONE_GPU)
    schedulers: list[Process] = []

    def runs() -> Process:
        flag = f"--leader-elect={'true' if act == HANDED_OVER else 'false'}"
        schedulers.append(start(plane, tmp_path, f"koordpy-{len(schedulers)}", flag))
        return schedulers[-1]

    try:
        async with kubelets(api) as nodes:
            yield Stage(api, nodes, operators, act, runs)
            groups = await served(api)
            for path in (JOBSETS, SETS, CLUSTERS, JOBS):
                if path.split("/")[2] in groups:
                    await api.call("DELETE", f"{path}?propagationPolicy=Background")
            await api.delete(EVENTS)
    finally:
        for process in schedulers:
            await asyncio.to_thread(process.stop)


async def served(api: Client) -> list[str]:
    return [one["name"] for one in (await api.get("/apis"))["groups"]]


def on(count: int, *acts: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("stage", [(count, act) for act in acts or ("left alone",)], indirect=True)


def jobset(name: str, *roles: Json, **spec: Any) -> Json:
    body = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name}}
    return {**body, "spec": {"replicatedJobs": list(roles), **spec}}


def role(name: str, replicas: int, size: int, *, gpu: int = 1, backoff: int = 6, **more: Any) -> Json:
    pods = template(gpu, restartPolicy="Never")
    spec = {"parallelism": size, "completions": size, "backoffLimit": backoff, "template": pods}
    return {"name": name, "replicas": replicas, "template": {"spec": spec}, **more}


def serving(replicas: int, size: int, **spec: Any) -> Json:
    inner = {"size": size, "workerTemplate": template(), **spec.pop("inner", {})}
    body = {"replicas": replicas, "leaderWorkerTemplate": inner, **spec}
    kind = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "llm"}}
    return {**kind, "spec": body}


async def told(stage: Stage, kind: str, name: str, reason: str) -> list[str]:
    return [
        event["note"]
        for event in await stage.api.items(EVENTS)
        if (event["regarding"].get("kind"), event["regarding"].get("name"), event["reason"]) == (kind, name, reason)
    ]


def log_of(stage: Stage) -> str:
    return stage.process.log.read_text()


@on(5)
async def test_a_definition_that_comes_later_is_noticed_and_steps_are_not_waited_for(stage: Stage) -> None:
    text = "jobsets.jobset.x-k8s.io is not served: its pods are grouped by labels"
    if not stage.operators.running:  # else it was served before
        await stage.logged(text)
    await stage.operators.start(stage.api, JOBSET)
    await stage.logged("jobsets of jobset.x-k8s.io/v1alpha2 are served and read")
    steps = role("driver", 1, 1), role("workers", 2, 2, dependsOn=[{"name": "driver", "status": "Ready"}])
    await stage.api.create(JOBSETS, jobset("js", *steps))
    await stage.running(f"{OF_JOBSET}=js", 5)

    async def both_told() -> bool:
        notes = await told(stage, "JobSet", "js", "GangScheduled")
        return {note.partition(": ")[2] for note in notes} == {
            "1 member of JobSet js, role driver (1 Job of 1)",
            "4 members of JobSet js, role workers (2 Jobs of 2)",
        }

    await stage.until("the JobSet is told of both steps", both_told)
    assert log_of(stage).count(text) <= 1


@on(5, KILLED, HANDED_OVER)
async def test_a_jobset_that_restarts_begins_anew_as_a_whole(stage: Stage) -> None:
    await stage.operators.start(stage.api, JOBSET)
    members = f"{OF_JOBSET}=js"
    made = jobset("js", role("driver", 1, 1), role("workers", 2, 2, backoff=0), failurePolicy={"maxRestarts": 3})
    await stage.api.create(JOBSETS, made)
    await stage.disturbed()
    first = await stage.running(members, 5)
    # a node is taken, so that the new run has to wait as a whole
    await stage.cordon("n00000", cordoned=True)
    await stage.ends(next(name for name in first if "workers" in name), phase="Failed")
    again = f"{members},jobset.sigs.k8s.io/restart-attempt=1"
    await stage.waiting(again, 5, "available in the cluster: 4")
    await stage.disturbed()
    await stage.cordon("n00000", cordoned=False)
    assert set(await stage.running(members, 5)).isdisjoint(first)
    # a pod of a running gang is deleted: the hole alone is filled
    gone, *others = await stage.names(members, "Running")
    await stage.delete(gone)
    await stage.disturbed()
    assert set(others) < set(await stage.running(members, 5))
    # suspended and resumed
    await stage.api.patch(f"{JOBSETS}/js", {"spec": {"suspend": True}})
    await stage.running(members, 0)
    await stage.disturbed()
    await stage.api.patch(f"{JOBSETS}/js", {"spec": {"suspend": False}})
    await stage.running(members, 5)


@on(5, KILLED)
async def test_groups_start_whole_and_grow_and_shrink(stage: Stage) -> None:
    await stage.operators.start(stage.api, LWS)
    members = f"{OF_SET}=llm"
    await stage.api.create(SETS, serving(2, 3))

    async def one_runs() -> bool:
        pods = await stage.pods(members)
        where = [pod["metadata"]["labels"][GROUP] for pod in pods if phase_of(pod) == "Running"]
        return len(pods) == 6 and len(where) == 3 and len(set(where)) == 1

    await stage.until("one group runs, the other waits whole", one_runs)
    waits = {pod["metadata"]["labels"][GROUP] for pod in await stage.pods(members) if not on_node(pod)}
    await stage.waiting(f"{members},{GROUP}={waits.pop()}", 3, "needed 3, available in the cluster: 2")
    await stage.disturbed()
    await stage.api.make_nodes(4, allocatable=ONE_GPU, name=lambda i: f"more{i}")
    await stage.running(members, 6)
    await stage.api.patch(f"{SETS}/llm", {"spec": {"replicas": 3}})
    await stage.disturbed()
    running = await stage.running(members, 9)
    # a worker is deleted: its group is made again as a whole, the others stay
    await stage.delete("llm-1-1")
    await stage.running(members, 9)
    await stage.disturbed()
    await stage.api.patch(f"{SETS}/llm", {"spec": {"replicas": 1}})
    assert set(await stage.running(members, 3)) <= set(running)


@pytest.mark.parametrize(
    ("stage", "surge"), [((9, KILLED), 0), ((9, KILLED), 1), ((9, HANDED_OVER), 1)], indirect=["stage"]
)
async def test_a_rolling_update_goes_group_by_group(stage: Stage, surge: int) -> None:
    await stage.operators.start(stage.api, LWS)
    members = f"{OF_SET}=llm"
    rolling = {"maxUnavailable": 0 if surge else 1, "maxSurge": surge}
    strategy = {"type": "RollingUpdate", "rollingUpdateConfiguration": rolling}
    made = serving(2, 3, rolloutStrategy=strategy)
    await stage.api.create(SETS, made)
    before = await stage.running(members, 6)
    (old,) = {pod["metadata"]["labels"][REVISION] for pod in await stage.pods(members)}
    inner = made["spec"]["leaderWorkerTemplate"]
    inner["workerTemplate"]["spec"]["containers"][0]["image"] = "example/train:2"
    await stage.api.patch(f"{SETS}/llm", {"spec": {"leaderWorkerTemplate": inner}})

    async def begun() -> bool:
        return any(pod["metadata"]["labels"][REVISION] != old for pod in await stage.pods(members))

    await stage.until("the update has begun", begun)
    await stage.disturbed()

    async def through() -> bool:
        pods = await stage.pods(members)
        new = [pod for pod in pods if pod["metadata"]["labels"][REVISION] != old and phase_of(pod) == "Running"]
        return len(pods) == len(new) == 6

    await stage.until("both groups are of the new revision", through)
    assert sorted(await stage.names(members, "Running")) == sorted(before)
    assert await told(stage, "LeaderWorkerSet", "llm", "GangEvicted") == []


@on(2)
async def test_workers_come_when_their_leader_is_ready_and_are_a_gang_of_their_own(stage: Stage) -> None:
    await stage.operators.start(stage.api, LWS)
    await stage.api.create(SETS, serving(1, 3, startupPolicy="LeaderReady"))
    members = f"{OF_SET}=llm"

    async def leader_runs() -> bool:
        return await stage.names(members, "Running") == ["llm-0"] and len(await stage.pods(members)) == 3

    await stage.until("the leader runs, the workers are made", leader_runs)
    workers = f"{members},leaderworkerset.sigs.k8s.io/worker-index!=0"
    await stage.waiting(workers, 2, "default/llm-0:workers: needed 2, available in the cluster: 1")
    await stage.api.make_nodes(1, allocatable=ONE_GPU, name=lambda i: f"more{i}")
    await stage.running(members, 3)


@on(3, KILLED)
async def test_a_ray_cluster_waits_for_what_needs_gpus_and_scales(stage: Stage) -> None:
    await stage.operators.start(stage.api, RAY)
    groups = [
        {"groupName": name, "replicas": n, "minReplicas": 0, "maxReplicas": 9, "template": template(gpu)}
        for name, n, gpu in (("cpu", 5, 0), ("gpu", 4, 1))
    ]
    for group in groups:
        group["rayStartParams"] = {}
    head = {"rayStartParams": {}, "template": template(0)}
    kind = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "tune"}}
    await stage.api.create(CLUSTERS, {**kind, "spec": {"headGroupSpec": head, "workerGroupSpecs": groups}})
    members = f"{OF_CLUSTER}=tune"
    # nine CPU pods do not stand in for the fourth with a GPU
    await stage.waiting(members, 10, "default/tune:headgroup: needed 10")
    await stage.disturbed()
    groups[1]["replicas"] = 3
    await stage.api.patch(f"{CLUSTERS}/tune", {"spec": {"workerGroupSpecs": groups}})
    await stage.running(members, 9)
    groups[0]["replicas"] = 2
    await stage.api.patch(f"{CLUSTERS}/tune", {"spec": {"workerGroupSpecs": groups}})
    await stage.disturbed()
    await stage.running(members, 6)
    await stage.api.patch(f"{CLUSTERS}/tune", {"spec": {"suspend": True}})
    await stage.running(members, 0)
    await stage.api.patch(f"{CLUSTERS}/tune", {"spec": {"suspend": False}})
    await stage.running(members, 6)


@on(0)
@pytest.mark.parametrize(
    ("name", "path", "members", "count"),
    [
        ("job", JOBS, "job-name=train", 4),
        ("jobset", JOBSETS, f"{OF_JOBSET}=multislice", 9),
        ("leaderworkerset", SETS, f"{OF_SET}=llm", 8),
        ("raycluster", CLUSTERS, f"{OF_CLUSTER}=tune", 6),
    ],
)
async def test_the_examples_start_as_gangs(stage: Stage, name: str, path: str, members: str, count: int) -> None:
    await stage.operators.start(stage.api, JOBSET, LWS, RAY)
    nodes = list(yaml.safe_load_all((EXAMPLES / "cluster" / "nodes.yaml").read_text()))
    labels = [node["metadata"]["labels"] for node in nodes]
    await stage.api.make_nodes(9, name=lambda i: f"node-{i}", labels=labels.__getitem__)
    topology = yaml.safe_load((EXAMPLES / "cluster" / "topology.yaml").read_text())
    await stage.api.apply(f"{TOPOLOGIES}/default", topology)
    made = example(name)
    await stage.api.create(path, made)
    await stage.running(members, count)
    kind = made["kind"]

    async def all_told() -> bool:
        return bool(await told(stage, kind, made["metadata"]["name"], "GangScheduled"))

    await stage.until(f"the {kind} is told of its start", all_told)
    await stage.api.delete(f"{TOPOLOGIES}/default")
