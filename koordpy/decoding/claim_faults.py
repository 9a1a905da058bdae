# SPDX-License-Identifier: Apache-2.0
"""Finds faults for which an API server rejects resource claims, claim templates and ResourceSlices, for offline input.

Faults of single fields, such as invalid quantities, are found when an object is decoded. Source: dra.md 13.
"""

from collections.abc import Iterator

from koordpy.api.claim_objects import (
    DeviceClaim,
    DeviceRequest,
    ExactRequest,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from koordpy.api.field_faults import Fault
from koordpy.api.objects import KubernetesObject, NodeSelector

MAX_ALTERNATIVES = 8
MODES = ("", "ExactCount", "All")


def claim_faults(obj: KubernetesObject) -> Iterator[Fault]:
    """Yields the faults of a claim, a template or a slice; yields none for objects of other kinds."""
    if isinstance(obj, ResourceClaim):
        yield from _device_faults(obj.spec.devices, "spec.devices")
    elif isinstance(obj, ResourceClaimTemplate):
        yield from _device_faults(obj.spec.spec.devices, "spec.spec.devices")
    elif isinstance(obj, ResourceSlice):
        yield from _slice_faults(obj)


def _device_faults(devices: DeviceClaim, path: str) -> Iterator[Fault]:
    names: list[str] = []
    every: list[str] = []
    for i, request in enumerate(devices.requests):
        at = f"{path}.requests[{i}]"
        flat = bool(request.device_class_name)  # v1beta1 has the fields of `exactly` in the request itself
        kinds = (request.exactly is not None) + bool(request.first_available) + flat
        if kinds != 1:
            yield Fault(at, "exactly one of exactly and firstAvailable is required")
        yield from _name_faults(request.name, at)
        if request.name in names:
            yield Fault(f"{at}.name", f'"{request.name}" is given twice')
        names.append(request.name)
        every += [request.name, *(f"{request.name}/{one.name}" for one in request.first_available)]
        yield from _request_faults(request, at)
    for i, constraint in enumerate(devices.constraints):
        at = f"{path}.constraints[{i}]"
        sides = {"matchAttribute": constraint.match_attribute, "distinctAttribute": constraint.distinct_attribute}
        if sum(map(bool, sides.values())) != 1:
            yield Fault(at, "exactly one of matchAttribute and distinctAttribute is required")
        for field, name in sides.items():
            domain, slash, rest = name.partition("/")
            if name and not (slash and domain and rest and "/" not in rest):
                yield Fault(f"{at}.{field}", "must be DOMAIN/NAME")
        for j, name in enumerate(constraint.requests):
            if name not in every:
                yield Fault(f"{at}.requests[{j}]", f'no request is named "{name}"')


def _name_faults(name: str, at: str) -> Iterator[Fault]:
    if "/" in name:
        yield Fault(f"{at}.name", f'"{name}" contains a slash')


def _request_faults(request: DeviceRequest, at: str) -> Iterator[Fault]:
    if request.exactly is not None:
        yield from _exact_faults(request.exactly, f"{at}.exactly")
    elif not request.first_available and request.device_class_name:
        yield from _exact_faults(request, at)
    if len(request.first_available) > MAX_ALTERNATIVES:
        yield Fault(f"{at}.firstAvailable", f"at most {MAX_ALTERNATIVES} entries")
    names: list[str] = []
    for i, one in enumerate(request.first_available):
        below = f"{at}.firstAvailable[{i}]"
        yield from _name_faults(one.name, below)
        if one.name in names:
            yield Fault(f"{below}.name", f'"{one.name}" is given twice')
        names.append(one.name)
        yield from _exact_faults(one, below)


def _exact_faults(exact: ExactRequest, at: str) -> Iterator[Fault]:
    if exact.allocation_mode not in MODES:
        yield Fault(f"{at}.allocationMode", "must be ExactCount or All")
    elif exact.count is not None and exact.allocation_mode == "All":
        yield Fault(f"{at}.count", "must not be given with allocationMode All")
    elif exact.count is not None and exact.count < 1:
        yield Fault(f"{at}.count", "must be greater than zero")


def _slice_faults(obj: ResourceSlice) -> Iterator[Fault]:
    spec = obj.spec
    ways = (bool(spec.node_name), spec.node_selector is not None, spec.all_nodes, spec.per_device_node_selection)
    if sum(map(bool, ways)) != 1:
        yield Fault("spec", "exactly one of nodeName, nodeSelector, allNodes and perDeviceNodeSelection is required")
    yield from _term_faults(spec.node_selector, "spec.nodeSelector")
    for i, device in enumerate(spec.devices):
        at = f"spec.devices[{i}]"
        facts = device.facts
        yield from _term_faults(facts.node_selector, f"{at}.nodeSelector")
        if spec.per_device_node_selection:
            own = (bool(facts.node_name), facts.node_selector is not None, facts.all_nodes)
            if sum(map(bool, own)) != 1:
                yield Fault(at, "exactly one of nodeName, nodeSelector and allNodes is required")
        for name, capacity in facts.capacity.items():
            policy = capacity.request_policy
            if policy is not None and policy.valid_range is not None and policy.valid_values:
                yield Fault(f"{at}.capacity[{name}].requestPolicy", "validRange and validValues must not both be given")


def _term_faults(selector: NodeSelector | None, at: str) -> Iterator[Fault]:
    if selector is not None and len(selector.node_selector_terms) > 1:
        yield Fault(f"{at}.nodeSelectorTerms", "must not have more than one term")
