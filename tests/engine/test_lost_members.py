# SPDX-License-Identifier: Apache-2.0
"""Members on lost nodes, and seats of broken gangs, against the embedded API server: what changes with time alone, or
with a node, is acted on without any other event (repair.md 4.1, 4.4, 7)."""

import asyncio
from typing import Any

import pytest

from koordpy.api.times import rfc3339
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.config.node_failures import Repair
from tests.engine.live import Live, gang, in_virtual_time, live, small, until
from tests.engine.test_degraded_gangs import told
from tests.engine.virtual import EPOCH_SECONDS

UNREACHABLE = "node.kubernetes.io/unreachable"


def scheduled(cluster: Live) -> int | None:
    found: int | None = cluster.group("g").get("scheduled")
    return found


def degraded(cluster: Live) -> dict[str, Any]:
    """Condition Degraded of the PodGroup; empty without one."""
    conditions = cluster.group("g").get("conditions", [])
    return next((one for one in conditions if one["type"] == "Degraded"), {})


async def bound_gang(cluster: Live) -> None:
    """Creates a gang of two that takes both nodes."""
    cluster.create(*gang("g", 2, gpus=4))
    await until(lambda: cluster.bound("g-0", "g-1"))
    await until(lambda: scheduled(cluster) == 2)


@in_virtual_time
async def test_a_gang_counts_a_member_again_when_its_node_is_back() -> None:
    async with live([small("n1", gpus=4), small("n2", gpus=4)]) as cluster, cluster.running():
        await bound_gang(cluster)
        gone = cluster.places()["g-1"]
        cluster.server.store.delete("nodes", gone)
        await until(lambda: scheduled(cluster) == 1)
        cluster.nodes(small(gone, gpus=4))
        await until(lambda: scheduled(cluster) == 2)


@in_virtual_time
async def test_a_gang_counts_no_member_on_a_node_whose_grace_has_ended() -> None:
    async with live([small("n1", gpus=4), small("n2", gpus=4)]) as cluster, cluster.running():
        await bound_gang(cluster)
        began = asyncio.get_running_loop().time()

        def tainted(old: dict[str, Any]) -> dict[str, Any]:
            taint = {"key": UNREACHABLE, "effect": "NoExecute", "timeAdded": rfc3339(EPOCH_SECONDS + began)}
            return {**old, "spec": {**old["spec"], "taints": [taint]}}

        cluster.server.store.update("nodes", cluster.places()["g-1"], tainted)
        await until(lambda: scheduled(cluster) == 1)
        assert asyncio.get_running_loop().time() - began >= 29.0


@in_virtual_time
async def test_a_broken_gang_without_pending_members_is_told_of_until_its_node_is_back() -> None:
    async with live([small("n1", gpus=4), small("n2", gpus=4)]) as cluster, cluster.running():
        await bound_gang(cluster)
        gone = cluster.places()["g-1"]
        taint = {"key": UNREACHABLE, "effect": "NoExecute"}  # without timeAdded it is long ago
        cluster.server.store.update("nodes", gone, lambda old: {**old, "spec": {**old["spec"], "taints": [taint]}})
        await until(lambda: degraded(cluster).get("status") == "True")
        text = f"1 of 2 members, missing ranks 1; lost on node {gone} (taint {UNREACHABLE})"
        assert (degraded(cluster)["reason"], degraded(cluster)["message"]) == ("MembersMissing", text)
        await until(lambda: told(cluster, "GangDegraded") == [("PodGroup", "g", "", f"gang default/g has {text}")])
        cluster.server.store.update("nodes", gone, lambda old: {**old, "spec": {**old["spec"], "taints": []}})
        await until(lambda: degraded(cluster).get("status") == "False")
        assert degraded(cluster)["reason"] == "Repaired"
        await until(lambda: [one[:2] for one in told(cluster, "GangRepaired")] == [("PodGroup", "g")])


@in_virtual_time
async def test_a_job_that_is_deleted_is_not_degraded() -> None:
    async with live([small("n1", gpus=4), small("n2", gpus=4)]) as cluster, cluster.running():
        await bound_gang(cluster)

        for name in ("g-0", "g-1"):
            cluster.server.store.delete("pods", name, namespace="default", options={"gracePeriodSeconds": 60})
        await asyncio.sleep(3.0)
        cluster.delete("g-1")
        await until(lambda: scheduled(cluster) == 1)
        await asyncio.sleep(3.0)
        assert degraded(cluster) == {} and told(cluster, "GangDegraded") == []


@in_virtual_time
async def test_seats_of_a_gang_without_a_pod_group_end() -> None:
    async with live([small("n", cpu=2)]) as cluster:
        cluster.planner.config = KoordpyConfiguration(repair=Repair(seat_hold=20.0))
        async with cluster.running():
            labels = {
                "pod-group.scheduling.sigs.k8s.io/name": "named",
                "pod-group.scheduling.sigs.k8s.io/min-available": "2",
            }
            for name in ("a", "b"):
                cluster.pod(name, labels=labels)
            await until(lambda: cluster.bound("a", "b"))
            cluster.delete("b")
            await until(lambda: bool(told(cluster, "GangDegraded")))
            cluster.pod("other")
            await until(lambda: "is held for gang default/named" in cluster.condition("other").get("message", ""))
            await asyncio.sleep(10.0)
            assert not cluster.bound("other")
            await until(lambda: cluster.bound("other"), seconds=15.0)


@pytest.mark.parametrize("how", ["the time of the seats is over", "the gang is gone"])
def test_a_pod_that_seats_keep_from_starting_starts_when_they_end(how: str) -> None:
    @in_virtual_time
    async def play() -> None:
        async with live([small("n1", gpus=4), small("n2", gpus=4)]) as cluster:
            cluster.planner.config = KoordpyConfiguration(repair=Repair(seat_hold=20.0))
            async with cluster.running():
                await bound_gang(cluster)
                cluster.delete("g-1")
                await until(lambda: scheduled(cluster) == 1)
                cluster.pod("other", gpus=4)
                await until(lambda: "is held for gang default/g" in cluster.condition("other").get("message", ""))
                await asyncio.sleep(10.0)
                assert not cluster.bound("other")
                if how == "the gang is gone":
                    cluster.server.store.delete("podgroups.scheduling.sigs.k8s.io", "g", namespace="default")
                await until(lambda: cluster.bound("other"), seconds=15.0)

    play()
