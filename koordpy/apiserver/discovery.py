# SPDX-License-Identifier: Apache-2.0
"""Discovery documents of the API server: its groups, versions and resources, which kubectl and kopf request first.

The OpenAPI v3 documents have the minimum for `kubectl apply`: a PATCH operation for each resource, with its
group-version-kind and the query parameter fieldValidation. With that parameter, kubectl leaves validation to the
server. Custom resources have their schema, so `kubectl explain` works for them. There is no OpenAPI v2 document:
clients that request it in protobuf get 404, and then use another source.
"""

from collections.abc import Iterator
from typing import Any

from koordpy.apiserver.served_resources import Object, Registry, ServedResource

VERSION: Object = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.0-koordpy",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "any/any",
}

API_VERSIONS: Object = {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def _entry(name: str, kind: str, verbs: list[str], *, namespaced: bool, singular: str = "", **more: Any) -> Object:
    """Returns one entry of an APIResourceList. more: further fields; empty values are left out."""
    own = {"name": name, "singularName": singular, "namespaced": namespaced, "kind": kind, "verbs": verbs}
    return own | {key: value for key, value in more.items() if value}


def _entries(resource: ServedResource) -> Iterator[Object]:
    """Yields the entries of a resource and its subresources."""
    name, kind, namespaced = resource.plural, resource.kind, resource.namespaced
    yield _entry(
        name,
        kind,
        _VERBS,
        namespaced=namespaced,
        singular=resource.singular or kind.lower(),
        shortNames=list(resource.short_names),
        categories=list(resource.categories),
    )
    if resource.has_status:
        yield _entry(f"{name}/status", kind, ["get", "patch", "update"], namespaced=namespaced)
    if resource.name == "pods":
        yield _entry("pods/binding", "Binding", ["create"], namespaced=True)
        yield _entry("pods/eviction", "Eviction", ["create"], namespaced=True, group="policy", version="v1")


def _group(name: str, versions: list[str]) -> Object:
    """Returns the entry of an API group; the first version is the preferred one."""
    shown = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": shown, "preferredVersion": shown[0]}


def api_groups(registry: Registry) -> Object:
    """Returns the document of /apis."""
    groups = [_group(name, versions) for name, versions in registry.groups().items()]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def api_group(registry: Registry, name: str) -> Object | None:
    """Returns the document of /apis/GROUP; None if the group is not served."""
    versions = registry.groups().get(name)
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)} if versions else None


def api_resources(registry: Registry, group: str, version: str) -> Object | None:
    """Returns the document of /apis/GROUP/VERSION or /api/v1; None if the version is not served."""
    own = (resource for resource in registry if (resource.group, resource.version) == (group, version))
    found = [entry for resource in own for entry in _entries(resource)]
    if not found:
        return None
    name = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": found}


def openapi_index(registry: Registry) -> Object:
    """Returns the document of /openapi/v3."""
    paths = {"api/v1": {"serverRelativeURL": "/openapi/v3/api/v1"}}
    for group, versions in registry.groups().items():
        for version in versions:
            paths[f"apis/{group}/{version}"] = {"serverRelativeURL": f"/openapi/v3/apis/{group}/{version}"}
    return {"paths": paths}


def openapi_document(registry: Registry, group: str, version: str) -> Object | None:
    """Returns the document of /openapi/v3/apis/GROUP/VERSION; None if the version is not served."""
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    root = f"/apis/{group}/{version}" if group else f"/api/{version}"
    parameter = {"name": "fieldValidation", "in": "query", "schema": {"type": "string", "uniqueItems": True}}
    for resource in registry:
        if (resource.group, resource.version) != (group, version):
            continue
        kind = {"group": group, "version": version, "kind": resource.kind}
        name = ".".join([*reversed((group or "core").split(".")), version, resource.kind])
        schemas[name] = {"type": "object", **(resource.schema or {}), "x-kubernetes-group-version-kind": [kind]}
        where = "/namespaces/{namespace}" if resource.namespaced else ""
        answer = {
            "description": "OK",
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}},
        }
        paths[f"{root}{where}/{resource.plural}/{{name}}"] = {
            "patch": {
                "responses": {"200": answer},
                "parameters": [parameter],
                "x-kubernetes-group-version-kind": kind,
                "x-kubernetes-action": "patch",
            }
        }
    if not paths:
        return None
    return {
        "openapi": "3.0.0",
        "info": {"title": "koordpy", "version": VERSION["gitVersion"]},
        "paths": paths,
        "components": {"schemas": schemas},
    }
