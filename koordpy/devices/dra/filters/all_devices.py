# SPDX-License-Identifier: Apache-2.0
"""The devices that a request for all devices takes on a node: those that it selects, in use or not.

Pools are read in kube-scheduler's order, because the first pool that is changing, or the first failing selector, ends
the search. Source: docs/rules/dra.md 2, 3.
"""

from collections.abc import Callable, Sequence

from koordpy.devices.dra.filters.claim_requests import Alternative, UnallocatedClaim, UndecidedNode, alternatives_of
from koordpy.devices.dra.filters.device_matching import DeviceMatching
from koordpy.devices.dra.filters.device_shares import can_hold, provided
from koordpy.devices.dra.ledger.offered_devices import DeviceOffers, NodeDevices


def all_devices(
    offer: NodeDevices,
    alternative: Alternative,
    claim: str,
    named: str,
    matching: DeviceMatching,
    *,
    fail: Callable[[str], None],
    listed: bool,
) -> list[int]:
    """Returns the positions of the devices that a request takes, among `offer.devices`, or `offer.listed` if `listed`.

    Raises `UndecidedNode` for a pool that is incomplete or invalid. claim: its key. named: the key in errors about
    amounts; empty to ignore these. fail: called with the error of a selector.
    """
    found, at = list[int](), 0
    for one in offer.pools:
        if one.state:
            what = f"claim {claim}, request {alternative.name.rpartition('/')[2]}: asks for all devices"
            raise UndecidedNode(f"{what}, but resource pool {one.pool.title} is currently {one.state}")
        here = set(map(id, one.devices)) if listed and one.listed is not one.devices else None
        for device in one.listed if listed else one.devices:
            answer = matching.selects(alternative, device)
            if isinstance(answer, str):
                fail(answer)
            elif answer and (here is None or id(device) in here) and provided(can_hold, alternative, device, named):
                found.append(at)
            at += 1
    return found


def fails_beyond(offer: NodeDevices, claims: Sequence[UnallocatedClaim], offers: DeviceOffers) -> bool:
    """Returns whether a selector of the claims fails on a device of another node, in a slice that the node reaches."""
    if offer.listed is offer.devices:
        return False
    here, matching = set(map(id, offer.devices)), DeviceMatching(offers)
    beyond = [device for device in offer.listed if id(device) not in here]
    asked = alternatives_of([one.spec for one in claims])
    return any(isinstance(matching.selects(one, device), str) for one in asked for device in beyond)
