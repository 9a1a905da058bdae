# SPDX-License-Identifier: Apache-2.0
"""The engine's I/O as a whole, against the embedded API server: on a good day and on a very bad one."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest

from koordpy.api.objects import Pod
from koordpy.apiserver.embedded_server import ApiServer
from koordpy.config.configuration import LeaderElection
from koordpy.engine.binding.binder import Binder, Binding, BindResult
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.api_resources import POD_GROUPS, PODS, UPSTREAM_POD_GROUPS, Wanted, discover
from koordpy.engine.client.credentials import load_access
from koordpy.engine.client.leader_lease import LeaderElector
from koordpy.engine.status import status_patches
from koordpy.engine.status.event_recorder import EventRecorder, ObjectReference
from koordpy.engine.watching.pod_intake import PodIntake
from koordpy.engine.watching.reflector import Reflector
from koordpy.engine.watching.reflector_policy import ReflectorPolicy
from tests.engine.scripted import until
from tests.faults import FaultyServer

FAST = ReflectorPolicy(
    page_limit=7, first_backoff_seconds=0.005, most_backoff_seconds=0.02, unserved_recheck_seconds=0.05
)


class Mirror:
    """A sink that holds what it was told, and checks the promises made to it."""

    def __init__(self) -> None:
        self.held: dict[str, Pod] = {}
        self.by_name: dict[str, Pod] = {}

    def upsert(self, obj: Pod, old: Pod | None) -> None:
        assert self.held.get(obj.metadata.uid) is old
        if old is None:
            assert obj.key not in self.by_name, "a namesake must have been deleted before"
        self.held[obj.metadata.uid] = self.by_name[obj.key] = obj

    def delete(self, obj: Pod) -> None:
        assert self.held.pop(obj.metadata.uid) is obj
        assert self.by_name.pop(obj.key) is obj


@asynccontextmanager
async def cluster(tmp_path: Any) -> AsyncIterator[tuple[ApiServer, ApiClient]]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(FaultyServer(bookmark_seconds=0.05))
        config = tmp_path / "kubeconfig"
        config.write_text(server.kubeconfig())
        client = await stack.enter_async_context(ApiClient(await load_access(str(config)), qps=0))
        yield server, client


@asynccontextmanager
async def running(*tasks: Any) -> AsyncIterator[None]:
    started = [asyncio.create_task(task) for task in tasks]
    try:
        yield
    finally:
        for task in started:
            failed = task.done() and not task.cancelled() and task.exception()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            assert not failed


def a_pod(name: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulerName": "koord-scheduler", "containers": [{"name": "main", "image": "i"}]},
    }


def stored(server: ApiServer) -> dict[str, str]:
    return {pod["metadata"]["uid"]: pod["metadata"]["resourceVersion"] for pod in server.store.list("pods")}


def mirrored(sink: Mirror) -> dict[str, str]:
    return {uid: pod.metadata.resource_version for uid, pod in sink.held.items()}


async def test_a_pod_is_seen_told_of_bound_and_seen_bound(tmp_path: Any) -> None:
    async with cluster(tmp_path) as (server, client):
        server.store.create("nodes", {"metadata": {"name": "n1"}})
        server.store.create("pods", a_pod("a"), namespace="default")
        sink = Mirror()
        reflector = Reflector(client, PODS, Pod, sink, transform=PodIntake(), policy=FAST)
        lost: list[str] = []
        recorder = EventRecorder(client, controller="koord-scheduler", qps=0, burst=1, on_lost=lost.append)
        async with running(reflector.run(), recorder.run()):
            await asyncio.wait_for(reflector.synced.wait(), 60)
            (pod,) = sink.held.values()
            said = status_patches.pod_unschedulable(pod, reason="Unschedulable", message="no", now=time.time())
            assert said and await status_patches.patch_status(client, PODS, pod.metadata, said, kind="strategic")
            await until(lambda: next(iter(sink.held.values())).status.conditions)
            pod = sink.held[pod.metadata.uid]
            assert status_patches.pod_unschedulable(pod, reason="Unschedulable", message="no", now=time.time()) == {}
            binding = Binding("default", "a", pod.metadata.uid, "n1", {"scheduling.koordinator.sh/rank": "0"})
            assert (await Binder(client).bind(binding)).result is BindResult.BOUND
            again = await Binder(client).bind(binding)
            assert again.result is BindResult.BOUND and again.message
            other = Binding("default", "a", "another-uid", "n1")
            assert (await Binder(client).bind(other)).result is BindResult.GONE
            await until(lambda: sink.held[pod.metadata.uid].spec.node_name == "n1")
            assert sink.held[pod.metadata.uid].metadata.annotations["scheduling.koordinator.sh/rank"] == "0"
            about = ObjectReference("v1", "Pod", "a", "default", pod.metadata.uid)
            recorder.record(about, type="Normal", reason="Scheduled", action="Binding", note="to n1")
            await recorder.drain(5)
            assert recorder.sent == 1 and not lost


async def test_bindings_through_a_storm_of_faults_are_each_made_once_and_known(tmp_path: Any) -> None:
    async with cluster(tmp_path) as (server, client):
        server.store.create("nodes", {"metadata": {"name": "n1"}})
        bindings = []
        for n in range(60):
            pod = server.store.create("pods", a_pod(f"p{n}"), namespace="default")
            bindings.append(Binding("default", f"p{n}", pod["metadata"]["uid"], "n1"))
        server.faults.seed(3)
        server.faults.fail("drop", method="POST", path="*/binding", share=0.15, after=True)
        server.faults.fail(500, method="POST", path="*/binding", share=0.15, after=True)
        server.faults.fail(504, method="POST", path="*/binding", share=0.1, after=False)
        server.faults.fail("drop", method="POST", path="*/binding", share=0.1, after=False)
        server.faults.fail(503, method="GET", path="*/pods/p*", share=0.15)
        binder = Binder(client, settle_seconds=0.05)
        outcomes = await asyncio.wait_for(asyncio.gather(*map(binder.bind, bindings)), 60)
        for binding, outcome in zip(bindings, outcomes, strict=True):
            node = server.store.get("pods", binding.name, "default")["spec"].get("nodeName")
            assert outcome.result is (BindResult.BOUND if node == "n1" else BindResult.REFUSED)
        assert {outcome.result for outcome in outcomes} == {BindResult.BOUND, BindResult.REFUSED}
        assert any(outcome.message and outcome.result is BindResult.BOUND for outcome in outcomes)


@pytest.mark.parametrize("seed", range(4))
async def test_through_any_weather_the_mirror_ends_equal_to_the_server(tmp_path: Any, seed: int) -> None:
    dice = random.Random(seed)
    async with cluster(tmp_path) as (server, client):
        sink = Mirror()
        reflector, answers = Reflector(client, PODS, Pod, sink, policy=FAST), Counter[str]()
        client.on_answer = lambda method, code, seconds: answers.update([code])
        server.faults.seed(seed)
        async with running(reflector.run()):
            await until(lambda: reflector.synced.is_set())
            names: set[str] = set()
            for _ in range(400):
                name = f"p{dice.randrange(40)}"
                if name not in names:
                    server.store.create("pods", a_pod(name), namespace="default")
                    names.add(name)
                elif dice.random() < 0.4:
                    server.store.remove("pods", name, "default")
                    names.discard(name)
                else:
                    label = {"labels": {"at": str(dice.random())}}
                    server.store.update(
                        "pods", name, lambda pod, label=label: pod | {"metadata": pod["metadata"] | label},
                        namespace="default",
                    )  # fmt: skip
                weather = dice.random()
                if weather < 0.03:
                    server.faults.drop_watches(abort=True)
                elif weather < 0.05:
                    server.faults.drop_watches()
                elif weather < 0.08:
                    server.faults.expire_versions()
                    server.faults.drop_watches(abort=dice.random() < 0.5)
                elif weather < 0.12:
                    effect: Any = dice.choice([500, 503, 410, "drop"])
                    server.faults.fail(effect, method=dice.choice(["GET", "WATCH"]), path="/api/v1/pods*", times=2)
                if dice.random() < 0.3:
                    await asyncio.sleep(dice.random() * 0.01)
            server.faults.clear()
            await until(lambda: stored(server) == mirrored(sink))
            assert {uid: pod.metadata.resource_version for uid, pod in reflector.objects.items()} == stored(server)
        assert answers["200"] > 2 and len(answers) > 1 and not reflector.unreadable


async def test_of_two_replicas_one_leads_and_the_other_takes_over(tmp_path: Any) -> None:
    async with cluster(tmp_path) as (server, client):
        election = LeaderElection(lease_duration=60.0, renew_deadline=40.0, retry_period=0.5)
        first = LeaderElector(client, election, identity="first")
        second = LeaderElector(client, election, identity="second")
        async with AsyncExitStack() as replicas:
            leads = await replicas.enter_async_context(AsyncExitStack())
            await leads.enter_async_context(running(second.run()))
            await asyncio.wait_for(second.acquired.wait(), 60)
            await replicas.enter_async_context(running(first.run()))
            await until(lambda: first.leader == "second")
            assert second.may_write() and not first.acquired.is_set()
            fault = server.faults.fail(500, method="PUT", path="*/leases/*", times=2)
            await until(lambda: fault.hits == 2)
            renewed = second._renewed_at
            await until(lambda: second._renewed_at > renewed)
            assert not second.lost.is_set()
            await leads.aclose()
            await second.release()
            await asyncio.wait_for(first.acquired.wait(), 60)
            assert first.epoch == second.epoch + 1 and not second.may_write()


async def test_discovery_and_resources_that_are_not_served(tmp_path: Any) -> None:
    async with cluster(tmp_path) as (_, client):
        ours = Wanted(POD_GROUPS.group, POD_GROUPS.plural, ("v9", POD_GROUPS.version))
        found = await discover(client, [ours, UPSTREAM_POD_GROUPS])
        assert found[ours] == POD_GROUPS and found[UPSTREAM_POD_GROUPS] is None
