# SPDX-License-Identifier: Apache-2.0
"""Allocates ResourceClaims (DRA) before Bindings, and releases them after failed ones (kube-parity.md 4.9 and 6).

`DeviceReserver` writes the planned allocation and the pods' reservations (status.reservedFor), one write per claim for
all pods of a unit. Other writers use the same claims, so after a conflict the claim is read and checked again. Only a
contradiction voids the plan. `DeviceReleaser` removes reservations, and allocations without another user, because an
allocated claim ties its pod to a node and occupies devices. It does so after a failed Binding, after a verdict that the
pod fits nowhere (as kube-scheduler's PostFilter), and for deleted pods, also of an earlier leader.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

import msgspec

from koordpy.api.claim_objects import Allocation, ClaimConsumer, ResourceClaim
from koordpy.api.label_selectors import term_matches
from koordpy.cache.cluster_state import ClusterState
from koordpy.devices.dra.ledger.claim_book import claim_book
from koordpy.engine.binding.volume_writes import ClaimsFailed, PodClaims, failing, obstacle_text
from koordpy.engine.client.api_client import Body
from koordpy.engine.client.api_errors import ApiError, Unreachable
from koordpy.engine.client.api_replies import is_older
from koordpy.engine.client.api_resources import RESOURCE_CLAIMS, Resource
from koordpy.engine.client.backoff import Backoff
from koordpy.engine.engine_context import Context, begin
from koordpy.engine.wakeups import Wake
from koordpy.pods.claim_refs import MAX_CONSUMERS, DeviceId, consumer_of, resource_claims
from koordpy.pods.object_book import object_key
from koordpy.pods.pod_info import PodInfo

logger = logging.getLogger(__name__)

FINALIZER = "resource.kubernetes.io/delete-protection"
"""Finalizer of an allocated claim, which keeps the claim until the claim controller has deallocated it."""
MAX_RESERVE_TRIES = 5  # conflicts (409) of one claim before a plan is void
MAX_RELEASE_TRIES = 6  # failed calls before a release is given up; the sweep tries again
POLL_SECONDS = 0.2
"""Interval of the checks of a claim that another unit's pod allocates; that takes one write."""
ASKED_AGAIN_SWEEPS = 20
"""Number of sweeps after which finished pods that were found to exist (`_alive`) are read again."""


def take_reply(state: ClusterState, claim: ResourceClaim) -> None:
    """Stores a claim from a reply, so that no plan uses the older state.

    A newer known claim is kept: otherwise an older reply would restore a released reservation, and its pod would be
    bound without it. A claim that the watch has deleted is not restored.
    """
    known = state.get(ResourceClaim, object_key(claim))
    if known is not None and not is_older(claim.metadata.resource_version, known.metadata.resource_version):
        state.upsert(claim)


