# SPDX-License-Identifier: Apache-2.0
"""Costs of nodes for the members of a gang with claims to allocate, by the devices that each node would give.

The vector of a node has, in this order: the indexes of the chosen alternatives, numbers of pods by the link class of
their slowest pair of one driver (slowest class first), the same for pairs of different drivers, the cost of NUMA zones,
and the free suitable devices that are left. Allocatable devices that the pods also get count like those of a driver.
The devices of all pods of a node are chosen together (`joint_choice.py`), once for all nodes with equal devices. If all
pairs of the cluster have one link class, the vector depends on numbers of devices alone. Source: docs/rules/dra.md 6.
"""

from collections.abc import Collection, Hashable, Sequence
from functools import cached_property
from itertools import combinations
from operator import attrgetter
from typing import Any

import numpy as np

from koordpy.cache.snapshot import Ints
from koordpy.devices.dra.family.plain_costs import slowest_beside
from koordpy.devices.dra.filters.claim_filter import DynamicResources
from koordpy.devices.dra.filters.claim_requests import Alternative, alternatives_of
from koordpy.devices.dra.filters.claim_zones import zone_costs_of, zones_of
from koordpy.devices.dra.filters.device_matching import DeviceMatching
from koordpy.devices.dra.filters.device_shares import can_hold, provided
from koordpy.devices.dra.filters.joint_choice import JointChoice
from koordpy.devices.dra.ledger.claim_book import claim_ledger
from koordpy.devices.dra.ledger.offered_devices import NodeDevices, OfferedDevice
from koordpy.devices.family_round import UnitCosts
from koordpy.devices.links.allocatable_devices import AllocatableDevices
from koordpy.devices.links.link_board import NO_LIMIT
from koordpy.placement.problem import DeviceCosts, Devices, Vector
from koordpy.plan.limits import EXACT_GPUS
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.pods.pod_info import PodInfo


