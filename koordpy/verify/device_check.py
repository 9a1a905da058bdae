# SPDX-License-Identifier: Apache-2.0
"""Checks the devices that a plan allocates to resource claims (dra.md 1, 2, 4, 5, 6, 10).

It reads the statuses of claims, the ResourceSlices and the plan's allocations, and shares no code with the search that
chose the devices. The conditions are:
- The newest generation of a complete pool offers each device on the pod's node.
- No other claim has the device; shared counters, and capacities of shared devices, are sufficient for all claims.
- The claim has the requested numbers of devices, and its constraints are satisfied.
- Links between the devices of a pod are fast enough (`bandwidth_check.py`).
- The devices of a pod are in the NUMA zones that it demands (`claim_zone_check.py`).
- The pods of an allocated claim are on nodes of its allocation.

CEL selectors are not evaluated again.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from functools import partial
from typing import Any

from koordpy.api import keys
from koordpy.api.claim_objects import BasicDevice, DeviceRequest, ResourceClaim, ResourceSlice
from koordpy.api.counted_nouns import count_noun
from koordpy.api.label_selectors import term_matches
from koordpy.api.objects import NodeSelector
from koordpy.api.quantity import parse_exact
from koordpy.cache.plan_draft import Draft
from koordpy.cache.reservations import reserved_devices
from koordpy.cache.snapshot import NodeInfo
from koordpy.pods.claim_refs import CLAIMS, IMPLICIT, DeviceId, Grant, Granted
from koordpy.pods.pod_info import PodInfo
from koordpy.verify.bandwidth_check import LinkedDevice, slow_links
from koordpy.verify.claim_zone_check import NUMA_FAMILY, misaligned_devices


class DeviceCheck:
    """Checks all devices of one plan. The draft must contain the plan."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        view: Any = draft.snapshot.families.get(CLAIMS)
        self.claims: Mapping[str, ResourceClaim] = view.objects.claims if view is not None else {}
        self.names_of = view.objects.names_of if view is not None else lambda pod: []
        self.slices = _current(view.objects.slices.values()) if view is not None else {}
        gone = {pod.uid for pod in draft.evicted.values()}
        in_use = self._claims_in_use()
        self.stated = {
            key: claim
            for key, claim in self.claims.items()
            if claim.status.allocation is not None
            and not (
                key not in in_use
                and claim.status.reserved_for
                and all(one.uid in gone for one in claim.status.reserved_for)
            )
        }
        """Key of a claim -> its allocation, for claims that stay allocated after the plan's evictions."""
        promised: Mapping[str, Grant] = view.promised if view is not None else {}
        self.planned: dict[str, tuple[Grant, NodeInfo | None]] = {
            key: (grant, None) for key, grant in promised.items() if key not in self.stated
        }
        """Key of a claim that the draft, or a plan in progress, allocates -> (its devices, node of its pod).

        The node is empty for an allocation of an earlier plan that is being written.
        """
        for key, node in draft.placed.items():
            for claim_key, grant in (draft.family_devices_of(key, CLAIMS) or {}).items():
                self.planned[claim_key] = grant, draft.snapshot.nodes[node]
        pending = {pod.uid for pod in draft.snapshot.pods.values() if not pod.bound}
        for key in self.stated.keys() & self.planned.keys():
            groups = {one.uid for one in self.stated[key].status.reserved_for if one.resource == "podgroups"}
            if all(one.uid in pending | groups for one in self.stated[key].status.reserved_for):
                del self.stated[key]  # no pod uses the current allocation, so the plan may replace it
        self._sum_up()

    def _claims_in_use(self) -> set[str]:
        """Returns the claims that pods of the draft use with their current allocation."""
        draft, found, given = self.draft, set[str](), set[str]()
        for key in draft.placed:
            pod = draft.snapshot.pods[key]
            given.update(draft.family_devices_of(key, CLAIMS) or {})
            if key not in draft.evicted:
                found.update(f"{pod.namespace}/{one.name}" for one in self.names_of(pod.pod))
        return found - given

    def _sum_up(self) -> None:
        """Adds up the allocations of all claims: whole devices, shares, capacities and counters."""
        self.whole: Counter[DeviceId] = Counter()
        self.shares: Counter[DeviceId] = Counter()
        self.amounts: dict[tuple[DeviceId, str], Fraction] = {}
        for claim in self.stated.values():
            assert claim.status.allocation is not None
            for one in claim.status.allocation.devices.results:
                consumed = dict(one.consumed_capacity) if one.share_id else None
                if not one.admin_access:
                    self._add(DeviceId(one.driver, one.pool, one.device), consumed)
        self.shared_before = frozenset(self.shares)
        """Devices with shares before the plan: a further share of them draws on no counter."""
        for key, (grant, _) in self.planned.items():
            for granted in grant if key not in self.stated else ():
                if not granted.admin:
                    self._add(granted.device, None if granted.consumed is None else dict(granted.consumed))
        self.counters: dict[tuple[str, str, str, str], Fraction] = {}
        for device in {*self.whole, *self.shares}:
            for name, amount in _draws(self._facts(device)):
                counter = device.driver, device.pool, *name
                self.counters[counter] = self.counters.get(counter, Fraction(0)) + amount

    def _add(self, device: DeviceId, consumed: Mapping[str, Any] | None) -> None:
        if consumed is None:
            self.whole[device] += 1
            return
        self.shares[device] += 1
        for name, amount in consumed.items():
            key = device, name
            self.amounts[key] = self.amounts.get(key, Fraction(0)) + parse_exact(amount)

    def _facts(self, device: DeviceId, node: NodeInfo | None = None) -> BasicDevice | None:
        """Returns the fields of a device in its ResourceSlice; None if no slice offers it.

        node: where it is used, because devices of different nodes may have equal names.
        """
        found = [
            (node is None or _reaches(one, listed.facts, node), listed.facts)
            for one in self.slices.get((device.driver, device.pool), ())
            for listed in one.spec.devices
            if listed.name == device.device
        ]
        return next((facts for is_here, facts in found if is_here), found[0][1] if found else None)

    def faults(self, pod: PodInfo, node: NodeInfo) -> list[str]:
        """Returns the faults of the devices of a placed pod's claims."""
        faults: list[str] = []
        given: Mapping[str, Grant] = self.draft.family_devices_of(pod.key, CLAIMS) or {}
        for one in self.names_of(pod.pod):
            key = f"{pod.namespace}/{one.name}"
            allocation = self.stated[key].status.allocation if key in self.stated else None
            if allocation is not None:
                if not _selects(allocation.node_selector, node):
                    faults.append(f"resource claim {key} is allocated elsewhere")
            elif key not in self.planned:
                faults.append(f"resource claim {key} has no devices")
            else:
                grant, place = self.planned[key]
                if place is not node and any(not self._is_offered(one.device, node) for one in grant):
                    where = place.name if place is not None else "devices of another node"
                    faults.append(f"resource claim {key} is allocated to {where}")
        kept = reserved_devices(self.draft.reserved_claims(pod))
        for key, grant in given.items():
            claim = self.claims.get(key)
            if claim is not None:
                faults += _claim_faults(claim, key, grant, self._values(grant, node))
            elif not key.endswith(IMPLICIT):
                faults.append(f"resource claim {key} does not exist")
            for granted in grant:
                what = f"device {granted.device.device} of pool {granted.device.pool}"
                if not granted.admin and kept.get(granted.device, key) != key:
                    faults.append(f"{what} is reserved")
                if self._is_excessive(granted, node):
                    faults.append(f"{what} is not available to resource claim {key}")
                if not self._is_offered(granted.device, node):
                    faults.append(f"{what} is not offered there")
        take = self.draft.family_devices_of(pod.key, NUMA_FAMILY)
        faults += misaligned_devices(pod, self.devices_of(pod, node, shares=True), take)
        return faults + (self._slow_links(pod, node) if given else [])

    def devices_of(self, pod: PodInfo, node: NodeInfo, *, shares: bool) -> dict[DeviceId, BasicDevice]:
        """Returns the devices of all claims of a pod on its node, also of already allocated claims, with their fields.

        Devices for admin access are left out, and with `shares` False shared devices.
        """
        found: set[DeviceId] = set()
        named = [f"{pod.namespace}/{one.name}" for one in self.names_of(pod.pod)]
        for key in {*named, *(self.draft.family_devices_of(pod.key, CLAIMS) or {})}:
            claim = self.stated.get(key)
            if claim is not None and claim.status.allocation is not None:
                found |= {
                    DeviceId(one.driver, one.pool, one.device)
                    for one in claim.status.allocation.devices.results
                    if not one.admin_access and (shares or not one.share_id)
                }
            else:
                grant, _ = self.planned.get(key, ((), None))
                found |= {one.device for one in grant if not one.admin and (shares or one.consumed is None)}
        return {one: facts for one in found if (facts := self._facts(one, node)) is not None}

    def claims_of(self, pod: PodInfo) -> list[str]:
        """Returns the existing claims that a pod names, and those that are reserved for it."""
        named = [f"{pod.namespace}/{one.name}" for one in self.names_of(pod.pod)]
        reserved = [
            key for key, claim in self.claims.items() if any(one.uid == pod.uid for one in claim.status.reserved_for)
        ]
        return [key for key in dict.fromkeys([*named, *reserved]) if key in self.claims]

    def stated_devices(self, pod: PodInfo, node: NodeInfo) -> dict[DeviceId, BasicDevice]:
        """Returns the whole devices of a bound pod's claims by their status, with their fields."""
        allocations = (self.claims[key].status.allocation for key in self.claims_of(pod))
        results = (one for each in allocations if each is not None for one in each.devices.results)
        whole = {
            DeviceId(one.driver, one.pool, one.device) for one in results if not one.admin_access and not one.share_id
        }
        return {one: facts for one in whole if (facts := self._facts(one, node)) is not None}

    def _slow_links(self, pod: PodInfo, node: NodeInfo) -> list[str]:
        """Returns the faults of the links between all devices of a pod, including those of already allocated claims."""
        if keys.GPU_MIN_BANDWIDTH not in pod.pod.metadata.annotations:
            return []
        devices = sorted(self.devices_of(pod, node, shares=False).items())
        ordered = [_linked(one, facts) for one, facts in devices]
        return slow_links(pod, node, ordered, partial(self._offered, node), self.draft.snapshot)

    def _offered(self, node: NodeInfo, driver: str) -> Iterator[LinkedDevice]:
        """Yields the devices of a driver that a node can use."""
        for (other, pool), slices in self.slices.items():
            near = [one for one in slices if one.spec.node_name in (None, "", node.name)] if other == driver else ()
            for listed in (device for one in near for device in one.spec.devices):
                device = DeviceId(driver, pool, listed.name)
                if self._is_offered(device, node):
                    yield _linked(device, listed.facts)

    def _values(self, grant: Grant, node: NodeInfo) -> list[tuple[Granted, dict[str, Any]]]:
        """Returns, for each device of a claim, (allocated device, its attributes: name with domain -> value)."""
        out = []
        for one in grant:
            facts = self._facts(one.device, node)
            named = facts.attributes if facts is not None else {}
            out.append((one, {k if "/" in k else f"{one.device.driver}/{k}": v for k, v in named.items()}))
        return out

    def _is_excessive(self, granted: Granted, node: NodeInfo) -> bool:
        """Returns True if a device is allocated twice, or if more of its capacities or counters is allocated than there
        is."""
        device, facts = granted.device, self._facts(granted.device, node)
        if facts is None:
            return True
        if not granted.admin:
            if granted.consumed is None and self.whole[device] + self.shares[device] > 1:
                return True
            if granted.consumed is not None and (self.whole[device] or not facts.allow_multiple_allocations):
                return True
            for name, capacity in facts.capacity.items():
                if self.amounts.get((device, name), Fraction(0)) > parse_exact(capacity.value):
                    return True
        if facts.allow_multiple_allocations and device in self.shared_before:
            return False
        limits = {
            (one.name, name): parse_exact(counter.value)
            for s in self.slices[device.driver, device.pool]
            for one in s.spec.shared_counters
            for name, counter in one.counters.items()
        }
        return any(
            self.counters.get((device.driver, device.pool, *name), Fraction(0)) > limits.get(name, Fraction(0))
            for name, _ in _draws(facts)
        )

    def _is_offered(self, device: DeviceId, node: NodeInfo) -> bool:
        """Returns True if a complete pool offers a device on a node."""
        slices = self.slices.get((device.driver, device.pool), ())
        if not slices or len(slices) != max(one.spec.pool.resource_slice_count for one in slices):
            return False
        for one in slices:
            for listed in one.spec.devices:
                if listed.name == device.device and _reaches(one, listed.facts, node):
                    return True
        return False