class DeviceReserver:
    """Allocates and reserves the resource claims of units. Owned by the event loop."""

    def __init__(self, context: Context) -> None:
        self._client, self._feeds, self._state = context.client, context.feeds, context.state
        self._may_write, self._settings = context.may_write, context.settings
        self._unprotected = False  # True if this process may not set the finalizer
        self._asking: set[asyncio.Task[None]] = set()

    async def reserve(self, pods: Sequence[PodClaims], *, obstacle: Callable[[], str]) -> None:
        """Writes the planned allocations and reserves every claim that the pods name.

        obstacle: returns why the unit cannot be bound any more; empty if it can. Raises ClaimsFailed; claims written
        before stay as they are, and the next plan continues from there.
        """
        try:
            async with asyncio.timeout(self._settings.config.filters.volume_binding.bind_timeout):
                for key, of_claim in _by_claim(pods).items():
                    await self._reserve(key, of_claim, obstacle)
        except TimeoutError:
            raise ClaimsFailed("timeout", "timed out waiting for resource claims") from None

    async def _reserve(self, key: str, pods: Sequence[PodClaims], obstacle: Callable[[], str]) -> None:
        """Allocates one claim, and reserves it for these pods. Tries again after conflicts."""
        claim, uid, tries = self._state.get(ResourceClaim, key), "", 0
        while True:
            if why := obstacle():
                raise ClaimsFailed(why, f"resource claim {key} was not reserved: {obstacle_text(why)}")
            if claim is None or (uid and claim.metadata.uid != uid) or claim.metadata.deletion_timestamp:
                raise ClaimsFailed("void", f"resource claim {key} does not exist any more")
            uid = claim.metadata.uid
            if self._waits(key, claim, pods):
                await asyncio.sleep(POLL_SECONDS)
                claim = self._state.get(ResourceClaim, key)
                continue
            body = self._patch_of(key, claim, pods)
            if body is None:
                return
            if "allocation" in body["status"]:
                body["metadata"]["resourceVersion"] = await self._protect(key, claim)
                if why := obstacle():
                    raise ClaimsFailed(why, f"resource claim {key} was not reserved: {obstacle_text(why)}")
            devices = next((pod.devices[key] for pod in pods if key in pod.devices), None)
            if devices is not None and "allocation" in body["status"]:
                # the pod may be deleted before the reply arrives
                claim_book(self._state.families).write(key, devices)
            try:
                written = await self._write(key, body, final=tries == MAX_RESERVE_TRIES)
            except (ClaimsFailed, asyncio.CancelledError):
                self._read_later(key)
                raise
            if written is not None:
                # the pods' watch may be faster than the claims' watch: the devices must not look free until then
                take_reply(self._state, written)
            claim_book(self._state.families).written(key)
            if written is not None:
                return
            tries += 1
            claim = await self._read(key)

    def _waits(self, key: str, claim: ResourceClaim, pods: Sequence[PodClaims]) -> bool:
        """Returns True if a pod of another unit is about to allocate the claim. Raises ClaimsFailed if none is."""
        if claim.status.allocation is not None or any(key in pod.devices for pod in pods):
            return False
        if key not in claim_book(self._state.families).grants():
            raise ClaimsFailed("void", f"resource claim {key}: the pod that was to allocate it was not bound")
        return True

    def _patch_of(self, key: str, claim: ResourceClaim, pods: Sequence[PodClaims]) -> Body | None:
        """Returns the patch of a claim's status; None if no write is needed. Raises ClaimsFailed if the plan is
        void."""
        status: dict[str, object] = {}
        allocation = claim.status.allocation
        for pod in pods:
            if key in pod.devices:
                planned = claim_book(self._state.families).objects.allocation(claim, pod.node, pod.devices[key])
                if allocation is None:
                    self._check_free(key, planned)
                    allocation = planned
                    status["allocation"] = msgspec.to_builtins(planned)
                elif _devices(allocation) != _devices(planned):
                    raise ClaimsFailed("conflict", f"resource claim {key} was allocated differently")
        assert allocation is not None
        for pod in pods:
            if not self._is_available(allocation, pod.node):
                raise ClaimsFailed("void", f"resource claim {key} is not available on {pod.node}")
        reserved = claim.status.reserved_for
        known = {consumer.uid for consumer in reserved}
        new = [consumer_of(pod.info.pod) for pod in pods if pod.info.uid not in known]
        if len(reserved) + len(new) > MAX_CONSUMERS:
            raise ClaimsFailed("conflict", f"resource claim {key} is in use by too many pods")
        if new:
            status["reservedFor"] = msgspec.to_builtins([*reserved, *new])
        return {"metadata": {"resourceVersion": claim.metadata.resource_version}, "status": status} if status else None

    def _check_free(self, key: str, planned: Allocation) -> None:
        if used := claim_book(self._state.families).objects.view().allocated & _devices(planned):
            raise ClaimsFailed("conflict", f"device {min(used).device} is not free for resource claim {key} any more")

    def _is_available(self, allocation: Allocation, name: str) -> bool:
        selector, node = allocation.node_selector, self._state.nodes.get(name)
        if selector is None or node is None:
            return True
        return any(term_matches(term, name, node.labels) for term in selector.node_selector_terms)

    async def _protect(self, key: str, claim: ResourceClaim) -> str:
        """Sets the finalizer. Returns the claim's version for the next write."""
        version = claim.metadata.resource_version
        if self._unprotected or not self._may_write():
            return version
        # finalizers are merged as a set; the version protects against a replaced claim
        body = {"metadata": {"resourceVersion": version, "finalizers": [FINALIZER]}}
        with failing(f"resource claim {key}"):
            try:
                written = await self._client.patch(self._path(key), body, kind="strategic", type=ResourceClaim)
            except ApiError as error:
                if error.status not in (403, 409):
                    raise
                # after a conflict the next write conflicts, too, and then the claim is read again
                if error.status == 403:
                    logger.warning("resource claims are not protected from deletion while in use: %s", error)
                    self._unprotected = True
                return version
        assert written is not None
        return written.metadata.resource_version

    # -- calls --------------------------------------------------------------------------------------------------------

    async def _write(self, key: str, body: Body, *, final: bool) -> ResourceClaim | None:
        """Returns the claim after a write; None if its version had changed."""
        if not self._may_write():
            raise ClaimsFailed("not_sent", f"resource claim {key} was not written: not the leader")
        with failing(f"resource claim {key}"):
            try:
                return await self._client.patch(self._path(key, "status"), body, type=ResourceClaim)
            except ApiError as error:
                if error.status != 409 or final:
                    raise
                return None

    def _read_later(self, key: str) -> None:
        """Starts to read a claim after a write that may have taken effect, until a read succeeds."""

        async def ask() -> None:
            backoff = Backoff(0.05, 2.0)
            # the write may still take effect
            await asyncio.sleep(self._settings.settle_seconds)
            while self._may_write():
                try:
                    claim = await self._read(key)
                except ClaimsFailed:
                    await asyncio.sleep(backoff.next())
                    continue
                if claim is not None:
                    take_reply(self._state, claim)
                claim_book(self._state.families).written(key)
                # its devices may be free now
                self._feeds.queue.broadcast(Wake.DYNAMIC_DEVICE, "ClaimRead")
                return

        begin(ask(), f"read of claim {key}", self._asking)

    async def _read(self, key: str) -> ResourceClaim | None:
        with failing(f"resource claim {key}"):
            return await self._client.get_or_none(self._path(key), type=ResourceClaim)

    def _path(self, key: str, subresource: str = "") -> str:
        resource = self._feeds.served.get(RESOURCE_CLAIMS)
        if resource is None:
            raise ClaimsFailed("void", "resource claims are not served any more")
        namespace, _, name = key.partition("/")
        return resource.path(namespace, name, subresource)


