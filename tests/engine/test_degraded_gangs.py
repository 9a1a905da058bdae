# SPDX-License-Identifier: Apache-2.0
"""Gangs that have lost members are named: in metrics, a bounded number of them, and by events on their workload."""

from __future__ import annotations

import asyncio
from typing import Any

from koordpy.config.configuration import KoordpyConfiguration
from koordpy.config.node_failures import Repair
from koordpy.engine.scheduler import Scheduler
from koordpy.observe.metrics import LONGEST_NAMED
from koordpy.observe.repair_metrics import DEGRADED_NAMED
from tests.clusters import pod
from tests.engine.live import LONG_LEASE, Live, gang, in_virtual_time, live, small, until
from tests.engine.test_workloads import job, member, uid_of


def figures(scheduler: Scheduler, metric: str) -> dict[str, float]:
    """Labels -> value, of one metric."""
    lines = scheduler.metrics.render().decode().splitlines()
    found = [line.rpartition(" ") for line in lines if line.startswith((f"{metric}{{", f"{metric} "))]
    return {name.removeprefix(metric): float(value) for name, _, value in found}


def told(cluster: Live, reason: str) -> list[tuple[str, str, str, str]]:
    """(kind, name, kind of what is related, text) of events with this reason, in the order of kinds."""
    found = []
    for event in cluster.events():
        if event["reason"] == reason:
            about, related = event["involvedObject"], event.get("related") or {}
            found.append((about["kind"], about["name"], related.get("kind", ""), event["message"]))
    return sorted(found)


def owned(pod: dict[str, Any], owner: dict[str, Any]) -> dict[str, Any]:
    """The pod with a controlling owner."""
    return {**pod, "metadata": {**pod["metadata"], "ownerReferences": [{**owner, "controller": True}]}}


