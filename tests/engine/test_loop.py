# SPDX-License-Identifier: Apache-2.0
"""The scheduler as a whole against the embedded API server, on good days."""

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec.json import decode

from koordpy.api import keys
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.credentials import ClusterAccess
from koordpy.plan.round_plan import RejectedPlan
from tests.engine.live import Planner, gang, in_virtual_time, live, pod, small, until


async def test_a_pod_is_bound_with_our_epoch_and_an_event() -> None:
    async with live([small("n1")]) as cluster, cluster.running():
        cluster.pod("p")
        await until(lambda: cluster.bound("p"))
        assert cluster.pods()["p"]["metadata"]["annotations"][keys.BOUND_EPOCH] == "0"
        await until(lambda: any(e["reason"] == "Scheduled" for e in cluster.events()))
        (event,) = cluster.events()
        assert event["message"] == "Successfully assigned default/p to n1"
        assert event["reason"] == "Scheduled"


async def test_a_gang_is_bound_as_a_whole_with_ranks() -> None:
    async with live([small("n1"), small("n2")]) as cluster, cluster.running():
        cluster.create(*gang("g", 8, gpus=1))
        await until(lambda: cluster.bound(*(f"g-{i}" for i in range(8))))
        notes = [cluster.pods()[f"g-{i}"]["metadata"]["annotations"] for i in range(8)]
        assert [note[keys.BOUND_RANK] for note in notes] == [str(i) for i in range(8)]
        assert {note[keys.BIND_MEMBER_COUNT] for note in notes} == {"8"}
        cluster.assert_no_node_is_overbooked()


@in_virtual_time
async def test_a_gang_whose_members_come_one_by_one_is_told_nothing_before_it_is_complete(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="koordpy.observe.decision_log")
    async with live([small("n1")]) as cluster, cluster.running(not_ready_hold_seconds=5.0):
        group, *members = gang("g", 4, gpus=1)
        cluster.create(group)
        for member in members:
            cluster.create(member)
            await asyncio.sleep(0.03)
        await until(lambda: cluster.bound("g-0", "g-1", "g-2", "g-3"))
        assert not [e for e in cluster.events() if e["reason"] == "FailedScheduling"]
        decided = [record.getMessage() for record in caplog.records if record.name == "koordpy.observe.decision_log"]
        assert decided == ["gang:default/g: places 4 of 4 pods on n1 (proof: optimal)"]


async def test_an_incomplete_gang_is_told_so_after_a_moment_and_bound_when_the_last_member_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="koordpy.observe.decision_log")
    async with live([small("n1")]) as cluster, cluster.running():
        group, *members = gang("g", 2, gpus=1)
        cluster.create(group, members[0])
        await until(lambda: cluster.condition("g-0"))
        assert cluster.condition("g-0")["message"] == "gang default/g: waiting for members, 1 of minMember 2 exist"
        assert cluster.condition("g-0")["status"] == "False"
        await until(lambda: "waiting for members, 1 of minMember 2 exist" in caplog.text)
        cluster.create(members[1])
        await until(lambda: cluster.bound("g-0", "g-1"))


@in_virtual_time
async def test_a_gang_that_cannot_fit_is_explained_to_every_member_once() -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        cluster.create(*gang("g", 3, gpus=4))
        await until(lambda: all(cluster.condition(f"g-{i}") for i in range(3)))
        assert cluster.places() == {}
        condition = cluster.condition("g-0")
        assert condition["reason"] == "Unschedulable"
        assert "needed 3, available in the cluster: 1" in condition["message"]
        status = scheduler.writers.pods if scheduler.writers is not None else None
        assert status is not None
        # a patch is counted when its answer is back, a moment after the server has stored it
        await until(lambda: status.sent >= 3)
        rounds = len(cluster.planner.rounds)
        await asyncio.sleep(0.5)
        assert status.sent == 3
        # the patches of our own wake nobody
        assert len(cluster.planner.rounds) == rounds
        await until(lambda: any(e["reason"] == "GangUnschedulable" for e in cluster.events()))


async def test_a_pod_that_leaves_wakes_the_gang_that_waits_for_its_room() -> None:
    async with live([small("n1")]) as cluster, cluster.running():
        cluster.pod("big", cpu="4")
        await until(lambda: cluster.bound("big"))
        cluster.create(*gang("g", 2, gpus=0, cpu="2"))
        await until(lambda: cluster.condition("g-0"))
        cluster.delete("big")
        await until(lambda: cluster.bound("g-0", "g-1"))
        cluster.assert_no_node_is_overbooked()


