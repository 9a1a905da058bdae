# SPDX-License-Identifier: Apache-2.0
"""Binding when things go wrong: never double-booked, never half-bound in silence."""

import asyncio
import json
import threading
import time
from collections import Counter
from typing import Any

import pytest

from koordpy.api import keys
from koordpy.apiserver.resource_shelf import Change
from koordpy.engine.binding.binder import Binding, BindOutcome, BindResult
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.credentials import ClusterAccess
from koordpy.engine.scheduler import Scheduler
from tests.engine.live import LONG_LEASE, QUICK_LEASE, Live, gang, in_virtual_time, live, pod, small, until
from tests.engine.manifests import DEVICES, minors
from tests.engine.stage import device
from tests.engine.tuning import tuned

MEMBERS = [f"g-{i}" for i in range(8)]


@pytest.mark.parametrize(
    ("effect", "after"),
    [(409, False), (429, False), (500, False), (500, True), (503, False), (504, True), ("drop", False), ("drop", True)],
)
async def test_a_gang_is_bound_whatever_a_few_bindings_meet(effect: Any, after: bool) -> None:
    async with live([small("n1"), small("n2")]) as cluster:
        fault = cluster.server.faults.fail(effect, method="POST", path="*/binding", times=3, after=after, retry_after=0)
        async with cluster.running():
            cluster.create(*gang("g", 8, gpus=1))
            await until(lambda: cluster.bound(*MEMBERS))
        assert fault.hits == 3
        cluster.assert_no_node_is_overbooked()


async def test_bindings_without_an_answer_are_looked_into_before_they_are_sent_again() -> None:
    async with live([small("n1")]) as cluster:
        cluster.server.faults.fail("timeout", method="POST", path="*/g-1/binding", times=1)
        client = ApiClient(ClusterAccess(cluster.server.url), qps=0, timeout_seconds=0.3)
        async with cluster.running(client=client):
            cluster.create(*gang("g", 2, gpus=1))
            await until(lambda: cluster.bound("g-0", "g-1"))
        cluster.assert_no_node_is_overbooked()


async def test_a_lost_reply_keeps_the_room_until_the_outcome_is_known() -> None:
    async with live([small("n1", cpu=4)]) as cluster:
        cluster.server.faults.fail("drop", method="POST", path="*/first/binding", times=1, after=True)
        cluster.server.faults.fail(500, method="GET", path="*/pods/first", times=6)
        async with cluster.running() as scheduler:
            cluster.pod("first", cpu="3")
            await until(lambda: cluster.bound("first"))
            cluster.pod("second", cpu="3")
            await until(lambda: cluster.condition("second").get("status") == "False")
            assert cluster.places() == {"first": "n1"}
            await until(lambda: not scheduler.committer.open)
        cluster.assert_no_node_is_overbooked()


async def test_a_pod_that_another_scheduler_took_counts_where_that_put_it() -> None:
    async with live([small("n1", cpu=4), small("n2", cpu=4)]) as cluster, cluster.running() as scheduler:
        hold = cluster.planner.hold = threading.Event()
        cluster.pod("p", cpu="3")
        await until(lambda: cluster.planner.tried("default/p") == 1)
        cluster.bind("p", "n2")
        cluster.planner.hold = None
        hold.set()
        cluster.pod("q", cpu="3")
        await until(lambda: cluster.bound("q"))
        assert cluster.places() == {"p": "n2", "q": "n1"}
        await until(lambda: not scheduler.committer.open)


