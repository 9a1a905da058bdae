# SPDX-License-Identifier: Apache-2.0
"""Lists: pages that show one state, selectors, versions, the Table form."""

import pytest

from koordpy.apiserver.embedded_server import ApiServer
from tests.sim.client import PODS, Client, pod


def names(body: dict) -> list[str]:
    return [item["metadata"]["name"] for item in body["items"]]


async def test_pages_show_the_state_of_the_first_page(server: ApiServer, client: Client) -> None:
    for name in ("a", "b", "c", "d", "e"):
        server.store.create("pods", pod(name))
    status, first = await client.get("/api/v1/pods?limit=2")
    assert status == 200 and names(first) == ["a", "b"] and first["metadata"]["remainingItemCount"] == 3
    server.store.create("pods", pod("bb"))
    server.store.delete("pods", "d")
    token = first["metadata"]["continue"]
    _, second = await client.get(f"/api/v1/pods?limit=2&continue={token}")
    assert names(second) == ["c", "d"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    _, third = await client.get(f"/api/v1/pods?limit=2&continue={second['metadata']['continue']}")
    assert names(third) == ["e"] and "continue" not in third["metadata"]


async def test_an_expired_continue_token_is_410(server: ApiServer, client: Client) -> None:
    for name in ("a", "b", "c"):
        server.store.create("pods", pod(name))
    _, first = await client.get(f"{PODS}?limit=1")
    server.faults.expire_versions()
    status, body = await client.get(f"{PODS}?limit=1&continue={first['metadata']['continue']}")
    assert (status, body["reason"]) == (410, "Expired")


async def test_a_garbled_continue_token_is_400(client: Client) -> None:
    status, body = await client.get(f"{PODS}?limit=1&continue=nonsense")
    assert status == 400 and "continue" in body["message"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("labelSelector=app=x", ["a"]),
        ("labelSelector=app!=x", ["b", "c"]),
        ("labelSelector=app", ["a", "b"]),
        ("labelSelector=!app", ["c"]),
        ("labelSelector=app in (x,y),tier=1", ["b"]),
        ("labelSelector=app notin (x)", ["b", "c"]),
        ("fieldSelector=spec.nodeName=n1", ["b"]),
        ("fieldSelector=spec.nodeName!=n1", ["a", "c"]),
        ("fieldSelector=spec.nodeName=", ["a", "c"]),
        ("fieldSelector=metadata.name=c", ["c"]),
        ("fieldSelector=spec.schedulerName=koord-scheduler", ["c"]),
        ("fieldSelector=status.phase=Pending,metadata.namespace=default", ["a", "b", "c"]),
    ],
)
async def test_selectors(server: ApiServer, client: Client, query: str, expected: list[str]) -> None:
    store = server.store
    store.create("pods", {**pod("a"), "metadata": {"name": "a", "labels": {"app": "x"}}})
    store.create("pods", {**pod("b", nodeName="n1"), "metadata": {"name": "b", "labels": {"app": "y", "tier": "1"}}})
    store.create("pods", pod("c", schedulerName="koord-scheduler"))
    status, body = await client.get(f"/api/v1/pods?{query}")
    assert status == 200 and names(body) == expected


async def test_an_unknown_field_selector_is_400(client: Client) -> None:
    status, body = await client.get("/api/v1/pods?fieldSelector=spec.colour=red")
    assert (status, body["message"]) == (400, "field label not supported: spec.colour")


async def test_a_version_of_the_future_is_504(client: Client) -> None:
    status, body = await client.get(f"{PODS}?resourceVersion=999999")
    assert status == 504 and body["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


async def test_limits_and_namespaces(server: ApiServer, client: Client) -> None:
    server.store.create("pods", pod("a"))
    server.store.create("pods", pod("b"), namespace="kube-system")
    _, everywhere = await client.get("/api/v1/pods")
    assert names(everywhere) == ["a", "b"]
    _, there = await client.get("/api/v1/namespaces/kube-system/pods?limit=5")
    assert names(there) == ["b"] and there["kind"] == "PodList"
    _, nowhere = await client.get("/api/v1/namespaces/none/pods")
    assert nowhere["items"] == []


async def test_the_table_form_of_pods_and_custom_resources(server: ApiServer, client: Client) -> None:
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    server.store.create("pods", pod("a", nodeName="n1"))
    server.store.create("podgroups.scheduling.sigs.k8s.io", {"metadata": {"name": "g"}, "spec": {"minMember": 3}})
    _, table = await client.get(PODS, accept=accept)
    row = dict(zip([c["name"] for c in table["columnDefinitions"]], table["rows"][0]["cells"], strict=True))
    assert (row["Name"], row["Ready"], row["Status"], row["Node"]) == ("a", "0/1", "Pending", "n1")
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    groups = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/podgroups"
    _, table = await client.get(f"{groups}/g", accept=accept)
    row = dict(zip([c["name"] for c in table["columnDefinitions"]], table["rows"][0]["cells"], strict=True))
    assert (row["Name"], row["MinMember"], row["Phase"]) == ("g", 3, "Pending")
