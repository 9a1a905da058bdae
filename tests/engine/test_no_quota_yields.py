# SPDX-License-Identifier: Apache-2.0
"""Pods in no quota that yield to a quota, against the embedded API server: nobody more goes while they end, and nobody
takes their room (quota-fairness.md 4, preemption.md 4)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from koordpy.config.configuration import KoordpyConfiguration, Quota
from tests.engine.live import Live, in_virtual_time, live, pod, small, until
from tests.engine.test_evictor import ending, nominated
from tests.engine.test_promised_room import GPU, QUOTAS, worker


def outside(name: str, *, priority: int = 0) -> dict[str, Any]:
    """A pod of one GPU in no quota."""
    manifest = pod(name, gpus=1, cpu="0", memory="1Mi")
    manifest["spec"] |= {"terminationGracePeriodSeconds": 30, "priorityClassName": f"p{priority}"}
    return manifest


def inside(name: str, quota: str, *, priority: int = 0) -> dict[str, Any]:
    manifest = worker(name, quota)
    manifest["spec"] |= {"priorityClassName": f"p{priority}"}
    return manifest


def make_quota(cluster: Live, name: str, least: int, *, lends: bool = True) -> None:
    labels = {} if lends else {"quota.scheduling.koordinator.sh/allow-lent-resource": "false"}
    meta = {"name": name, "namespace": "default", "labels": labels}
    manifest = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota", "metadata": meta}
    cluster.server.store.create(QUOTAS, {**manifest, "spec": {"min": {GPU: str(least)}, "max": {GPU: "8"}}})


@asynccontextmanager
async def filled(*nodes: str, value: str = "lowerPriority", priority: int = 0) -> AsyncIterator[Live]:
    """Two nodes of four GPUs; pods in no quota on all GPUs of those that are named."""
    async with live([small("n1"), small("n2")]) as cluster:
        cluster.planner.config = KoordpyConfiguration(quota=Quota(no_quota_yields=value))  # type: ignore[arg-type]
        for number in (0, 9, 50):
            made = {"metadata": {"name": f"p{number}"}, "value": number}
            cluster.server.store.create("priorityclasses.scheduling.k8s.io", made)
        for name in nodes:
            for i in range(4):
                cluster.create(outside(f"free-{name}-{i}", priority=priority))
                cluster.bind(f"free-{name}-{i}", name)
        yield cluster


@in_virtual_time
@pytest.mark.parametrize(("value", "low", "high"), [("lowerPriority", 0, 9), ("always", 50, 0)])
async def test_each_that_comes_takes_one_victim_and_its_room(value: str, low: int, high: int) -> None:
    async with filled("n1", "n2", value=value, priority=low) as cluster:
        make_quota(cluster, "team", 8)
        async with cluster.running():
            for i in range(3):
                cluster.create(inside(f"t-{i}", "team", priority=high))
                await until(lambda i=i: f"t-{i}" in nominated(cluster))  # type: ignore[misc]
                await until(lambda i=i: len(ending(cluster)) == i + 1)  # type: ignore[misc]
            gone = sorted(ending(cluster))
            for name in gone:
                cluster.delete(name)
                cluster.create(outside(f"{name}-again", priority=low))
            await until(lambda: cluster.bound("t-0", "t-1", "t-2"))
            await asyncio.sleep(0.3)
            assert not ending(cluster) and not cluster.bound(*(f"{name}-again" for name in gone))
            cluster.assert_no_node_is_overbooked()


@in_virtual_time
async def test_victims_that_end_elsewhere_are_waited_for() -> None:
    """The room is free, and kept for a quota that lends nothing; the total has to grow first."""
    async with filled("n1") as cluster:
        make_quota(cluster, "idle", 4, lends=False)
        make_quota(cluster, "team", 4)
        async with cluster.running():
            for i in range(4):
                cluster.create(inside(f"t-{i}", "team", priority=9))
            await until(lambda: cluster.bound("t-0", "t-1"))
            await until(lambda: len(nominated(cluster)) == 2)
            await asyncio.sleep(2)
            victims = ending(cluster)
            assert victims and all(name.startswith("free-") for name in victims) and len(victims) <= 4
            for name in victims:
                cluster.delete(name)
                cluster.create(outside(f"{name}-again"))
            await until(lambda: cluster.bound("t-0", "t-1", "t-2", "t-3"))
            await asyncio.sleep(0.3)
            assert not ending(cluster)
            cluster.assert_no_node_is_overbooked()