@pytest.mark.parametrize(
    ("found_by", "there"), [("a conflict", "n2"), ("a conflict", "n1"), ("looking after it", "n2")]
)
async def test_a_pod_that_another_took_holds_the_gpus_that_its_binding_says(found_by: str, there: str) -> None:
    """Before the watch says so: it is down."""
    async with live([small("n1"), small("n2")]) as cluster:
        for name in ("n1", "n2"):
            cluster.server.store.create(DEVICES, device(name))
        async with cluster.running() as scheduler:
            hold = cluster.planner.hold = threading.Event()
            cluster.pod("p", gpus=2)
            await until(lambda: cluster.planner.tried("default/p") == 1)
            cluster.server.faults.fail(503, method="WATCH", path="*/pods")
            cluster.server.store.end_watches("pods")
            real = scheduler.binder.bind
            if found_by != "a conflict":
                # the reply says that it is ours
                async def lie(binding: Any, **options: Any) -> Any:
                    return BindOutcome(BindResult.BOUND)

                scheduler.binder.bind = lie  # type: ignore[method-assign]
            theirs = {keys.GPU_ALLOCATION: json.dumps({"allocatedGPUs": {"0": ["2", "3"]}})}
            cluster.server.store.update(
                "pods", "p", lambda old: {**old, "metadata": {**old["metadata"], "annotations": theirs}},
                namespace="default",
            )  # fmt: skip
            cluster.bind("p", there)
            cluster.planner.hold = None
            hold.set()

            def known() -> bool:
                info = scheduler.state.pod("default/p")
                return info is not None and info.bound and info.pod.spec.node_name == there

            await until(known)
            info = scheduler.state.pod("default/p")
            assert info is not None
            assert info.pod.metadata.annotations[keys.GPU_ALLOCATION] == theirs[keys.GPU_ALLOCATION]
            scheduler.binder.bind = real  # type: ignore[method-assign]
            cluster.server.faults.clear()
            cluster.create(pod("q", gpus=4, cpu="0", memory="1Mi"), pod("r", gpus=2, cpu="0", memory="1Mi"))
            await until(lambda: cluster.bound("q", "r"))
            assert minors(cluster.pods()["r"]) == [0, 1]
            assert cluster.places()["r"] == there
            if found_by == "a conflict":
                assert await _told(cluster, "q", "r") == {"q", "r"}, "whoever bound a pod tells of it"


async def _told(cluster: Live, *names: str) -> set[str]:
    """Pods of which events say that they were scheduled, once these are among them."""

    def told() -> set[str]:
        return {event["involvedObject"]["name"] for event in cluster.events() if event["reason"] == "Scheduled"}

    await until(lambda: set(names) <= told())
    return told()


async def test_a_foreign_pod_that_takes_the_room_meanwhile_overtakes_the_plan() -> None:
    async with live([small("n1", cpu=4)]) as cluster, cluster.running() as scheduler:
        hold = cluster.planner.hold = threading.Event()
        cluster.create(*gang("g", 2, gpus=0, cpu="2"))
        await until(lambda: cluster.planner.tried("gang:default/g") > 0)
        cluster.pod("theirs", cpu="3", scheduler_name="default-scheduler")
        cluster.bind("theirs", "n1")
        await until(lambda: scheduler.state.usage.usage_of("n1")[0] == 1)
        cluster.planner.hold = None
        hold.set()
        await until(lambda: cluster.condition("g-0").get("status") == "False")
        assert cluster.places() == {"theirs": "n1"}
        assert b'koordpy_conflicts_total{kind="overtaken_room"}' in scheduler.metrics.render()


async def test_a_node_deleted_while_it_is_planned_on_is_not_bound_to() -> None:
    async with live([small("n1"), small("n2")]) as cluster, cluster.running() as scheduler:
        hold = cluster.planner.hold = threading.Event()
        cluster.create(*gang("g", 8, gpus=1))
        await until(lambda: cluster.planner.tried("gang:default/g") > 0)
        cluster.server.store.remove("nodes", "n2")
        await until(lambda: scheduler.state.nodes.get("n2") is None)
        cluster.planner.hold = None
        hold.set()
        await until(lambda: cluster.condition("g-0").get("status") == "False")
        assert cluster.places() == {}
        cluster.nodes(small("n3"))
        await until(lambda: cluster.bound(*MEMBERS))
        assert set(cluster.places().values()) == {"n1", "n3"}


async def test_a_member_deleted_while_the_gang_is_planned_takes_the_plan_back_as_a_whole() -> None:
    async with live([small("n1"), small("n2")]) as cluster, cluster.running() as scheduler:
        hold = cluster.planner.hold = threading.Event()
        cluster.create(*gang("g", 8, gpus=1))
        await until(lambda: cluster.planner.tried("gang:default/g") > 0)
        await until(lambda: scheduler.state.pod("default/g-7") is not None)
        cluster.delete("g-7")
        await until(lambda: scheduler.state.pod("default/g-7") is None)
        cluster.planner.hold = None
        hold.set()
        await until(lambda: "7 of minMember 8" in cluster.condition("g-0").get("message", ""))
        assert cluster.places() == {}


