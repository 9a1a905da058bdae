# SPDX-License-Identifier: Apache-2.0
"""Creating, replacing and deleting: identity, versions, defaults, graceful ends."""

import pytest

from koordpy.apiserver.embedded_server import ApiServer
from koordpy.apiserver.status_errors import StatusError
from tests.sim.client import PODS, Client, pod

PRIORITIES = "priorityclasses.scheduling.k8s.io"


async def test_a_new_pod_has_what_an_api_server_fills_in(client: Client) -> None:
    given = pod("a")
    given["spec"]["containers"][0]["resources"] = {
        "limits": {"cpu": "1", "nvidia.com/gpu": "8"},
        "requests": {"cpu": "500m"},
    }
    given["status"] = {"phase": "Running"}
    status, made = await client.post(PODS, given)
    assert status == 201
    meta, spec = made["metadata"], made["spec"]
    assert meta["uid"] and meta["creationTimestamp"] and int(meta["resourceVersion"]) > 0 and meta["generation"] == 1
    assert (meta["namespace"], made["apiVersion"], made["kind"]) == ("default", "v1", "Pod")
    assert made["status"]["phase"] == "Pending"
    assert spec["schedulerName"] == "default-scheduler" and spec["restartPolicy"] == "Always"
    assert (spec["terminationGracePeriodSeconds"], spec["priority"], spec["preemptionPolicy"]) == (
        30,
        0,
        "PreemptLowerPriority",
    )
    assert spec["containers"][0]["resources"]["requests"] == {"cpu": "500m", "nvidia.com/gpu": "8"}


async def test_priorities_come_from_classes(server: ApiServer) -> None:
    store = server.store
    store.create(PRIORITIES, {"metadata": {"name": "high"}, "value": 1000, "preemptionPolicy": "Never"})
    store.create(PRIORITIES, {"metadata": {"name": "usual"}, "value": 7, "globalDefault": True})
    high = store.create("pods", pod("a", priorityClassName="high"))["spec"]
    assert (high["priority"], high["preemptionPolicy"]) == (1000, "Never")
    usual = store.create("pods", pod("b"))["spec"]
    assert (usual["priority"], usual["priorityClassName"]) == (7, "usual")
    critical = store.create("pods", pod("c", priorityClassName="system-node-critical"))["spec"]
    assert critical["priority"] == 2_000_001_000
    with pytest.raises(StatusError, match="no PriorityClass with name none was found") as refused:
        store.create("pods", pod("d", priorityClassName="none"))
    assert refused.value.code == 403


async def test_a_gated_pod_says_so(server: ApiServer, client: Client) -> None:
    made = server.store.create("pods", pod("a", schedulingGates=[{"name": "wait"}]))
    condition = made["status"]["conditions"][0]
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "SchedulingGated")
    status, _ = await client.patch(f"{PODS}/a", {"spec": {"schedulingGates": [{"name": "other"}]}})
    assert status == 422
    status, changed = await client.patch(f"{PODS}/a", {"spec": {"schedulingGates": None, "nodeSelector": {"a": "b"}}})
    assert status == 200 and changed["spec"]["nodeSelector"] == {"a": "b"}


@pytest.mark.parametrize(
    ("manifest", "code", "text"),
    [
        ({"metadata": {"name": "Bad_Name"}, "spec": pod("x")["spec"]}, 422, "RFC 1123 subdomain"),
        ({"metadata": {"name": "a"}, "spec": {}}, 422, "spec.containers: Required value"),
        ({"metadata": {}, "spec": pod("x")["spec"]}, 422, "name or generateName is required"),
        ({**pod("a"), "kind": "Node"}, 400, "does not match the expected kind"),
        ({**pod("a"), "metadata": {"name": "a", "labels": {"x": 1}}}, 400, "cannot unmarshal"),
        ({**pod("a"), "metadata": {"name": "a", "namespace": "other"}}, 400, "does not match the namespace"),
        (pod("a", tolerations="all"), 400, "spec.tolerations: must be a list, not the string 'all'"),
        (pod("a", priority=7), 403, "must not be provided in pod spec"),
    ],
)
async def test_bad_pods_are_refused(client: Client, manifest: dict, code: int, text: str) -> None:
    status, body = await client.post(PODS, manifest)
    assert status == code and text in body["message"]