def _reaches(one: ResourceSlice, facts: BasicDevice, node: NodeInfo) -> bool:
    """Returns whether a node reaches a device of a slice."""
    where: Any = facts if one.spec.per_device_node_selection else one.spec
    return bool(where.all_nodes or where.node_name == node.name or _matches(where.node_selector, node))


def _current(slices: Iterable[ResourceSlice]) -> dict[tuple[str, str], list[ResourceSlice]]:
    """Returns (driver, pool) -> slices of the pool's newest generation."""
    newest: dict[tuple[str, str], int] = {}
    listed = list(slices)
    for one in listed:
        key = one.spec.driver, one.spec.pool.name
        newest[key] = max(newest.get(key, one.spec.pool.generation), one.spec.pool.generation)
    found: dict[tuple[str, str], list[ResourceSlice]] = {}
    for one in listed:
        key = one.spec.driver, one.spec.pool.name
        if one.spec.pool.generation == newest[key]:
            found.setdefault(key, []).append(one)
    return found


def _linked(device: DeviceId, facts: BasicDevice) -> LinkedDevice:
    """Returns a device with those of its attributes that have string values."""
    named = {k if "/" in k else f"{device.driver}/{k}": v.text for k, v in facts.attributes.items()}
    return LinkedDevice(device.driver, device.device, {k: v for k, v in named.items() if v is not None})


