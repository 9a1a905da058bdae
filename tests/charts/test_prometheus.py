# SPDX-License-Identifier: Apache-2.0
"""Every panel and every alert on a real Prometheus, while the demo is played and what operators fear happens.

Debian's package `prometheus` has what is needed; without it all of this is skipped, loudly.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from koordpy.api import keys
from koordpy.apiserver.fake_kubelet import FakeKubelet
from koordpy.apiserver.workload_controllers import WorkloadControllers
from koordpy.demo.acts import read_acts, read_cluster
from koordpy.engine.scheduler import Scheduler
from koordpy.observe.health_endpoints import HealthServer
from tests.charts.prometheus import JOB, LEASE, Prometheus, needed, prometheus, promtool
from tests.charts.test_dashboards import queries, rules
from tests.clusters import pod
from tests.engine.live import LONG_LEASE, Live, gang, live, small, until
from tests.engine.manifests import BUDGETS, DEVICES, GROUPS, QUOTAS, TOPOLOGIES

Json = dict[str, Any]
KINDS = {
    "Pod": "pods",
    "PodGroup": GROUPS,
    "Node": "nodes",
    "Device": DEVICES,
    "ClusterNetworkTopology": TOPOLOGIES,
    "PriorityClass": "priorityclasses.scheduling.k8s.io",
    "Job": "jobs.batch",
    "JobSet": "jobsets.jobset.x-k8s.io",
    "Service": "services",
}
WINDOW = "5m"
STEADY = {"KoordpyHasTwoLeaders", "KoordpySolverUndecided", "KoordpyWatchLag", "KoordpyMoreGangsDegraded"}
"""Alerts whose figure is there all the time, and stays 0 here: nothing of what happens should move it."""


def of_dashboard(query: str) -> str:
    """A query of a panel with its variables filled in, as Grafana does."""
    return query.replace("$job", JOB).replace("$resource", ".*").replace("$__rate_interval", WINDOW)


def figure(expression: str) -> str:
    """What an alert compares with its limit."""
    return re.split(r"\s(?:==|>)\s", expression)[0].replace("LEASE", LEASE)


PANELS = [(where, of_dashboard(query)) for where, query in queries() if where.startswith("koordpy.json")]
FIGURES = [(rule["alert"], figure(rule["expr"])) for rule in rules()]


@dataclass(frozen=True)
class Seen:
    """What Prometheus answered after everything, and the last page of metrics that it could have scraped."""

    answers: Mapping[str, Mapping[str, float]]
    page: str
    names: frozenset[str]
    """Of every pod, node and gang that there was."""


@pytest.fixture(scope="module")
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    program = needed(request, "prometheus")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("koordpy.observe.health_endpoints.METRICS_SECONDS", 0.0)
        return asyncio.run(play(program, tmp_path_factory.mktemp("prometheus")))


async def play(program: str, folder: Path) -> Seen:
    async with live() as cluster:
        store = cluster.server.store
        controllers, kubelet = WorkloadControllers(store), FakeKubelet(store)
        create(cluster, *read_cluster())
        async with cluster.running(lease=LONG_LEASE) as scheduler:
            await asyncio.wait_for(scheduler.leading.wait(), 60)
            health = HealthServer("127.0.0.1:0", metrics=scheduler.metrics, live={}, ready={})
            await health.start()
            try:
                async with prometheus(program, f"127.0.0.1:{health.port}", folder) as one:
                    await one.has_scraped_since(time.time())
                    for act in read_acts():
                        create(cluster, *act.objects)
                        await cluster.at_rest(scheduler, "pods")
                    await until(lambda: scheduler.metrics.victims.labels("priority")._value.get() > 0)
                    await misfortunes(cluster, scheduler, one)
                    await cluster.at_rest(scheduler, "pods")
                    await one.has_scraped_since(time.time())
                    return await look(one, cluster, scheduler.metrics.render().decode())
            finally:
                controllers.close()
                kubelet.close()
                await health.stop()


def create(cluster: Live, *manifests: Json) -> None:
    for manifest in manifests:
        cluster.server.store.create(KINDS[manifest["kind"]], manifest)


async def misfortunes(cluster: Live, scheduler: Scheduler, one: Prometheus) -> None:
    """What alerts are about, one after the other."""
    store, faults = cluster.server.store, cluster.server.faults
    # an invalid topology and quota, and an object that cannot be read
    store.create(QUOTAS, {"metadata": {"name": "good", "namespace": "default"}, "spec": {"max": {"cpu": "9"}}})
    store.create(
        QUOTAS,
        {"metadata": {"name": "bad", "namespace": "default"}, "spec": {"min": {"cpu": "2"}, "max": {"cpu": "1"}}},
    )
    odd = {"metadata": {"name": "odd", "namespace": "default"}, "spec": {"minAvailable": ["many"]}}
    store.create(BUDGETS, odd)
    topology = store.get(TOPOLOGIES, keys.TOPOLOGY_OBJECT, "")
    layers = [{**one, "parentTopologyLayer": "nowhere"} for one in topology["spec"]["hierarchy"]]
    store.replace(store.resource(TOPOLOGIES), ("", keys.TOPOLOGY_OBJECT), {**topology, "spec": {"hierarchy": layers}})
    # a node without the labels of the layers
    cluster.nodes(small("without-labels"))
    # events and Bindings that are refused, and a server that fails: twice, for a series that begins shows no increase
    for wave in range(2):
        happening = [
            faults.fail(403, method="POST", path="*/events", times=1),
            faults.fail(500, method="POST", path="*/events", times=1),
            faults.fail(422, method="POST", path="*/binding", times=1),
        ]
        for number in range(2):
            cluster.create(small_pod(f"refused-{wave}-{number}"), small_pod(f"vast-{wave}-{number}", gpus=64))
        await until(lambda faults=happening: not any(fault.times for fault in faults))
        await one.has_scraped_since(time.time())
    # half of a gang, bound by somebody else
    group, *members = gang("half", 2, gpus=0)
    members[1]["spec"]["nodeSelector"] = {"example.com/there": "is-none"}
    cluster.create(group, *members)
    cluster.bind("half-0", "node-1")
    # a pod that others bind while it is planned
    cluster.planner.hold = threading.Event()
    cluster.create(small_pod("taken"))
    await until(lambda: cluster.planner.tried("default/taken") > 0)
    cluster.bind("taken", "node-1")
    await until(lambda: (seen := scheduler.state.pod("default/taken")) is not None and seen.bound)
    cluster.planner.hold.set()
    await until(lambda: not scheduler.queue.entries.get("default/taken"))


def small_pod(name: str, **options: Any) -> Json:
    return pod(name, **{"gpus": 0, "cpu": "1", "memory": "1Gi", **options})


async def look(one: Prometheus, cluster: Live, page: str) -> Seen:
    answers = {query: await one.ask(query) for _, query in (*PANELS, *FIGURES)}
    store = cluster.server.store
    names = {obj["metadata"]["name"] for kind in ("pods", "nodes", GROUPS) for obj in store.list(kind)}
    return Seen(answers, page, frozenset(names))


@pytest.mark.parametrize(("where", "query"), PANELS, ids=[f"{where} {query[:30]}" for where, query in PANELS])
def test_every_panel_has_data_once_something_happened(seen: Seen, where: str, query: str) -> None:
    found = seen.answers[query]
    assert found, query
    if "rate(" in query or "increase(" in query:
        assert any(value > 0 for value in found.values()), (query, found)


@pytest.mark.parametrize(("alert", "query"), FIGURES, ids=[alert for alert, _ in FIGURES])
def test_every_alert_sees_what_it_is_about(seen: Seen, alert: str, query: str) -> None:
    found = seen.answers[query]
    assert found, query
    if alert not in STEADY:
        assert any(value > 0 for value in found.values()), (query, found)


NAMING = ("koordpy_gang_degraded", "koordpy_gang_degraded_seconds", "koordpy_unit_pending_seconds")
"""Metrics that name a bounded number of gangs and pods."""


def test_no_name_of_a_pod_a_node_or_a_gang_is_a_label_elsewhere(seen: Seen) -> None:
    lines = [line for line in seen.page.splitlines() if not line.startswith(NAMING)]
    values = set(re.findall(r'="([^"]*)"', "\n".join(lines)))
    assert {part for value in values for part in (value, value.rpartition("/")[2])} & seen.names == set()


def test_promtool_has_nothing_against_the_metrics(seen: Seen, request: pytest.FixtureRequest) -> None:
    assert promtool(request, "check", "metrics", given=seen.page) == ""