@in_virtual_time
async def test_room_that_comes_wakes_the_gang_whose_min_resources_did_not_fit() -> None:
    async with live([small("n1")]) as cluster, cluster.running():
        cluster.pod("big", cpu="4")
        await until(lambda: cluster.bound("big"))
        group, *members = gang("g", 2, gpus=0, cpu="2")
        group["spec"]["minResources"] = {"cpu": "4"}
        cluster.create(group, *members)
        await until(lambda: cluster.condition("g-0"))
        assert cluster.condition("g-0")["message"] == "gang default/g: minResources do not fit: cpu 4, free 0"
        cluster.delete("big")
        await until(lambda: cluster.bound("g-0", "g-1"))


async def test_a_node_that_comes_wakes_and_a_heartbeat_does_not() -> None:
    async with live() as cluster, cluster.running() as scheduler:
        cluster.pod("p")
        await until(lambda: cluster.condition("p"))
        cluster.nodes(small("n1", cpu=0))
        await until(lambda: cluster.planner.tried("default/p") == 3)  # without nodes no search is made
        tried = cluster.planner.tried("default/p")

        def beat(obj: dict[str, Any]) -> dict[str, Any]:
            return {**obj, "status": {**obj["status"], "phase": "Running"}}

        cluster.server.store.update("nodes", "n1", beat, status=True)
        await cluster.at_rest(scheduler, "nodes", "pods")
        assert cluster.planner.tried("default/p") == tried
        cluster.nodes(small("n2"))
        await until(lambda: cluster.bound("p"))
        assert cluster.places() == {"p": "n2"}


@in_virtual_time
async def test_a_pod_that_only_adds_load_wakes_nobody() -> None:
    async with live([small("n1")]) as cluster, cluster.running():
        cluster.pod("hopeless", cpu="64")
        await until(lambda: cluster.condition("hopeless"))
        cluster.pod("p")
        await until(lambda: cluster.bound("p"))
        await asyncio.sleep(0.2)
        assert cluster.planner.tried("default/hopeless") == 2, "by a round and a search"


async def test_room_that_comes_free_while_a_unit_is_planned_is_not_overlooked() -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        cluster.pod("big", cpu="4")
        await until(lambda: cluster.bound("big"))
        hold = cluster.planner.hold = threading.Event()
        cluster.pod("p")
        await until(lambda: cluster.planner.tried("default/p") == 1)
        # the plan says no; what would turn it happens before that is told
        cluster.delete("big")
        await until(lambda: scheduler.state.pod("default/big") is None)
        cluster.planner.hold = None
        hold.set()
        await until(lambda: cluster.bound("p"))


@in_virtual_time
async def test_room_that_was_planned_for_a_pod_that_goes_meanwhile_is_given_to_the_next() -> None:
    async with live([small("n1")]) as cluster:
        hold = cluster.planner.hold = threading.Event()
        cluster.pod("a", cpu="4")
        cluster.pod("b", cpu="4")
        async with cluster.running() as scheduler:
            await until(lambda: cluster.planner.rounds == [frozenset(("default/a", "default/b"))])
            await asyncio.sleep(0.1)  # the plan gives the room to one of them, and is not told yet
            cluster.delete("a")
            await until(lambda: scheduler.state.pod("default/a") is None)
            cluster.planner.hold = None
            hold.set()
            await until(lambda: cluster.bound("b"))


@in_virtual_time
async def test_gated_pods_are_not_tried_until_the_gate_is_gone() -> None:
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        manifest = pod("p", gpus=0, cpu="1", memory="1Gi")
        manifest["spec"]["schedulingGates"] = [{"name": "wait"}]
        cluster.create(manifest)
        await asyncio.sleep(0.3)
        assert cluster.planner.tried("default/p") == 0
        assert b'scheduler_pending_pods{queue="gated"} 1.0' in scheduler.metrics.render()

        def open_gate(obj: dict[str, Any]) -> dict[str, Any]:
            return {**obj, "spec": {k: v for k, v in obj["spec"].items() if k != "schedulingGates"}}

        cluster.server.store.update("pods", "p", open_gate, namespace="default")
        await until(lambda: cluster.bound("p"))


@in_virtual_time
async def test_pods_of_other_schedulers_are_left_alone_and_accounted() -> None:
    async with live([small("n1")]) as cluster, cluster.running():
        cluster.pod("theirs", scheduler_name="default-scheduler", cpu="3")
        cluster.bind("theirs", "n1")
        cluster.pod("waiting", scheduler_name="default-scheduler")
        cluster.pod("ours", cpu="2")
        await until(lambda: cluster.condition("ours"))
        await asyncio.sleep(0.2)
        assert cluster.places() == {"theirs": "n1"}
        assert not cluster.condition("waiting")


