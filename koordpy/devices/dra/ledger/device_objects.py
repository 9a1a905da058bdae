# SPDX-License-Identifier: Apache-2.0
"""Resource claims, PodGroups with claims, and the offers of devices, at one moment."""

from collections.abc import Iterator, Mapping
from functools import cached_property

from koordpy.api.claim_objects import (
    Allocation,
    ResourceClaim,
)
from koordpy.api.objects import Pod
from koordpy.api.pod_groups import UpstreamPodGroup
from koordpy.devices.dra.ledger.device_usage import DeviceUsage
from koordpy.devices.dra.ledger.offered_devices import DeviceOffers
from koordpy.pods.claim_refs import (
    ClaimName,
    DeviceId,
    Grant,
    Granted,
    claim_group,
    claim_names,
)


def grant_of(allocation: Allocation) -> Grant:
    """Returns the devices of an allocation."""
    return tuple(
        Granted(
            one.request,
            DeviceId(one.driver, one.pool, one.device),
            bool(one.admin_access),
            tuple((name, str(amount)) for name, amount in one.consumed_capacity.items()) if one.share_id else None,
        )
        for one in allocation.devices.results
    )


def whole_devices(claim: ResourceClaim) -> list[DeviceId]:
    """Returns the devices that the allocation in a claim's status takes whole: no shares, no admin access."""
    allocation = claim.status.allocation
    taken = grant_of(allocation) if allocation is not None else ()
    return [one.device for one in taken if not one.admin and one.consumed is None]


def taken_devices(claim: ResourceClaim) -> list[DeviceId]:
    """Returns each device of which the allocation in a claim's status takes the whole, or a share, once."""
    allocation = claim.status.allocation
    taken = grant_of(allocation) if allocation is not None else ()
    return list(dict.fromkeys(one.device for one in taken if not one.admin))


class DeviceObjects:
    """Claims, and the offers of devices, at one moment. Immutable."""

    def __init__(
        self, claims: Mapping[str, ResourceClaim], offers: DeviceOffers, groups: Mapping[str, UpstreamPodGroup]
    ) -> None:
        self.claims = claims
        """Claims by `namespace/name`."""
        self.offers = offers
        self.groups = groups
        """Upstream PodGroups with claims, by `namespace/name`."""
        self.classes, self.slices = offers.classes, offers.slices

    def names_of(self, pod: Pod) -> list[ClaimName]:
        """Returns the claims that a pod names, existing or not."""
        return claim_names(pod, claim_group(pod, self.groups))

    @cached_property
    def usage(self) -> DeviceUsage:
        """The devices and counters that allocations in the status of claims use. Must not be changed."""
        usage = DeviceUsage(self.offers)
        for _, grant in self.grants():
            for one in grant:
                usage.change(one, 1)
        return usage

    def grants(self) -> Iterator[tuple[str, Grant]]:
        """Yields (allocated claim, its devices)."""
        for key, claim in self.claims.items():
            if claim.status.allocation is not None:
                yield key, grant_of(claim.status.allocation)

    @property
    def allocated(self) -> frozenset[DeviceId]:
        """Devices that claims take as a whole."""
        return frozenset(self.usage.whole)

    @cached_property
    def by_consumer(self) -> Mapping[str, list[str]]:
        """uid of a pod -> allocated claims that are reserved for it."""
        found: dict[str, list[str]] = {}
        for key, claim in self.claims.items():
            if claim.status.allocation is not None:
                for one in claim.status.reserved_for:
                    found.setdefault(one.uid, []).append(key)
        return found
