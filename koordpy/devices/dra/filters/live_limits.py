# SPDX-License-Identifier: Apache-2.0
"""Devices that a live cluster offers, but that koordpy does not allocate there yet (dra.md 9).

Binding conditions are not waited for, and shares are lost if the API server drops their fields. `simulate` allocates
such devices.
"""

from collections.abc import Callable

from koordpy.devices.dra.ledger.offered_devices import DeviceOffers, NodeDevices
from koordpy.pods.claim_refs import DeviceId

UNWRITTEN = "unsupported: devices with binding conditions or several allocations"


def unwritten_devices(offers: DeviceOffers) -> frozenset[DeviceId]:
    """Returns the devices with binding conditions, and those that several claims may share."""
    found: frozenset[DeviceId] | None = offers.memo.get(UNWRITTEN)
    if found is None:
        facts = ((device_id, device.facts) for device_id, device in offers.by_id.items())
        found = frozenset(key for key, one in facts if one.binding_conditions or one.allow_multiple_allocations)
        offers.memo[UNWRITTEN] = found
    return found


def find_live_limit(offers: DeviceOffers, here: NodeDevices, is_enough: Callable[[], bool]) -> str:
    """Returns the reason if only devices that are not allocated live would suffice; else empty.

    here: the devices that the node reaches. is_enough: returns True if all of them would suffice.
    """
    unwritten = unwritten_devices(offers)
    return UNWRITTEN if any(one.id in unwritten for one in here.devices) and is_enough() else ""
