# SPDX-License-Identifier: Apache-2.0
"""Allocates and reserves the ResourceClaims (DRA) of a unit before its Bindings (kube-parity.md 4.9, dra.md 12).

Each step is finished for all pods of the unit before the next step begins:

1. Create the claims for extended resources.
2. Set each claim's finalizer, then write its allocation and its reservations in one patch.
3. Compare the replies with the requests, to detect fields that the API server dropped.
4. Write the names of the created claims to the status of the pods.
5. Check that no other scheduler has allocated the same devices since the plan was made.
6. Wait for the binding conditions of devices.

Other processes write the same claims, so after a conflict the claim is read and checked again. The plan is void only
if it contradicts the claim as read. `claim_releases.py` undoes the writes of a void plan.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from koordpy.api.claim_objects import Allocation, ResourceClaim
from koordpy.api.counted_nouns import name_first
from koordpy.api.label_selectors import term_matches
from koordpy.api.times import rfc3339
from koordpy.devices.dra.ledger.claim_book import ClaimBook, claim_book
from koordpy.engine.binding.claim_calls import ClaimCalls, NotLeading, NotServed, take_reply
from koordpy.engine.binding.claim_needs import ClaimNeed, claim_needs
from koordpy.engine.binding.claim_releases import DeviceReleaser
from koordpy.engine.binding.device_checks import DeviceChecks
from koordpy.engine.binding.device_conditions import DeviceConditions
from koordpy.engine.binding.field_gates import FieldGates, dropped_fields
from koordpy.engine.binding.volume_writes import ClaimsFailed, PodClaims, obstacle_text
from koordpy.engine.client.api_client import Body
from koordpy.engine.client.api_errors import ApiError, Unreachable
from koordpy.engine.client.backoff import Backoff
from koordpy.engine.client.complaints import AGAIN_SECONDS
from koordpy.engine.engine_context import Context, begin
from koordpy.engine.wakeups import Wake
from koordpy.pods.claim_refs import MAX_CONSUMERS, DeviceId

logger = logging.getLogger(__name__)

MAX_RESERVE_TRIES = 5  # conflicts (409) of one claim before a plan is void
POLL_SECONDS = 0.2
"""Interval at which a claim is checked that the pod of another unit is about to allocate."""
T = TypeVar("T")


class DeviceReserver:
    """Allocates and reserves the resource claims of units. Owned by the event loop."""

    def __init__(self, context: Context, calls: ClaimCalls, releaser: DeviceReleaser, gates: FieldGates) -> None:
        self._feeds, self._state = context.feeds, context.state
        self._may_write, self._settings, self._metrics = context.may_write, context.settings, context.metrics
        self._calls, self._releaser, self._gates, self._now = calls, releaser, gates, context.now
        self._conditions = DeviceConditions(context)
        self._checks = DeviceChecks(context, calls, self._list_claims)
        self._clock = context.clock
        self._told: dict[tuple[str, str], float] = {}
        """(verb, resource) of a missing RBAC permission -> clock time of the last log line about it."""
        self._unprotected = False  # True if this process may not set the finalizer
        self._asking: set[asyncio.Task[None]] = set()

    @property
    def _book(self) -> ClaimBook:
        return claim_book(self._state.families)

    async def reserve(self, pods: Sequence[PodClaims], *, obstacle: Callable[[], str]) -> None:
        """Writes the planned allocations and reserves every claim that the pods use.

        obstacle: returns why the unit cannot be bound any more; empty if it can. Raises ClaimsFailed; claims that were
        written before the failure stay as they are until `DeviceReleaser` releases them.
        """
        needs = claim_needs(pods, self._state.gangs.upstream)
        try:
            async with asyncio.timeout(self._settings.config.filters.volume_binding.bind_timeout):
                await self._each(self._create, [need for need in needs if need.is_implicit])
                written = await self._each(lambda need: self._reserve(need, obstacle), needs)
                await self._each(self._name, [need for need in needs if need.is_implicit])
                await self._each(self._unname, [pod for pod in pods if _has_stale_status(pod)])
                await self._checks.check_written([claim for claim in written if claim is not None])
        except TimeoutError:
            named = name_first([need.key for need in needs if need.key] or ["to be created"])
            raise ClaimsFailed("timeout", f"timed out waiting for resource claims: {named}") from None
        try:
            await self._conditions.wait(needs, obstacle)
        except ClaimsFailed as error:
            if error.cause == "devices":
                self._releaser.useless |= {need.key for need in needs}
            raise

    async def _each(self, work: Callable[[Any], Awaitable[T]], items: Iterable[Any]) -> list[T]:
        """Does one step for several items in parallel. Raises the first error after all of them have ended."""
        ended = await asyncio.gather(*map(work, items), return_exceptions=True)
        for outcome in ended:
            if isinstance(outcome, BaseException):
                raise outcome
        return ended  # type: ignore[return-value]

    # -- claims for extended resources --------------------------------------------------------------------------------

    async def _create(self, need: ClaimNeed) -> None:
        """Creates the claim for a pod's extended resources. First deletes claims that an earlier attempt left."""
        info, grant = need.pods[0].info, need.grant
        assert grant is not None
        await self._releaser.delete_leftovers(info)
        self._check_may_write(need.key)
        try:
            made = await self._calls.create(info, self._book.objects.extended(info.pod, grant).devices)
        except (ApiError, Unreachable, NotServed) as error:
            if _is_unsure(error):
                self._releaser.unsure[info.uid] = info.namespace
            if isinstance(error, ApiError) and error.is_missing_right:
                self._gates.lack_creation()
            what = f"resource claim for the extended resources of {info.key}"
            raise self._failed(error, what, "create", "resourceclaims") from None
        self._calls.take_new(made)
        need.key = f"{info.namespace}/{made.metadata.name}"

    async def _name(self, need: ClaimNeed) -> None:
        """Writes the name of the created claim to the pod's status, and the container that each request serves."""
        info, grant = need.pods[0].info, need.grant
        assert grant is not None
        mappings = [
            {"containerName": one.container, "resourceName": one.resource, "requestName": one.request}
            for one in self._book.objects.extended(info.pod, grant).mappings
        ]
        body = {"resourceClaimName": need.key.partition("/")[2], "requestMappings": mappings}
        await self._write_pod(need.pods[0], body)

    async def _unname(self, pod: PodClaims) -> None:
        """Removes the name of a deleted claim from the status of a pod that needs no such claim on its planned node."""
        await self._write_pod(pod, None)

    async def _write_pod(self, pod: PodClaims, body: Body | None) -> None:
        self._check_may_write(f"of {pod.info.key}")
        try:
            written = await self._calls.write_pod(pod.info, body)
        except (ApiError, Unreachable, NotServed) as error:
            raise self._failed(error, f"status of pod {pod.info.key}", "patch", "pods/status") from None
        if body is not None and written.status.extended_resource_claim_status is None:
            made = self._state.get(ResourceClaim, f"{pod.info.namespace}/{body['resourceClaimName']}")
            self._gates.report(["extendedResourceClaimStatus"], made)
            raise ClaimsFailed("write", f"pod {pod.info.key}: the API server dropped extendedResourceClaimStatus")

    # -- allocation and reservation -----------------------------------------------------------------------------------

    async def _reserve(self, need: ClaimNeed, obstacle: Callable[[], str]) -> ResourceClaim | None:
        """Allocates one claim, and reserves it for its consumers. Returns the claim as allocated; None if it was
        allocated before."""
        uid = ""
        while True:
            if why := obstacle():
                raise ClaimsFailed(why, f"resource claim {need.key} was not reserved: {obstacle_text(why)}")
            async with self._calls.lock(need.key):
                claim = self._existing(need, self._state.get(ResourceClaim, need.key), uid)
                if not self._waits(need, claim):
                    return await self._write(need, claim, obstacle)
            uid = claim.metadata.uid
            await asyncio.sleep(POLL_SECONDS)

    def _existing(self, need: ClaimNeed, claim: ResourceClaim | None, uid: str) -> ResourceClaim:
        """Returns the claim. uid: the uid that it must have; empty for any. Raises ClaimsFailed if it was deleted."""
        if claim is None or (uid and claim.metadata.uid != uid) or claim.metadata.deletion_timestamp:
            raise ClaimsFailed("void", f"claim {need.key} got deleted in the meantime")
        return claim

    def _waits(self, need: ClaimNeed, claim: ResourceClaim) -> bool:
        """Returns True if the plan of another unit allocates the claim. Raises ClaimsFailed if no plan allocates it."""
        if claim.status.allocation is not None or need.granting is not None:
            return False
        if need.key not in self._book.grants():
            raise ClaimsFailed("void", f"resource claim {need.key}: the pod that was to allocate it was not bound")
        return True

    async def _write(self, need: ClaimNeed, claim: ResourceClaim, obstacle: Callable[[], str]) -> ResourceClaim | None:
        """Writes the allocation and reservations of a claim; repeats the write after a conflict. Returns the claim as
        allocated; None if it was allocated before."""
        key, uid, tries, share_id = need.key, claim.metadata.uid, 0, cache(lambda i: str(uuid.uuid4()))
        while True:
            body = self._patch_of(need, claim, share_id)
            if body is None:
                return None
            allocates = "allocation" in body["status"]
            if allocates:
                body["metadata"]["resourceVersion"] = await self._protect(key, claim)
                if why := obstacle():
                    raise ClaimsFailed(why, f"resource claim {key} was not reserved: {obstacle_text(why)}")
                assert need.grant is not None
                self._checks.check_planned(key, need.grant)
                # the pod may be deleted before the reply arrives
                self._book.write(need.plan_key, need.grant)
                self._releaser.allocated[key] = uid
            try:
                written = await self._send(key, body, final=tries == MAX_RESERVE_TRIES)
            except (ClaimsFailed, asyncio.CancelledError):
                self._read_later(need)
                raise
            if written is not None:
                # the pods' watch may be faster than the claims' watch: the devices must not look free until then
                take_reply(self._state, written)
            self._book.written(need.plan_key)
            if written is not None:
                self._metrics.claims.labels("allocated" if allocates else "reserved").inc()
                if allocates:
                    self._compare(key, body["status"]["allocation"], written)
                return written if allocates else None
            self._metrics.claims.labels("conflict").inc()
            tries += 1
            claim = self._existing(need, await self._read(key), uid)

    def _patch_of(self, need: ClaimNeed, claim: ResourceClaim, share_id: Callable[[int], str]) -> dict[str, Any] | None:
        """Returns the patch of a claim's status; None if no write is needed. Raises ClaimsFailed if the plan is
        void."""
        status: dict[str, object] = {}
        allocation, granting, key = claim.status.allocation, need.granting, need.key
        if granting is not None:
            assert need.grant is not None
            planned = self._book.objects.allocation(claim, granting.node, need.grant, share_id)
            if any(one.binding_conditions for one in planned.devices.results):
                planned = structs.replace(planned, allocation_timestamp=rfc3339(self._now()))
            if allocation is None:
                self._checks.check_planned(key, need.grant)
                allocation = planned
                status["allocation"] = msgspec.to_builtins(planned)
            elif _devices(allocation) != _devices(planned):
                raise ClaimsFailed("conflict", f"claim {key} got allocated elsewhere in the meantime")
        assert allocation is not None
        for pod in need.pods:
            if not self._is_available(allocation, pod.node):
                raise ClaimsFailed("void", f"resource claim {key} is not available on {pod.node}")
        reserved = claim.status.reserved_for
        known = {consumer.uid for consumer in reserved}
        new = [consumer for consumer in need.consumers if consumer.uid not in known]
        if len(reserved) + len(new) > MAX_CONSUMERS:
            raise ClaimsFailed("conflict", f"resource claim {key} is in use by too many pods")
        if new:
            status["reservedFor"] = msgspec.to_builtins([*reserved, *new])
        return {"metadata": {"resourceVersion": claim.metadata.resource_version}, "status": status} if status else None

    def _compare(self, key: str, sent: object, written: ResourceClaim) -> None:
        """Raises ClaimsFailed if the API server dropped fields of an allocation."""
        if fields := dropped_fields(msgspec.convert(sent, Allocation), written.status.allocation):
            self._gates.report(fields, written)
            raise ClaimsFailed("write", f"claim {key}: the API server dropped {', '.join(fields)}")

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
        try:
            return (await self._calls.protect(key, version)).metadata.resource_version
        except ApiError as error:
            if error.status == 403:
                logger.warning("resource claims are not protected from deletion while in use: %s", error)
                self._unprotected = True
            elif error.status != 409:
                raise self._failed(error, f"resource claim {key}", "patch", "resourceclaims") from None
            # after a conflict the next write conflicts, too, and then the claim is read again
            return version
        except (Unreachable, NotServed) as error:
            raise self._failed(error, f"resource claim {key}", "patch", "resourceclaims") from None

    # -- calls --------------------------------------------------------------------------------------------------------

    async def _list_claims(self) -> None:
        """Lists all claims and stores them in the cache, because the watch is late."""
        try:
            for claim in await self._calls.list_claims():
                self._calls.take_new(claim)
        except (ApiError, Unreachable, NotServed) as error:
            raise self._failed(error, "resource claims", "list", "resourceclaims") from None

    def _check_may_write(self, what: str) -> None:
        if not self._may_write():
            raise ClaimsFailed("not_sent", f"resource claim {what} was not written: not the leader")

    async def _send(self, key: str, body: Body, *, final: bool) -> ResourceClaim | None:
        """Patches the status of a claim. Returns the written claim; None after a conflict (409)."""
        self._check_may_write(key)
        try:
            return await self._calls.write_status(key, body)
        except (ApiError, Unreachable, NotServed) as error:
            if isinstance(error, ApiError) and error.status == 409 and not final:
                return None
            raise self._failed(error, f"resource claim {key}", "patch", "resourceclaims/status") from None

    def _failed(self, error: Exception, what: str, verb: str, resource: str) -> ClaimsFailed:
        """Returns the exception for a failed write. verb, resource: the RBAC permission that the write needs."""
        if isinstance(error, ApiError) and error.is_missing_right:
            self._tell_right(verb, resource, error)
            return ClaimsFailed("write", f"{what}: no right to {verb} {resource}: {error.message}")
        if isinstance(error, NotLeading):
            return ClaimsFailed("not_sent", f"{what} was not written: {error}")
        cause = "conflict" if isinstance(error, ApiError) and error.status in (404, 409) else "write"
        return ClaimsFailed("void" if isinstance(error, NotServed) else cause, f"{what}: {error}")

    def _tell_right(self, verb: str, resource: str, error: ApiError) -> None:
        """Logs a missing RBAC permission, at once and then every ten minutes while calls are refused."""
        now = self._clock()
        if now - self._told.get((verb, resource), -AGAIN_SECONDS) >= AGAIN_SECONDS:
            self._told[verb, resource] = now
            logger.error(
                "no right to %s %s: grant it (docs/install.md, section 6); pods with claims that need it wait. %s",
                verb, resource, error.message,
            )  # fmt: skip

    def _read_later(self, need: ClaimNeed) -> None:
        """Starts to read a claim after a write that may have taken effect, until a read succeeds."""
        key, plan_key = need.key, need.plan_key

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
                self._book.written(plan_key)
                # its devices may be free now
                self._feeds.queue.broadcast(Wake.DYNAMIC_DEVICE, "ClaimRead")
                return

        begin(ask(), f"read of claim {key}", self._asking)

    async def _read(self, key: str) -> ResourceClaim | None:
        try:
            return await self._calls.read(key)
        except (ApiError, Unreachable, NotServed) as error:
            raise self._failed(error, f"resource claim {key}", "get", "resourceclaims") from None


def _is_unsure(error: Exception) -> bool:
    """Returns whether a failed write may still take effect."""
    return error.sent if isinstance(error, Unreachable) else isinstance(error, ApiError) and error.status >= 500


def _has_stale_status(pod: PodClaims) -> bool:
    """Returns whether a pod's status names a claim for extended resources although the plan needs none."""
    has_none = not any(need.is_implicit for need in claim_needs([pod], {}))
    return has_none and pod.info.pod.status.extended_resource_claim_status is not None


def _devices(allocation: Allocation) -> frozenset[DeviceId]:
    return frozenset(DeviceId(one.driver, one.pool, one.device) for one in allocation.devices.results)
