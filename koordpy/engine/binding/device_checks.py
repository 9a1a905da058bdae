# SPDX-License-Identifier: Apache-2.0
"""Checks that planned devices are available: right before a claim's allocation is written, and once after all writes of
a unit (dra.md 12). Another scheduler may have allocated the devices, shares of them, or their counters in between.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from koordpy.api.claim_objects import ResourceClaim
from koordpy.devices.dra.ledger.claim_book import claim_book
from koordpy.devices.dra.ledger.device_book import DeviceBook
from koordpy.devices.dra.ledger.device_conflicts import first_conflict
from koordpy.devices.dra.ledger.device_objects import grant_of
from koordpy.engine.binding.claim_calls import ClaimCalls
from koordpy.engine.binding.volume_writes import ClaimsFailed
from koordpy.engine.client.api_replies import is_older, reached
from koordpy.engine.engine_context import Context
from koordpy.pods.claim_refs import Grant
from koordpy.pods.object_book import object_key

SEEN_SECONDS = 5.0
"""Time in which the watch is expected to deliver the written claims."""


class DeviceChecks:
    """Compares planned and written devices with the claims in the cache. Owned by the event loop."""

    def __init__(self, context: Context, calls: ClaimCalls, list_claims: Callable[[], Awaitable[None]]) -> None:
        """list_claims: reads all claims from the API server and stores them in the cache."""
        self._state, self._feeds, self._metrics = context.state, context.feeds, context.metrics
        self._calls, self._list_claims = calls, list_claims

    @property
    def _objects(self) -> DeviceBook:
        return claim_book(self._state.families).objects

    def check_planned(self, key: str, grant: Grant) -> None:
        """Raises ClaimsFailed if a planned device has left its slice since the plan, or is not free any more."""
        known = self._objects.offers.by_id
        if gone := [one.device.device for one in grant if one.device not in known]:
            raise ClaimsFailed("void", f"device {gone[0]} of resource claim {key} is not offered any more")
        found = first_conflict(self._objects, grant, lambda other: other != key)
        if found is not None:
            text = f"device {found.device.device} is not free for resource claim {key} any more"
            raise ClaimsFailed("conflict", text)

    async def check_written(self, written: Sequence[ResourceClaim]) -> None:
        """Raises ClaimsFailed if an earlier write of another scheduler leaves no room for one of the devices.

        The check runs after the watch has delivered our writes: it has then delivered every earlier write, too.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + SEEN_SECONDS
        while not all(self._is_seen(claim) for claim in written):
            if loop.time() >= end:
                await self._list_claims()
                break
            await asyncio.sleep(0.01)
        for claim in written:
            allocation, own = claim.status.allocation, object_key(claim)
            grant = grant_of(allocation) if allocation is not None else ()
            found = first_conflict(self._objects, grant, partial(self._is_earlier, claim))
            if found is not None and found.claims:
                self._metrics.claims.labels("conflict").inc()
                text = f"device {found.device.device} was allocated to claim {found.claims[0]} in the meantime"
                raise ClaimsFailed("conflict", f"resource claim {own}: {text}")

    def _is_earlier(self, claim: ResourceClaim, key: str) -> bool:
        """Returns whether another claim was written before a claim."""
        other, version = self._state.get(ResourceClaim, key), claim.metadata.resource_version
        return key != object_key(claim) and other is not None and is_older(other.metadata.resource_version, version)

    def _is_seen(self, claim: ResourceClaim) -> bool:
        """Returns whether the watch has delivered a written claim."""
        resource = self._calls.resource
        return resource is None or reached(self._feeds.version(resource), claim.metadata.resource_version)
