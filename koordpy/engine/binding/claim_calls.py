# SPDX-License-Identifier: Apache-2.0
"""Requests to the API server about resource claims (DRA), for `claim_writes.py` and `claim_releases.py` (dra.md 12).

Each call is one request. A claim is changed under its lock (`lock`), so that a release and a reservation of one claim
do not overlap in this process. Callers handle errors.
"""

import asyncio
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from koordpy.api.claim_objects import DeviceClaim, ResourceClaim
from koordpy.api.objects import Pod
from koordpy.cache.cluster_state import ClusterState
from koordpy.devices.dra.ledger.extended_claims import MADE
from koordpy.engine.client.api_client import Body
from koordpy.engine.client.api_errors import ApiError
from koordpy.engine.client.api_replies import is_older
from koordpy.engine.client.api_resources import PODS, RESOURCE_CLAIMS, Resource
from koordpy.engine.engine_context import Context
from koordpy.pods.claim_refs import IMPLICIT_STEM
from koordpy.pods.object_book import object_key
from koordpy.pods.pod_info import PodInfo

FINALIZER = "resource.kubernetes.io/delete-protection"
"""Finalizer of an allocated claim, which keeps the claim until the claim controller has deallocated it."""
MAX_IN_FLIGHT = 64
"""Maximum number of parallel requests about claims."""


class NotServed(Exception):
    """The API server does not serve resource claims any more."""


class NotLeading(NotServed):
    """Leadership ended before a write was sent."""


def take_reply(state: ClusterState, claim: ResourceClaim) -> None:
    """Stores a known claim from a reply, so that no plan uses the older state.

    A claim in the cache that is newer than the reply is kept. Otherwise the reply would restore a reservation that was
    released since, and the pod would be bound without one. A claim that is not in the cache is ignored, because the
    watch may have deleted it; `ClaimCalls.take_new` stores new claims.
    """
    known = state.get(ResourceClaim, object_key(claim))
    if known is not None and not is_older(claim.metadata.resource_version, known.metadata.resource_version):
        state.upsert(claim)


