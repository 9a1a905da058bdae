# SPDX-License-Identifier: Apache-2.0
"""Whether consolidation may move a running pod that has allocated claims. Source: docs/rules/dra.md 10."""

from collections.abc import Iterable

from koordpy.cache.plan_draft import Draft
from koordpy.devices.dra.filters.pod_claims import DraftClaims
from koordpy.devices.dra.ledger.claim_book import claim_ledger
from koordpy.devices.dra.ledger.device_objects import grant_of
from koordpy.pods.claim_refs import Grant, Granted


def move_fault(claims: DraftClaims, node: int, grants: Iterable[Grant], draft: Draft) -> str:
    """Returns why a bound pod may not be moved to a node (position) with new devices; empty if it may.

    The draft has evicted the pod. Each of its claims must be free there, so that only moved pods have reserved
    it. The slowest link of the devices must not become slower.
    """
    pod, objects = claims.pod, claims.objects
    held = objects.by_consumer.get(pod.uid, ())
    ledger = claim_ledger(draft.ledgers)
    for key in held:
        if key not in ledger.freed:
            return f"{pod.key}: claim {key} is reserved for a pod that is not moved"
    allocations = (objects.claims[key].status.allocation for key in held)
    before = [one for allocation in allocations if allocation is not None for one in grant_of(allocation)]
    old = draft.snapshot.index[pod.node]
    if _slowest(claims, node, [one for grant in grants for one in grant]) < _slowest(claims, old, before):
        return f"{pod.key}: the links of its devices would be slower"
    return ""


def _slowest(claims: DraftClaims, node: int, grant: Iterable[Granted]) -> int:
    """Returns kB/s of the slowest link between devices of one driver, by its class over all nodes."""
    taken = {one.device for one in grant if not one.admin and one.consumed is None}
    devices = claims.offers.at(claims.node(node)).devices
    return claims.order(node).compared(sum(1 << i for i, one in enumerate(devices) if one.id in taken))[0]
