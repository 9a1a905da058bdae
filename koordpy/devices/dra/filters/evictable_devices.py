# SPDX-License-Identifier: Apache-2.0
"""Devices in use that evictions cannot free, and claims that come free without any eviction.

The first decide if a refusal can be resolved by evictions (dra.md 9). The second are reserved for nominated pods.
"""

from koordpy.cache.snapshot import Snapshot
from koordpy.devices.dra.filters.claim_refusal import may_be_evicted
from koordpy.devices.dra.ledger.claim_book import claim_view
from koordpy.devices.dra.ledger.claim_ledger import ClaimLedger
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


def leaving_claims(snapshot: Snapshot, ledger: ClaimLedger) -> list[str]:
    """Returns the allocated claims with only terminating or deleted pods as consumers.

    Their devices come free, at the latest when koordpy releases the claim of a pod that is gone (dra.md 10).
    """
    staying = {
        pod.uid for pod in snapshot.pods.values() if CLAIMS in pod.asks and not pod.pod.metadata.deletion_timestamp
    }
    objects = claim_view(snapshot.families).objects
    return [
        key
        for key in dict.fromkeys(key for keys in objects.by_consumer.values() for key in keys)
        if key not in ledger.taken
        and ledger.allocation(key) is not None
        and all(one.resource == "pods" and one.uid not in staying for one in objects.claims[key].status.reserved_for)
    ]
