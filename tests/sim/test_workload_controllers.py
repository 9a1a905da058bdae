# SPDX-License-Identifier: Apache-2.0
"""Jobs and JobSets on the embedded API server: their pods are made, kept, counted and taken along."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordpy.apiserver.embedded_server import ApiServer
from koordpy.apiserver.fake_kubelet import FakeKubelet
from koordpy.apiserver.workload_controllers import JOBS, JOBSETS, WorkloadControllers
from tests.sim.client import Client

EXAMPLES = Path(__file__).parents[2] / "examples" / "workloads"


def example(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8"))
    return found


@pytest.fixture
async def controllers(server: ApiServer) -> AsyncIterator[WorkloadControllers]:
    found = WorkloadControllers(server.store)
    with closing(FakeKubelet(server.store)):
        yield found
    found.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the state is a plain mapping
            await asyncio.sleep(0.01)


def names(server: ApiServer) -> set[str]:
    """Of pods, without their random endings."""
    return {one["metadata"]["name"].rpartition("-")[0] for one in server.store.list("pods")}


def pod_of(server: ApiServer, job: str, index: int) -> dict[str, Any]:
    (found,) = (
        one
        for one in server.store.list("pods")
        if re.fullmatch(f"{job}-{index}-[a-z0-9]{{5}}", one["metadata"]["name"])
    )
    return found


async def bind_all(server: ApiServer, client: Client) -> None:
    for one in server.store.list("pods"):
        if "nodeName" not in one["spec"]:
            await client.bind(one["metadata"]["name"], "n1")


def end(server: ApiServer, name: str, phase: str) -> None:
    server.store.update("pods", name, lambda old: {**old, "status": {**old["status"], "phase": phase}}, status=True)


WORKERS = {f"train-{i}" for i in range(4)}


async def a_later_job_has_its_pods(server: ApiServer) -> None:
    """All Jobs of a namespace are kept together: what was to become of the others has come to pass by now."""
    job = example("job")
    job["metadata"]["name"] = "later"
    server.store.create(JOBS, job)
    await until(lambda: names(server) >= {f"later-{i}" for i in range(4)})


async def test_pods_of_a_job_are_its_own_and_are_made_again(
    server: ApiServer, controllers: WorkloadControllers
) -> None:
    job = server.store.create(JOBS, example("job"))
    await until(lambda: names(server) == WORKERS)
    pod = pod_of(server, "train", 2)
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Job", "train", job["metadata"]["uid"])
    assert pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] == "2"
    assert pod["spec"]["containers"][0]["image"] == "example/train:1"
    server.store.delete("pods", pod["metadata"]["name"])
    await until(lambda: names(server) == WORKERS)
    assert pod_of(server, "train", 2)["metadata"]["name"] != pod["metadata"]["name"]
    server.store.update(JOBS, "train", lambda old: {**old, "spec": {**old["spec"], "suspend": True}})
    await until(lambda: not names(server))
    server.store.update(JOBS, "train", lambda old: {**old, "spec": {**old["spec"], "suspend": False}})
    await until(lambda: names(server) == WORKERS)
    server.store.delete(JOBS, "train")
    await until(lambda: not names(server))


async def test_a_job_ends_with_its_pods(server: ApiServer, client: Client, controllers: WorkloadControllers) -> None:
    server.store.create(JOBS, example("job"))
    await until(lambda: names(server) == WORKERS)
    await bind_all(server, client)
    for one in server.store.list("pods"):
        end(server, one["metadata"]["name"], "Succeeded")
    await until(lambda: "completionTime" in (server.store.get(JOBS, "train").get("status") or {}))
    status = server.store.get(JOBS, "train")["status"]
    assert (status["succeeded"], status["active"], status["completedIndexes"]) == (4, 0, "0,1,2,3")
    assert status["conditions"][-1]["type"] == "Complete"
    await a_later_job_has_its_pods(server)
    assert names(server) > WORKERS


async def test_workers_of_a_jobset_come_when_the_driver_is_ready(
    server: ApiServer, client: Client, controllers: WorkloadControllers
) -> None:
    jobset = server.store.create(JOBSETS, example("jobset"))
    await until(lambda: names(server) == {"multislice-driver-0-0"})
    assert [one["metadata"]["name"] for one in server.store.list(JOBS)] == ["multislice-driver-0"]
    await bind_all(server, client)
    await until(lambda: len(names(server)) == 9)
    for job in server.store.list(JOBS):
        assert job["metadata"]["ownerReferences"][0]["uid"] == jobset["metadata"]["uid"]
    pod = pod_of(server, "multislice-workers-1", 3)
    job = server.store.get(JOBS, "multislice-workers-1")
    assert pod["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert pod["metadata"]["labels"]["jobset.sigs.k8s.io/job-index"] == "1"
    await bind_all(server, client)
    ready = {"driver": 1, "workers": 2}
    await until(
        lambda: (
            {
                one["name"]: one["ready"]
                for one in server.store.get(JOBSETS, "multislice")["status"]["replicatedJobsStatus"]
            }
            == ready
        )
    )
    server.store.delete(JOBSETS, "multislice")
    await until(lambda: not server.store.list(JOBS) and not names(server))


async def test_what_cannot_be_read_is_told_in_an_event(server: ApiServer, controllers: WorkloadControllers) -> None:
    job = example("job")
    del job["spec"]["completions"]
    server.store.create(JOBS, job)
    await until(lambda: bool(server.store.list("events")))
    (event,) = server.store.list("events")
    assert event["involvedObject"]["name"] == "train" and "completions: required" in event["message"]
    assert not names(server)


async def test_a_jobset_that_failed_ends_its_other_jobs(
    server: ApiServer, client: Client, controllers: WorkloadControllers
) -> None:
    jobset = example("jobset")
    driver, workers = jobset["spec"]["replicatedJobs"]
    workers.pop("dependsOn")
    driver["template"]["spec"]["backoffLimit"] = 0
    server.store.create(JOBSETS, jobset)
    await until(lambda: len(names(server)) == 9)
    await bind_all(server, client)
    name = pod_of(server, "multislice-driver-0", 0)["metadata"]["name"]
    await until(lambda: server.store.get("pods", name).get("status", {}).get("phase") == "Running")
    end(server, name, "Failed")
    await until(lambda: [one["metadata"]["name"] for one in server.store.list(JOBS)] == ["multislice-driver-0"])
    await until(lambda: names(server) == {"multislice-driver-0-0"})
    assert server.store.get(JOBSETS, "multislice")["status"]["terminalState"] == "Failed"


@pytest.mark.parametrize("in_query", [True, False])
async def test_orphans_stay(
    server: ApiServer, client: Client, controllers: WorkloadControllers, in_query: bool
) -> None:
    server.store.create(JOBS, example("job"))
    await until(lambda: names(server) == WORKERS)
    path, policy = "/apis/batch/v1/namespaces/default/jobs/train", {"propagationPolicy": "Orphan"}
    await client.call("DELETE", f"{path}?propagationPolicy=Orphan" if in_query else path, None if in_query else policy)
    await a_later_job_has_its_pods(server)
    assert names(server) > WORKERS
    assert not any(pod_of(server, "train", i)["metadata"].get("ownerReferences") for i in range(4))


async def test_too_many_pods_are_told_with_the_field_that_asks_for_them(
    server: ApiServer, controllers: WorkloadControllers
) -> None:
    job = example("job")
    job["spec"] |= {"parallelism": 100_001, "completions": 100_001}
    server.store.create(JOBS, job)
    await until(lambda: bool(server.store.list("events")))
    (event,) = server.store.list("events")
    assert event["message"] == "spec.parallelism: makes 100001 pods, 100000 at most"
