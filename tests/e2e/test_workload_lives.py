# SPDX-License-Identifier: Apache-2.0
"""Jobs and sets of pods without a PodGroup or a label through what happens to them, with the controllers of Kubernetes:
gangs follow from them, whole starts and all, whatever becomes of koordpy in the middle (workloads.md 5 and 11)."""

from __future__ import annotations

from typing import Any

import pytest

from koordpy.api import keys
from tests.e2e.acts import Act, Play, play, played
from tests.e2e.client import Json
from tests.e2e.kubelets import on_node
from tests.e2e.test_gang_defaults import JOBS

__all__ = ["play"]
pytestmark = pytest.mark.controllers
SETS, DEPLOYMENTS = "/apis/apps/v1/namespaces/default/statefulsets", "/apis/apps/v1/namespaces/default/deployments"


def template(notes: dict[str, str] | None = None, **labels: str) -> Json:
    resources = {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}
    container = {"name": "main", "image": "example/train:1", "resources": resources}
    spec = {"schedulerName": keys.DEFAULT_SCHEDULER_NAME, "terminationGracePeriodSeconds": 1, "containers": [container]}
    return {"metadata": {"labels": labels, "annotations": notes or {}}, "spec": spec}


async def job(act: Act, name: str, size: int, *, notes: dict[str, str] | None = None, **spec: Any) -> None:
    """An Indexed Job of completions = parallelism, unless the spec says otherwise."""
    pod = template()
    pod["spec"]["restartPolicy"] = "Never"
    body = {"completionMode": "Indexed", "parallelism": size, "completions": size, "backoffLimit": 50, **spec}
    meta = {"name": name, "annotations": notes or {}}
    await act.create(
        JOBS, {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {**body, "template": pod}}
    )


async def change(act: Act, name: str, **spec: Any) -> None:
    await act.patch(f"{JOBS}/{name}", **spec)


async def one_starts_whole_when_the_other_ends(act: Act) -> None:
    await job(act, "first", 3)
    running = await act.running("first", 3)
    await act.amid(job(act, "second", 4))
    await act.waiting("second", 4, f"gang {act.namespace}/second: needed 4, available in the cluster: 2")
    # an index fails and is tried again beside those that run
    await act.amid(act.ends(running[0], phase="Failed"))
    again = await act.running("first", 3)
    assert set(running[1:]) < set(again)
    # one succeeds, its pod is deleted: nobody is evicted, and there is room for three of the other
    await act.ends(again[0])
    await act.amid(act.delete(again[0]))
    await act.waiting("second", 4, f"gang {act.namespace}/second: needed 4, available in the cluster: 3")
    assert await act.names("first", "Running") == again[1:]
    await act.amid(act.ends(again[1]))
    assert await act.running("second", 4)
    await act.ends(again[2])
    await act.job_is("first", "Complete")

    async def told() -> bool:
        notes = await act.told("Job", "second", "GangScheduled")
        return any(note.endswith(": 4 members of Job second (Indexed, parallelism 4)") for note in notes)

    await act.until("the Job is told of its start", told)


async def suspended_resumed_scaled_and_made_again(act: Act) -> None:
    await job(act, "life", 3)
    before = await act.running("life", 3)
    await act.amid(change(act, "life", suspend=True))
    await act.running("life", 0)
    await act.amid(change(act, "life", suspend=False))
    assert set(await act.running("life", 3)).isdisjoint(before)
    await act.amid(change(act, "life", parallelism=4, completions=4))
    await act.running("life", 4)
    await act.amid(change(act, "life", parallelism=2, completions=2))
    await act.running("life", 2)

    async def made_again() -> None:
        await act.remove(f"{JOBS}/life")
        await job(act, "life", 4)

    await act.amid(made_again())
    await act.running("life", 4)


async def waves_of_a_job_that_asks_are_whole(act: Act) -> None:
    await job(act, "wave", 2, completions=5, notes={keys.GANG_AUTO: "on"})
    done = 0
    while done < 5:
        running = await act.running("wave", min(2, 5 - done))
        await act.amid(act.ends(*running))
        done += len(running)
    await act.job_is("wave", "Complete")


async def a_member_waits_for_what_its_job_makes_alone(act: Act) -> None:
    await job(act, "large", 3)
    await act.waiting("large", 3, f"gang {act.namespace}/large: needed 3, available in the cluster: 2")
    await act.amid(change(act, "large", parallelism=2, completions=2))
    await act.running("large", 2)
    # independent tasks are no gang
    await act.remove(f"{JOBS}/large")
    await act.amid(job(act, "tasks", 3, notes={keys.GANG_AUTO: "off"}))

    async def two_run() -> bool:
        return len(await act.names("tasks", "Running")) == 2

    await act.until("two tasks run", two_run)


async def a_deleted_pod_comes_back_alone(act: Act) -> None:
    await job(act, "wide", 4)
    first, *others = await act.running("wide", 4)
    await act.amid(act.delete(first))
    first, *others = sorted(await act.running("wide", 4), key=lambda name: name in others)
    # the next one finds its node cordoned
    pods = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in await act.pods("wide")}
    await act.cordon(pods[first], cordoned=True)
    await act.amid(act.delete(first))
    await act.waiting("wide", 1, "needed 1, available in the cluster: 0")
    assert set(await act.names("wide", "Running")) == set(others)
    await act.amid(act.cordon(pods[first], cordoned=False))
    assert set(others) < set(await act.running("wide", 4))


async def sets_of_pods_that_ask(act: Act) -> None:
    spec = {
        "replicas": 3,
        "serviceName": "s",
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {"app": "db"}},
        "template": template({keys.GANG_AUTO: "on"}, app="db"),
    }
    await act.create(SETS, {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"}, "spec": spec})
    await act.running("app=db", 3)
    least = {keys.GANG_MIN: "2"}
    web = {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template(least, app="web")}
    made = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": web}
    await act.amid(act.create(DEPLOYMENTS, made))
    await act.waiting("app=web", 2, "needed 2, available in the cluster: 0")
    await act.amid(act.patch(f"{SETS}/db", replicas=2))
    await act.waiting("app=web", 2, "needed 2, available in the cluster: 1")
    assert not [pod for pod in await act.pods("app=web") if on_node(pod)]
    await act.amid(act.patch(f"{SETS}/db", replicas=1))
    await act.running("app=web", 2)


@played()
async def test_jobs_and_sets_live_on_whatever_becomes_of_koordpy(play: Play) -> None:
    await play.run(
        {
            "index": (5, one_starts_whole_when_the_other_ends),
            "life": (4, suspended_resumed_scaled_and_made_again),
            "waves": (5, waves_of_a_job_that_asks_are_whole),
            "alone": (2, a_member_waits_for_what_its_job_makes_alone),
            "hole": (4, a_deleted_pod_comes_back_alone),
            "sets": (3, sets_of_pods_that_ask),
        }
    )
