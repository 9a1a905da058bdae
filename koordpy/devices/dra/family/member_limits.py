# SPDX-License-Identifier: Apache-2.0
"""How members of a gang limit each other by resource claims that have no allocation yet.

A plan states the number of pods of each shape on a node. So the limits are columns: a capacity on each node. Pods of
certain shapes take an amount of it. Columns are exact if two conditions hold. Each member requests numbers of devices
of single nodes. Of any two sets of matching devices, one contains the other, or they are disjoint. Then devices exist
if and only if, for each set, the demand of the sets inside it is at most its free devices (Hall's condition for nested
sets). For other claims, the filter searches the devices of all pods of a node (`DynamicResources.fits_after`).

A claim that several members name is allocated once. Its members share a domain of nodes (`shared_domains.py`). If the
nodes of a domain reach different devices, such as devices of nodes and of the network together, each plan is checked.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Ints
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.dra.family.shared_domains import shared_domains
from koordpy.devices.dra.filters.claim_filter import DynamicResources
from koordpy.devices.dra.filters.claim_refusal import IN_USE, PLUGIN, claims_refusal
from koordpy.devices.dra.filters.claim_requests import Alternative, UnallocatedClaim
from koordpy.devices.dra.filters.cross_node_search import SharedDevices
from koordpy.devices.dra.filters.device_matching import DeviceMatching
from koordpy.devices.dra.filters.evictable_devices import usage_with
from koordpy.devices.dra.ledger.claim_book import claim_ledger, claim_view
from koordpy.devices.dra.ledger.device_objects import whole_devices
from koordpy.devices.dra.ledger.offered_devices import OfferedDevice
from koordpy.framework.device_limits import LimitColumn, MemberLimits
from koordpy.pods.claim_refs import CLAIMS, MAX_CONSUMERS, DeviceId
from koordpy.pods.pod_info import PodInfo


@dataclass(eq=False)
class _DeviceSet:
    """Devices that match a request, free or not."""

    devices: frozenset[OfferedDevice]
    asks: dict[bytes, int] = field(default_factory=dict)
    """Shape -> number of devices that one pod takes of exactly this set."""

    @property
    def is_local(self) -> bool:
        return all(device.node for device in self.devices)


class MemberLimitReader:
    """Reads the limits between the pending members of one unit."""

    def __init__(
        self, kinds: Mapping[bytes, PodInfo], numbers: Mapping[bytes, int], draft: Draft, config: KoordpyConfiguration
    ) -> None:
        """kinds: shape -> a pending pod. numbers: shape -> number of pending pods."""
        self._draft, self._ledger, self._config = draft, claim_ledger(draft.ledgers), config
        self._view = claim_view(draft.snapshot.families)
        self._matching = DeviceMatching(self._view.objects.offers)
        self._numbers = numbers
        self._rules = {
            shape: DynamicResources(pod, draft, config)
            for shape, pod in kinds.items()
            if CLAIMS in pod.asks and claims_refusal(pod, self._view, self._ledger) is None
        }
        self._sets: dict[tuple[object, ...], _DeviceSet] = {}
        self.limits = MemberLimits(PLUGIN)

    def read(self, spare: int) -> MemberLimits:
        """Returns the limits. spare: number of members that a plan may leave out."""
        users: dict[str, list[bytes]] = {}
        open_keys = {key for rule in self._rules.values() for key in rule.open_keys()}
        for shape, rule in self._rules.items():
            for key in rule.keys:
                users.setdefault(key, []).append(shape)
        several = {key: shapes for key, shapes in users.items() if sum(self._numbers[one] for one in shapes) > 1}
        for key, shapes in several.items():
            self._limit_users(key, shapes, spare)
        shared = {key: shapes for key, shapes in several.items() if key in open_keys}
        self._ledger.shared.update(shared)
        for key, shapes in shared.items():
            self._share(key, shapes)
        own: dict[bytes, tuple[UnallocatedClaim, ...]] = {}
        for shape, rule in self._rules.items():
            every = [one for wants in rule.wants() for one in wants.claims]
            claims = tuple(one for one in dict.fromkeys(every) if one.key not in shared)
            if claims:
                own[shape] = claims
        zoned = [shape for shape, rule in self._rules.items() if rule.demands_zones]
        if zoned or sum(self._numbers[shape] for shape in own) + len(shared) > 1:
            self._own(own, shared, zoned)
        return self.limits

    def _limit_users(self, key: str, shapes: Sequence[bytes], spare: int) -> None:
        """Limits the number of members that use a claim, beside other pods; the claim of a PodGroup has no limit."""
        pod = self._rules[shapes[0]].pod
        objects = self._view.objects
        if any(one.grouped and key == f"{pod.namespace}/{one.name}" for one in objects.names_of(pod.pod)):
            return
        gang = self._draft.snapshot.members.get(pod.gang, ()) if pod.gang is not None else ()
        own = {member.uid for member in gang if member.pending}
        users = {one.uid for one in objects.claims[key].status.reserved_for} | self._ledger.users.get(key, set())
        most, number = MAX_CONSUMERS - len(users - own), sum(self._numbers[one] for one in shapes)
        if number - spare > most:
            self.limits.refusals.update(dict.fromkeys(shapes, IN_USE))
        elif number > most:
            self.limits.stocks.append((most, dict.fromkeys(shapes, 1)))

    def _share(self, key: str, shapes: Sequence[bytes]) -> None:
        """Adds the limits of a claim that several members name."""
        rule = self._rules[shapes[0]]
        claim = next(one for wants in rule.wants() for one in wants.claims if one.key == key)
        devices = {
            device for request in claim.spec.requests for one in request.alternatives for device in self._of(one)
        }
        lasting, usage = rule.lasting_usage(), self._ledger.usage
        if lasting is not None:  # without the claims that the draft has freed already
            held = [key for key in lasting.freed if self._ledger.allocation(key) is not None]
            usage = usage_with(usage, self._view.objects, held, -1)
        found = shared_domains(rule, claim, devices, usage)
        if not found.is_single:
            self.limits.one_domain.append((tuple(shapes), found.groups))
        if not found.are_exact:
            self.limits.fits_across = self._fits_across

    def _own(
        self,
        own: Mapping[bytes, Sequence[UnallocatedClaim]],
        shared: Mapping[str, Sequence[bytes]],
        zoned: Sequence[bytes],
    ) -> None:
        """Adds the limits of claims that only one member names. zoned: shapes with devices in certain NUMA zones, also
        of claims that are allocated already."""
        simple = not zoned and all(claim.spec.is_simple for claims in own.values() for claim in claims)
        simple = simple and not any(self._rules[shape].has_pair_rule for shape in own) and self._is_uniform(own)
        for shape, claims in own.items() if simple else ():
            for claim in claims:
                for request in claim.spec.requests:
                    self._ask(shape, request.alternatives[0])
        sets = [one for one in self._sets.values() if one.asks]
        if simple and not shared and all(map(_is_countable, sets)) and _are_nested([one.devices for one in sets]):
            self._columns(sets)
            return
        # devices of a node are searched for all of its pods together, those of shared claims too
        together = dict.fromkeys((*own, *(shape for shapes in shared.values() for shape in shapes), *zoned))
        equal: dict[Hashable, int] = {}
        keys = {shape: self._rules[shape].capacity_key() for shape in together}
        for shape, key in keys.items():
            equal[key] = equal.get(key, 0) + self._numbers[shape]
        for shape, key in keys.items():
            self._ledger.apart[shape] = equal[key]
        if any(self._is_wide(claim) for shape in together for claim in self._open_claims(shape)):
            self._limit_across(sets if simple and not shared else ())

    def _is_uniform(self, own: Iterable[bytes]) -> bool:
        """Returns whether the device plugin of a node serves all extended resources of all shapes, and then the pods
        need no claims there, or none of them."""
        served = set[bytes]()
        for shape in own:
            wants = self._rules[shape].wants()
            free = [one.at for one in wants if not one.claims and one.at is not None]
            if len(wants) - len(free) > 1:
                return False
            served.add(free[0].tobytes() if free else b"")
        return len(served) < 2

    def _open_claims(self, shape: bytes) -> Iterator[UnallocatedClaim]:
        return (one for wants in self._rules[shape].wants() for one in wants.claims)

    def _limit_across(self, sets: Sequence[_DeviceSet]) -> None:
        """Adds the check of plans on several nodes that share devices, and sums that every such plan satisfies."""
        self.limits.fits_across = self._fits_across
        usage = self._ledger.usage
        closed = frozenset[DeviceId]().union(*(rule.closed() for rule in self._rules.values()))
        for one in sets:
            if one.is_local or any(device.multi for device in one.devices):
                continue
            asks = Counter[bytes]()
            for inner in sets:
                if inner.devices <= one.devices:
                    asks.update(inner.asks)
            number = sum(not usage.is_used(device.id) and device.id not in closed for device in one.devices)
            self.limits.stocks.append((number, asks))

    def _fits_across(self, pods: Sequence[tuple[PodInfo, int]]) -> bool:
        """Returns whether pods on their nodes find devices together, as far as several nodes share devices."""
        rules = [(DynamicResources(pod, self._draft, self._config), node) for pod, node in pods if CLAIMS in pod.asks]
        found = SharedDevices(rules)
        return not found.are_shared or found.is_possible()

    def _is_wide(self, claim: UnallocatedClaim) -> bool:
        """Returns whether a device that several nodes reach suits a claim."""
        return any(
            not device.node
            for request in claim.spec.requests
            for one in request.alternatives
            for device in self._of(one)
        )

    def _of(self, alternative: Alternative) -> frozenset[OfferedDevice]:
        """Returns all devices that suit a request, on any node."""
        key = alternative.selectors, alternative.tolerations, alternative.capacity
        known = self._sets.get(key)
        if known is None:
            pools = (p for p in self._view.objects.offers.pools.values() if p.is_complete and not p.fault)
            devices = (device for pool in pools for device in pool.devices)
            found = frozenset(one for one in devices if self._matching.suits(alternative, one) is True)
            known = self._sets[key] = _DeviceSet(found)
        return known.devices

    def _ask(self, shape: bytes, alternative: Alternative) -> None:
        self._of(alternative)
        asks = self._sets[alternative.selectors, alternative.tolerations, alternative.capacity].asks
        asks[shape] = asks.get(shape, 0) + alternative.count

    def _columns(self, sets: Sequence[_DeviceSet]) -> None:
        """Adds for each set of devices a column, or a stock if several nodes share the devices."""
        usage = self._ledger.usage
        closed = frozenset[DeviceId]().union(*(rule.closed() for rule in self._rules.values()))
        index = self._draft.snapshot.index
        for one in sets:
            asks: dict[bytes, int] = {}
            for inner in sets:
                if inner.devices <= one.devices:
                    for shape, amount in inner.asks.items():
                        asks[shape] = asks.get(shape, 0) + amount
            free = [device for device in one.devices if not usage.is_used(device.id) and device.id not in closed]
            if not one.is_local:
                self.limits.stocks.append((len(free), asks))
                continue
            room: Ints = np.zeros(len(index), dtype=np.int64)
            for device in free:
                if device.node in index:
                    room[index[device.node]] += 1
            enough = sum(self._numbers[shape] * amount for shape, amount in asks.items())
            for shape in asks:
                served = [wants.at for wants in self._rules[shape].wants() if wants.at is not None and not wants.claims]
                for nodes in served:  # the device plugin of these nodes serves the pod
                    room[nodes] = enough
            self.limits.columns.append(LimitColumn(room, asks, partial(self._freed, one)))

    def _freed(self, of: _DeviceSet, pod: PodInfo) -> dict[int, int]:
        """Returns node position -> devices of a set that evicting a bound pod frees at most.

        A claim that other pods use as well counts as freed.
        """
        objects, index = self._view.objects, self._draft.snapshot.index
        out: dict[int, int] = {}
        for key in objects.by_consumer.get(pod.uid, ()) if self._view.frees else ():
            for granted in whole_devices(objects.claims[key]):
                device = objects.offers.by_id.get(granted)
                if device in of.devices and device.node in index:
                    out[index[device.node]] = out.get(index[device.node], 0) + 1
        return out


def _is_countable(one: _DeviceSet) -> bool:
    """Returns whether the devices of a set can be counted: on single nodes, or all of them for every node."""
    if any(device.multi or device.consumes for device in one.devices):
        return False
    return one.is_local or all(not device.node and device.selector is None for device in one.devices)


def _are_nested(sets: Sequence[frozenset[OfferedDevice]]) -> bool:
    """Returns whether of each two sets one contains the other, or they are disjoint."""
    return all(a.isdisjoint(b) or a <= b or b <= a for i, a in enumerate(sets) for b in sets[:i])
