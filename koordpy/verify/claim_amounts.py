# SPDX-License-Identifier: Apache-2.0
"""Computes the amounts that quotas count for the resource claims of a plan, for the check of quotas (dra.md 11).

Each device that the plan allocates counts as a resource: the one to which the configuration maps its device class, or
else the `extendedResourceName` of the class. The module shares no code with the planner's amounts.
"""

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from math import ceil
from typing import Any

from koordpy.api.claim_objects import DeviceClass, ResourceClaim, ResourceSlice
from koordpy.api.quantity import parse_exact
from koordpy.config.dra_settings import Dra
from koordpy.pods.claim_refs import IMPLICIT, Grant, Granted


def planned_amounts(given: Mapping[str, Grant], view: Any, dra: Dra) -> Counter[str]:
    """Returns resource -> amount for the claims that a plan allocates with one pod. given: claim -> its devices. view:
    the snapshot's view of resource claims."""
    sums: dict[str, Fraction] = {}
    for key, grant in given.items():
        claim: ResourceClaim | None = view.objects.claims.get(key)
        if claim is None or key.endswith(IMPLICIT):
            continue  # a claim for extended resources: the pod's requests already count them
        for one in grant:
            name, capacity = _resource(_class_of(claim, one.request), view.objects.classes, dra)
            if name and not one.admin:
                amount = _capacity(one, capacity, view.objects.slices) if capacity else Fraction(1)
                sums[name] = sums.get(name, Fraction(0)) + amount
    return Counter({name: ceil(amount) for name, amount in sums.items()})


def _class_of(claim: ResourceClaim, request: str) -> str:
    """Returns the device class of a request. request: its name, or `request/alternative`."""
    name, _, alternative = request.partition("/")
    for one in claim.spec.devices.requests:
        if one.name == name:
            parts = [sub for sub in one.first_available if sub.name == alternative] if alternative else [one.exact]
            return parts[0].device_class_name if parts else ""
    return ""


def _resource(name: str, classes: Mapping[str, DeviceClass], dra: Dra) -> tuple[str, str]:
    """Returns (resource, capacity) for a device class: the resource as which its devices count, and the capacity of a
    device that is the amount. An empty resource: not counted. An empty capacity: each device counts as 1."""
    for mapping in dra.device_class_mappings:
        if name in mapping.device_class_names:
            return mapping.name, mapping.capacity
    return (classes[name].spec.extended_resource_name, "") if name in classes else ("", "")


def _capacity(one: Granted, capacity: str, slices: Mapping[str, ResourceSlice]) -> Fraction:
    """Returns the amount of a capacity that an allocated device, or an allocated share of it, has."""
    short = capacity.removeprefix(f"{one.device.driver}/")
    if one.consumed is not None:
        return sum((parse_exact(n) for name, n in one.consumed if name in (capacity, short)), Fraction(0))
    found = [
        parse_exact(stated.value)
        for piece in slices.values()
        if (piece.spec.driver, piece.spec.pool.name) == one.device[:2]
        for device in piece.spec.devices
        if device.name == one.device.device
        for name, stated in device.facts.capacity.items()
        if name in (capacity, short)
    ]
    return found[-1] if found else Fraction(0)
