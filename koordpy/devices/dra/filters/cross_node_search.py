# SPDX-License-Identifier: Apache-2.0
"""Whether the claims of pods on several nodes find devices together, where nodes share network-attached devices.

The devices of all nodes are one list, and each claim takes only devices that all nodes of its pods can use. Claims for
numbers of whole devices are a matching of results to devices, found by augmenting paths in O(results x devices). Other
claims are searched with backtracking, within `dra.searchLimit`. Source: docs/rules/dra.md 6, 7.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from koordpy.devices.dra.filters.claim_requests import Alternative, AttemptFault, UnallocatedClaim, UndecidedNode
from koordpy.devices.dra.filters.device_matching import DeviceMatching
from koordpy.devices.dra.filters.pod_claims import DraftClaims
from koordpy.devices.dra.filters.restricted_search import RestrictedSearch
from koordpy.devices.dra.filters.searched_claim import SearchedClaim
from koordpy.devices.dra.ledger.device_usage import DeviceUsage
from koordpy.devices.dra.ledger.offered_devices import NodeDevices, NodePool, OfferedDevice
from koordpy.devices.links.device_masks import bits_of
from koordpy.pods.claim_refs import DeviceId


class CrossNodeSearch(RestrictedSearch):
    """A search for the claims of pods on several nodes."""

    def __init__(
        self,
        devices: Sequence[OfferedDevice],
        claims: Mapping[UnallocatedClaim, "ClaimReach"],
        usage: DeviceUsage,
        matching: DeviceMatching,
        *,
        limit: int,
        closed: frozenset[DeviceId],
    ) -> None:
        """claims: each with the devices that its pods reach."""
        runs = [tuple(some) for _, some in groupby(devices, key=lambda one: id(one.pool))]
        offer = NodeDevices([NodePool(some[0].pool, "", some, some) for some in runs])
        permitted = [one.permitted for one in claims.values()]
        super().__init__(offer, list(claims), usage, matching, limit=limit, closed=closed, permitted=permitted)
        self._first = [one.first for one in claims.values()]

    def _all_of(self, claim: SearchedClaim, alternative: Alternative) -> list[int]:
        return [at for at in super()._all_of(claim, alternative) if self._first[claim.number] >> at & 1]

    def is_possible(self, *, undecided: bool = False) -> bool:
        """Returns whether all claims find devices together; `undecided` if the search is cut short."""
        requests = self.numbers()
        if requests is not None:
            return _is_matched(mask for own in requests for count, mask in own for _ in range(count))
        try:
            return self.first() is not None
        except (UndecidedNode, AttemptFault):
            return undecided


def _is_matched(masks: Iterable[int]) -> bool:
    """Returns whether each mask can get one of its bits, and no two masks the same bit."""
    holder: dict[int, int] = {}

    def place(mask: int, seen: set[int]) -> bool:
        for bit in bits_of(mask):
            if bit not in seen:
                seen.add(bit)
                if bit not in holder or place(holder[bit], seen):
                    holder[bit] = mask
                    return True
        return False

    return all(place(mask, set()) for mask in masks)


class ClaimReach(NamedTuple):
    """The devices that the pods of a claim reach, as masks of positions."""

    first: int
    """Devices that the node of the first pod reaches."""
    permitted: int
    """Devices that the claim may take: all nodes of its pods can use them."""


def common_devices(pods: Iterable[tuple[DraftClaims, int]]) -> dict[str, frozenset[OfferedDevice]]:
    """Returns, for each open claim (`namespace/name`) of pods on several nodes, the devices that all of them can use.

    A device that binds to the node of its first pod is not among them. pods: each with its node (position).
    """
    nodes: dict[str, dict[int, DraftClaims]] = {}
    for pod, node in pods:
        for key in pod.keys:
            nodes.setdefault(key, {})[node] = pod
    found = {}
    for key, places in nodes.items():
        if len(places) > 1 and key in next(iter(places.values())).open_keys():
            near = (frozenset(pod.offers.at(pod.node(node)).devices) for node, pod in places.items())
            common = frozenset.intersection(*near)
            found[key] = frozenset(one for one in common if not (one.node or one.facts.binds_to_node))
    return found


class SharedDevices:
    """The open claims of pods on their nodes, and the devices that several of these nodes share."""

    def __init__(
        self,
        pods: Sequence[tuple[DraftClaims, int]],
        without: Collection[str] = (),
        common: Mapping[str, Collection[OfferedDevice]] | None = None,
    ) -> None:
        """pods: each with its node (position), in rank order. without: claims that are left out, by `namespace/name`.
        common: devices of each claim of pods on several nodes, also on nodes of other pods; None for those of `pods`.
        """
        self._pods = pods
        self._common = common_devices(pods) if common is None else common
        positions: dict[OfferedDevice, int] = {}
        masks: dict[int, int] = {}
        self.claims: dict[UnallocatedClaim, ClaimReach] = {}
        for pod, node in pods:
            claims = pod.wants_at(node).claims
            near = pod.offers.at(pod.node(node)).devices if claims else ()
            if claims and node not in masks:
                masks[node] = sum(1 << positions.setdefault(one, len(positions)) for one in near)
            for claim in claims:
                if claim.key in without or claim in self.claims:
                    continue
                permitted = masks[node]
                if claim.key in self._common:
                    wanted = self._common[claim.key]
                    permitted = sum(1 << positions[one] for one in near if one in wanted)
                self.claims[claim] = ClaimReach(masks[node], permitted)
        self._masks, self._devices = masks, list(positions)

    @property
    def are_shared(self) -> bool:
        """True if several nodes with open claims reach a device, or name a claim."""
        every = 0
        for mask in self._masks.values():
            if every & mask:
                return True
            every |= mask
        return bool(self._common)

    def is_possible(self) -> bool:
        """Returns whether the claims of all pods find devices together, on the draft as it is now."""
        if not self.claims:
            return True
        lead = self._pods[0][0]
        closed = frozenset[DeviceId]().union(*(pod.closed() for pod, _ in self._pods))
        return CrossNodeSearch(
            self._devices,
            self.claims,
            lead.usage,
            DeviceMatching(lead.offers),
            limit=lead.search_limit,
            closed=closed,
        ).is_possible()

    def twins(self, devices: Sequence[OfferedDevice]) -> list[int]:
        """Returns a key of each device of a node that is equal for devices which the claims of these pods treat
        alike."""
        matching, index = DeviceMatching(self._pods[0][0].offers), {one: i for i, one in enumerate(self._devices)}
        numbers: dict[Any, int] = {}
        out: list[int] = []
        for device in devices:
            at = index.get(device)
            near = [claim for claim, reach in self.claims.items() if at is not None and reach.permitted >> at & 1]
            answers = tuple(
                (matching.suits(one, device), tuple(device.capacity.items()) if one.capacity else ())
                for claim in near
                for request in claim.spec.requests
                for one in request.alternatives
            )
            values = tuple(device.attribute(one.attribute) for claim in near for one in claim.spec.constraints)
            key = tuple(claim.key for claim in near), answers, values
            out.append(numbers.setdefault(key, len(numbers)))
        return out
