# SPDX-License-Identifier: Apache-2.0
"""Stores resource claims, and the objects that offer devices: ResourceSlices, DeviceClasses, DeviceTaintRules.

In offline runs `DeviceBook.allocate` also changes the stored claims, as the scheduler would through the API. Source:
dra.md 8, 13.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from koordpy.api.claim_objects import (
    Allocation,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceSlice,
)
from koordpy.api.objects import ObjectMeta, OwnerReference, Pod, Wire
from koordpy.api.pod_groups import UpstreamPodGroup
from koordpy.api.uids import made_up_uid
from koordpy.devices.dra.ledger.claim_allocation import SIMULATED_SHARE, allocation_of
from koordpy.devices.dra.ledger.device_objects import DeviceObjects, taken_devices
from koordpy.devices.dra.ledger.extended_claims import MADE, ExtendedClaim, extended_claim, served_resources
from koordpy.devices.dra.ledger.offered_devices import DeviceOffers
from koordpy.pods.claim_refs import (
    IMPLICIT,
    IMPLICIT_STEM,
    DeviceId,
    Grant,
    claim_group,
    claim_names,
    consumer_of,
)
from koordpy.pods.object_book import ObjectBook, Objects, object_key

OFFER_KINDS: tuple[type[Wire], ...] = (ResourceSlice, DeviceClass, DeviceTaintRule)
DRA_KINDS: tuple[type[Wire], ...] = (ResourceClaim, *OFFER_KINDS)


def _claims_of(objects: Objects) -> Mapping[str, ResourceClaim]:
    return objects[ResourceClaim]


def _offers_of(objects: Objects) -> DeviceOffers:
    return DeviceOffers(objects[ResourceSlice], objects[DeviceClass], objects[DeviceTaintRule])


class DeviceBook:
    """The current claims and offers, updated per event. An offer is an object that offers devices."""

    def __init__(self) -> None:
        self._offers: ObjectBook[DeviceOffers] = ObjectBook(OFFER_KINDS, _offers_of)
        self._claims: ObjectBook[Mapping[str, ResourceClaim]] = ObjectBook((ResourceClaim,), _claims_of)
        self._view: DeviceObjects | None = None
        self._groups: dict[str, UpstreamPodGroup] = {}
        self.implicit: dict[str, dict[str, None]] = {}
        """uid of a pod -> keys of the claims for its extended resources. There is more than one only if the reply to a
        write was lost."""
        self._users: dict[DeviceId, dict[str, None]] = {}
        """Device -> claims to which it is allocated, as a whole or as a share."""

    def put(self, obj: Any) -> None:
        """Adds or updates an object."""
        if not isinstance(obj, ResourceClaim):
            self._offers.put(obj)
            return
        key = object_key(obj)
        self._forget(key)
        self._claims.put(obj)
        owner = obj.metadata.controller
        if owner is not None and MADE in obj.metadata.annotations:
            self.implicit.setdefault(owner.uid, {})[key] = None
        for device in taken_devices(obj):
            self._users.setdefault(device, {})[key] = None

    def drop(self, kind: type[Wire], key: str) -> None:
        """Removes an object; an unknown key is ignored."""
        if kind is not ResourceClaim:
            self._offers.drop(kind, key)
            return
        self._forget(key)
        self._claims.drop(kind, key)

    def _forget(self, key: str) -> None:
        """Removes a claim from the indexes."""
        claim = self._claims.get(ResourceClaim, key)
        if claim is None:
            return
        owner = claim.metadata.controller
        if owner is not None and key in (known := self.implicit.get(owner.uid, {})):
            del known[key]
            if not known:
                del self.implicit[owner.uid]
        for device in taken_devices(claim):
            users = self._users[device]
            users.pop(key, None)
            if not users:
                del self._users[device]

    @property
    def offers(self) -> DeviceOffers:
        """Current offers."""
        return self._offers.view()

    def users(self, device: DeviceId) -> Collection[str]:
        """Returns the claims (`namespace/name`) to which a device is allocated, whole or as a share."""
        return self._users.get(device, {})

    def put_group(self, key: str, group: UpstreamPodGroup | None) -> None:
        """Adds or updates an upstream PodGroup; None removes it. Only groups with claims are stored."""
        has_claims = group is not None and bool(group.spec.resource_claims)
        if has_claims or key in self._groups:
            groups = {name: one for name, one in self._groups.items() if name != key}
            self._groups = {**groups, key: group} if group is not None and has_claims else groups
            self._view = None

    def get(self, kind: type[Wire], key: str) -> Any:
        """Returns an object; None for an unknown key."""
        return (self._claims if kind is ResourceClaim else self._offers).get(kind, key)

    def view(self) -> DeviceObjects:
        """Returns the current objects."""
        claims, offers = self._claims.view(), self._offers.view()
        if self._view is None or self._view.claims is not claims or self._view.offers is not offers:
            self._view = DeviceObjects(claims, offers, self._groups)
        return self._view

    def allocate(self, pod: Pod, node: str, taken: Mapping[str, Grant]) -> None:
        """Stores the pod's claims with their allocations and consumers. For offline runs.

        Creates the claim for extended resources if `taken` has one. The consumer is the pod, or the PodGroup that
        shares the claim. taken: claim -> devices, of the claims that are allocated with this pod.
        """
        group = claim_group(pod, self._groups)
        for key in (key for key in taken if key.endswith(IMPLICIT)):
            self._make_implicit(pod, node, taken[key])
        for one in claim_names(pod, group):
            key = f"{pod.metadata.namespace}/{one.name}"
            claim = self.get(ResourceClaim, key)
            if claim is None:
                continue
            status = claim.status
            if key in taken:
                status = replace(status, allocation=self._simulated(claim, node, taken[key]), devices=[])
            consumer = consumer_of(pod, group if one.grouped else None)
            if consumer not in status.reserved_for:
                status = replace(status, reserved_for=[*status.reserved_for, consumer])
            self.put(replace(claim, status=status))

    def extended(self, pod: Pod, grant: Grant) -> ExtendedClaim:
        """Returns the claim for those extended resources of a pod that its planned devices serve."""
        return extended_claim(pod, served_resources(pod, grant), self._offers.view())

    def _make_implicit(self, pod: Pod, node: str, grant: Grant) -> None:
        """Creates the allocated claim for a pod's extended resources."""
        meta = pod.metadata
        spec = self.extended(pod, grant)
        name = free_name(
            f"{meta.name}{IMPLICIT_STEM}sim", lambda one: self.get(ResourceClaim, f"{meta.namespace}/{one}")
        )
        owner = OwnerReference(api_version="v1", kind="Pod", name=meta.name, uid=meta.uid, controller=True)
        claim = ResourceClaim(
            metadata=ObjectMeta(
                name=name,
                namespace=meta.namespace,
                uid=made_up_uid("ResourceClaim", meta.namespace, name, meta.uid),
                creation_timestamp=meta.creation_timestamp,
                annotations={MADE: "true"},
                owner_references=[owner],
            ),
            spec=ResourceClaimSpec(devices=spec.devices),
        )
        status = replace(claim.status, allocation=self._simulated(claim, node, grant), reserved_for=[consumer_of(pod)])
        self.put(replace(claim, status=status))

    def _simulated(self, claim: ResourceClaim, node: str, grant: Grant) -> Allocation:
        """Returns the allocation of a claim. Shares of devices get made-up shareIDs that no stored claim uses."""
        ids: Iterator[str] = iter(())
        if any(one.consumed is not None for one in grant):
            ids = self._free_shares()
        return allocation_of(claim, node, grant, self._offers.view(), lambda i: next(ids))

    def _free_shares(self) -> Iterator[str]:
        allocations = (claim.status.allocation for claim in self._claims.view().values())
        used = {r.share_id for one in allocations if one is not None for r in one.devices.results if r.share_id}
        number = 0
        while True:
            number += 1
            if (text := SIMULATED_SHARE.format(number)) not in used:
                yield text

    def allocation(self, claim: ResourceClaim, node: str, taken: Grant, share_id: Callable[[int], str]) -> Allocation:
        """Returns the allocation of a claim for its status. share_id: returns the shareID of the i-th result."""
        return allocation_of(claim, node, taken, self._offers.view(), share_id)


def free_name(stem: str, known: Callable[[str], object | None]) -> str:
    """Returns the first of `stem`, `stem2`, `stem3` ... for which `known` returns None."""
    name, number = stem, 1
    while known(name) is not None:
        number += 1
        name = f"{stem}{number}"
    return name
