# SPDX-License-Identifier: Apache-2.0
"""A kubelet with NUMA zones: what koordpy sends is admitted, and without a report koordpy learns from rejections."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from tests.e2e.client import Client, Json, condition
from tests.e2e.process import eventually
from tests.realnode import zones
from tests.realnode.cluster import RealCluster
from tests.realnode.gpus import GPU, GpuNode, gpu_nodes
from tests.realnode.work import Work, container, pod, pod_spec
from tests.realnode.zones import ZONES

NODE = "n1"
SHAPES = ((1, 1), (2, 2), (3, 3), (5, 4), (0, 3))
"""GPUs and CPUs of a pod."""
LARGE = SHAPES[3]
BURST = 40
QUIET_SECONDS = 5.0
REJECTED = "TopologyAffinityError"


def burst() -> list[Json]:
    """40 Guaranteed pods of the shapes, which go on running.

    The first three are large: two of them leave GPUs for a third one in both zones together, and in neither alone.
    """
    chance = random.Random(47)
    rest = [SHAPES[n % len(SHAPES)] for n in range(BURST - 3)]
    chance.shuffle(rest)
    shapes = [LARGE] * 3 + rest
    made = []
    for number, (gpus, cpus) in enumerate(shapes):
        amounts = {"cpu": str(cpus), "memory": "32Mi", **({GPU: str(gpus)} if gpus else {})}
        main = container(requests=amounts, limits=amounts)
        made.append(pod(f"burst-{number}", pod_spec(main, on=NODE, restartPolicy="Never")))
    return made


def shape(seen: Json) -> tuple[int, int]:
    requests = seen["spec"]["containers"][0]["resources"]["requests"]
    return int(requests.get(GPU, 0)), int(requests["cpu"])


def rejected(pods: dict[str, Json]) -> Counter[tuple[int, int]]:
    """Shape -> pods that the kubelet has rejected."""
    failed = [one for one in pods.values() if one["status"]["phase"] == "Failed"]
    assert {one["status"].get("reason") for one in failed} <= {REJECTED}
    return Counter(map(shape, failed))


@pytest.fixture
async def node(cluster: RealCluster, alone: Work, api: Client) -> AsyncIterator[GpuNode]:
    """n1 with zones and the agent; koordpy is not started."""
    (defined,) = await api.define([zones.DEFINITION])
    try:
        async with zones.zoned(cluster, cluster.nodes[NODE]), gpu_nodes(alone, {NODE: zones.MACHINE}) as (found,):
            yield found
    finally:
        await api.remove_definition(defined)


async def settled(work: Work) -> dict[str, Json]:
    """Waits until each pod of the burst is admitted or rejected by its kubelet, or is told why it waits, and no further
    pod is bound for some seconds; the pods. A rejected pod frees what another one may then be bound to."""

    def is_settled(seen: Json) -> bool:
        status = seen["status"]
        return bool(status.get("startTime") or (not seen["spec"].get("nodeName") and message(seen)))

    last: tuple[set[str], float] = set(), 0.0

    async def all_settled() -> bool:
        nonlocal last
        now = await work.pods()
        bound = {name for name, one in now.items() if one["spec"].get("nodeName")}
        if bound != last[0]:
            last = bound, time.monotonic()
        whole = len(now) == BURST and all(map(is_settled, now.values()))
        return whole and time.monotonic() - last[1] >= QUIET_SECONDS

    what = "each pod is admitted, rejected or waits, and none is bound any more"
    await eventually(all_settled, what=what, within_s=180, every_s=0.5, processes=[work.koordpy])
    return await work.pods()


def message(seen: Json) -> str:
    """Why a pod waits."""
    return str((condition(seen, "PodScheduled") or {}).get("message", ""))


async def test_no_pod_of_a_burst_is_rejected_by_a_kubelet_that_reports_its_zones(alone: Work, node: GpuNode) -> None:
    # a koordpy that is started later has read the report before it places pods
    async with zones.reporting(alone.api, node.node):
        with alone.koordpy:
            alone.apply(*burst())
            pods = await settled(alone)
    assert not rejected(pods)
    bound = Counter(shape(one) for one in pods.values() if one["spec"].get("nodeName"))
    assert bound[LARGE] == ZONES, "one of each zone, although totals fit a third one"


async def test_without_a_report_a_kubelet_rejects_at_most_one_pod_of_a_shape(alone: Work, node: GpuNode) -> None:
    with alone.koordpy:
        alone.apply(*burst())
        pods = await settled(alone)
    found = rejected(pods)
    assert LARGE in found, "the burst has pods that totals fit and zones do not"
    assert max(found.values()) == 1
    assert any("rejected pods of this shape lately" in message(one) for one in pods.values())