class ClaimCalls:
    """Reads and writes resource claims. Owned by the event loop."""

    def __init__(self, context: Context) -> None:
        self._client, self._feeds, self._may_write = context.client, context.feeds, context.may_write
        self._state = context.state
        self._places = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def lock(self, key: str) -> asyncio.Lock:
        """Returns the lock of a claim (`namespace/name`)."""
        found = self._locks.get(key)
        if found is None:
            found = self._locks[key] = asyncio.Lock()
        return found

    @property
    def resource(self) -> Resource | None:
        """The served version of resource claims; None if they are not served."""
        return self._feeds.served.get(RESOURCE_CLAIMS)

    def path(self, key: str, subresource: str = "") -> str:
        """Returns the URL path of a claim. Raises `NotServed`."""
        resource = self.resource
        if resource is None:
            raise NotServed("resource claims are not served any more")
        namespace, _, name = key.partition("/")
        return resource.path(namespace, name, subresource)

    def _check_leads(self) -> None:
        """Called right before each write. Raises `NotLeading`."""
        if not self._may_write():
            raise NotLeading("this process no longer leads")

    def take_new(self, claim: ResourceClaim) -> None:
        """Stores a claim from the reply to a create or list call, also if the watch has not delivered it yet."""
        take_reply(self._state, claim)
        if (resource := self.resource) is not None:
            self._feeds.take_new(resource, claim)

    async def read(self, key: str) -> ResourceClaim | None:
        """Returns a claim; None if it does not exist."""
        path = self.path(key)
        async with self._places:
            return await self._client.get_or_none(path, type=ResourceClaim)

    async def create(self, info: PodInfo, devices: DeviceClaim) -> ResourceClaim:
        """Creates the claim for a pod's extended resources, under a generated name."""
        resource = self.resource
        if resource is None:
            raise NotServed("resource claims are not served any more")
        requests = [_request(msgspec.to_builtins(one), resource.version) for one in devices.requests]
        owner = {"apiVersion": "v1", "kind": "Pod", "name": info.name, "uid": info.uid, "controller": True}
        body = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {
                "generateName": f"{info.name}{IMPLICIT_STEM}",
                "namespace": info.namespace,
                "annotations": {MADE: "true"},
                "ownerReferences": [owner],
            },
            "spec": {"devices": {"requests": requests}},
        }
        async with self._places:
            self._check_leads()
            made = await self._client.post(resource.path(info.namespace), body, type=ResourceClaim)
        assert made is not None
        return made

    async def protect(self, key: str, version: str) -> ResourceClaim:
        """Sets the finalizer of a claim. version: resourceVersion that the claim must have."""
        # finalizers are merged as a set; the version protects against a replaced claim
        body = {"metadata": {"resourceVersion": version, "finalizers": [FINALIZER]}}
        return await self._patch(self.path(key), body, strategic=True)

    async def unprotect(self, key: str, **expected: str) -> ResourceClaim:
        """Removes the finalizer of a claim. expected: `resourceVersion` or `uid` that the claim must have."""
        body = {"metadata": {**expected, "$deleteFromPrimitiveList/finalizers": [FINALIZER]}}
        return await self._patch(self.path(key), body, strategic=True)

    async def write_status(self, key: str, body: Body) -> ResourceClaim:
        """Patches the status of a claim. body: with the resourceVersion that the claim must have."""
        return await self._patch(self.path(key, "status"), body)

    async def _patch(self, path: str, body: Body, *, strategic: bool = False) -> ResourceClaim:
        kind: Any = "strategic" if strategic else "merge"
        async with self._places:
            self._check_leads()
            written = await self._client.patch(path, body, kind=kind, type=ResourceClaim)
        assert written is not None
        return written

    async def delete_implicit(self, key: str, pod_uid: str) -> bool:
        """Deletes a claim for the extended resources of a pod. Returns False if the claim does not exist, or belongs to
        another pod."""
        claim = await self.read(key)
        owner = claim.metadata.controller if claim is not None else None
        if claim is None or owner is None or owner.uid != pod_uid or MADE not in claim.metadata.annotations:
            return False
        uid = claim.metadata.uid
        try:
            await self.unprotect(key, uid=uid)
            self._check_leads()
            await self._client.delete(self.path(key), uid=uid)
        except ApiError as error:
            if error.status not in (404, 409) or await self._exists(key, uid):
                raise
        return True

    async def _exists(self, key: str, uid: str) -> bool:
        claim = await self.read(key)
        return claim is not None and claim.metadata.uid == uid and not claim.metadata.deletion_timestamp

    async def list_claims(self, namespace: str = "") -> list[ResourceClaim]:
        """Returns the claims of a namespace, read from the API server. namespace: empty for all namespaces."""
        resource, found, token = self.resource, list[ResourceClaim](), ""
        while resource is not None:
            path = resource.path(namespace)
            page = await self._client.list_page(path, type=ResourceClaim, continue_token=token)
            found += page.items or ()
            token = page.metadata.continue_
            if not token:
                break
        return found

    async def write_pod(self, info: PodInfo, extended: Body | None) -> Pod:
        """Writes `extendedResourceClaimStatus` to a pod's status: the claim for its extended resources. None removes
        it."""
        body = {"metadata": {"uid": info.uid}, "status": {"extendedResourceClaimStatus": extended}}
        async with self._places:
            self._check_leads()
            written = await self._client.patch(PODS.path(info.namespace, info.name, "status"), body, type=Pod)
        assert written is not None
        return written


def _request(request: dict[str, Any], version: str) -> dict[str, Any]:
    """Returns a device request in the form of an API version: v1beta1 has no `exactly`, its fields are one level up."""
    if version != "v1beta1":
        return request
    return {**{key: value for key, value in request.items() if key != "exactly"}, **request["exactly"]}
