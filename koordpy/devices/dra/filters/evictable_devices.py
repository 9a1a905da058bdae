# SPDX-License-Identifier: Apache-2.0
"""Devices in use that evictions cannot free. They decide if a refusal can be resolved by evictions (dra.md 9)."""

from koordpy.cache.snapshot import Snapshot
from koordpy.devices.dra.filters.claim_refusal import may_be_evicted
from koordpy.devices.dra.ledger.device_objects import DeviceObjects, grant_of
from koordpy.devices.dra.ledger.device_usage import DeviceUsage
from koordpy.pods.claim_refs import CLAIMS


def lasting_usage(objects: DeviceObjects, snapshot: Snapshot) -> DeviceUsage | None:
    """Returns the devices in use that no eviction frees; None if no eviction frees any."""
    pods = {pod.uid: pod for pod in snapshot.pods.values() if CLAIMS in pod.asks and pod.bound}
    usage, freed = objects.usage.copy(), False
    for key in dict.fromkeys(key for uid in pods for key in objects.by_consumer.get(uid, ())):
        claim = objects.claims[key]
        if all(one.uid in pods and may_be_evicted(pods[one.uid]) for one in claim.status.reserved_for):
            freed = True
            assert claim.status.allocation is not None
            for granted in grant_of(claim.status.allocation):
                usage.change(granted, -1)
    return usage if freed else None
