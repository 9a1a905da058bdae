"""Resource claims after Bindings that failed: reservations are taken back, and allocations made for nobody else.

A claim that stays allocated ties its pod to one node, and keeps devices from others (kube-parity.md 4.9 and 6). Three
things let one go: a Binding that failed for good; a verdict that the pod fits nowhere (kube-scheduler's PostFilter does
the same); a pod that is gone. So whatever a leader left half done, the next one finishes or releases.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

import msgspec

from koordpy.api.dra import ClaimConsumer, ResourceClaim
from koordpy.cluster.pods import PodInfo
from koordpy.engine.apiserver.backoff import Backoff
from koordpy.engine.apiserver.client import ApiClient, ApiError, Unreachable
from koordpy.engine.apiserver.reading import read_pod
from koordpy.engine.apiserver.resources import Resource
from koordpy.engine.binding.claims import PodClaims
from koordpy.engine.binding.replies import take_reply
from koordpy.engine.binding.reservations import FINALIZER
from koordpy.engine.watching.feeds import Feeds
from koordpy.planning.filters.dra import resource_claims

logger = logging.getLogger(__name__)

MAX_TRIES = 6
ASKED_AGAIN_SWEEPS = 20
"""After so many a pod that was there is asked for again."""


class DeviceReleaser:
    """Takes reservations and allocations back. Lives on the event loop; one claim at a time."""

    def __init__(
        self,
        client: ApiClient,
        feeds: Feeds,
        *,
        may_write: Callable[[], bool],
        sweep_seconds: float,
    ) -> None:
        """`sweep_seconds`: how often reservations are looked through for pods that are gone."""
        self.released = 0
        self._client, self._feeds, self._state, self._may_write = client, feeds, feeds.state, may_write
        self._sweep_seconds = sweep_seconds
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeps = 0
        self._alive: set[str] = set()
        """uids of pods that are not known but there all the same: finished ones."""

    async def release(self, pods: Sequence[PodClaims]) -> None:
        """Takes back what was written for pods that were not bound; tried again where the API server fails.

        A claim that others use too keeps its allocation, and so does one that was allocated before.
        """
        users: dict[str, list[PodClaims]] = {}
        for pod in pods:
            now = self._state.pod(pod.info.key)
            if now is not None and now.uid == pod.info.uid and now.pod.spec.node_name:
                # another bound it: it needs its claims there
                continue
            for key in resource_claims(pod.info):
                users.setdefault(key, []).append(pod)
        for key, of_claim in users.items():
            ours = any(key in pod.devices for pod in of_claim)
            await self._let_go(key, {pod.info.uid for pod in of_claim}, deallocate=ours, unused=False)

    def unstick(self, pods: Sequence[PodInfo]) -> None:
        """Pods of a unit fit nowhere: claims of theirs alone that tie them to a node are deallocated, by and by."""
        uids = {pod.uid for pod in pods}
        stuck = dict.fromkeys(key for pod in pods for key in resource_claims(pod) if self._ties(key, uids))
        if stuck and self._may_write():
            task = asyncio.create_task(self._unstick(list(stuck), uids), name="claims of unschedulable pods")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def run(self) -> None:
        """Looks for reservations of pods that are gone, until cancelled."""
        try:
            while True:
                try:
                    await self.sweep()
                except (ApiError, Unreachable) as error:
                    logger.warning("reservations of pods that are gone: %s", error)
                await asyncio.sleep(self._sweep_seconds)
        finally:
            for task in self._tasks:
                task.cancel()

    async def sweep(self) -> None:
        """Releases what is reserved for pods that are gone. Raises as the client does."""
        if self._sweeps % ASKED_AGAIN_SWEEPS == 0:
            self._alive.clear()
        self._sweeps += 1
        for claim in self._feeds.claims():
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
                await self._let_go(f"{namespace}/{claim.metadata.name}", gone, deallocate=True)

    # -- inside -------------------------------------------------------------------------------------------------------

    async def _is_gone(self, namespace: str, consumer: ClaimConsumer) -> bool:
        pod = await read_pod(self._client, namespace, consumer.name)
        if pod is not None and pod.metadata.uid == consumer.uid:
            self._alive.add(consumer.uid)
            return False
        return True

    def _ties(self, key: str, uids: set[str]) -> bool:
        """Whether a claim is allocated to some nodes only, and in use by none but these pods."""
        claim = self._state.get(ResourceClaim, key)
        if not isinstance(claim, ResourceClaim) or self._state.is_device_promised(key):
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
                await self._let_go(key, uids, deallocate=True)

    async def _let_go(self, key: str, uids: set[str], *, deallocate: bool, unused: bool = True) -> None:
        """Takes reservations out of a claim; with `deallocate` its allocation, too, where none is left.

        Without `unused` only where one of these reservations was there: allocation and reservation are one write.
        """
        backoff = Backoff(0.05, 1.0)
        async with self._turn:
            while self._may_write() and (resource := self._feeds.resource_claims) is not None:
                try:
                    if await self._try(resource, key, uids, deallocate=deallocate, unused=unused):
                        return
                except (ApiError, Unreachable) as error:
                    if backoff.tries + 1 >= MAX_TRIES:
                        logger.warning("resource claim %s was not released: %s", key, error)
                        return
                await asyncio.sleep(backoff.next())

    async def _try(self, resource: Resource, key: str, uids: set[str], *, deallocate: bool, unused: bool) -> bool:
        """One read and write; False where another wrote in between."""
        namespace, _, name = key.partition("/")
        path, status_path = resource.path(namespace, name), resource.path(namespace, name, "status")
        claim = await self._client.get_or_none(path, type=ResourceClaim)
        if claim is None:
            return True
        kept = [consumer for consumer in claim.status.reserved_for if consumer.uid not in uids]
        status: dict[str, object] = {}
        reserved = len(kept) < len(claim.status.reserved_for)
        if reserved:
            status["reservedFor"] = msgspec.to_builtins(kept) or None
        if deallocate and (reserved or unused) and not kept and claim.status.allocation is not None:
            status["allocation"] = None
        if not status:
            take_reply(self._state, claim)
            return True
        if not self._may_write():
            return True  # the answer may have taken longer than the lease lasts
        body = {"metadata": {"resourceVersion": claim.metadata.resource_version}, "status": status}
        try:
            written = await self._client.patch(status_path, body, type=ResourceClaim)
        except ApiError as error:
            if error.status in (404, 409):
                return False
            raise
        assert written is not None
        # the watch may be slower than the next round, which must not plan on what is gone
        take_reply(self._state, written)
        self.released += 1
        logger.info("resource claim %s: released%s", key, " and deallocated" if "allocation" in status else "")
        if "allocation" in status and self._may_write():
            await self._unprotect(path, written)
        return True

    async def _unprotect(self, path: str, claim: ResourceClaim) -> None:
        """Takes the finalizer away; a claim controller does so too, so failing is no harm."""
        meta = claim.metadata
        gone = {"$deleteFromPrimitiveList/finalizers": [FINALIZER]}
        body = {"metadata": {"resourceVersion": meta.resource_version, **gone}}
        try:
            written = await self._client.patch(path, body, kind="strategic", type=ResourceClaim)
        except (ApiError, Unreachable) as error:
            logger.debug("resource claim %s keeps its finalizer: %s", meta.name, error)
            return
        if written is not None and not meta.deletion_timestamp:
            take_reply(self._state, written)


def _is_pod(consumer: ClaimConsumer) -> bool:
    return not consumer.api_group and consumer.resource == "pods"