class ClaimCosts:
    """The cost table of one unit."""

    def __init__(
        self,
        rules: Sequence[DynamicResources | None],
        members: Sequence[PodInfo],
        shared: Collection[str],
        inputs: FilterInputs,
        beside: Sequence[AllocatableDevices],
    ) -> None:
        """rules: the claims of one pod of each shape; None for a shape without. members: all pods of the unit. shared:
        claims that several members name. beside: allocatable devices that the pods may get."""
        self._rules, self._shared, self._draft, self._beside = rules, shared, inputs.draft, beside
        self._zones = zone_costs_of(inputs)
        draft = inputs.draft
        self._active = tuple(i for i, rule in enumerate(rules) if rule is not None)
        self._nodes = draft.snapshot.nodes
        bound = {pod.node for pod in members if pod.bound}
        self._with_members = np.fromiter((node.name in bound for node in self._nodes), dtype=np.int64)
        self._first: list[int] = []
        """Kind of nodes -> position of its first node."""
        self._known: dict[tuple[int, tuple[int, ...]], Vector | None] = {}

    def table(self, *, gather: bool) -> UnitCosts:
        """Returns the costs. gather: True if the unit has a gather goal."""
        flat = self._flat()
        kinds = self._kinds()
        if flat is not None:
            table = DeviceCosts(kinds, self._flat_cost(flat), 3, self._active, always=True, devices=flat)
        else:
            width = 2 + len(self._near) + len(self._far) + self._zone_width
            table = DeviceCosts(kinds, self.cost, width, self._active, exact=lambda: self._is_exact)
        return UnitCosts(table, None if gather else self._with_members)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    @cached_property
    def _alternatives(self) -> list[Alternative]:
        """All alternatives of all claims to allocate."""
        wanted = [one for i in self._active for wants in self._rule(i).wants() for one in wants.claims]
        return alternatives_of([one.spec for one in dict.fromkeys(wanted)])

    def _rule(self, shape: int) -> DynamicResources:
        rule = self._rules[shape]
        assert rule is not None
        return rule

    def _at(self, node: int) -> NodeDevices:
        return self._rule(self._active[0]).offers.at(self._nodes[node])

    @cached_property
    def _suitable(self) -> list[list[int]]:
        """Node -> positions of the devices that suit an alternative, free or not."""
        matching = DeviceMatching(self._rule(self._active[0]).offers)
        return [
            [
                i
                for i, device in enumerate(self._at(node).devices)
                if any(matching.suits(one, device) is True for one in self._alternatives)
            ]
            for node in range(len(self._nodes))
        ]

    def _kinds(self) -> Ints:
        """Returns [nodes] kind of each node. Nodes of one kind have equal devices and links."""
        numbers: dict[Hashable, int] = {}
        out = np.zeros(len(self._nodes), dtype=np.int64)
        constraints = {
            constraint.attribute
            for i in self._active
            for wants in self._rule(i).wants()
            for claim in wants.claims
            for constraint in claim.spec.constraints
        }
        for node in range(len(self._nodes)):
            number = numbers.setdefault(self._node_key(node, sorted(constraints)), len(numbers))
            if number == len(self._first):
                self._first.append(node)
            out[node] = number
        return out

    def _node_key(self, node: int, attributes: Sequence[str]) -> Hashable:
        """Returns a key that is equal for nodes with equal costs. attributes: those of constraints."""
        devices = self._at(node).devices
        served = tuple(bool(self._rule(i).wants_at(node).claims) for i in self._active)
        if self._with_members[node] or any(one.multi or one.consumes or not one.node for one in devices):
            return node
        zone = int(self._zones.keys()[node]) if self._zones is not None else 0
        others = tuple(one.key(node) for one in self._beside)
        links, usage = self._rule(self._active[0]).links(node), claim_ledger(self._draft.ledgers).usage
        closed, matching = self._rule(self._active[0]).closed(), DeviceMatching(self._rule(self._active[0]).offers)
        roots: dict[object, int] = {}
        rows: list[Hashable] = []
        for i, device in enumerate(devices):
            answers = tuple(matching.suits(one, device) for one in self._alternatives)
            root, numa = links.places[i]
            place = roots.setdefault(root, len(roots)) if root is not None else None, numa
            values = tuple(device.attribute(name) for name in attributes)
            free = not usage.is_used(device.id) and device.id not in closed
            binds = bool(device.facts.binding_conditions)
            rows.append((device.id.driver, answers, values, free, binds, place, self._capacity(device)))
        pairs = combinations(range(len(devices)), 2) if links.has_matrix else ()
        demands = [rule for i in self._active if (rule := self._rule(i)).demands_zones]
        if demands:
            rows += [demands[0].zone_state(node), *map(zones_of, devices)]
        return served, zone, others, tuple(rows), tuple(links.compared(i, j) for i, j in pairs)

    def _capacity(self, device: OfferedDevice) -> Hashable:
        """Returns the capacities of a device if a request names some."""
        return tuple(device.capacity.items()) if any(one.capacity for one in self._alternatives) else None

    # -- links ---------------------------------------------------------------------------------------------------------

    @cached_property
    def _classes(self) -> tuple[list[int], list[int]]:
        """kB/s of the link classes of pairs of suitable devices on all nodes: (pairs of one driver, pairs of different
        drivers)."""
        near, far = set[int](), set[int]()
        done: set[Hashable] = set()
        for node, suitable in enumerate(self._suitable):
            links = self._rule(self._active[0]).links(node)
            known = links.has_matrix or (links.size and self._beside)
            key = None if known else tuple((links.drivers[i], links.places[i]) for i in suitable)
            if key is not None and key in done:
                continue
            done.add(key)
            for i, j in combinations(suitable, 2):
                (near if links.drivers[i] == links.drivers[j] else far).add(links.compared(i, j))
            if self._beside:
                far.update(links.compared_to(i, at) for i in suitable for at in (None, *range(links.size)))
        near.update(value for one in self._beside for value in one.bandwidths)
        return sorted(near), sorted(far)

    @property
    def _near(self) -> list[int]:
        return self._classes[0]

    @property
    def _far(self) -> list[int]:
        return self._classes[1]

    @property
    def _is_exact(self) -> bool:
        """True if on every node all solutions are compared, so that the best one is proven."""
        if not all(one.is_exact(node) for one in self._beside for node in range(len(self._nodes))):
            return False
        return all(len(one) <= EXACT_GPUS for one in self._suitable)

    def _flat(self) -> Devices | None:
        """Returns the costs by numbers of devices, if nothing else matters; else None."""
        if self._beside or self._zones is not None:
            return None
        asks = [0] * len(self._rules)
        matching = DeviceMatching(self._rule(self._active[0]).offers)
        for i in self._active:
            rule = self._rule(i)
            wants = rule.wants()
            if len(wants) > 1 or rule.has_pair_rule or not rule.is_in_problem or set(rule.keys) & set(self._shared):
                return None
            if not all(one.spec.is_simple for one in wants[0].claims) or rule.keys_in_use():
                return None
            asks[i] = sum(one.spec.least for one in wants[0].claims)
        if len(self._near) > 1 or self._far or self._with_members.any():
            return None
        usage, closed = claim_ledger(self._draft.ledgers).usage, self._rule(self._active[0]).closed()
        free = np.zeros(len(self._nodes), dtype=np.int64)
        for node, suitable in enumerate(self._suitable):
            devices = [self._at(node).devices[i] for i in suitable]
            if any(one.multi or one.consumes or not one.node or one.facts.binding_conditions for one in devices):
                return None
            if any(
                matching.suits(one, device) is not True or not provided(can_hold, one, device)
                for device in devices
                for one in self._alternatives
            ):
                return None
            free[node] = sum(not usage.is_used(one.id) and one.id not in closed for one in devices)
        return Devices(tuple(asks), free)

    def _flat_cost(self, flat: Devices) -> Any:
        def cost(kind: int, counts: tuple[int, ...]) -> Vector | None:
            asked = sum(number * ask for number, ask in zip(counts, flat.asks, strict=True))
            if not any(counts):
                return 0, 0, 0
            left = int(flat.free[self._first[kind]]) - asked
            several = sum(number for number, ask in zip(counts, flat.asks, strict=True) if ask > 1)
            return int(asked > 1), max(0, left), several

        return cost

    # -- vectors -------------------------------------------------------------------------------------------------------

    def cost(self, kind: int, counts: tuple[int, ...]) -> Vector | None:
        """Returns the vector of a node of a kind with counts[i] pods of shape i; None if it lacks devices."""
        key = kind, counts
        if key not in self._known:
            self._known[key] = self._vector(self._first[kind], counts)
        return self._known[key]

    def _vector(self, node: int, counts: tuple[int, ...]) -> Vector | None:
        near, far = [0] * len(self._near), [0] * len(self._far)
        pods = [
            rule for rule, number in zip(self._rules, counts, strict=True) if rule is not None for _ in range(number)
        ]
        if not pods:
            return (0, *near, *far, *(0,) * self._zone_width, 0)
        alternatives, devices, left, slowest = 0, 0, 0, [NO_LIMIT, NO_LIMIT]
        choice = JointChoice(pods, node, self._draft, shared=self._shared)
        if choice.claims:
            found = choice.choose(every=True)
            if found is None:
                return None
            alternatives, devices, left = sum(found.alternatives), found.devices, found.left
            slowest = list(found.slowest)
        members = [rule.pod for rule in pods]
        for beside in self._beside:
            given = beside.on_node(node, members)
            if given is None:
                return None
            left += given.left
            slowest = [min(slowest[0], given.slowest), min(slowest[1], slowest_beside(pods[0], node, devices, given))]
        for numbers, classes, slow in zip((near, far), self._classes, slowest, strict=True):
            if slow != NO_LIMIT and slow in classes:
                numbers[classes.index(slow)] += 1
        members.sort(key=attrgetter("order"))
        zones = self._zones.cost(node, members) if self._zones is not None else ()
        return (alternatives, *near, *far, *zones, left)

    @property
    def _zone_width(self) -> int:
        """Length of the cost of zones in a vector."""
        return self._zones.width if self._zones is not None else 0
