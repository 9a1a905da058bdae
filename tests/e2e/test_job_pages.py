# SPDX-License-Identifier: Apache-2.0
"""What docs/gangs.md, docs/jobs.md and examples/jobs show, on a real API server with the real controllers."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordpy.api import keys
from tests.docs.test_gangs import BLOCKS as GANGS
from tests.docs.test_gangs import TEXT
from tests.docs.test_jobs import BLOCKS as JOBS_PAGE
from tests.docs.test_jobs import PAGE
from tests.e2e.assets import REPOSITORY
from tests.e2e.client import Client, pod_manifest, pods_path
from tests.e2e.conftest import CRDS
from tests.e2e.controlplane import ControlPlane
from tests.e2e.kubelets import kubelets
from tests.e2e.test_gang_defaults import BLOCK, JOBS, make_blocks
from tests.e2e.test_job_lives import World
from tests.e2e.test_preemption import EVENTS, scheduler
from tests.e2e.test_scheduler import GROUPS, TOPOLOGIES

EXAMPLE = REPOSITORY / "examples" / "jobs" / "train.yaml"
SETS = "/apis/apps/v1/namespaces/default/statefulsets"
SERVICES = "/api/v1/namespaces/default/services"
Json = dict[str, Any]
pytestmark = pytest.mark.controllers


@pytest.fixture
async def api(api: Client) -> AsyncIterator[Client]:
    """Six nodes of 8 GPUs, of which the last four are in one block."""
    await api.apply_crds(CRDS)
    await make_blocks(api)
    room = {"cpu": "96", "memory": "1Ti", "pods": "20", "nvidia.com/gpu": "8"}
    await api.make_nodes(6, labels=lambda i: {BLOCK: "whole" if i > 1 else f"b{i}"}, allocatable=room)
    yield api
    for path in (f"{JOBS}?propagationPolicy=Background", f"{SETS}?propagationPolicy=Background"):
        await api.delete(path)
    for path in (f"{SERVICES}/train", GROUPS, TOPOLOGIES, EVENTS):
        await api.delete(path)


@pytest.fixture
async def world(api: Client, plane: ControlPlane, tmp_path: Path) -> AsyncIterator[World]:
    async with scheduler(plane, tmp_path) as process, kubelets(api) as nodes:
        yield World(api, process, nodes)


async def kubectl(plane: ControlPlane, *words: str, manifest: str | None = None) -> str:
    return await asyncio.to_thread(plane.kubectl, *words, stdin=manifest)


async def placed(world: World, name: str) -> dict[str, tuple[str, str]]:
    """Index of each pod -> its rank and block."""
    blocks = {f"n{i:05d}": "whole" if i > 1 else f"b{i}" for i in range(6)}
    found = {}
    for pod in await world.pods(name):
        notes = pod["metadata"]["annotations"]
        found[notes[keys.JOB_COMPLETION_INDEX]] = notes[keys.BOUND_RANK], blocks[pod["spec"]["nodeName"]]
    return found


async def test_the_example_runs_in_one_block_with_ranks_names_and_its_status(world: World, plane: ControlPlane) -> None:
    await kubectl(plane, "apply", "-f", str(EXAMPLE))
    await kubectl(plane, "wait", "--for=condition=Scheduled", "podgroup/train", "--timeout=60s")
    await world.running("train", 4)
    assert await placed(world, "train") == {str(i): (str(i), "whole") for i in range(4)}
    pods = await world.pods("train")
    assert {pod["spec"]["hostname"] for pod in pods} == {f"train-{i}" for i in range(4)}
    assert {pod["spec"]["subdomain"] for pod in pods} == {"train"}
    await world.says("train", phase="Running", running=4)
    shown, page = (
        [re.split(r"\s{2,}", line.strip()) for line in text.strip().splitlines()]
        for text in (
            await kubectl(plane, "get", "podgroup", "train"),
            re.findall(r"^    \$ kubectl get podgroup train\n((?:    .*\n)+)", TEXT, re.M)[0],
        )
    )
    assert shown[0] == page[0]
    assert shown[1][:-1] == page[1][:-1]


@pytest.mark.parametrize("kept", [True, False], ids=["with the policy", "without it"])
async def test_evicted_pods_are_failures_of_a_job_without_the_policy(
    world: World, plane: ControlPlane, kept: bool
) -> None:
    *others, job = yaml.safe_load_all(EXAMPLE.read_text(encoding="utf-8"))
    if not kept:
        job["spec"] |= {
            "podFailurePolicy": None,
            "backoffLimitPerIndex": None,
            "maxFailedIndexes": None,
            "backoffLimit": 2,
        }
    await kubectl(plane, "apply", "-f", "-", manifest=yaml.safe_dump_all([*others, job]))
    for name in (before := await world.running("train", 4)):
        review = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        await world.api.create(f"{pods_path()}/{name}/eviction", review)
    if not kept:
        await world.job_is("train", "Failed")
        return

    async def made_again() -> bool:
        names = await world.names("train", "Running")
        return len(names) == 4 and not set(names) & set(before)

    await world.until("four others run", made_again)
    status = (await world.api.get(f"{JOBS}/train"))["status"]
    assert status.get("failed", 0) == 0 and not status.get("failedIndexes")
    assert await placed(world, "train") == {str(i): (str(i), "whole") for i in range(4)}


@pytest.mark.parametrize(("name", "count"), [("train", 4), ("small", 2)])
async def test_the_gangs_of_the_page_start_gathered(world: World, plane: ControlPlane, name: str, count: int) -> None:
    await kubectl(plane, "apply", "-f", "-", manifest=GANGS[f"{name}.yaml"])
    await world.running(name, count)
    wanted = "whole" if count > 2 else (await placed(world, name))["0"][1]
    assert await placed(world, name) == {str(i): (str(i), wanted) for i in range(count)}


@pytest.mark.usefixtures("api")
async def test_an_api_server_takes_every_manifest_of_the_pages(plane: ControlPlane) -> None:
    for name in ("pipeline.yaml", "server.yaml"):
        await kubectl(plane, "apply", "--dry-run=server", "-f", "-", manifest=GANGS[name])
    pod = pod_manifest("rank", scheduler="koord-scheduler")
    pod["spec"]["containers"][0] |= yaml.safe_load(GANGS["rank.yaml"])
    await kubectl(plane, "apply", "--dry-run=server", "-f", "-", manifest=yaml.safe_dump(pod))


async def test_the_pod_group_goes_with_the_job_that_owns_it(world: World, plane: ControlPlane) -> None:
    (command,) = re.findall(r"^    (kubectl patch podgroup .*\n.*\n)", PAGE.read_text(encoding="utf-8"), re.M)
    await kubectl(plane, "apply", "-f", "-", manifest=GANGS["train.yaml"])
    await world.running("train", 4)
    path = f"{plane.assets}:{os.environ['PATH']}"
    environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig()), "PATH": path}
    await asyncio.to_thread(subprocess.run, ["sh", "-c", command], env=environment, check=True, timeout=60)
    await kubectl(plane, "delete", "job", "train", "--wait=false")

    async def gone() -> bool:
        return not await world.api.items(GROUPS)

    await world.until("the PodGroup is gone", gone)


@pytest.mark.parametrize("policy", ["Parallel", "OrderedReady"])
async def test_a_stateful_set_has_to_make_its_pods_at_once(world: World, plane: ControlPlane, policy: str) -> None:
    group, made = yaml.safe_load_all(JOBS_PAGE["server.yaml"])
    assert made["spec"]["podManagementPolicy"] == "Parallel"
    made["spec"]["podManagementPolicy"] = policy
    await kubectl(plane, "apply", "-f", "-", manifest=yaml.safe_dump_all([group, made]))
    if policy == "Parallel":
        await world.says("server", phase="Running", running=4)
        return
    text = "waiting for members, 1 of minMember 4 exist"

    async def told() -> bool:
        pods = await world.api.items(pods_path())
        said = [one.get("message", "") for pod in pods for one in pod["status"].get("conditions", ())]
        return len(pods) == 1 and any(text in message for message in said)

    await world.until(text, told)
    assert " ".join(text.split()) in " ".join(PAGE.read_text(encoding="utf-8").split())


@pytest.mark.parametrize("group_first", [True, False])
async def test_a_job_that_shrinks_has_lost_members_unless_its_minimum_went_first(
    world: World, plane: ControlPlane, group_first: bool
) -> None:
    await kubectl(plane, "apply", "-f", "-", manifest=GANGS["train.yaml"])
    await world.running("train", 4)
    await world.says("train", phase="Running", scheduled=4)
    if group_first:
        await world.minimum("train", 2)
    await world.api.patch(f"{JOBS}/train", {"spec": {"parallelism": 2}})
    await world.running("train", 2)
    if not group_first:
        await world.says("train", scheduled=2, Stale="True")
        await world.minimum("train", 2)
        await world.says("train", Stale="False")
    await world.says("train", scheduled=2, Scheduled="True")
    assert bool(await world.notes("train", "GangDegraded")) is not group_first