async def test_linked_gangs_are_bound_together_or_not_at_all() -> None:
    notes = {keys.GANG_GROUPS: '["default/a", "default/b"]'}
    async with live([small("n1")]) as cluster, cluster.running():
        cluster.create(*gang("a", 2, gpus=1, annotations=notes))
        await until(lambda: cluster.condition("a-0"))
        assert (
            cluster.condition("a-0")["message"]
            == "gang default/b: PodGroup not found, listed in groups of gang default/a"
        )
        cluster.create(*gang("b", 2, gpus=1, annotations=notes))
        await until(lambda: cluster.bound("a-0", "a-1", "b-0", "b-1"))
        ids = {obj["metadata"]["annotations"][keys.BIND_GROUP_ID] for obj in cluster.pods().values()}
        assert ids == {"default/a,default/b"}


async def test_the_pod_group_follows_its_gang() -> None:
    async with live([small("n1")]) as cluster, cluster.running():
        group, *members = gang("g", 2, gpus=1)
        cluster.create(group, members[0])
        await until(lambda: cluster.group("g").get("phase") == "Pending")
        cluster.create(members[1])
        await until(lambda: cluster.group("g").get("phase") == "Scheduled")
        assert cluster.group("g")["scheduled"] == 2
        _phases(cluster, "Running", "g-0", "g-1")
        await until(lambda: cluster.group("g").get("phase") == "Running")
        _phases(cluster, "Succeeded", "g-0", "g-1")
        await until(lambda: cluster.group("g").get("phase") == "Finished")
        assert cluster.group("g")["succeeded"] == 2
        (condition,) = cluster.group("g")["conditions"]
        assert (condition["type"], condition["status"]) == ("Scheduled", "True")


def _phases(cluster: Any, phase: str, *names: str) -> None:
    for name in names:
        cluster.server.store.update(
            "pods", name, lambda obj: {**obj, "status": {**obj["status"], "phase": phase}}, namespace="default",
            status=True,
        )  # fmt: skip


async def test_a_gang_past_its_waiting_time_is_said_to_be_late_and_still_tried() -> None:
    async with live([small("n1")]) as cluster, cluster.running():
        cluster.create(*gang("g", 2, gpus=4, annotations={keys.GANG_WAITING_TIME: "1s"}))
        await until(lambda: (cluster.group("g").get("conditions") or [{}])[0].get("reason") == "WaitingTimeExceeded")
        cluster.nodes(small("n2"))
        await until(lambda: cluster.bound("g-0", "g-1"))
        await until(lambda: cluster.group("g")["conditions"][0]["status"] == "True")


async def test_the_waiting_time_of_a_gang_counts_from_when_its_pods_are_there() -> None:
    async with live([small("n1")]) as cluster:
        group, *members = gang("g", 2, gpus=4)
        cluster.create(group)
        then = "2026-01-01T00:00:00Z"
        met = {"type": "Scheduled", "status": "True", "reason": "Scheduled", "message": "", "lastTransitionTime": then}
        before = {"phase": "Finished", "scheduled": 2, "succeeded": 2, "scheduleStartTime": then, "conditions": [met]}
        groups = "podgroups.scheduling.sigs.k8s.io"
        cluster.server.store.update(
            groups, "g", lambda old: {**old, "status": before}, namespace="default", status=True
        )
        async with cluster.running():
            cluster.create(*members)

            def reason() -> str:
                return str((cluster.group("g").get("conditions") or [{}])[0].get("reason"))

            await until(lambda: reason() not in ("Scheduled", "Incomplete"))
            assert reason() == "Unschedulable"
            cluster.ahead_seconds += 601
            await until(lambda: reason() == "WaitingTimeExceeded")


@in_virtual_time
async def test_a_dry_run_plans_and_writes_nothing() -> None:
    async with live([small("n1")]) as cluster:
        version = None
        async with cluster.running(dry_run=True) as scheduler:
            cluster.pod("p")
            cluster.pod("huge", cpu="64")
            version = cluster.server.store.version
            await until(lambda: scheduler.state.assumed_node("default/p") == "n1")
            await until(lambda: cluster.planner.tried("default/huge") >= 1)
            await asyncio.sleep(0.3)
        assert cluster.server.store.version == version


async def test_a_planner_that_fails_on_one_unit_holds_up_no_other() -> None:
    async with live([small("n1")]) as cluster:
        cluster.planner = Planner(failing=lambda only: "default/bad" in only)
        cluster.pod("bad")
        cluster.pod("good")
        async with cluster.running():
            await until(lambda: cluster.bound("good"))
            await until(lambda: cluster.condition("bad"))
            assert cluster.condition("bad")["reason"] == "SchedulerError"
            assert "on purpose" in cluster.condition("bad")["message"]


