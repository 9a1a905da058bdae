# SPDX-License-Identifier: Apache-2.0
"""Waits until the drivers of allocated devices report that the devices are ready (binding conditions, dra.md 12).

A ResourceSlice may name binding conditions of a device. The driver, or a controller of the fabric, sets them in the
claim's `status.devices`. Pods are bound when all conditions are True. The plan is void if a failure condition is True,
or if `dra.bindingTimeout` passes.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from koordpy.api.claim_objects import ResourceClaim
from koordpy.devices.dra.ledger.binding_conditions import failed_condition, is_ready
from koordpy.engine.binding.claim_needs import ClaimNeed
from koordpy.engine.binding.volume_writes import TICK_SECONDS, ClaimsFailed, obstacle_text
from koordpy.engine.engine_context import Context
from koordpy.engine.status.scheduler_events import CONDITIONS_PENDING


def has_conditions(claim: ResourceClaim | None) -> bool:
    """Returns whether a claim is allocated to devices with binding conditions."""
    allocation = claim.status.allocation if claim is not None else None
    return allocation is not None and any(one.binding_conditions for one in allocation.devices.results)


class DeviceConditions:
    """Waits for the devices of units. Owned by the event loop."""

    def __init__(self, context: Context) -> None:
        self._context, self._state = context, context.state
        self._seconds = context.settings.config.dra.binding_timeout
        self._events: dict[str, set[asyncio.Event]] = {}
        """Key of a claim -> one asyncio event per unit that waits for it, set whenever the claim changes."""
        context.feeds.listeners.claimed.append(self._changed)

    def _changed(self, key: str) -> None:
        for event in self._events.get(key, ()):
            event.set()

    async def wait(self, needs: Sequence[ClaimNeed], obstacle: Callable[[], str]) -> None:
        """Waits until the devices of all claims are ready. Raises ClaimsFailed.

        obstacle: returns why the unit cannot be bound any more; empty if it can.
        """
        waiting = [need for need in needs if has_conditions(self._state.get(ResourceClaim, need.key))]
        if not waiting:
            return
        for pod in {pod.info.key: pod for need in waiting for pod in need.pods}.values():
            note = f"waiting for binding conditions for device on node {pod.node}"
            self._context.announcer.tell(CONDITIONS_PENDING, pod.info, note)
        event, keys = asyncio.Event(), [need.key for need in waiting]
        for key in keys:
            self._events.setdefault(key, set()).add(event)
        try:
            async with asyncio.timeout(self._seconds):
                while not self._are_ready(keys):
                    event.clear()
                    if why := obstacle():
                        raise ClaimsFailed(why, f"given up while waiting for devices: {obstacle_text(why)}")
                    with suppress(TimeoutError):
                        async with asyncio.timeout(TICK_SECONDS):
                            await event.wait()
        except TimeoutError:
            raise ClaimsFailed("devices", "device binding timeout") from None
        finally:
            for key in set(keys):
                events = self._events[key]
                events.discard(event)
                if not events:
                    del self._events[key]

    def _are_ready(self, keys: Iterable[str]) -> bool:
        ready = []
        for key in keys:
            claim = self._state.get(ResourceClaim, key)
            if claim is None:
                raise ClaimsFailed("void", f"claim {key} got deleted in the meantime")
            if (failed := failed_condition(claim)) is not None:
                text = f'binding failed: reason={failed.reason}, message="{failed.message}"'
                raise ClaimsFailed("devices", f"claim {claim.metadata.name} {text}")
            ready.append(is_ready(claim))
        return all(ready)
