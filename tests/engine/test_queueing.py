# SPDX-License-Identifier: Apache-2.0
"""Queueing among gangs, live: races for one domain, and room that is kept for a gang that waits."""

import asyncio
from typing import Any

from koordpy.api import keys
from koordpy.config.configuration import KoordpyConfiguration, Queue
from tests.engine.live import Live, gang, in_virtual_time, live, small, until

ON = KoordpyConfiguration(queue=Queue(backfill=True))


def lasting(length: str, manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same gang, that says how long it runs."""
    group, *pods = manifests
    notes = {**group["metadata"].get("annotations", {}), keys.MAX_RUNTIME: length}
    return [{**group, "metadata": {**group["metadata"], "annotations": notes}}, *pods]


def whole(cluster: Live, *names: str) -> list[str]:
    return [name for name in names if cluster.bound(f"{name}-0", f"{name}-1", f"{name}-2")]


async def test_of_two_gangs_that_race_for_one_domain_exactly_one_is_bound_and_whole() -> None:
    async with live([small("n1"), small("n2", gpus=1)]) as cluster, cluster.running():
        first, second = gang("a", 3, gpus=1), gang("b", 3, gpus=1)
        # members come alternately, so that both gangs are complete at once
        for pair in zip(first, second, strict=True):
            cluster.create(*pair)
        await until(lambda: bool(whole(cluster, "a", "b")))
        (winner,) = whole(cluster, "a", "b")
        loser = "b" if winner == "a" else "a"
        await until(
            lambda: "needed 3, available in the cluster: 2" in cluster.condition(f"{loser}-2").get("message", "")
        )
        assert len(cluster.places()) == 3
        for i in range(3):
            cluster.delete(f"{winner}-{i}")
        await until(lambda: whole(cluster, loser) == [loser])
        cluster.assert_no_node_is_overbooked()


async def promised_a_start(cluster: Live) -> None:
    """`big`, of two nodes, waits for the one that `runs` leaves in an hour."""
    cluster.create(*lasting("1h", gang("runs", 1, gpus=4)))
    await until(lambda: cluster.bound("runs-0"))
    cluster.create(*gang("big", 2, gpus=4))
    await until(lambda: ". start promised at 20" in cluster.condition("big-1").get("message", ""))


@in_virtual_time
async def test_room_is_kept_for_a_gang_that_is_promised_a_start_and_free_when_it_gives_up() -> None:
    async with live([small("n1"), small("n2")]) as cluster:
        cluster.planner.config = ON
        async with cluster.running():
            await promised_a_start(cluster)
            cluster.create(*gang("long", 1, gpus=1))
            cluster.create(*lasting("10m", gang("short", 1, gpus=1)))
            await until(lambda: cluster.bound("short-0"))
            await until(lambda: "is reserved for gang default/big" in cluster.condition("long-0").get("message", ""))
            await asyncio.sleep(0.3)
            assert set(cluster.places()) == {"runs-0", "short-0"}
            for i in range(2):
                cluster.delete(f"big-{i}")
            await until(lambda: cluster.bound("long-0"))


async def test_the_promised_gang_starts_when_the_others_have_ended() -> None:
    async with live([small("n1"), small("n2")]) as cluster:
        cluster.planner.config = ON
        async with cluster.running():
            await promised_a_start(cluster)
            for i in range(3):
                cluster.create(*gang(f"long{i}", 1, gpus=1))
            await until(lambda: all("reserved" in cluster.condition(f"long{i}-0").get("message", "") for i in range(3)))
            cluster.delete("runs-0")
            await until(lambda: cluster.bound("big-0", "big-1"))
            assert set(cluster.places()) == {"big-0", "big-1"}
