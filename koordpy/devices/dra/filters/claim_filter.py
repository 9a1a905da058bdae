# SPDX-License-Identifier: Apache-2.0
"""DynamicResources: the filter of nodes by resource claims (kube-parity.md 6).

A claim requests numbers of devices by class and by selectors in CEL. An allocated claim restricts its pods to certain
nodes. For an unallocated claim the node must have enough free devices for all claims of the pod together. This is a
minimal subset of the API. A claim beyond the subset is refused with a reason that names the feature, and is never
allocated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from koordpy.api.claim_objects import DeviceSelector, ResourceClaim, ResourceSlice, SliceDevice
from koordpy.api.label_selectors import term_matches
from koordpy.api.objects import NodeSelector
from koordpy.api.pod_groups import UpstreamPodGroup
from koordpy.cache.plan_draft import Draft
from koordpy.cache.reservations import reserved_devices
from koordpy.decoding.wire_json import unreadable
from koordpy.devices.dra.cel import (
    DeviceFacts,
    Selector,
    SelectorError,
    SelectorRuntimeError,
    UnsupportedSelector,
    compile_selector,
)
from koordpy.devices.dra.ledger.claim_book import DeviceId, DeviceObjects, Offered, claim_ledger, claim_names
from koordpy.framework.filter_protocol import Code, Refusal, Verdict, chain, refused_where
from koordpy.framework.pod_rule_filter import Rule
from koordpy.pods.gang_refs import upstream_key
from koordpy.pods.pod_info import PodInfo

PLUGIN = "DynamicResources"
"""Name of the filter in messages."""
MAX_CONSUMERS = 256
"""Maximum number of pods that may use one claim: the limit of `status.reservedFor` in the API."""

Mask = NDArray[np.bool_]
"""[nodes] True or False."""
Taken = tuple[tuple[str, DeviceId], ...]
"""(request, device) of each device of one claim."""


def _refuse(text: str) -> Refusal:
    """Returns a refusal that no eviction resolves, because a claim outlives its pods."""
    return Refusal(PLUGIN, Code.UNRESOLVABLE, (text,))


CANNOT = _refuse("cannot allocate all claims")
"""Refusals of single nodes: no free devices; an allocated claim is elsewhere; devices with unsupported features."""
ELSEWHERE = _refuse("resourceclaim not available on the node")
BEYOND = _refuse("unsupported: devices with shared counters, binding conditions or several allocations")


def resource_claims(pod: PodInfo) -> list[str]:
    """Returns `namespace/name` of the resource claims of a pod, existing or not, without duplicates."""
    names = (name for _, name, _ in claim_names(pod.pod) if name is not None)
    return list(dict.fromkeys(f"{pod.namespace}/{name}" for name in names))


def resource_claims_refusal(
    pod: PodInfo, objects: DeviceObjects, groups: Mapping[str, UpstreamPodGroup]
) -> Refusal | None:
    """Returns why a pod's resource claims cannot be used, before any node is tried; None if they can.

    objects: claims, classes and slices. groups: upstream PodGroups by `namespace/name`.
    """
    group = groups.get(key) if (key := upstream_key(pod.pod)) else None
    if group is not None and any(one in group.spec.resource_claims for one in pod.pod.spec.resource_claims):
        return _refuse(f"unsupported: resourceClaims of PodGroup {key}")
    for inside, name, made in claim_names(pod.pod):
        if name is None:
            return _refuse(f'waiting for the resourceclaim of "{inside}" to be created')
        key = f"{pod.namespace}/{name}"
        claim = objects.claims.get(key)
        if claim is None:
            return _refuse(f'resourceclaim "{name}" not found')
        if unreadable(claim.metadata):
            return _refuse(f'resourceclaim "{name}" cannot be read')
        if claim.metadata.deletion_timestamp:
            return _refuse(f'resourceclaim "{name}" is being deleted')
        if made and not any(owner.controller and owner.uid == pod.uid for owner in claim.metadata.owner_references):
            return _refuse(f"ResourceClaim {key} was not created for pod {pod.key} (pod is not owner)")
        consumers = claim.status.reserved_for
        if len(consumers) >= MAX_CONSUMERS and all(one.uid != pod.uid for one in consumers):
            return _refuse("resourceclaim in use")
        fault = None if claim.status.allocation is not None else _unsupported(claim, objects)
        if fault is not None:
            return _refuse(fault)
    return None


def _unsupported(claim: ResourceClaim, objects: DeviceObjects) -> str | None:
    """Returns the feature of an unallocated claim that is not supported, or a missing class; None if it can be
    allocated."""
    if claim.spec.devices.constraints:
        return "unsupported: constraints of resource claims"
    for request in claim.spec.devices.requests:
        exact = request.exact
        if request.first_available:
            return "unsupported: firstAvailable of resource claims"
        if exact.admin_access:
            return "unsupported: admin access to devices"
        if exact.allocation_mode not in ("", "ExactCount"):
            return f"unsupported: allocation mode {exact.allocation_mode} of resource claims"
        if exact.tolerations:
            return "unsupported: tolerations of resource claims"
        if exact.capacity:
            return "unsupported: capacity requests of resource claims"
        found = objects.classes.get(exact.device_class_name)
        if found is None:
            return f"request {request.name}: device class {exact.device_class_name} does not exist"
        try:
            _expressions([*found.spec.selectors, *exact.selectors])
        except UnsupportedSelector as what:
            return f"unsupported: {what}"
        except SelectorError as what:
            return f"CEL compile error: {what}"
    return None


def _expressions(selectors: Sequence[DeviceSelector]) -> list[Selector]:
    """Returns the compiled CEL expressions of selectors. Raises `UnsupportedSelector` and `SelectorError`."""
    if any(selector.cel is None for selector in selectors):
        raise UnsupportedSelector("selectors other than CEL")
    return [compile_selector(selector.cel.expression) for selector in selectors if selector.cel is not None]


def _facts(offered: Offered) -> DeviceFacts:
    """Returns the attributes and capacities of a device for selectors."""
    facts = offered.device.facts
    shared = bool(offered.device.allow_multiple_allocations)
    return DeviceFacts(offered.id.driver, facts.attributes, facts.capacity, shared)


def _matches(expression: Selector, facts: DeviceFacts) -> bool:
    """Returns whether a device matches; one for which the expression is an error does not."""
    try:
        return expression.matches(facts)
    except SelectorRuntimeError:
        return False


def _is_allocatable(device: SliceDevice, where: ResourceSlice) -> bool:
    """Returns whether a device can be allocated as a whole, without features that are not supported.

    These are shared counters, binding conditions, several allocations of one device, and a node selection per device.
    """
    beyond = device.facts.consumes_counters or device.binding_conditions or device.allow_multiple_allocations
    return not beyond and not where.spec.per_device_node_selection


@dataclass(frozen=True, eq=False)
class _MatchingDevices:
    """Devices that match some selectors."""

    on: Mapping[str, tuple[Offered, ...]]
    """Node name -> devices that are published for this node only."""
    wide: tuple[Offered, ...]
    """Devices of slices that several nodes may use, such as devices of a network."""
    beyond: tuple[Offered, ...]
    """Matching devices with unsupported features."""


@lru_cache(maxsize=16)
def _matching_devices(objects: DeviceObjects, selectors: tuple[str, ...]) -> _MatchingDevices:
    """Returns the devices that match all selectors (CEL), except for devices with a taint NoSchedule or NoExecute.

    Cached, so that it is computed once for all pods with equal claims, such as members of a gang.
    """
    expressions = [compile_selector(text) for text in selectors]
    on: dict[str, list[Offered]] = {}
    wide: list[Offered] = []
    beyond: list[Offered] = []
    for offered in objects.offered:
        if any(taint.effect in ("NoSchedule", "NoExecute") for taint in offered.device.facts.taints):
            continue
        facts = _facts(offered)
        if not all(_matches(expression, facts) for expression in expressions):
            continue
        spec = offered.slice.spec
        if not _is_allocatable(offered.device, offered.slice):
            beyond.append(offered)
        elif spec.node_name and not spec.all_nodes and spec.node_selector is None:
            on.setdefault(spec.node_name, []).append(offered)
        else:
            wide.append(offered)
    return _MatchingDevices({name: tuple(held) for name, held in on.items()}, tuple(wide), tuple(beyond))


@dataclass(frozen=True, eq=False)
class _DeviceWant:
    """One requested device, and the devices that match the request."""

    claim: str
    request: str
    devices: _MatchingDevices


class DynamicResources(Rule):
    """The filter of one pod: its claims against the devices that drivers publish for nodes."""

    plugin = PLUGIN
    is_in_problem = True
    """The problem of a unit represents how its pods share devices, so placements need not be tried on this filter."""

    def __init__(self, pod: PodInfo, draft: Draft, objects: DeviceObjects) -> None:
        """pod: has only claims that `resource_claims_refusal` accepts. objects: claims, classes and slices."""
        self._pod = pod
        self._draft = draft
        self._ledger = claim_ledger(draft.ledgers)
        self._objects = objects
        self._nodes = draft.snapshot.nodes
        self._keys = resource_claims(pod)
        """Claims of the pod, by `namespace/name`."""
        self._wants: list[_DeviceWant] = []
        """Devices that unallocated claims of the pod request, one entry for each device."""
        self._unsupported: list[Offered] = []
        """Devices that match, but have unsupported features."""
        self._reach: dict[str, Mask] = {}
        """Slice name -> nodes for which it publishes its devices."""
        for key in self._keys:
            claim = objects.claims[key]
            if claim.status.allocation is None:
                self._read(key, claim)

    def _read(self, key: str, claim: ResourceClaim) -> None:
        """Adds the requests of an unallocated claim."""
        for request in claim.spec.devices.requests:
            exact = request.exact
            selectors = [*self._objects.classes[exact.device_class_name].spec.selectors, *exact.selectors]
            texts = tuple(one.cel.expression for one in selectors if one.cel is not None)
            fitting = _matching_devices(self._objects, texts)
            self._unsupported += fitting.beyond
            count = 1 if exact.count is None else exact.count
            self._wants += [_DeviceWant(key, request.name, fitting)] * count

    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        """Implements `Rule.change`: only pods with claims use devices."""
        return bool(pod.pod.spec.resource_claims)

    def _nodes_of(self, offered: Offered) -> Mask:
        """Returns [nodes] True if the slice of a device publishes its devices for the node."""
        name = offered.slice.metadata.name
        found = self._reach.get(name)
        if found is None:
            spec = offered.slice.spec
            found = np.full(len(self._nodes), bool(spec.all_nodes))
            if spec.node_name and spec.node_name in self._draft.snapshot.index:
                found[self._draft.snapshot.index[spec.node_name]] = True
            if spec.node_selector is not None:
                found |= self._selected(spec.node_selector)
            self._reach[name] = found
        return found

    def _selected(self, selector: NodeSelector) -> Mask:
        """Returns [nodes] True if a node selector matches."""
        terms = selector.node_selector_terms
        return np.fromiter((any(term_matches(t, n.name, n.labels) for t in terms) for n in self._nodes), dtype=bool)

    def _devices_in_use(self) -> set[DeviceId]:
        """Returns the devices that the pod cannot get: allocated, promised to plans in progress, or reserved for
        nominated pods."""
        promised = (device for taken in self._ledger.taken.values() for _, device in taken)
        kept = reserved_devices(self._draft.reserved_claims(self._pod))
        others = (device for device, claim in kept.items() if claim not in self._keys)
        return {*self._objects.allocated, *promised, *others}

    def verdict(self) -> Verdict:
        """Implements `Rule.verdict`.

        Refused are nodes that an allocated claim excludes, then nodes without free devices for all claims together.
        """
        count = len(self._nodes)
        open_nodes = np.ones(count, dtype=bool)
        for key in self._keys:
            allocation = self._objects.claims[key].status.allocation
            if allocation is not None and allocation.node_selector is not None:
                open_nodes &= self._selected(allocation.node_selector)
            for _, device in self._ledger.taken.get(key, ()):
                slices = [offered for offered in self._objects.offered if offered.id == device]
                for offered in slices:
                    open_nodes &= self._nodes_of(offered)
        # exact test by matching, only on nodes that have some free device of each kind
        wants, held = self._unallocated(), self._devices_in_use()
        fits = np.ones(count, dtype=bool)
        if wants:
            fits[:] = False
            offering = np.logical_and.reduce([self._offering(fitting, held) for fitting in self._kinds(wants)])
            for node in np.nonzero(offering & open_nodes)[0].tolist():
                fits[node] = _matched(self._choices(wants, held, node)) is not None
        beyond = np.zeros(count, dtype=bool)
        for offered in self._unsupported:
            beyond |= self._nodes_of(offered)
        return chain(
            [
                refused_where(~open_nodes, ELSEWHERE),
                refused_where(~fits & beyond, BEYOND),
                refused_where(~fits, CANNOT),
            ]
        )

    def _unallocated(self) -> list[_DeviceWant]:
        """Returns the requested devices of claims that the plan has not allocated yet."""
        return [want for want in self._wants if want.claim not in self._ledger.taken]

    def _kinds(self, wants: Sequence[_DeviceWant]) -> list[_MatchingDevices]:
        """Returns the different sets of matching devices among requested devices."""
        return list({id(want.devices): want.devices for want in wants}.values())

    def _offering(self, fitting: _MatchingDevices, held: set[DeviceId]) -> Mask:
        """Returns [nodes] True if the node has at least one free device of a set. A quick test before the matching."""
        here = np.zeros(len(self._nodes), dtype=bool)
        index = self._draft.snapshot.index
        for name, devices in fitting.on.items():
            if name in index and any(offered.id not in held for offered in devices):
                here[index[name]] = True
        for offered in fitting.wide:
            if offered.id not in held:
                here |= self._nodes_of(offered)
        return here

    def _choices(self, wants: Sequence[_DeviceWant], held: set[DeviceId], node: int) -> list[list[DeviceId]]:
        """Returns, for each requested device, the free matching devices of a node, sorted."""
        name = self._nodes[node].name
        found: dict[int, list[DeviceId]] = {}
        for fitting in self._kinds(wants):
            near = [offered.id for offered in fitting.on.get(name, ())]
            near += [offered.id for offered in fitting.wide if self._nodes_of(offered)[node]]
            found[id(fitting)] = sorted(device for device in near if device not in held)
        return [found[id(want.devices)] for want in wants]

    def sought(self) -> list[tuple[frozenset[DeviceId], Mapping[str, int]] | None]:
        """Returns, for each device still to be allocated, (free matching devices, node name -> number of them).

        The entry is None if several nodes may use one of these devices.
        """
        held = self._devices_in_use()
        known: dict[int, tuple[frozenset[DeviceId], Mapping[str, int]] | None] = {}
        wants = self._unallocated()
        for fitting in self._kinds(wants):
            free = {
                name: [offered.id for offered in devices if offered.id not in held]
                for name, devices in fitting.on.items()
            }
            every = frozenset(device for devices in free.values() for device in devices)
            numbers = {name: len(devices) for name, devices in free.items()}
            wide = any(offered.id not in held for offered in fitting.wide)
            known[id(fitting)] = None if wide else (every, numbers)
        return [known[id(want.devices)] for want in wants]

    def choice(self, node: int) -> dict[str, Taken]:
        """Returns claim -> devices that are allocated if a pod is placed on a node; claims allocated before are left
        out."""
        wants = self._unallocated()
        chosen = _matched(self._choices(wants, self._devices_in_use(), node)) or []
        out: dict[str, Taken] = {
            key: ()
            for key in self._keys
            if self._objects.claims[key].status.allocation is None and key not in self._ledger.taken
        }
        for want, device in zip(wants, chosen, strict=bool(chosen)):
            out[want.claim] = (*out[want.claim], (want.request, device))
        return out


def _matched(choices: Sequence[Sequence[DeviceId]]) -> list[DeviceId] | None:
    """Returns a distinct device for each request; None if there is no such assignment.

    A bipartite matching by augmenting paths. choices: devices that may be used, for each request.
    """
    holder: dict[DeviceId, int] = {}

    def place(want: int, seen: set[DeviceId]) -> bool:
        """Gives a request (index) a device, possibly by moving earlier requests to other devices."""
        for device in choices[want]:
            if device in seen:
                continue
            seen.add(device)
            if device not in holder or place(holder[device], seen):
                holder[device] = want
                return True
        return False

    if not all(place(want, set()) for want in range(len(choices))):
        return None
    of: Mapping[int, DeviceId] = {want: device for device, want in holder.items()}
    return [of[want] for want in range(len(choices))]
