# SPDX-License-Identifier: Apache-2.0
"""Planning time is shared among namespaces, live: counted in attempts, each of which takes as long."""

import asyncio
import time
from typing import Any

import pytest
from yarl import URL

from koordpy.attempts.unit_outcome import UnitOutcome
from koordpy.cache.cluster_state import ClusterState
from koordpy.cache.snapshot import Snapshot
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.scheduler import Scheduler
from koordpy.gangs.queue_units import Unit
from koordpy.planner import round_context as rounds
from tests.engine.live import QUICK, Live, gang, live, pod, small, until

GANGS = 100
SECONDS = 0.05
PART = QUICK.newcomer_seconds / SECONDS
"""Attempts after which those of others who wait go first."""
HONEST = "honest/p"


def never_fits(count: int) -> list[dict[str, Any]]:
    """Gangs of one namespace of which none is like another."""
    return [one for i in range(count) for one in gang(f"g{i}", 1, gpus=0, cpu=str(500 + i))]


def honest(**options: Any) -> dict[str, Any]:
    return pod("p", **{"namespace": "honest", "gpus": 0, "cpu": "1", "memory": "1Gi", **options})


class Work:
    """The attempts of rounds; in the middle of the first one after `during` of them the honest pod comes."""

    def __init__(self, cluster: Live, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tried: list[str] = []
        self.during = -1
        self.pause = 0.0
        """Seconds by the wall that each attempt takes once the pod came."""
        self.scheduler: Scheduler | None = None
        self._came = False
        self._cluster, self._loop, self._known = cluster, asyncio.get_running_loop(), rounds.plan_unit
        monkeypatch.setattr(rounds, "plan_unit", self)
        cluster.server.store.create("namespaces", {"metadata": {"name": "honest"}})

    def __call__(self, unit: Unit, *args: Any, **options: Any) -> UnitOutcome:
        if len(self.tried) >= self.during >= 0 and self.scheduler is not None and not self._came:
            self._came, self.during = True, len(self.tried)
            self._loop.call_soon_threadsafe(self._cluster.create, honest())
            for _ in range(30_000):
                if HONEST in self.scheduler.queue.unit_of:
                    break
                time.sleep(0.001)
            else:
                pytest.fail("the honest pod never came")
        if len(self.tried) >= self.during >= 0:
            time.sleep(self.pause)
        self.tried.append(unit.id)
        self._cluster.ahead_seconds += SECONDS
        return self._known(unit, *args, **options)


async def test_a_pod_that_comes_while_another_namespace_is_planned_waits_for_no_more_than_that_one_s_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with live([small("n1")]) as cluster:
        work = Work(cluster, monkeypatch)
        cluster.create(*never_fits(GANGS))
        async with cluster.running() as scheduler:
            # the loop looks by the wall whether somebody came
            work.scheduler, work.during, work.pause = scheduler, 3, SECONDS
            await until(lambda: cluster.bound("p"))
        assert work.tried.index(HONEST) <= work.during + PART + 2


async def test_a_pod_that_fits_does_not_wait_for_the_searches_of_another_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with live([small("n1", cpu=9)]) as cluster:
        work = Work(cluster, monkeypatch)
        work.pause = 0.005
        for i in range(3 * GANGS):
            cluster.create(*gang(f"g{i}", 2, gpus=0, cpu=f"{5000 + i}m"))
        async with cluster.running() as scheduler:
            work.scheduler, work.during = scheduler, 3
            await until(lambda: cluster.bound("p"))
            tried = len(set(work.tried))
        assert tried < work.during + GANGS


async def test_one_that_waits_with_many_of_another_namespace_waits_for_no_more_than_their_part_of_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with live([small("n1")]) as cluster:
        work = Work(cluster, monkeypatch)
        cluster.create(*never_fits(GANGS), honest(cpu="100"))
        async with cluster.running() as scheduler:
            await cluster.at_rest(scheduler, "pods")
            before = len(work.tried)
            cluster.nodes(small("n2", cpu=200))
            await until(lambda: cluster.bound("p"))
        assert before > GANGS
        assert work.tried[before:].index(HONEST) <= PART + 2


async def test_bindings_are_on_their_way_before_the_next_snapshot_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    async with live([small("n1", cpu=9)]) as cluster:
        work = Work(cluster, monkeypatch)
        order: list[str] = []
        send, snapshot = ApiClient._send, ClusterState.snapshot

        async def sending(self: ApiClient, method: str, url: URL, *args: Any, **options: Any) -> Any:
            if url.path.endswith("/binding"):
                order.append(url.path.split("/")[-2])
            return await send(self, method, url, *args, **options)

        def taking(self: ClusterState, now: float) -> Snapshot:
            order.append("snapshot")
            return snapshot(self, now)

        async with cluster.running() as scheduler:
            work.scheduler, work.during = scheduler, 0
            monkeypatch.setattr(ApiClient, "_send", sending)
            monkeypatch.setattr(ClusterState, "snapshot", taking)
            cluster.create(pod("a", gpus=0, cpu="1", memory="1Gi"))
            await until(lambda: cluster.bound("a") and cluster.bound("p"))
        assert order[: order.index("p")] == ["snapshot", "a", "snapshot"]
