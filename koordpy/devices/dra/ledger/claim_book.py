# SPDX-License-Identifier: Apache-2.0
"""The book of resource claims: their objects, and the allocations of assumed pods, updated by events.

A view is its state in a snapshot, a ledger (`claim_ledger.py`) has the allocations of a draft.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from koordpy.api.claim_objects import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)
from koordpy.api.objects import Node, Pod, Wire
from koordpy.api.pod_groups import UpstreamPodGroup
from koordpy.devices.dra.ledger.claim_charges import ClaimCharges, ClaimCount
from koordpy.devices.dra.ledger.claim_ledger import ClaimLedger, ClaimView
from koordpy.devices.dra.ledger.device_book import DRA_KINDS, DeviceBook
from koordpy.devices.dra.ledger.device_objects import DeviceObjects, grant_of
from koordpy.devices.dra.ledger.offered_devices import DeviceOffers
from koordpy.pods.claim_refs import CLAIMS, IMPLICIT, Grant
from koordpy.pods.family_books import Amendment, DeviceLedger, FamilyBook, FamilyView
from koordpy.pods.object_book import object_key
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.resource_amounts import Amounts, ClaimedAmounts, add_amounts


class _NodeName(NamedTuple):
    """The values of a node on which the reach of devices depends."""

    name: str
    labels: Mapping[str, str]


class _NodeState(NamedTuple):
    """The values of a node on which the totals of devices depend."""

    stated: Mapping[str, object]
    """Allocatable amounts as the node states them."""
    going: bool
    """True if the node is being deleted."""


@dataclass(frozen=True)
class DeviceAmounts(Amendment):
    """Adds extended resources that a node serves by devices, because it states no allocatable amount of them."""

    devices: tuple[tuple[str, int], ...]
    """(resource, number of devices)."""

    def amended(self, stated: Amounts) -> Amounts:
        """Implements `Amendment.amended`."""
        return {**stated, **{name: number for name, number in self.devices if not stated.get(name)}}


class ClaimBook(FamilyBook):
    """Resource claims, slices and classes, updated per event, and the allocations of assumed pods.

    Methods without a docstring implement those of `FamilyBook`.
    """

    kinds = DRA_KINDS

    def __init__(
        self,
        amounts: Callable[[DeviceOffers, Any], dict[str, int]] | None = None,
        *,
        frees: bool = True,
        count: ClaimCount | None = None,
    ) -> None:
        """amounts: returns extended resource -> number of devices of a node that may serve it; None if devices serve no
        extended resources. frees: True if evictions free devices. count: the amounts that quotas count; None if quotas
        count no devices."""
        self._count = count
        self._charges = ClaimCharges(count) if count is not None else None
        self._states: dict[str, _NodeState] = {}
        self._total: tuple[object, dict[str, int]] | None = None
        """(offers, amounts) of the last `added_total`; None after a change of a node."""
        self._frees = frees
        self.is_idle = True
        self.objects = DeviceBook()
        self.gates_off: frozenset[str] = frozenset()
        """Feature gates that are known to be off in the API server."""
        self._amounts = amounts
        self._nodes: dict[str, _NodeName] = {}
        self._listed: tuple[_NodeName, ...] | None = None
        """The values of `_nodes`; None after a change."""
        self._counted: tuple[DeviceOffers | None, set[str]] = None, set()
        """(offers of the last `amended`, names of nodes that changed since)."""
        self._assumed: dict[str, Mapping[str, Grant]] = {}
        """Pod key -> claim -> devices allocated with the assumed pod."""
        self._uids: dict[str, str] = {}
        """Key of an assumed pod with devices -> its uid."""
        self._in_writing: dict[str, Grant] = {}
        """Claim -> devices of an allocation that is being written to the API server."""

    def put(self, obj: Any) -> None:
        self.is_idle = False
        self.objects.put(obj)

    def drop(self, kind: type[Wire], key: str) -> None:
        self.objects.drop(kind, key)

    def get(self, kind: type[Wire], key: str) -> Any:
        return self.objects.get(kind, key)

    def objects_of(self, kind: type[Wire]) -> Mapping[str, Any]:
        objects = self.objects.view()
        offers = objects.offers
        known: dict[type[Wire], Mapping[str, Any]] = {
            ResourceClaim: objects.claims,
            ResourceSlice: offers.slices,
            DeviceClass: offers.classes,
            DeviceTaintRule: offers.rules,
        }
        return known[kind]

    def put_group(self, group: UpstreamPodGroup) -> None:
        self.objects.put_group(object_key(group), group)

    def drop_group(self, key: str) -> None:
        self.objects.put_group(key, None)

    def put_node(self, node: Node) -> None:
        name, labels = node.metadata.name, node.metadata.labels
        known = self._nodes.get(name)
        state = _NodeState(node.status.allocatable or node.status.capacity, bool(node.metadata.deletion_timestamp))
        if self._states.get(name) != state:
            self._states[name], self._total = state, None
        if known is None or known.labels != labels:
            self._nodes[name], self._total, self._listed = _NodeName(name, labels), None, None
            self._counted[1].add(name)

    def drop_node(self, name: str) -> None:
        self._nodes.pop(name, None)
        self._states.pop(name, None)
        self._total = self._listed = None

    @property
    def amended(self) -> Collection[str]:
        offers = self.objects.view().offers
        before, changed_nodes = self._counted
        if self._amounts is None:
            return ()
        names = list(self._nodes) if offers is not before else [name for name in changed_nodes if name in self._nodes]
        self._counted = offers, set()
        return names

    def amendment(self, node: str) -> Amendment | None:
        assert self._amounts is not None
        found = self._amounts(self.objects.view().offers, self._nodes[node])
        return DeviceAmounts(tuple(found.items())) if found else None

    def charges(self, pods: Iterable[PodInfo]) -> Mapping[str, ClaimedAmounts]:
        if self._charges is None:
            return {}
        if self._listed is None:
            self._listed = tuple(self._nodes.values())
        return self._charges.of_pods(pods, self.objects.view(), self._assumed, self._listed)

    def added_total(self) -> Mapping[str, int]:
        offers = self.objects.view().offers
        if self._count is None:
            return {}
        if self._total is None or self._total[0] is not offers:
            self._total = offers, self._count_total(self._count, offers)
        return self._total[1]

    def _count_total(self, count: ClaimCount, offers: DeviceOffers) -> dict[str, int]:
        """Returns the devices of all nodes that are not being deleted, less what amendments add to single nodes."""
        nodes = [node for name, node in self._nodes.items() if not self._states[name].going]
        served: dict[str, set[str]] = {}
        for node in nodes:
            for resource, amount in self._states[node.name].stated.items():
                if str(amount) != "0":
                    served.setdefault(resource, set()).add(node.name)
        total = dict(count.totals(offers, nodes, served))
        for node in nodes if self._amounts is not None else ():
            found = self._amounts(offers, node) if self._amounts is not None else {}
            add_amounts(total, {r: n for r, n in found.items() if node.name not in served.get(r, ())}, -1)
        return {resource: amount for resource, amount in total.items() if amount}

    def device_users(self, *, pods: Collection[str] = (), node: str = "") -> Iterable[Collection[str]]:
        objects = self.objects.view()
        keys = dict.fromkeys(key for uid in pods for key in objects.by_consumer.get(uid, ()))
        if (known := self._nodes.get(node)) is not None:
            here = {device.id for device in objects.offers.at(known).devices}
            keys.update(
                dict.fromkeys(key for key, grant in objects.grants() if any(one.device in here for one in grant))
            )
        for key in keys:
            consumers = objects.claims[key].status.reserved_for
            if consumers and all(one.resource == "pods" for one in consumers):
                yield {one.uid for one in consumers}

    def hold(self, pod: PodInfo, given: Any) -> None:
        if given:
            self._assumed[pod.key], self._uids[pod.key] = given, pod.uid

    def release(self, pod: PodInfo) -> None:
        self._assumed.pop(pod.key, None)
        self._uids.pop(pod.key, None)

    def bind(self, pod: Pod, node: str, given: Any) -> None:
        self.objects.allocate(pod, node, given or {})

    def write(self, claim: str, devices: Grant) -> None:
        """Records that an allocation is being written to the API server.

        The devices stay reserved if the pod is deleted before the answer.
        """
        self._in_writing[claim] = devices

    def written(self, claim: str) -> None:
        """Records that the result of a write is known, and is part of the claim from now on."""
        self._in_writing.pop(claim, None)

    def grants(self) -> dict[str, Grant]:
        """Returns claim -> devices that are allocated for an assumed pod, or by a write in progress."""
        found = self._in_writing.copy()
        for key, own in self._assumed.items():
            for claim, devices in own.items():
                if not claim.endswith(IMPLICIT) or not self._is_made(self._uids[key], devices):
                    found[claim] = devices
        return found

    def _is_made(self, uid: str, devices: Grant) -> bool:
        """Returns whether a claim for the extended resources of a pod has these devices in its status."""
        for key in self.objects.implicit.get(uid, ()):
            allocation = self.objects.get(ResourceClaim, key).status.allocation
            made = grant_of(allocation) if allocation is not None else ()
            if [(one.request, one.device) for one in made] == [(one.request, one.device) for one in devices]:
                return True
        return False

    def view(self) -> ClaimView:
        extended = self._amounts is not None
        return ClaimView(self.objects.view(), self.live, self._frees, self.grants(), self.gates_off, extended)


NO_CLAIMS = ClaimView(DeviceObjects({}, DeviceOffers({}, {}, {}), {}))
"""View of a cluster without resource claims."""


def claim_view(families: Mapping[str, FamilyView]) -> ClaimView:
    """Returns the resource claims of a snapshot (`Snapshot.families`)."""
    return cast(ClaimView, families.get(CLAIMS, NO_CLAIMS))


def claim_ledger(ledgers: Mapping[str, DeviceLedger]) -> ClaimLedger:
    """Returns the claim ledger of a Draft (`Draft.ledgers`)."""
    found = ledgers.get(CLAIMS)
    return cast(ClaimLedger, found) if found is not None else ClaimLedger(NO_CLAIMS)


def claim_book(families: Mapping[str, FamilyBook]) -> ClaimBook:
    """Returns the claim book of a cluster (`ClusterState.families`)."""
    return cast(ClaimBook, families[CLAIMS])
