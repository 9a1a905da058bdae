# SPDX-License-Identifier: Apache-2.0
"""Gangs that are real Jobs, through what happens to Jobs: more completions than pods at a time, retries, suspension,
deleted pods, drains, growth, and the same Job again. Gangs live like their workloads (gang-network.md 2.4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from koordpy.api import keys
from tests.e2e.client import Client, Json, condition, pods_path
from tests.e2e.conftest import CRDS
from tests.e2e.controlplane import ControlPlane
from tests.e2e.kubelets import Kubelets, kubelets, on_node, phase_of
from tests.e2e.process import Process, eventually
from tests.e2e.test_gang_defaults import JOBS
from tests.e2e.test_preemption import CLASSES, EVENTS, scheduler
from tests.e2e.test_scheduler import GROUPS

pytestmark = pytest.mark.controllers
ASKED = "staleGangs: {enabled: true, grace: 1s}"
"""Whoever has lost members is evicted soon: what is not evicted then has lost nobody."""


@pytest.fixture
async def api(api: Client) -> AsyncIterator[Client]:
    await api.apply_crds(CRDS)
    yield api
    for path in (f"{JOBS}?propagationPolicy=Background", GROUPS, EVENTS, f"{CLASSES}/high"):
        await api.delete(path)


class World:
    """Nodes of one GPU each, Jobs of one GPU a pod, a scheduler, kubelets. Pods are named by their Job, or by a label
    (`KEY=VALUE`)."""

    def __init__(self, api: Client, process: Process, nodes: Kubelets, namespace: str = "default") -> None:
        self.api, self.process, self.nodes, self.namespace = api, process, nodes, namespace

    def here(self, path: str) -> str:
        """A path of namespace default, in that of this world."""
        return path.replace("/namespaces/default/", f"/namespaces/{self.namespace}/")

    async def job(
        self, name: str, size: int, *, minimum: int | None = None, group: bool = True, of: str = "", **spec: object
    ) -> None:
        """A Job under a PodGroup of its name; of: of another."""
        if group:
            kind = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": name}}
            await self.api.create(GROUPS, {**kind, "spec": {"minMember": size if minimum is None else minimum}})
        resources = {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}
        pod = {
            "schedulerName": keys.DEFAULT_SCHEDULER_NAME,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "example/train:1", "resources": resources}],
        }
        priority = spec.pop("priority", "")
        if priority:
            pod["priorityClassName"] = priority
        template = {"metadata": {"labels": {keys.LABEL_POD_GROUP: of or name}}, "spec": pod}
        policy = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}
        made = {"parallelism": size, "completions": size, "backoffLimit": 50, "podFailurePolicy": policy, **spec}
        manifest = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}}
        await self.api.create(JOBS, {**manifest, "spec": {**made, "template": template}})

    async def pods(self, name: str) -> list[Json]:
        """Those that are being deleted left out, in the order of their names."""
        selector = quote(name if "=" in name else f"job-name={name}")
        found = await self.api.items(f"{pods_path(self.namespace)}?labelSelector={selector}")
        return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]

    async def names(self, name: str, phase: str) -> list[str]:
        return [pod["metadata"]["name"] for pod in await self.pods(name) if phase_of(pod) == phase]

    async def until(self, what: str, true: Callable[[], Awaitable[object]]) -> None:
        await eventually(true, what=f"{self.namespace}: {what}", within_s=120, processes=[self.process])

    async def running(self, name: str, count: int) -> list[str]:
        """Waits until exactly so many pods of a Job run, and none waits; their names."""

        async def so_many() -> bool:
            pods = await self.pods(name)
            waiting = [pod for pod in pods if phase_of(pod) == "Pending"]
            return not waiting and len([pod for pod in pods if phase_of(pod) == "Running"]) == count

        await self.until(f"{count} pods of {name} run", so_many)
        return await self.names(name, "Running")

    async def waiting(self, name: str, count: int, text: str) -> None:
        """Waits until so many pods of a Job wait, each of them told something with this text in it."""

        async def told() -> bool:
            pods = [pod for pod in await self.pods(name) if phase_of(pod) == "Pending" and not on_node(pod)]
            said = [condition(pod, "PodScheduled") for pod in pods]
            return len(pods) == count and all(one is not None and text in one.get("message", "") for one in said)

        await self.until(f"{count} pods of {name} wait: {text}", told)

    async def ends(self, *names: str, phase: str = "Succeeded") -> None:
        for name in names:
            await self.nodes.end(name, phase, self.namespace)

    async def delete(self, *names: str) -> None:
        """As kubectl does."""
        for name in names:
            await self.api.call("DELETE", f"{pods_path(self.namespace)}/{name}")

    async def cordon(self, node: str, *, cordoned: bool) -> None:
        await self.api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": cordoned}})

    async def minimum(self, name: str, number: int) -> None:
        await self.api.patch(f"{GROUPS}/{name}", {"spec": {"minMember": number}})

    async def says(self, name: str, **wanted: object) -> None:
        """Waits until the status of a PodGroup is so; `Scheduled` and other capital words are conditions."""

        said: Json = {}

        async def so() -> bool:
            group = await self.api.get(f"{GROUPS}/{name}")
            said.update((key, group.get("status", {}).get(key)) for key in wanted)
            said.update((key, (condition(group, key) or {}).get("status")) for key in wanted if key[0].isupper())
            return said == wanted

        try:
            await self.until(f"PodGroup {name} says {wanted}", so)
        except AssertionError as error:
            error.add_note(f"it says {said}")
            raise

    async def job_is(self, name: str, type_: str) -> None:
        async def so() -> bool:
            found = condition(await self.api.get(self.here(f"{JOBS}/{name}")), type_)
            return found is not None and found["status"] == "True"

        await self.until(f"Job {name} is {type_}", so)

    async def notes(self, name: str, reason: str, kind: str = "PodGroup") -> list[str]:
        """What events with this reason say of a PodGroup, or of an object of another kind."""
        about = (event for event in await self.api.items(EVENTS) if event["regarding"].get("kind") == kind)
        return [event["note"] for event in about if (event["regarding"]["name"], event["reason"]) == (name, reason)]

    async def a_loss_is_punished(self) -> None:
        """Another gang loses a member and is evicted for it: so long everybody had to be evicted who is stale."""
        await self.job("witness", 2)
        first, _ = await self.running("witness", 2)
        await self.cordon("n00000", cordoned=True)
        await self.api.patch(f"{JOBS}/witness", {"spec": {"suspend": False}})
        node = (await self.api.get(f"{pods_path()}/{first}"))["spec"]["nodeName"]
        await self.cordon(node, cordoned=True)
        for other in range(12):
            await self.cordon(f"n{other:05d}", cordoned=True)
        await self.delete(first)

        async def evicted() -> bool:
            return bool(await self.notes("witness", "GangEvicted"))

        await self.until("the gang that lost a member is evicted", evicted)


@pytest.fixture
async def world(
    request: pytest.FixtureRequest, api: Client, plane: ControlPlane, tmp_path: Path
) -> AsyncIterator[World]:
    """Parameter: nodes, and the configuration where there is one."""
    count, config = request.param
    await api.make_nodes(count, allocatable={"cpu": "8", "memory": "8Gi", "pods": "20", "nvidia.com/gpu": "1"})
    async with scheduler(plane, tmp_path, config=config) as process, kubelets(api) as nodes:
        yield World(api, process, nodes)


def nodes(count: int, config: str = "") -> pytest.MarkDecorator:
    return pytest.mark.parametrize("world", [(count, config)], indirect=True)


@nodes(5)
async def test_a_job_with_more_completions_than_pods_at_a_time_comes_to_its_end(world: World) -> None:
    await world.job("tail", 4, completions=10)
    await world.running("tail", 4)
    assert [event["note"] for event in await world.api.items(EVENTS) if event["reason"] == "FailedScheduling"] == []
    done = 0
    while done < 10:
        names = await world.running("tail", min(4, 10 - done))
        await world.ends(*names[:3])
        done += len(names[:3])
        if done < 10:
            await world.says("tail", succeeded=done)
    await world.job_is("tail", "Complete")
    await world.says("tail", phase="Finished", succeeded=10, Scheduled="True")


@nodes(5)
async def test_an_index_that_failed_is_tried_again_though_its_siblings_have_succeeded(world: World) -> None:
    await world.job("index", 4, completionMode="Indexed")
    *others, last = await world.running("index", 4)
    await world.ends(*others)
    await world.says("index", succeeded=3, phase="Running")
    await world.ends(last, phase="Failed")
    (again,) = await world.running("index", 1)
    assert again != last
    await world.ends(again)
    await world.job_is("index", "Complete")
    await world.says("index", phase="Finished", succeeded=4, failed=1)


@nodes(6)
async def test_workers_are_tried_again_though_the_driver_is_another_job_and_has_succeeded(world: World) -> None:
    await world.job("workers", 3, minimum=4)
    await world.job("driver", 1, group=False, of="workers")
    (driver,) = await world.running("driver", 1)
    first, *others = await world.running("workers", 3)
    await asyncio.sleep(1.1)  # times are in whole seconds
    await world.ends(driver)
    await world.says("workers", succeeded=1, scheduled=4)
    await world.ends(first, phase="Failed")
    running = await world.running("workers", 3)
    assert set(others) < set(running)
    assert first not in running
    await world.api.call("DELETE", f"{JOBS}/driver?propagationPolicy=Foreground")
    await world.says("workers", succeeded=1, departed=1, scheduled=4, Scheduled="True")
    await world.ends(running[0], phase="Failed")
    assert set(running[1:]) < set(await world.running("workers", 3))


@nodes(6, ASKED)
@pytest.mark.parametrize("restarted", [False, True])
async def test_workers_are_suspended_and_resumed_though_the_driver_is_another_job_and_is_gone(
    world: World, restarted: bool
) -> None:
    await world.job("train", 2, minimum=3)
    await world.job("driver", 1, group=False, of="train")
    (driver,) = await world.running("driver", 1)
    before = await world.running("train", 2)
    await world.says("train", scheduled=3, Scheduled="True")
    await world.ends(driver)
    await world.says("train", succeeded=1, scheduled=3)
    await world.api.call("DELETE", f"{JOBS}/driver?propagationPolicy=Foreground")
    await world.says("train", succeeded=1, departed=1, scheduled=3, Scheduled="True")
    await world.api.patch(f"{JOBS}/train", {"spec": {"suspend": True}})
    await world.running("train", 0)
    await world.says("train", succeeded=1, departed=1, scheduled=1, running=0, Scheduled="False")
    if restarted:
        assert await asyncio.to_thread(world.process.stop) == 0
        world.process.start()
    await world.api.patch(f"{JOBS}/train", {"spec": {"suspend": False}})
    assert set(await world.running("train", 2)).isdisjoint(before)
    await world.says("train", succeeded=1, departed=1, scheduled=3, phase="Running", Scheduled="True")
    assert not await world.notes("train", "GangEvicted")
    # another Job, which never ran beside the driver, begins anew
    await world.api.call("DELETE", f"{JOBS}/train?propagationPolicy=Foreground")
    await world.running("train", 0)
    await world.job("later", 2, group=False, of="train")
    await world.waiting("later", 2, "waiting for members, 2 of minMember 3 exist")
    await world.says("train", succeeded=0, departed=0, scheduled=0)


@nodes(5)
async def test_a_job_that_is_suspended_and_resumed_starts_again_as_a_whole(world: World) -> None:
    await world.job("pause", 4)
    await world.running("pause", 4)
    await world.api.patch(f"{JOBS}/pause", {"spec": {"suspend": True}})
    await world.running("pause", 0)
    await world.says("pause", phase="Pending", scheduled=0, Scheduled="False")
    for taken in ("n00000", "n00001"):
        await world.cordon(taken, cordoned=True)
    await world.api.patch(f"{JOBS}/pause", {"spec": {"suspend": False}})
    await world.waiting("pause", 4, "needed 4, available in the cluster: 3")
    await world.cordon("n00000", cordoned=False)
    await world.running("pause", 4)
    await world.says("pause", scheduled=4, Scheduled="True")


@nodes(12, ASKED)
async def test_whoever_deletes_completed_pods_does_not_end_those_that_run(world: World) -> None:
    await world.job("uneven", 4)
    first, second, *others = await world.running("uneven", 4)
    await world.ends(first, second)
    await world.says("uneven", succeeded=2, scheduled=4)
    await world.delete(first, second)
    await world.says("uneven", succeeded=2, scheduled=4, Scheduled="True", departed=2)
    await world.a_loss_is_punished()
    assert await world.names("uneven", "Running") == others
    assert not await world.notes("uneven", "GangDegraded")


@nodes(4)
async def test_of_a_drained_node_only_its_member_goes_and_comes_back(world: World) -> None:
    await world.job("wide", 4)
    first, *others = await world.running("wide", 4)
    node = (await world.api.get(f"{pods_path()}/{first}"))["spec"]["nodeName"]
    await world.cordon(node, cordoned=True)
    await world.delete(first)
    await world.waiting("wide", 1, "needed 1, available in the cluster: 0")
    await world.says("wide", scheduled=3, Scheduled="False", Stale="True")
    for kind in ("PodGroup", "Job"):
        assert await world.notes("wide", "GangDegraded", kind) == ["gang default/wide has 3 of 4 members"]
    assert await world.names("wide", "Running") == others
    await world.cordon(node, cordoned=False)
    await world.running("wide", 4)
    await world.says("wide", scheduled=4, Scheduled="True", Stale="False")
    for kind in ("PodGroup", "Job"):
        assert await world.notes("wide", "GangRepaired", kind) == ["4 members are bound or have Succeeded"]


@nodes(12, ASKED)
@pytest.mark.parametrize("group_first", [True, False])
async def test_a_job_grows_whichever_number_is_raised_first(world: World, group_first: bool) -> None:
    await world.job("grow", 2, completions=None)
    before = await world.running("grow", 2)

    async def more_pods() -> None:
        await world.api.patch(f"{JOBS}/grow", {"spec": {"parallelism": 4}})
        await world.running("grow", 4)

    if not group_first:
        await more_pods()
    await world.minimum("grow", 4)
    if group_first:
        await world.says("grow", scheduled=2, Scheduled="False", Stale=None)
        await world.a_loss_is_punished()
        assert set(before) == set(await world.names("grow", "Running"))
        for other in range(12):
            await world.cordon(f"n{other:05d}", cordoned=False)
        await more_pods()
    await world.says("grow", scheduled=4, Scheduled="True")
    assert set(before) <= set(await world.names("grow", "Running"))
    assert not await world.notes("grow", "GangDegraded")


@nodes(3)
async def test_the_same_job_again_under_its_pod_group_begins_anew(world: World) -> None:
    await world.job("again", 3)
    await world.ends(*await world.running("again", 3))
    await world.says("again", phase="Finished", succeeded=3)
    await world.api.call("DELETE", f"{JOBS}/again?propagationPolicy=Background")
    await world.cordon("n00000", cordoned=True)
    await world.job("again", 3, group=False)
    await world.waiting("again", 3, "needed 3, available in the cluster: 2")
    await world.says("again", phase="Scheduling", scheduled=0, succeeded=0, Scheduled="False")
    await world.cordon("n00000", cordoned=False)
    await world.running("again", 3)
    await world.api.call("DELETE", f"{JOBS}/again?propagationPolicy=Background")
    await world.says("again", phase="Pending", scheduled=0, Scheduled="False")


@nodes(3)
async def test_a_gang_that_was_preempted_waits_and_has_not_failed(world: World) -> None:
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}}
    await world.api.create(CLASSES, {**high, "value": 1000})
    await world.job("low", 3)
    await world.running("low", 3)
    await world.job("high", 2, priority="high")
    await world.running("high", 2)
    await world.waiting("low", 3, "needed 3, available in the cluster: 1")
    await world.says("low", phase="Scheduling", scheduled=0, Scheduled="False", DisruptionTarget="True")
    assert await world.notes("low", "GangEvicted") == ["3 of 3 members were evicted by rule priority for default/high"]
    await world.ends(*await world.names("high", "Running"))
    await world.running("low", 3)
    await world.says("low", phase="Running", scheduled=3, Scheduled="True", DisruptionTarget="False")
