# SPDX-License-Identifier: Apache-2.0
"""Two leaders on different Leases that serve one scheduler name notice each other, and each counts its own Bindings."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.config.configuration import LeaderElection
from koordpy.engine.binding.foreign_bindings import MOST_NAMED
from koordpy.engine.scheduler import Scheduler
from tests.engine.live import LONG_LEASE, Live, Planner, gang, in_virtual_time, live, small, until
from tests.engine.test_degraded_gangs import figures

OURS = keys.DEFAULT_SCHEDULER_NAME
FOREIGN = "koordpy_foreign_binds_total"


def lease(name: str) -> LeaderElection:
    return replace(LONG_LEASE, resource_name=name)


def foreign(scheduler: Scheduler) -> float:
    return figures(scheduler, FOREIGN)[f'{{profile="{OURS}"}}']


def bound_by(scheduler: Scheduler) -> float:
    return figures(scheduler, "koordpy_binds_total")['{outcome="bound"}']


def told(cluster: Live) -> set[tuple[str, str]]:
    """(Lease, text) of the events."""
    found = (one for one in cluster.events() if one["reason"] == "ForeignBinding")
    return {(one["involvedObject"]["name"], one["message"]) for one in found}


def text(who: str) -> str:
    return f"pods of scheduler {OURS} are also bound by {who}: only one release may serve a scheduler name"


@in_virtual_time
async def test_two_leaders_of_one_name_notice_each_other_and_count_each_binding_once() -> None:
    nodes = [small(f"n{i}", cpu=64, gpus=8) for i in range(8)]
    async with live(nodes) as cluster:
        other = Live(cluster.server, planner=Planner())
        async with cluster.running(lease=lease("a")) as first, other.running(lease=lease("b")) as second:
            await until(lambda: first.leading.is_set() and second.leading.is_set())
            assert (foreign(first), foreign(second)) == (0, 0)
            number = 0
            # which of the two is first changes from pod to pod
            for i in range(40):
                cluster.pod(f"p{i}")
                number += 1
                if i % 4 == 3:
                    await asyncio.sleep(0.3)
            for i in range(4):
                cluster.create(*gang(f"g{i}", 4, gpus=1))
                number += 4
            await until(lambda: len(cluster.places()) == number)
            await asyncio.sleep(5)
            assert bound_by(first) + bound_by(second) == number
            assert bound_by(first) and bound_by(second)
            by = [one["metadata"]["annotations"][keys.BOUND_LEASE] for one in cluster.pods().values()]
            assert by.count("kube-system/a") == bound_by(first)
            assert (foreign(first), foreign(second)) == (bound_by(second), bound_by(first))
            members = [figures(one, "koordpy_gang_members_bound_total")[""] for one in (first, second)]
            assert sum(members) == 16
            wanted = set()
            if bound_by(second):
                wanted.add(("a", text("the leader of Lease kube-system/b")))
            if bound_by(first):
                wanted.add(("b", text("the leader of Lease kube-system/a")))
            await until(lambda: told(cluster) == wanted)
            assert wanted


@in_virtual_time
async def test_the_leader_before_is_no_stranger() -> None:
    async with live([small("n", cpu=64)]) as cluster:
        other = Live(cluster.server, planner=Planner())
        async with other.running(lease=lease("a")) as second:
            async with cluster.running(lease=lease("a")) as first:
                await until(lambda: first.leading.is_set() or second.leading.is_set())
                for i in range(8):
                    cluster.pod(f"p{i}")
                await until(lambda: len(cluster.places()) == 8)
                first.stop()
            await until(second.leading.is_set)
            cluster.pod("later")
            await until(lambda: cluster.bound("later"))
            await asyncio.sleep(5)
            assert (foreign(first), foreign(second)) == (0, 0) and told(cluster) == set()


@pytest.mark.parametrize(
    ("annotations", "who"),
    [
        ({}, "a process that is not koordpy with leader election"),
        ({keys.BOUND_LEASE: "team-b/koordpy"}, "the leader of Lease team-b/koordpy"),
        ({keys.BOUND_LEASE: "any text; of a tenant"}, "a process that is not koordpy with leader election"),
        ({keys.BOUND_LEASE: "x" * 9000}, "a process that is not koordpy with leader election"),
    ],
)
def test_who_else_binds_is_named_where_its_lease_can_be(annotations: dict[str, str], who: str) -> None:
    @in_virtual_time
    async def play() -> None:
        async with live([small("n", gpus=0)]) as cluster, cluster.running(lease=lease("a")) as scheduler:
            await until(scheduler.leading.is_set)
            cluster.pod("p", gpus=1)
            await until(lambda: bool(cluster.condition("p")))
            cluster.bind("p", "n", annotations)
            await until(lambda: foreign(scheduler) == 1)
            await until(lambda: told(cluster) == {("a", text(who))})

    play()


@in_virtual_time
async def test_pods_of_other_schedulers_and_pods_that_come_with_a_node_are_none_of_ours() -> None:
    async with live([small("n", gpus=0)]) as cluster, cluster.running(lease=lease("a")) as scheduler:
        await until(scheduler.leading.is_set)
        cluster.pod("theirs", scheduler_name="default-scheduler")
        cluster.bind("theirs", "n")
        cluster.pod("ours")
        await until(lambda: cluster.bound("ours"))
        await cluster.at_rest(scheduler, "pods")
        assert foreign(scheduler) == 0 and told(cluster) == set()


@in_virtual_time
async def test_without_leader_election_what_was_not_planned_is_foreign() -> None:
    async with live([small("n", gpus=0)]) as cluster, cluster.running() as scheduler:
        cluster.pod("own")
        await until(lambda: cluster.bound("own"))
        cluster.pod("p", gpus=1)
        await until(lambda: bool(cluster.condition("p")))
        cluster.bind("p", "n")
        await until(lambda: foreign(scheduler) == 1)
        # there is no Lease to tell
        assert told(cluster) == set()
        assert keys.BOUND_LEASE not in cluster.pods()["own"]["metadata"].get("annotations", {})


@in_virtual_time
async def test_many_names_of_leases_are_not_kept() -> None:
    async with live([small("n", gpus=0)]) as cluster, cluster.running(lease=lease("a")) as scheduler:
        await until(scheduler.leading.is_set)
        number = 3 * MOST_NAMED
        for i in range(number):
            cluster.pod(f"p{i}", gpus=1)
        await until(lambda: all(cluster.condition(f"p{i}") for i in range(number)))
        for i in range(number):
            cluster.bind(f"p{i}", "n", {keys.BOUND_LEASE: f"tenant/x{i}"})
        await until(lambda: foreign(scheduler) == number)
        assert len(scheduler.foreign_binds._told) <= MOST_NAMED + 1
        await asyncio.sleep(10)
        assert len(told(cluster)) <= MOST_NAMED + 1


def test_a_lease_that_a_pod_claims_before_is_written_over() -> None:
    @in_virtual_time
    async def play() -> None:
        async with live([small("n")]) as cluster, cluster.running(lease=lease("a")) as scheduler:
            notes: dict[str, Any] = {keys.BOUND_LEASE: "tenant/forged"}
            cluster.pod("p", annotations=notes)
            await until(lambda: cluster.bound("p"))
            await cluster.at_rest(scheduler, "pods")
            assert cluster.pods()["p"]["metadata"]["annotations"][keys.BOUND_LEASE] == "kube-system/a"
            assert foreign(scheduler) == 0

    play()
