# SPDX-License-Identifier: Apache-2.0
"""Devices and requests that koordpy cannot allocate: they need a feature gate that is off, or an unsupported feature.

The API server drops the fields of such a gate, so an allocation would be incomplete. A gate is known to be off after
the first write that lost a field (`ClaimView.gates_off`); offline, no gate is off. A missing right to create claims
counts like a gate that is off, so that pods use nodes on which a device plugin serves them. Sources: docs/rules/dra.md
9 and 12 (Gates).
"""

from collections.abc import Callable, Collection

from koordpy.api.claim_objects import Allocation
from koordpy.devices.dra.filters.claim_requests import Alternative
from koordpy.devices.dra.ledger.offered_devices import DeviceOffers, NodeDevices, OfferedDevice
from koordpy.pods.claim_refs import DeviceId

CONSUMABLE, CONDITIONS = "DRAConsumableCapacity", "DRADeviceBindingConditions"
TAINTS, ADMIN, EXTENDED = "DRADeviceTaints", "DRAAdminAccess", "DRAExtendedResource"
NODE_RESOURCES = "node allocatable resources through devices"
"""The feature that a device with `nodeAllocatableResources` needs; koordpy never supports it."""
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
    if gate == NODE_RESOURCES:
        return f"unsupported: {gate}"
    return f"no right to {gate}" if gate == CREATION else f"unsupported: {gate} is off"


def extended_limit(off: frozenset[str]) -> str:
    """Returns the reason why devices serve no extended resources; empty if they do."""
    return next((off_text(gate) for gate in (EXTENDED, CREATION) if gate in off), "")


def _needed(device: OfferedDevice) -> set[str]:
    """Returns the gates and the unsupported feature that an allocation of a device needs."""
    facts = device.facts
    needs = {
        CONDITIONS: facts.binding_conditions,
        CONSUMABLE: facts.allow_multiple_allocations,
        NODE_RESOURCES: facts.node_allocatable_resources or facts.node_allocatable_resource_mappings,
    }
    return {name for name, present in needs.items() if present}


def closed_by_gates(offers: DeviceOffers, off: frozenset[str]) -> frozenset[DeviceId]:
    """Returns the devices that cannot be allocated: they need a gate that is off, or an unsupported feature."""
    off &= {CONSUMABLE, CONDITIONS}
    off |= {NODE_RESOURCES}
    found: frozenset[DeviceId] | None = offers.memo.get((closed_by_gates, off))
    if found is None:
        found = frozenset(key for key, device in offers.by_id.items() if not off.isdisjoint(_needed(device)))
        offers.memo[closed_by_gates, off] = found
    return found


def allocated_limit(allocation: Allocation, offers: DeviceOffers) -> str:
    """Returns the unsupported feature, as a reason, that the pods of an allocated claim need; empty if none.

    A device with node allocatable resources takes amounts from the node of each of its pods, which koordpy does not
    count.
    """
    closed = closed_by_gates(offers, frozenset())
    devices = (DeviceId(one.driver, one.pool, one.device) for one in allocation.devices.results) if closed else ()
    return off_text(NODE_RESOURCES) if any(device in closed for device in devices) else ""


def find_gate_limit(here: NodeDevices, offers: DeviceOffers, off: frozenset[str], is_enough: Callable[[], bool]) -> str:
    """Returns the reason if the devices of a node are enough only with devices that need a gate which is off, or an
    unsupported feature; else empty.

    here: the devices that the node reaches. is_enough: returns True if all of them together are enough.
    """
    closed, off = closed_by_gates(offers, off), off | {NODE_RESOURCES}
    lacking = {gate for one in here.devices if one.id in closed for gate in off & _needed(one)} if closed else ()
    return off_text(min(lacking)) if lacking and is_enough() else ""


def request_limit(alternatives: Collection[Alternative], off: frozenset[str]) -> str:
    """Returns the reason if a request needs a gate that is off; empty if none does."""
    if TAINTS in off and any(one.tolerations for one in alternatives):
        return off_text(TAINTS)
    return off_text(ADMIN) if ADMIN in off and any(one.admin for one in alternatives) else ""
