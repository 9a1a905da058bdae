# SPDX-License-Identifier: Apache-2.0
"""Victims whose deletion was answered with their end: their room is free before the watch says so, for nobody else."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from msgspec import convert

from koordpy.api.objects import Pod
from koordpy.devices.family_registry import make_state
from koordpy.engine.changes.change_hub import Hub
from koordpy.engine.changes.object_changes import ClaimUsers
from koordpy.engine.changes.pod_changes_live import PodChanges
from koordpy.engine.evictions.eviction_calls import is_gone
from koordpy.engine.scheduler import Scheduler
from koordpy.engine.scheduling_queue import UnitQueue
from tests.engine.live import Live, in_virtual_time, until
from tests.engine.test_evictor import cluster_of, ending, running_on, worker


def reply(uid: str = "u1", **meta: Any) -> bytes:
    """What a DELETE is answered with."""
    return msgspec.json.encode({"kind": "Pod", "metadata": {"uid": uid, **meta}})


@pytest.mark.parametrize(
    ("told", "gone"),
    [
        (reply(deletionTimestamp="2026-01-01T00:00:00Z", deletionGracePeriodSeconds=0), True),
        (reply(deletionTimestamp="2026-01-01T00:00:00Z", deletionGracePeriodSeconds=0, finalizers=[]), True),
        (reply(deletionTimestamp="2026-01-01T00:00:30Z", deletionGracePeriodSeconds=30), False),
        (reply(deletionTimestamp="2026-01-01T00:00:00Z", deletionGracePeriodSeconds=0, finalizers=["a/b"]), False),
        (reply("u2", deletionTimestamp="2026-01-01T00:00:00Z", deletionGracePeriodSeconds=0), False),
        (reply(), False),
        (b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","details":{"uid":"u1"}}', False),
        (b"<html>OK</html>", False),
        (b"", False),
    ],
)
def test_only_a_pod_without_delay_and_finalizers_is_gone_with_the_reply(told: bytes, gone: bool) -> None:
    assert is_gone(told, "u1") is gone


class Known:
    """What is known of pods on node n1."""

    def __init__(self) -> None:
        self.state = make_state()
        self.pods = PodChanges(Hub(self.state, UnitQueue()), ClaimUsers())

    @staticmethod
    def pod(uid: str, version: int, **meta: Any) -> Pod:
        manifest = {
            "metadata": {"name": "a", "namespace": "default", "uid": uid, "resourceVersion": str(version), **meta},
            "spec": {"nodeName": "n1", "containers": [{"name": "c"}]},
        }
        return convert(manifest, Pod)

    @property
    def on_node(self) -> int:
        return self.state.usage.usage_of("n1")[0]

    @property
    def uid(self) -> str:
        info = self.state.pod("default/a")
        return info.uid if info is not None else ""


def test_what_the_watch_still_brings_of_an_ended_pod_does_not_bring_it_back() -> None:
    known = Known()
    known.pods.upsert(known.pod("u1", 1), None)
    known.pods.ended("default/a", "u1")
    assert known.on_node == 0
    known.pods.upsert(known.pod("u1", 2, deletionTimestamp="2026-01-01T00:00:00Z"), None)
    known.pods.read(known.pod("u1", 1))
    assert (known.on_node, known.uid) == (0, "")
    known.pods.delete(known.pod("u1", 2))
    assert known.on_node == 0


def test_another_pod_of_the_name_counts_at_once_and_outlives_the_late_word_of_the_first() -> None:
    known = Known()
    known.pods.upsert(known.pod("u1", 1), None)
    known.pods.ended("default/a", "u1")
    known.pods.read(known.pod("u2", 5))
    assert (known.on_node, known.uid) == (1, "u2")
    known.pods.upsert(known.pod("u1", 2), None)
    known.pods.delete(known.pod("u1", 3))
    assert (known.on_node, known.uid) == (1, "u2")


def test_the_end_of_a_pod_that_was_replaced_ends_nothing() -> None:
    known = Known()
    known.pods.upsert(known.pod("u2", 4), None)
    known.pods.ended("default/a", "u1")
    known.pods.upsert(known.pod("u2", 5), None)
    assert (known.on_node, known.uid) == (1, "u2")


@asynccontextmanager
async def deaf_from_planning_on(cluster: Live) -> AsyncIterator[Scheduler]:
    """A scheduler that hears nothing of pods any more from the moment that it plans for `vip` on."""
    async with cluster.running() as scheduler:
        hold = cluster.planner.hold = threading.Event()
        cluster.create(worker("vip", high=True, gpus=2))
        await until(lambda: cluster.planner.tried("default/vip") == 1)
        cluster.server.faults.fail("timeout", method="WATCH", path="/api/v1/pods")
        assert cluster.server.faults.drop_watches("pods") == 1
        cluster.planner.hold = None
        hold.set()
        yield scheduler


async def test_room_that_the_reply_gives_is_taken_while_the_watch_is_silent() -> None:
    async with cluster_of("n1") as cluster:
        running_on(cluster, "n1", *(worker(f"old-{i}", grace=0) for i in range(4)))
        async with deaf_from_planning_on(cluster) as scheduler:
            await until(lambda: cluster.bound("vip"))
            assert set(cluster.places()) == {"old-0", "old-1", "vip"}
            cluster.assert_no_node_is_overbooked()
            known = scheduler.state.pod("default/vip")
            assert known is not None and known.node == "n1"
            cluster.server.faults.clear()
            await until(lambda: scheduler.state.assumed_node("default/vip") is None)
            assert scheduler.state.usage.usage_of("n1")[0] == 3


@in_virtual_time
async def test_a_victim_that_a_finalizer_holds_keeps_its_room() -> None:
    async with cluster_of("n1") as cluster:
        running_on(cluster, "n1", *(worker(f"old-{i}", grace=0) for i in range(4)))
        store = cluster.server.store
        for name in cluster.places():
            store.update("pods", name, lambda old: {**old, "metadata": {**old["metadata"], "finalizers": ["a/b"]}})
        async with cluster.running():
            cluster.create(worker("vip", high=True, gpus=2))
            await until(lambda: len(ending(cluster)) == 2)
            await asyncio.sleep(0.2)
            assert not cluster.bound("vip")
            for name in ending(cluster):
                cluster.delete(name)
            await until(lambda: cluster.bound("vip"))
            cluster.assert_no_node_is_overbooked()
