"""Resource claims, slices and device classes: the dynamically allocated side of a snapshot (kube-parity.md 6).

Only the newest generation of a pool counts, and only where all of its slices are there.
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


class ClaimLedger(DeviceLedger):
    """What a Draft allocates. given: pod key -> resource claim -> its devices; taken: the same by claim, with those of
    assumed pods."""

    def __init__(self, promised: Mapping[str, Grant]) -> None:
        super().__init__()
        self.taken: dict[str, Grant] = dict(promised)

    def assign(self, pod: PodInfo, node: int, given: Any) -> None:
        super().assign(pod, node, given)
        self.taken.update(given)

    def release(self, pod: PodInfo) -> None:
        for claim in self.given[pod.key]:
            del self.taken[claim]
        super().release(pod)


@dataclass(frozen=True, eq=False)
class ClaimView(FamilyView):
    """Resource claims, slices and classes of one moment. promised: claim -> what it is allocated with an assumed pod,
    or by a write that is under way."""

    objects: DeviceObjects
    promised: Mapping[str, Grant] = field(default_factory=dict)

    def ledger(self) -> ClaimLedger:
        return ClaimLedger(self.promised)


class ClaimBook(FamilyBook):
    """Resource claims and what they are allocated from as they come and go, and what assumed pods are allocated."""

    kinds = DEVICE_KINDS

    def __init__(self) -> None:
        self.is_idle = True
        self.objects = DeviceBook()
        self._assumed: dict[str, Mapping[str, Grant]] = {}
        self._in_writing: dict[str, Grant] = {}

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
        """What a resource claim is allocated is on its way to the API server: it is not free again when the pod that
        it is for is gone before the answer."""
        self._in_writing[claim] = devices

    def written(self, claim: str) -> None:
        """What became of that is known, and told by the claim."""
        self._in_writing.pop(claim, None)

    def grants(self) -> dict[str, Grant]:
        """Resource claim -> what it is allocated with an assumed pod, or by a write that is under way."""
        taken = {claim: devices for own in self._assumed.values() for claim, devices in own.items()}
        return self._in_writing | taken

    def view(self) -> ClaimView:
        return ClaimView(self.objects.view(), self.grants())


NO_CLAIMS = ClaimView(DeviceObjects({ResourceClaim: {}, DeviceClass: {}, ResourceSlice: {}}))


def claim_view(families: Mapping[str, FamilyView]) -> ClaimView:
    """Returns the resource claims of a snapshot (`Snapshot.families`)."""
    return cast(ClaimView, families.get(CLAIMS, NO_CLAIMS))


def claim_ledger(ledgers: Mapping[str, DeviceLedger]) -> ClaimLedger:
    """Returns what a Draft allocates (`Draft.ledgers`)."""
    found = ledgers.get(CLAIMS)
    return cast(ClaimLedger, found) if found is not None else ClaimLedger({})


def claim_book(families: Mapping[str, FamilyBook]) -> ClaimBook:
    """Returns the resource claims of a cluster (`ClusterState.families`)."""
    return cast(ClaimBook, families[CLAIMS])


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
