# SPDX-License-Identifier: Apache-2.0
"""What is said of credentials, rights, definitions and leases that are not as they should be: once, and by name."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from koordpy.apiserver.embedded_server import ApiServer
from koordpy.engine.client import complaints
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.api_errors import ApiError
from koordpy.engine.client.complaints import AGAIN_SECONDS, Complaints
from koordpy.engine.client.credentials import ClusterAccess
from koordpy.engine.engine_settings import EngineSettings
from koordpy.engine.scheduler import Scheduler
from koordpy.plan.round_plan import RoundPlan
from tests.engine.live import QUICK, QUICK_LEASE, in_virtual_time, live, small
from tests.engine.scripted import until
from tests.engine.tuning import tuned
from tests.faults import FaultyServer

DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"
NOBODY = RoundPlan((), (), (), (), ())


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(complaints, "GATHER_SECONDS", 0.6)
    caplog.set_level(logging.INFO, logger="koordpy")


def loud(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@asynccontextmanager
async def starting(server: ApiServer) -> AsyncIterator[Scheduler]:
    """A scheduler that may never be ready."""
    settings = tuned(EngineSettings(), lease=QUICK_LEASE)
    async with ApiClient(ClusterAccess(server.url, source="a file"), qps=0) as client:
        scheduler = Scheduler(client, lambda *_: NOBODY, settings=settings)
        task = asyncio.create_task(scheduler.run())
        try:
            yield scheduler
        finally:
            scheduler.stop()
            await asyncio.wait_for(task, 60)


async def test_rejected_credentials_are_one_line_that_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async with FaultyServer() as server:
        fault = server.faults.fail(401)
        async with starting(server):
            await until(lambda: fault.hits > 100)
        (line,) = loud(caplog)
        assert line.startswith(f"credentials rejected by {server.url} (401 ")
        assert line.endswith("source: a file; retrying")


async def test_missing_rights_are_one_line_with_verbs_and_resources(caplog: pytest.LogCaptureFixture) -> None:
    async with FaultyServer() as server:
        fault = server.faults.fail(403)
        async with starting(server):
            await until(lambda: loud(caplog))
            hits = fault.hits
            await until(lambda: fault.hits > hits + 40)
        (line,) = loud(caplog)
        assert (
            line.startswith("no right to ")
            and "list and watch clusternetworktopologies." in line
            and ", pods, " in line
        )
        assert "get, create and update the Lease kube-system/koordpy" in line


@in_virtual_time
async def test_a_right_that_is_missing_for_long_is_told_again_and_a_new_one_at_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(complaints, "GATHER_SECONDS", 0.0)
    clock = [0.0]
    told = Complaints(ClusterAccess("https://api"), clock=lambda: clock[0])
    for clock[0], status, resource, lines in (
        (0.0, 403, "pods", 1),
        (1.0, 403, "pods", 1),
        (2.0, 403, "nodes", 2),
        (2.0 + AGAIN_SECONDS, 403, "pods", 3),
        (2.0 + AGAIN_SECONDS, 401, "pods", 4),
        (3.0 + AGAIN_SECONDS, 401, "nodes", 4),
    ):
        assert told.take(ApiError(status, "No", "it says so"), "list and watch", resource)
        await asyncio.sleep(0.01)
        assert len(loud(caplog)) == lines
    assert not told.take(ApiError(500), "list and watch", "pods")


async def test_definitions_that_are_not_installed_are_one_warning_and_optional_ones_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with live([small("n1")]) as cluster:
        for name in ("podgroups.scheduling.sigs.k8s.io", "devices.scheduling.koordinator.sh"):
            cluster.server.store.remove(DEFINITIONS, name)
        async with cluster.running() as scheduler:
            expected = (
                "Device (scheduling.koordinator.sh), PodGroup (scheduling.sigs.k8s.io) are not installed:"
                " kubectl apply -f crds/"
            )
            assert loud(caplog) == [expected]
            assert [one for one in caplog.text.splitlines() if "not served" in one and "gangs.auto" not in one] == []
            cluster.pod("p")
            await until(lambda: cluster.bound("p"))
            assert scheduler.inspection.ready_checks()["caches"]() == ""


async def test_a_definition_that_is_taken_away_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    async with live([small("n1")]) as cluster, cluster.running():
        assert loud(caplog) == []
        cluster.server.store.remove(DEFINITIONS, "podgroups.scheduling.sigs.k8s.io")
        await until(lambda: "podgroups.scheduling.sigs.k8s.io: not served by the API server" in caplog.text)


async def test_a_new_leader_says_so_by_an_event_on_the_lease() -> None:
    async with live([small("n1")]) as cluster, cluster.running(QUICK, lease=QUICK_LEASE) as scheduler:
        assert scheduler.elector is not None
        await until(lambda: cluster.events())
        (event,) = cluster.events()
        lease = cluster.server.store.get("leases.coordination.k8s.io", "koordpy", "kube-system")
        assert event["involvedObject"]["uid"] == lease["metadata"]["uid"]
        assert (event["type"], event["reason"]) == ("Normal", "LeaderElection")
        assert event["message"] == f"{scheduler.elector.identity} became leader"
        assert event["metadata"]["namespace"] == "kube-system"
        assert b'koordpy_leader{lease="kube-system/koordpy"} 1.0' in scheduler.metrics.render()
