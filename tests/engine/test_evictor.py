# SPDX-License-Identifier: Apache-2.0
"""Plans with victims, carried out against the embedded API server: who goes, in which order, and what is kept."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import convert

from koordpy.api import keys
from koordpy.api.objects import Pod
from koordpy.config.configuration import Fairness, KoordpyConfiguration
from koordpy.devices.family_registry import make_state
from koordpy.engine.evictions.eviction_calls import EvictionCalls
from tests.clusters import pod
from tests.engine.live import QUICK, Live, gang, in_virtual_time, live, small, until
from tests.engine.manifests import DEVICES, minors
from tests.engine.parts import a_context
from tests.engine.scripted import client_of, reply, scripted_server, status
from tests.engine.stage import device


@asynccontextmanager
async def cluster_of(*names: str) -> AsyncIterator[Live]:
    """Nodes of 4 GPUs, and a class of important pods."""
    async with live([small(name) for name in names]) as cluster:
        important_class = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}}
        cluster.server.store.create("priorityclasses.scheduling.k8s.io", {**important_class, "value": 1000})
        yield cluster


def worker(name: str, *, high: bool = False, gpus: int = 1, grace: int = 30, **options: Any) -> dict[str, Any]:
    manifest = pod(name, gpus=gpus, cpu="0", memory="1Mi", **options)
    manifest["spec"] |= {"terminationGracePeriodSeconds": grace, **({"priorityClassName": "high"} if high else {})}
    return manifest


def important(name: str, members: int, **options: Any) -> list[dict[str, Any]]:
    group, *pods = gang(name, members, **options)
    for member in pods:
        member["spec"]["priorityClassName"] = "high"
    return [group, *pods]


def running_on(cluster: Live, node: str, *manifests: dict[str, Any]) -> None:
    for manifest in manifests:
        cluster.create(manifest)
        if manifest["kind"] == "Pod":
            cluster.bind(manifest["metadata"]["name"], node)


def ending(cluster: Live) -> set[str]:
    return {name for name, obj in cluster.pods().items() if obj["metadata"].get("deletionTimestamp")}


def marked(cluster: Live, name: str) -> dict[str, Any]:
    conditions = cluster.pods()[name].get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == "DisruptionTarget"), {})


def nominated(cluster: Live) -> dict[str, str]:
    found = {name: obj.get("status", {}).get("nominatedNodeName") for name, obj in cluster.pods().items()}
    return {name: node for name, node in found.items() if node}


@in_virtual_time
async def test_a_more_important_pod_takes_the_place_of_the_youngest_and_waits_for_its_end() -> None:
    async with cluster_of("n1") as cluster:
        running_on(cluster, "n1", *(worker(f"old-{i}") for i in range(4)))
        async with cluster.running():
            cluster.create(worker("vip", high=True))
            await until(lambda: ending(cluster) == {"old-3"})
            assert nominated(cluster) == {"vip": "n1"}
            target = marked(cluster, "old-3")
            assert (target["status"], target["reason"]) == ("True", "PreemptionByScheduler")
            assert target["message"] == "koord-scheduler: preempting to accommodate a higher priority pod"
            await asyncio.sleep(0.3)
            assert not cluster.bound("vip")
            assert ending(cluster) == {"old-3"}
            cluster.delete("old-3")
            await until(lambda: cluster.bound("vip"))
            assert nominated(cluster) == {}
            cluster.assert_no_node_is_overbooked()
            await until(lambda: any(e["reason"] == "Preempted" for e in cluster.events()))
            (event,) = (e for e in cluster.events() if e["reason"] == "Preempted")
            assert event["involvedObject"]["name"] == "old-3"
            assert event["related"]["name"] == "vip"


@in_virtual_time
async def test_a_victim_that_asks_for_a_grace_beyond_all_years_is_evicted_like_any_other() -> None:
    async with cluster_of("n1") as cluster:
        running_on(cluster, "n1", *(worker(f"old-{i}", grace=10**12) for i in range(4)))
        async with cluster.running():
            cluster.create(worker("vip", high=True))
            await until(lambda: len(ending(cluster)) == 1)
            cluster.delete(*ending(cluster))
            await until(lambda: cluster.bound("vip"))


async def test_what_fits_is_bound_before_victims_are_sought_for_others() -> None:
    async with cluster_of("n1", "n2") as cluster:
        running_on(cluster, "n1", *(worker(f"old-{i}") for i in range(4)))
        apart = {"kubernetes.io/hostname": "n2"}
        only_there = important("vip", 2, gpus=2)
        for member in only_there[1:]:
            member["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "n1"}
        fits = worker("fits")
        fits["spec"]["nodeSelector"] = apart
        cluster.create(*only_there, fits)
        first = cluster.planner.hold = threading.Event()
        async with cluster.running(round_seconds=0.0, search_seconds=0.0):
            await until(lambda: cluster.planner.tried("gang:default/vip") == 1)
            search = cluster.planner.search_hold = threading.Event()
            first.set()
            await until(lambda: cluster.bound("fits"))
            assert cluster.planner.rounds[0] == {"gang:default/vip", "default/fits"}
            looked_for = "0/2 nodes are available: still looking for victims."
            told = lambda name: (cluster.condition(name) or {}).get("message")  # noqa: E731
            await until(lambda: told("vip-0") == told("vip-1") == looked_for)
            assert not ending(cluster)
            search.set()
            await until(lambda: len(ending(cluster)) == 4)
        assert cluster.planner.rounds[1] == {"gang:default/vip"}


async def test_members_are_told_one_thing_while_their_victims_end_one_after_the_other() -> None:
    async with cluster_of("n1", "n2") as cluster:
        for node in ("n1", "n2"):
            running_on(cluster, node, *(worker(f"{node}-{i}") for i in range(4)))
        async with cluster.running(wobble_hold_seconds=0.05) as scheduler:
            cluster.create(*important("vip", 2, gpus=4))
            await until(lambda: len(ending(cluster)) == 8)
            told: list[set[str]] = []
            for name in sorted(ending(cluster)):
                cluster.delete(name)
                if len(ending(cluster)) not in (0, 4):
                    # the round that this wakes has told whom it had to tell
                    rounds = scheduler._loop.rounds
                    await until(lambda before=rounds: scheduler._loop.rounds > before)
                    await cluster.at_rest(scheduler, "pods")
                    told.append({cluster.condition(f"vip-{i}")["message"] for i in (0, 1)})
            await until(lambda: cluster.bound("vip-0", "vip-1"))
        room = "waiting for terminating pods: capacity on n1, n2 is reserved for it."
        kept = f"gang default/vip: needed 2, {room} 0/2 nodes are available: {room}"
        assert len(told) == 6 and told[1:] == [{kept}] * 5
        events = [e for e in cluster.events() if e["reason"] == "FailedScheduling"]
        assert [(e["message"], e["involvedObject"]["name"]) for e in events] == [(kept, "vip-0"), (kept, "vip-1")]
        about = [e["reason"] for e in cluster.events() if e["involvedObject"]["kind"] == "PodGroup"]
        assert sorted(about) == ["GangScheduled", "RoomMade"]


async def test_a_member_beyond_the_minimum_is_told_one_thing_when_its_siblings_are_bound() -> None:
    async with cluster_of("n1", "n2") as cluster:
        for node in ("n1", "n2"):
            running_on(cluster, node, *(worker(f"{node}-{i}") for i in range(4)))
        async with cluster.running():
            cluster.create(*important("vip", 2, min_member=1, gpus=4))
            await until(lambda: len(ending(cluster)) == 8)
            for name in sorted(ending(cluster)):
                if name.startswith("n1"):
                    cluster.delete(name)
            await until(lambda: cluster.bound("vip-0"))
            room = "waiting for terminating pods: capacity on n2 is reserved for it."
            met = "gang default/vip: minMember 1 met, 1 more waiting for room; gang default/vip: needed 1,"
            kept = f"gang default/vip: needed 1, {room} 0/2 nodes are available: {room} {met} {room}"
            await until(lambda: cluster.condition("vip-1").get("message") == kept)
            for name in ending(cluster):
                cluster.delete(name)
            await until(lambda: cluster.bound("vip-1"))
        texts = [e["message"] for e in cluster.events() if e["reason"] == "FailedScheduling"]
        assert all("0/2 nodes are available: waiting for terminating pods: " in text for text in texts)


@in_virtual_time
async def test_the_room_is_kept_from_less_important_pods_while_the_victims_end() -> None:
    async with cluster_of("n1") as cluster:
        running_on(cluster, "n1", *(worker(f"old-{i}", gpus=2) for i in range(2)))
        async with cluster.running():
            cluster.create(worker("vip", high=True, gpus=1))
            await until(lambda: len(ending(cluster)) == 1)
            (victim,) = ending(cluster)
            cluster.create(worker("small", gpus=2))
            await until(lambda: bool(cluster.condition("small")))
            cluster.delete(victim)
            await until(lambda: cluster.bound("vip"))
            await asyncio.sleep(0.2)
            assert not cluster.bound("small")
            cluster.assert_no_node_is_overbooked()


@in_virtual_time
async def test_a_gang_evicts_one_whole_gang_and_is_bound_whole() -> None:
    async with cluster_of("n1", "n2") as cluster:
        running_on(cluster, "n1", *gang("one", 4, gpus=1))
        running_on(cluster, "n2", *gang("two", 4, gpus=1))
        async with cluster.running():
            cluster.create(*important("vip", 3, gpus=1))
            await until(lambda: len(ending(cluster)) == 4)
            assert ending(cluster) in ({f"one-{i}" for i in range(4)}, {f"two-{i}" for i in range(4)})
            (node,) = set(nominated(cluster).values())
            assert set(nominated(cluster)) == {"vip-0", "vip-1", "vip-2"}
            for i, name in enumerate(sorted(ending(cluster))):
                assert not cluster.bound("vip-0")
                cluster.delete(name)
                if i == 1:
                    await asyncio.sleep(0.2)
            await until(lambda: cluster.bound("vip-0", "vip-1", "vip-2"))
            assert {cluster.places()[f"vip-{i}"] for i in range(3)} == {node}
            assert len([n for n in cluster.pods() if n.startswith(("one", "two"))]) == 4


@pytest.mark.parametrize("status", [500, 503])
async def test_errors_of_the_server_do_not_keep_victims_or_take_more(status: int) -> None:
    async with cluster_of("n1") as cluster:
        running_on(cluster, "n1", *(worker(f"old-{i}", grace=0) for i in range(4)))
        cluster.server.faults.fail(status, method="DELETE", path="*/pods/*", times=2)
        async with cluster.running():
            cluster.create(worker("vip", high=True, gpus=2))
            await until(lambda: cluster.bound("vip"))
            assert set(cluster.places()) == {"old-0", "old-1", "vip"}


@in_virtual_time
async def test_a_scheduler_that_starts_anew_chooses_no_second_victims() -> None:
    async with cluster_of("n1") as cluster:
        running_on(cluster, "n1", *(worker(f"old-{i}") for i in range(4)))
        async with cluster.running():
            cluster.create(worker("vip", high=True))
            await until(lambda: len(ending(cluster)) == 1)
        async with cluster.running():
            await until(lambda: "terminating" in cluster.condition("vip").get("message", "") or cluster.bound("vip"))
            await asyncio.sleep(0.3)
            (victim,) = ending(cluster)
            cluster.delete(victim)
            await until(lambda: cluster.bound("vip"))
            assert len(cluster.places()) == 4


async def test_victims_that_do_not_end_in_time_void_the_nomination() -> None:
    async with cluster_of("n1") as cluster:
        running_on(cluster, "n1", *(worker(f"old-{i}", grace=0) for i in range(4)))
        finalizers = {"metadata": {"finalizers": ["example/hold"]}}
        for name in ("old-0", "old-1", "old-2", "old-3"):
            obj = cluster.server.store.get("pods", name, "default")
            new = {**obj, "metadata": {**obj["metadata"], **finalizers["metadata"]}}
            cluster.server.store.replace(cluster.server.store.resource("pods"), ("default", name), new)
        async with cluster.running(QUICK, nomination_extra_seconds=0.5):
            cluster.create(worker("vip", high=True))
            await until(lambda: nominated(cluster) == {"vip": "n1"})
            await until(lambda: nominated(cluster) == {})
            assert not cluster.bound("vip")


async def test_an_eviction_is_tried_again_when_the_api_server_wants_it_and_not_before() -> None:
    """429 of a server that is busy, which no budget is the reason of."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async with scripted_server() as server, client_of(server) as client:
        path = "/api/v1/namespaces/default/pods/old/eviction"
        server.on("POST", path, status(429, headers={"Retry-After": "7"}), status(429), reply({"kind": "Status"}, 201))
        calls = EvictionCalls(a_context(client=client), sleep=sleep)
        state = make_state()
        state.upsert(convert(worker("old"), Pod, strict=False))
        info = state.pod("default/old")
        assert info is not None
        await calls.evict(info, wanted=lambda: None)
        assert len(server.seen) == 3 and waits[0] == 7.0 and waits[1] <= 0.1


