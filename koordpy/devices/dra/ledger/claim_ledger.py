# SPDX-License-Identifier: Apache-2.0
"""The allocations of a draft: devices of pods that a plan places, and devices of claims that evictions free.

`ClaimView` has the objects of the snapshot on which the draft is based.

Sources: dra.md 7, 10.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from koordpy.api.claim_objects import (
    Allocation,
    ClaimConsumer,
    ResourceSlice,
)
from koordpy.devices.dra.ledger.device_objects import DeviceObjects, grant_of
from koordpy.devices.dra.ledger.device_usage import DeviceUsage
from koordpy.devices.dra.ledger.extended_claims import class_of
from koordpy.devices.dra.ledger.offered_devices import DeviceOffers
from koordpy.pods.claim_refs import CLAIMS, Grant
from koordpy.pods.family_books import DeviceLedger, FamilyView
from koordpy.pods.pod_info import PodInfo


class ClaimLedger(DeviceLedger):
    """Allocations of a Draft, and devices in use with them."""

    def __init__(self, view: "ClaimView") -> None:
        super().__init__()
        self._objects, self._frees, self._live = view.objects, view.frees, view.live
        self.taken: dict[str, Grant] = dict(view.promised)
        """Claim -> devices that are allocated on the Draft, for assumed pods, or by a write in progress."""
        self.nodes: dict[str, int] = {}
        """Claim that the Draft has allocated -> node position of its first pod."""
        self.freed: dict[str, None] = {}
        """Claims with devices that evictions of the draft have freed."""
        self.users: dict[str, set[str]] = {}
        """Claim that several pods of the Draft share -> uids of these pods."""
        self.apart: dict[bytes, int] = {}
        """Shape of gang members -> number of members with equal claims, for shapes with devices that must be searched
        together."""
        self.shared: set[str] = set()
        """Claims without an allocation that several members of a gang name."""
        self._gone: dict[str, set[str]] = {}
        """Claim -> uids of those consumers that the Draft evicts."""
        self._usage: DeviceUsage | None = None
        self.changed: list[tuple[str, str]] = []
        """(driver, pool) of each device that was taken or freed, in order."""
        self._leaving: list[str] | None = None
        """`leaving_claims` of the snapshot; None if not computed yet."""
        self._naming: dict[str, set[str]] | None = None
        """Claim -> uids of unfinished pods that name it; None if not computed yet."""
        self.memo: dict[Any, Any] = {}
        """Results of the filter for this Draft."""

    @property
    def usage(self) -> DeviceUsage:
        """Devices in use, with the changes of the Draft. Only the ledger changes it."""
        if self._usage is None:
            self._usage = self._objects.usage.copy()
            for claim, grant in self.taken.items():
                if self.stated_allocation(claim) is None:
                    self._change(grant, 1)
        return self._usage

    def allocation(self, claim: str) -> Allocation | None:
        """Returns the allocation in the status of a claim, unless evictions have freed it."""
        return None if claim in self.freed else self.stated_allocation(claim)

    def stated_allocation(self, claim: str) -> Allocation | None:
        """Returns the allocation in the status of a claim, also if evictions have freed it."""
        known = self._objects.claims.get(claim)
        return known.status.allocation if known is not None else None

    def _change(self, grant: Grant, sign: int) -> None:
        usage = self.usage
        for one in grant:
            usage.change(one, sign)
            self.changed.append((one.device.driver, one.device.pool))

    def assign(self, pod: PodInfo, node: int, given: Any) -> None:
        """Implements `DeviceLedger.assign`. given: claim -> its devices."""
        super().assign(pod, node, given)
        for claim, grant in given.items():
            self.taken[claim] = grant
            self.nodes[claim] = node
            self._change(grant, 1)
        for one in self._objects.names_of(pod.pod):
            self.users.setdefault(f"{pod.namespace}/{one.name}", set()).add(pod.uid)

    def release(self, pod: PodInfo) -> None:
        """Implements `DeviceLedger.release`."""
        for claim, grant in self.allocations[pod.key].items():
            self._change(grant, -1)
            del self.taken[claim], self.nodes[claim]
        for one in self._objects.names_of(pod.pod):
            self.users[f"{pod.namespace}/{one.name}"].discard(pod.uid)
        super().release(pod)

    def untie(self, claims: Sequence[str]) -> Callable[[], None]:
        """Frees the devices of allocated claims that no bound pod uses; returns the function that undoes it."""
        grants = {}
        for claim in claims:
            allocation = self.stated_allocation(claim)
            assert allocation is not None
            grants[claim] = grant_of(allocation)
            self.freed[claim] = None
            self._change(grants[claim], -1)

        def undo() -> None:
            for claim, grant in grants.items():
                del self.freed[claim]
                self._change(grant, 1)

        return undo

    def leaving_claims(self, pods: Mapping[str, PodInfo]) -> list[str]:
        """Returns the allocated claims of which every consumer is a pod that is terminating, finished or deleted.

        Their devices come free, at the latest when koordpy releases the claim of such a pod (dra.md 10). pods: all pods
        of the snapshot.
        """
        if self._leaving is None:
            staying = {
                pod.uid
                for pod in pods.values()
                if CLAIMS in pod.asks and not pod.pod.metadata.deletion_timestamp and not pod.finished
            }
            keys = dict.fromkeys(key for keys in self._objects.by_consumer.values() for key in keys)
            self._leaving = [
                key
                for key in keys
                if all(one.resource == "pods" and one.uid not in staying for one in self._consumers(key))
            ]
        return [key for key in self._leaving if key not in self.taken and self.allocation(key) is not None]

    def untie_deleted(self, pods: Mapping[str, PodInfo]) -> Callable[[], None] | None:
        """Implements `DeviceLedger.untie_deleted`."""
        leaving = self.leaving_claims(pods) if self._live else []
        uids = {pod.uid for pod in pods.values() if not pod.finished} if leaving else set()
        gone = [
            key
            for key in leaving
            if all(one.uid not in uids or one.uid in self._gone.get(key, ()) for one in self._consumers(key))
        ]
        return self.untie(gone) if gone else None

    def _consumers(self, claim: str) -> Sequence[ClaimConsumer]:
        return self._objects.claims[claim].status.reserved_for

    def claims_of(self, pod: PodInfo) -> list[str]:
        """Returns the existing claims that a bound pod names, and the allocated claims that are reserved for it."""
        named = [f"{pod.namespace}/{one.name}" for one in self._objects.names_of(pod.pod)]
        keys = dict.fromkeys([*named, *self._objects.by_consumer.get(pod.uid, ())])
        return [key for key in keys if key in self._objects.claims]

    def moved_together(self, pod: PodInfo, pods: Mapping[str, PodInfo]) -> frozenset[str] | None:
        """Implements `DeviceLedger.moved_together`: the pods for which the pod's claims are reserved.

        None if a claim is missing, is reserved for no pod or for a PodGroup, or is named by a pod without a
        reservation.
        """
        if self._naming is None:
            self._naming = {}
            for one in pods.values():
                for name in self._objects.names_of(one.pod) if CLAIMS in one.asks and not one.finished else ():
                    self._naming.setdefault(f"{one.namespace}/{name.name}", set()).add(one.uid)
        if any(f"{pod.namespace}/{one.name}" not in self._objects.claims for one in self._objects.names_of(pod.pod)):
            return None
        found: set[str] = set()
        for key in self.claims_of(pod):
            if self.stated_allocation(key) is None and key not in self.taken:
                continue
            consumers = self._consumers(key)
            uids = {one.uid for one in consumers}
            is_fixed = not consumers or any(one.resource != "pods" for one in consumers)
            if is_fixed or not self._frees or key in self.taken or not self._naming.get(key, uids) <= uids:
                return None
            found |= uids
        return frozenset(found)

    def evict(self, pod: PodInfo) -> None:
        """Implements `DeviceLedger.evict`: a claim is free once the Draft evicts all of its consumers, unless a pod
        that the Draft has placed uses it."""
        for claim in self._objects.by_consumer.get(pod.uid, ()) if self._frees else ():
            gone = self._gone.setdefault(claim, set())
            gone.add(pod.uid)
            known = self._objects.claims[claim]
            if all(one.uid in gone for one in self._consumers(claim)) and not self.users.get(claim):
                self.freed[claim] = None
                assert known.status.allocation is not None
                self._change(grant_of(known.status.allocation), -1)

    def restore(self, pod: PodInfo) -> None:
        """Implements `DeviceLedger.restore`."""
        for claim in self._objects.by_consumer.get(pod.uid, ()) if self._frees else ():
            self._gone[claim].discard(pod.uid)
            if claim in self.freed:
                del self.freed[claim]
                known = self._objects.claims[claim]
                assert known.status.allocation is not None
                self._change(grant_of(known.status.allocation), 1)


@dataclass(frozen=True, eq=False)
class ClaimView(FamilyView):
    """Resource claims, slices and classes at one moment. Immutable."""

    objects: DeviceObjects
    live: bool = False
    """True for a real cluster, in which other controllers use claims as well."""
    frees: bool = True
    """False if evictions free no devices."""
    promised: Mapping[str, Grant] = field(default_factory=dict)
    """Claim -> devices that are allocated for an assumed pod, or by a write in progress."""
    gates_off: frozenset[str] = frozenset()
    """Feature gates without which the API server has dropped fields of allocations."""
    extended: bool = True
    """False if devices serve no extended resources."""

    @property
    def warnings(self) -> tuple[tuple[str, str], ...]:  # type: ignore[override]
        """(object, text) of pools that offer nothing."""
        return self.objects.offers.warnings

    def with_nodes(self, like: Mapping[str, str]) -> "ClaimView":
        """Implements `FamilyView.with_nodes`: copies the slices of a node, each pool with the name of the new node."""
        offers = self.objects.offers
        added = {
            f"{key}-{new}": _slice_on(new, one)
            for new, old in like.items()
            if old
            for key, one in offers.slices.items()
            if one.spec.node_name == old
        }
        if not added:
            return self
        offers = DeviceOffers({**offers.slices, **added}, offers.classes, offers.rules)
        return replace(self, objects=DeviceObjects(self.objects.claims, offers, self.objects.groups))

    def served_resources(self, resources: Collection[str]) -> frozenset[str]:
        """Implements `FamilyView.served_resources`."""
        names = (name for name in resources if "/" in name) if self.extended else ()
        return frozenset(name for name in names if class_of(name, self.objects.offers) is not None)

    def ground(self) -> object:
        """Implements `FamilyView.ground`: the devices that are offered."""
        return self.objects.offers

    def ledger(self) -> ClaimLedger:
        """Implements `FamilyView.ledger`."""
        return ClaimLedger(self)


def _slice_on(node: str, like: ResourceSlice) -> ResourceSlice:
    """Returns a slice of a new node (name) that equals a slice of another node."""
    meta = structs.replace(like.metadata, name=f"{like.metadata.name}-{node}", uid="")
    pool = structs.replace(like.spec.pool, name=f"{like.spec.pool.name}-{node}")
    return structs.replace(like, metadata=meta, spec=structs.replace(like.spec, node_name=node, pool=pool))
