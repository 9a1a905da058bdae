# SPDX-License-Identifier: Apache-2.0
"""The reflector against every way in which a list or a watch can go wrong."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web
from msgspec import convert

from koordpy.api.field_faults import UnreadableError
from koordpy.api.objects import Pod
from koordpy.engine.client.api_resources import POD_GROUPS, PODS, UPSTREAM_POD_GROUPS, Resource, Wanted, discover
from koordpy.engine.watching.reflector import Reflector
from koordpy.engine.watching.reflector_policy import ReflectorPolicy
from tests.engine.scripted import (
    ScriptedServer,
    client_of,
    drop,
    event,
    listing,
    pod,
    reply,
    scripted_server,
    status,
    until,
    watching,
)

PATH = "/api/v1/pods"
FAST = ReflectorPolicy(first_backoff_seconds=0.01, most_backoff_seconds=0.05, unserved_recheck_seconds=0.02)


class Log:
    """A sink that writes down what it is told and checks that the old object is the one it got last."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.held: dict[str, Pod] = {}

    def upsert(self, obj: Pod, old: Pod | None) -> None:
        assert old is self.held.get(obj.metadata.uid)
        self.held[obj.metadata.uid] = obj
        self.lines.append(f"+{obj.metadata.name}@{obj.metadata.resource_version}")

    def delete(self, obj: Pod) -> None:
        assert self.held.pop(obj.metadata.uid) is obj
        self.lines.append(f"-{obj.metadata.name}@{obj.metadata.resource_version}")


@asynccontextmanager
async def reflecting(
    server: ScriptedServer, sink: Log, *, resource: Resource = PODS, **options: object
) -> AsyncIterator[Reflector[Pod]]:
    async with client_of(server) as client:
        reflector = Reflector(client, resource, Pod, sink, **{"policy": FAST, **options})  # type: ignore[arg-type]
        task = asyncio.create_task(reflector.run())
        try:
            yield reflector
        finally:
            assert not task.done(), "a reflector never ends by itself"
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with scripted_server() as scripted:
        yield scripted


async def test_a_list_comes_in_pages_and_the_watch_goes_on_from_its_version(server: ScriptedServer) -> None:
    server.on("LIST", PATH, listing(pod("a", "3"), token="more"), listing(pod("b", "4")))
    server.on("WATCH", PATH, watching(event("MODIFIED", pod("a", "11")), event("DELETED", pod("b", "12"))))
    sink = Log()
    async with reflecting(server, sink) as reflector:
        await asyncio.wait_for(reflector.synced.wait(), 60)
        await until(lambda: len(sink.lines) == 4)
    assert sink.lines == ["+a@3", "+b@4", "+a@11", "-b@4"]
    assert [request.query.get("continue") for request in server.sent("LIST")] == [None, "more"]
    watch = server.sent("WATCH")[0].query
    assert watch["resourceVersion"] == "10" and watch["allowWatchBookmarks"] == "true"


async def test_a_watch_cut_in_the_middle_of_a_line_resumes_after_the_last_whole_event(server: ScriptedServer) -> None:
    half = event("ADDED", pod("b", "12"))[:40]
    server.on("LIST", PATH, listing())
    server.on(
        "WATCH",
        PATH,
        watching(event("ADDED", pod("a", "11")), half, then="cut"),
        watching(event("ADDED", pod("b", "12"))),
    )
    sink = Log()
    async with reflecting(server, sink):
        await until(lambda: len(sink.lines) == 2)
    assert sink.lines == ["+a@11", "+b@12"]
    assert [request.query["resourceVersion"] for request in server.sent("WATCH")] == ["10", "11"]
    assert len(server.sent("LIST")) == 1


async def test_an_event_that_arrives_in_pieces_is_read_as_one(server: ScriptedServer) -> None:
    line = event("ADDED", pod("a", "11"))
    server.on("LIST", PATH, listing())
    server.on("WATCH", PATH, watching(line[:7], line[7:50], line[50:-1], line[-1:] + line[:9]))
    sink = Log()
    async with reflecting(server, sink):
        await until(lambda: sink.lines == ["+a@11"])


