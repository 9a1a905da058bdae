# SPDX-License-Identifier: Apache-2.0
"""A running pod with a claim moves so that another pod gets all devices of its node (dra.md 10)."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

from msgspec import structs

from koordpy.config.configuration import Consolidation
from koordpy.engine.scheduler import Scheduler
from tests.engine.live import Live, in_virtual_time, live, small, until
from tests.engine.test_reservations import claim, claiming, devices, offer, users

MOVES = Consolidation(enabled=True)


def owned(name: str, claim_name: str, controller: str = "") -> dict[str, Any]:
    """A pod that a controller would create again."""
    made = claiming(name, claim_name)
    of = controller or name
    made["metadata"]["ownerReferences"] = [
        {"apiVersion": "batch/v1", "kind": "Job", "name": of, "uid": of, "controller": True}
    ]
    return made


def evicted(cluster: Live) -> set[str]:
    """Pods that are gone or end."""
    ending = {name for name, one in cluster.pods().items() if one["metadata"].get("deletionTimestamp")}
    return ({"a", "b"} - cluster.pods().keys()) | ending


def moving(cluster: Live) -> AbstractAsyncContextManager[Scheduler]:
    """A scheduler that moves pods."""
    cluster.planner.config = structs.replace(cluster.planner.config, consolidation=MOVES)
    return cluster.running(consolidation=MOVES)


@in_virtual_time
async def test_the_devices_of_a_moved_pod_wait_for_its_successor() -> None:
    """a uses one of two devices of n1, b one of n2; p needs two. q asks for one before the successor is there."""
    async with live([small("n1")]) as cluster, moving(cluster) as scheduler:
        offer(cluster, "n1", "x0", "x1")
        for name in ("ca", "cb", "cq", "cw"):
            claim(cluster, name)
        claim(cluster, "cp", 2)
        cluster.create(owned("a", "ca"), claiming("w", "cw"))
        await until(lambda: cluster.bound("a", "w"))
        cluster.nodes(small("n2"))
        offer(cluster, "n2", "y0", "y1")
        cluster.create(owned("b", "cb"))
        await until(lambda: cluster.bound("b"))
        cluster.delete("w")
        await until(lambda: not users(cluster, "cw") and not devices(cluster, "cw"))
        await until(lambda: cluster.is_known_to(scheduler, "nodes", "pods"))
        cluster.create(claiming("p", "cp"))
        await until(lambda: len(evicted(cluster)) == 1)
        [moved] = evicted(cluster)
        cluster.create(claiming("q", "cq"))
        if moved in cluster.pods():
            cluster.delete(moved)
        await until(lambda: cluster.bound("p"))
        await asyncio.sleep(5.0)
        assert not cluster.bound("q"), "the devices wait for the successor"
        cluster.create(owned("again", f"c{moved}", controller=moved))
        await until(lambda: cluster.bound("again"))
        nodes = cluster.places()
        assert nodes["p"] != nodes["again"] and len(devices(cluster, "cp")) == 2
        assert users(cluster, f"c{moved}") == {"again"}
        given = [*devices(cluster, "ca"), *devices(cluster, "cb"), *devices(cluster, "cp")]
        assert len(given) == len(set(given)) == 4