async def test_nobody_is_deleted_for_a_pod_that_went_between_two_tries() -> None:
    async with cluster_of("n1") as cluster:
        running_on(cluster, "n1", *(worker(f"old-{i}") for i in range(4)))
        fault = cluster.server.faults.fail(503, method="DELETE", path="*/pods/*")
        async with cluster.running() as scheduler:
            cluster.create(worker("vip", high=True))
            await until(lambda: fault.hits)
            cluster.delete("vip")
            await until(lambda: scheduler.state.pod("default/vip") is None)
            cluster.server.faults.clear()
            assert scheduler.evictor is not None
            await until(lambda: not scheduler.evictor.open)
            assert ending(cluster) == set() and len(cluster.places()) == 4


async def test_a_pod_that_is_gone_before_its_victims_leaves_them_alone_from_then_on() -> None:
    async with cluster_of("n1") as cluster:
        running_on(cluster, "n1", *(worker(f"old-{i}") for i in range(4)))
        async with cluster.running():
            cluster.create(worker("vip", high=True))
            await until(lambda: len(ending(cluster)) == 1)
            cluster.delete("vip")
            (victim,) = ending(cluster)
            cluster.delete(victim)
            cluster.create(worker("next"))
            await until(lambda: cluster.bound("next"))
            assert ending(cluster) == set()


