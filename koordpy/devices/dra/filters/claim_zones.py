# SPDX-License-Identifier: Apache-2.0
"""NUMA zones of the devices that pods with a demand get for their claims.

The kubelet aligns no devices of claims. So for a pod that demands alignment, each device with the attribute
`resource.kubernetes.io/numaNode` must have a zone in common with the zones that the kubelet uses for the pod. If the
kubelet aligns nothing of the pod, each two of its devices must have a zone in common. This holds for claims that are
allocated already as well. Devices without the attribute, and devices for admin access, are not compared. Source:
docs/rules/numa.md 7.
"""

from collections.abc import Hashable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple, Protocol

from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Ints, Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.devices.dra.filters.device_search import DeviceSearch
from koordpy.devices.dra.filters.node_links import NUMA_NODE
from koordpy.devices.dra.filters.searched_claim import PairRule
from koordpy.devices.dra.ledger.offered_devices import OfferedDevice
from koordpy.pods.pod_info import PodInfo

NUMA = "numa"
"""Name of the family of NUMA zones."""

ZoneNumbers = frozenset[int]


class ZoneSets(Protocol):
    """The zones that the kubelets use for pods on a draft. node: position."""

    def states(self, numbers: dict[Hashable, int]) -> bytes:
        """Returns a key that is equal as long as a pod would get the same zones on every node. numbers: state of the
        zones of a node -> its number in such keys; new states are added."""

    def state(self, node: int) -> Hashable:
        """Returns a key that is equal for nodes on which a pod would get the same zones."""

    def zone_sets(self, node: int, pods: Sequence[PodInfo]) -> Sequence[ZoneNumbers | None]:
        """Returns the zones of each pod, admitted in this order; None for a pod of which nothing is aligned."""

    def may_change(self, node: int, pod: PodInfo) -> bool:
        """Returns whether a pod may get other zones of a node after other pods have left it."""


class ZoneCosts(Protocol):
    """Costs of nodes by the zones that pods take there; lower is better. node: position."""

    @property
    def width(self) -> int:
        """Length of the result of `cost`."""

    def keys(self) -> Ints:
        """Returns [nodes] a number that is equal for nodes with equal costs."""

    def cost(self, node: int, pods: Sequence[PodInfo]) -> tuple[int, ...]:
        """Returns the cost for pods in the order of admission. Sums over nodes are compared from left to right."""

    def pod_costs(self, pod: PodInfo) -> Ints:
        """Returns [nodes] the cost for one pod, in the order of `cost`."""


class ZoneSetSource(Protocol):
    """A view of NUMA zones."""

    def zone_limits(self, inputs: Any) -> ZoneCosts | None:
        """Returns the costs of nodes on the draft of `inputs` (`FilterInputs`); None if zones limit nothing."""

    def zone_sets(self, draft: Draft, config: KoordpyConfiguration) -> ZoneSets:
        """Returns the zones of pods on a draft."""

    def planned_zones(self, inputs: Any) -> Mapping[str, ZoneNumbers | None] | None:
        """Returns pod key -> zones, as `ZoneSets.zone_sets`, of the plan for which devices are being allocated on the
        draft; None without such a plan. Pods on nodes without NUMA data are left out. inputs: `FilterInputs`."""


def demands_zones(pod: PodInfo) -> bool:
    """Returns whether a pod demands that its resources are aligned."""
    ask = pod.ask(NUMA)
    return ask is not None and bool(ask.demand.rejects)


def zone_sets_of(draft: Draft, config: KoordpyConfiguration) -> ZoneSets | None:
    """Returns the zones of pods on a draft; None in a cluster without NUMA data."""
    source: ZoneSetSource | None = draft.snapshot.families.get(NUMA)  # type: ignore[assignment]
    return source.zone_sets(draft, config) if source is not None else None


def zone_costs_of(inputs: Any) -> ZoneCosts | None:
    """Returns `ZoneSetSource.zone_limits`; None in a cluster without NUMA data."""
    source: ZoneSetSource | None = inputs.snapshot.families.get(NUMA)
    return source.zone_limits(inputs) if source is not None else None


def planned_zones(snapshot: Snapshot, inputs: Any) -> Mapping[str, ZoneNumbers | None] | None:
    """Returns `ZoneSetSource.planned_zones`; None in a cluster without NUMA data."""
    source: ZoneSetSource | None = snapshot.families.get(NUMA)  # type: ignore[assignment]
    return source.planned_zones(inputs) if source is not None else None


