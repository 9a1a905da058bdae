# SPDX-License-Identifier: Apache-2.0
"""Devices that drivers offer: the pools of ResourceSlices at one moment, and the devices that each node reaches.

Only slices of the newest generation of a pool count, and a pool offers nothing until all of its slices exist, or if
they contradict each other. The devices of a node are in kube-scheduler's order: pools without binding conditions by
driver and name, then the other pools; in a pool the slices by name, the devices as listed. Source: dra.md 1.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from koordpy.api.claim_objects import (
    BasicDevice,
    DeviceClass,
    DeviceTaint,
    DeviceTaintRule,
    ResourceSlice,
    SliceDevice,
)
from koordpy.api.label_selectors import term_matches
from koordpy.api.objects import NodeSelector
from koordpy.api.quantity import parse_exact
from koordpy.pods.claim_refs import DeviceId

KEEPING_BACK = ("NoSchedule", "NoExecute")
"""Effects of taints that keep a device from claims without a toleration."""

CounterKey = tuple[str, str]
"""(counter set, counter) of a pool."""


class ReachingNode(Protocol):
    """The values of a node that decide which devices it reaches: name and labels."""

    @property
    def name(self) -> str:
        """Name of the node."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of the node."""


UPDATED, INVALID = "being updated", "invalid"


class OfferedDevice:
    """A device of a pool, with the nodes that reach it. Immutable."""

    __slots__ = ("_memo", "consumes", "facts", "id", "multi", "node", "pool", "selector", "taints")

    def __init__(
        self, pool: "DevicePool", slice_: ResourceSlice, device: SliceDevice, rules: Sequence[DeviceTaintRule]
    ):
        facts, spec = device.facts, slice_.spec
        where: Any = facts if spec.per_device_node_selection else spec
        self.id = DeviceId(spec.driver, spec.pool.name, device.name)
        self.pool = pool
        self.facts: BasicDevice = facts
        self.node: str = where.node_name
        """Name of the only node that reaches the device; empty if several may."""
        self.selector: NodeSelector | None = where.node_selector
        """Nodes that reach the device; None for all of them, or for the one in `node`."""
        added = (rule.spec.taint for rule in rules if _is_target(rule, self.id))
        self.taints: tuple[DeviceTaint, ...] = tuple(t for t in (*facts.taints, *added) if t.effect in KEEPING_BACK)
        self.multi = bool(facts.allow_multiple_allocations)
        self.consumes: tuple[tuple[CounterKey, Fraction], ...] = tuple(
            ((use.counter_set, name), parse_exact(counter.value))
            for use in facts.consumes_counters
            for name, counter in use.counters.items()
        )
        self._memo: dict[str, Any] = {}

    def attribute(self, name: str) -> tuple[str, Any] | None:
        """Returns (type, value) of an attribute by its name with a domain; None if the device lacks it.

        An attribute without a domain belongs to the domain of the driver.
        """
        known: dict[str, tuple[str, Any]] | None = self._memo.get("attributes")
        if known is None:
            known = self._memo["attributes"] = {}
            for key, one in self.facts.attributes.items():
                kinds = (("string", one.text), ("int", one.number), ("bool", one.truth), ("version", one.version))
                value = next(((kind, value) for kind, value in kinds if value is not None), ("unknown", key))
                known[key if "/" in key else f"{self.id.driver}/{key}"] = value
        return known.get(name)

    @property
    def capacity(self) -> Mapping[str, Fraction]:
        """Amount of each capacity by its name with a domain."""
        known: dict[str, Fraction] | None = self._memo.get("capacity")
        if known is None:
            known = self._memo["capacity"] = {
                self.full_name(key): parse_exact(one.value) for key, one in self.facts.capacity.items()
            }
        return known

    def full_name(self, name: str) -> str:
        """Returns the name of an attribute or capacity with its domain."""
        return name if "/" in name else f"{self.id.driver}/{name}"

    def reaches(self, node: ReachingNode) -> bool:
        """Returns whether a node reaches the device."""
        if self.node:
            return self.node == node.name
        return self.selector is None or is_selected(self.selector, node)


def is_selected(selector: NodeSelector, node: ReachingNode) -> bool:
    """Returns whether a node selector matches a node."""
    return any(term_matches(term, node.name, node.labels) for term in selector.node_selector_terms)


def _is_target(rule: DeviceTaintRule, device: DeviceId) -> bool:
    """Returns whether a taint rule selects a device; an absent field selects every value."""
    wanted = rule.spec.device_selector
    fields = zip((wanted.driver, wanted.pool, wanted.device), device, strict=True)
    return all(not want or want == own for want, own in fields)


def _has_groups(device: SliceDevice) -> bool:
    """Returns whether a device names compatibility groups, which koordpy does not read."""
    facts = device.facts
    return bool(facts.compatibility_groups) or any(use.compatibility_groups for use in facts.consumes_counters)


