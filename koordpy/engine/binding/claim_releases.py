# SPDX-License-Identifier: Apache-2.0
"""Releases resource claims (DRA) of pods that are not bound, so that nothing stays reserved for them (dra.md 12).

To release a claim, the pod's entry in `reservedFor` is removed. If no consumer remains, the allocation is removed as
well, because an allocated claim ties its pod to a node and occupies devices. A claim for extended resources is deleted.

Claims are released after a failed write or Binding, after a verdict that the pod fits nowhere (as kube-scheduler's
PostFilter), and periodically (`sweep`). The sweep covers deleted pods, finished pods, and unbound pods that a failed
release or an earlier leader left with reservations. kube-controller-manager releases claims of finished pods, too.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec

from koordpy.api.claim_objects import ClaimConsumer, ResourceClaim
from koordpy.api.objects import Pod
from koordpy.api.pod_groups import UpstreamPodGroup
from koordpy.devices.dra.ledger.claim_book import ClaimBook, claim_book
from koordpy.devices.dra.ledger.extended_claims import MADE
from koordpy.engine.binding.claim_calls import ClaimCalls, NotServed, take_reply
from koordpy.engine.binding.claim_needs import ClaimNeed, claim_needs
from koordpy.engine.binding.field_gates import FieldGates
from koordpy.engine.binding.volume_writes import PodClaims
from koordpy.engine.client.api_errors import ApiError, Unreachable
from koordpy.engine.client.backoff import Backoff
from koordpy.engine.engine_context import Context, begin
from koordpy.pods.claim_refs import claim_group, resource_claims
from koordpy.pods.object_book import object_key
from koordpy.pods.pod_info import PodInfo

logger = logging.getLogger(__name__)

MAX_RELEASE_TRIES = 6  # failed calls before a release is given up; the sweep tries again
ASKED_AGAIN_SWEEPS = 20
"""Number of sweeps after which `_alive` is cleared, so that finished pods are read from the API server again."""
IDLE_SECONDS = 30.0
"""Time after which a claim that stays reserved for an unbound pod without a plan is released."""
FINISHED_SECONDS = 60.0
"""Time after which a claim that stays reserved for a finished pod is released. kube-controller-manager releases it
earlier, unless it is down."""


class DeviceReleaser:
    """Releases reservations and allocations of claims. Owned by the event loop."""

    def __init__(self, context: Context, calls: ClaimCalls, gates: FieldGates) -> None:
        self.released = 0
        """Number of claims that were released or deleted."""
        self.unsure: dict[str, str] = {}
        """uid of a pod -> its namespace, if a claim may have been created for it, but the reply was lost."""
        self.allocated: dict[str, str] = {}
        """Key of a claim that this process has allocated -> uid of the claim."""
        self.useless: set[str] = set()
        """Keys of claims with a device that failed or did not become ready in time. They are deallocated, even if
        another scheduler allocated them."""
        self._client, self._feeds, self._state = context.client, context.feeds, context.state
        self._calls, self._metrics, self._clock = calls, context.metrics, context.clock
        self._may_write, self._settings, self._gates = context.may_write, context.settings, gates
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeps = 0
        self._alive: set[str] = set()
        """uids of pods that exist although they are not in the cache, and have not ended."""
        self._ended: dict[str, float] = {}
        """uid of a finished pod with a reservation -> clock time at which a sweep first saw it."""
        self._idle: dict[tuple[str, str], float] = {}
        """(key of a claim, uid of an unbound pod without a plan) -> clock time at which a sweep first saw the claim
        reserved for the pod."""

    @property
    def _book(self) -> ClaimBook:
        return claim_book(self._state.families)

    async def release(self, pods: Sequence[PodClaims]) -> None:
        """Releases claims that were written for pods that were not bound. Repeats failed calls.

        A claim with other users, or one that was allocated before this plan, keeps its allocation.
        """
        # a pod that another process has bound needs its claims
        known = ((pod, self._state.pod(pod.info.key)) for pod in pods)
        unbound = [pod for pod, now in known if now is None or now.uid != pod.info.uid or not now.pod.spec.node_name]
        await self._find_unsure({pod.info.uid for pod in unbound})
        work: list[Awaitable[None]] = []
        for need in claim_needs(unbound, self._state.gangs.upstream):
            if need.is_implicit:
                work.append(self.delete_leftovers(need.pods[0].info))
            elif uids := self._consumers_of(need, {pod.info.uid for pod in unbound}):
                ours = need.granting is not None or self._is_own(need.key) or need.key in self.useless
                self.useless.discard(need.key)
                work.append(self._release_claim(need.key, uids, deallocate=ours, unused=False, planned=True))
        await asyncio.gather(*work)

    def unstick(self, pods: Sequence[PodInfo]) -> None:
        """Starts to free unschedulable pods of claims that tie them to nodes.

        Claims that only these pods use are deallocated. Claims for their extended resources that an earlier attempt
        left are deleted.
        """
        if not self._may_write():
            return
        uids = self._unit_consumers(pods)
        named = (key for pod in pods for key in resource_claims(pod, self._group(pod)))
        if stuck := dict.fromkeys(key for key in named if self._ties(key, uids)):
            begin(self._unstick(list(stuck), uids), "claims of unschedulable pods", self._tasks)
        for pod in pods:
            if self._book.objects.implicit.get(pod.uid) and self._state.assumed_node(pod.key) is None:
                begin(self.delete_leftovers(pod), f"claims left of {pod.key}", self._tasks)

    async def run(self) -> None:
        """Releases reservations of deleted and unbound pods periodically, until cancelled."""
        try:
            while True:
                try:
                    await self.sweep()
                except (ApiError, Unreachable) as error:
                    logger.warning("could not release claims of deleted pods: %s", error)
                await asyncio.sleep(self._settings.sweep_seconds)
        finally:
            for task in self._tasks:
                task.cancel()

    async def sweep(self) -> None:
        """Releases claims of deleted pods, of pods that stay finished, and of pods that stay unbound without a plan.

        Raises as the client does.
        """
        if self._sweeps % ASKED_AGAIN_SWEEPS == 0:
            self._alive.clear()
        self._sweeps += 1
        self._gates.refresh()
        self.allocated = {key: uid for key, uid in self.allocated.items() if self._is_own(key)}
        resource, now = self._calls.resource, self._clock()
        idle: dict[tuple[str, str], float] = {}
        users: set[str] = set()
        for claim in self._feeds.objects(resource) if resource is not None else ():
            key = object_key(claim)
            if MADE in claim.metadata.annotations:
                users.update(owner.uid for owner in claim.metadata.owner_references)
                await self._sweep_implicit(key, claim)
                continue
            gone: set[str] = set()
            for consumer in claim.status.reserved_for:
                if not _is_pod(consumer):
                    continue
                users.add(consumer.uid)
                pod = self._state.pod(f"{claim.metadata.namespace}/{consumer.name}")
                if pod is None or pod.uid != consumer.uid or pod.finished:
                    if await self._has_left(claim.metadata.namespace, consumer.name, consumer.uid):
                        gone.add(consumer.uid)
                elif self._is_idle(pod):
                    since = idle[key, pod.uid] = self._idle.get((key, pod.uid), now)
                    if now - since >= IDLE_SECONDS:
                        gone.add(consumer.uid)
            if gone:
                await self._release_claim(key, gone, deallocate=True)
        self._idle = idle
        self._ended = {uid: since for uid, since in self._ended.items() if uid in users}

    async def delete_leftovers(self, pod: PodInfo) -> None:
        """Deletes the claims for a pod's extended resources. Repeats failed calls."""
        for key in list(self._book.objects.implicit.get(pod.uid, ())):
            await self._repeat(key, partial(self._try_delete, key, pod.uid))

    # -- which claims -------------------------------------------------------------------------------------------------

    def _group(self, pod: PodInfo) -> UpstreamPodGroup | None:
        return claim_group(pod.pod, self._state.gangs.upstream)

    def _is_idle(self, pod: PodInfo) -> bool:
        """Returns whether a pod of this scheduler is pending without a plan that is being carried out."""
        return pod.pending and self._state.assumed_node(pod.key) is None

    def _is_own(self, key: str) -> bool:
        """Returns whether this process has allocated a claim."""
        claim = self._state.get(ResourceClaim, key)
        return claim is not None and self.allocated.get(key) == claim.metadata.uid

    def _consumers_of(self, need: ClaimNeed, unbound: set[str]) -> set[str]:
        """Returns uids of the consumers to remove from a claim. A PodGroup is not removed while another of its pods is
        bound or assumed."""
        if need.group is None:
            return {consumer.uid for consumer in need.consumers}
        return set() if self._is_group_used(object_key(need.group), unbound) else {need.group.metadata.uid}

    def _is_group_used(self, key: str, without: set[str]) -> bool:
        pods = (pod for pod in self._state.gangs.of_upstream(key) if pod.uid not in without)
        return any(pod.bound for pod in pods)

    def _unit_consumers(self, pods: Sequence[PodInfo]) -> set[str]:
        """Returns the uids of the pods, and of their PodGroups that have no other bound pod."""
        uids = {pod.uid for pod in pods}
        groups = {object_key(group): group for pod in pods if (group := self._group(pod)) is not None}
        return uids | {group.metadata.uid for key, group in groups.items() if not self._is_group_used(key, uids)}

    def _ties(self, key: str, uids: set[str]) -> bool:
        """Returns True if a claim is allocated to some nodes only, and these pods are its only users."""
        claim = self._state.get(ResourceClaim, key)
        if claim is None or key in self._book.grants():
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

    async def _has_left(self, namespace: str, name: str, uid: str) -> bool:
        """Returns whether a pod is deleted, or has been finished for `FINISHED_SECONDS`. Most finished pods are not in
        the cache, so the pod is read."""
        if uid in self._alive:
            return False
        if uid in self._ended:
            return self._clock() - self._ended[uid] >= FINISHED_SECONDS
        pod = await self._client.read_pod(namespace, name)
        if pod is None or pod.metadata.uid != uid:
            return True
        if _has_ended(pod):
            self._ended[uid] = self._clock()
        else:
            self._alive.add(uid)
        return False

    async def _sweep_implicit(self, key: str, claim: ResourceClaim) -> None:
        """Deletes a claim for extended resources if its pod is deleted, stays finished, is unbound without a plan, or
        is bound with another claim."""
        owner = claim.metadata.controller
        if owner is None:
            return
        pod = self._state.pod(f"{claim.metadata.namespace}/{owner.name}")
        if pod is None or pod.uid != owner.uid or pod.finished:
            unused = await self._has_left(claim.metadata.namespace, owner.name, owner.uid)
        elif pod.bound:
            used = pod.pod.status.extended_resource_claim_status
            confirmed = self._state.assumed_node(pod.key) is None
            unused = confirmed and used is not None and used.get("resourceClaimName") != claim.metadata.name
        else:
            unused = self._is_idle(pod)
        if unused:
            await self._repeat(key, partial(self._try_delete, key, owner.uid))

    async def _find_unsure(self, uids: set[str]) -> None:
        """Lists claims of the pods' namespaces, to find claims that were created although the reply was lost."""
        for namespace in dict.fromkeys(self.unsure[uid] for uid in uids if uid in self.unsure):
            # the write may still take effect
            await asyncio.sleep(self._settings.settle_seconds)
            try:
                for claim in await self._calls.list_claims(namespace):
                    owner = claim.metadata.controller
                    if owner is not None and owner.uid in uids and MADE in claim.metadata.annotations:
                        self._calls.take_new(claim)
            except (ApiError, Unreachable) as error:
                # the watch delivers these claims later, and the sweep deletes them
                logger.debug("claims of %s were not listed: %s", namespace, error)
        for uid in uids:
            self.unsure.pop(uid, None)

    # -- calls --------------------------------------------------------------------------------------------------------

    async def _release_claim(
        self, key: str, uids: set[str], *, deallocate: bool, unused: bool = True, planned: bool = False
    ) -> None:
        """Removes reservations from a claim; with `deallocate` also the allocation, if no reservation remains.

        unused: True to deallocate a claim also if none of these consumers is in its `reservedFor`. planned: True if the
        pods are still assumed, because their plan is being withdrawn; else a claim of an assumed pod is left as it is.
        """

        async def attempt() -> bool:
            if not planned and any(self._is_planned(key, uid) for uid in uids):
                return True
            return await self._try(key, uids, deallocate=deallocate, unused=unused)

        await self._repeat(key, attempt)

    def _is_planned(self, key: str, uid: str) -> bool:
        """Returns whether a consumer of a claim is a pod with a plan that is being carried out."""
        claim = self._state.get(ResourceClaim, key)
        names = [one.name for one in claim.status.reserved_for if one.uid == uid] if claim is not None else []
        return any(self._state.assumed_node(f"{key.partition('/')[0]}/{name}") is not None for name in names)

    async def _repeat(self, key: str, attempt: Callable[[], Awaitable[bool]]) -> None:
        """Tries to change a claim until it succeeds, leadership ends, or too many calls have failed."""
        backoff = Backoff(0.05, 1.0)
        while self._may_write():
            try:
                async with self._calls.lock(key):
                    if await attempt():
                        return
            except NotServed:
                return
            except (ApiError, Unreachable) as error:
                if backoff.tries + 1 >= MAX_RELEASE_TRIES:
                    logger.warning("resource claim %s was not released: %s", key, error)
                    return
            await asyncio.sleep(backoff.next())

    async def _try_delete(self, key: str, pod_uid: str) -> bool:
        if await self._calls.delete_implicit(key, pod_uid):
            self._count(key, "deleted")
        return True

    def _count(self, key: str, what: str) -> None:
        self.released += 1
        self._metrics.claims.labels("undone").inc()
        logger.info("resource claim %s: %s", key, what)

    async def _try(self, key: str, uids: set[str], *, deallocate: bool, unused: bool) -> bool:
        """Reads and patches the claim once. Returns False if another writer changed the claim in between."""
        claim = await self._calls.read(key)
        if claim is None:
            return True
        remaining = [consumer for consumer in claim.status.reserved_for if consumer.uid not in uids]
        status: dict[str, object] = {}
        reserved = len(remaining) < len(claim.status.reserved_for)
        if reserved:
            status["reservedFor"] = msgspec.to_builtins(remaining) or None
        if deallocate and (reserved or unused) and not remaining and claim.status.allocation is not None:
            status["allocation"] = status["devices"] = None
        if not status:
            take_reply(self._state, claim)
            return True
        if not self._may_write():
            return True  # the lease may have expired during the read
        body = {"metadata": {"resourceVersion": claim.metadata.resource_version}, "status": status}
        try:
            written = await self._calls.write_status(key, body)
        except ApiError as error:
            if error.status in (404, 409):
                return False
            raise
        # the watch may be slower than the next round, which must not use the released state
        take_reply(self._state, written)
        self._count(key, "released and deallocated" if "allocation" in status else "released")
        if "allocation" in status and self._may_write():
            await self._unprotect(key, written)
        return True

    async def _unprotect(self, key: str, claim: ResourceClaim) -> None:
        """Removes the finalizer. Errors are ignored, because the claim controller also removes the finalizer."""
        meta = claim.metadata
        try:
            written = await self._calls.unprotect(key, resourceVersion=meta.resource_version)
        except (ApiError, Unreachable, NotServed) as error:
            logger.debug("resource claim %s keeps its finalizer: %s", meta.name, error)
            return
        if not meta.deletion_timestamp:
            take_reply(self._state, written)


def _has_ended(pod: Pod) -> bool:
    """Returns whether a pod is finished and none of its containers may be running.

    A kubelet unprepares the devices of a pod before it reports the pod as finished. If another writer has set the
    phase, the statuses of containers still show that they run.
    """
    status = pod.status
    containers = (*status.container_statuses, *status.init_container_statuses)
    may_run = any(one.container_id and (one.state is None or one.state.terminated is None) for one in containers)
    return status.phase in ("Succeeded", "Failed") and not may_run


def _is_pod(consumer: ClaimConsumer) -> bool:
    return not consumer.api_group and consumer.resource == "pods"
