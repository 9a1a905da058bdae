# SPDX-License-Identifier: Apache-2.0
"""Writes ProvisioningRequests and their PodTemplates: create and delete (repair.md 3.2).

PodTemplates are created before the request, so that the autoscaler finds them. The names of all objects are computed
from the gang and the number of the attempt. So a new leader finds the templates that an earlier leader created before
it stopped: it uses a template again if it is equal, and replaces it otherwise. Only objects with koordpy's annotation
are changed.
"""

from collections.abc import Callable
from typing import Any

from koordpy.api import keys
from koordpy.api.custom_objects import ProvisioningRequest
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.api_errors import ApiError
from koordpy.engine.client.api_resources import PODS, Resource
from koordpy.engine.status.event_recorder import ObjectReference
from koordpy.plan.wanted_nodes import WantedNodes

POD_TEMPLATES = Resource("", "v1", "podtemplates", "PodTemplate")
_NOT_COPIED = ("nodeName", "ephemeralContainers")
"""Fields of a pod's spec that a template does not have."""


class NotOursError(Exception):
    """An object of the name exists, and another program has created it."""


class RequestWrites:
    """The writes for one unit at a time. Methods raise `ApiError` and `Unreachable` as the client does."""

    def __init__(self, client: ApiClient, may_write: Callable[[], bool]) -> None:
        """may_write: returns True while this process leads; checked before each write."""
        self._client, self._may_write = client, may_write

    async def create(
        self, wanted: WantedNodes, attempt: int, owner: ObjectReference, resource: Resource
    ) -> ProvisioningRequest | None:
        """Creates the templates and the request of an attempt; returns the request.

        Returns None if a pod does not exist any more, or if this process does not lead any more. owner: owner reference
        of the new objects. Raises NotOursError if another program uses one of the names.
        """
        meta = {
            "namespace": wanted.namespace,
            "annotations": {
                keys.PROVISIONING_FOR: wanted.title,
                keys.PROVISIONING_ATTEMPT: str(attempt),
            },
            "ownerReferences": [
                {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid}
            ],
        }
        for number, one in enumerate(wanted.sets):
            pod = await self._client.get_or_none(PODS.path(wanted.namespace, one.pods[0]), type=dict[str, Any])
            if pod is None:
                return None
            body = {
                "apiVersion": POD_TEMPLATES.api_version,
                "kind": POD_TEMPLATES.kind,
                "metadata": {**meta, "name": wanted.template(attempt, number)},
                "template": _template_of(pod),
            }
            if not await self._put_template(body):
                return None
        request = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {**meta, "name": wanted.name(attempt)},
            "spec": {
                "provisioningClassName": wanted.class_name,
                "parameters": dict(wanted.parameters),
                "podSets": [
                    {"podTemplateRef": {"name": wanted.template(attempt, number)}, "count": one.count}
                    for number, one in enumerate(wanted.sets)
                ],
            },
        }
        if not self._may_write():
            return None
        try:
            return await self._client.post(resource.path(wanted.namespace), request, type=ProvisioningRequest)
        except ApiError as error:
            if error.status != 409:
                raise
        path = resource.path(wanted.namespace, wanted.name(attempt))
        known = await self._client.get_or_none(path, type=ProvisioningRequest)
        if known is not None and known.metadata.annotations.get(keys.PROVISIONING_FOR) != wanted.title:
            raise NotOursError(
                f"ProvisioningRequest {wanted.namespace}/{wanted.name(attempt)} belongs to another program"
            )
        return known

    async def _put_template(self, body: dict[str, Any]) -> bool:
        """Creates a PodTemplate, or replaces one of an earlier attempt; False if this process does not lead."""
        meta = body["metadata"]
        for _ in range(2):
            if not self._may_write():
                return False
            try:
                await self._client.post(POD_TEMPLATES.path(meta["namespace"]), body)
                return True
            except ApiError as error:
                if error.status != 409:
                    raise
            path = POD_TEMPLATES.path(meta["namespace"], meta["name"])
            known = await self._client.get_or_none(path, type=dict[str, Any])
            if known is None:
                continue
            notes = known["metadata"].get("annotations", {})
            if notes.get(keys.PROVISIONING_FOR) != meta["annotations"][keys.PROVISIONING_FOR]:
                raise NotOursError(f"PodTemplate {meta['namespace']}/{meta['name']} belongs to another program")
            if _covers(known.get("template"), body["template"]):
                return True
            if self._may_write():
                await self._delete(path, known["metadata"].get("uid", ""))
        raise ApiError(409, f"PodTemplate {meta['name']} exists", "AlreadyExists")

    async def delete(self, request: ProvisioningRequest, resource: Resource) -> bool:
        """Deletes the templates of a request, then the request, so that an error leaves no template without a request.

        Returns False if this process does not lead any more.
        """
        meta = request.metadata
        for one in request.spec.pod_sets:
            name = one.pod_template_ref.name
            # a request that another program changed must not delete foreign templates
            if name.startswith(f"{meta.name}-"):
                if not self._may_write():
                    return False
                await self._delete(POD_TEMPLATES.path(meta.namespace, name), "")
        if not self._may_write():
            return False
        await self._delete(resource.path(meta.namespace, meta.name), meta.uid)
        return True

    async def _delete(self, path: str, uid: str) -> None:
        """Deletes the object with this uid. Does nothing if it does not exist any more."""
        try:
            await self._client.delete(path, uid=uid)
        except ApiError as error:
            if error.status not in (404, 409):
                raise


def _covers(known: Any, wanted: Any) -> bool:
    """Returns True if `known` has all fields of `wanted`. Further fields are allowed, because the API server adds
    defaults."""
    if isinstance(wanted, dict):
        return isinstance(known, dict) and all(_covers(known.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        same = isinstance(known, list) and len(known) == len(wanted)
        return same and all(_covers(one, other) for one, other in zip(known, wanted, strict=True))
    return bool(known == wanted)


def _template_of(pod: dict[str, Any]) -> dict[str, Any]:
    """Returns the template of a pod: its labels and spec, without annotations and without its node."""
    spec = {key: value for key, value in pod["spec"].items() if key not in _NOT_COPIED}
    labels = pod["metadata"].get("labels")
    return {"metadata": {"labels": labels} if labels else {}, "spec": spec}
