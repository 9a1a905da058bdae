# SPDX-License-Identifier: Apache-2.0
"""What PodGroups say: phases, whose groups are written to, and how often (kube-parity.md 4.5)."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import Condition, OwnerReference, Pod
from koordpy.cache.gang_members import Members
from koordpy.config.configuration import StaleGangs
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.credentials import ClusterAccess
from koordpy.engine.scheduler import Scheduler
from koordpy.engine.status.group_status import MADE_AGAIN_SECONDS, counts_of, phase_of
from koordpy.plan.round_plan import Eviction
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import pod_info
from tests.engine.live import QUICK, gang, in_virtual_time, live, small, until
from tests.engine.manifests import GROUPS
from tests.engine.test_evictor import worker
from tests.scenarios import cluster

JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "job", "controller": True}
NAMED = {keys.LABEL_GANG_NAME: "named", keys.LABEL_GANG_MIN: "2"}
NAMES = frozenset({"koord-scheduler"})


def member(text: str, number: int) -> Pod:
    """`Running`, `bound`, `Pending`, `Succeeded`, `Failed`, `deleted` (Failed by that) or `evicted`."""
    phase = {"bound": "Pending", "deleted": "Failed", "evicted": "Failed"}.get(text, text)
    made = cluster.pod(f"p-{number}", gang="g", at="" if text == "Pending" else "n", phase=phase)
    if text == "deleted":
        return replace(made, metadata=replace(made.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))
    if text == "evicted":
        marked = [Condition(type="DisruptionTarget", status="True")]
        return replace(made, status=replace(made.status, conditions=marked))
    return made


@pytest.mark.parametrize(
    ("pods", "need", "phase"),
    [
        ("", 2, "Pending"),
        ("Pending", 2, "Pending"),
        ("Pending Pending", 2, "Scheduling"),
        ("bound Pending", 2, "Scheduling"),
        ("bound bound", 2, "Scheduled"),
        ("bound Running", 2, "Scheduled"),
        ("Running Running Pending", 2, "Running"),
        ("Running Succeeded", 2, "Running"),
        ("Succeeded Succeeded", 2, "Finished"),
        ("Succeeded Succeeded Pending", 2, "Scheduling"),
        ("Succeeded Succeeded Running", 2, "Running"),
        ("Succeeded Failed", 2, "Failed"),
        ("Running Failed", 2, "Failed"),
        ("Running Failed Pending", 2, "Scheduling"),
        ("Running Failed Running", 2, "Running"),
        ("Running deleted", 2, "Pending"),
        ("deleted deleted", 2, "Pending"),
        ("evicted evicted Pending Pending", 2, "Scheduling"),
        ("evicted evicted", 2, "Pending"),
    ],
)
def test_phases(pods: str, need: int, phase: str) -> None:
    made = [pod_info(member(text, i), scheduler_names=NAMES) for i, text in enumerate(pods.split())]
    found = Members(pods=tuple(made))
    assert phase_of(found, counts_of(found), need=need, now=0.0) == phase


@in_virtual_time
async def test_a_job_that_backs_off_has_not_failed_yet() -> None:
    async with live([small("n")]) as cluster:
        group, *pods = gang("g", 2, gpus=1)
        cluster.create(group)
        for each in pods:
            each["metadata"]["ownerReferences"] = [JOB]
            cluster.create(each)
        async with cluster.running():
            await until(lambda: cluster.group("g").get("phase") == "Scheduled")
            failed = {"phase": "Failed"}
            for name in ("g-0", "g-1"):
                cluster.server.store.update(
                    "pods", name, lambda old: {**old, "status": failed}, namespace="default", status=True
                )
            await until(lambda: cluster.group("g").get("failed") == 2)
            assert cluster.group("g")["phase"] == "Pending"
            cluster.ahead_seconds += MADE_AGAIN_SECONDS - 30
            await asyncio.sleep(0.3)
            assert cluster.group("g")["phase"] == "Pending"
            cluster.ahead_seconds += 31
            await until(lambda: cluster.group("g")["phase"] == "Failed")


async def test_the_next_job_of_a_pod_group_is_told_of_though_pods_of_the_last_are_still_ending() -> None:
    async with live([small("n")]) as cluster:
        group, *pods = gang("g", 2, gpus=1)
        cluster.create(group)
        async with cluster.running():
            for job in ("first", "second"):
                names = [f"{job}-{number}" for number in range(2)]
                for name, each in zip(names, pods, strict=True):
                    owner = {**JOB, "uid": job}
                    meta = {"name": name, "ownerReferences": [owner], "finalizers": ["example.com/kept"]}
                    cluster.create({**each, "metadata": {**each["metadata"], **meta}})
                await until(lambda: cluster.bound(*names))  # noqa: B023
                if job == "first":
                    for name in names:
                        cluster.delete(name)

            def starts() -> list[tuple[str, str]]:
                events = [one for one in cluster.events() if one["reason"] == "GangScheduled"]
                return sorted((one["related"]["uid"], one["message"]) for one in events)

            text = "2 of 2 members bound"
            await until(lambda: starts() == [("first", text), ("second", text)])


@in_virtual_time
async def test_a_start_is_told_once_a_run() -> None:
    async with live([small("n")]) as cluster, cluster.running() as scheduler:
        group, *pods = gang("g", 10, gpus=1)
        made = [{**one, "metadata": {**one["metadata"], "ownerReferences": [JOB]}} for one in pods]

        def succeeded(old: dict[str, Any]) -> dict[str, Any]:
            return {**old, "status": {**old["status"], "phase": "Succeeded"}}

        async def told(*starts: int) -> None:
            await asyncio.sleep(5)
            found = sorted(one["message"] for one in cluster.events() if one["reason"] == "GangScheduled")
            assert found == [f"{many} of {many} members bound" for many in starts]

        cluster.create({**group, "spec": {"minMember": 1}}, *made[:1])
        await told(1)
        # its Job is suspended and resumed
        cluster.delete("g-0")
        await asyncio.sleep(5)
        cluster.create(*made[:2])
        await told(1, 2)
        # the rest of it, one beside others and four when all of them have Succeeded
        cluster.create(made[2])
        await told(1, 2)
        for name in ("g-0", "g-1", "g-2"):
            cluster.server.store.update("pods", name, succeeded, namespace="default", status=True)
        cluster.create(*made[3:7])
        await told(1, 2)
        assert cluster.bound(*(f"g-{number}" for number in range(7)))
        # evicted and made again
        for number in range(3, 7):
            cluster.delete(f"g-{number}")
        await asyncio.sleep(5)
        assert scheduler.writers is not None
        for writer in scheduler.writers.gangs:
            writer.evicted(GangRef("default", "g"), [Eviction("default/g-3", "", "n", "priority", "default/high")])
        cluster.create(*made[7:])
        await told(1, 2, 3)


@in_virtual_time
async def test_a_start_is_told_once_a_run_also_when_the_scheduler_starts_anew() -> None:
    async with live([small("n"), small("m")]) as cluster:
        group, *pods = gang("g", 10, gpus=1)
        made = [{**one, "metadata": {**one["metadata"], "ownerReferences": [JOB]}} for one in pods]
        _, *named = gang("named", 3, gpus=1)
        for one in named:
            one["metadata"] = {"name": one["metadata"]["name"], "labels": NAMED, "ownerReferences": [JOB]}

        def starts() -> list[str]:
            return sorted(one["message"] for one in cluster.events() if one["reason"] == "GangScheduled")

        cluster.create({**group, "spec": {"minMember": 2}}, *made[:2], *named[:2])
        async with cluster.running():
            await until(lambda: starts() == ["2 of 2 members bound"] * 2)
        # further members
        cluster.create(made[2], named[2])
        async with cluster.running():
            await until(lambda: cluster.bound("g-2", "named-2"))
            await asyncio.sleep(5)
            cluster.delete("g-0")
            cluster.delete("g-1")
            await until(lambda: said(cluster.group("g"), "Stale") == "True")
        # those that were lost
        cluster.create(made[3])
        async with cluster.running():
            await until(lambda: said(cluster.group("g"), "Stale") == "False")
            await asyncio.sleep(5)
        assert starts() == ["2 of 2 members bound"] * 2
        # a run of its own
        for name in ("g-2", "g-3"):
            cluster.delete(name)
        cluster.create(*made[4:7])
        async with cluster.running():
            await until(lambda: starts() == ["2 of 2 members bound", "2 of 2 members bound", "3 of 3 members bound"])


def said(status: dict[str, Any], kind: str) -> str:
    return next((one["status"] for one in status.get("conditions", ()) if one["type"] == kind), "")


def test_pods_of_a_job_that_are_still_ending_are_none_of_the_next_jobs() -> None:
    made = []
    for number, (text, job) in enumerate(
        [("Running", "old"), ("Running", "old"), ("Running", "new"), ("Pending", "new")]
    ):
        one = member(text, number)
        owner = OwnerReference(kind="Job", name=job, uid=job, controller=True)
        gone = "2026-01-01T00:00:00Z" if job == "old" else None
        meta = replace(one.metadata, owner_references=[owner], deletion_timestamp=gone)
        made.append(pod_info(replace(one, metadata=meta), scheduler_names=NAMES))
    found = Members(pods=tuple(made))
    assert {name: n for name, n in counts_of(found).items() if n} == {"scheduled": 1, "running": 1}
    assert phase_of(found, counts_of(found), need=2, now=0.0) == "Scheduling"
    ending = Members(pods=tuple(made[:2]))
    assert counts_of(ending)["running"] == 2


def status(name: str) -> str:
    return f'{{status="{name}"}}'


NONE = {
    **dict.fromkeys(map(status, ("Scheduled", "Incomplete", "Invalid", "Unschedulable", "Degraded")), 0),
    "_half_bound": 0,
}


def gauges(scheduler: Scheduler) -> dict[str, float]:
    """What the gauges of gangs say."""
    lines = scheduler.metrics.render().decode().splitlines()
    found = [line.rpartition(" ") for line in lines if line.startswith(("koordpy_gangs{", "koordpy_gangs_half"))]
    return {name.partition("koordpy_gangs")[2]: float(value) for name, _, value in found}


async def test_groups_of_other_schedulers_are_left_alone() -> None:
    async with live([small("n")]) as cluster:
        group, *pods = gang("theirs", 2, gpus=1)
        cluster.create(group)
        for each in pods:
            each["spec"]["schedulerName"] = "another"
            cluster.create(each)
            cluster.bind(each["metadata"]["name"], "n")
        cluster.create(*gang("ours", 1, gpus=1))
        cluster.create(gang("empty", 1)[0])
        async with cluster.running(stale_gangs=StaleGangs(enabled=True, grace=0.0)) as scheduler:
            await until(lambda: cluster.group("ours").get("phase") == "Scheduled")
            assert gauges(scheduler) == {**NONE, status("Scheduled"): 1}
            cluster.delete("theirs-1")
            await until(lambda: len(scheduler.state.gangs.members(GangRef("default", "theirs"))) == 1)
            cluster.create(*gang("later", 1, gpus=1))
            await until(lambda: cluster.group("later").get("phase") == "Scheduled")
            untouched = {
                "phase": "Pending",
                "scheduled": 0,
                "running": 0,
                "succeeded": 0,
                "failed": 0,
            }  # by the definition
            assert cluster.group("theirs") == cluster.group("empty") == untouched
            assert gauges(scheduler) == {**NONE, status("Scheduled"): 2}
            about = {event["involvedObject"]["name"] for event in cluster.events()}
            assert about & {"theirs", "theirs-0"} == set() and {"ours", "later"} <= about
            # a group that was ours goes on saying what is
            cluster.delete("ours-0")
            await until(lambda: cluster.group("ours").get("phase") == "Pending")
            assert cluster.group("ours")["scheduled"] == 0


async def test_gauges_count_all_gangs_not_those_of_the_last_round() -> None:
    async with live([small("n", gpus=4)]) as cluster:
        cluster.create(*gang("whole", 2, gpus=1), *gang("large", 2, gpus=4), *gang("alone", 1, min_member=3, gpus=1))
        async with cluster.running() as scheduler:
            wanted = {**NONE, **dict.fromkeys(map(status, ("Scheduled", "Incomplete", "Unschedulable")), 1)}
            await until(lambda: gauges(scheduler) == wanted)
            cluster.create(worker("other"))
            await until(lambda: cluster.bound("other"))
            assert gauges(scheduler) == wanted
            cluster.delete("whole-1")
            await until(lambda: gauges(scheduler)["_half_bound"] == 1)
            assert gauges(scheduler)[status("Scheduled")] == 0 and gauges(scheduler)[status("Degraded")] == 1


async def test_what_is_asked_while_the_world_is_half_read_is_answered_when_it_is_read() -> None:
    async with live([small("n")]) as cluster:
        group, *pods = gang("g", 4, gpus=1)
        told = {"scheduled": 4, "succeeded": 3, "departed": 0, "failed": 0, "running": 1}
        cluster.create(group)
        store = cluster.server.store
        store.update(GROUPS, "g", lambda old: {**old, "status": told}, namespace="default", status=True)
        for number, each in enumerate(pods):
            cluster.create(each)
            cluster.bind(f"g-{number}", "n")
            phase = {"phase": "Succeeded" if number else "Running"}
            store.update("pods", f"g-{number}", lambda old: {**old, "status": phase}, namespace="default", status=True)  # noqa: B023
        cluster.server.faults.fail(500, method="GET", path="/api/v1/pods", times=1)
        ref = GangRef("default", "g")
        seen: list[int] = []

        async with ApiClient(ClusterAccess(cluster.server.url), qps=0) as client:
            scheduler = Scheduler(client, cluster.planner, settings=QUICK)

            def asked(changed: GangRef) -> None:
                seen.append(len(scheduler.state.gangs.members(changed)))
                scheduler.metrics.render()

            scheduler.feeds.listeners.gang.append(asked)
            task = asyncio.create_task(scheduler.run())
            await asyncio.wait_for(scheduler.leading.wait(), 60)
            scheduler.stop()
            await asyncio.wait_for(task, 60)
        assert {0, 1, 2, 3, 4} <= set(seen)
        assert (scheduler.state.gangs.gang(ref).succeeded, scheduler.state.gangs.gang(ref).present) == (3, 4)


async def test_a_gang_whose_others_have_succeeded_is_not_called_half_bound(caplog: pytest.LogCaptureFixture) -> None:
    async with live([small("n")]) as cluster:
        for name in ("done", "lost"):
            group, *pods = gang(name, 2, gpus=1)
            cluster.create(group)
            for each in pods:
                cluster.create(each)
                cluster.bind(each["metadata"]["name"], "n")
        change = {"phase": "Succeeded"}
        store = cluster.server.store
        store.update("pods", "done-1", lambda old: {**old, "status": change}, namespace="default", status=True)
        cluster.delete("lost-1")
        async with cluster.running() as scheduler:
            await until(scheduler.leading.is_set)
        said = [record.getMessage() for record in caplog.records if "half bound" in record.getMessage()]
        assert said == ["gang default/lost is half bound (1 of 2 members): planned first"]