@in_virtual_time
async def test_a_job_that_lost_a_node_is_told_of_and_named_until_it_is_whole() -> None:
    nodes = [small("n1", cpu=4, gpus=8), small("n2", cpu=4, gpus=8)]
    async with live(nodes) as cluster, cluster.running() as scheduler:
        # without seats, so that a pod of the same priority takes the place of the missing member
        cluster.planner.config = KoordpyConfiguration(repair=Repair(seat_hold=0.0))
        uid = uid_of(job(cluster, 3))
        pods = [member(i, uid) for i in range(3)]
        for one in pods:
            one["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] = "4"
            one["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": "4"}
        cluster.create(*pods)
        await until(lambda: cluster.bound("train-0", "train-1", "train-2"))
        assert figures(scheduler, "koordpy_gang_degraded") == {}
        cluster.pod("filler", gpus=4)
        await until(lambda: cluster.bound("filler"))
        cluster.delete("train-1")
        cluster.pod("taker", gpus=4)
        await until(lambda: cluster.bound("taker"))
        cluster.create(pods[1])
        text = "gang default/train has 2 of 3 members"
        await until(lambda: told(cluster, "GangDegraded") == [("Job", "train", "", text)])
        name = '{gang="default/train",workload="Job/train"}'
        assert figures(scheduler, "koordpy_gang_degraded") == {name: 1.0}
        assert figures(scheduler, "koordpy_gang_degraded_accelerators") == {'{gang="default/train"}': 8.0}
        assert figures(scheduler, "koordpy_gangs_degraded_unnamed") == {"": 0.0}
        # the next leader names it, too
        async with cluster.running() as second:
            await until(lambda: figures(second, "koordpy_gang_degraded") == {name: 1.0})
        cluster.delete("taker")
        await until(lambda: cluster.bound("train-1"))
        await until(lambda: bool(told(cluster, "GangRepaired")))
        assert told(cluster, "GangRepaired") == [("Job", "train", "", "3 members are bound or have Succeeded")]
        assert figures(scheduler, "koordpy_gang_degraded") == {}


@in_virtual_time
async def test_a_loss_is_told_to_the_pod_group_and_to_the_topmost_workload_of_its_pods() -> None:
    async with live([small("n", cpu=4, gpus=2)]) as cluster, cluster.running() as scheduler:
        group, *pods = gang("g", 2, gpus=1)
        uid = uid_of(job(cluster, 2, "train"))
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": uid}
        pods = [owned(one, owner) for one in pods]
        cluster.create(group, *pods)
        await until(lambda: cluster.bound("g-0", "g-1"))
        cluster.delete("g-1")
        text = "gang default/g has 1 of 2 members"
        wanted = [("Job", "train", "PodGroup", text), ("PodGroup", "g", "Job", text)]
        await until(lambda: told(cluster, "GangDegraded") == wanted)
        assert list(figures(scheduler, "koordpy_gang_degraded")) == ['{gang="default/g",workload="Job/train"}']
        cluster.create(pods[1])
        await until(lambda: len(told(cluster, "GangRepaired")) == 2)
        assert [one[0] for one in told(cluster, "GangRepaired")] == ["Job", "PodGroup"]


@in_virtual_time
async def test_a_gang_of_labels_alone_is_told_of_on_its_oldest_pod() -> None:
    async with live([small("n", cpu=4)]) as cluster, cluster.running() as scheduler:
        labels = {
            "pod-group.scheduling.sigs.k8s.io/name": "named",
            "pod-group.scheduling.sigs.k8s.io/min-available": "2",
        }
        for name in ("a", "b"):
            cluster.pod(name, labels=labels)
        await until(lambda: cluster.bound("a", "b"))
        cluster.delete("b")
        wanted = [("Pod", "a", "", "gang default/named has 1 of 2 members")]
        await until(lambda: told(cluster, "GangDegraded") == wanted)
        assert figures(scheduler, "koordpy_gang_degraded") == {'{gang="default/named",workload=""}': 1.0}


@in_virtual_time
async def test_what_wanes_and_waxes_is_one_series_of_events() -> None:
    async with live([small("n", cpu=8, gpus=2)]) as cluster, cluster.running():
        group, *pods = gang("g", 2, gpus=1)
        cluster.create(group, *pods)
        for _ in range(5):
            await until(lambda: cluster.bound("g-0", "g-1"))
            await until(lambda: cluster.group("g").get("scheduled") == 2)
            cluster.delete("g-1")
            await until(lambda: cluster.group("g").get("scheduled") == 1)
            cluster.create(pods[1])
        assert len(told(cluster, "GangDegraded")) == 1


@in_virtual_time
async def test_no_more_gangs_are_named_than_the_bound_and_the_others_are_counted() -> None:
    number = DEGRADED_NAMED + 7
    nodes = [small(f"n{i}", cpu=100, gpus=32) for i in range(8)]
    async with live(nodes) as cluster, cluster.running(lease=LONG_LEASE) as scheduler:
        for i in range(number):
            group, *pods = gang(f"g{i}", 2, gpus=1)
            cluster.create(group, *pods)
        await until(lambda: len(cluster.places()) == 2 * number)
        for i in range(number):
            cluster.delete(f"g{i}-1")
        await until(lambda: figures(scheduler, "koordpy_gangs_half_bound") == {"": number})
        first = figures(scheduler, "koordpy_gang_degraded")
        assert len(first) == len(figures(scheduler, "koordpy_gang_degraded_accelerators")) == DEGRADED_NAMED
        assert figures(scheduler, "koordpy_gangs_degraded_unnamed") == {"": 7.0}
        # one that is whole makes place for another; all others stay
        gone = '{gang="default/g0",workload=""}'
        assert gone in first
        cluster.create(gang("g0", 2, gpus=1)[2])
        await until(lambda: figures(scheduler, "koordpy_gangs_half_bound") == {"": number - 1})
        second = figures(scheduler, "koordpy_gang_degraded")
        assert len(second) == DEGRADED_NAMED and len(first.keys() - second.keys()) == 1 and gone not in second
        assert figures(scheduler, "koordpy_gangs_degraded_unnamed") == {"": 6.0}


@in_virtual_time
async def test_the_units_that_wait_longest_are_named_by_gang_or_pod() -> None:
    async with live([small("n", cpu=1)]) as cluster, cluster.running() as scheduler:
        assert figures(scheduler, "koordpy_unit_pending_seconds") == {}
        cluster.create(*gang("gated", 2, gpus=64)[:2])
        await asyncio.sleep(2)
        cluster.create(*gang("g", 2, gpus=64))
        for i in range(LONGEST_NAMED + 5):
            await asyncio.sleep(2)
            cluster.pod(f"p{i}", gpus=64)
        await until(lambda: all(cluster.condition(f"p{i}") for i in range(LONGEST_NAMED + 5)))
        await until(lambda: bool(cluster.condition("g-1")))
        found = figures(scheduler, "koordpy_unit_pending_seconds")
        names = {f'{{unit="default/{name}"}}' for name in ("g", *(f"p{i}" for i in range(LONGEST_NAMED - 1)))}
        assert found.keys() == names
        assert figures(scheduler, "koordpy_pending_oldest_seconds")[""] == max(found.values())
        assert max(found, key=lambda name: found[name]) == '{unit="default/g"}'


@in_virtual_time
async def test_an_eviction_is_told_to_the_pod_group_and_to_the_workload() -> None:
    async with live([small("n", cpu=4, gpus=2)]) as cluster, cluster.running():
        cluster.server.store.create("priorityclasses.scheduling.k8s.io", {"metadata": {"name": "high"}, "value": 1000})
        group, *pods = gang("g", 2, gpus=1)
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": uid_of(job(cluster, 2, "train"))}
        cluster.create(group, *(owned(one, owner) for one in pods))
        await until(lambda: cluster.bound("g-0", "g-1"))
        preemptor = pod("high", gpus=2, cpu="1", memory="1Gi")
        preemptor["spec"] |= {"priorityClassName": "high", "priority": 1000}
        cluster.create(preemptor)
        text = "2 of 2 members were evicted by rule priority for default/high"
        wanted = [("Job", "train", "PodGroup", text), ("PodGroup", "g", "Job", text)]
        await until(lambda: told(cluster, "GangEvicted") == wanted)
