# SPDX-License-Identifier: Apache-2.0
"""Room made by evictions on a real API server, with real PodDisruptionBudgets (kube-controller-manager keeps them)."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from koordpy.api import keys
from tests.e2e.client import Client, condition, pod_manifest, pods_path
from tests.e2e.conftest import CRDS
from tests.e2e.controlplane import ControlPlane
from tests.e2e.process import Process, eventually
from tests.e2e.test_scheduler import GROUPS, Json, places, start

BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
QUOTAS = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/elasticquotas"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
_numbers = itertools.count(1)
pytestmark = pytest.mark.controllers


@pytest.fixture
async def api(api: Client) -> AsyncIterator[Client]:
    await api.apply_crds(CRDS)
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}}
    await api.delete(f"{CLASSES}/high")
    await api.create(CLASSES, {**high, "value": 1000})
    yield api
    for path in (BUDGETS, QUOTAS, GROUPS):
        await api.delete(path)


@asynccontextmanager
async def scheduler(plane: ControlPlane, folder: Path, *, config: str = "") -> AsyncIterator[Process]:
    flags = ["--leader-elect=false"]
    if config:
        file = folder / "config.yaml"
        file.write_text(config)
        flags += ["--config", str(file)]
    with start(plane, folder, f"koordpy-{next(_numbers)}", *flags) as process:
        yield process
        assert await asyncio.to_thread(process.stop) == 0


def worker(name: str, *, gang: str = "", high: bool = False, labels: Json | None = None) -> Json:
    found = {**(labels or {}), **({keys.LABEL_POD_GROUP: gang} if gang else {})}
    manifest = pod_manifest(name, scheduler="koord-scheduler", requests={"nvidia.com/gpu": "1"}, labels=found)
    if high:
        manifest["spec"]["priorityClassName"] = "high"
    return manifest


async def make_gang(api: Client, name: str, size: int, *, high: bool = False, labels: Json | None = None) -> None:
    group = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": name}}
    await api.create(GROUPS, {**group, "spec": {"minMember": size}})
    for i in range(size):
        await api.create(pods_path(), worker(f"{name}-{i}", gang=name, high=high, labels=labels))


async def make_nodes(api: Client, count: int) -> None:
    room = {"cpu": "32", "memory": "64Gi", "pods": "50", "nvidia.com/gpu": "4"}
    await api.make_nodes(count, allocatable=room)


async def make_budget(api: Client, name: str, labels: Json, at_least: int) -> None:
    """A budget for bare pods: only numbers that must stay are counted without a controller."""
    spec = {"minAvailable": at_least, "selector": {"matchLabels": labels}}
    await api.create(
        BUDGETS, {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": spec}
    )


async def budget_status(api: Client, name: str) -> Json:
    found: Json = (await api.get(f"{BUDGETS}/{name}")).get("status", {})
    return found


async def make_ready(api: Client) -> None:
    """What kubelets do: pods on nodes run and are ready."""
    for pod in await api.items(pods_path()):
        if pod["spec"].get("nodeName") and pod.get("status", {}).get("phase") != "Running":
            ready = [{"type": "Ready", "status": "True"}]
            status = {"status": {"phase": "Running", "conditions": ready}}
            path = f"{pods_path()}/{pod['metadata']['name']}/status"
            await api.patch(path, status, content="application/strategic-merge-patch+json")


async def names(api: Client, *starts: str) -> set[str]:
    return {n for n in await places(api) if n.startswith(starts)}


async def bound(api: Client, process: Process, *wanted: str) -> None:
    async def all_bound() -> bool:
        return set(wanted) <= set(await places(api))

    await eventually(all_bound, what=f"{', '.join(wanted)} bound", processes=[process])


async def test_a_priority_gang_preempts_exactly_one_gang_and_marks_its_pods(
    api: Client, plane: ControlPlane, tmp_path: Path
) -> None:
    await make_nodes(api, 2)
    async with scheduler(plane, tmp_path) as process:
        for name in ("one", "two"):
            await make_gang(api, name, 4)
        await bound(api, process, *(f"{gang}-{i}" for gang in ("one", "two") for i in range(4)))
        hold = {"metadata": {"finalizers": ["tests.example/hold"]}}
        for name in await names(api, "one", "two"):
            await api.patch(f"{pods_path()}/{name}", hold)
        await make_gang(api, "vip", 3, high=True)

        async def going() -> set[str] | None:
            pods = await api.items(pods_path())
            leaving = {p["metadata"]["name"] for p in pods if p["metadata"].get("deletionTimestamp")}
            return leaving if len(leaving) >= 4 else None

        leaving = await eventually(going, what="a gang goes", processes=[process])
        assert leaving in ({f"one-{i}" for i in range(4)}, {f"two-{i}" for i in range(4)})
        for name in leaving:
            target = condition(await api.get(f"{pods_path()}/{name}"), "DisruptionTarget")
            assert target is not None
            assert (target["status"], target["reason"]) == ("True", "PreemptionByScheduler")
        assert not await names(api, "vip")
        for i in range(3):
            assert (await api.get(f"{pods_path()}/vip-{i}"))["status"]["nominatedNodeName"]
        for name in leaving:
            await api.patch(f"{pods_path()}/{name}", {"metadata": {"finalizers": None}})
        await bound(api, process, "vip-0", "vip-1", "vip-2")
        assert len(await names(api, "one", "two")) == 4
        for name in await names(api, "one", "two"):
            await api.patch(f"{pods_path()}/{name}", {"metadata": {"finalizers": None}})

        async def told() -> bool:
            return {e["reason"] for e in await api.items(EVENTS)} >= {"Preempted", "RoomMade"}

        await eventually(told, what="events", processes=[process])
        logged = process.log.read_text()
        (line,) = re.findall(r"INFO koordpy\.observe\.decision_log gang:default/vip: evicts (.*)", logged)
        (node,) = {node for name, node in (await places(api)).items() if name.startswith("vip")}
        victims = ", ".join(f"default/{name} on {node}" for name in sorted(leaving))
        assert (
            line == f"4 pods by rule priority for default/vip: {victims}; nominates 3 pods to {node} (proof: optimal)"
        )


def told_no(api: Client, name: str) -> Callable[[], Awaitable[bool]]:
    """Whether a pod is told that it has no place."""

    async def told() -> bool:
        said = condition(await api.get(f"{pods_path()}/{name}"), "PodScheduled")
        return said is not None and said["status"] == "False"

    return told


@pytest.mark.parametrize("together", [True, False], ids=["a gang", "pods one by one"])
async def test_a_borrower_gives_back_what_its_owner_asks_for_and_no_more(
    api: Client, plane: ControlPlane, tmp_path: Path, together: bool
) -> None:
    await make_nodes(api, 2)
    for name in ("team-a", "team-b"):
        quota = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota", "metadata": {"name": name}}
        await api.create(QUOTAS, {**quota, "spec": {"min": {"nvidia.com/gpu": 4}, "max": {"nvidia.com/gpu": 8}}})
    async with scheduler(plane, tmp_path) as process:
        for i in range(8):
            await api.create(pods_path(), worker(f"b-{i}", labels={keys.QUOTA_NAME: "team-b"}))
        await bound(api, process, *(f"b-{i}" for i in range(8)))
        if together:
            await make_gang(api, "a", 3, labels={keys.QUOTA_NAME: "team-a"})
        else:
            for i in range(3):
                await api.create(pods_path(), worker(f"a-{i}", labels={keys.QUOTA_NAME: "team-a"}))
                await asyncio.sleep(0.05)
        await bound(api, process, "a-0", "a-1", "a-2")
        await api.create(pods_path(), worker("late", labels={keys.QUOTA_NAME: "team-b"}))
        await eventually(told_no(api, "late"), what="a later round", processes=[process])
        assert len(await names(api, "b-")) == 5


async def test_a_budget_that_allows_nothing_keeps_its_pods_from_reclaim(
    api: Client, plane: ControlPlane, tmp_path: Path
) -> None:
    await make_nodes(api, 1)
    for name in ("team-a", "team-b"):
        quota = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota", "metadata": {"name": name}}
        await api.create(QUOTAS, {**quota, "spec": {"min": {"nvidia.com/gpu": 2}, "max": {"nvidia.com/gpu": 4}}})
    await make_budget(api, "b", {"app": "b"}, 4)
    async with scheduler(plane, tmp_path) as process:
        for i in range(4):
            await api.create(pods_path(), worker(f"b-{i}", labels={keys.QUOTA_NAME: "team-b", "app": "b"}))
        await bound(api, process, *(f"b-{i}" for i in range(4)))
        await make_ready(api)

        async def counted() -> bool:
            return (await budget_status(api, "b")).get("currentHealthy") == 4

        await eventually(counted, what="the budget counts its pods", processes=plane.processes)
        await api.create(pods_path(), worker("a-0", labels={keys.QUOTA_NAME: "team-a"}))
        await eventually(told_no(api, "a-0"), what="the pod is told", processes=[process])
        await api.create(pods_path(), worker("late", labels={keys.QUOTA_NAME: "team-b", "app": "b"}))
        await eventually(told_no(api, "late"), what="a later round", processes=[process])
        assert await names(api, "b-") == {f"b-{i}" for i in range(4)}
        await api.patch(f"{BUDGETS}/b", {"spec": {"minAvailable": 3}})
        await bound(api, process, "a-0")
        assert len(await names(api, "b-")) == 3


async def test_two_users_end_at_equal_shares_and_stay_there(api: Client, plane: ControlPlane, tmp_path: Path) -> None:
    await make_nodes(api, 1)
    async with scheduler(plane, tmp_path, config="fairness: {reclaim: all}\n") as process:
        for i in range(4):
            await api.create(pods_path(), worker(f"bob-{i}", labels={keys.QUOTA_USER: "bob"}))
        await bound(api, process, *(f"bob-{i}" for i in range(4)))
        for i in range(2):
            await api.create(pods_path(), worker(f"alice-{i}", labels={keys.QUOTA_USER: "alice"}))
        await bound(api, process, "alice-0", "alice-1")
        # pods of one second are equally young, so which of them are left is not told; their owner makes the others anew
        left = await names(api, "bob")
        gone = sorted({f"bob-{i}" for i in range(4)} - left)
        assert len(gone) == 2
        for name in gone:
            await api.create(pods_path(), worker(name, labels={keys.QUOTA_USER: "bob"}))
        there = {p["metadata"]["name"]: p["metadata"]["uid"] for p in await api.items(pods_path())}
        for turn in range(50):
            before = await tries(process)
            asks_again = {"metadata": {"labels": {"turn": str(turn)}}}
            await api.patch(f"{pods_path()}/{gone[turn % 2]}", asks_again)

            async def tried_again(before: float = before) -> bool:
                return await tries(process) > before

            await eventually(tried_again, what=f"round {turn}", processes=[process])
        assert await names(api, "alice", "bob") == {"alice-0", "alice-1", *left}
        assert {p["metadata"]["name"]: p["metadata"]["uid"] for p in await api.items(pods_path())} == there


async def tries(process: Process) -> float:
    """How often a pod or gang was tried and found no room."""
    port = re.search(r"health checks and metrics are served on port (\d+)", process.log.read_text())
    assert port is not None
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port[1]}/metrics") as answer:
        text = await answer.text()
    counts = re.findall(r'^scheduler_schedule_attempts_total{.*result="unschedulable".*} (\S+)$', text, re.MULTILINE)
    return sum(float(count) for count in counts)


async def test_a_gang_that_lost_a_member_says_so_and_gives_up_its_room_after_its_grace(
    api: Client, plane: ControlPlane, tmp_path: Path
) -> None:
    await make_nodes(api, 1)
    async with scheduler(plane, tmp_path, config="staleGangs: {enabled: true, grace: 10s}\n") as process:
        await make_gang(api, "g", 3)
        await bound(api, process, "g-0", "g-1", "g-2")
        await api.delete(f"{pods_path()}/g-2")

        async def stale(status: str) -> Json | None:
            said = condition(await api.get(f"{GROUPS}/g"), "Stale")
            return said if said is not None and said["status"] == status else None

        said = await eventually(lambda: stale("True"), what="it says so", processes=[process])
        assert said["message"] == "gang default/g has 2 of 3 members"
        assert await names(api, "g-") == {"g-0", "g-1"}

        async def gone() -> bool:
            return not await names(api, "g-")

        await eventually(gone, what="the gang gives up", processes=[process])
        await eventually(lambda: stale("False"), what="it is over", processes=[process])

        async def told() -> bool:
            events = [e for e in await api.items(EVENTS) if e["reason"] == "StaleGang"]
            return {(e["regarding"]["name"], e["related"]["name"]) for e in events} == {("g-0", "g"), ("g-1", "g")}

        await eventually(told, what="events", processes=[process])
