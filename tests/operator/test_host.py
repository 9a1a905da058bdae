# SPDX-License-Identifier: Apache-2.0
"""The process: kopf beside the scheduler, its failures survived, topology status written, signals, health."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from koordpy.apiserver.embedded_server import ApiServer
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.config.configuration_file import read_config
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.credentials import ClusterAccess
from koordpy.engine.engine_settings import EngineSettings
from koordpy.operator import kopf_handlers
from koordpy.operator.kopf_handlers import KopfThread
from koordpy.operator.process_host import OperatorHost
from koordpy.planner.planning_round import plan_round
from tests.clusters import pod, topology, training_cluster
from tests.engine.scripted import until
from tests.engine.tuning import NO_LEASE, tuned
from tests.faults import FaultyServer

TOPOLOGIES = "clusternetworktopologies.scheduling.koordinator.sh"


async def nothing() -> None: ...


async def test_kopf_is_started_again_when_it_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kopf_handlers, "FIRST_PAUSE_SECONDS", 0.01)

    async def ends(**_: Any) -> None:
        raise RuntimeError("HTTP 410")

    monkeypatch.setattr("kopf.operator", ends)
    thread = KopfThread(
        ClusterAccess("http://127.0.0.1:9"), asyncio.get_running_loop(), started=nothing, drained=nothing,
        topology_seen=lambda body, deleted: None,
    )  # fmt: skip
    thread.start()
    await until(lambda: thread.starts >= 3)
    thread.stop()
    await thread.join()
    assert not any(other.name == "kopf" for other in threading.enumerate())


@asynccontextmanager
async def hosting(server: ApiServer) -> AsyncIterator[OperatorHost]:
    """A host that leads; it ends in order."""
    config = KoordpyConfiguration(bind_address="127.0.0.1:0")
    async with ApiClient(ClusterAccess(server.url), qps=0, timeout_seconds=5.0) as client:
        host = OperatorHost(
            client,
            lambda snapshot, only, budget: plan_round(snapshot, config, only=only, budget=budget),
            settings=tuned(EngineSettings(), lease=NO_LEASE),
            config=config,
            settle_seconds=0.05,
        )
        task = asyncio.create_task(host.run())
        await asyncio.wait_for(host.scheduler.leading.wait(), 60)
        try:
            yield host
            assert not task.done(), "it ended by itself"
        finally:
            host.stop()
            status = await asyncio.wait_for(task, 60)
    assert status == 0


async def test_the_host_schedules_writes_the_topology_status_and_ends_in_order() -> None:
    cluster = training_cluster(8)
    async with FaultyServer() as server:
        for node in cluster.nodes:
            server.store.create("nodes", node)
        server.store.create(TOPOLOGIES, cluster.topology)
        async with hosting(server) as host:

            def status(name: str = "default") -> dict[str, Any]:
                found: dict[str, Any] = server.store.get(TOPOLOGIES, name).get("status", {})
                return found

            await until(lambda: status().get("detailStatus"))
            assert status()["detailStatus"][0]["nodeNum"] == 8
            # the other object is seen by kopf alone
            server.store.create(TOPOLOGIES, topology("other"))
            await until(lambda: status("other").get("conditions"))
            assert status("other")["conditions"][0]["reason"] == "NotUsed"
            server.store.create("nodes", training_cluster(9).nodes[8])
            await until(lambda: status()["detailStatus"][0]["nodeNum"] == 9)

            server.store.create("pods", pod("p", gpus=1))
            await until(lambda: server.store.get("pods", "p", "default")["spec"].get("nodeName"))
            # kopf has put nothing on the objects
            for name in ("default", "other"):
                meta = server.store.get(TOPOLOGIES, name)["metadata"]
                assert not meta.get("annotations") and not meta.get("finalizers")

            async with aiohttp.ClientSession(f"http://127.0.0.1:{host.health.port}") as http:
                for path in ("/healthz", "/livez", "/readyz"):
                    assert (await http.get(path)).status == 200
                assert "[+]caches ok" in await (await http.get("/readyz?verbose")).text()
                metrics = await (await http.get("/metrics")).text()
                assert 'koordpy_binds_total{outcome="bound"} 1.0' in metrics
                assert 'scheduler_schedule_attempts_total{profile="koord-scheduler",result="scheduled"} 1.0' in metrics
                shown = read_config(await (await http.get("/configz")).read(), name="configz.json")
                assert shown == KoordpyConfiguration(bind_address="127.0.0.1:0")
                dump = await (await http.get("/debug/snapshot")).json()
                assert {"ClusterNetworkTopology", "Node", "Pod"} <= {item["kind"] for item in dump["items"]}
                assert await (await http.get("/debug/queue")).json() == []
                assert (await (await http.get("/debug/decisions")).json())[0]["unit"] == "default/p"
                seen = await (await http.get("/debug/view")).json()
                assert seen["decisions"][0]["unit"] == "default/p"
                assert seen["pods"]["default/p"][0] == seen["decisions"][0]["nodes"][0]
                pages = "/debug/decisions\n/debug/queue\n/debug/snapshot\n/debug/unreadable\n"
                pages += "/debug/view\n/debug/view/events\n/debug/view/help\n"
                for path in ("/debug", "/debug/"):
                    assert await (await http.get(path)).text() == pages
                missing = await http.get("/debug/nothing")
                assert missing.status == 404 and pages in await missing.text()


async def test_a_topology_that_became_invalid_is_a_warning_in_the_log_an_event_and_a_metric(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("WARNING", logger="koordpy.operator.topology_status")
    cluster = training_cluster(8)
    async with FaultyServer() as server:
        for node in cluster.nodes:
            server.store.create("nodes", node)
        server.store.create(TOPOLOGIES, cluster.topology)
        async with hosting(server) as host:
            metrics = host.scheduler.metrics
            await until(lambda: host.topologies.sent)
            assert "koordpy_topology_faults 0.0" in metrics.render().decode()

            def break_it(obj: dict[str, Any]) -> dict[str, Any]:
                first, *others = obj["spec"]["hierarchy"]
                first = {name: value for name, value in first.items() if name != "labelKey"}
                return {**obj, "spec": {"hierarchy": [first, *others]}}

            server.store.update(TOPOLOGIES, "default", break_it)
            server.store.create(TOPOLOGIES, topology("other"))
            await until(lambda: len(server.store.list("events.events.k8s.io")) == 2)
            assert "koordpy_topology_faults 1.0" in metrics.render().decode()
        told = {event["involvedObject"]["name"]: event for event in server.store.list("events.events.k8s.io")}
        assert {(event["type"], event["reason"]) for event in told.values()} == {("Warning", "InvalidAnnotation")}
        fault = (
            "spec.hierarchy[0].labelKey: layer datacenterLayer needs a label key; only the lowest layer may have none"
        )
        assert fault in told["default"]["message"]
        assert told["default"]["message"].endswith(
            "the hierarchy in use is still datacenterLayer > spineLayer > blockLayer > acceleratorLayer > nodeLayer"
        )
        assert told["other"]["message"] == "only the object named default is used"
        logged = [record.getMessage() for record in caplog.records]
        assert sorted(logged) == sorted(
            f"ClusterNetworkTopology {name}: {one['message']}" for name, one in told.items()
        )


async def test_kopf_lives_where_its_user_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the image, whose user is a number that stands in no file."""

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 65532")

    monkeypatch.setattr("getpass.getuser", nameless)
    async with FaultyServer() as server, hosting(server):
        server.store.create(TOPOLOGIES, topology("other"))
        await until(lambda: server.store.get(TOPOLOGIES, "other").get("status"))


