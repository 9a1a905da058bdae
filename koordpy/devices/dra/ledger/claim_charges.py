# SPDX-License-Identifier: Apache-2.0
"""The pod for which quotas count a claim, and the amount. Source: docs/rules/dra.md 11.

A claim counts once. An allocated claim counts for its first reservation (a pod, or the gang of its PodGroup), and not
at all if it is reserved for no pod. A claim without an allocation counts for the oldest pod that names it; in a gang,
for the member with the lowest rank. The claim for a pod's extended resources does not count, because the pod's request
counts.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from koordpy.api.claim_objects import ResourceClaim
from koordpy.api.natural_order import natural_key
from koordpy.api.objects import Pod
from koordpy.devices.dra.ledger.device_objects import DeviceObjects, grant_of
from koordpy.devices.dra.ledger.extended_claims import MADE
from koordpy.devices.dra.ledger.offered_devices import DeviceOffers, ReachingNode
from koordpy.pods.claim_refs import ClaimName, Grant
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.resource_amounts import Amounts, ClaimedAmounts, add_amounts


class ClaimCount(Protocol):
    """Computes the amounts that quotas count for claims."""

    def allocated_amounts(self, claim: ResourceClaim, grant: Grant, offers: DeviceOffers) -> Amounts:
        """Returns resource -> amount of allocated devices."""

    def requested_amounts(self, claim: ResourceClaim, offers: DeviceOffers, nodes: Collection[ReachingNode]) -> Amounts:
        """Returns resource -> amount of a claim without an allocation: the most that its requests may take on a
        node."""

    def totals(
        self, offers: DeviceOffers, nodes: Collection[ReachingNode], served: Mapping[str, Collection[str]]
    ) -> Amounts:
        """Returns resource -> amount of the devices that the given nodes reach.

        served: resource -> names of nodes that serve it by a device plugin, so that their devices do not count.
        """


class ClaimCharges:
    """The amounts that quotas count for the claims of pods, cached by claim and pod."""

    def __init__(self, count: ClaimCount) -> None:
        self._count = count
        self._amounts: dict[str, tuple[object, object, object, object, Amounts]] = {}
        """Claim -> (its object, its promised devices, offers of devices, nodes, amounts)."""
        self._names: dict[str, tuple[Pod, object, list[ClaimName]]] = {}
        """Pod key -> (pod, PodGroups with claims, claims that it names)."""

    def of_pods(
        self,
        pods: Iterable[PodInfo],
        objects: DeviceObjects,
        promised: Mapping[str, Mapping[str, Grant]],
        nodes: Collection[ReachingNode],
    ) -> dict[str, ClaimedAmounts]:
        """Returns pod key -> amounts that count for the pod, without pods for which nothing counts.

        pods: all pods with resource claims. promised: assumed pod -> claim -> devices that are allocated for it.
        nodes: all nodes; the same object as long as no name and no label changes.
        """
        users, by_uid = self._users(pods, objects)
        taken = {claim: (key, grant) for key, own in promised.items() for claim, grant in own.items()}
        charges: dict[str, ClaimedAmounts] = {}
        for claim, sharing in users.items():
            found = objects.claims.get(claim)
            if found is None or MADE in found.metadata.annotations:
                continue
            holder, grant = taken.get(claim, ("", None))
            amounts = self._of(claim, found, grant, objects.offers, nodes)
            payers = ([holder] if holder else _payers(found, sharing, by_uid)) if amounts else []
            for i, payer in enumerate(payers):
                charge = charges.setdefault(payer, ClaimedAmounts({}, {}, {}))
                for part in charge[: 1 + (len(sharing) > 1) + (i > 0)]:
                    add_amounts(part, amounts)
        return charges

    def _users(
        self, pods: Iterable[PodInfo], objects: DeviceObjects
    ) -> tuple[dict[str, list[PodInfo]], dict[str, str]]:
        """Returns (claim -> unfinished pods that name it, uid of these pods -> key)."""
        users: dict[str, list[PodInfo]] = {}
        by_uid: dict[str, str] = {}
        names: dict[str, tuple[Pod, object, list[ClaimName]]] = {}
        for pod in pods:
            if pod.finished:
                continue
            known = self._names.get(pod.key)
            if known is None or known[0] is not pod.pod or known[1] is not objects.groups:
                known = pod.pod, objects.groups, objects.names_of(pod.pod)
            names[pod.key] = known
            by_uid[pod.uid] = pod.key
            for name in dict.fromkeys(one.name for one in known[2]):
                users.setdefault(f"{pod.namespace}/{name}", []).append(pod)
        self._names = names
        return users, by_uid

    def _of(
        self,
        key: str,
        claim: ResourceClaim,
        grant: Grant | None,
        offers: DeviceOffers,
        nodes: Collection[ReachingNode],
    ) -> Amounts:
        known = self._amounts.get(key)
        if known is None or any(a is not b for a, b in zip(known, (claim, grant, offers, nodes), strict=False)):
            allocation = claim.status.allocation
            if allocation is not None:
                found = self._count.allocated_amounts(claim, grant_of(allocation), offers)
            elif grant is not None:
                found = self._count.allocated_amounts(claim, grant, offers)
            else:
                found = self._count.requested_amounts(claim, offers, nodes)
            known = self._amounts[key] = claim, grant, offers, nodes, found
        return known[4]


def _payers(claim: ResourceClaim, users: Sequence[PodInfo], by_uid: Mapping[str, str]) -> list[str]:
    """Returns the keys of the pods for which a claim counts; empty for none.

    An allocated claim counts for one pod. A claim without an allocation also counts for the first pod of every other
    unit that names it, because the unit that is placed first must have the amount in its quota.
    """
    consumers = claim.status.reserved_for
    if consumers and consumers[0].resource == "podgroups":
        return [min(users, key=lambda pod: (not pod.bound, pod.order)).key]
    if consumers:
        return [key for one in consumers[:1] if (key := by_uid.get(one.uid)) is not None]
    if claim.status.allocation is not None:
        return []
    waiting = [pod for pod in users if pod.pending] or list(users)
    first: dict[object, PodInfo] = {}
    for pod in sorted(waiting, key=lambda one: one.order):
        first.setdefault(pod.gang or pod.key, pod)
    age = {unit: min(pod.created for pod in waiting if (pod.gang or pod.key) == unit) for unit in first}
    return [first[unit].key for unit in sorted(first, key=lambda one: (age[one], natural_key(first[one].key)))]
