# SPDX-License-Identifier: Apache-2.0
"""Devices and requests that need a feature gate which is off in the API server (docs/rules/dra.md 12, Gates).

The API server drops the fields of such a gate, so an allocation would be incomplete. A gate is known to be off after
the first write that lost a field (`ClaimView.gates_off`); offline, no gate is off. A missing right to create claims
counts like a gate that is off, so that pods use nodes on which a device plugin serves them.
"""

from collections.abc import Callable, Collection

from koordpy.devices.dra.filters.claim_requests import Alternative
from koordpy.devices.dra.ledger.offered_devices import DeviceOffers, NodeDevices, OfferedDevice
from koordpy.pods.claim_refs import DeviceId

CONSUMABLE, CONDITIONS = "DRAConsumableCapacity", "DRADeviceBindingConditions"
TAINTS, ADMIN, EXTENDED = "DRADeviceTaints", "DRAAdminAccess", "DRAExtendedResource"
CREATION = "create resourceclaims"
"""The right to create claims for extended resources, among the gates that are off if it is missing."""
FIELDS = {
    "shareID": CONSUMABLE,
    "consumedCapacity": CONSUMABLE,
    "bindingConditions": CONDITIONS,
    "allocationTimestamp": CONDITIONS,
    "tolerations": TAINTS,
    "adminAccess": ADMIN,
    "extendedResourceClaimStatus": EXTENDED,
}
"""Field of an allocation, or of a pod's status -> the gate without which the API server drops it."""


def off_text(gate: str) -> str:
    """Returns the reason why a node or claim is refused without a gate, or without the right to create claims."""
    return f"no right to {gate}" if gate == CREATION else f"unsupported: {gate} is off"


def extended_limit(off: frozenset[str]) -> str:
    """Returns the reason why devices serve no extended resources; empty if they do."""
    return next((off_text(gate) for gate in (EXTENDED, CREATION) if gate in off), "")


def _needed(device: OfferedDevice) -> set[str]:
    """Returns the gates that an allocation of a device needs."""
    facts = device.facts
    conditions = {CONDITIONS} if facts.binding_conditions else set()
    return conditions | ({CONSUMABLE} if facts.allow_multiple_allocations else set())


def closed_by_gates(offers: DeviceOffers, off: frozenset[str]) -> frozenset[DeviceId]:
    """Returns the devices that cannot be allocated without gates that are off."""
    if off.isdisjoint((CONSUMABLE, CONDITIONS)):
        return frozenset()
    found: frozenset[DeviceId] | None = offers.memo.get((closed_by_gates, off))
    if found is None:
        found = frozenset(key for key, device in offers.by_id.items() if not off.isdisjoint(_needed(device)))
        offers.memo[closed_by_gates, off] = found
    return found


def find_gate_limit(here: NodeDevices, off: frozenset[str], is_enough: Callable[[], bool]) -> str:
    """Returns the reason if the devices of a node are enough only with devices that need a gate which is off; else
    empty.

    here: the devices that the node reaches. is_enough: returns True if all of them together are enough.
    """
    lacking = sorted({gate for one in here.devices for gate in off & _needed(one)}) if off else []
    return off_text(lacking[0]) if lacking and is_enough() else ""


def request_limit(alternatives: Collection[Alternative], off: frozenset[str]) -> str:
    """Returns the reason if a request needs a gate that is off; empty if none does."""
    if TAINTS in off and any(one.tolerations for one in alternatives):
        return off_text(TAINTS)
    return off_text(ADMIN) if ADMIN in off and any(one.admin for one in alternatives) else ""
