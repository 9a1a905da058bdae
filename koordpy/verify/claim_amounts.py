# SPDX-License-Identifier: Apache-2.0
"""Amounts that quotas count for the claims of a plan, by an own arithmetic over results and classes (dra.md 11).

Every device that the plan allocates counts under the mapping of its class, else under the `extendedResourceName` of the
class. It shares no code with the amounts that the quotas of a snapshot count.
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
    """Returns resource -> amount of the claims that a plan allocates with one pod. given: claim -> its devices. view:
    the resource claims of the snapshot."""
    sums: dict[str, Fraction] = {}
    for key, grant in given.items():
        claim: ResourceClaim | None = view.objects.claims.get(key)
        if claim is None or key.endswith(IMPLICIT):
            continue  # the pod's own request counts
        for one in grant:
            name, capacity = _resource(_class_of(claim, one.request), view.objects.classes, dra)
            if name and not one.admin:
                amount = _capacity(one, capacity, view.objects.slices) if capacity else Fraction(1)
                sums[name] = sums.get(name, Fraction(0)) + amount
    return Counter({name: ceil(amount) for name, amount in sums.items()})


def _class_of(claim: ResourceClaim, request: str) -> str:
    """Returns the class of a request, or of `request/alternative`."""
    name, _, alternative = request.partition("/")
    for one in claim.spec.devices.requests:
        if one.name == name:
            parts = [sub for sub in one.first_available if sub.name == alternative] if alternative else [one.exact]
            return parts[0].device_class_name if parts else ""
    return ""


def _resource(name: str, classes: Mapping[str, DeviceClass], dra: Dra) -> tuple[str, str]:
    """Returns (resource, capacity) under which a class counts; empty for none."""
    for mapping in dra.device_class_mappings:
        if name in mapping.device_class_names:
            return mapping.name, mapping.capacity
    return (classes[name].spec.extended_resource_name, "") if name in classes else ("", "")


def _capacity(one: Granted, capacity: str, slices: Mapping[str, ResourceSlice]) -> Fraction:
    """Returns how much of a capacity a device, or a share of it, gives."""
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
