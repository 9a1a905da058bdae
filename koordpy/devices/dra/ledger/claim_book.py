"""Resource claims, slices and device classes: the dynamically allocated side of a snapshot (kube-parity.md 6).

Only the newest generation of a pool counts, and only where all of its slices are there.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

from msgspec.structs import replace

from koordpy.api.dra import (
    DEVICE_KINDS,
    Allocation,
    ClaimConsumer,
    DeviceClass,
    DeviceResult,
    DeviceResults,
    ResourceClaim,
    ResourceSlice,
    SliceDevice,
)
from koordpy.api.objects import NodeSelector, NodeSelectorTerm, Pod, Requirement
from koordpy.cluster.objectbook import ObjectBook, Objects


class DeviceId(NamedTuple):
    """Identity of a device."""

    driver: str
    pool: str
    device: str


Grant = tuple[tuple[str, DeviceId], ...]
"""What a resource claim is allocated: (request, device) of each device."""


class Offered(NamedTuple):
    """A device with the slice that offers it."""

    id: DeviceId
    device: SliceDevice
    slice: ResourceSlice


class DeviceObjects:
    """The objects of one moment; nothing in it changes."""

    def __init__(self, objects: Objects) -> None:
        self.claims: Mapping[str, ResourceClaim] = objects[ResourceClaim]
        """By `namespace/name`."""
        self.classes: Mapping[str, DeviceClass] = objects[DeviceClass]
        self.slices: Mapping[str, ResourceSlice] = objects[ResourceSlice]

    @cached_property
    def offered(self) -> tuple[Offered, ...]:
        """Every device of the newest complete generation of each pool, by driver, pool and name."""
        pools: dict[tuple[str, str], list[ResourceSlice]] = {}
        for one in self.slices.values():
            pools.setdefault((one.spec.driver, one.spec.pool.name), []).append(one)
        out: list[Offered] = []
        for (driver, pool), slices in pools.items():
            newest = max(one.spec.pool.generation for one in slices)
            current = [one for one in slices if one.spec.pool.generation == newest]
            if len(current) == max(one.spec.pool.resource_slice_count for one in current):
                out += [Offered(DeviceId(driver, pool, d.name), d, one) for one in current for d in one.spec.devices]
        return tuple(sorted(out, key=lambda offered: offered.id))

    @cached_property
    def allocated(self) -> frozenset[DeviceId]:
        """Devices that claims hold; those of administrators hold nothing."""
        return frozenset(
            DeviceId(result.driver, result.pool, result.device)
            for claim in self.claims.values()
            if claim.status.allocation is not None
            for result in claim.status.allocation.devices.results
            if not result.admin_access
        )


class DeviceBook(ObjectBook[DeviceObjects]):
    """The objects as they come and go."""

    def __init__(self) -> None:
        super().__init__(DEVICE_KINDS, DeviceObjects)

    def allocate(self, pod: Pod, node: str, taken: Mapping[str, Grant]) -> None:
        """Writes allocations, and the pod's reservation of every claim it names."""
        consumer = consumer_of(pod)
        for _, name, _ in claim_names(pod):
            key = f"{pod.metadata.namespace}/{name}"
            claim = self.get(ResourceClaim, key)
            if claim is None:
                continue
            status = claim.status
            if key in taken:
                status = replace(status, allocation=self.allocation(claim, node, taken[key]))
            if consumer not in status.reserved_for:
                status = replace(status, reserved_for=[*status.reserved_for, consumer])
            self.put(replace(claim, status=status))

    def allocation(self, claim: ResourceClaim, node: str, taken: Grant) -> Allocation:
        """Devices that every node offers bind a claim to none; any other binds it to the node."""
        results = [DeviceResult(request=r, driver=d.driver, pool=d.pool, device=d.device) for r, d in taken]
        everywhere = {offered.id for offered in self.view().offered if offered.slice.spec.all_nodes}
        selector = None
        if any(device not in everywhere for _, device in taken):
            here = Requirement(key="metadata.name", operator="In", values=(node,))
            selector = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_fields=(here,))])
        return Allocation(
            devices=DeviceResults(results=results, config=self._parameters(claim)), node_selector=selector
        )

    def _parameters(self, claim: ResourceClaim) -> list[Any]:
        """What drivers are told: the parameters of the classes of requests, then those of the claim."""
        out: list[Any] = []
        for request in claim.spec.devices.requests:
            found = self.get(DeviceClass, request.exact.device_class_name)
            if found is not None:
                out += [{"source": "FromClass", "requests": [request.name], **one} for one in found.spec.config]
        return [*out, *({"source": "FromClaim", **one} for one in claim.spec.devices.config)]


def consumer_of(pod: Pod) -> ClaimConsumer:
    """A pod as a claim's reservations name it."""
    return ClaimConsumer(resource="pods", name=pod.metadata.name, uid=pod.metadata.uid)


def claim_names(pod: Pod) -> list[tuple[str, str | None, bool]]:
    """(name in the pod, name of the claim, whether it is made for the pod) of each resource claim of a pod.

    None = not made yet. A template that needs no claim, as its controller found, is left out.
    """
    made = {status.name: status for status in pod.status.resource_claim_statuses}
    out: list[tuple[str, str | None, bool]] = []
    for claim in pod.spec.resource_claims:
        if claim.resource_claim_name is not None:
            out.append((claim.name, claim.resource_claim_name, False))
        elif claim.name not in made:
            out.append((claim.name, None, True))
        elif made[claim.name].resource_claim_name is not None:
            out.append((claim.name, made[claim.name].resource_claim_name, True))
    return out