def zones_of(device: OfferedDevice) -> ZoneNumbers | None:
    """Returns the NUMA zones of a device by its attribute, a number or a list; None without a readable attribute."""
    value, stated = device.attribute(NUMA_NODE), device.facts.attributes.get(NUMA_NODE)
    if value is not None and value[0] == "int":
        return frozenset((value[1],))
    return frozenset(stated.numbers) if stated is not None and stated.numbers else None


class DemandedZones(NamedTuple):
    """The zones of one pod with a demand."""

    claims: frozenset[int]
    """Claims of the pod, by their position in the search."""
    fixed: tuple[ZoneNumbers, ...]
    """Zones of each device of claims that are allocated already; without devices of unknown zones."""
    zones: ZoneNumbers | None
    """Zones that the kubelet uses for the pod; None if it aligns nothing of the pod."""

    @property
    def is_kept(self) -> bool:
        """True if the devices of claims that are allocated already are in the zones."""
        if self.zones is None:
            return not any(one.isdisjoint(other) for one, other in combinations(self.fixed, 2))
        return not any(one.isdisjoint(self.zones) for one in self.fixed)

    def may_have(self, own: ZoneNumbers | None) -> bool:
        """Returns whether the pod may get a device beside those of allocated claims. own: its zones, if known."""
        near = self.fixed if self.zones is None else (self.zones,)
        return own is None or not any(own.isdisjoint(one) for one in near)


class ClaimZones:
    """The zones of pods with a demand on one node. Implements `PairRule`."""

    def __init__(self, devices: Sequence[OfferedDevice], pods: Sequence[DemandedZones]) -> None:
        self.of_devices = [zones_of(device) for device in devices]
        """[devices] zones of each device; None if they are unknown."""
        self._pods = pods
        self.is_kept = all(pod.is_kept for pod in pods)
        """False if no solution exists, because of claims that are allocated already."""

    def is_linked(self, search: DeviceSearch, claim: int, at: int) -> bool:
        """Implements `PairRule.is_linked`."""
        for pod in self._pods if self.is_kept else ():
            if claim in pod.claims:
                chosen = (one for i, results in enumerate(search.chosen()) if i in pod.claims for one in results)
                others = (other for one, other in chosen if not one.admin and pod.zones is None)
                if not pod.may_have(self.of_devices[at]) or any(self._is_far(at, i) for i in others):
                    return False
        return self.is_kept

    def apart(self, claim: int) -> tuple[int, ...] | None:
        """Implements `PairRule.apart`."""
        pods = [pod for pod in self._pods if claim in pod.claims]
        if not pods:
            return None
        count = range(len(self.of_devices))
        out = [0] * len(self.of_devices)
        for pod in pods:
            for i in count:
                if not pod.may_have(self.of_devices[i]):
                    out[i] |= 1 << i
                elif pod.zones is None:
                    out[i] |= sum(1 << j for j in count if self._is_far(i, j))
        return tuple(out)

    def is_met(self, search: DeviceSearch) -> bool:
        """Implements `PairRule.is_met`."""
        return self.is_kept

    def _is_far(self, i: int, j: int) -> bool:
        """Returns whether two devices have known zones and none in common."""
        one, other = self.of_devices[i], self.of_devices[j]
        return one is not None and other is not None and one.isdisjoint(other)


class BothRules:
    """Two rules about the devices of pods. Implements `PairRule`."""

    def __init__(self, one: PairRule, other: PairRule) -> None:
        self._rules = one, other

    def is_linked(self, search: DeviceSearch, claim: int, at: int) -> bool:
        """Implements `PairRule.is_linked`."""
        return all(rule.is_linked(search, claim, at) for rule in self._rules)

    def apart(self, claim: int) -> tuple[int, ...] | None:
        """Implements `PairRule.apart`."""
        found = [masks for rule in self._rules if (masks := rule.apart(claim)) is not None]
        return tuple(a | b for a, b in zip(*found, strict=True)) if len(found) > 1 else next(iter(found), None)

    def is_met(self, search: DeviceSearch) -> bool:
        """Implements `PairRule.is_met`."""
        return all(rule.is_met(search) for rule in self._rules)
