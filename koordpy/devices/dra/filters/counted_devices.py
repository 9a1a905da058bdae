# SPDX-License-Identifier: Apache-2.0
"""The amounts that quotas count for resource claims, and the totals of these resources. Source: docs/rules/dra.md 11.

The devices of a class count under the resource of its mapping (`dra.deviceClassMappings`), else under its
`extendedResourceName`, else not at all. If a mapping names a capacity, amounts of that capacity count instead of
devices. An allocated claim counts its allocated devices. A claim without an allocation counts the most that its
requests may take. Admin access never counts.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from math import ceil
from typing import NamedTuple

from koordpy.api.claim_objects import ResourceClaim
from koordpy.api.quantity import parse_exact
from koordpy.config.dra_settings import Dra
from koordpy.devices.dra.filters.claim_requests import Alternative, claim_spec, class_alternative
from koordpy.devices.dra.filters.device_matching import DeviceMatching
from koordpy.devices.dra.filters.device_shares import can_hold, consumed_amounts, provided
from koordpy.devices.dra.ledger.offered_devices import CounterKey, DeviceOffers, DevicePool, OfferedDevice, ReachingNode
from koordpy.pods.claim_refs import Grant
from koordpy.pods.resource_amounts import Amounts, add_amounts

MOST_STEPS, MOST_DEPTH = 20_000, 500
"""MOST_STEPS: steps of the search for devices that the counters of a pool can serve together; then the best set found
counts. MOST_DEPTH: devices of one search; further devices do not count."""


class _Counted(NamedTuple):
    """The resource under which a class counts."""

    name: str
    capacity: str
    """Name of a capacity: its amounts are counted. Empty if devices are counted."""


class DeviceCount:
    """Implements `ClaimCount`."""

    def __init__(self, dra: Dra) -> None:
        self._mapped = {
            name: _Counted(one.name, one.capacity)
            for one in dra.device_class_mappings
            for name in one.device_class_names
        }

    def _classes(self, offers: DeviceOffers) -> Mapping[str, _Counted]:
        """Returns class -> the resource under which its devices count, of the classes that exist."""
        found: Mapping[str, _Counted] | None = offers.memo.get(_Counted)
        if found is None:
            stated = {name: one.spec.extended_resource_name for name, one in offers.classes.items()}
            own = {name: _Counted(resource, "") for name, resource in stated.items() if resource}
            found = own | {name: one for name, one in self._mapped.items() if name in offers.classes}
            offers.memo[_Counted] = found
        return found

    # -- claims --------------------------------------------------------------------------------------------------------

    def allocated_amounts(self, claim: ResourceClaim, grant: Grant, offers: DeviceOffers) -> Amounts:
        """Implements `ClaimCount.allocated_amounts`."""
        classes = self._classes(offers)
        class_of = {
            name: exact.device_class_name for one in claim.spec.devices.requests for name, exact in one.alternatives
        }
        out: dict[str, Fraction] = {}
        for one in grant:
            counted = classes.get(class_of.get(one.request, ""))
            if counted is None or one.admin:
                continue
            amount: Fraction | None = Fraction(1)
            if counted.capacity:
                device = offers.by_id.get(one.device)
                driver = one.device.driver
                known = {_full_name(name, driver): parse_exact(text) for name, text in one.consumed or ()}
                if one.consumed is None and device is not None:
                    known = dict(device.capacity)
                amount = known.get(_full_name(counted.capacity, driver))
            if amount:
                out[counted.name] = out.get(counted.name, Fraction(0)) + amount
        return {name: ceil(amount) for name, amount in out.items()}

    def requested_amounts(self, claim: ResourceClaim, offers: DeviceOffers, nodes: Collection[ReachingNode]) -> Amounts:
        """Implements `ClaimCount.requested_amounts`."""
        spec = claim_spec(claim.spec.devices, offers)
        of_nodes: object
        known: Amounts
        of_nodes, known = offers.memo.get((DeviceCount, spec.content), (None, {}))
        if of_nodes is not nodes:
            known = {}
            for request in spec.requests:
                most: Amounts = {}
                for one in request.alternatives:
                    for name, amount in self._most(one, offers, nodes).items():
                        most[name] = max(most.get(name, 0), amount)
                add_amounts(known, most)
            offers.memo[DeviceCount, spec.content] = nodes, known
        return known

    def _most(self, alternative: Alternative, offers: DeviceOffers, nodes: Collection[ReachingNode]) -> Amounts:
        """Returns the most that a request may take."""
        counted = self._classes(offers).get(alternative.class_name)
        if counted is None or alternative.admin:
            return {}
        matching = DeviceMatching(offers)
        number = alternative.count
        devices: list[OfferedDevice] = []
        if alternative.all or counted.capacity:
            devices = [one for one in _usable(offers) if matching.selects(alternative, one) is True]
            devices = [one for one in devices if provided(can_hold, alternative, one)]
        if alternative.all:
            number = _most_on_a_node(devices, nodes)
        amount = Fraction(1)
        if counted.capacity:
            amount = max((_share(alternative, one, counted.capacity) for one in devices), default=Fraction(0))
        total = ceil(amount * number)
        return {counted.name: total} if total else {}

    # -- totals --------------------------------------------------------------------------------------------------------

    def totals(
        self, offers: DeviceOffers, nodes: Collection[ReachingNode], served: Mapping[str, Collection[str]]
    ) -> Amounts:
        """Implements `ClaimCount.totals`."""
        matching, out = DeviceMatching(offers), dict[str, Fraction]()
        by_name: dict[_Counted, list[Alternative]] = {}
        for name, counted in sorted(self._classes(offers).items()):
            by_name.setdefault(counted, []).append(class_alternative(name, offers))
        names = {node.name for node in nodes}
        for counted, classes in by_name.items():
            excluded = served.get(counted.name, ())
            for pool in offers.pools.values():
                if not pool.is_complete or pool.fault:
                    continue
                inside = [
                    (device, _value(device, counted.capacity))
                    for device in pool.devices
                    if (device.node in names or (not device.node and any(map(device.reaches, nodes))))
                    and device.node not in excluded
                    and any(matching.selects(one, device) is True for one in classes)
                ]
                out[counted.name] = out.get(counted.name, Fraction(0)) + _largest_sum(inside, pool)
        return {name: ceil(total) for name, total in out.items() if total}


def _full_name(name: str, driver: str) -> str:
    return name if "/" in name else f"{driver}/{name}"


def _usable(offers: DeviceOffers) -> Iterable[OfferedDevice]:
    """Yields the devices of complete and valid pools."""
    return (device for pool in offers.pools.values() if pool.is_complete and not pool.fault for device in pool.devices)


def _most_on_a_node(devices: Sequence[OfferedDevice], nodes: Collection[ReachingNode]) -> int:
    """Returns the largest number of devices that one of the nodes reaches."""
    local: dict[str, int] = {}
    for one in devices:
        if one.node:
            local[one.node] = local.get(one.node, 0) + 1
    wide = [one for one in devices if not one.node]
    return max((local.get(node.name, 0) + sum(one.reaches(node) for one in wide) for node in nodes), default=0)


def _share(alternative: Alternative, device: OfferedDevice, capacity: str) -> Fraction:
    """Returns the amount of a capacity that a device gives to a request: that of a share, or the whole value."""
    if not device.multi:
        return _value(device, capacity)
    amounts = provided(consumed_amounts, alternative, device)
    return amounts.get(_full_name(capacity, device.id.driver), Fraction(0)) if amounts is not None else Fraction(0)


def _value(device: OfferedDevice, capacity: str) -> Fraction:
    """Returns the amount of a capacity of a device; 1 for an empty name."""
    return device.capacity.get(_full_name(capacity, device.id.driver), Fraction(0)) if capacity else Fraction(1)


def _largest_sum(devices: Sequence[tuple[OfferedDevice, Fraction]], pool: DevicePool) -> Fraction:
    """Returns the largest sum of values over devices of a pool that its counters can serve at the same time.

    All devices without counters count. Other devices are searched in groups that share no counter set with each other.
    """
    total = sum((value for device, value in devices if not device.consumes), Fraction(0))
    groups: list[tuple[set[str], list[tuple[OfferedDevice, Fraction]]]] = []
    for device, value in devices:
        if device.consumes:
            sets, members = {key[0] for key, _ in device.consumes}, [(device, value)]
            for group in [one for one in groups if one[0] & sets]:
                groups.remove(group)
                sets, members = sets | group[0], group[1] + members
            groups.append((sets, members))
    return total + sum((_best_sum(members, pool) for _, members in groups), Fraction(0))


def _best_sum(devices: Sequence[tuple[OfferedDevice, Fraction]], pool: DevicePool) -> Fraction:
    """Returns the largest sum of values over devices on shared counters.

    Searches depth first; devices that draw least on the counters come first.
    """

    def drawn(device: OfferedDevice) -> Fraction:
        parts = ((amount, pool.counters.get(key, Fraction(0))) for key, amount in device.consumes)
        return sum((amount / most if most else amount for amount, most in parts), Fraction(0))

    order = sorted(devices, key=lambda one: (-one[1] / (drawn(one[0]) or 1), one[0].id))[:MOST_DEPTH]
    rest = [Fraction(0)]
    for _, value in reversed(order):
        rest.append(rest[-1] + value)
    rest.reverse()
    left: dict[CounterKey, Fraction] = dict(pool.counters)
    best, steps = Fraction(0), 0

    def search(at: int, total: Fraction) -> None:
        nonlocal best, steps
        best, steps = max(best, total), steps + 1
        if at == len(order) or total + rest[at] <= best or steps > MOST_STEPS:
            return
        device, value = order[at]
        if all(left.get(key, 0) >= amount for key, amount in device.consumes):
            for key, amount in device.consumes:
                left[key] -= amount
            search(at + 1, total + value)
            for key, amount in device.consumes:
                left[key] += amount
        search(at + 1, total)

    search(0, Fraction(0))
    return best