async def test_preemption_policy_never_evicts_nobody() -> None:
    async with cluster_of("n1") as cluster:
        running_on(cluster, "n1", *(worker(f"old-{i}") for i in range(4)))
        async with cluster.running():
            manifest = worker("vip", high=True)
            manifest["spec"]["preemptionPolicy"] = "Never"
            cluster.create(manifest)
            await until(lambda: "preemptionPolicy=Never" in cluster.condition("vip").get("message", ""))
            assert ending(cluster) == set()


async def test_a_dry_run_tells_whom_it_would_evict_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="koordpy.observe.decision_log")
    async with cluster_of("n1", "n2") as cluster:
        running_on(cluster, "n1", *(worker(f"old-{i}") for i in range(4)))
        running_on(cluster, "n2", *(worker(f"top-{i}", high=True) for i in range(3)))
        async with cluster.running(dry_run=True) as scheduler:
            cluster.create(worker("urgent", high=True, gpus=2))
            version = cluster.server.store.version
            await until(lambda: "would evict 2 pods by rule priority for default/urgent" in caplog.text)
            await until(lambda: cluster.planner.tried("default/urgent") > 1)
            cluster.create(worker("small"))
            await until(lambda: scheduler.state.assumed_node("default/small") == "n2")
            assert cluster.server.store.version == version + 1
            assert scheduler.metrics.victims.labels("priority")._value.get() == 2
        assert caplog.text.count("would evict") == 1
        assert not ending(cluster) and not nominated(cluster)


