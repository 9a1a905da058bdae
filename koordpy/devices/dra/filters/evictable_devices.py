# SPDX-License-Identifier: Apache-2.0
"""Devices in use that evictions cannot free. They decide if a refusal can be resolved by evictions (dra.md 9)."""

from collections.abc import Iterable
from dataclasses import dataclass

from koordpy.cache.snapshot import Snapshot
from koordpy.devices.dra.filters.claim_refusal import may_be_evicted
from koordpy.devices.dra.ledger.device_objects import DeviceObjects, grant_of
from koordpy.devices.dra.ledger.device_usage import DeviceUsage
from koordpy.pods.claim_refs import CLAIMS


@dataclass(frozen=True, slots=True)
class LastingUsage:
    """The devices in use after the eviction of all pods that may be evicted."""

    usage: DeviceUsage
    """Must not be changed."""
    freed: frozenset[str]
    """Claims (`namespace/name`) that lose their devices; not empty."""


def lasting_usage(objects: DeviceObjects, snapshot: Snapshot) -> LastingUsage | None:
    """Returns the devices in use that no eviction frees; None if no eviction frees any."""
    pods = {pod.uid: pod for pod in snapshot.pods.values() if CLAIMS in pod.asks and pod.bound}
    usage, freed = objects.usage.copy(), list[str]()
    for key in dict.fromkeys(key for uid in pods for key in objects.by_consumer.get(uid, ())):
        claim = objects.claims[key]
        if all(one.uid in pods and may_be_evicted(pods[one.uid]) for one in claim.status.reserved_for):
            freed.append(key)
            _change(usage, objects, [key], -1)
    return LastingUsage(usage, frozenset(freed)) if freed else None


def usage_with(usage: DeviceUsage, objects: DeviceObjects, claims: Iterable[str], sign: int = 1) -> DeviceUsage:
    """Returns a copy of `usage` to which the devices of allocated claims are added (sign 1), or from which they are
    removed (-1)."""
    made = usage.copy()
    _change(made, objects, claims, sign)
    return made


def _change(usage: DeviceUsage, objects: DeviceObjects, claims: Iterable[str], sign: int) -> None:
    for key in claims:
        allocation = objects.claims[key].status.allocation
        assert allocation is not None, "the claim has devices"
        for granted in grant_of(allocation):
            usage.change(granted, sign)