async def test_names_from_generate_name_are_unique(server: ApiServer) -> None:
    made = [server.store.create("pods", {**pod(""), "metadata": {"generateName": "w-"}}) for _ in range(50)]
    names = {item["metadata"]["name"] for item in made}
    assert len(names) == 50 and all(name.startswith("w-") and len(name) == 7 for name in names)


async def test_what_exists_is_not_created_again_and_namespaces_must_exist(client: Client) -> None:
    assert (await client.post(PODS, pod("a")))[0] == 201
    status, body = await client.post(PODS, pod("a"))
    assert (status, body["reason"], body["message"]) == (409, "AlreadyExists", 'pods "a" already exists')
    status, body = await client.post("/api/v1/namespaces/none/pods", pod("a"))
    assert (status, body["message"]) == (404, 'namespaces "none" not found')


async def test_a_stale_version_is_a_conflict(server: ApiServer, client: Client) -> None:
    lease = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "x"}}
    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    _, first = await client.post(path, lease)
    _, second = await client.put(f"{path}/l", {**first, "spec": {"holderIdentity": "y"}})
    assert second["spec"]["holderIdentity"] == "y"
    assert int(second["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])
    status, body = await client.put(f"{path}/l", {**first, "spec": {"holderIdentity": "z"}})
    assert (status, body["reason"]) == (409, "Conflict") and "the object has been modified" in body["message"]
    stale = {"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}, "spec": {"holderIdentity": "z"}}
    assert (await client.patch(f"{path}/l", stale))[0] == 409
    assert server.store.get("leases.coordination.k8s.io", "l")["spec"]["holderIdentity"] == "y"


async def test_an_update_that_changes_nothing_keeps_the_version(client: Client) -> None:
    _, made = await client.post(PODS, pod("a"))
    _, again = await client.put(f"{PODS}/a", made)
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_another_uid_is_refused(client: Client) -> None:
    await client.post(PODS, pod("a"))
    status, body = await client.patch(f"{PODS}/a", {"metadata": {"uid": "other"}})
    assert status == 422 and "field is immutable" in body["message"]
    status, body = await client.put(f"{PODS}/a", {**pod("a"), "metadata": {"name": "a", "uid": "other"}})
    assert status == 409 and "UID in precondition: other" in body["message"]
    status, _ = await client.delete(f"{PODS}/a", {"preconditions": {"uid": "other"}})
    assert status == 409
    assert (await client.get(f"{PODS}/a"))[0] == 200


async def test_status_and_the_rest_are_written_apart(server: ApiServer, client: Client) -> None:
    await client.post(PODS, pod("a"))
    _, changed = await client.patch(f"{PODS}/a", {"metadata": {"labels": {"x": "y"}}, "status": {"phase": "Running"}})
    assert changed["status"]["phase"] == "Pending" and changed["metadata"]["labels"] == {"x": "y"}
    body = {"metadata": {"labels": {"x": "z"}}, "status": {"phase": "Running"}}
    _, changed = await client.patch(f"{PODS}/a/status", body)
    assert changed["status"]["phase"] == "Running" and changed["metadata"]["generation"] == 1
    assert changed["metadata"]["labels"] == {"x": "z"}, "built-in objects take labels by this way, too"
    _, changed = await client.patch(f"{PODS}/a/status", {"spec": {"nodeName": "n1"}})
    assert "nodeName" not in changed["spec"]


async def test_the_status_of_a_custom_resource_is_written_alone(server: ApiServer, client: Client) -> None:
    server.store.create("podgroups.scheduling.sigs.k8s.io", {"metadata": {"name": "g"}, "spec": {"minMember": 3}})
    path = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/podgroups/g"
    body = {"metadata": {"labels": {"x": "y"}}, "spec": {"minMember": 4}, "status": {"phase": "Pending"}}
    _, changed = await client.patch(f"{path}/status", body)
    assert changed["status"]["phase"] == "Pending" and changed["spec"] == {"minMember": 3}
    assert "labels" not in changed["metadata"]
    _, changed = await client.patch(path, body | {"status": {"phase": "Running"}})
    assert changed["status"]["phase"] == "Pending" and changed["spec"] == {"minMember": 4}


async def test_a_pod_moves_by_binding_only(client: Client) -> None:
    await client.post(PODS, pod("a"))
    status, body = await client.patch(f"{PODS}/a", {"spec": {"nodeName": "n1"}})
    assert status == 422 and "pod updates may not change fields" in body["message"]


async def test_only_pods_on_a_node_end_gracefully(server: ApiServer, client: Client) -> None:
    for name in ("free", "bound", "now", "done"):
        server.store.create("pods", pod(name, **({} if name == "free" else {"nodeName": "n1"})))
    await client.patch(f"{PODS}/done/status", {"status": {"phase": "Succeeded"}})
    for name in ("free", "done"):
        assert (await client.delete(f"{PODS}/{name}"))[0] == 200
        assert (await client.get(f"{PODS}/{name}"))[0] == 404
    _, ending = await client.delete(f"{PODS}/bound")
    assert ending["metadata"]["deletionTimestamp"] and ending["metadata"]["deletionGracePeriodSeconds"] == 30
    assert (await client.get(f"{PODS}/bound"))[0] == 200
    _, again = await client.delete(f"{PODS}/bound", {"gracePeriodSeconds": 5})
    assert again["metadata"]["deletionGracePeriodSeconds"] == 5
    await client.delete(f"{PODS}/bound?gracePeriodSeconds=0")
    assert (await client.get(f"{PODS}/bound"))[0] == 404
    await client.delete(f"{PODS}/now", {"gracePeriodSeconds": 0})
    assert (await client.get(f"{PODS}/now"))[0] == 404


async def test_finalizers_hold_a_deleted_object(server: ApiServer, client: Client) -> None:
    path = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/podgroups"
    await client.post(path, {"metadata": {"name": "g", "finalizers": ["x/y"]}, "spec": {}})
    status, pending = await client.delete(f"{path}/g")
    assert status == 200 and pending["metadata"]["deletionTimestamp"]
    assert (await client.patch(f"{path}/g", {"metadata": {"finalizers": ["x/y", "other/z"]}}))[0] == 422
    await client.patch(f"{path}/g", {"metadata": {"finalizers": None}})
    assert (await client.get(f"{path}/g"))[0] == 404


async def test_collections_are_deleted_by_selector(server: ApiServer, client: Client) -> None:
    for name in ("a", "b", "c"):
        server.store.create("pods", {**pod(name), "metadata": {"name": name, "labels": {"keep": str(name == "b")}}})
    status, gone = await client.delete(f"{PODS}?labelSelector=keep=False")
    assert status == 200 and len(gone["items"]) == 2
    assert [item["metadata"]["name"] for item in server.store.list("pods")] == ["b"]


async def test_a_deleted_namespace_takes_its_objects_along(server: ApiServer, client: Client) -> None:
    server.store.create("namespaces", {"metadata": {"name": "team"}})
    server.store.create("pods", pod("a"), namespace="team")
    assert (await client.delete("/api/v1/namespaces/team"))[0] == 200
    assert server.store.list("pods") == []
    assert (await client.get("/api/v1/namespaces/team"))[0] == 404


async def test_dry_runs_write_nothing(server: ApiServer, client: Client) -> None:
    status, _ = await client.post(f"{PODS}?dryRun=All", pod("a"))
    assert status == 400 and server.store.list("pods") == []


async def test_what_is_handed_in_is_not_changed(server: ApiServer) -> None:
    given = pod("a", hostNetwork=True)
    given["spec"]["containers"][0]["ports"] = [{"containerPort": 80}]
    before = repr(given)
    made = server.store.create("pods", given)
    assert repr(given) == before
    assert made["spec"]["containers"][0]["ports"] == [{"hostPort": 80, "containerPort": 80}]


async def test_protobuf_bodies_and_unknown_paths_are_refused(client: Client) -> None:
    kind = "application/vnd.kubernetes.protobuf"
    of_a_pod = b"k8s\x00\x0a\x09\x0a\x02v1\x12\x03Pod\x12\x00"
    status, answer = await client.call("POST", PODS, of_a_pod, kind=kind)
    assert (status, answer["reason"]) == (415, "UnsupportedMediaType")
    assert (await client.get("/apis/none/v1/things"))[0] == 404
    assert (await client.post("/api/v1/pods", pod("a")))[0] == 405
    assert (await client.get(f"{PODS}/a/log"))[0] == 404