async def test_a_pod_recreated_under_its_name_while_it_is_planned_is_planned_anew() -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        hold = cluster.planner.hold = threading.Event()
        cluster.pod("p")
        await until(lambda: cluster.planner.tried("default/p") == 1)
        cluster.delete("p")
        cluster.pod("p", cpu="64")
        uid = cluster.pods()["p"]["metadata"]["uid"]
        await until(lambda: (info := scheduler.state.pod("default/p")) is not None and info.uid == uid)
        cluster.planner.hold = None
        hold.set()
        await until(lambda: cluster.condition("p").get("status") == "False")
        assert cluster.places() == {}


async def test_a_pod_that_the_api_server_does_not_know_any_more_is_not_lost_to_its_gang() -> None:
    """404 for one Binding: the others stay bound, and the pod, which is there after all, joins them."""
    async with live([small("n1"), small("n2")]) as cluster:
        cluster.server.faults.fail(404, method="POST", path="*/g-3/binding", times=1)
        async with cluster.running():
            cluster.create(*gang("g", 8, gpus=1))
            await until(lambda: len(cluster.places()) == 7)
            await until(lambda: cluster.bound(*MEMBERS))
        ranks = {name: obj["metadata"]["annotations"][keys.BOUND_RANK] for name, obj in cluster.pods().items()}
        assert ranks["g-3"] == "3"
        cluster.assert_no_node_is_overbooked()


@in_virtual_time
async def test_a_pod_that_is_gone_is_forgotten_before_the_watch_says_so() -> None:
    """404 and gone: its room is for others at once, and no Binding is tried again."""
    async with live([small("n1", cpu=4)]) as cluster:
        hold = cluster.planner.hold = threading.Event()
        async with cluster.running() as scheduler:
            sent = count_bindings(scheduler)
            cluster.pod("p", cpu="3")
            await until(lambda: cluster.planner.tried("default/p") == 1)
            cluster.server.faults.fail(503, method="WATCH", path="/api/v1/pods")
            cluster.server.faults.drop_watches("pods", abort=True)
            cluster.pod("unseen", cpu="1")
            cluster.delete("p")
            cluster.planner.hold = None
            hold.set()
            await until(lambda: scheduler.state.pod("default/p") is None)
            await asyncio.sleep(0.5)
            assert sent == ["p"] and scheduler.state.usage.usage_of("n1")[0] == 0
            cluster.pod("p", cpu="4")
            cluster.delete("unseen")
            cluster.server.faults.clear()
            await until(lambda: cluster.bound("p"))
            assert sent == ["p", "p"], "the next of its name is another pod"


def count_bindings(scheduler: Scheduler) -> list[str]:
    """Names of the pods that Bindings are sent for, from now on."""
    sent: list[str] = []
    bind = scheduler.binder.bind

    async def counting(binding: Binding, **options: Any) -> BindOutcome:
        sent.append(binding.name)
        return await bind(binding, **options)

    scheduler.binder.bind = counting  # type: ignore[method-assign]
    return sent


@in_virtual_time
async def test_a_pod_found_ending_after_a_conflict_is_not_planned_again_though_the_watch_is_silent() -> None:
    async with live([small("n1")]) as cluster:
        hold = cluster.planner.hold = threading.Event()
        async with cluster.running() as scheduler:
            sent = count_bindings(scheduler)
            cluster.pod("p")
            await until(lambda: cluster.planner.tried("default/p") == 1)
            cluster.server.faults.fail(503, method="WATCH", path="/api/v1/pods")
            cluster.server.faults.drop_watches("pods", abort=True)
            cluster.server.faults.fail(409, method="POST", path="*/p/binding")
            end(cluster, "p")
            cluster.planner.hold = None
            hold.set()
            await until(lambda: sent)
            await asyncio.sleep(0.5)
            assert sent == ["p"]


