# SPDX-License-Identifier: Apache-2.0
"""Devices in use: taken whole, or by shares; and the amounts that they draw on the counters which a pool's devices
share.

`DeviceUsage` adds and removes the allocations of claims, each in O(devices of the allocation). Results with admin
access use nothing. A device that has left its slice stays in use by its name, and draws nothing on counters.
Sources: dra.md 1, 4, 5.
"""

from collections.abc import Mapping
from fractions import Fraction

from koordpy.api.quantity import parse_exact
from koordpy.devices.dra.ledger.offered_devices import CounterKey, DeviceOffers, OfferedDevice
from koordpy.pods.claim_refs import DeviceId, Granted

NOTHING_SHARED: Mapping[str, Fraction] = {}


class DeviceUsage:
    """Devices and counters in use. Mutable."""

    def __init__(self, offers: DeviceOffers) -> None:
        self._offers = offers
        self.whole: dict[DeviceId, int] = {}
        """Device -> number of allocations that take it whole; above 1 only by a mistake of other schedulers."""
        self.shares: dict[DeviceId, int] = {}
        """Device -> number of its shares."""
        self.amounts: dict[DeviceId, dict[str, Fraction]] = {}
        """Device -> capacity by its name with a domain -> sum over its shares."""
        self.counters: dict[tuple[str, str, CounterKey], Fraction] = {}
        """(driver, pool, counter) -> amount that devices in use draw."""

    def copy(self) -> "DeviceUsage":
        """Returns an independent copy."""
        made = DeviceUsage(self._offers)
        made.whole, made.shares, made.counters = self.whole.copy(), self.shares.copy(), self.counters.copy()
        made.amounts = {device: own.copy() for device, own in self.amounts.items()}
        return made

    def is_used(self, device: DeviceId) -> bool:
        """Returns whether a device is taken whole or has a share."""
        return device in self.whole or device in self.shares

    def change(self, granted: Granted, sign: int) -> None:
        """Adds one device of an allocation (sign 1), or removes it (-1)."""
        if granted.admin:
            return
        device = granted.device
        before = self.is_used(device)
        if granted.consumed is None:
            _count(self.whole, device, sign)
        else:
            _count(self.shares, device, sign)
            own = self.amounts.setdefault(device, {})
            for name, amount in granted.consumed:
                full = name if "/" in name else f"{device.driver}/{name}"
                own[full] = own.get(full, Fraction(0)) + sign * parse_exact(amount)
            if device not in self.shares:
                del self.amounts[device]
        if before != self.is_used(device):
            self._draw(device, sign)

    def _draw(self, device: DeviceId, sign: int) -> None:
        """Adds what a device draws on the counters of its pool, or removes it."""
        offered = self._offers.by_id.get(device)
        for key, amount in offered.consumes if offered is not None else ():
            counter = device.driver, device.pool, key
            self.counters[counter] = self.counters.get(counter, Fraction(0)) + sign * amount

    def has_counters(self, device: OfferedDevice) -> bool:
        """Returns whether the counters that a device draws on have enough left; overdrawn ones have not."""
        driver, pool = device.id.driver, device.id.pool
        return all(
            self.counters.get((driver, pool, key), 0) + amount <= device.pool.counters.get(key, 0)
            for key, amount in device.consumes
        )

    def shared(self, device: DeviceId) -> Mapping[str, Fraction]:
        """Returns capacity -> amount that the shares of a device consume."""
        return self.amounts.get(device, NOTHING_SHARED)


def _count(numbers: dict[DeviceId, int], device: DeviceId, sign: int) -> None:
    numbers[device] = numbers.get(device, 0) + sign
    if not numbers[device]:
        del numbers[device]
