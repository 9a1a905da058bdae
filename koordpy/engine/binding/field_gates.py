# SPDX-License-Identifier: Apache-2.0
"""Detects DRA feature gates that are off in the API server, by fields that it dropped from a write (dra.md 12).

The API server does not list its gates, so the reply to each write is compared with the request. A gate counts as off
until the next discovery of API versions. Until then the planner refuses devices and requests that need the gate. If
this process lacks the RBAC permission to create claims, extended resources served by DRA are refused in the same way.
"""

import logging

from koordpy.api.claim_objects import Allocation, ResourceClaim
from koordpy.devices.dra.filters.gate_limits import CREATION, FIELDS
from koordpy.devices.dra.ledger.claim_book import claim_book
from koordpy.engine.client.api_resources import RESOURCE_CLAIMS
from koordpy.engine.engine_context import Context
from koordpy.engine.status.event_recorder import of_object
from koordpy.engine.status.scheduler_events import FEATURE_DISABLED
from koordpy.engine.wakeups import Wake

logger = logging.getLogger(__name__)

RIGHT_SECONDS = 60.0
"""Seconds after which a call is tried again that was refused for a missing RBAC permission."""


def dropped_fields(sent: Allocation, got: Allocation | None) -> list[str]:
    """Returns the fields of the sent allocation that the written one lacks, in the order of `FIELDS`."""
    results = got.devices.results if got is not None else []
    pairs = list(zip(sent.devices.results, results, strict=False))
    lost = {
        "shareID": any(a.share_id and not b.share_id for a, b in pairs),
        "consumedCapacity": any(a.consumed_capacity and not b.consumed_capacity for a, b in pairs),
        "bindingConditions": any(a.binding_conditions and not b.binding_conditions for a, b in pairs),
        "allocationTimestamp": bool(sent.allocation_timestamp) and not (got and got.allocation_timestamp),
        "tolerations": any(a.tolerations and not b.tolerations for a, b in pairs),
        "adminAccess": any(a.admin_access and not b.admin_access for a, b in pairs),
    }
    return [name for name in FIELDS if lost.get(name)]


class FieldGates:
    """The gates that are off. Owned by the event loop."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._off: dict[str, float] = {}
        """Name of a feature gate -> clock time until which it counts as off."""

    def report(self, fields: list[str], claim: ResourceClaim | None) -> None:
        """Records that the API server dropped fields, and reports each gate once. claim: object of the event; None for
        no event."""
        for field in fields:
            gate = FIELDS[field]
            if gate not in self._off:
                text = f"the API server dropped {field}: is {gate} on?"
                logger.warning("%s", text)
                resource = self._context.feeds.served.get(RESOURCE_CLAIMS)
                if claim is not None and resource is not None:
                    self._context.announcer.tell(FEATURE_DISABLED, of_object(resource, claim.metadata), text)
            self._close(gate, self._context.settings.rediscovery_seconds)

    def lack_creation(self) -> None:
        """Records that this process may not create claims for extended resources."""
        self._close(CREATION, min(RIGHT_SECONDS, self._context.settings.rediscovery_seconds))

    def refresh(self) -> None:
        """Forgets gates that have counted as off for long enough, so that the next write tries them again."""
        now = self._context.clock()
        over = [gate for gate, until in self._off.items() if until <= now]
        for gate in over:
            del self._off[gate]
        if over:
            self._publish()
            self._context.queue.broadcast(Wake.DYNAMIC_DEVICE, "FeatureGate")

    def _close(self, gate: str, seconds: float) -> None:
        self._off[gate] = self._context.clock() + seconds
        self._publish()

    def _publish(self) -> None:
        claim_book(self._context.state.families).gates_off = frozenset(self._off)
