# SPDX-License-Identifier: Apache-2.0
"""pods/binding and pods/eviction."""

from typing import Any

import pytest

from koordpy.apiserver.embedded_server import ApiServer
from tests.sim.client import PODS, Client, pod

RUNNING = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


async def test_a_binding_is_one_write_of_node_annotations_and_condition(server: ApiServer, client: Client) -> None:
    made = server.store.create("pods", {**pod("a"), "metadata": {"name": "a", "annotations": {"old": "1"}}})
    await client.patch(
        f"{PODS}/a/status",
        {"status": {"conditions": [{"type": "PodScheduled", "status": "False"}], "nominatedNodeName": "n9"}},
    )
    watch = await client.watch(PODS, f"resourceVersion={server.store.version}")
    status, answer = await client.bind("a", "n1", uid=made["metadata"]["uid"], annotations={"rank": "0"})
    assert (status, answer["status"]) == (201, "Success")
    bound = (await watch.next())["object"]
    assert bound["spec"]["nodeName"] == "n1" and bound["metadata"]["annotations"] == {"old": "1", "rank": "0"}
    conditions = {c["type"]: c["status"] for c in bound["status"]["conditions"]}
    assert conditions == {"PodScheduled": "True"} and "nominatedNodeName" not in bound["status"]
    assert server.store.version == int(bound["metadata"]["resourceVersion"])


@pytest.mark.parametrize(
    ("state", "binding", "code", "text"),
    [
        ({}, {"uid": "other"}, 409, "UID in precondition: other"),
        ({}, {"resourceVersion": "1"}, 409, "ResourceVersion in precondition: 1"),
        ({"nodeName": "n2"}, {}, 409, 'already assigned to node "n2"'),
        ({"schedulingGates": [{"name": "g"}]}, {}, 409, "non-empty .spec.schedulingGates"),
        ({}, {"name": "b"}, 400, "name in URL does not match"),
    ],
)
async def test_refused_bindings(
    server: ApiServer, client: Client, state: dict[str, Any], binding: dict[str, Any], code: int, text: str
) -> None:
    server.store.create("pods", pod("a", **state))
    version = server.store.version
    body = {"metadata": {"name": "a", **binding}, "target": {"kind": "Node", "name": "n1"}}
    status, answer = await client.post(f"{PODS}/a/binding", body)
    assert status == code and text in answer["message"]
    assert server.store.version == version


async def test_a_pod_being_deleted_is_not_bound(server: ApiServer, client: Client) -> None:
    server.store.create("pods", {**pod("a"), "metadata": {"name": "a", "finalizers": ["x/y"]}})
    server.store.delete("pods", "a")
    status, answer = await client.bind("a", "n1")
    assert status == 409 and "is being deleted" in answer["message"]


async def test_bindings_of_nothing_and_to_nothing(server: ApiServer, client: Client) -> None:
    assert (await client.bind("none", "n1"))[0] == 404
    server.store.create("pods", pod("a"))
    assert (await client.bind("a", ""))[0] == 422


def evictable(server: ApiServer, *names: str) -> None:
    for name in names:
        manifest = {**pod(name, nodeName="n1"), "metadata": {"name": name, "labels": {"app": "x"}}}
        server.store.create("pods", manifest)
        server.store.update("pods", name, lambda old: {**old, "status": RUNNING}, status=True)


def budget(server: ApiServer, name: str, **spec: Any) -> None:
    manifest = {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": {"app": "x"}}, **spec}}
    server.store.create("poddisruptionbudgets.policy", manifest)


async def evict(client: Client, name: str) -> tuple[int, Any]:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}
    return await client.post(f"{PODS}/{name}/eviction", body)


@pytest.mark.parametrize(
    ("spec", "allowed"),
    [
        ({"minAvailable": 2}, 1),
        ({"minAvailable": "50%"}, 1),
        ({"maxUnavailable": 0}, 0),
        ({"maxUnavailable": "67%"}, 3),
    ],
)
async def test_a_budget_limits_evictions(server: ApiServer, client: Client, spec: dict, allowed: int) -> None:
    evictable(server, "a", "b", "c")
    budget(server, "pdb", **spec)
    codes = [(await evict(client, name))[0] for name in ("a", "b", "c")]
    assert codes == [201] * allowed + [429] * (3 - allowed)
    status, body = await evict(client, "c")
    if allowed < 3:
        assert status == 429 and body["details"]["causes"][0]["reason"] == "DisruptionBudget"
        assert "deletionTimestamp" not in server.store.get("pods", "c")["metadata"]
    assert ["deletionTimestamp" in p["metadata"] for p in server.store.list("pods")].count(True) == allowed


async def test_pods_without_budget_are_evicted_and_two_budgets_are_an_error(server: ApiServer, client: Client) -> None:
    evictable(server, "a", "b")
    assert (await evict(client, "a"))[0] == 201
    budget(server, "one", minAvailable=0)
    budget(server, "two", minAvailable=0)
    assert (await evict(client, "b"))[0] == 500
    assert (await evict(client, "none"))[0] == 404


async def test_budgets_show_their_status(server: ApiServer, client: Client) -> None:
    evictable(server, "a", "b", "c")
    watch = await client.watch("/apis/policy/v1/namespaces/default/poddisruptionbudgets")
    budget(server, "pdb", minAvailable=2)
    while "status" not in (event := await watch.next())["object"]:
        pass
    status = event["object"]["status"]
    assert (status["expectedPods"], status["currentHealthy"], status["disruptionsAllowed"]) == (3, 3, 1)


async def test_a_restart_loses_no_status_of_a_budget(server: ApiServer, client: Client) -> None:
    evictable(server, "a")
    budget(server, "pdb", minAvailable=0)  # its status is due a moment later
    await server.stop()
    await server.start()
    evictable(server, "b", "c")
    again = Client(server.url)
    watch = await again.watch("/apis/policy/v1/namespaces/default/poddisruptionbudgets")
    while (event := await watch.next())["object"].get("status", {}).get("expectedPods") != 3:
        pass
    assert event["object"]["status"]["disruptionsAllowed"] == 3
    await again.close()