async def test_a_scheduler_goes_on_while_kopf_cannot_live() -> None:
    """A watch that has not been answered is the worst: kopf may lose the cancellation of it as it ends."""
    async with FaultyServer() as server:
        server.store.create("nodes", training_cluster(1).nodes[0])
        async with hosting(server) as host:
            # by kopf alone: the first it may have listed, the second tells that its watch is open
            for name in ("other", "another"):
                server.store.create(TOPOLOGIES, topology(name))
                await until(lambda name=name: server.store.get(TOPOLOGIES, name).get("status"))  # type: ignore[misc]
            server.faults.fail(410, method="WATCH", path="*clusternetworktopologies*")
            server.faults.fail("timeout", method="WATCH", path="*customresourcedefinitions*")
            server.faults.drop_watches(abort=True)
            await until(lambda: host.kopf is not None and host.kopf.starts > 1)
            for i in range(5):
                server.store.create("pods", pod(f"p-{i}", gpus=1))
                await until(lambda i=i: server.store.get("pods", f"p-{i}", "default")["spec"].get("nodeName"))  # type: ignore[misc]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_command_runs_binds_and_ends_on_a_signal(tmp_path: Path, number: int) -> None:
    async with FaultyServer() as server:
        server.store.create("nodes", training_cluster(1).nodes[0])
        file = tmp_path / "kubeconfig"
        file.write_text(server.kubeconfig())
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "koordpy.cli.main", "run", "--kubeconfig", str(file),
            "--bind-address", "127.0.0.1:0", "--log-format", "json",
            stderr=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        try:
            server.store.create("pods", pod("p", gpus=1))
            bound = lambda: server.store.get("pods", "p", "default")["spec"].get("nodeName")  # noqa: E731
            await until(lambda: bound() or process.returncode is not None)
            assert process.returncode is None, (await process.communicate())[1].decode()
            process.send_signal(number)
            _, log = await asyncio.wait_for(process.communicate(), 60)
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 0
        assert b'"msg":"stopping"' in log
        lease = server.store.get("leases.coordination.k8s.io", "koordpy", "kube-system")
        assert lease["spec"]["holderIdentity"] == ""