def _draws(facts: BasicDevice | None) -> list[tuple[tuple[str, str], Fraction]]:
    """Returns the amounts of shared counters that a device consumes: ((counter set, counter), amount)."""
    uses = facts.consumes_counters if facts is not None else ()
    return [((use.counter_set, name), parse_exact(c.value)) for use in uses for name, c in use.counters.items()]


def _selects(selector: NodeSelector | None, node: NodeInfo) -> bool:
    return selector is None or _matches(selector, node)


def _matches(selector: NodeSelector | None, node: NodeInfo) -> bool:
    terms = selector.node_selector_terms if selector is not None else ()
    return any(term_matches(term, node.name, node.labels) for term in terms)


def _claim_faults(
    claim: ResourceClaim, key: str, grant: Grant, values: list[tuple[Granted, dict[str, Any]]]
) -> list[str]:
    """Returns the faults of one claim: wrong numbers of devices, and constraints that are not satisfied."""
    faults = []
    by_request: dict[str, list[str]] = {}
    for one in grant:
        by_request.setdefault(one.request.partition("/")[0], []).append(one.request)
    for request in claim.spec.devices.requests:
        faults += _number_faults(request, key, by_request.get(request.name, []))
    for constraint in claim.spec.devices.constraints:
        names, attribute = constraint.requests, constraint.match_attribute or constraint.distinct_attribute
        meant = [
            own for one, own in values if not names or one.request in names or one.request.partition("/")[0] in names
        ]
        stated = [repr(own[attribute]) for own in meant if attribute in own]
        wanted = 1 if constraint.match_attribute else len(meant)
        if meant and (len(stated) < len(meant) or len(set(stated)) != wanted):
            faults.append(f"resource claim {key} breaks a constraint on {attribute}")
    return faults


def _number_faults(request: DeviceRequest, key: str, given: list[str]) -> list[str]:
    """Returns the fault of a wrong number of devices for one request; empty if the number is right."""
    if len(set(given)) > 1:
        return [f"resource claim {key} gets devices of several alternatives of request {request.name}"]
    alternatives = dict(request.alternatives)
    exact = alternatives.get(given[0]) if given else None
    if exact is None:
        return [f"resource claim {key} gets no device for request {request.name}"]
    asked = 1 if exact.count is None else exact.count
    if exact.allocation_mode != "All" and len(given) != asked:
        return [f"resource claim {key} requests {count_noun(asked, 'device')} and gets {len(given)}"]
    return []
