# SPDX-License-Identifier: Apache-2.0
"""Promised room while victims end, against the embedded API server: nobody counts it twice (preemption.md 4)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from koordpy.api import keys
from koordpy.config.configuration import KoordpyConfiguration, Quota
from tests.engine.live import Live, gang, in_virtual_time, live, pod, small, until
from tests.engine.test_evictor import _with_gpus, cluster_of, ending, nominated, running_on

QUOTAS = "elasticquotas.scheduling.sigs.k8s.io"
GPU = "nvidia.com/gpu"


def worker(name: str, quota: str, *, on: str = "", gpus: int = 1, grace: int = 30, **options: Any) -> dict[str, Any]:
    manifest = pod(name, gpus=gpus, cpu="0", memory="1Mi", **options)
    manifest["metadata"].setdefault("labels", {})[keys.QUOTA_NAME] = quota
    manifest["spec"]["terminationGracePeriodSeconds"] = grace
    if on:
        manifest["spec"]["nodeSelector"] = {"kubernetes.io/hostname": on}
    return manifest


def make_quota(cluster: Live, name: str, least: int, *, parent: str = "", inner: bool = False) -> None:
    labels = {keys.QUOTA_PARENT: parent, keys.QUOTA_IS_PARENT: "true" if inner else ""}
    meta = {"name": name, "namespace": "default", "labels": {key: text for key, text in labels.items() if text}}
    manifest = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota", "metadata": meta}
    cluster.server.store.create(QUOTAS, {**manifest, "spec": {"min": {GPU: str(least)}, "max": {GPU: "8"}}})


@asynccontextmanager
async def lent_out(*, below: str = "", **least: int) -> AsyncIterator[Live]:
    """Two nodes of four GPUs; b runs on all of them. `least`: quota -> min."""
    async with live([small("n1"), small("n2")]) as cluster:
        if below:
            make_quota(cluster, below, 8, inner=True)
        for name, amount in least.items():
            make_quota(cluster, name, amount, parent=below)
        for i in range(8):
            cluster.create(worker(f"b-{i}", "b"))
            cluster.bind(f"b-{i}", "n1" if i < 4 else "n2")
        yield cluster


@pytest.mark.parametrize("below", ["", "org"])
async def test_owners_that_come_one_by_one_take_one_victim_each_and_stop_at_their_min(below: str) -> None:
    async with lent_out(below=below, a=4, b=4) as cluster, cluster.running():
        for i in range(4):
            cluster.create(worker(f"a-{i}", "a"))
            await until(lambda i=i: f"a-{i}" in nominated(cluster))  # type: ignore[misc]
            await until(lambda i=i: len(ending(cluster)) == i + 1)  # type: ignore[misc]
        cluster.create(worker("a-4", "a"))
        await until(lambda: bool(cluster.condition("a-4")))
        assert len(ending(cluster)) == 4
        for name in sorted(ending(cluster)):
            cluster.delete(name)
        await until(lambda: cluster.bound("a-0", "a-1", "a-2", "a-3"))
        cluster.assert_no_node_is_overbooked()
        assert sum(name.startswith("b-") for name in cluster.places()) == 4
        assert not cluster.bound("a-4")


async def test_who_takes_over_the_victims_of_a_pod_that_is_gone_evicts_nobody() -> None:
    async with lent_out(a=4, b=4) as cluster, cluster.running():
        cluster.create(worker("a-0", "a"))
        await until(lambda: len(ending(cluster)) == 1)
        cluster.delete("a-0")
        cluster.create(worker("a-1", "a"))
        await until(lambda: "terminating" in cluster.condition("a-1").get("message", ""))
        (victim,) = ending(cluster)
        cluster.delete(victim)
        await until(lambda: cluster.bound("a-1"))
        assert not ending(cluster)


async def test_a_pod_starts_when_its_own_victim_is_gone_though_anothers_takes_long() -> None:
    async with lent_out(a=4, b=4) as cluster, cluster.running():
        cluster.create(worker("a-0", "a", on="n2"))
        await until(lambda: len(ending(cluster)) == 1)
        (slow,) = ending(cluster)
        cluster.create(worker("a-1", "a", on="n2"))
        await until(lambda: len(ending(cluster)) == 2)
        (quick,) = ending(cluster) - {slow}
        cluster.delete(quick)
        await until(lambda: cluster.bound("a-0") or cluster.bound("a-1"))
        cluster.assert_no_node_is_overbooked()
        cluster.delete(slow)
        await until(lambda: cluster.bound("a-0", "a-1"))
        assert not ending(cluster)


@in_virtual_time
async def test_a_loser_that_is_made_anew_does_not_get_the_room_back_however_important() -> None:
    async with lent_out(a=4, b=0) as cluster:
        cluster.server.store.create(
            "priorityclasses.scheduling.k8s.io",
            {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "top"}, "value": 5000},
        )
        cluster.planner.config = KoordpyConfiguration(quota=Quota(enable_runtime_quota=False))
        async with cluster.running():
            cluster.create(worker("a-0", "a", gpus=2))
            await until(lambda: len(ending(cluster)) == 2)
            first, second = sorted(ending(cluster))
            cluster.delete(first)
            again = worker(first, "b")
            again["spec"] |= {"priorityClassName": "top", "preemptionPolicy": "Never"}
            cluster.create(again)
            await until(lambda: bool(cluster.condition(first)))
            assert not cluster.bound(first)
            cluster.delete(second)
            await until(lambda: cluster.bound("a-0"))
            await asyncio.sleep(0.3)
            assert not cluster.bound(first)
            cluster.assert_no_node_is_overbooked()


@in_virtual_time
async def test_room_that_a_gang_waits_for_stays_closed_to_whom_it_was_taken_from() -> None:
    async with lent_out(a=8, b=0) as cluster:
        cluster.planner.config = KoordpyConfiguration(quota=Quota(enable_runtime_quota=False))
        classes = "priorityclasses.scheduling.k8s.io"
        cluster.server.store.create(classes, {"metadata": {"name": "top"}, "value": 5000})
        async with cluster.running() as scheduler:
            cluster.create(*gang_of("a", 2, gpus=4))
            await until(lambda: len(ending(cluster)) == 8)
            for i in range(4):
                cluster.delete(f"b-{i}")
            await cluster.at_rest(scheduler, "pods")
            for i in range(4):
                again = worker(f"b-{i}", "b")
                again["spec"] |= {"priorityClassName": "top", "preemptionPolicy": "Never"}
                cluster.create(again)
            await until(lambda: all(cluster.condition(f"b-{i}") for i in range(4)))
            for i in range(4, 8):
                cluster.delete(f"b-{i}")
            await until(lambda: cluster.bound("a-0", "a-1"))


async def test_who_is_more_important_yet_takes_the_promised_room_and_the_loser_makes_itself_new_room() -> None:
    async with cluster_of("n1") as cluster:
        running_on(cluster, "n1", *(important_worker(f"old-{i}", "") for i in range(4)))
        async with cluster.running():
            cluster.create(important_worker("vip", "high"))
            await until(lambda: len(ending(cluster)) == 1)
            (first,) = ending(cluster)
            cluster.server.store.create(
                "priorityclasses.scheduling.k8s.io",
                {
                    "apiVersion": "scheduling.k8s.io/v1",
                    "kind": "PriorityClass",
                    "metadata": {"name": "top"},
                    "value": 5000,
                },
            )
            cluster.create(important_worker("top", "top"))
            await until(lambda: "terminating" in cluster.condition("top").get("message", ""))
            assert ending(cluster) == {first}
            cluster.delete(first)
            await until(lambda: cluster.bound("top"))
            await until(lambda: len(ending(cluster)) == 1)
            cluster.delete(*ending(cluster))
            await until(lambda: cluster.bound("vip"))
            assert len(cluster.places()) == 4


async def test_a_nomination_is_cleared_as_soon_as_it_cannot_come_true() -> None:
    async with cluster_of("n1", "n2") as cluster:
        running_on(cluster, "n1", *(important_worker(f"old-{i}", "") for i in range(4)))
        running_on(cluster, "n2", *(important_worker(f"far-{i}", "high") for i in range(4)))
        async with cluster.running():
            cluster.create(important_worker("vip", "high", gpus=2))
            await until(lambda: nominated(cluster) == {"vip": "n1"} and len(ending(cluster)) == 2)
            # what its victims leave is no more than a kubelet reports to be broken
            cluster.server.store.update("nodes", "n1", lambda old: _with_gpus(old, 1), status=True)
            await until(lambda: nominated(cluster) == {})


@in_virtual_time
async def test_a_leader_that_dies_between_nomination_and_eviction_leaves_nobody_behind() -> None:
    async with cluster_of("n1") as cluster:
        running_on(cluster, "n1", *(important_worker(f"old-{i}", "") for i in range(4)))
        cluster.server.faults.fail(503, method="DELETE", path="*/pods/*")
        async with cluster.running() as first:
            cluster.create(important_worker("vip", "high"))
            await until(lambda: nominated(cluster) == {"vip": "n1"})
            first.leading.clear()
        assert not ending(cluster)
        cluster.server.faults.clear()
        async with cluster.running():
            cluster.create(important_worker("other", "high"))
            await until(lambda: len(ending(cluster)) == 2)
            await asyncio.sleep(0.3)
            for name in sorted(ending(cluster)):
                cluster.delete(name)
            await until(lambda: cluster.bound("vip", "other"))
            assert len(cluster.places()) == 4


async def test_a_budget_that_says_no_half_way_ends_the_plan_and_keeps_no_room() -> None:
    async with lent_out(a=4, b=4) as cluster:
        cluster.server.faults.fail(429, method="POST", path="*/eviction", times=None, share=0.5)
        async with cluster.running():
            cluster.create(*gang_of("a", 3))
            await until(lambda: cluster.bound("a-0", "a-1", "a-2") or len(ending(cluster)) > 0)
            cluster.server.faults.clear()

            def finish() -> bool:
                for name in ending(cluster):
                    cluster.delete(name)
                return cluster.bound("a-0", "a-1", "a-2")

            await until(finish)
            cluster.assert_no_node_is_overbooked()
            assert sum(name.startswith("b-") for name in cluster.places()) == 5


def gang_of(quota: str, members: int, *, gpus: int = 1) -> list[dict[str, Any]]:
    group, *pods = gang(quota, members, gpus=gpus)
    for member in pods:
        member["metadata"]["labels"][keys.QUOTA_NAME] = quota
    return [group, *pods]


def important_worker(name: str, rank: str, *, gpus: int = 1) -> dict[str, Any]:
    manifest = pod(name, gpus=gpus, cpu="0", memory="1Mi")
    manifest["spec"] |= {"terminationGracePeriodSeconds": 30, **({"priorityClassName": rank} if rank else {})}
    return manifest
