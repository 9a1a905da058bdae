# SPDX-License-Identifier: Apache-2.0
"""Devices of claims as numbers of each node, so that a search for moves can prove that none helps (dra.md 10).

Only devices of single nodes that are taken whole are counted. Constraints, selectors, taints, counters and links are
left out, so the numbers never exclude moves that help.
"""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from koordpy.cache.plan_draft import Draft
from koordpy.devices.dra.filters.claim_requests import ClaimSpec, claim_spec
from koordpy.devices.dra.ledger.claim_book import claim_ledger, claim_view
from koordpy.devices.dra.ledger.device_objects import grant_of
from koordpy.devices.family_moves import MovedAmounts
from koordpy.pods.pod_info import PodInfo


def count_moved_devices(members: Iterable[PodInfo], moved: Iterable[PodInfo], draft: Draft) -> MovedAmounts | None:
    """Returns the devices of members and moved pods; None if a device can be shared or reaches several nodes."""
    objects, ledger = claim_view(draft.snapshot.families).objects, claim_ledger(draft.ledgers)
    nodes = [objects.offers.at(node).devices for node in draft.snapshot.nodes]
    if any(not one.node or one.facts.allow_multiple_allocations for devices in nodes for one in devices):
        return None
    used = ledger.usage.whole
    free = np.array([sum(one.id not in used for one in devices) for devices in nodes], dtype=np.int64)
    requested, freed = Counter[str](), Counter[str]()
    pending = list(members)
    naming = Counter(key for pod in pending for key in ledger.claims_of(pod))
    for pod in pending:
        own = [key for key in ledger.claims_of(pod) if naming[key] == 1 and key not in ledger.taken]
        for key in own:
            if ledger.allocation(key) is None:
                requested[pod.key] += _least(claim_spec(objects.claims[key].spec.devices, objects.offers))
    for pod in moved:
        for key in ledger.claims_of(pod):
            claim = objects.claims[key]
            allocation, consumers = claim.status.allocation, claim.status.reserved_for
            # the pods of a claim move together, so the first one has its devices
            if allocation is not None and consumers and consumers[0].uid == pod.uid:
                freed[pod.key] += sum(not one.admin for one in grant_of(allocation))
                named = any(f"{pod.namespace}/{one.name}" == key for one in objects.names_of(pod.pod))
                spec = claim_spec(claim.spec.devices, objects.offers)
                requested[pod.key] += _least(spec) if named else 0
    return MovedAmounts(free, requested, freed) if requested or freed else None


def _least(spec: ClaimSpec) -> int:
    """Returns the smallest number of whole devices that a claim takes."""
    return sum(
        min((0 if one.admin else 1 if one.all else one.count for one in request.alternatives), default=0)
        for request in spec.requests
    )
