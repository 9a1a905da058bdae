# SPDX-License-Identifier: Apache-2.0
"""A node of two running gangs dies: the missing members of one come back beside the others, the other gang moves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest

from koordpy.api import keys
from tests.e2e.client import Client, Json, condition
from tests.e2e.dumped import dump, offline, planned
from tests.realnode.cluster import RealCluster
from tests.realnode.work import Work, container, pod, pod_group, pod_spec, running

SIZE = 6
SMALL, LARGE = 80, 300
"""Thousandths of a CPU of a member of gang `stays` and of gang `moves`."""
HALF = SIZE // 2
SLACK = HALF * SMALL + SMALL // 2
"""Room for the missing members of gang `stays`, and not for a member of gang `moves` beside them."""
REPAIR = {"lostAfter": "1s"}
INDEX = keys.JOB_COMPLETION_INDEX
BOUND_WITHIN_S = 15


@pytest.fixture
async def work(cluster: RealCluster, api: Client, tmp_path: Path) -> AsyncIterator[Work]:
    """koordpy counts a member as lost, and moves a gang, sooner than by default."""
    async with Work(cluster, api, tmp_path, config={"repair": REPAIR, "staleGangs": {"grace": "3s"}}) as working:
        yield working


def gang(name: str, cpu: int, policy: str) -> list[Json]:
    """A PodGroup and an indexed Job in one block; its pods are deleted soon after their node is unreachable."""
    gather = {"gatherStrategy": [{"layer": "blockLayer", "strategy": "MustGather"}]}
    notes = {keys.GANG_TOPOLOGY: json.dumps(gather), keys.GANG_REPAIR: policy}
    away = [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2}
        for key in ("unreachable", "not-ready")
    ]
    spec = pod_spec(container(requests={"cpu": f"{cpu}m"}), restartPolicy="Never", tolerations=away)
    template = {"metadata": {"labels": {keys.LABEL_POD_GROUP: name}}, "spec": spec}
    # Counted for all indexes together, the pods that are lost and evicted would delay their successors for minutes.
    indexed = {"completionMode": "Indexed", "completions": SIZE, "parallelism": SIZE, "backoffLimitPerIndex": SIZE}
    return [
        pod_group(name, SIZE, notes),
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name},
            "spec": {**indexed, "template": template},
        },
    ]


def hosts(pods: Iterable[Json]) -> dict[int, str]:
    """Rank -> node of bound pods. The rank of each is the index that its Job gave it."""
    found = {}
    for one in pods:
        rank, index = one["metadata"]["annotations"][keys.BOUND_RANK], one["metadata"]["labels"][INDEX]
        assert rank == index, one["metadata"]["name"]
        found[int(rank)] = one["spec"]["nodeName"]
    return found


def seconds_until_bound(one: Json) -> float:
    """From the creation of a pod to its Binding."""
    scheduled = condition(one, "PodScheduled")
    assert scheduled is not None
    bound, created = scheduled["lastTransitionTime"], one["metadata"]["creationTimestamp"]
    return (datetime.fromisoformat(bound) - datetime.fromisoformat(created)).total_seconds()


async def members(work: Work, name: str) -> list[Json]:
    """Pods of a gang that are neither gone nor going."""
    found = (await work.pods()).values()
    own = [one for one in found if one["metadata"].get("labels", {}).get(keys.LABEL_POD_GROUP) == name]
    return [one for one in own if not one["metadata"].get("deletionTimestamp")]


async def gang_runs(work: Work, name: str, on: set[str], *, within_s: float) -> dict[int, str]:
    """Waits until all members of a gang run on nodes of a set; rank -> node."""

    async def all_run() -> list[Json]:
        own = await members(work, name)
        right = [one for one in own if running(one) and one["spec"]["nodeName"] in on]
        return right if len(own) == len(right) == SIZE else []

    return hosts(await work.until(f"all members of {name} run on {', '.join(sorted(on))}", all_run, within_s=within_s))


async def told(work: Work, reason: str, name: str) -> bool:
    """Whether an event of a reason is on a gang or on a member of it."""
    found = await work.api.items(f"/apis/events.k8s.io/v1/namespaces/{work.namespace}/events")
    about = [one["regarding"]["name"] for one in found if one.get("reason") == reason]
    return any(one == name or one.startswith(f"{name}-") for one in about)


async def test_missing_members_come_back_in_their_domain_and_without_room_the_gang_moves(
    work: Work, blocks: dict[str, str], tmp_path: Path
) -> None:
    free = (await work.api.get("/api/v1/nodes/n1"))["status"]["allocatable"]["cpu"]
    total = int(free.removesuffix("m")) if free.endswith("m") else int(free) * 1000
    kept = HALF * (SMALL + LARGE)
    # what remains on n1 and n3 once fillers are gone decides where each gang goes
    fillers = {
        ("n1", "large"): HALF * LARGE,
        ("n3", "large"): HALF * LARGE,
        ("n1", "slack"): SLACK,
        ("n1", "rest"): total - kept - SLACK,
        ("n3", "rest"): total - kept,
    }
    named = {f"{what}-{node}": (node, cpu) for (node, what), cpu in fillers.items()}
    work.apply(
        *(pod(name, pod_spec(container(requests={"cpu": f"{cpu}m"}), on=node)) for name, (node, cpu) in named.items())
    )
    await work.run(named)
    dead = work.cluster.nodes["n3"]
    await work.api.patch("/api/v1/nodes/n2", {"spec": {"unschedulable": True}})
    try:
        work.apply(*gang("stays", SMALL, "replace"))
        stayed = await gang_runs(work, "stays", {"n1", "n3"}, within_s=60)
        await work.delete("large-n1", "large-n3")
        work.apply(*gang("moves", LARGE, "regather"))
        moved = await gang_runs(work, "moves", {"n1", "n3"}, within_s=60)
        for before in (stayed, moved):
            assert sorted(before.values()) == ["n1"] * HALF + ["n3"] * HALF
        await work.delete("slack-n1")
    finally:
        await work.api.patch("/api/v1/nodes/n2", {"spec": {"unschedulable": None}})
    dumped = await dump(work.api)
    old = set(await work.pods())

    dead.kill()
    try:
        # the kubelet's Lease lapses, the pods are deleted, their Job makes others
        after = await gang_runs(work, "stays", {"n1"}, within_s=90)
        assert {rank: node for rank, node in stayed.items() if node == "n1"}.items() <= after.items()
        new = [one for one in await members(work, "stays") if one["metadata"]["name"] not in old]
        assert len(new) == HALF
        waited = {one["metadata"]["name"]: seconds_until_bound(one) for one in new}
        assert max(waited.values()) <= BOUND_WITHIN_S, waited

        assert set((await gang_runs(work, "moves", {"n2"}, within_s=90)).values()) == {"n2"}
        for reason, name in (("GangRepaired", "stays"), ("GangDegraded", "moves"), ("Moved", "moves")):
            await work.until(f"an event {reason} of {name}", partial(told, work, reason, name), within_s=30)
    finally:
        await asyncio.to_thread(work.cluster.boot, dead)

    simulated = offline("simulate", dumped, tmp_path, "--fail", "n3@1", config={"repair": REPAIR})
    index = {one["metadata"]["name"]: one["metadata"].get("labels", {}).get(INDEX) for one in dumped["items"]}
    said = {
        int(index[name]): node
        for key, (node, _) in planned(simulated).items()
        if (name := key.rpartition("/")[2]).startswith("stays-")
    }
    assert said == {rank: node for rank, node in after.items() if stayed[rank] == "n3"}