@pytest.mark.parametrize(
    "expired",
    [status(410, "Expired", "too old"), watching(event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"}))],
    ids=["as status", "as event"],
)
async def test_an_expired_watch_lists_again_and_deletes_what_vanished(server: ScriptedServer, expired) -> None:  # type: ignore[no-untyped-def]
    server.on("LIST", PATH, listing(pod("a", "3"), pod("b", "4"), pod("c", "5")))
    server.on("LIST", PATH, listing(pod("a", "3"), pod("c", "15"), pod("d", "16"), version="20"))
    server.on("WATCH", PATH, expired, watching())
    sink = Log()
    async with reflecting(server, sink):
        await until(lambda: len(server.sent("WATCH")) == 2)
    assert sink.lines == ["+a@3", "+b@4", "+c@5", "+c@15", "+d@16", "-b@4"], "equal versions are not told again"
    assert server.sent("WATCH")[1].query["resourceVersion"] == "20"
    assert len(server.sent("LIST")) == 2


async def test_a_pod_recreated_while_we_were_away_is_deleted_before_its_successor_comes(server: ScriptedServer) -> None:
    server.on("LIST", PATH, listing(pod("a", "3", uid="old")), listing(pod("a", "15", uid="new"), version="20"))
    server.on("WATCH", PATH, status(410), watching())
    sink = Log()
    async with reflecting(server, sink) as reflector:
        await until(lambda: len(server.sent("WATCH")) == 2)
        assert list(reflector.objects) == ["new"]
    assert sink.lines == ["+a@3", "-a@3", "+a@15"]


async def test_an_object_of_a_reply_that_no_watch_brought_is_deleted_by_a_list_without_it(
    server: ScriptedServer,
) -> None:
    """Its creation and its deletion both happened while the watch was broken."""
    again = asyncio.Event()

    async def after_the_reply(request: web.Request) -> web.StreamResponse:
        await again.wait()
        return await status(410)(request)

    server.on("LIST", PATH, listing(pod("a", "3")), listing(pod("a", "3"), version="20"))
    server.on("WATCH", PATH, after_the_reply, watching())
    sink = Log()
    async with reflecting(server, sink) as reflector:
        await until(lambda: len(server.sent("WATCH")) == 1)
        reflector.take_new(convert(pod("made", "12"), Pod))
        again.set()
        await until(lambda: len(server.sent("WATCH")) == 2)
    assert sink.lines == ["+a@3", "+made@12", "-made@12"]


async def test_an_object_created_while_a_list_is_read_is_kept(server: ScriptedServer) -> None:
    async def meanwhile(request: web.Request) -> web.StreamResponse:
        reflector.take_new(convert(pod("made", "12"), Pod))
        return await listing(pod("a", "3"), version="10")(request)

    server.on("LIST", PATH, meanwhile)
    server.on("WATCH", PATH, watching(event("ADDED", pod("made", "12")), event("MODIFIED", pod("made", "13"))))
    sink = Log()
    async with reflecting(server, sink) as reflector:
        await until(lambda: len(sink.lines) == 3)
    assert sink.lines == ["+made@12", "+a@3", "+made@13"]


async def test_a_late_reply_does_not_bring_back_what_was_deleted(server: ScriptedServer) -> None:
    server.on("LIST", PATH, listing(pod("a", "3")))
    server.on("WATCH", PATH, watching(event("ADDED", pod("made", "12")), event("DELETED", pod("made", "14"))))
    sink = Log()
    async with reflecting(server, sink) as reflector:
        await until(lambda: len(sink.lines) == 3)
        reflector.take_new(convert(pod("made", "12"), Pod))
        assert list(reflector.objects) == ["uid-a"]
    assert sink.lines == ["+a@3", "+made@12", "-made@12"]


async def test_a_list_that_expires_between_pages_starts_anew(server: ScriptedServer) -> None:
    gone = status(410, "Expired", "The provided continue parameter is too old")
    server.on("LIST", PATH, listing(pod("a", "3"), token="t1"), gone, listing(pod("b", "4"), version="30"))
    server.on("WATCH", PATH, watching())
    sink = Log()
    async with reflecting(server, sink) as reflector:
        await until(lambda: reflector.synced.is_set())
    assert sink.lines == ["+b@4"], "the half list leaves nothing behind"


async def test_a_list_that_keeps_expiring_is_fetched_in_one_piece(server: ScriptedServer) -> None:
    server.on("LIST", PATH, *[listing(pod("a", "3"), token="t"), status(410)] * 2, listing(pod("a", "3")))
    server.on("WATCH", PATH, watching())
    async with reflecting(server, Log()) as reflector:
        await until(lambda: reflector.synced.is_set())
    assert [request.query["limit"] for request in server.sent("LIST")] == ["500"] * 4 + ["0"]


async def test_deletes_during_a_disconnect_are_seen_on_resume(server: ScriptedServer) -> None:
    server.on("LIST", PATH, listing(pod("a", "3")))
    server.on("WATCH", PATH, watching(then="cut"), drop(), status(503), watching(event("DELETED", pod("a", "12"))))
    sink = Log()
    async with reflecting(server, sink):
        await until(lambda: sink.lines == ["+a@3", "-a@3"])
    assert len(server.sent("LIST")) == 1


@pytest.mark.parametrize(
    "refusal",
    [drop(), status(500), status(503), status(401), status(403), status(429, headers={"Retry-After": "0"})],
    ids=["dropped", "500", "503", "401", "403", "429"],
)
async def test_a_list_refused_is_tried_until_it_works(server: ScriptedServer, refusal) -> None:  # type: ignore[no-untyped-def]
    server.on("LIST", PATH, refusal, refusal, refusal, listing(pod("a", "3")))
    server.on("WATCH", PATH, watching())
    sink = Log()
    async with reflecting(server, sink) as reflector:
        await until(lambda: reflector.synced.is_set())
    assert sink.lines == ["+a@3"]


async def test_a_server_that_is_not_there_is_waited_for() -> None:
    async with scripted_server() as server:
        stopped = ScriptedServer(server.url)
    async with reflecting(stopped, Log()) as reflector:
        await until(lambda: reflector._backoff.tries >= 3)
        assert not reflector.synced.is_set()


async def test_one_object_that_cannot_be_read_is_named_counted_and_taken_with_what_can(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    bad = pod("bad", "11", labels={"number": 7})
    server.on("LIST", PATH, listing(pod("a", "3"), pod("odd", "4", labels=[])))
    server.on("WATCH", PATH, watching(event("ADDED", bad), event("MODIFIED", pod("a", "12"))))
    sink = Log()
    async with reflecting(server, sink) as reflector:
        await until(lambda: len(sink.lines) == 4)
    assert sink.lines == ["+a@3", "+odd@4", "+bad@11", "+a@12"]
    assert [one.names.name for one in reflector.unreadable.values()] == ["odd", "bad"]
    assert len(server.sent("WATCH")) == 1
    assert "default/bad" in caplog.text and "default/odd" in caplog.text


async def test_only_what_cannot_be_read_is_told_of_the_object_not_what_we_fail_on(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Log):
        def upsert(self, obj: Pod, old: Pod | None) -> None:
            if obj.metadata.name == "theirs":
                raise UnreadableError("cpu: 'x' is no quantity")
            if obj.metadata.name == "ours":
                raise ValueError("not enough values to unpack")
            super().upsert(obj, old)

    server.on("LIST", PATH, listing(pod("theirs", "3"), pod("ours", "4"), pod("a", "5")))
    server.on("WATCH", PATH, watching())
    sink = Failing()
    async with reflecting(server, sink) as reflector:
        await until(lambda: sink.lines == ["+a@5"])
    assert [(one.names.name, one.why) for one in reflector.unreadable.values()] == [
        ("theirs", "cpu: 'x' is no quantity")
    ]
    assert "the change of default/ours could not be handled" in caplog.text and "not enough values" in caplog.text


async def test_null_for_an_empty_list_is_read_in_a_list_and_in_a_watch(server: ScriptedServer) -> None:
    def empty(name: str, version: str) -> dict[str, object]:
        return {**pod(name, version), "spec": {"nodeName": "n1", "containers": None}}

    server.on("LIST", PATH, listing(empty("a", "3")))
    gone = event("DELETED", empty("a", "12"))
    server.on("WATCH", PATH, watching(event("ADDED", empty("b", "11")), gone, event("MODIFIED", empty("b", "13"))))
    sink = Log()
    async with reflecting(server, sink) as reflector:
        await until(lambda: len(sink.lines) == 4)
    assert sink.lines == ["+a@3", "+b@11", "-a@3", "+b@13"] and not reflector.unreadable
    assert {one.spec.node_name for one in reflector.objects.values()} == {"n1"}


async def test_an_object_that_cannot_be_read_any_more_is_told_of_once_and_forgotten_when_it_is_deleted(
    server: ScriptedServer,
) -> None:
    bad = pod("a", "11", labels={"number": 7})
    server.on("LIST", PATH, listing(pod("a", "3")), listing(bad, version="20"))
    server.on("WATCH", PATH, watching(event("MODIFIED", bad)), watching())
    server.scripts["WATCH", PATH][0] = watching(event("MODIFIED", bad), event("ERROR", {"code": 410}))
    server.scripts["WATCH", PATH][1] = watching(event("DELETED", {**bad}))
    sink, told = Log(), list[str]()
    async with reflecting(server, sink, on_unreadable=lambda found: told.append(found.names.name)) as reflector:
        await until(lambda: len(sink.lines) == 3)
    assert sink.lines == ["+a@3", "+a@11", "-a@11"] and len(server.sent("LIST")) == 2
    assert told == ["a"] and reflector.unreadable == {}


async def test_a_malformed_line_reopens_the_watch_where_it_was(server: ScriptedServer) -> None:
    server.on("LIST", PATH, listing())
    server.on(
        "WATCH",
        PATH,
        watching(event("ADDED", pod("a", "11")), b'{"type":"ADDED","obj\n'),
        watching(event("ADDED", pod("b", "12"))),
    )
    sink = Log()
    async with reflecting(server, sink):
        await until(lambda: len(sink.lines) == 2)
    assert server.sent("WATCH")[1].query["resourceVersion"] == "11"


async def test_a_line_that_stays_malformed_is_gone_around_by_a_list(server: ScriptedServer) -> None:
    server.on("LIST", PATH, listing(), listing(pod("a", "15"), version="20"))
    server.on("WATCH", PATH, *[watching(b"<html>\n")] * 3, watching())
    sink = Log()
    async with reflecting(server, sink):
        await until(lambda: sink.lines == ["+a@15"])


async def test_bookmarks_move_the_version_and_nothing_else(server: ScriptedServer) -> None:
    bookmark = {"kind": "Pod", "metadata": {"resourceVersion": "99"}, "spec": {"containers": None}, "status": {}}
    server.on("LIST", PATH, listing())
    server.on("WATCH", PATH, watching(event("BOOKMARK", bookmark), then="end"), watching())
    sink = Log()
    async with reflecting(server, sink) as reflector:
        await until(lambda: len(server.sent("WATCH")) == 2)
    assert server.sent("WATCH")[1].query["resourceVersion"] == "99"
    assert sink.lines == [] and not reflector.unreadable


async def test_an_equal_version_is_not_told_twice(server: ScriptedServer) -> None:
    server.on("LIST", PATH, listing(pod("a", "3")))
    server.on("WATCH", PATH, watching(event("ADDED", pod("a", "3")), event("MODIFIED", pod("a", "4"))))
    sink = Log()
    async with reflecting(server, sink):
        await until(lambda: len(sink.lines) == 2)
    assert sink.lines == ["+a@3", "+a@4"]


async def test_other_spellings_of_an_event_are_read_too(server: ScriptedServer) -> None:
    server.on("LIST", PATH, listing())
    spaced = b'{ "object": {"metadata": {"name": "a", "uid": "u", "resourceVersion": "11"}}, "type": "ADDED" }\n'
    server.on("WATCH", PATH, watching(spaced, b'{"type":"NEWS","object":{}}\n', event("ADDED", pod("b", "12"))))
    sink = Log()
    async with reflecting(server, sink):
        await until(lambda: sink.lines == ["+a@11", "+b@12"])


async def test_a_silent_watch_is_opened_again(server: ScriptedServer) -> None:
    server.on("LIST", PATH, listing())
    server.on("WATCH", PATH, watching(), watching(event("ADDED", pod("a", "11"))))
    policy = ReflectorPolicy(watch_seconds=0, stall_grace_seconds=0.05, first_backoff_seconds=0.01)
    sink = Log()
    async with reflecting(server, sink, policy=policy):
        await until(lambda: sink.lines == ["+a@11"])
    assert server.sent("WATCH")[1].query["resourceVersion"] == "10"


async def test_what_a_transform_drops_is_deleted_from_the_sink(server: ScriptedServer) -> None:
    done = {**pod("a", "11"), "status": {"phase": "Succeeded"}}
    server.on("LIST", PATH, listing(pod("a", "3"), {**pod("old", "4"), "status": {"phase": "Failed"}}))
    server.on("WATCH", PATH, watching(event("MODIFIED", done), event("DELETED", done), event("ADDED", pod("b", "13"))))

    def running(arrived: Pod) -> Pod | None:
        return arrived if arrived.status.phase not in ("Succeeded", "Failed") else None

    sink = Log()
    async with reflecting(server, sink, transform=running) as reflector:
        await until(lambda: "+b@13" in sink.lines)
    assert sink.lines == ["+a@3", "-a@3", "+b@13"] and len(reflector.objects) == 1


async def test_a_sink_that_fails_for_one_object_hears_of_the_next(server: ScriptedServer) -> None:
    class Fragile(Log):
        def upsert(self, obj: Pod, old: Pod | None) -> None:
            if obj.metadata.name == "a":
                raise RuntimeError("no room")
            super().upsert(obj, old)

    server.on("LIST", PATH, listing(pod("a", "3"), pod("b", "4")))
    server.on("WATCH", PATH, watching())
    sink = Fragile()
    async with reflecting(server, sink) as reflector:
        await until(lambda: reflector.synced.is_set())
    assert sink.lines == ["+b@4"]


async def test_a_resource_not_served_is_empty_and_in_sync_until_it_comes(server: ScriptedServer) -> None:
    path = POD_GROUPS.path()
    server.on("LIST", path, status(404), status(404), listing(pod("g", "3")))
    server.on("WATCH", path, watching(then="end"), status(404), watching())
    sink = Log()
    async with reflecting(server, sink, resource=POD_GROUPS) as reflector:
        await asyncio.wait_for(reflector.synced.wait(), 60)
        assert not reflector.served and not reflector.objects
        await until(lambda: sink.lines == ["+g@3"])
        assert reflector.served


async def test_objects_of_a_definition_taken_away_are_deleted(server: ScriptedServer) -> None:
    path = POD_GROUPS.path()
    server.on("LIST", path, listing(pod("g", "3")), status(404))
    server.on("WATCH", path, status(404))
    sink = Log()
    async with reflecting(server, sink, resource=POD_GROUPS) as reflector:
        await until(lambda: sink.lines == ["+g@3", "-g@3"])
        assert not reflector.served


async def test_lag_is_reported_after_each_batch(server: ScriptedServer) -> None:
    applied: list[str] = []

    def note(name: str, seconds: float) -> None:
        assert seconds >= 0
        applied.append(name)

    server.on("LIST", PATH, listing(pod("a", "3"), pod("b", "4")))
    server.on("WATCH", PATH, watching(event("MODIFIED", pod("a", "11")) + event("MODIFIED", pod("b", "12"))))
    async with reflecting(server, Log(), on_applied=note):
        await until(lambda: len(applied) == 2)
    assert applied == ["pods", "pods"]


async def test_a_long_batch_lets_others_work(server: ScriptedServer) -> None:
    lines = b"".join(event("ADDED", pod(f"p{n}", str(n))) for n in range(11, 2011))
    server.on("LIST", PATH, listing())
    server.on("WATCH", PATH, watching(lines))
    sink = Log()
    seen_by_another: set[int] = set()
    async with reflecting(server, sink, policy=ReflectorPolicy(slice_seconds=0.0)):
        while len(sink.lines) < 2000:
            await asyncio.sleep(0)
            seen_by_another.add(len(sink.lines))
    assert len(seen_by_another) > 500


async def test_discovery_takes_the_newest_version_that_is_served(server: ScriptedServer) -> None:
    group = "/apis/scheduling.k8s.io"
    server.on("GET", group, reply({"versions": [{"version": "v1"}, {"version": "v1alpha2"}, {"version": "v1beta1"}]}))
    server.on("GET", f"{group}/v1beta1", reply({"resources": [{"name": "workloads", "namespaced": True}]}))
    served = {"name": "podgroups", "kind": "PodGroup", "namespaced": True}
    server.on("GET", f"{group}/v1alpha2", reply({"resources": [{"name": "podgroups/status"}, served]}))
    absent = Wanted("resource.k8s.io", "resourceclaims", ("v1",))
    async with client_of(server) as client:
        found = await discover(client, [UPSTREAM_POD_GROUPS, absent])
    assert found == {
        UPSTREAM_POD_GROUPS: Resource("scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup", True),
        absent: None,
    }
