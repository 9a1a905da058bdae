# SPDX-License-Identifier: Apache-2.0
"""Watches: resume from a version, selectors, bookmarks, 410, initial events."""

from koordpy.apiserver.embedded_server import ApiServer
from tests.sim.client import PODS, Client, pod


def labelled(name: str, **labels: str) -> dict:
    return {**pod(name), "metadata": {"name": name, "labels": labels}}


async def test_a_watch_resumes_after_the_version_it_names(server: ApiServer, client: Client) -> None:
    first = server.store.create("pods", pod("a"))
    server.store.create("pods", pod("b"))
    server.store.delete("pods", "a")
    watch = await client.watch(PODS, f"resourceVersion={first['metadata']['resourceVersion']}")
    assert await watch.kinds_and_names(2) == [("ADDED", "b"), ("DELETED", "a")]
    server.store.create("pods", pod("c"))
    await client.bind("c", "n1")
    assert await watch.kinds_and_names(2) == [("ADDED", "c"), ("MODIFIED", "c")]


async def test_the_version_of_a_delete_lies_after_all_before(server: ApiServer, client: Client) -> None:
    created = server.store.create("pods", pod("a"))
    version = created["metadata"]["resourceVersion"]
    watch = await client.watch(PODS, f"resourceVersion={version}")
    server.store.delete("pods", "a")
    gone = await watch.next()
    assert gone["type"] == "DELETED" and int(gone["object"]["metadata"]["resourceVersion"]) > int(version)


async def test_a_watch_without_version_begins_with_what_is_there(server: ApiServer, client: Client) -> None:
    server.store.create("pods", pod("a"))
    watch = await client.watch(PODS)
    assert await watch.kinds_and_names(1) == [("ADDED", "a")]


async def test_a_forgotten_version_is_410_in_the_stream(server: ApiServer, client: Client) -> None:
    version = server.store.version
    server.store.shelf("pods").history = 3
    for at in range(6):
        server.store.create("pods", pod(f"p-{at}"))
    for old in (version, 1):
        watch = await client.watch(PODS, f"resourceVersion={old}")
        event = await watch.next()
        assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
        assert await watch.ended()


async def test_after_a_compaction_no_old_version_can_be_resumed(server: ApiServer, client: Client) -> None:
    created = server.store.create("pods", pod("a"))
    running = await client.watch(PODS, f"resourceVersion={created['metadata']['resourceVersion']}")
    server.faults.expire_versions()
    late = await client.watch(PODS, f"resourceVersion={created['metadata']['resourceVersion']}")
    assert (await late.next())["object"]["code"] == 410
    server.store.create("pods", pod("b"))
    assert await running.kinds_and_names(1) == [("ADDED", "b")]


async def test_bookmarks_carry_the_version_to_resume_from(server: ApiServer, client: Client) -> None:
    server.store.create("pods", pod("a"))
    version = server.store.version
    watch = await client.watch(PODS, f"resourceVersion={version}&allowWatchBookmarks=true")
    server.store.create("configmaps", {"metadata": {"name": "elsewhere"}})
    event = await watch.next()
    while event["object"]["metadata"]["resourceVersion"] == str(version):
        event = await watch.next()
    assert event["type"] == "BOOKMARK" and event["object"]["kind"] == "Pod"
    assert event["object"]["metadata"]["resourceVersion"] == str(server.store.version)


async def test_initial_events_end_with_a_marked_bookmark(server: ApiServer, client: Client) -> None:
    server.store.create("pods", pod("a"))
    query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    watch = await client.watch(PODS, query)
    assert await watch.kinds_and_names(1) == [("ADDED", "a")]
    end = await watch.next()
    assert end["type"] == "BOOKMARK"
    assert end["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_objects_enter_and_leave_a_selector(server: ApiServer, client: Client) -> None:
    server.store.create("pods", labelled("a"))
    watch = await client.watch(PODS, f"labelSelector=on=yes&resourceVersion={server.store.version}")
    await client.patch(f"{PODS}/a", {"metadata": {"labels": {"on": "yes"}}})
    await client.patch(f"{PODS}/a", {"metadata": {"annotations": {"x": "y"}}})
    await client.patch(f"{PODS}/a", {"metadata": {"labels": {"on": "no"}}})
    events = [await watch.next() for _ in range(3)]
    assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]
    last = events[2]["object"]["metadata"]
    assert last["labels"] == {"on": "yes"} and last["resourceVersion"] == str(server.store.version)


async def test_a_watch_of_one_namespace_sees_no_other(server: ApiServer, client: Client) -> None:
    watch = await client.watch("/api/v1/namespaces/kube-system/pods", f"resourceVersion={server.store.version}")
    server.store.create("pods", pod("a"))
    server.store.create("pods", pod("b"), namespace="kube-system")
    assert await watch.kinds_and_names(1) == [("ADDED", "b")]


async def test_a_watch_ends_at_its_timeout(server: ApiServer, client: Client) -> None:
    watch = await client.watch(PODS, f"resourceVersion={server.store.version}&timeoutSeconds=1")
    assert await watch.ended()


async def test_both_event_groups_show_the_same_events(server: ApiServer, client: Client) -> None:
    watch = await client.watch("/api/v1/namespaces/default/events", f"resourceVersion={server.store.version}")
    event = {
        "metadata": {"name": "p.1"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
        "reason": "Scheduled",
        "note": "Successfully assigned default/p to n1",
        "type": "Normal",
        "action": "Binding",
        "reportingController": "koord-scheduler",
        "reportingInstance": "koord-scheduler-host",
    }
    status, stored = await client.post("/apis/events.k8s.io/v1/namespaces/default/events", event)
    assert status == 201 and stored["apiVersion"] == "events.k8s.io/v1" and stored["note"] == event["note"]
    seen = (await watch.next())["object"]
    assert seen["apiVersion"] == "v1" and seen["message"] == event["note"] and seen["involvedObject"]["name"] == "p"
    assert (seen["lastTimestamp"], seen["firstTimestamp"], seen["source"]) == (None, None, {})
    assert (stored["deprecatedLastTimestamp"], stored["deprecatedSource"]) == (None, {})
    series = {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}}
    path = "/apis/events.k8s.io/v1/namespaces/default/events/p.1"
    status, patched = await client.patch(path, series)
    assert status == 200 and patched["series"]["count"] == 2 and patched["regarding"]["name"] == "p"
    selector = "fieldSelector=involvedObject.name=p,reportingComponent=koord-scheduler"
    _, found = await client.get(f"/api/v1/events?{selector}")
    assert [item["series"]["count"] for item in found["items"]] == [2]
