# SPDX-License-Identifier: Apache-2.0
"""Gangs that have lost members, against the embedded API server: said at once, given up in time (preemption.md 7)."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from koordpy.api import keys
from koordpy.config.configuration import KoordpyConfiguration, StaleGangs
from koordpy.config.node_failures import Repair
from koordpy.pods.gang_refs import GangRef, GangSource
from koordpy.preemption.search.stale_gangs import StaleState
from tests.engine.live import QUICK, Live, gang, in_virtual_time, live, small, until
from tests.engine.manifests import GROUPS
from tests.engine.test_evictor import ending
from tests.engine.test_workloads import job, member, said, uid_of

BUDGETS = "poddisruptionbudgets.policy"


@asynccontextmanager
async def halved(*, grace: float, minimum: int = 2, asked: bool = True, **annotations: str) -> AsyncIterator[Live]:
    """A gang of two on the node, of which the second pod is about to go; a node where no other pod fits."""
    async with live([small("n", gpus=2)]) as cluster:
        config = KoordpyConfiguration(stale_gangs=StaleGangs(enabled=asked, grace=grace))
        cluster.planner.config = config
        group, *pods = gang("g", 2, min_member=minimum, gpus=1)
        group["metadata"].setdefault("annotations", {}).update(annotations)
        cluster.create(group)
        for member in pods:
            member["spec"]["terminationGracePeriodSeconds"] = 0
            cluster.create(member)
            cluster.bind(member["metadata"]["name"], "n")
        async with cluster.running(QUICK, stale_gangs=config.stale_gangs):
            yield cluster


def stale(cluster: Live) -> dict[str, Any]:
    conditions = cluster.group("g").get("conditions", [])
    return next((c for c in conditions if c["type"] == "Stale"), {})


async def test_a_gang_that_lost_a_member_says_so_and_is_given_up_though_nothing_else_happens() -> None:
    async with halved(grace=60.0) as cluster:
        cluster.delete("g-1")
        await until(lambda: stale(cluster).get("status") == "True")
        assert stale(cluster)["message"] == "gang default/g has 1 of 2 members"
        assert cluster.bound("g-0")
        cluster.ahead_seconds += 61
        await until(lambda: "g-0" not in cluster.pods())
        await until(lambda: stale(cluster).get("status") == "False")
        await until(lambda: any(e["reason"] == "StaleGang" for e in cluster.events()))
        (event,) = (e for e in cluster.events() if e["reason"] == "StaleGang")
        assert event["message"].startswith("gang default/g has 1 of 2 members for ")
        assert event["related"]["name"] == "g"


def told(cluster: Live, reason: str) -> list[str]:
    """What events with this reason say of the PodGroup."""
    found = (e for e in cluster.events() if e["reason"] == reason and e["involvedObject"]["kind"] == "PodGroup")
    return [event["message"] for event in found]


async def test_a_loss_is_one_write() -> None:
    async with live([small("n", gpus=2)]) as cluster, cluster.running(QUICK, group_status_seconds=3600.0) as scheduler:
        cluster.create(*gang("g", 2, gpus=1))
        await until(lambda: cluster.bound("g-0", "g-1"))
        await cluster.at_rest(scheduler, "pods")
        assert scheduler.writers is not None
        (writer,) = (one for one in scheduler.writers.gangs if one.source is GangSource.GROUP)
        await writer.flush()
        assert (cluster.group("g")["scheduled"], stale(cluster)) == (2, {})
        cluster.server.store.remove("pods", "g-1", "default")
        await until(lambda: len(scheduler.state.gangs.members(GangRef("default", "g"))) == 1)
        sent = writer.sent
        await writer.flush()
        assert (cluster.group("g")["scheduled"], stale(cluster)["status"], writer.sent - sent) == (1, "True", 1)


async def test_a_gang_that_nobody_asked_to_evict_only_says_what_it_lacks() -> None:
    async with halved(grace=0.0, asked=False) as cluster:
        cluster.delete("g-1")
        await until(lambda: told(cluster, "GangDegraded") == ["gang default/g has 1 of 2 members"])
        await until(lambda: stale(cluster).get("status") == "True")
        # a round that looks at everybody has been held since
        cluster.pod("later")
        await until(lambda: cluster.bound("later"))
        assert cluster.bound("g-0") and not ending(cluster)


async def test_a_gang_whose_minimum_is_raised_has_lost_nobody() -> None:
    async with halved(grace=0.0) as cluster:
        await until(lambda: cluster.group("g").get("scheduled") == 2)

        def raised(old: dict[str, Any]) -> dict[str, Any]:
            return {**old, "spec": {"minMember": 8}}

        def says() -> str:
            return next(c["message"] for c in cluster.group("g")["conditions"] if c["type"] == "Scheduled")

        cluster.server.store.update(GROUPS, "g", raised, namespace="default")
        await until(
            lambda: says() == "2 of 8 required members (minMember) are bound or have Succeeded; no other pod is pending"
        )
        cluster.pod("later")
        await until(lambda: cluster.bound("later"))
        assert cluster.bound("g-0", "g-1") and not stale(cluster) and not ending(cluster)
        # one that is lost now is missed
        cluster.delete("g-1")
        await until(lambda: "g-0" not in cluster.pods())


async def test_the_pod_group_tells_of_the_loss_the_grace_and_the_end() -> None:
    async with halved(grace=60.0) as cluster:
        await until(lambda: cluster.group("g").get("scheduled") == 2)
        cluster.delete("g-1")
        first = "gang default/g has 1 of 2 members; they are evicted in 60s unless it has its minimum by then"
        await until(lambda: told(cluster, "GangDegraded") == [first])
        await until(lambda: stale(cluster).get("status") == "True")
        cluster.ahead_seconds += 31
        await until(lambda: len(told(cluster, "GangDegraded")) == 2)
        cluster.ahead_seconds += 31
        await until(lambda: bool(told(cluster, "GangEvicted")))
        (note,) = told(cluster, "GangEvicted")
        assert note.startswith("1 of 1 member was evicted by rule stale-gang: gang default/g has 1 of 2 members for ")

        def disrupted() -> dict[str, Any]:
            conditions = cluster.group("g").get("conditions", [])
            return next((c for c in conditions if c["type"] == "DisruptionTarget"), {})

        await until(lambda: disrupted().get("status") == "True" and "g-0" not in cluster.pods())
        assert (disrupted()["reason"], disrupted()["message"]) == ("StaleGang", note)
        cluster.create(*gang("g", 2, gpus=1)[1:])
        await until(lambda: cluster.bound("g-0", "g-1") and disrupted()["status"] == "False")
        assert disrupted()["message"] == f"minMember is reached again (before: {note})"
        # what happens to it from now on is nobody's eviction
        cluster.delete("g-1")
        await until(lambda: stale(cluster).get("status") == "True" and cluster.group("g")["scheduled"] == 1)
        assert disrupted()["status"] == "False"


@pytest.mark.parametrize(
    ("grace", "move_grace", "now", "text"),
    [
        (-1.0, -1.0, None, ""),
        (60.0, -1.0, None, "; they are evicted in 60s unless it has its minimum by then"),
        (60.0, -1.0, 45.0, "; they are evicted in 15s unless it has its minimum by then"),
        (
            60.0,
            60.0,
            None,
            "; in 60s it is moved as a whole if it fits elsewhere, else they are evicted,"
            " unless it has its minimum by then",
        ),
        (-1.0, 60.0, 45.0, "; in 15s it is moved as a whole if it fits elsewhere, unless it has its minimum by then"),
    ],
)
def test_the_warning_says_what_happens_at_the_end_of_the_grace(
    grace: float, move_grace: float, now: float | None, text: str
) -> None:
    """The repair policy `regather` moves the gang, with and without `staleGangs.enabled` (repair.md 4.3)."""
    due, moves = (end if end >= 0 else None for end in (grace, move_grace))
    state = StaleState(1, 2, grace, due, moves, move_grace)
    assert state.warning("default/g", now) == f"gang default/g has 1 of 2 members{text}"


async def test_a_gang_that_regathers_is_told_twice_that_it_moves() -> None:
    async with halved(grace=60.0, asked=False, **{keys.GANG_REPAIR: "regather"}) as cluster:
        await until(lambda: cluster.group("g").get("scheduled") == 2)
        cluster.delete("g-1")
        move = "it is moved as a whole if it fits elsewhere, unless it has its minimum by then"
        first = f"gang default/g has 1 of 2 members; in 60s {move}"
        await until(lambda: told(cluster, "GangDegraded") == [first])
        await until(lambda: stale(cluster).get("status") == "True")
        cluster.ahead_seconds += 31
        await until(lambda: len(told(cluster, "GangDegraded")) == 2)
        assert told(cluster, "GangDegraded")[1].endswith(f"s {move}")


def fail_long_ago(cluster: Live, name: str) -> None:
    """A member of the gang that failed an hour ago, and whose pod is there."""
    made = gang("g", 1, gpus=1)[1]
    cluster.create({**made, "metadata": {**made["metadata"], "name": name}})
    then = datetime.fromtimestamp(time.time() - 3600, UTC)
    state = {"terminated": {"exitCode": 1, "finishedAt": then.strftime("%Y-%m-%dT%H:%M:%SZ")}}
    status = {"phase": "Failed", "containerStatuses": [{"name": "main", "state": state}]}
    cluster.server.store.update("pods", name, lambda old: {**old, "status": status}, namespace="default", status=True)


async def test_a_member_that_was_replaced_long_ago_does_not_shorten_the_grace() -> None:
    async with halved(grace=60.0) as cluster:
        fail_long_ago(cluster, "g-9")
        await until(lambda: cluster.group("g").get("scheduled") == 2 and cluster.group("g")["failed"] == 1)
        cluster.delete("g-1")
        await until(lambda: stale(cluster).get("status") == "True")
        cluster.pod("later")
        await until(lambda: cluster.bound("later"))
        assert cluster.bound("g-0") and not ending(cluster)
        cluster.ahead_seconds += 61
        await until(lambda: "g-0" not in cluster.pods())


async def test_since_when_an_earlier_run_was_stale_says_nothing_of_this_one() -> None:
    async with halved(grace=60.0) as cluster:
        then = {"type": "Stale", "status": "True", "reason": "MembersMissing", "message": "gang default/g has 1 of 2"}
        then["lastTransitionTime"] = "2026-01-01T00:00:00Z"
        store = cluster.server.store
        old = store.get(GROUPS, "g", "default")
        meta = {**old["metadata"], "creationTimestamp": "2025-12-31T00:00:00Z"}
        was_stale = {**old, "metadata": meta, "status": {**old["status"], "conditions": [then]}}
        cluster.delete("g-1")
        store.replace(store.resource(GROUPS), ("default", "g"), was_stale)
        async with cluster.running(QUICK, stale_gangs=cluster.planner.config.stale_gangs):
            cluster.pod("later")
            await until(lambda: cluster.bound("later"))
            assert cluster.bound("g-0") and not ending(cluster)


async def test_a_gang_that_was_given_up_and_is_whole_again_says_so() -> None:
    async with halved(grace=60.0) as cluster:
        cluster.delete("g-1")
        await until(lambda: stale(cluster).get("status") == "True")
        cluster.delete("g-0")
        await until(lambda: stale(cluster).get("reason") == "NoneBound")
        since = stale(cluster)["lastTransitionTime"]
        cluster.ahead_seconds += 5
        cluster.create(*gang("g", 2, gpus=1)[1:])
        await until(lambda: cluster.bound("g-0", "g-1"))
        await until(lambda: stale(cluster).get("reason") == "MinimumMet")
        assert stale(cluster)["message"] == "2 members are bound or have Succeeded, minMember is 2"
        assert (stale(cluster)["status"], stale(cluster)["lastTransitionTime"]) == ("False", since)
        cluster.delete("g-0")
        cluster.delete("g-1")
        await until(lambda: stale(cluster).get("reason") == "NoneBound" and stale(cluster)["status"] == "False")
        assert stale(cluster)["message"].endswith("bound any more")


@in_virtual_time
async def test_a_gang_whose_member_comes_back_in_time_goes_on() -> None:
    async with halved(grace=60.0) as cluster:
        cluster.delete("g-1")
        await until(lambda: stale(cluster).get("status") == "True")
        cluster.create(gang("g", 2, gpus=1)[2])
        await until(lambda: cluster.bound("g-1"))
        await until(lambda: stale(cluster).get("status") == "False" and told(cluster, "GangRepaired"))
        assert (stale(cluster)["reason"], told(cluster, "GangRepaired")) == (
            "MinimumMet",
            ["2 members are bound or have Succeeded"],
        )
        cluster.ahead_seconds += 61
        await asyncio.sleep(5)
        assert cluster.bound("g-0", "g-1")


@in_virtual_time
async def test_a_gang_that_loses_more_and_more_members_is_told_of_once() -> None:
    async with live([small("n")]) as cluster, cluster.running(QUICK):
        group, *members = gang("g", 4, gpus=1)
        for member in members:
            member["spec"]["terminationGracePeriodSeconds"] = 0
        cluster.create(group, *members)
        await until(lambda: cluster.group("g").get("scheduled") == 4)
        for left in (3, 2):
            cluster.delete(f"g-{left}")
            await until(lambda: stale(cluster).get("message") == f"gang default/g has {left} of 4 members")  # noqa: B023
        await asyncio.sleep(5)
        assert told(cluster, "GangDegraded") == ["gang default/g has 3 of 4 members"]
        cluster.create(*members[2:])
        await until(lambda: stale(cluster)["status"] == "False")
        cluster.delete("g-3")
        cluster.delete("g-2")
        await until(lambda: len(told(cluster, "GangDegraded")) == 2)
        assert len(told(cluster, "GangRepaired")) == 1


async def test_nobody_is_told_that_members_go_that_may_not_go() -> None:
    async with halved(grace=60.0) as cluster:
        store = cluster.server.store
        labels = {**cluster.pods()["g-0"]["metadata"]["labels"], keys.QUOTA_PREEMPTIBLE: "false"}
        change = lambda old: {**old, "metadata": {**old["metadata"], "labels": labels}}  # noqa: E731
        store.update("pods", "g-0", change, namespace="default")
        cluster.delete("g-1")
        await until(lambda: told(cluster, "GangDegraded") == ["gang default/g has 1 of 2 members"])


@pytest.mark.parametrize(
    ("why", "settings", "minimum"),
    [
        ("it waits for ever", {keys.GANG_STALE_GRACE: "-1"}, 2),
        ("it is not strict", {keys.GANG_MODE: "NonStrict"}, 2),
        ("it has its minimum", {}, 1),
    ],
)
@in_virtual_time
async def test_a_gang_is_left_alone(why: str, settings: dict[str, str], minimum: int) -> None:
    async with halved(grace=0.2, minimum=minimum, **settings) as cluster:
        cluster.delete("g-1")
        if "ever" in why:
            await until(lambda: stale(cluster))
        await asyncio.sleep(5)
        assert cluster.bound("g-0"), why
        assert bool(stale(cluster)) == ("ever" in why)


async def test_a_gang_without_patience_goes_at_once() -> None:
    async with halved(grace=60.0, **{keys.GANG_STALE_GRACE: "0s"}) as cluster:
        cluster.delete("g-1")
        await until(lambda: "g-0" not in cluster.pods())


@in_virtual_time
async def test_a_scheduler_that_starts_anew_goes_on_waiting_from_when_it_began() -> None:
    async with halved(grace=60.0) as cluster:
        cluster.delete("g-1")
        await until(lambda: stale(cluster).get("status") == "True")
        began = stale(cluster)["lastTransitionTime"]
        async with cluster.running(QUICK, stale_gangs=cluster.planner.config.stale_gangs):
            await asyncio.sleep(0.5)
            assert stale(cluster)["lastTransitionTime"] == began
            cluster.ahead_seconds += 61
            await until(lambda: "g-0" not in cluster.pods())


@in_virtual_time
async def test_a_budget_keeps_a_stale_gang_until_it_allows_it_to_go() -> None:
    async with halved(grace=0.2) as cluster:
        spec = {"minAvailable": 1, "selector": {"matchLabels": {keys.LABEL_POD_GROUP: "g"}}}
        meta = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}}
        cluster.server.store.create(BUDGETS, {**meta, "metadata": {"name": "b", "namespace": "default"}, "spec": spec})
        cluster.delete("g-1")
        await until(lambda: stale(cluster).get("status") == "True")
        await asyncio.sleep(5)
        assert not ending(cluster) and cluster.bound("g-0")


async def test_what_was_said_before_a_gang_was_whole_is_not_told_again_when_it_loses_a_member() -> None:
    async with live([small("n", gpus=2)]) as cluster:
        group, first, second = gang("g", 2, gpus=1)
        second["spec"]["terminationGracePeriodSeconds"] = 0

        def scheduled() -> tuple[str, str]:
            conditions = cluster.group("g").get("conditions", [])
            return next(((c["status"], c["reason"]) for c in conditions if c["type"] == "Scheduled"), ("", ""))

        async with cluster.running(QUICK):
            cluster.create(group, first)
            await until(lambda: scheduled() == ("False", "Incomplete"))
            cluster.create(second)
            await until(lambda: scheduled() == ("True", "Scheduled"))
            cluster.delete("g-1")
            await until(lambda: scheduled() == ("False", "Incomplete"))
            (told,) = (c["message"] for c in cluster.group("g")["conditions"] if c["type"] == "Scheduled")
            assert told == "1 of 2 required members (minMember) are bound or have Succeeded; no other pod is pending"


async def test_a_job_that_has_lost_a_member_is_given_up_when_its_grace_is_over() -> None:
    async with live([small("n1", cpu=2)]) as cluster:
        config = KoordpyConfiguration(stale_gangs=StaleGangs(enabled=True, grace=60.0), repair=Repair(seat_hold=0.0))
        cluster.planner.config = config
        async with cluster.running(QUICK, stale_gangs=config.stale_gangs):
            uid = uid_of(job(cluster, 2))
            cluster.create(*(member(i, uid) for i in range(2)))
            await until(lambda: cluster.bound("train-0", "train-1"))
            now = datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            state = {"terminated": {"exitCode": 1, "finishedAt": now}}
            status = {"phase": "Failed", "containerStatuses": [{"name": "c", "state": state}]}
            store = cluster.server.store
            store.update("pods", "train-1", lambda old: {**old, "status": status}, namespace="default", status=True)
            cluster.pod("other", cpu="1")
            await until(lambda: cluster.bound("other"))
            again = member(1, uid)
            cluster.create({**again, "metadata": {**again["metadata"], "name": "train-1-again"}})
            await until(lambda: "needed 1, available in the cluster: 0" in said(cluster, "train-1-again"))
            assert cluster.bound("train-0") and not ending(cluster)
            cluster.ahead_seconds += 61
            await until(lambda: bool(ending(cluster)) or "train-0" not in cluster.pods())