class DevicePool:
    """The slices of the newest generation of a pool."""

    def __init__(self, slices: Sequence[ResourceSlice], rules: Sequence[DeviceTaintRule]) -> None:
        """slices: all slices of the pool, of any generation. rules: taint rules of devices."""
        newest = max(one.spec.pool.generation for one in slices)
        self.slices = sorted((s for s in slices if s.spec.pool.generation == newest), key=lambda s: s.metadata.name)
        first = self.slices[0].spec
        self.driver, self.name = first.driver, first.pool.name
        usable = [one for one in self.slices if not any(map(_has_groups, one.spec.devices))]
        self.expected = max(one.spec.pool.resource_slice_count for one in self.slices)
        self.found = len(usable)
        self.is_complete = self.found == self.expected
        self._listed = [[OfferedDevice(self, one, device, rules) for device in one.spec.devices] for one in usable]
        """Devices of each slice."""
        self.devices = tuple(device for listed in self._listed for device in listed)
        self.counters: dict[CounterKey, Fraction] = {}
        """Amount of each counter that the devices share."""
        sets = [one for s in usable for one in s.spec.shared_counters]
        for one in sets:
            self.counters.update({(one.name, name): parse_exact(c.value) for name, c in one.counters.items()})
        twice = Counter(device.id.device for device in self.devices)
        self.repeated = frozenset(name for name, number in twice.items() if number > 1)
        """Names of devices that are listed more than once. This is a fault only if one node reaches two of them."""
        self.fault = self._counter_fault([one.name for one in sets])
        """Why the pool is invalid on every node; empty if it is valid."""

    def _counter_fault(self, sets: Sequence[str]) -> str:
        """Returns the first fault of counter sets and of the devices that draw on them; empty for none."""
        for name, number in Counter(sets).items():
            if number > 1:
                return f"duplicate counter set name {name}"
        for device in self.devices:
            for use in device.facts.consumes_counters:
                if use.counter_set not in sets:
                    return f"counter set {use.counter_set} not found"
                for name in use.counters:
                    if (use.counter_set, name) not in self.counters:
                        return f"counter {name} not found in counter set {use.counter_set}"
        return ""

    @property
    def title(self) -> str:
        """`DRIVER/POOL`, for messages."""
        return f"{self.driver}/{self.name}"

    def at(self, node: ReachingNode) -> "NodePool":
        """Returns what a node reaches.

        As for kube-scheduler, a slice with devices of several nodes counts as a whole: for names that occur twice, and
        for binding conditions.
        """
        if not self.is_complete:
            return NodePool(self, UPDATED, (), ())
        listed = [device for part in self._listed if any(one.reaches(node) for one in part) for device in part]
        if self.fault or (self.repeated and len({one.id for one in listed}) < len(listed)):
            return NodePool(self, INVALID, (), ())
        devices = [device for device in listed if device.reaches(node)]
        return NodePool(self, "", listed, listed if len(devices) == len(listed) else devices)

    def warning(self) -> tuple[str, str] | None:
        """Returns (object, text) if something prevents the pool from offering devices; else None."""
        about = f"ResourceSlice/{self.slices[0].metadata.name}"
        if not self.is_complete:
            return about, f"pool {self.title} is incomplete: {self.found} of {self.expected} slices"
        fault = self.fault or next((f"duplicate device name {n}" for n in sorted(self._clashes())), "")
        return (about, f"pool {self.title} is invalid: {fault}") if fault else None

    def _clashes(self) -> Iterator[str]:
        """Yields names that occur twice in slices which one node may reach."""
        for name in self.repeated:
            parts = [part for part in self._listed if any(device.id.device == name for device in part)]
            reaches = [{device.node for device in part} for part in parts]
            pairs = ((a, b) for i, a in enumerate(reaches) for b in reaches[:i])
            if len(parts) == 1 or any("" in a | b or a & b for a, b in pairs):
                yield name


class NodePool(NamedTuple):
    """A pool of which a node reaches a slice."""

    pool: DevicePool
    state: str
    """`being updated` for a pool that lacks slices, `invalid`; empty for a pool that offers devices."""
    listed: Sequence[OfferedDevice]
    """Devices of the slices that the node reaches, also those of other nodes in them."""
    devices: Sequence[OfferedDevice]
    """Devices that the node reaches; the same sequence as `listed` if these are all."""


class NodeDevices:
    """The devices that a node reaches, in kube-scheduler's order."""

    def __init__(self, pools: Sequence[NodePool]) -> None:
        self.pools = pools
        self.devices = tuple(device for one in pools for device in one.devices)
        self.listed = self.devices
        """Devices for which kube-scheduler evaluates selectors, before it looks at the nodes of each device."""
        if any(one.listed is not one.devices for one in pools):
            self.listed = tuple(device for one in pools for device in one.listed)

    @property
    def is_changing(self) -> bool:
        """True if the node reaches an incomplete or invalid pool."""
        return any(one.state for one in self.pools)

    @property
    def has_invalid(self) -> bool:
        """True if the node reaches an invalid pool."""
        return any(one.state == INVALID for one in self.pools)


