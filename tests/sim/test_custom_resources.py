# SPDX-License-Identifier: Apache-2.0
"""Custom resources: the project's definitions, and what their schemas catch."""

from typing import Any

import pytest

from koordpy.apiserver.crd_definitions import DEFINITIONS, shipped_definitions
from koordpy.apiserver.embedded_server import ApiServer
from tests.sim.client import Client

KOORDINATOR = "/apis/scheduling.koordinator.sh/v1alpha1"
SIGS = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default"


def topology(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "default"}, "spec": {"hierarchy": list(entries)}}


@pytest.mark.parametrize("definition", shipped_definitions(), ids=lambda d: d["spec"]["names"]["kind"])
def test_definitions_are_structural(definition: dict[str, Any]) -> None:
    """What kube-apiserver asks of a structural schema: a type everywhere, but where anything may stand."""

    def check(schema: dict[str, Any], path: str) -> None:
        free = schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("x-kubernetes-int-or-string")
        assert schema.get("type") or free, path
        for name, child in (schema.get("properties") or {}).items():
            check(child, f"{path}.{name}")
        for field in ("items", "additionalProperties"):
            if isinstance(schema.get(field), dict):
                check(schema[field], f"{path}.{field}")

    for version in definition["spec"]["versions"]:
        check(version["schema"]["openAPIV3Schema"], definition["metadata"]["name"])
    group = definition["spec"]["group"]
    if group.endswith(".k8s.io"):
        assert "api-approved.kubernetes.io" in definition["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("path", "manifest"),
    [
        (
            f"{KOORDINATOR}/clusternetworktopologies",
            topology(
                {"layerName": "spine", "labelKey": "net/spine", "parentTopologyLayer": "ClusterTopologyLayer"},
                {"layerName": "block", "labelKey": ["net/block", "net/rack"], "parentTopologyLayer": "spine"},
                {"layerName": "nodeLayer", "parentTopologyLayer": "block"},
            ),
        ),
        (
            f"{KOORDINATOR}/clusternetworktopologies",
            {"metadata": {"name": "x"}, "spec": {"networkTopologySpec": [{"topologyLayer": "a", "labelKey": "b"}]}},
        ),
        (f"{SIGS}/podgroups", {"metadata": {"name": "g"}, "spec": {"minMember": 2, "minResources": {"cpu": "1500m"}}}),
        (f"{SIGS}/elasticquotas", {"metadata": {"name": "q"}, "spec": {"min": {"cpu": 4}, "max": {"cpu": "8"}}}),
        (
            f"{KOORDINATOR}/devices",
            {
                "metadata": {"name": "n"},
                "spec": {
                    "devices": [{"type": "gpu", "minor": 0, "id": "GPU-0", "health": True, "topology": {"nodeID": 0}}],
                    "topologies": {"gpu": [{"name": "bandwidth", "topology": "[[0]]"}]},
                },
            },
        ),
    ],
)
async def test_valid_objects_are_stored_as_given(client: Client, path: str, manifest: dict) -> None:
    status, made = await client.post(path, manifest)
    assert status == 201 and made["spec"] == manifest["spec"]


@pytest.mark.parametrize(
    ("path", "manifest", "message"),
    [
        (
            f"{KOORDINATOR}/clusternetworktopologies",
            topology({"layerName": "a", "labelKey": "x"}, {"layerName": "a", "labelKey": "y"}),
            'spec.hierarchy[1]: Duplicate value: {"layerName":"a"}',
        ),
        (
            f"{KOORDINATOR}/clusternetworktopologies",
            topology({"layerName": "a", "labelKey": 5}),
            "spec.hierarchy[0].labelKey: Invalid value: 5",
        ),
        (
            f"{KOORDINATOR}/clusternetworktopologies",
            topology({"layerName": "a", "labelKey": True}),
            "spec.hierarchy[0].labelKey",
        ),
        (
            f"{KOORDINATOR}/clusternetworktopologies",
            topology({"layerName": "a", "labelKey": []}),
            "spec.hierarchy[0].labelKey in body should have at least 1 items",
        ),
        (f"{KOORDINATOR}/clusternetworktopologies", topology({"labelKey": "x"}), "layerName: Required value"),
        (f"{KOORDINATOR}/clusternetworktopologies", {"metadata": {"name": "x"}}, "spec: Required value"),
        (
            f"{SIGS}/podgroups",
            {"metadata": {"name": "g"}, "spec": {"minMember": -1}},
            "spec.minMember in body should be greater than or equal to 0",
        ),
        (
            f"{SIGS}/podgroups",
            {"metadata": {"name": "g"}, "spec": {"minMember": "two"}},
            'must be of type integer: "string"',
        ),
        (
            f"{SIGS}/podgroups",
            {"metadata": {"name": "g"}, "spec": {"minResources": {"cpu": "much"}}},
            "spec.minResources.cpu in body should match",
        ),
        (
            f"{SIGS}/elasticquotas",
            {"metadata": {"name": "q"}, "spec": {"max": {"cpu": [1]}}},
            'must be of type integer,string: "array"',
        ),
        (
            f"{KOORDINATOR}/devices",
            {"metadata": {"name": "n"}, "spec": {"topologies": {"gpu": [{"name": "bandwith", "topology": "[]"}]}}},
            'Unsupported value: "bandwith": supported values: "bandwidth", "links"',
        ),
    ],
)
async def test_what_users_get_wrong_is_named(client: Client, path: str, manifest: dict, message: str) -> None:
    status, body = await client.post(path, manifest)
    assert (status, body["reason"]) == (422, "Invalid") and message in body["message"]


async def test_unknown_fields_are_dropped_with_a_warning_or_refused(client: Client) -> None:
    manifest = {"metadata": {"name": "g"}, "spec": {"minMembers": 3}}
    status, body = await client.post(f"{SIGS}/podgroups?fieldValidation=Strict", manifest)
    assert status == 400 and 'strict decoding error: unknown field "spec.minMembers"' in body["message"]
    status, made = await client.post(f"{SIGS}/podgroups", manifest)
    assert status == 201 and made["spec"] == {}
    assert "spec.minMembers" in client.headers["Warning"]


async def test_a_definition_made_at_run_time_is_served_until_it_is_deleted(server: ApiServer, client: Client) -> None:
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "properties": {
                    "spec": {"type": "object", "properties": {"size": {"type": "integer", "default": 3}}, "default": {}}
                },
            }
        },
    }
    definition = {
        "metadata": {"name": "boxes.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Cluster",
            "names": {"kind": "Box", "plural": "boxes"},
            "versions": [version],
        },
    }
    assert (await client.get("/apis/example.com/v1/boxes"))[0] == 404
    status, _ = await client.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    assert status == 201
    stored = server.store.get(DEFINITIONS, "boxes.example.com")
    assert {c["type"]: c["status"] for c in stored["status"]["conditions"]}["Established"] == "True"
    _, made = await client.post("/apis/example.com/v1/boxes", {"metadata": {"name": "b"}})
    assert made["spec"] == {"size": 3}
    _, resources = await client.get("/apis/example.com/v1")
    assert [r["name"] for r in resources["resources"]] == ["boxes"]
    await client.delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/boxes.example.com")
    assert (await client.get("/apis/example.com/v1/boxes"))[0] == 404