async def test_who_was_evicted_for_whom_and_where_is_in_the_log_and_not_as_a_binding(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="koordpy.observe.decision_log")
    async with cluster_of("n1") as cluster:
        running_on(cluster, "n1", *(worker(f"old-{i}", grace=0) for i in range(4)))
        async with cluster.running() as scheduler:
            cluster.create(worker("vip", high=True))
            await until(lambda: cluster.bound("vip"))
        (line,) = (record.getMessage() for record in caplog.records if record.name == "koordpy.observe.decision_log")
        assert line == (
            "default/vip: evicts 1 pod by rule priority for default/vip: default/old-3 on n1; "
            "nominates 1 pod to n1 (proof: optimal)"
        )
        (decision,) = (one for one in scheduler.decisions.recent() if one["victims"])
        assert decision["victims"] == ({"pod": "default/old-3", "node": "n1", "rule": "priority"},)


async def test_a_plan_that_is_dropped_tells_who_had_gone_before(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", logger="koordpy.engine.evictions.evictor")
    async with cluster_of("n1") as cluster:
        running_on(cluster, "n1", *(worker(f"old-{i}") for i in range(4)))
        cluster.server.faults.fail(403, method="DELETE", path="*/pods/old-2")
        async with cluster.running():
            cluster.create(worker("vip", high=True, gpus=2))
            await until(lambda: "preemption cancelled" in caplog.text)
        (line,) = (record.getMessage() for record in caplog.records if "preemption cancelled" in record.getMessage())
        assert line.endswith("; already evicted: default/old-3")


@in_virtual_time
async def test_who_counts_on_the_victims_of_a_lesser_one_takes_no_room_from_it() -> None:
    """By fair share a lesser pod may be planned first: what its victim has beside it is taken by the other one."""
    async with cluster_of("n1") as cluster:
        for name, value in (("little", 1), ("middle", 5)):
            manifest = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
            cluster.server.store.create("priorityclasses.scheduling.k8s.io", {**manifest, "value": value})

        def of(user: str, name: str, gpus: int, rank: str = "") -> dict[str, Any]:
            made = worker(name, gpus=gpus, labels={keys.QUOTA_USER: user})
            made["spec"] |= {"priorityClassName": rank} if rank else {}
            return made

        running_on(cluster, "n1", of("bob", "least", 3), of("bob", "less", 1, "little"))
        cluster.create(of("alice", "lesser", 1, "middle"), of("bob", "more", 3, "high"))
        async with cluster.running():
            await until(lambda: ending(cluster) == {"least", "less"})
            assert nominated(cluster) == {"lesser": "n1", "more": "n1"}
            for name in ("less", "least"):
                cluster.delete(name)
            await until(lambda: cluster.bound("lesser", "more"))


@in_virtual_time
async def test_nobody_is_bound_to_room_that_the_victims_of_others_still_hold() -> None:
    async with cluster_of("n1") as cluster:
        running_on(cluster, "n1", *gang("old", 4, gpus=1))
        cluster.create(worker("vip", high=True), worker("late"))
        async with cluster.running():
            await until(lambda: len(ending(cluster)) == 4)
            await until(lambda: bool(cluster.condition("late")))
            await asyncio.sleep(0.2)
            assert not cluster.bound("late")
            cluster.assert_no_node_is_overbooked()
            for name in sorted(ending(cluster)):
                cluster.delete(name)
            await until(lambda: cluster.bound("vip", "late"))


async def test_gpus_that_victims_hold_by_name_are_given_on_when_they_are_gone() -> None:
    async with cluster_of("n1") as cluster:
        cluster.server.store.create(DEVICES, device("n1"))
        async with cluster.running():
            cluster.create(*(worker(f"old-{i}") for i in range(4)))
            await until(lambda: cluster.bound("old-0", "old-1", "old-2", "old-3"))
            cluster.create(worker("vip", high=True))
            await until(lambda: len(ending(cluster)) == 1)
            (victim,) = ending(cluster)
            freed = minors(cluster.pods()[victim])
            cluster.delete(victim)
            await until(lambda: cluster.bound("vip"))
            assert minors(cluster.pods()["vip"]) == freed


async def test_a_plan_that_was_overtaken_evicts_nobody() -> None:
    async with cluster_of("n1", "n2") as cluster:
        running_on(cluster, "n1", *(worker(f"old-{i}") for i in range(4)))
        running_on(cluster, "n2", *(worker(f"far-{i}") for i in range(4)))
        async with cluster.running() as scheduler:
            cluster.planner.hold = threading.Event()
            cluster.create(*important("vip", 2, gpus=1))
            await until(lambda: cluster.planner.tried("gang:default/vip") == 1)
            cluster.delete("vip-1")
            await until(lambda: scheduler.state.pod("default/vip-1") is None)
            cluster.planner.hold.set()
            await until(lambda: "1 of minMember 2" in cluster.condition("vip-0").get("message", ""))
            assert ending(cluster) == set()
            assert nominated(cluster) == {}


async def test_room_of_a_nomination_that_is_void_is_given_to_others() -> None:
    async with cluster_of("n1") as cluster:
        running_on(cluster, "n1", worker("old", gpus=4, grace=1))
        async with cluster.running():
            cluster.create(worker("vip", high=True, gpus=4))
            await until(lambda: ending(cluster) == {"old"})
            cluster.create(worker("small"))
            await until(lambda: bool(cluster.condition("small")))
            cluster.server.store.update("nodes", "n1", lambda old: _with_gpus(old, 2), status=True)
            cluster.delete("old")
            await until(lambda: cluster.bound("small") and nominated(cluster) == {})
            assert not cluster.bound("vip")


def _with_gpus(old: dict[str, Any], count: int) -> dict[str, Any]:
    amounts = {**old["status"]["allocatable"], "nvidia.com/gpu": str(count)}
    return {**old, "status": {**old["status"], "allocatable": amounts}}


async def test_victims_that_end_while_their_gain_is_planned_leave_it_its_room() -> None:
    async with cluster_of("n1") as cluster:
        running_on(cluster, "n1", *(worker(f"old-{i}", gpus=2) for i in range(2)))
        search, second = threading.Event(), threading.Event()
        cluster.planner.search_hold = search
        async with cluster.running() as scheduler:
            cluster.create(worker("vip", high=True, gpus=2))
            await until(lambda: cluster.planner.tried("default/vip") == 2)
            cluster.planner.hold = second
            search.set()
            await until(lambda: ending(cluster) == {"old-1"} and cluster.planner.tried("default/vip") == 3)
            cluster.delete("old-1")
            await until(lambda: scheduler.state.pod("default/old-1") is None)
            cluster.planner.hold = None
            second.set()
            async with asyncio.timeout(60):
                while not cluster.bound("vip"):
                    assert nominated(cluster) == {"vip": "n1"}
                    await asyncio.sleep(0)


@in_virtual_time
async def test_jobs_that_take_from_each_other_in_a_circle_come_to_rest() -> None:
    """preemption.md 3.6; whoever is evicted is made again under its name."""
    alone = {"gpus": 0, "memory": "1Mi", "cpu": "4"}
    jobs = {
        "a": (pod("a", **alone), "alice", "middle"),
        "b": (pod("b", **{**alone, "gpus": 1}), "alice", ""),
        "c": (pod("c", **{**alone, "gpus": 4}), "bob", "high"),
    }
    for manifest, user, importance in jobs.values():
        manifest["metadata"].setdefault("labels", {})[keys.QUOTA_USER] = user
        manifest["spec"] |= {"terminationGracePeriodSeconds": 1, "priorityClassName": importance or None}
    async with cluster_of("n1") as cluster:
        middle = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "middle"}}
        cluster.server.store.create("priorityclasses.scheduling.k8s.io", {**middle, "value": 10})
        cluster.planner.config = KoordpyConfiguration(fairness=Fairness(reclaim="all"))
        running_on(cluster, "n1", jobs["b"][0])
        cluster.create(jobs["a"][0], jobs["c"][0])
        went: list[str] = []
        async with cluster.running():
            for second in range(600):
                await asyncio.sleep(1.0)
                if second % 20 == 0:  # somebody comes and goes: whoever waits is tried again
                    running_on(cluster, "n1", worker("visitor", gpus=0))
                    await asyncio.sleep(0.1)
                    cluster.delete("visitor")
                for name in sorted(ending(cluster)):
                    went.append(name)
                    cluster.delete(name)
                    cluster.create(jobs[name][0])
            assert went == ["b", "a"], went
            assert cluster.bound("c")
