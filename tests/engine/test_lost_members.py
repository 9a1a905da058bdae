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
from tests.engine.virtual import EPOCH_SECONDS

UNREACHABLE = "node.kubernetes.io/unreachable"


def scheduled(cluster: Live) -> int | None:
    found: int | None = cluster.group("g").get("scheduled")
    return found


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