def end(cluster: Live, name: str) -> None:
    """A pod is deleted, and something keeps it."""
    resource = cluster.server.store.resource("pods")
    obj = cluster.server.store.get("pods", name, "default")
    meta = {**obj["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
    cluster.server.store.replace(resource, ("default", name), {**obj, "metadata": meta})


@pytest.mark.parametrize(
    ("effect", "times", "is_told"),
    [(403, 1, True), (422, 1, True), (500, 1, False), (500, 2, True), (409, 2, True), (429, 1, False), (429, 2, True)],
)
async def test_a_pod_whose_binding_is_refused_is_told_so_at_once_or_when_it_comes_again(
    effect: int, times: int, is_told: bool
) -> None:
    async with live([small("n1")]) as cluster:
        told: list[dict[str, Any]] = []

        def hear(shelf: str, change: Change) -> None:
            if shelf == "pods" and (said := cluster.condition("p")) and said["status"] == "False":
                told.append(said)

        cluster.server.store.listeners.append(hear)
        cluster.server.faults.fail(effect, method="POST", path="*/binding", times=times, retry_after=0)
        async with cluster.running(initial_backoff_seconds=0.3, max_backoff_seconds=2.0):
            cluster.pod("p")
            await until(lambda: cluster.bound("p"))
        assert bool(told) == is_told
        assert all(said["reason"] == "SchedulerError" for said in told)
        assert all(said["message"].startswith(f"binding to n1: {effect}") for said in told)


async def test_a_half_bound_gang_that_cannot_be_finished_is_reported() -> None:
    async with live([small("n1", gpus=4)]) as cluster:
        cluster.create(*gang("g", 4, gpus=1))
        cluster.bind("g-0", "n1")
        cluster.bind("g-1", "n1")
        cluster.pod("theirs", gpus=2, scheduler_name="default-scheduler")
        cluster.bind("theirs", "n1")
        async with cluster.running() as scheduler:
            await until(lambda: cluster.condition("g-2").get("status") == "False")
            await until(lambda: cluster.group("g").get("conditions"))
            assert (
                "2 of 4 required members (minMember) are bound or have Succeeded"
                in cluster.group("g")["conditions"][0]["message"]
            )
            assert b"koordpy_gangs_half_bound 1.0" in scheduler.metrics.render()
            await until(lambda: any(e["reason"] == "GangUnschedulable" for e in cluster.events()))


async def test_a_gang_half_bound_when_the_process_died_is_finished_by_the_next() -> None:
    async with live([small("n1"), small("n2")]) as cluster:
        cluster.server.faults.fail(500, method="POST", path="*/g-[4-7]/binding")
        cluster.create(*gang("g", 8, gpus=1))
        async with cluster.running():
            await until(lambda: len(cluster.places()) == 4)
        first = cluster.places()
        cluster.server.faults.clear()
        async with cluster.running():
            await until(lambda: cluster.bound(*MEMBERS))
        assert first.items() <= cluster.places().items()
        assert Counter(cluster.places().values()) == {"n1": 4, "n2": 4}
        cluster.assert_no_node_is_overbooked()


@in_virtual_time
async def test_a_lease_lost_in_the_middle_of_a_gang_stops_the_bindings_and_the_next_leader_finishes() -> None:
    async with live([small("n1"), small("n2")]) as cluster:
        settings: dict[str, Any] = {"lease": LONG_LEASE, "max_binds_in_flight": 1}
        async with cluster.running(**settings) as scheduler:
            await asyncio.wait_for(scheduler.leading.wait(), 60)
            cluster.server.faults.latency_seconds = 0.3
            cluster.create(*gang("g", 8, gpus=1))
            await until(lambda: len(cluster.places()) >= 2)
            cluster.give_lease_to("another")
            await until(lambda: not scheduler.may_write())
            await asyncio.sleep(0.8)
            seen = len(cluster.places())
            await asyncio.sleep(0.5)
            assert len(cluster.places()) == seen < 8
        cluster.server.faults.clear()
        cluster.give_lease_to("")
        async with cluster.running(lease=LONG_LEASE):
            await until(lambda: cluster.bound(*MEMBERS))
        epochs = {obj["metadata"]["annotations"][keys.BOUND_EPOCH] for obj in cluster.pods().values()}
        assert epochs == {"0", "1"}
        cluster.assert_no_node_is_overbooked()


async def test_losing_the_lease_ends_the_scheduler_with_a_failure() -> None:
    async with live([small("n1")]) as cluster:
        from koordpy.engine.engine_settings import EngineSettings

        async with ApiClient(ClusterAccess(cluster.server.url), qps=0, timeout_seconds=1.0) as client:
            scheduler = Scheduler(client, cluster.planner, settings=tuned(EngineSettings(), lease=QUICK_LEASE))
            task = asyncio.create_task(scheduler.run())
            await asyncio.wait_for(scheduler.leading.wait(), 60)
            cluster.server.faults.fail(500, path="*/leases/*")
            assert await asyncio.wait_for(task, 60) == 1
            assert not scheduler.may_write()


async def test_of_two_replicas_one_binds_and_the_other_takes_over() -> None:
    async with live([small("n1")]) as cluster, cluster.running(lease=LONG_LEASE) as first:
        await asyncio.wait_for(first.leading.wait(), 60)
        async with cluster.running(lease=LONG_LEASE) as second:
            cluster.pod("p")
            await until(lambda: cluster.bound("p"))
            assert not second.leading.is_set()
            first.stop()
            await asyncio.wait_for(second.leading.wait(), 60)
            cluster.pod("q")
            await until(lambda: cluster.bound("q"))
        epochs = {name: obj["metadata"]["annotations"][keys.BOUND_EPOCH] for name, obj in cluster.pods().items()}
        assert epochs == {"p": "0", "q": "1"}


async def test_stopping_finishes_the_bindings_under_way() -> None:
    async with live([small("n1"), small("n2")]) as cluster:
        async with cluster.running(max_binds_in_flight=2) as scheduler:
            cluster.server.faults.latency_seconds = 0.1
            cluster.create(*gang("g", 8, gpus=1))
            await until(lambda: scheduler.committer.open > 0)
        assert cluster.bound(*MEMBERS)


@in_virtual_time
async def test_dropped_watches_and_expired_versions_lose_no_pod() -> None:
    async with live([small(f"n{i}") for i in range(4)]) as cluster, cluster.running():
        for i in range(12):
            cluster.pod(f"p-{i}", cpu="1")
            if i % 3 == 0:
                cluster.server.faults.drop_watches(abort=True)
            if i % 5 == 0:
                cluster.server.faults.expire_versions()
            await asyncio.sleep(0.02)
        await until(lambda: cluster.bound(*(f"p-{i}" for i in range(12))))
        cluster.assert_no_node_is_overbooked()


async def test_an_assumed_pod_that_the_watch_never_confirms_is_read() -> None:
    """The API server says 201 but does nothing: after a while the pod is read, and planned again."""
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        real = scheduler.binder.bind
        lied: list[str] = []

        async def lie(binding: Any, **options: Any) -> Any:
            if not lied:
                lied.append(binding.name)
                return BindOutcome(BindResult.BOUND)
            return await real(binding, **options)

        scheduler.binder.bind = lie  # type: ignore[method-assign]
        cluster.pod("p")
        await until(lambda: lied)
        await until(lambda: cluster.bound("p"))


async def test_a_pod_turned_down_by_its_kubelet_is_counted() -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        cluster.pod("p")
        await until(lambda: cluster.bound("p"))
        await until(lambda: scheduler.state.assumed_node("default/p") is None)
        failed = {"phase": "Failed", "reason": "OutOfcpu"}
        cluster.server.store.update(
            "pods", "p", lambda obj: {**obj, "status": {**obj["status"], **failed}}, namespace="default", status=True
        )
        # the pod fits the totals of its node, so no conflict explains the rejection
        await until(lambda: b'koordpy_rejections_total{reason="OutOf"} 1.0' in scheduler.metrics.render())


@in_virtual_time
async def test_many_faults_at_random_end_with_everything_bound_once() -> None:
    async with live([small(f"n{i}") for i in range(8)]) as cluster:
        faults = cluster.server.faults
        faults.seed(7)
        faults.fail(500, method="POST", path="*/binding", share=0.15)
        faults.fail(500, method="POST", path="*/binding", share=0.1, after=True)
        faults.fail("drop", method="POST", path="*/binding", share=0.1, after=True)
        faults.fail(409, method="POST", path="*/binding", share=0.1)
        faults.fail(503, method="PATCH", share=0.2)
        async with cluster.running():
            _work(cluster)
            await asyncio.sleep(1.0)
            faults.drop_watches(abort=True)
            await asyncio.sleep(0.5)
            faults.clear()
            names = [f"g{k}-{i}" for k in range(3) for i in range(8)] + [f"p-{i}" for i in range(8)]
            await until(lambda: cluster.bound(*names))
        cluster.assert_no_node_is_overbooked()


def _work(cluster: Live) -> None:
    for k in range(3):
        cluster.create(*gang(f"g{k}", 8, gpus=1))
    for i in range(8):
        cluster.pod(f"p-{i}", gpus=1, cpu="1")


@in_virtual_time
async def test_no_more_bindings_than_the_limit_are_in_flight() -> None:
    now = most = 0
    async with live([small("n1"), small("n2")]) as cluster, cluster.running(max_binds_in_flight=2) as scheduler:
        real = scheduler.binder.bind

        async def counted(binding: Any, **options: Any) -> Any:
            nonlocal now, most
            now += 1
            most = max(most, now)
            try:
                await asyncio.sleep(0.01)
                return await real(binding, **options)
            finally:
                now -= 1

        scheduler.binder.bind = counted  # type: ignore[method-assign]
        cluster.create(*(pod(f"p-{i}", gpus=1, cpu="0", memory="1Mi") for i in range(8)))
        await until(lambda: cluster.bound(*(f"p-{i}" for i in range(8))))
    assert most == 2


async def test_only_pods_with_npus_are_told_when_their_binding_was_decided() -> None:
    machine = small("n1")
    machine["metadata"].setdefault("labels", {})[keys.ACCELERATOR_TYPE] = "module-910b-8"
    for amounts in (machine["status"]["allocatable"], machine["status"].setdefault("capacity", {})):
        amounts["huawei.com/Ascend910"] = "8"
    with_npus = pod("npus", gpus=0, cpu="1", memory="1Gi")
    for asked in with_npus["spec"]["containers"][0]["resources"].values():
        asked["huawei.com/Ascend910"] = "1"
    before = time.time_ns()
    async with live([machine]) as cluster, cluster.running():
        cluster.create(
            with_npus, pod("gpus", gpus=1, cpu="1", memory="1Gi"), pod("plain", gpus=0, cpu="0", memory="1Gi")
        )
        await until(lambda: cluster.bound("npus", "gpus", "plain"))
        told = {name: obj["metadata"]["annotations"].get(keys.PREDICATE_TIME) for name, obj in cluster.pods().items()}
    assert told == {"npus": told["npus"], "gpus": None, "plain": None}
    assert before <= int(told["npus"]) <= time.time_ns()


async def test_a_pod_that_is_bound_keeps_its_room_when_telling_of_it_fails(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with live([small("n1", cpu=4)]) as cluster, cluster.running() as scheduler:

        def fails(*about: Any) -> None:
            raise RuntimeError("on purpose")

        forgotten: list[str] = []
        known = scheduler.feeds.state.forget
        monkeypatch.setattr(scheduler.feeds.state, "forget", lambda key: (forgotten.append(key), known(key)))
        monkeypatch.setattr(scheduler.announcer, "tell", fails)
        cluster.pod("first", cpu="3")
        await until(lambda: cluster.bound("first") and not scheduler.committer.open)
        assert not forgotten
        assert "pod default/first is bound, but reporting it failed" in caplog.text
        cluster.pod("second", cpu="3")
        await until(lambda: cluster.condition("second").get("status") == "False")
        assert cluster.places() == {"first": "n1"}
        await until(lambda: scheduler.committer.open == 0)


async def test_a_gang_is_settled_once_when_what_follows_its_bindings_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:

        def fails(amount: float) -> None:
            raise RuntimeError("on purpose")

        monkeypatch.setattr(scheduler.metrics.gang_members_bound, "inc", fails)
        cluster.create(*gang("g", 2, gpus=1))
        await until(lambda: cluster.bound("g-0", "g-1") and not scheduler.committer.open)
        await cluster.at_rest(scheduler, "pods")
        assert cluster.planner.tried("gang:default/g") == 1
        assert scheduler.committer.open == 0
