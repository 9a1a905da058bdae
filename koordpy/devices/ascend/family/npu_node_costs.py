# SPDX-License-Identifier: Apache-2.0
"""Costs of nodes by AscendAffinity for a gang with a gather goal, by the number of its pods on each node (ascend.md 3).

AscendAffinity is the score of a node for a pod: high if the pod's chips fit tightly into a group of free chips. The
network goals of the gang come first. Among equal placements the sum of AscendAffinity over the pods decides. A pod is
scored on its node after the pods before it. A node with chips that cannot serve its pods together takes none of them.
"""

from collections.abc import Sequence

import numpy as np

from koordpy.devices.ascend.family.chip_dealing import demand_of
from koordpy.devices.ascend.family.npu_filter import AscendChips, chips_rule
from koordpy.devices.ascend.tables.chip_costs import affinity
from koordpy.devices.ascend.tables.chip_division import Demand, divide
from koordpy.devices.family_round import FamilyRound
from koordpy.placement.problem import DeviceCosts, Ints, Vector
from koordpy.pods.pod_info import PodInfo

_MOST = 1 << 14
"""Upper bound of AscendAffinity. The cost of a pod is this number less its score, because the least cost is best."""


def npu_by_count(pods: Sequence[PodInfo], now: FamilyRound) -> DeviceCosts | None:
    """Returns the cost table of a unit; None if all placements cost the same.

    pods: one pod of each shape. All placements cost the same if no shape has NPUs. They also do if one shape has NPUs,
    each node takes at most one such pod, and all these nodes have one score.
    """
    rules = [chips_rule(now.rules(pod)) for pod in pods]
    active = tuple(i for i, rule in enumerate(rules) if rule is not None)
    if not active:
        return None
    table = _ChipTable(pods, now)
    kinds = table.kinds(len(now.inputs.snapshot.nodes))
    alone = len(active) == 1 and all(rule is None or int(rule.copies().max(initial=0)) <= 1 for rule in rules)
    if alone and len({int(value) for value in table.single_pod_costs if value >= 0}) <= 1:
        return None
    return DeviceCosts(kinds, table.cost, 1, active)


class _ChipTable:
    """Computes the cost of a node from its kind and the number of pods of each shape. Results are cached."""

    def __init__(self, pods: Sequence[PodInfo], now: FamilyRound) -> None:
        self._pods, self._now = pods, now
        self._rules: list[AscendChips | None] = [chips_rule(now.rules(pod)) for pod in pods]
        self._states: list[tuple[tuple[Demand | None, int, int], ...]] = []
        """Kind -> (demand, free chips, height) of each shape; the demand is None if the node cannot serve the shape."""
        self._known: dict[tuple[int, tuple[int, ...]], Vector | None] = {}
        self.single_pod_costs: list[int] = []
        """AscendAffinity of one pod of the first shape with NPUs, by kind."""

    def kinds(self, nodes: int) -> Ints:
        """Returns [nodes] kind of each node: nodes with equal products and free chips have one kind."""
        out = np.zeros(nodes, dtype=np.int64)
        numbers: dict[object, int] = {}
        for node in range(nodes):
            state = tuple(self._state(i, node) for i in range(len(self._rules)))
            number = numbers.setdefault(state, len(numbers))
            if number == len(self._states):
                self._states.append(state)
                first = next(rule for rule in self._rules if rule is not None)
                self.single_pod_costs.append(int(first.affinity[node]))
            out[node] = number
        return out

    def _state(self, shape: int, node: int) -> tuple[Demand | None, int, int]:
        """Returns (demand, free chips, height) of a shape on a node; (None, 0, 0) if the node cannot serve the
        shape."""
        rule = self._rules[shape]
        asked = demand_of(self._pods[shape], node, self._now) if rule is not None else None
        if rule is None or asked is None or rule.affinity[node] < 0:
            return None, 0, 0
        return *asked, rule.height(node)

    def cost(self, kind: int, counts: tuple[int, ...]) -> Vector | None:
        """Returns the cost of counts[i] pods of shape i on a node of a kind; None if its chips cannot serve these pods
        together."""
        key = kind, counts
        if key not in self._known:
            self._known[key] = self._compute_cost(kind, counts)
        return self._known[key]

    def _compute_cost(self, kind: int, counts: tuple[int, ...]) -> Vector | None:
        """Divides the free chips among the pods, shape by shape, and adds up the costs of the single pods."""
        states: list[tuple[Demand, int, int]] = []
        for (demand, free, height), rule, number in zip(self._states[kind], self._rules, counts, strict=True):
            if rule is None or not number:
                continue
            if demand is None:
                return None
            states += [(demand, free, height)] * number
        chips = divide([demand for demand, _, _ in states], states[0][1]) if states else ()
        if chips is None:
            return None
        taken = total = 0
        for (demand, free, height), own in zip(states, chips, strict=True):
            left = free & demand.usable & ~taken
            score = affinity(demand.preset, demand.request, left, height, demand.multi_pod)
            assert score is not None
            taken |= own
            total += _MOST - score
        return (total,)
