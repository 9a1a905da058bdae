"""Jobs without a PodGroup or a label through what happens to Jobs, with the controllers of Kubernetes: gangs follow
from them, whole starts and all (workloads.md 5 and 11)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from koordpy.api import keys
from tests.e2e.client import Json, pods_path
from tests.e2e.kubelets import on_node, phase_of
from tests.e2e.test_gang_defaults import JOBS
from tests.e2e.test_job_lives import World, api, nodes, world
from tests.e2e.test_preemption import EVENTS

__all__ = ["api", "world"]
pytestmark = pytest.mark.controllers
SETS, DEPLOYMENTS = "/apis/apps/v1/namespaces/default/statefulsets", "/apis/apps/v1/namespaces/default/deployments"


def template(notes: dict[str, str] | None = None, **labels: str) -> Json:
    resources = {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}
    container = {"name": "main", "image": "example/train:1", "resources": resources}
    spec = {"schedulerName": keys.DEFAULT_SCHEDULER_NAME, "terminationGracePeriodSeconds": 1, "containers": [container]}
    return {"metadata": {"labels": labels, "annotations": notes or {}}, "spec": spec}


async def job(world: World, name: str, size: int, *, notes: dict[str, str] | None = None, **spec: Any) -> None:
    """An Indexed Job of completions = parallelism, unless the spec says otherwise."""
    pod = template()
    pod["spec"]["restartPolicy"] = "Never"
    body = {"completionMode": "Indexed", "parallelism": size, "completions": size, "backoffLimit": 50, **spec}
    meta = {"name": name, "annotations": notes or {}}
    manifest = {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {**body, "template": pod}}
    await world.api.create(JOBS, manifest)


async def said_of(world: World, name: str) -> list[str]:
    """Notes of events on a Job."""
    return [
        event["note"]
        for event in await world.api.items(EVENTS)
        if (event["regarding"].get("kind"), event["regarding"].get("name")) == ("Job", name)
        and event["reason"].startswith("Gang")
    ]


async def change(world: World, name: str, **spec: Any) -> None:
    await world.api.patch(f"{JOBS}/{name}", {"spec": spec})


@nodes(5)
async def test_an_indexed_job_starts_whole_and_its_end_is_waited_for_by_nobody(world: World) -> None:
    await job(world, "first", 3)
    running = await world.running("first", 3)
    await job(world, "second", 4)
    await world.waiting("second", 4, "gang default/second: needed 4, available in the cluster: 2")
    # an index fails and is tried again beside those that run
    await world.ends(running[0], phase="Failed")
    again = await world.running("first", 3)
    assert set(running[1:]) < set(again)
    # two succeed, their pods are deleted: nobody is evicted, and room for the other is not enough yet
    await world.ends(*again[:2])
    await world.waiting("second", 4, "gang default/second: needed 4")
    await world.delete(*again[:2])
    assert await world.running("second", 4)
    (last,) = await world.names("first", "Running")
    await world.ends(last)
    await world.job_is("first", "Complete")

    async def told() -> bool:
        notes = await said_of(world, "second")
        return any(note.endswith(": 4 members of Job second (Indexed, parallelism 4)") for note in notes)

    await world.until("the Job is told of its start", told)


@nodes(4)
@pytest.mark.parametrize("killed", [False, True])
async def test_suspended_resumed_scaled_and_made_again(world: World, killed: bool) -> None:
    async def perhaps_killed() -> None:
        if killed:
            await asyncio.to_thread(world.process.kill)
            world.process.start()

    await job(world, "life", 3)
    before = await world.running("life", 3)
    await change(world, "life", suspend=True)
    await world.running("life", 0)
    await perhaps_killed()
    await change(world, "life", suspend=False)
    assert set(await world.running("life", 3)).isdisjoint(before)
    await change(world, "life", parallelism=4, completions=4)
    await perhaps_killed()
    await world.running("life", 4)
    await change(world, "life", parallelism=2, completions=2)
    await world.running("life", 2)
    await perhaps_killed()
    await world.api.call("DELETE", f"{JOBS}/life?propagationPolicy=Background")
    await job(world, "life", 4)
    await world.running("life", 4)


@nodes(5)
async def test_waves_of_a_job_that_asks_are_whole(world: World) -> None:
    await job(world, "wave", 2, completions=5, notes={keys.GANG_AUTO: "on"})
    done = 0
    while done < 5:
        running = await world.running("wave", min(2, 5 - done))
        await world.ends(*running)
        done += len(running)
    await world.job_is("wave", "Complete")


@nodes(2)
async def test_a_member_waits_for_what_its_job_makes_alone(world: World) -> None:
    await job(world, "large", 3)
    await world.waiting("large", 3, "gang default/large: needed 3, available in the cluster: 2")
    await change(world, "large", parallelism=2, completions=2)
    await world.running("large", 2)
    # independent tasks are no gang
    await world.api.call("DELETE", f"{JOBS}/large?propagationPolicy=Foreground")
    await job(world, "tasks", 3, notes={keys.GANG_AUTO: "off"})

    async def two_run() -> bool:
        return len([pod for pod in await world.pods("tasks") if phase_of(pod) == "Running"]) == 2

    await world.until("two tasks run", two_run)


@nodes(3)
async def test_sets_of_pods_that_ask(world: World) -> None:
    asks = {keys.GANG_AUTO: "on"}
    spec = {
        "replicas": 3,
        "serviceName": "s",
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {"app": "db"}},
        "template": template(asks, app="db"),
    }
    await world.api.create(
        SETS, {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"}, "spec": spec}
    )

    async def on_nodes(app: str) -> int:
        pods = await world.api.items(f"{pods_path()}?labelSelector=app%3D{app}")
        return len([pod for pod in pods if on_node(pod) and not pod["metadata"].get("deletionTimestamp")])

    async def db() -> bool:
        return await on_nodes("db") == 3

    await world.until("the StatefulSet runs", db)
    least = {keys.GANG_MIN: "2"}
    web = {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template(least, app="web")}
    await world.api.create(
        DEPLOYMENTS, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": web}
    )

    async def web_waits() -> bool:
        pods = await world.api.items(f"{pods_path()}?labelSelector=app%3Dweb")
        texts = [one.get("message", "") for pod in pods for one in pod.get("status", {}).get("conditions", ())]
        return len(pods) == 2 and sum("needed 2, available in the cluster: 0" in text for text in texts) == 2

    await world.until("the Deployment waits as a whole", web_waits)
    await world.api.patch(f"{SETS}/db", {"spec": {"replicas": 2}})
    await asyncio.sleep(2)
    assert await on_nodes("web") == 0
    await world.api.patch(f"{SETS}/db", {"spec": {"replicas": 1}})

    async def web_runs() -> bool:
        return await on_nodes("web") == 2

    await world.until("the Deployment runs", web_runs)
    for path in (f"{SETS}/db", f"{DEPLOYMENTS}/web"):
        await world.api.call("DELETE", f"{path}?propagationPolicy=Background")