def _by_claim(pods: Sequence[PodClaims]) -> dict[str, list[PodClaims]]:
    """Returns resource claim -> the pods that use it."""
    users: dict[str, list[PodClaims]] = {}
    for pod in pods:
        for key in resource_claims(pod.info):
            users.setdefault(key, []).append(pod)
    return users


def _devices(allocation: Allocation) -> frozenset[DeviceId]:
    return frozenset(DeviceId(one.driver, one.pool, one.device) for one in allocation.devices.results)


class DeviceReleaser:
    """Releases reservations and allocations, one claim at a time. Owned by the event loop."""

    def __init__(self, context: Context) -> None:
        self.released = 0
        self._client, self._feeds, self._state = context.client, context.feeds, context.state
        self._may_write, self._sweep_seconds = context.may_write, context.settings.sweep_seconds
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeps = 0
        self._alive: set[str] = set()
        """uids of pods that exist but are not in the state, because they are finished."""

    async def release(self, pods: Sequence[PodClaims]) -> None:
        """Releases claims that were written for pods that were not bound. Repeats failed calls.

        A claim with other users, or one that was allocated before this plan, keeps its allocation.
        """
        # a pod that another process has bound needs its claims
        known = ((pod, self._state.pod(pod.info.key)) for pod in pods)
        unbound = [pod for pod, now in known if now is None or now.uid != pod.info.uid or not now.pod.spec.node_name]
        for key, of_claim in _by_claim(unbound).items():
            ours = any(key in pod.devices for pod in of_claim)
            await self._release_claim(key, {pod.info.uid for pod in of_claim}, deallocate=ours, unused=False)

    def unstick(self, pods: Sequence[PodInfo]) -> None:
        """Starts to deallocate claims that tie pods which fit nowhere to a node, if only these pods use them."""
        uids = {pod.uid for pod in pods}
        stuck = dict.fromkeys(key for pod in pods for key in resource_claims(pod) if self._ties(key, uids))
        if stuck and self._may_write():
            begin(self._unstick(list(stuck), uids), "claims of unschedulable pods", self._tasks)

    async def run(self) -> None:
        """Releases reservations of deleted pods periodically, until cancelled."""
        try:
            while True:
                try:
                    await self.sweep()
                except (ApiError, Unreachable) as error:
                    logger.warning("could not release claims of deleted pods: %s", error)
                await asyncio.sleep(self._sweep_seconds)
        finally:
            for task in self._tasks:
                task.cancel()

    async def sweep(self) -> None:
        """Releases reservations of deleted pods. Raises as the client does."""
        if self._sweeps % ASKED_AGAIN_SWEEPS == 0:
            self._alive.clear()
        self._sweeps += 1
        resource = self._feeds.served.get(RESOURCE_CLAIMS)
        for claim in self._feeds.objects(resource) if resource is not None else ():
            namespace = claim.metadata.namespace
            gone: set[str] = set()
            for consumer in claim.status.reserved_for:
                if not _is_pod(consumer):
                    continue
                known = self._state.pod(f"{namespace}/{consumer.name}")
                if known is not None and known.uid == consumer.uid:
                    continue
                if consumer.uid not in self._alive and await self._is_gone(namespace, consumer):
                    gone.add(consumer.uid)
            if gone:
                await self._release_claim(f"{namespace}/{claim.metadata.name}", gone, deallocate=True)

    # -- implementation -----------------------------------------------------------------------------------------------

    async def _is_gone(self, namespace: str, consumer: ClaimConsumer) -> bool:
        pod = await self._client.read_pod(namespace, consumer.name)
        if pod is not None and pod.metadata.uid == consumer.uid:
            self._alive.add(consumer.uid)
            return False
        return True

    def _ties(self, key: str, uids: set[str]) -> bool:
        """Returns True if a claim is allocated to some nodes only, and these pods are its only users."""
        claim = self._state.get(ResourceClaim, key)
        if claim is None or key in claim_book(self._state.families).grants():
            return False
        allocation = claim.status.allocation
        return (
            allocation is not None
            and allocation.node_selector is not None
            and {consumer.uid for consumer in claim.status.reserved_for} <= uids
        )

    async def _unstick(self, keys: list[str], uids: set[str]) -> None:
        for key in keys:
            if self._ties(key, uids):
                await self._release_claim(key, uids, deallocate=True)

    async def _release_claim(self, key: str, uids: set[str], *, deallocate: bool, unused: bool = True) -> None:
        """Removes reservations from a claim; with `deallocate` also the allocation, if no reservation remains.

        unused: False to deallocate only if one of these reservations existed, as both are written together.
        """
        backoff = Backoff(0.05, 1.0)
        async with self._turn:
            while self._may_write() and (resource := self._feeds.served.get(RESOURCE_CLAIMS)) is not None:
                try:
                    if await self._try(resource, key, uids, deallocate=deallocate, unused=unused):
                        return
                except (ApiError, Unreachable) as error:
                    if backoff.tries + 1 >= MAX_RELEASE_TRIES:
                        logger.warning("resource claim %s was not released: %s", key, error)
                        return
                await asyncio.sleep(backoff.next())

    async def _try(self, resource: Resource, key: str, uids: set[str], *, deallocate: bool, unused: bool) -> bool:
        """Tries one read and write. Returns False if another writer changed the claim in between."""
        namespace, _, name = key.partition("/")
        path, status_path = resource.path(namespace, name), resource.path(namespace, name, "status")
        claim = await self._client.get_or_none(path, type=ResourceClaim)
        if claim is None:
            return True
        remaining = [consumer for consumer in claim.status.reserved_for if consumer.uid not in uids]
        status: dict[str, object] = {}
        reserved = len(remaining) < len(claim.status.reserved_for)
        if reserved:
            status["reservedFor"] = msgspec.to_builtins(remaining) or None
        if deallocate and (reserved or unused) and not remaining and claim.status.allocation is not None:
            status["allocation"] = None
        if not status:
            take_reply(self._state, claim)
            return True
        if not self._may_write():
            return True  # the lease may have expired during the read
        body = {"metadata": {"resourceVersion": claim.metadata.resource_version}, "status": status}
        try:
            written = await self._client.patch(status_path, body, type=ResourceClaim)
        except ApiError as error:
            if error.status in (404, 409):
                return False
            raise
        assert written is not None
        # the watch may be slower than the next round, which must not use the released state
        take_reply(self._state, written)
        self.released += 1
        logger.info("resource claim %s: released%s", key, " and deallocated" if "allocation" in status else "")
        if "allocation" in status and self._may_write():
            await self._unprotect(path, written)
        return True

    async def _unprotect(self, path: str, claim: ResourceClaim) -> None:
        """Removes the finalizer. Errors are ignored, because a claim controller removes it, too."""
        meta = claim.metadata
        removal = {"$deleteFromPrimitiveList/finalizers": [FINALIZER]}
        body = {"metadata": {"resourceVersion": meta.resource_version, **removal}}
        try:
            written = await self._client.patch(path, body, kind="strategic", type=ResourceClaim)
        except (ApiError, Unreachable) as error:
            logger.debug("resource claim %s keeps its finalizer: %s", meta.name, error)
            return
        if written is not None and not meta.deletion_timestamp:
            take_reply(self._state, written)


def _is_pod(consumer: ClaimConsumer) -> bool:
    return not consumer.api_group and consumer.resource == "pods"
