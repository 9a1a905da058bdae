# SPDX-License-Identifier: Apache-2.0
"""Brings a process from its start to its first round: caches in sync, lease acquired, the last leader's Bindings seen.

A new leader must not plan on a cache that lacks the last Bindings of the previous leader, because it would assign their
capacity again. There are three cases:
- This process listed all pods after it had acquired the lease: the lists contain these Bindings.
- The previous leader stopped writing a while ago: the watch has shown its Bindings.
- Otherwise the new leader waits until its watch has caught up, at most a second.

Source: kube-parity.md 4.8 and 4.9.
"""

import asyncio
import contextlib
import logging

import msgspec

from koordpy.api.claim_objects import DeviceClass, ResourceClaim
from koordpy.devices.family_registry import setting_notes
from koordpy.engine.client.api_errors import ApiError, Unreachable
from koordpy.engine.client.api_replies import reached
from koordpy.engine.client.api_resources import PODS
from koordpy.engine.client.leader_lease import LeaderElector
from koordpy.engine.engine_context import Context
from koordpy.quota.quota_owners import uncounted

logger = logging.getLogger(__name__)

CATCH_UP_SECONDS = 1.0
"""Maximum wait of a new leader until its watch shows the last leader's Bindings."""
FREE_LEASE_SECONDS = 0.25
"""Maximum time to wait at the start for the lease. If this process acquires it in this time, it lists as the leader,
and need not wait for its watch later. Otherwise it fills its caches as a standby."""


class Takeover:
    """Brings one process from its start to its first round."""

    def __init__(self, context: Context, elector: LeaderElector | None) -> None:
        """elector: None without leader election, so that this process leads at once."""
        self._client, self._feeds, self._elector = context.client, context.feeds, elector
        self._clock, self._now, self._config = context.clock, context.now, context.settings.config
        self._listed_while_leading = True
        """True if the caches were filled after the lease was acquired, or if there is no leader election."""

    async def soon(self) -> None:
        """Waits at most `FREE_LEASE_SECONDS` for the lease. Called before the lists and watches start."""
        if self._elector is None:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._elector.acquired.wait(), FREE_LEASE_SECONDS)
        self._listed_while_leading = self._elector.acquired.is_set()

    async def synced(self) -> None:
        """Waits until the caches are in sync with the API server."""
        began = self._clock()
        await self._feeds.synced()
        sizes = self._feeds.state.sizes
        logger.info("in sync: %d nodes, %d pods, %.2f s", sizes["nodes"], sizes["pods"], self._clock() - began)
        quotas = self._feeds.state.quotas
        if text := uncounted(quotas.objects.values(), quotas.settings):
            logger.warning("%s", text)
        state = self._feeds.state
        objects = [one for kind in (DeviceClass, ResourceClaim) for one in state.objects_of(kind).values()]
        for text in setting_notes(objects, self._config):
            logger.info("%s", text)

    async def led(self) -> None:
        """Waits until this process leads and may plan."""
        if self._elector is not None:
            await self._elector.acquired.wait()
            if not self._listed_while_leading and self._elector.quiet_seconds < CATCH_UP_SECONDS:
                await self._catch_up()
        self._feeds.regroup(self._now())
        self._report_half_bound()

    async def _catch_up(self) -> None:
        """Waits until the watch shows every Binding of the previous leader, at most `CATCH_UP_SECONDS`."""
        try:
            page = await self._client.list_page(PODS.path(), type=msgspec.Raw, limit=1)
        except (ApiError, Unreachable) as error:
            logger.warning("could not read the current resourceVersion of pods: %s", error)
            await asyncio.sleep(CATCH_UP_SECONDS)
            return
        wanted = page.metadata.resource_version
        if not page.items:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_SECONDS):
                while not reached(self._feeds.version(PODS), wanted):  # noqa: ASYNC110 - not an event
                    await asyncio.sleep(0.02)

    def _report_half_bound(self) -> None:
        """Logs the gangs that the last leader has left with fewer bound members than their minimum."""
        for ref, tally, need in self._feeds.state.gangs.tallies():
            if tally.half_bound(need):
                text = "gang %s is half bound (%d of %d members): planned first"
                logger.warning(text, ref.key, tally.present, need)