@dataclass(frozen=True, eq=False)
class _Reach:
    """Pools by the nodes that may reach them."""

    local: Mapping[str, Sequence[DevicePool]]
    """Node name -> pools in which all devices are of this node."""
    wide: Sequence[DevicePool]
    """The other pools."""


class DeviceOffers:
    """Slices, classes and taint rules at one moment: pools, and the devices of each node. Immutable."""

    def __init__(
        self,
        slices: Mapping[str, ResourceSlice],
        classes: Mapping[str, DeviceClass],
        rules: Mapping[str, DeviceTaintRule],
    ) -> None:
        self.slices, self.classes, self.rules = slices, classes, rules
        self.memo: dict[Any, Any] = {}
        """Results that depend on these objects only: matches of selectors, requests that were read."""
        self._at: dict[str, tuple[Mapping[str, str], NodeDevices]] = {}

    @cached_property
    def pools(self) -> Mapping[tuple[str, str], DevicePool]:
        """(driver, pool name) -> pool, sorted."""
        found: dict[tuple[str, str], list[ResourceSlice]] = {}
        for one in self.slices.values():
            found.setdefault((one.spec.driver, one.spec.pool.name), []).append(one)
        rules = [self.rules[name] for name in sorted(self.rules)]
        return {key: DevicePool(found[key], rules) for key in sorted(found)}

    @cached_property
    def by_id(self) -> Mapping[DeviceId, OfferedDevice]:
        """The devices of all pools, also of incomplete ones."""
        return {device.id: device for pool in self.pools.values() for device in pool.devices}

    def device(self, key: DeviceId, node: str) -> OfferedDevice | None:
        """Returns a device as a node (name) reaches it; None for an unknown device.

        Devices of different nodes may have equal names.
        """
        found = self.by_id.get(key)
        if found is not None and key.device in found.pool.repeated:
            alike = (one for one in found.pool.devices if one.id == key and one.node == node)
            return next(alike, found)
        return found

    @cached_property
    def _reach(self) -> _Reach:
        local: dict[str, list[DevicePool]] = {}
        wide: list[DevicePool] = []
        for pool in self.pools.values():
            names = {s.spec.node_name for s in pool.slices if not s.spec.shared_counters or s.spec.devices}
            if len(names) == 1 and "" not in names:
                local.setdefault(names.pop(), []).append(pool)
            else:
                wide.append(pool)
        return _Reach(local, wide)

    def node_of(self, pool: tuple[str, str]) -> str | None:
        """Returns the only node (name) that reaches a pool; None if several nodes may; empty for an unknown pool."""
        found = self.pools.get(pool)
        if found is None:
            return ""
        names = {device.node for device in found.devices}
        return names.pop() if len(names) == 1 and "" not in names else None

    def at(self, node: ReachingNode) -> NodeDevices:
        """Returns the devices that a node reaches."""
        known = self._at.get(node.name)
        if known is None or known[0] is not node.labels:
            known = self._at[node.name] = node.labels, self._offer(node)
        return known[1]

    def _offer(self, node: ReachingNode) -> NodeDevices:
        reach = self._reach
        pools = [*reach.local.get(node.name, ()), *(pool for pool in reach.wide if _is_near(pool, node))]
        found = [pool.at(node) for pool in pools]
        found.sort(
            key=lambda one: (any(d.facts.binding_conditions for d in one.listed), one.pool.driver, one.pool.name)
        )
        return NodeDevices(found)

    @property
    def warnings(self) -> tuple[tuple[str, str], ...]:
        """(object, text) of pools that offer nothing."""
        found = (pool.warning() for pool in self.pools.values())
        return tuple(one for one in found if one is not None)


def _is_near(pool: DevicePool, node: ReachingNode) -> bool:
    """Returns whether a node reaches a pool: a device of it, or, of an incomplete pool, one of its slices."""
    if any(device.reaches(node) for device in pool.devices):
        return True
    slices = (one.spec for one in pool.slices if not pool.is_complete)
    return any(
        one.all_nodes
        or one.node_name == node.name
        or (one.node_selector is not None and is_selected(one.node_selector, node))
        for one in slices
    )


def tainted(device: OfferedDevice, tolerations: Iterable[Any]) -> bool:
    """Returns True if a taint excludes a device from a request with these tolerations."""
    return any(not any(_tolerates(one, taint) for one in tolerations) for taint in device.taints)


def _tolerates(toleration: Any, taint: DeviceTaint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator in ("", "Equal"):
        return bool(toleration.value == taint.value)
    return bool(toleration.operator == "Exists")


def local_nodes(devices: Collection[OfferedDevice]) -> set[str]:
    """Returns the names of the nodes in `OfferedDevice.node`; an empty name for devices that several nodes reach."""
    return {device.node for device in devices}