async def test_an_unreachable_api_server_at_the_start_is_waited_for() -> None:
    async with live([small("n1")]) as cluster:
        cluster.server.faults.fail(500, method="GET", path="/api/v1/*", times=4)
        client = ApiClient(ClusterAccess(cluster.server.url), qps=0)
        async with cluster.running(client=client):
            cluster.pod("p")
            await until(lambda: cluster.bound("p"))


@in_virtual_time
async def test_nothing_is_planned_that_could_not_be_sent() -> None:
    """The lease ran out, and its holder has not noticed yet."""
    async with live([small("n1")]) as cluster, cluster.running() as scheduler:
        await asyncio.wait_for(scheduler.leading.wait(), 60)
        loop = scheduler._loop
        loop._may_write = lambda: False
        cluster.pod("p")
        await until(lambda: "default/p" in scheduler.queue.unit_of)
        await asyncio.sleep(0.3)
        assert not cluster.planner.tried("default/p")
        loop._may_write = scheduler.may_write
        await until(lambda: cluster.bound("p"))


async def test_a_gang_that_a_running_pod_joins_is_tried_with_it() -> None:
    """Neither room nor the PodGroup changes: that the pod is of the gang now, which makes it half bound, is all."""
    notes = {keys.GANG_TOPOLOGY: json.dumps({"gatherStrategy": [{"layer": keys.NODE_LAYER, "strategy": "MustGather"}]})}
    async with live([small("n1"), small("n2")]) as cluster, cluster.running():
        cluster.pod("old", gpus=2, cpu="0")
        await until(lambda: cluster.bound("old"))
        cluster.create(*gang("g", 3, gpus=2, annotations=notes))
        await until(lambda: all(cluster.condition(f"g-{i}") for i in range(3)))
        cluster.server.store.update("pods", "old", _joining("g"), namespace="default")
        await until(lambda: len(cluster.places()) == 2)
        assert len(set(cluster.places().values())) == 1


async def test_a_gang_that_a_running_pod_leaves_is_said_to_lack_it() -> None:
    async with live([small("n1")]) as cluster, cluster.running():
        cluster.create(*gang("g", 2, gpus=1), *gang("h", 1, gpus=1))
        await until(lambda: cluster.bound("g-0", "g-1", "h-0"))
        await until(lambda: cluster.group("g").get("scheduled") == 2 and cluster.group("h").get("scheduled") == 1)
        cluster.server.store.update("pods", "g-1", _joining("h"), namespace="default")
        await until(lambda: cluster.group("g").get("scheduled") == 1 and cluster.group("h").get("scheduled") == 2)


def _joining(group: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A pod as its owner says that it is of a gang."""

    def joining(obj: dict[str, Any]) -> dict[str, Any]:
        labels = {**obj["metadata"].get("labels", {}), keys.LABEL_POD_GROUP: group}
        return {**obj, "metadata": {**obj["metadata"], "labels": labels}}

    return joining


async def test_a_plan_that_its_check_refused_is_counted_and_in_the_log_with_all_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with live([small("n")]) as cluster:
        many = tuple((f"default/v-{i}", "priority") for i in range(100))
        refused = RejectedPlan("default/p", (("units", "on purpose"),), "greedy", many, (("default/p", "n"),))
        cluster.planner.beside = lambda plan: replace(plan, rejected=(refused,))
        cluster.pod("p")
        async with cluster.running() as scheduler:
            await until(lambda: cluster.bound("p"))
            count = scheduler.metrics.rejected_plans.labels("units")._value.get()
        assert count == cluster.planner.tried("default/p")
    lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert (
        lines[0]
        == "default/p: internal error: a plan failed koordpy's own check and was not carried out (units): on purpose"
    )
    whole = "".join(line.partition(": the rejected plan, part ")[2].partition(": ")[2] for line in lines[1:])
    assert len(lines) > 3
    assert decode(whole.encode(), type=RejectedPlan) == refused


async def test_a_gang_made_anew_under_an_old_name_has_not_waited_yet() -> None:
    async with live() as cluster, cluster.running() as scheduler:
        cluster.create(*gang("g", 2, gpus=1))
        await until(lambda: cluster.condition("g-0").get("status") == "False")
        cluster.delete("g-0")
        cluster.delete("g-1")
        await until(lambda: not scheduler.queue.entries)
        cluster.ahead_seconds += 1000
        _, *members = gang("g", 2, gpus=1)
        cluster.create(*members)
        await until(lambda: cluster.condition("g-0").get("status") == "False")
        cluster.ahead_seconds += 10
        cluster.nodes(small("n1"))
        await until(lambda: cluster.bound("g-0", "g-1") and not scheduler.committer.open)
        assert 10 <= scheduler.metrics.gang_wait_seconds._sum.get() < 500
