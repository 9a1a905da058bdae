# SPDX-License-Identifier: Apache-2.0
"""Patch kinds as pure functions, and over HTTP."""

import copy
from typing import Any

import pytest

from koordpy.apiserver import applied_patches
from koordpy.apiserver.embedded_server import ApiServer
from koordpy.apiserver.status_errors import StatusError
from tests.sim.client import PODS, Client, pod

READY, OTHER = {"type": "Ready", "status": "True"}, {"type": "Other", "status": "False"}


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": None, "e": 4}}, {"a": 1, "b": {"d": 3, "e": 4}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": 1}, {"a": {"b": {"c": None}}}, {"a": {"b": {}}}),
    ],
)
def test_merge_patch(target: Any, patch: Any, expected: Any) -> None:
    before = copy.deepcopy(target)
    assert applied_patches.merge(target, patch) == expected
    assert target == before


@pytest.mark.parametrize(
    ("target", "operations", "expected"),
    [
        ({"a": {}}, [{"op": "add", "path": "/a/b~1c", "value": 1}], {"a": {"b/c": 1}}),
        ({"a": [1, 3]}, [{"op": "add", "path": "/a/1", "value": 2}], {"a": [1, 2, 3]}),
        ({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}),
        ({"a": [1, 2], "b": 0}, [{"op": "remove", "path": "/a/0"}, {"op": "remove", "path": "/b"}], {"a": [2]}),
        ({"a": 1}, [{"op": "test", "path": "/a", "value": 1}, {"op": "replace", "path": "/a", "value": 2}], {"a": 2}),
        (
            {"a": 1},
            [{"op": "move", "from": "/a", "path": "/b"}, {"op": "copy", "from": "/b", "path": "/c"}],
            {"b": 1, "c": 1},
        ),
    ],
)
def test_json_patch(target: Any, operations: Any, expected: Any) -> None:
    before = copy.deepcopy(target)
    assert applied_patches.json_patch(target, operations) == expected
    assert target == before


@pytest.mark.parametrize(
    ("operations", "code"),
    [
        ([{"op": "test", "path": "/a", "value": 2}], 422),
        ([{"op": "remove", "path": "/none"}], 422),
        ([{"op": "replace", "path": "/list/5", "value": 2}], 422),
        ([{"op": "jump", "path": "/a"}], 400),
        ([{"path": "/a"}], 400),
        ({"op": "add"}, 400),
    ],
)
def test_json_patches_that_cannot_be_done(operations: Any, code: int) -> None:
    with pytest.raises(StatusError) as refused:
        applied_patches.json_patch({"a": 1, "list": [1]}, operations)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        (
            {"conditions": [READY, OTHER]},
            {"conditions": [{"type": "Ready", "status": "False"}, {"type": "New", "status": "True"}]},
            {"conditions": [{"type": "Ready", "status": "False"}, OTHER, {"type": "New", "status": "True"}]},
        ),
        (
            {"conditions": [READY, OTHER]},
            {"conditions": [{"type": "Ready", "$patch": "delete"}]},
            {"conditions": [OTHER]},
        ),
        (
            {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]},
            {
                "$setElementOrder/containers": [{"name": "b"}, {"name": "a"}],
                "containers": [{"name": "b", "image": "2"}],
            },
            {"containers": [{"name": "b", "image": "2"}, {"name": "a", "image": "1"}]},
        ),
        ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]}, {"tolerations": [{"key": "b"}]}),
        ({"finalizers": ["a"]}, {"finalizers": ["b"]}, {"finalizers": ["a", "b"]}),
        ({"finalizers": ["a", "b"]}, {"$deleteFromPrimitiveList/finalizers": ["a"]}, {"finalizers": ["b"]}),
        ({"labels": {"a": "1", "b": "2"}}, {"labels": {"a": None, "c": "3"}}, {"labels": {"b": "2", "c": "3"}}),
        ({"labels": {"a": "1"}}, {"labels": {"$patch": "replace", "c": "3"}}, {"labels": {"c": "3"}}),
        ({"taints": [{"key": "a", "effect": "NoSchedule"}]}, {"taints": None}, {}),
        # an atomic list: a taint that the patch leaves out is removed, and two effects of one key are two taints
        (
            {"taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoSchedule"}]},
            {"taints": [{"key": "b", "effect": "NoSchedule"}, {"key": "b", "effect": "NoExecute"}]},
            {"taints": [{"key": "b", "effect": "NoSchedule"}, {"key": "b", "effect": "NoExecute"}]},
        ),
    ],
)
def test_strategic_merge(target: Any, patch: Any, expected: Any) -> None:
    before = copy.deepcopy(target)
    assert applied_patches.strategic(target, patch) == expected
    assert target == before


