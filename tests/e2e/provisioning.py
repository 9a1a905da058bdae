# SPDX-License-Identifier: Apache-2.0
"""ProvisioningRequests on a real API server: a definition with the rules of autoscaling.x-k8s.io/v1, and the part of
cluster-autoscaler, which answers by conditions (repair.md 3)."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.e2e.client import DEFINITIONS, Client, Json, Refused
from tests.e2e.process import eventually

NAME = "provisioningrequests.autoscaling.x-k8s.io"
REQUESTS = "/apis/autoscaling.x-k8s.io/v1/namespaces/default/provisioningrequests"
TEMPLATES = "/api/v1/namespaces/default/podtemplates"
LONG_AGO = timedelta(days=1)
_DNS = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_TEXT = {"type": "string"}


def _object(required: list[str], **properties: Any) -> Json:
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


_CONDITION = _object(
    ["lastTransitionTime", "message", "reason", "status", "type"],
    lastTransitionTime={"type": "string", "format": "date-time"},
    message={"type": "string", "maxLength": 32768},
    observedGeneration={"type": "integer", "format": "int64", "minimum": 0},
    reason={"type": "string", "maxLength": 1024, "minLength": 1, "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
    status={"type": "string", "enum": ["True", "False", "Unknown"]},
    type={"type": "string", "maxLength": 316},
)
_SCHEMA = _object(
    ["spec"],
    apiVersion=_TEXT,
    kind=_TEXT,
    metadata={"type": "object"},
    spec={
        **_object(
            ["podSets", "provisioningClassName"],
            parameters={
                "type": "object",
                "maxProperties": 100,
                "additionalProperties": {"type": "string", "maxLength": 255},
                "x-kubernetes-map-type": "atomic",
            },
            podSets={
                "type": "array",
                "minItems": 1,
                "maxItems": 32,
                "items": _object(
                    ["count", "podTemplateRef"],
                    count={"type": "integer", "format": "int32", "minimum": 1, "maximum": 16384},
                    podTemplateRef=_object(["name"], name=_TEXT),
                ),
            },
            provisioningClassName={"type": "string", "maxLength": 253, "pattern": _DNS},
        ),
        "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "Value is immutable"}],
    },
    status=_object(
        [],
        conditions={
            "type": "array",
            "items": _CONDITION,
            "x-kubernetes-list-map-keys": ["type"],
            "x-kubernetes-list-type": "map",
        },
        provisioningClassDetails={
            "type": "object",
            "maxProperties": 64,
            "additionalProperties": {"type": "string", "maxLength": 32768},
        },
    ),
)
"""The rules of cluster-autoscaler's definition: its fields, limits and the immutable spec."""
DEFINITION: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": NAME,
        # the API server asks for it in groups below k8s.io
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/autoscaler/pull/5848"},
    },
    "spec": {
        "group": "autoscaling.x-k8s.io",
        "names": {"kind": "ProvisioningRequest", "plural": "provisioningrequests", "singular": "provisioningrequest"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": _SCHEMA},
                "subresources": {"status": {}},
            }
        ],
    },
}


async def are_served(api: Client, path: str) -> None:
    """Waits until custom resources are listed, once their definition is applied."""

    async def served() -> bool:
        try:
            await api.get(path)
        except Refused as refused:  # 404 before it is established, then 429 until its storage is ready
            if refused.status not in (404, 429):
                raise
            return False
        return True

    await eventually(served, what=f"{path} is served")


class Autoscaler:
    """Lists requests, answers them, and records every one that was ever created."""

    def __init__(self, api: Client) -> None:
        self._api = api
        self.created: Counter[str] = Counter()
        """Name -> number of creations, of ProvisioningRequests and PodTemplates."""
        self._watches: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Autoscaler:
        await self._api.apply(f"{DEFINITIONS}/{NAME}", DEFINITION)

        await are_served(self._api, REQUESTS)
        for path in (REQUESTS, TEMPLATES):
            since = (await self._api.get(path))["metadata"]["resourceVersion"]
            self._watches.append(asyncio.create_task(self._follow(path, since)))
        return self

    async def __aexit__(self, *_: object) -> None:
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        await self._api.delete(TEMPLATES)
        await self._api.remove_definition(NAME)

    async def _follow(self, path: str, since: str) -> None:
        while True:
            async for kind, obj in self._api.watch(path, since=since):
                assert kind != "ERROR", obj
                since = obj["metadata"]["resourceVersion"]
                self.created[obj["metadata"]["name"]] += kind == "ADDED"

    def must_watch(self) -> None:
        """Raises what ended a watch."""
        for watch in self._watches:
            if watch.done():
                watch.result()

    async def uids(self) -> dict[str, str]:
        """Name -> uid of the requests."""
        return {one["metadata"]["name"]: one["metadata"]["uid"] for one in await self._api.items(REQUESTS)}

    async def templates(self) -> set[str]:
        """Names of the PodTemplates."""
        return {one["metadata"]["name"] for one in await self._api.items(TEMPLATES)}

    async def answer(self, name: str, type: str, reason: str, *, ago: timedelta = timedelta()) -> None:
        """Writes one True condition in place of all others. ago: time since it became True."""
        at = datetime.now(UTC) - ago
        told = {
            "type": type,
            "status": "True",
            "reason": reason,
            "message": f"told by the test: {reason}",
            "lastTransitionTime": f"{at:%Y-%m-%dT%H:%M:%SZ}",
        }
        await self._api.patch(f"{REQUESTS}/{name}/status", {"status": {"conditions": [told]}})
