# SPDX-License-Identifier: Apache-2.0
"""The number of units of extended resources that a node serves by devices: devices that match the resources' classes.

Free and used devices count, so the number is an upper bound, like allocatable. The filter decides if free devices
exist. A device with several allocations counts with all its shares. Source: docs/rules/dra.md 8, 11.
"""

from collections.abc import Mapping
from typing import Any

from koordpy.config.dra_settings import Dra
from koordpy.devices.dra.filters.claim_requests import Alternative, class_alternative
from koordpy.devices.dra.filters.device_matching import DeviceMatching
from koordpy.devices.dra.filters.device_shares import consumed_amounts
from koordpy.devices.dra.ledger.claim_ledger import ClaimView
from koordpy.devices.dra.ledger.extended_claims import CLASS_RESOURCE, resource_classes
from koordpy.devices.dra.ledger.offered_devices import DeviceOffers, OfferedDevice
from koordpy.pods.pod_info import PodInfo

UNLIMITED = 10**6
"""Number of shares of a device that no capacity limits. It is more than the pods of a node may request."""


def device_amounts(offers: DeviceOffers, node: Any) -> dict[str, int]:
    """Returns extended resource -> number of devices of its class that a node (with name and labels) reaches."""
    devices = offers.at(node).devices
    if not devices:
        return {}
    matching = DeviceMatching(offers)
    out: dict[str, int] = {}
    for resource, alternative in _class_requests(offers).items():
        number = sum(_shares(alternative, one) for one in devices if matching.selects(alternative, one) is True)
        if number:
            out[resource] = number
    return out


def _shares(alternative: Alternative, device: OfferedDevice) -> int:
    """Returns how often a device can be allocated for a request."""
    if not device.multi:
        return 1
    amounts = consumed_amounts(alternative, device)
    if amounts is None:
        return 0
    return min((int(device.capacity[name] // amount) for name, amount in amounts.items() if amount), default=UNLIMITED)


def _class_requests(offers: DeviceOffers) -> Mapping[str, Alternative]:
    """Returns extended resource -> a request for one device of its class."""
    found: Mapping[str, Alternative] | None = offers.memo.get(_class_requests)
    if found is None:
        by_class = {name: class_alternative(name, offers) for name in offers.classes}
        named = {resource: by_class[name] for resource, name in resource_classes(offers).items()}
        found = named | {f"{CLASS_RESOURCE}{name}": one for name, one in by_class.items()}
        offers.memo[_class_requests] = found
    return found


def served_by_devices(pod: PodInfo, view: ClaimView, dra: Dra) -> list[str]:
    """Returns the extended resources of a pod that map to a class, sorted; empty if the configuration excludes them."""
    return sorted(view.served_resources(pod.requests)) if dra.extended_resources else []
