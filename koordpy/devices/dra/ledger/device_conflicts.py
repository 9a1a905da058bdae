# SPDX-License-Identifier: Apache-2.0
"""Whether planned devices are still available when an allocation is written: other schedulers may have allocated them,
shares of them, or devices that draw on the same counters (dra.md 4, 5, 12).

Only claims on the planned devices, and on devices of their counter sets, are read.
"""

from collections.abc import Callable
from typing import NamedTuple

from koordpy.api.claim_objects import ResourceClaim
from koordpy.devices.dra.ledger.device_book import DeviceBook
from koordpy.devices.dra.ledger.device_objects import grant_of
from koordpy.devices.dra.ledger.device_usage import DeviceUsage
from koordpy.devices.dra.ledger.offered_devices import DeviceOffers
from koordpy.pods.claim_refs import DeviceId, Grant, Granted


class Conflict(NamedTuple):
    """A planned device that is not available."""

    device: DeviceId
    claims: tuple[str, ...]
    """Claims (`namespace/name`) that use the device, else those that use its counters."""


def first_conflict(book: DeviceBook, grant: Grant, counts: Callable[[str], bool]) -> Conflict | None:
    """Returns the first device of an allocation that other claims leave no room for; None if there is none.

    counts: returns True for a claim (`namespace/name`) of which the allocation counts.
    """
    offers = book.offers
    usage = DeviceUsage(offers)
    users: dict[DeviceId, tuple[str, ...]] = {}
    for device in _related(offers, grant):
        users[device] = tuple(key for key in book.users(device) if counts(key))
        for key in users[device]:
            for one in _taken(book, key):
                if one.device == device:
                    usage.change(one, 1)
    for one in grant:
        if one.admin:
            continue
        if not _is_free(usage, offers, one):
            return Conflict(one.device, users[one.device] or tuple(key for some in users.values() for key in some))
        usage.change(one, 1)
    return None


def _related(offers: DeviceOffers, grant: Grant) -> dict[DeviceId, None]:
    """Returns the devices of an allocation, and all devices that draw on the same counter sets."""
    found: dict[DeviceId, None] = {one.device: None for one in grant if not one.admin}
    for key in list(found):
        device = offers.by_id.get(key)
        if device is None or not device.consumes:
            continue
        sets = {name for (name, _), _ in device.consumes}
        found |= {one.id: None for one in device.pool.devices if any(name in sets for (name, _), _ in one.consumes)}
    return found


def _taken(book: DeviceBook, key: str) -> Grant:
    claim: ResourceClaim | None = book.get(ResourceClaim, key)
    allocation = claim.status.allocation if claim is not None else None
    return grant_of(allocation) if allocation is not None else ()


def _is_free(usage: DeviceUsage, offers: DeviceOffers, granted: Granted) -> bool:
    device = granted.device
    if device in usage.whole or (granted.consumed is None and device in usage.shares):
        return False
    offered = offers.by_id.get(device)
    if offered is None:
        return True
    if not usage.is_used(device) and not usage.has_counters(offered):
        return False
    if granted.consumed is None:
        return True
    usage.change(granted, 1)
    amounts = usage.shared(device)
    fits = all(amounts.get(name, 0) <= value for name, value in offered.capacity.items())
    usage.change(granted, -1)
    return fits
