# SPDX-License-Identifier: Apache-2.0
"""Extended resources that devices serve: the class to which a resource maps, and the claim that a pod then needs.

A node with an allocatable amount of the resource serves it by its device plugin, any other node by devices. So the
claim of a pod depends on the resources that the node serves by devices. Source: docs/rules/dra.md 8.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from koordpy.api.claim_objects import DeviceClaim, DeviceClass, DeviceRequest, ExactRequest
from koordpy.api.objects import Container, Pod
from koordpy.api.quantity import is_extended, units
from koordpy.devices.dra.ledger.offered_devices import DeviceOffers
from koordpy.pods.claim_refs import Grant

CLASS_RESOURCE = "deviceclass.resource.kubernetes.io/"
"""Prefix of an extended resource that selects a class by its name."""
MADE = "resource.kubernetes.io/extended-resource-claim"
"""Annotation of a claim for extended resources."""


class RequestMapping(NamedTuple):
    """The request of the claim that serves a resource of a container: an entry of the pod's status."""

    container: str
    resource: str
    request: str


@dataclass(frozen=True)
class ExtendedClaim:
    """The claim for a pod's extended resources on nodes that serve the same resources by devices."""

    devices: DeviceClaim
    mappings: tuple[RequestMapping, ...]


def resource_classes(offers: DeviceOffers) -> Mapping[str, str]:
    """Returns extended resource -> class, of all classes that state one.

    Of several classes the newest counts, then the lowest name.
    """
    found: Mapping[str, str] | None = offers.memo.get(resource_classes)
    if found is None:
        best: dict[str, DeviceClass] = {}
        for name in sorted(offers.classes):
            one = offers.classes[name]
            resource = one.spec.extended_resource_name
            known = best.get(resource)
            created = one.metadata.creation_timestamp or ""
            if resource and (known is None or created > (known.metadata.creation_timestamp or "")):
                best[resource] = one
        found = {resource: one.metadata.name for resource, one in best.items()}
        offers.memo[resource_classes] = found
    return found


def class_of(resource: str, offers: DeviceOffers) -> str | None:
    """Returns the class that an extended resource maps to; None for none."""
    if resource.startswith(CLASS_RESOURCE):
        name = resource.removeprefix(CLASS_RESOURCE)
        return name if name in offers.classes else None
    return resource_classes(offers).get(resource)


def _is_served(resource: str) -> bool:
    """Returns whether devices may serve a resource: an extended resource, or one that selects a class by its name."""
    return is_extended(resource) or resource.startswith(CLASS_RESOURCE)


def requested_units(container: Container) -> dict[str, int]:
    """Returns extended resource -> number that a container requests; a limit without a request counts."""
    asked = {**container.resources.limits, **container.resources.requests}
    found = {name: units(name, amount) for name, amount in asked.items() if _is_served(name)}
    return {name: number for name, number in found.items() if number > 0}


def extended_claim(pod: Pod, resources: Collection[str], offers: DeviceOffers) -> ExtendedClaim:
    """Returns the claim for the extended resources of a pod that a node serves by devices.

    An init container that ends before the others first uses the devices of those after it; only the largest rest of
    all such containers is requested, and the containers with smaller rests use the same request.
    """
    spec = pod.spec
    containers = [*spec.init_containers, *spec.containers]
    ends = [i < len(spec.init_containers) and one.restart_policy != "Always" for i, one in enumerate(containers)]
    asked = [requested_units(one) for one in containers]
    names = [sorted({**one.resources.limits, **one.resources.requests}) for one in containers]
    requests: dict[str, DeviceRequest] = {}
    mappings: list[RequestMapping] = []
    for resource in sorted(resources):
        found = class_of(resource, offers)
        assert found is not None
        own = {i: f"container-{i}-request-{names[i].index(resource)}" for i, one in enumerate(asked) if resource in one}
        lasting = [i for i in own if not ends[i]]
        reused: dict[int, list[str]] = {}
        rests: dict[int, int] = {}
        for i in own:
            if not ends[i]:
                continue
            left, used = asked[i][resource], reused.setdefault(i, [])
            for later in (one for one in lasting if one > i):
                if left > 0:
                    used.append(own[later])
                    left -= asked[later][resource]
            if left > 0:
                rests[i] = left
        counts = {own[i]: asked[i][resource] for i in lasting}
        mappings += [RequestMapping(containers[i].name, resource, own[i]) for i in lasting]
        largest = own[max(rests, key=lambda i: (rests[i], -i))] if rests else ""
        if rests:
            counts[largest] = max(rests.values())
        for i, used in reused.items():
            served = [*used, largest] if i in rests else used
            mappings += [RequestMapping(containers[i].name, resource, one) for one in served]
        for name, count in counts.items():
            exact = ExactRequest(device_class_name=found, allocation_mode="ExactCount", count=count)
            requests[name] = DeviceRequest(name=name, exactly=exact)
    return ExtendedClaim(DeviceClaim(requests=[requests[name] for name in sorted(requests)]), tuple(mappings))


def served_resources(pod: Pod, grant: Grant) -> set[str]:
    """Returns the resources of a pod that a granted claim for extended resources serves, by the names of its
    requests."""
    containers = [*pod.spec.init_containers, *pod.spec.containers]
    found = set()
    for one in grant:
        _, container, _, request = one.request.split("-")
        resources = containers[int(container)].resources
        found.add(sorted({**resources.limits, **resources.requests})[int(request)])
    return found
