# SPDX-License-Identifier: Apache-2.0
"""Events and status patches: what is written besides Bindings."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from koordpy.api.objects import Condition, ObjectMeta, Pod, PodStatus
from koordpy.engine.client.api_resources import POD_GROUPS, PODS
from koordpy.engine.status import status_patches
from koordpy.engine.status.event_recorder import WARNINGS_A_MINUTE, EventRecorder, ObjectReference, cut_note
from tests.engine.scripted import ScriptedServer, client_of, drop, reply, scripted_server, status, until

EVENTS = "/apis/events.k8s.io/v1/namespaces/ns/events"
POD = ObjectReference("v1", "Pod", "a", "ns", "uid-a")
NOW = datetime(2026, 1, 2, 3, 4, 5, 678900, tzinfo=UTC).timestamp()


class Bench:
    """A recorder with a clock to turn."""

    def __init__(self, server: ScriptedServer, recorder: EventRecorder) -> None:
        self.server, self.recorder = server, recorder
        self.seconds = 0.0
        self.lost: list[str] = []

    def fail(self, note: str = "0/3 nodes are available: 3 Too many pods.", on: ObjectReference = POD) -> None:
        self.recorder.record(on, type="Warning", reason="FailedScheduling", action="Scheduling", note=note)

    async def settled(self) -> None:
        await asyncio.wait_for(self.recorder.drain(60), 120)


@asynccontextmanager
async def recording(*, running: bool = True, busy: Callable[[], bool] = lambda: False) -> AsyncIterator[Bench]:
    async with scripted_server() as server, client_of(server) as client:
        bench: Bench
        recorder = EventRecorder(
            client,
            controller="koord-scheduler",
            qps=0,
            burst=1,
            clock=lambda: bench.seconds,
            now=lambda: NOW,
            busy=busy,
            on_lost=lambda reason: bench.lost.append(reason),
        )
        bench = Bench(server, recorder)
        server.on("POST", EVENTS, reply({}, 201))
        task = asyncio.create_task(recorder.run()) if running else None
        try:
            yield bench
        finally:
            if task is not None:
                assert not task.done()
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


def patched(server: ScriptedServer) -> list[Any]:
    return [request.body for request in server.sent("PATCH")]


def accept_patches(bench: Bench, answer: Any) -> str:
    name: str = bench.server.sent("POST")[0].body["metadata"]["name"]
    bench.server.on("PATCH", f"{EVENTS}/{name}", answer)
    return name


async def test_an_event_says_who_did_what_to_which_object() -> None:
    async with recording() as bench:
        preemptor = ObjectReference("v1", "Pod", "b", "ns", "uid-b")
        bench.recorder.record(
            POD, type="Normal", reason="Preempted", action="Preempting", note="by b", related=preemptor
        )
        await bench.settled()
        body = bench.server.seen[0].body
    name = body["metadata"].pop("name")
    assert name.startswith("a.") and len(name) == 18
    assert body == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": "ns"},
        "eventTime": "2026-01-02T03:04:05.678900Z",
        "reportingController": "koord-scheduler",
        "reportingInstance": f"koord-scheduler-{socket.gethostname()}"[:128],
        "type": "Normal",
        "reason": "Preempted",
        "action": "Preempting",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "name": "a", "namespace": "ns", "uid": "uid-a"},
        "related": {"apiVersion": "v1", "kind": "Pod", "name": "b", "namespace": "ns", "uid": "uid-b"},
        "note": "by b",
    }


async def test_events_on_cluster_objects_go_to_the_default_namespace() -> None:
    async with recording() as bench:
        path = "/apis/events.k8s.io/v1/namespaces/default/events"
        bench.server.on("POST", path, reply({}, 201))
        bench.fail(on=ObjectReference("v1", "Node", "n1"))
        await bench.settled()
        assert bench.server.seen[0].path == path and bench.recorder.sent == 1


async def test_equal_events_are_one_series_refreshed_every_six_minutes() -> None:
    async with recording() as bench:
        bench.fail()
        await bench.settled()
        accept_patches(bench, reply({}))
        for _ in range(20):
            bench.fail()
        await bench.settled()
        assert len(bench.server.seen) == 1
        bench.seconds = 361
        bench.fail()
        bench.fail()
        await bench.settled()
        assert patched(bench.server) == [{"series": {"count": 23, "lastObservedTime": "2026-01-02T03:04:05.678900Z"}}]
        assert len(bench.server.seen) == 2
        bench.fail("another note")
        await bench.settled()
        assert len(bench.server.sent("POST")) == 2


async def test_a_series_that_fell_silent_is_brought_up_to_date_once() -> None:
    async with recording() as bench:
        bench.fail()
        await bench.settled()
        accept_patches(bench, reply({}))
        bench.fail()
        bench.recorder.refresh_due()
        await bench.settled()
        assert patched(bench.server) == []
        bench.seconds = 400
        for _ in range(3):
            bench.recorder.refresh_due()
            await bench.settled()
            bench.seconds += 400
        assert [body["series"]["count"] for body in patched(bench.server)] == [2]


async def test_a_series_the_server_forgot_goes_on_in_a_new_event() -> None:
    async with recording() as bench:
        bench.fail()
        await bench.settled()
        name = accept_patches(bench, status(404, "NotFound"))
        bench.seconds = 400
        bench.fail()
        await bench.settled()
        again = bench.server.sent("POST")[1].body
        assert again["series"]["count"] == 2 and again["metadata"]["name"] != name


async def test_what_does_not_fit_the_queue_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koordpy.engine.status.event_recorder.QUEUE_LENGTH", 2)
    async with recording(running=False) as bench:
        for n in range(5):
            bench.fail(f"note {n}")
        assert bench.lost == ["queue_full"] * 3


async def test_what_thousands_of_one_namespace_are_told_takes_no_room_and_no_turn_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("koordpy.engine.status.event_recorder.QUEUE_LENGTH", 4)
    monkeypatch.setattr("koordpy.engine.status.event_recorder.WORKERS", 1)
    other = ObjectReference("v1", "Pod", "b", "other", "uid-b")
    async with recording(running=False) as bench:
        bench.server.on("POST", "/apis/events.k8s.io/v1/namespaces/other/events", reply({}, 201))
        for n in range(5):
            bench.fail(f"note {n}")
        bench.fail("of another", on=other)
        bench.fail("note 3")  # nothing of it is on the server: it begins anew
        assert bench.lost == ["queue_full"] * 3
        task = asyncio.create_task(bench.recorder.run())
        await bench.settled()
        notes = [request.body["note"] for request in bench.server.sent("POST")]
        task.cancel()
        assert notes == ["note 0", "of another", "note 1", "note 2"]


async def test_of_an_object_that_is_gone_nobody_is_told_what_went_wrong_but_what_was_done() -> None:
    async with recording(running=False) as bench:
        bench.fail("why it waits")
        bench.recorder.record(POD, type="Normal", reason="Preempted", action="Preempting", note="for another")
        bench.recorder.record(POD, type="Warning", reason="GangEvicted", action="Preempting", note="of a gang")
        bench.recorder.forget(lambda about: about != POD)
        bench.fail("why it waits")
        bench.recorder.forget(lambda about: about != POD)
        task = asyncio.create_task(bench.recorder.run())
        await bench.settled()
        task.cancel()
        assert sorted(request.body["note"] for request in bench.server.sent("POST")) == ["for another", "of a gang"]


async def test_an_object_that_changes_all_the_time_is_warned_of_25_things_a_minute() -> None:
    async with recording() as bench:
        for second in (0.0, 59.0, 60.0):
            bench.seconds = second
            for i in range(30):
                bench.fail(f"another at {second}: {i}")
            bench.fail("as always", on=replace(POD, name="b"))
        await bench.settled()
        assert len(bench.server.sent("POST")) == 2 * WARNINGS_A_MINUTE + 1
        assert bench.lost == ["too_many"] * (2 * 5 + 30)


@pytest.mark.parametrize("answer", [drop(), status(403, "Forbidden"), status(500)], ids=["dropped", "403", "500"])
async def test_an_event_that_is_refused_troubles_nobody(answer: Any) -> None:
    async with recording() as bench:
        bench.server.scripts["POST", EVENTS] = [answer, reply({}, 201)]
        bench.fail("one")
        await bench.settled()
        bench.fail("two")
        await bench.settled()
        assert (bench.lost, bench.recorder.sent) == (["failed"], 1)


async def test_recording_returns_while_the_server_hangs() -> None:
    async def hang(request: web.Request) -> web.Response:
        await asyncio.sleep(5)
        return web.Response()

    async with recording() as bench:
        bench.server.scripts["POST", EVENTS] = [hang]
        for n in range(100):
            bench.fail("note", on=replace(POD, name=f"p{n}"))
        await until(lambda: len(bench.server.seen) == 4)
        await bench.recorder.drain(0.05)
        assert bench.recorder.sent == 0 and not bench.lost


@pytest.mark.parametrize(
    ("note", "cut"),
    [
        ("short", "short"),
        ("x" * 1024, "x" * 1024),
        ("x" * 1025, "x" * 1021 + "..."),
        ("ü" * 600, "ü" * 510 + "..."),
        ("😀" * 300, "😀" * 255 + "..."),
        ("\ud800", "?"),
    ],
)
def test_a_note_is_cut_between_characters_at_1024_bytes(note: str, cut: str) -> None:
    assert cut_note(note) == cut and len(cut_note(note).encode()) <= 1024


# status patches


def pending(*conditions: Condition, generation: int = 3) -> Pod:
    meta = ObjectMeta(name="a", namespace="ns", uid="u", generation=generation)
    return Pod(metadata=meta, status=PodStatus(conditions=list(conditions)))


def told(reason: str, message: str, status: str = "False") -> Condition:
    return Condition(type="PodScheduled", status=status, reason=reason, message=message)


@pytest.mark.parametrize(
    ("before", "changes", "since"),
    [
        ([], True, True),
        ([told("", "", status="True")], True, True),
        ([told("Unschedulable", "old")], True, False),
        ([told("SchedulerError", "no room")], True, False),
        ([told("Unschedulable", "no room")], False, False),
    ],
)
def test_the_condition_is_sent_when_it_says_something_new(before: list[Condition], changes: bool, since: bool) -> None:
    patch = status_patches.pod_unschedulable(pending(*before), reason="Unschedulable", message="no room", now=NOW)
    assert bool(patch) == changes
    if patch:
        (condition,) = patch["conditions"]
        assert ("lastTransitionTime" in condition) == since
        assert condition.pop("lastTransitionTime", "2026-01-02T03:04:05Z") == "2026-01-02T03:04:05Z"
        assert condition == {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "no room",
            "observedGeneration": 3,
        }


@pytest.mark.parametrize(
    ("old", "new", "differs_in_numbers"),
    [
        ("0/3 nodes: 1 Too many pods", "0/4 nodes: 2 Too many pods", True),
        ("0/3 nodes: 1 Too many pods", "0/3 nodes: 1 Insufficient cpu", False),
        ("same", "same", False),
        ("", "0/3", False),
    ],
)
def test_counts_alone_are_a_wobble(old: str, new: str, differs_in_numbers: bool) -> None:
    assert status_patches.differs_in_numbers(old, new) is differs_in_numbers


def test_conditions_of_custom_resources_keep_their_time_until_they_turn() -> None:
    old = [
        Condition(type="Ready", status="True", last_transition_time="2020-01-01T00:00:00Z"),
        Condition(type="Stale", status="False", last_transition_time="2020-01-01T00:00:00Z"),
        Condition(type="Others", status="True", last_transition_time="2020-01-01T00:00:00Z"),
    ]
    changed = [Condition(type="Ready", status="True", message="new"), Condition(type="Stale", status="True")]
    merged = {one.type: one for one in status_patches.merged_conditions(old, changed, now=NOW)}
    assert merged["Ready"].last_transition_time == "2020-01-01T00:00:00Z" and merged["Ready"].message == "new"
    assert merged["Stale"].last_transition_time == "2026-01-02T03:04:05Z"
    assert list(merged) == ["Ready", "Stale", "Others"]


IMMUTABLE = status(422, "Invalid", 'Pod "a" is invalid: metadata.uid: Invalid value: "u": field is immutable')


@pytest.mark.parametrize(
    ("answer", "there"), [(reply({}), True), (status(404), False), (status(409), False), (IMMUTABLE, False)]
)
async def test_a_status_patch_of_what_is_gone_is_no_error(answer: Any, there: bool) -> None:
    async with scripted_server() as server, client_of(server) as client:
        server.on("PATCH", "/api/v1/namespaces/ns/pods/a/status", answer)
        server.on("PATCH", "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/ns/podgroups/g/status", answer)
        said = status_patches.pod_unschedulable(pending(), reason="Unschedulable", message="m", now=NOW)
        assert await status_patches.patch_status(client, PODS, pending().metadata, said, kind="strategic") is there
        sent = await status_patches.patch_status(client, POD_GROUPS, ObjectMeta("g", "ns"), {"phase": "Pending"})
        assert sent is there
        kinds = [request.headers["Content-Type"] for request in server.seen]
        assert kinds == ["application/strategic-merge-patch+json", "application/merge-patch+json"]
        assert server.seen[1].body == {"status": {"phase": "Pending"}}


async def test_events_let_bindings_pass_but_not_for_ever() -> None:
    busy, asked = True, 0

    def look() -> bool:
        nonlocal asked
        asked += 1
        return busy

    async with recording(busy=look) as bench:
        bench.fail(note="first")
        await until(lambda: asked >= 3)
        assert not bench.server.seen
        busy = False
        await bench.settled()
        assert len(bench.server.seen) == 1
        busy = True
        bench.fail(note="second")
        before = asked
        await until(lambda: asked >= before + 3)
        assert len(bench.server.seen) == 1
        bench.seconds += 5.0
        await bench.settled()
        assert len(bench.server.seen) == 2
