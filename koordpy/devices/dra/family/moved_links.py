# SPDX-License-Identifier: Apache-2.0
"""Compares the links between the devices of a moved pod with those before (dra.md 10).

The slowest pair of devices of one driver counts, by link classes over all nodes. Shares and devices for admin access
have no links.
"""

from collections.abc import Iterable, Mapping

from koordpy.cache.plan_draft import Draft
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.dra.filters.pod_claims import DraftClaims
from koordpy.devices.dra.ledger.claim_book import claim_ledger
from koordpy.devices.dra.ledger.device_objects import grant_of
from koordpy.devices.family_round import Placed
from koordpy.pods.claim_refs import Grant, implicit_key
from koordpy.pods.pod_info import PodInfo


def slower_nodes(
    places: Placed, given: Mapping[str, Mapping[str, Grant]], draft: Draft, config: KoordpyConfiguration
) -> set[int]:
    """Returns the nodes (positions) on which a moved pod would have slower links than now.

    places: moved pods as pending pods, with their new nodes. given: pod key -> claim -> its new devices.
    """
    ledger = claim_ledger(draft.ledgers)
    new = {**ledger.taken, **{claim: grant for own in given.values() for claim, grant in own.items()}}
    out: set[int] = set()
    for pod, node in places:
        former = draft.evicted.get(pod.key)
        before = draft.snapshot.index.get(former.node) if former is not None else None
        if former is None or before is None:
            continue
        claims = DraftClaims(pod, draft, config)
        had = _slowest(claims, before, _former_grants(former, draft))
        gets = _slowest(claims, node, (new[key] for key in (*claims.keys, implicit_key(pod)) if key in new))
        if gets < had:
            out.add(node)
    return out


def _former_grants(pod: PodInfo, draft: Draft) -> Iterable[Grant]:
    """Yields the devices that the claims of a bound pod have by their status."""
    ledger = claim_ledger(draft.ledgers)
    for key in ledger.claims_of(pod):
        allocation = ledger.stated_allocation(key)
        if allocation is not None:
            yield grant_of(allocation)


def _slowest(claims: DraftClaims, node: int, grants: Iterable[Grant]) -> int:
    """Returns kB/s of the slowest pair among devices on a node; `NO_LIMIT` for less than two devices of one driver."""
    whole = {one.device for grant in grants for one in grant if not one.admin and one.consumed is None}
    devices = claims.offers.at(claims.node(node)).devices
    mask = sum(1 << i for i, device in enumerate(devices) if device.id in whole)
    return claims.order(node).compared(mask)[0]
