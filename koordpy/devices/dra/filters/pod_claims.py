# SPDX-License-Identifier: Apache-2.0
"""The claims of a pod that need an allocation, the nodes for which they need it, and the search for devices on one
node.

Sources: docs/rules/dra.md 2, 6, 8.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from koordpy.cache.plan_draft import Draft
from koordpy.cache.reservations import reserved_devices
from koordpy.cache.snapshot import NodeInfo
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.dra.filters.claim_requests import (
    AttemptFault,
    UnallocatedClaim,
    UndecidedNode,
    claim_spec,
)
from koordpy.devices.dra.filters.claim_zones import (
    NUMA,
    BothRules,
    ClaimZones,
    DemandedZones,
    ZoneNumbers,
    demands_zones,
    zone_sets_of,
    zones_of,
)
from koordpy.devices.dra.filters.device_matching import DeviceMatching
from koordpy.devices.dra.filters.device_search import DeviceSearch
from koordpy.devices.dra.filters.evictable_devices import LastingUsage, lasting_usage
from koordpy.devices.dra.filters.extended_amounts import served_by_devices
from koordpy.devices.dra.filters.gate_limits import closed_by_gates
from koordpy.devices.dra.filters.link_order import LinkOrder
from koordpy.devices.dra.filters.min_bandwidth import Bandwidth, PodBandwidth, least_bandwidth
from koordpy.devices.dra.filters.node_links import NodeLinks
from koordpy.devices.dra.filters.restricted_search import RestrictedSearch
from koordpy.devices.dra.ledger.claim_book import claim_ledger, claim_view
from koordpy.devices.dra.ledger.device_objects import grant_of
from koordpy.devices.dra.ledger.device_usage import DeviceUsage
from koordpy.devices.dra.ledger.extended_claims import extended_claim
from koordpy.pods.claim_refs import DeviceId, Grant, Granted, implicit_key
from koordpy.pods.pod_info import PodInfo

Mask = NDArray[np.bool_]
"""[nodes] True or False."""


@dataclass(frozen=True, eq=False)
class Wants:
    """Claims of a pod that need an allocation if the pod is placed on certain nodes."""

    claims: tuple[UnallocatedClaim, ...]
    at: Mask | None
    """[nodes] True for these nodes; None for all nodes."""

    @cached_property
    def content(self) -> tuple[bytes, ...]:
        """Equal for equal claims, whatever their names."""
        return tuple(one.spec.content for one in self.claims)


class DraftClaims:
    """The claims of one pod on a draft."""

    def __init__(
        self,
        pod: PodInfo,
        draft: Draft,
        config: KoordpyConfiguration,
        planned: Mapping[str, ZoneNumbers | None] | None = None,
    ) -> None:
        """pod: has only claims that `claims_refusal` accepts. planned: zones of the plan's pods (`planned_zones`); None
        to compute them."""
        self.pod = pod
        self._draft, self._config, self._dra = draft, config, config.dra
        self._ledger = claim_ledger(draft.ledgers)
        self.view = claim_view(draft.snapshot.families)
        self.objects, self.offers = self.view.objects, self.view.objects.offers
        self._nodes = draft.snapshot.nodes
        self._matching = DeviceMatching(self.offers)
        names = (one.name for one in self.objects.names_of(pod.pod))
        self.keys = list(dict.fromkeys(f"{pod.namespace}/{name}" for name in names if name is not None))
        """Claims of the pod, by `namespace/name`."""
        self._variants = self._extended_variants()
        """(claim for extended resources or None, nodes), one for each set of resources that nodes serve by devices."""
        self.least_bandwidth = least_bandwidth(pod)
        """Minimum bandwidth between the devices of the pod in kB/s; 0 for none."""
        self.demands_zones = demands_zones(pod)
        """True if the devices of the pod must be in certain NUMA zones (`ClaimZones`)."""
        self._zone_sets = zone_sets_of(draft, config) if self.demands_zones else None
        self._planned = planned

    def _extended_variants(self) -> list[tuple[UnallocatedClaim | None, Mask | None]]:
        resources = served_by_devices(self.pod, self.view, self._dra)
        if not resources:
            return [(None, None)]
        found: dict[frozenset[str], list[int]] = {}
        for i, node in enumerate(self._nodes):
            stated = node.node.status.allocatable or node.node.status.capacity
            served = frozenset(name for name in resources if str(stated.get(name, "0")) == "0")
            found.setdefault(served, []).append(i)
        variants: list[tuple[UnallocatedClaim | None, Mask | None]] = []
        for served, nodes in found.items():
            mask = np.zeros(len(self._nodes), dtype=bool)
            mask[nodes] = True
            claim = None
            if served:
                spec = claim_spec(extended_claim(self.pod.pod, served, self.offers).devices, self.offers)
                claim = UnallocatedClaim(implicit_key(self.pod), spec)
            variants.append((claim, mask))
        return variants

    @property
    def has_pair_rule(self) -> bool:
        """True if it also matters which devices of a node the pod gets together."""
        return bool(self.least_bandwidth) or self.demands_zones

    @property
    def is_monotone(self) -> bool:
        """Implements `Rule.is_monotone`: False if the pod may get zones without its devices after pods have left."""
        return self._zone_sets is None

    def zones_may_change(self, node: int) -> bool:
        """Returns whether the pod may get other zones of a node after pods there have left it."""
        return self._zone_sets is not None and self._zone_sets.may_change(node, self.pod)

    def zone_state(self, node: int) -> Hashable:
        """Returns a key that is equal for nodes on which the pod would get the same zones; None without a demand."""
        return self._zone_sets.state(node) if self._zone_sets is not None else None

    @property
    def rule_key(self) -> Hashable:
        """Equal for pods with equal rules about their devices."""
        return self.least_bandwidth, self.pod.ask(NUMA) if self.demands_zones else None

    def pair_key(self) -> Hashable:
        """Returns everything on which the rule about the pod's devices depends, as a key; None without a rule."""
        if not self.has_pair_rule:
            return None
        numbers: dict[Hashable, int] = self._ledger.memo.setdefault("zone states", {})
        states = self._zone_sets.states(numbers) if self._zone_sets is not None else b""
        return self.rule_key, states, tuple(self.keys_in_use())

    def keys_in_use(self) -> list[str]:
        """Returns the claims of the pod that have an allocation, on the draft."""
        waiting = set(self.open_keys())
        return [key for key in self.keys if key not in waiting]

    def open_keys(self) -> list[str]:
        """Returns the claims that the pod names and that have no allocation, on the draft."""
        ledger = self._ledger
        return [key for key in self.keys if key not in ledger.taken and ledger.allocation(key) is None]

    def allocated_keys(self) -> list[str]:
        """Returns the claims of the pod with an allocation in their status that is valid on the draft."""
        ledger = self._ledger
        return [key for key in self.keys if key not in ledger.taken and ledger.allocation(key) is not None]

    def lasting_usage(self) -> LastingUsage | None:
        """Returns the devices in use that no eviction frees; None if no eviction frees any."""
        memo = self._ledger.memo
        if "lasting" not in memo:
            memo["lasting"] = lasting_usage(self.objects, self._draft.snapshot) if self._dra.preemption else None
        found: LastingUsage | None = memo["lasting"]
        return found

    def own_freed(self) -> tuple[str, ...]:
        """Returns the allocated claims of the pod that lose their devices if all pods that may be evicted are."""
        keys = self.allocated_keys()
        lasting = self.lasting_usage() if keys else None
        return tuple(key for key in keys if key in lasting.freed) if lasting is not None else ()

    def unallocated(self, keys: Iterable[str]) -> tuple[UnallocatedClaim, ...]:
        """Returns what claims ask for when they are allocated. keys: claims of the pod, `namespace/name`."""
        claims = ((key, self.objects.claims[key].spec.devices) for key in keys)
        return tuple(UnallocatedClaim(key, claim_spec(devices, self.offers)) for key, devices in claims)

    def wants(self) -> list[Wants]:
        """Returns the claims that need an allocation, one entry for each set of nodes with equal claims."""
        own = self.unallocated(self.open_keys())
        return [Wants((*own, extended) if extended is not None else own, at) for extended, at in self._variants]

    def wants_at(self, node: int) -> Wants:
        """Returns the claims that need an allocation on a node (position)."""
        return next(one for one in self.wants() if one.at is None or one.at[node])

    def closed(self) -> frozenset[DeviceId]:
        """Returns devices that must not be allocated: reserved for nominated pods, or excluded in a live cluster."""
        kept = reserved_devices(self._draft.reserved_claims(self.pod))
        closed = frozenset(device for device, claim in kept.items() if claim not in self.keys)
        return closed | closed_by_gates(self.offers, self.view.gates_off)

    @property
    def usage(self) -> DeviceUsage:
        """Devices in use on the draft. Must not be changed."""
        return self._ledger.usage

    def reaches_network(self, node: int) -> bool:
        """Returns whether a node (position) reaches a device that other nodes may reach."""
        return any(not device.node for device in self.offers.at(self._nodes[node]).devices)

    @property
    def search_limit(self) -> int:
        """Maximum number of devices that one search tries."""
        return self._dra.search_limit

    @property
    def node_number(self) -> int:
        """Number of nodes of the snapshot."""
        return len(self._nodes)

    def node(self, at: int) -> NodeInfo:
        """Returns a node by its position."""
        return self._nodes[at]

    # -- one node ------------------------------------------------------------------------------------------------------

    def links(self, node: int) -> NodeLinks:
        """Returns the links of the devices that a node (position) reaches."""
        known: NodeLinks | None = self._ledger.memo.get((NodeLinks, node))
        if known is None:
            views = (view.links_of(self._nodes[node].name) for view in self._draft.snapshot.families.values())
            of_device = next((one for one in views if one is not None), None)
            devices = self.offers.at(self._nodes[node]).devices
            known = NodeLinks(devices, of_device, self._config.gpu.link_bandwidth)
            self._ledger.memo[NodeLinks, node] = known
        return known

    def order(self, node: int) -> LinkOrder:
        """Returns the order of sets of devices of a node by links."""
        known: LinkOrder | None = self._ledger.memo.get((LinkOrder, node))
        if known is None:
            known = self._ledger.memo[LinkOrder, node] = LinkOrder(self.links(node))
        return known

    def fixed(self, node: int) -> tuple[int, ...]:
        """Returns the devices of a node that allocated claims of the pod have."""
        taken = {one.device for one in self._granted() if one.consumed is None}
        devices = self.offers.at(self._nodes[node]).devices if taken else ()
        return tuple(i for i, device in enumerate(devices) if device.id in taken)

    def _granted(self) -> Iterator[Granted]:
        """Yields the devices of allocated claims of the pod, without those for admin access."""
        for key in self.keys:
            allocation = self._ledger.allocation(key)
            if key in self._ledger.taken:
                grant: Grant = self._ledger.taken[key]
            else:
                grant = grant_of(allocation) if allocation is not None else ()
            yield from (one for one in grant if not one.admin)

    def _fixed_zones(self, node: int) -> tuple[ZoneNumbers, ...]:
        """Returns the known zones of the devices that allocated claims of the pod have on a node."""
        name = self._nodes[node].name
        devices = (self.offers.device(one.device, name) for one in self._granted())
        return tuple(zones for one in devices if one is not None and (zones := zones_of(one)) is not None)

    def keeps_zones(self, node: int) -> bool:
        """Returns whether the devices of allocated claims are in the zones that the pod demands on a node."""
        rule = self.zones(node, [(self, ())]) if self.demands_zones and self.keys_in_use() else None
        return rule is None or rule.is_kept

    def bandwidth(self, node: int, pods: Sequence[tuple["DraftClaims", Sequence[int]]]) -> Bandwidth | None:
        """Returns the rule of minimum bandwidths for a search; None without one. pods: with the positions of their
        claims in the search."""
        found = []
        for one, claims in pods:
            if one.least_bandwidth:
                amounts = (self._nodes[node].node.status.allocatable.get(r, "0") for r in self._config.gpu.resources)
                asks = any(one.pod.requests.get(r) for r in self._config.gpu.resources)
                has_gpus = asks and any(str(amount) != "0" for amount in amounts)
                found.append(PodBandwidth(frozenset(claims), one.fixed(node), one.least_bandwidth, has_gpus))
        return Bandwidth(self.links(node), found) if found else None

    def zones(self, node: int, pods: Sequence[tuple["DraftClaims", Sequence[int]]]) -> ClaimZones | None:
        """Returns the rule of the zones of pods with a demand for a search; None without one. pods: as in `bandwidth`,
        in the order in which the kubelet admits them."""
        lead = next((one for one, _ in pods if one.demands_zones), None)
        if lead is None:
            return None
        sets: Sequence[ZoneNumbers | None] = [None] * len(pods)
        if lead._planned is not None:
            sets = [lead._planned.get(one.pod.key) for one, _ in pods]
        elif lead._zone_sets is not None:
            sets = lead._zone_sets.zone_sets(node, [one.pod for one, _ in pods])
        demanded = [
            DemandedZones(frozenset(claims), one._fixed_zones(node), own)
            for (one, claims), own in zip(pods, sets, strict=True)
            if one.demands_zones
        ]
        return ClaimZones(self.offers.at(self._nodes[node]).devices, demanded)

    def searching(
        self,
        node: int,
        claims: Sequence[UnallocatedClaim],
        *,
        usage: DeviceUsage | None = None,
        pods: Sequence[tuple["DraftClaims", Sequence[int]]] | None = None,
        links: bool = False,
        twins: Sequence[Hashable] = (),
        after: Mapping[int, int] | None = None,
        lazy: bool = False,
        closed: frozenset[DeviceId] | None = None,
        permitted: Sequence[int | None] = (),
    ) -> DeviceSearch:
        """Returns the search for claims on a node, on the draft.

        usage: devices in use; None for those of the draft. pods: with the positions of their claims; None if the claims
        are those of this pod. links: True to distinguish devices by their links, as minimum bandwidths always do.
        twins: what else distinguishes the devices; empty for nothing. after, lazy: as in
        `DeviceSearch`. closed: devices that are not allocated; None for `closed`. permitted: as in `RestrictedSearch`;
        empty for no restriction.
        """
        members = pods if pods is not None else [(self, range(len(claims)))]
        bandwidth, zones = self.bandwidth(node, members), self.zones(node, members)
        pairs = BothRules(bandwidth, zones) if bandwidth and zones else bandwidth or zones
        closed = self.closed() if closed is None else closed

        def kinds() -> Sequence[Hashable]:
            if not links and pairs is None:
                return twins
            own: Sequence[Hashable] = self.links(node).twins()
            own = list(zip(own, zones.of_devices, strict=True)) if zones is not None else own
            return list(zip(own, twins, strict=True)) if twins else own

        restricted = any(one is not None for one in permitted)
        kind = partial(RestrictedSearch, permitted=permitted) if restricted else DeviceSearch
        return kind(
            self.offers.at(self._nodes[node]),
            claims,
            self._ledger.usage if usage is None else usage,
            self._matching,
            limit=self._dra.search_limit,
            closed=closed,
            barred=closed & closed_by_gates(self.offers, self.view.gates_off),
            lazy=lazy,
            twins=kinds,
            after=after,
            pairs=pairs,
        )

    def search(self, node: int, claims: Sequence[UnallocatedClaim]) -> list[Grant] | None:
        """Returns the first allocation of claims on a node, on the draft; None for no allocation."""
        try:
            return self.searching(node, claims).first()
        except (UndecidedNode, AttemptFault):
            return None
