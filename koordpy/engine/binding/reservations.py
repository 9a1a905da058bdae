"""Resource claims before Bindings: the allocation that a plan chose and the pods' reservations (kube-parity.md 6).

One write a claim for all the pods of a unit that use it. Others reserve the same claims at the same time, so a conflict
is answered by reading the claim and looking again; only what contradicts the plan voids it.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

import msgspec

from koordpy.api.dra import Allocation, ResourceClaim
from koordpy.cluster.devices import DeviceId, consumer_of
from koordpy.cluster.selectors import term_matches
from koordpy.engine.apiserver.backoff import Backoff
from koordpy.engine.apiserver.client import ApiClient, ApiError, Body, Unreachable
from koordpy.engine.binding.claims import ClaimsFailed, PodClaims
from koordpy.engine.binding.replies import take_reply
from koordpy.engine.wakeups import Wake
from koordpy.engine.watching.feeds import Feeds
from koordpy.planning.filters.dra import MAX_CONSUMERS, resource_claims

logger = logging.getLogger(__name__)

FINALIZER = "resource.kubernetes.io/delete-protection"
"""Keeps an allocated claim, and so its devices, until the claim controller has taken the allocation back."""
MAX_TRIES = 5
POLL_SECONDS = 0.2
"""How often a claim is looked at that another pod has the say over: its allocation is a matter of one write."""


class DeviceReserver:
    """Allocates and reserves the resource claims of units. Lives on the event loop."""

    def __init__(
        self,
        client: ApiClient,
        feeds: Feeds,
        *,
        may_write: Callable[[], bool],
        timeout_seconds: float,
        settle_seconds: float,
    ) -> None:
        """`settle_seconds`: how long a write may still be carried out whose reply was lost."""
        self._client, self._feeds, self._state, self._may_write = client, feeds, feeds.state, may_write
        self._timeout_seconds = timeout_seconds
        self._unprotected = False
        self._settle_seconds = settle_seconds
        self._asking: set[asyncio.Task[None]] = set()

    async def reserve(self, pods: Sequence[PodClaims], *, obstacle: Callable[[], str]) -> None:
        """Writes the allocations planned for the pods and reserves every claim that they name.

        obstacle: why the unit cannot be bound any more, empty where it can. Raises ClaimsFailed; what was written by
        then stays, for the next plan goes on from there.
        """
        users: dict[str, list[PodClaims]] = {}
        for pod in pods:
            for key in resource_claims(pod.info):
                users.setdefault(key, []).append(pod)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                for key, of_claim in users.items():
                    await self._reserve(key, of_claim, obstacle)
        except TimeoutError:
            raise ClaimsFailed("timeout", "timed out waiting for resource claims") from None

    async def _reserve(self, key: str, pods: Sequence[PodClaims], obstacle: Callable[[], str]) -> None:
        claim, uid, tries = self._cached(key), "", 0
        while True:
            if why := obstacle():
                raise ClaimsFailed(why, f"resource claim {key} was not reserved: {why}")
            if claim is None or (uid and claim.metadata.uid != uid) or claim.metadata.deletion_timestamp:
                raise ClaimsFailed("void", f"resource claim {key} is gone")
            uid = claim.metadata.uid
            if self._waits(key, claim, pods):
                await asyncio.sleep(POLL_SECONDS)
                claim = self._cached(key)
                continue
            body = self._patch_of(key, claim, pods)
            if body is None:
                return
            if "allocation" in body["status"]:
                body["metadata"]["resourceVersion"] = await self._protect(key, claim)
                if why := obstacle():
                    raise ClaimsFailed(why, f"resource claim {key} was not reserved: {why}")
            devices = next((pod.devices[key] for pod in pods if key in pod.devices), None)
            if devices is not None and "allocation" in body["status"]:
                # the pod may be gone before the answer is here
                self._state.devices_in_writing(key, devices)
            try:
                written = await self._write(key, body, final=tries == MAX_TRIES)
            except (ClaimsFailed, asyncio.CancelledError):
                self._find_out(key)
                raise
            if written is not None:
                # the pod's watch may be quicker than the claims': the devices must not look free until then
                take_reply(self._state, written)
            self._state.devices_written(key)
            if written is not None:
                return
            tries += 1
            claim = await self._read(key)

    def _waits(self, key: str, claim: ResourceClaim, pods: Sequence[PodClaims]) -> bool:
        """Whether the claim is to be allocated with a pod of another unit."""
        if claim.status.allocation is not None or any(key in pod.devices for pod in pods):
            return False
        if not self._state.is_device_promised(key):
            raise ClaimsFailed("void", f"resource claim {key} was left by the pod that it was to be allocated with")
        return True

    def _patch_of(self, key: str, claim: ResourceClaim, pods: Sequence[PodClaims]) -> Body | None:
        """Merge patch of a claim's status; None where all is there. Raises ClaimsFailed where the plan is void."""
        status: dict[str, object] = {}
        allocation = claim.status.allocation
        for pod in pods:
            if key in pod.devices:
                planned = self._state.allocation(claim, pod.node, pod.devices[key])
                if allocation is None:
                    self._check_free(key, planned)
                    allocation = planned
                    status["allocation"] = msgspec.to_builtins(planned)
                elif _devices(allocation) != _devices(planned):
                    raise ClaimsFailed("conflict", f"resource claim {key} was allocated otherwise")
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
        if taken := self._state.allocated_devices & _devices(planned):
            raise ClaimsFailed("conflict", f"device {min(taken).device} is not free for resource claim {key} any more")

    def _is_available(self, allocation: Allocation, name: str) -> bool:
        selector, node = allocation.node_selector, self._state.node(name)
        if selector is None or node is None:
            return True
        return any(term_matches(term, name, node.labels) for term in selector.node_selector_terms)

    async def _protect(self, key: str, claim: ResourceClaim) -> str:
        """Sets the finalizer. Returns the version to go on from, which is the claim's where others wrote it."""
        version = claim.metadata.resource_version
        if self._unprotected or not self._may_write():
            return version
        # finalizers are a set, and the version makes sure of the claim
        body = {"metadata": {"resourceVersion": version, "finalizers": [FINALIZER]}}
        try:
            written = await self._client.patch(self._path(key), body, kind="strategic", type=ResourceClaim)
        except ApiError as error:
            if error.status == 403:
                logger.warning("resource claims are not protected from deletion while in use: %s", error)
                self._unprotected = True
                return version
            if error.status == 409:
                # the write that follows meets the same, and the claim is read anew
                return version
            raise ClaimsFailed(
                "conflict" if error.status == 404 else "write", f"resource claim {key}: {error}"
            ) from error
        except Unreachable as error:
            raise ClaimsFailed("write", f"resource claim {key}: {error}") from error
        assert written is not None
        return written.metadata.resource_version

    # -- calls --------------------------------------------------------------------------------------------------------

    async def _write(self, key: str, body: Body, *, final: bool) -> ResourceClaim | None:
        """The claim after a write; None where its version was not the one given."""
        if not self._may_write():
            raise ClaimsFailed("not_sent", f"resource claim {key} was not written: not the leader")
        try:
            return await self._client.patch(self._path(key, "status"), body, type=ResourceClaim)
        except ApiError as error:
            if error.status == 409 and not final:
                return None
            cause = "conflict" if error.status in (404, 409) else "write"
            raise ClaimsFailed(cause, f"resource claim {key}: {error}") from error
        except Unreachable as error:
            # it may be written all the same; then the next plan finds it so
            raise ClaimsFailed("write", f"resource claim {key}: {error}") from error

    def _find_out(self, key: str) -> None:
        """Reads a claim whose write may have been carried out, until it tells."""

        async def ask() -> None:
            backoff = Backoff(0.05, 2.0)
            # the write may still be on its way to the store
            await asyncio.sleep(self._settle_seconds)
            while self._may_write():
                try:
                    claim = await self._read(key)
                except ClaimsFailed:
                    await asyncio.sleep(backoff.next())
                    continue
                if claim is not None:
                    take_reply(self._state, claim)
                self._state.devices_written(key)
                # its devices may be free again
                self._feeds.queue.broadcast(Wake.DYNAMIC_DEVICE, "ClaimRead")
                return

        task = asyncio.create_task(ask(), name=f"what became of claim {key}")
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _read(self, key: str) -> ResourceClaim | None:
        try:
            return await self._client.get_or_none(self._path(key), type=ResourceClaim)
        except (ApiError, Unreachable) as error:
            raise ClaimsFailed("write", f"resource claim {key}: {error}") from error

    def _path(self, key: str, subresource: str = "") -> str:
        resource = self._feeds.resource_claims
        if resource is None:
            raise ClaimsFailed("void", "resource claims are not served any more")
        namespace, _, name = key.partition("/")
        return resource.path(namespace, name, subresource)

    def _cached(self, key: str) -> ResourceClaim | None:
        found = self._state.get(ResourceClaim, key)
        return found if isinstance(found, ResourceClaim) else None


def _devices(allocation: Allocation) -> frozenset[DeviceId]:
    return frozenset(DeviceId(one.driver, one.pool, one.device) for one in allocation.devices.results)