async def test_every_kind_over_http(server: ApiServer, client: Client) -> None:
    server.store.create("pods", pod("a"))
    status, _ = await client.patch(f"{PODS}/a", {"metadata": {"labels": {"x": "1"}}}, "merge")
    assert status == 200
    operations = [{"op": "add", "path": "/metadata/labels/y", "value": "2"}]
    status, _ = await client.patch(f"{PODS}/a", operations, "json")
    assert status == 200
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    for reason in ("SchedulerError", "Unschedulable"):
        body = {"status": {"conditions": [{**condition, "reason": reason}]}}
        status, changed = await client.patch(f"{PODS}/a/status", body, "strategic")
    assert status == 200 and changed["status"]["conditions"] == [condition]
    assert changed["metadata"]["labels"] == {"x": "1", "y": "2"}


async def test_strategic_merge_is_not_for_custom_resources(server: ApiServer, client: Client) -> None:
    server.store.create("podgroups.scheduling.sigs.k8s.io", {"metadata": {"name": "g"}, "spec": {"minMember": 3}})
    path = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/podgroups/g"
    status, _ = await client.patch(path, {"spec": {"minMember": 4}}, "strategic")
    assert status == 415
    status, changed = await client.patch(path, {"spec": {"minMember": 4}}, "merge")
    assert status == 200 and changed["metadata"]["generation"] == 2
    status, changed = await client.patch(f"{path}/status", {"status": {"phase": "Pending"}}, "merge")
    assert status == 200 and changed["status"]["phase"] == "Pending" and changed["metadata"]["generation"] == 2


class TestApply:
    """Server-side apply on a Device, whose lists merge by key."""

    PATH = "/apis/scheduling.koordinator.sh/v1alpha1/devices/n1"

    def device(self, *minors: int, **more: Any) -> dict:
        return {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "Device",
            "metadata": {"name": "n1", **more},
            "spec": {"devices": [{"type": "gpu", "minor": minor, "health": True} for minor in minors]},
        }

    async def apply(self, client: Client, body: dict, manager: str, query: str = "") -> tuple[int, Any]:
        return await client.patch(f"{self.PATH}?fieldManager={manager}{query}", body, "apply")

    async def test_it_creates_then_merges_and_drops_what_is_applied_no_longer(self, client: Client) -> None:
        status, made = await self.apply(client, self.device(0, 1), "agent")
        assert status == 201 and made["metadata"]["managedFields"][0]["manager"] == "agent"
        status, same = await self.apply(client, self.device(0, 1), "agent")
        assert status == 200 and same["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
        await self.apply(client, self.device(labels={"pool": "a"}) | {"spec": {}}, "admin")
        status, fewer = await self.apply(client, self.device(1), "agent")
        assert [device["minor"] for device in fewer["spec"]["devices"]] == [1]
        assert fewer["metadata"]["labels"] == {"pool": "a"}

    async def test_another_value_of_another_manager_is_a_conflict(self, client: Client) -> None:
        await self.apply(client, self.device(labels={"pool": "a"}), "one")
        status, body = await self.apply(client, self.device(labels={"pool": "b"}), "two")
        assert status == 409 and 'conflict with "one": .metadata.labels.pool' in body["message"]
        status, body = await self.apply(client, self.device(0), "one")
        clash = self.device()
        clash["spec"]["devices"] = [{"type": "gpu", "minor": 0, "health": False}]
        status, body = await self.apply(client, clash, "two")
        assert status == 409 and '.spec.devices[minor=0,type="gpu"].health' in body["message"]
        await self.apply(client, self.device(labels={"pool": "a"}), "one")
        status, forced = await self.apply(client, self.device(labels={"pool": "b"}), "two", "&force=true")
        assert status == 200 and forced["metadata"]["labels"] == {"pool": "b"}

    async def test_yaml_is_read_and_a_manager_is_asked_for(self, client: Client) -> None:
        body = b"apiVersion: scheduling.koordinator.sh/v1alpha1\nkind: Device\nmetadata: {name: n1}\n"
        kind = "application/apply-patch+yaml"
        assert (await client.call("PATCH", self.PATH, body, kind=kind))[0] == 400
        assert (await client.call("PATCH", self.PATH + "?fieldManager=x", body, kind=kind))[0] == 201
