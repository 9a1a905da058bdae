# SPDX-License-Identifier: Apache-2.0
"""Resource claims, slices and device classes: the dynamically allocated devices of a snapshot (kube-parity.md 6).

A driver publishes its devices in ResourceSlices, grouped in pools. A pool has generations, because its slices are
replaced one by one. Only the newest generation of a pool counts, and only if all of its slices exist.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from koordpy.api.claim_objects import (
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
from koordpy.api.objects import NodeSelector, NodeSelectorTerm, Pod, Requirement, Wire
from koordpy.pods.family_books import DeviceLedger, FamilyBook, FamilyView
from koordpy.pods.object_book import ObjectBook, Objects
from koordpy.pods.pod_info import PodInfo

CLAIMS = "claims"
"""Name of the family."""


class DeviceId(NamedTuple):
    """Identity of a device: names of the driver, the pool and the device."""

    driver: str
    pool: str
    device: str


Grant = tuple[tuple[str, DeviceId], ...]
"""Allocation of a resource claim: (request, device) of each device."""


class Offered(NamedTuple):
    """A device with the slice that publishes it."""

    id: DeviceId
    device: SliceDevice
    slice: ResourceSlice


class DeviceObjects:
    """Claims, classes and slices at one moment. Immutable."""

    def __init__(self, objects: Objects) -> None:
        self.claims: Mapping[str, ResourceClaim] = objects[ResourceClaim]
        """Claims by `namespace/name`."""
        self.classes: Mapping[str, DeviceClass] = objects[DeviceClass]
        """Device classes by name."""
        self.slices: Mapping[str, ResourceSlice] = objects[ResourceSlice]
        """ResourceSlices by name."""

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
        """Devices that are allocated to claims; allocations with admin access do not count."""
        return frozenset(
            DeviceId(result.driver, result.pool, result.device)
            for claim in self.claims.values()
            if claim.status.allocation is not None
            for result in claim.status.allocation.devices.results
            if not result.admin_access
        )


class DeviceBook(ObjectBook[DeviceObjects]):
    """Claims, classes and slices, updated per event, and changes of claims by allocations."""

    def __init__(self) -> None:
        super().__init__(DEVICE_KINDS, DeviceObjects)

    def allocate(self, pod: Pod, node: str, taken: Mapping[str, Grant]) -> None:
        """Writes allocations to claims, and adds the pod to the consumers of each of its claims. For offline runs.

        taken: claim -> devices, of the claims that are allocated with this pod.
        """
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
        """Returns the allocation of a claim for its status.

        It binds the claim to the node, unless every device is in a slice for all nodes.
        """
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
        """Returns the configuration for drivers: that of the classes of requests, then that of the claim."""
        out: list[Any] = []
        for request in claim.spec.devices.requests:
            found = self.get(DeviceClass, request.exact.device_class_name)
            if found is not None:
                out += [{"source": "FromClass", "requests": [request.name], **one} for one in found.spec.config]
        return [*out, *({"source": "FromClaim", **one} for one in claim.spec.devices.config)]


class ClaimLedger(DeviceLedger):
    """Allocations of a Draft."""

    def __init__(self, promised: Mapping[str, Grant]) -> None:
        """promised: claim -> devices that are allocated, but not yet stated by the claim."""
        super().__init__()
        self.taken: dict[str, Grant] = dict(promised)
        """Claim -> devices that are allocated on the Draft, for assumed pods, or by a write in progress."""

    def assign(self, pod: PodInfo, node: int, given: Any) -> None:
        """Implements `DeviceLedger.assign`. given: claim -> its devices."""
        super().assign(pod, node, given)
        self.taken.update(given)

    def release(self, pod: PodInfo) -> None:
        """Implements `DeviceLedger.release`."""
        for claim in self.allocations[pod.key]:
            del self.taken[claim]
        super().release(pod)


@dataclass(frozen=True, eq=False)
class ClaimView(FamilyView):
    """Resource claims, slices and classes at one moment. Immutable."""

    objects: DeviceObjects
    promised: Mapping[str, Grant] = field(default_factory=dict)
    """Claim -> devices that are allocated for an assumed pod, or by a write in progress."""

    def ledger(self) -> ClaimLedger:
        """Implements `FamilyView.ledger`."""
        return ClaimLedger(self.promised)


class ClaimBook(FamilyBook):
    """Resource claims, slices and classes, updated per event, and the allocations of assumed pods.

    Methods without a docstring implement those of `FamilyBook`.
    """

    kinds = DEVICE_KINDS

    def __init__(self) -> None:
        self.is_idle = True
        self.objects = DeviceBook()
        self._assumed: dict[str, Mapping[str, Grant]] = {}
        """Pod key -> claim -> devices allocated with the assumed pod."""
        self._in_writing: dict[str, Grant] = {}
        """Claim -> devices of an allocation that is being written to the API server."""

    def put(self, obj: Any) -> None:
        self.is_idle = False
        self.objects.put(obj)

    def drop(self, kind: type[Wire], key: str) -> None:
        self.objects.drop(kind, key)

    def get(self, kind: type[Wire], key: str) -> Any:
        return self.objects.get(kind, key)

    def hold(self, pod: PodInfo, given: Any) -> None:
        if given:
            self._assumed[pod.key] = given

    def release(self, pod: PodInfo) -> None:
        self._assumed.pop(pod.key, None)

    def bind(self, pod: Pod, node: str, given: Any) -> None:
        self.objects.allocate(pod, node, given or {})

    def write(self, claim: str, devices: Grant) -> None:
        """Records that an allocation is being written to the API server.

        The devices stay reserved if the pod is deleted before the answer.
        """
        self._in_writing[claim] = devices

    def written(self, claim: str) -> None:
        """Records that the result of a write is known and part of the claim."""
        self._in_writing.pop(claim, None)

    def grants(self) -> dict[str, Grant]:
        """Returns claim -> devices that are allocated for an assumed pod, or by a write in progress."""
        taken = {claim: devices for own in self._assumed.values() for claim, devices in own.items()}
        return self._in_writing | taken

    def view(self) -> ClaimView:
        return ClaimView(self.objects.view(), self.grants())


NO_CLAIMS = ClaimView(DeviceObjects({ResourceClaim: {}, DeviceClass: {}, ResourceSlice: {}}))
"""View of a cluster without resource claims."""


def claim_view(families: Mapping[str, FamilyView]) -> ClaimView:
    """Returns the resource claims of a snapshot (`Snapshot.families`)."""
    return cast(ClaimView, families.get(CLAIMS, NO_CLAIMS))


def claim_ledger(ledgers: Mapping[str, DeviceLedger]) -> ClaimLedger:
    """Returns the claim ledger of a Draft (`Draft.ledgers`)."""
    found = ledgers.get(CLAIMS)
    return cast(ClaimLedger, found) if found is not None else ClaimLedger({})


def claim_book(families: Mapping[str, FamilyBook]) -> ClaimBook:
    """Returns the claim book of a cluster (`ClusterState.families`)."""
    return cast(ClaimBook, families[CLAIMS])


def consumer_of(pod: Pod) -> ClaimConsumer:
    """Returns a pod as an entry of a claim's reservedFor."""
    return ClaimConsumer(resource="pods", name=pod.metadata.name, uid=pod.metadata.uid)


def claim_names(pod: Pod) -> list[tuple[str, str | None, bool]]:
    """Returns (name in the pod, name of the claim, True if it is generated for the pod) of each resource claim of a
    pod.

    The name of the claim is None until it is created. A template that needs no claim, by its status, is left out.
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
