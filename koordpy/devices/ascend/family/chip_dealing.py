# SPDX-License-Identifier: Apache-2.0
"""Allocates chips to the pods of a plan, node by node, on the current draft (ascend.md 3).

The filter `AscendChips` decides if one pod fits a node. This module decides which chips each pod of a node gets, so
that all pods of the node are served.
"""

from collections.abc import Iterable, Sequence

from koordpy.devices.ascend.family.npu_filter import chips_rule
from koordpy.devices.ascend.family.npu_round import free_chips, npu_job
from koordpy.devices.ascend.tables.chip_costs import take
from koordpy.devices.ascend.tables.chip_division import Demand, divide
from koordpy.devices.ascend.tables.npu_book import chip_numbers, npu_resource
from koordpy.devices.family_round import FamilyRound
from koordpy.pods.pod_info import PodInfo

Chips = tuple[int, ...]
"""Numbers of the chips of one pod, ascending."""


def demand_of(pod: PodInfo, node: int, now: FamilyRound) -> tuple[Demand, int] | None:
    """Returns (demand of a pod on a node's chips, mask of all free chips of the node).

    The demand excludes free chips that this pod may not use. None for a pod without a legal job, and for a node with a
    product that cannot serve the pod.
    """
    job = npu_job(pod, now.inputs)
    if job is None or isinstance(job, str):
        return None
    rule = chips_rule(now.rules(pod))
    preset = rule.presets[node] if rule is not None else None
    if rule is None or preset is None:
        return None
    free = free_chips(now.inputs).of(rule.resource).free[node]
    lost = free & ~rule.free(node)
    return Demand(preset, rule.request, job.multi_pod, ~lost), free


def pick(pod: PodInfo, node: int, now: FamilyRound) -> Chips:
    """Returns the chips that a single pod gets on a node of the current draft, by the tables of ascend.md 3.

    Empty for a pod without an NPU request. Raises `ValueError` if the node's product cannot serve the pod.
    """
    job = npu_job(pod, now.inputs)
    if job is None or isinstance(job, str):
        return ()  # the round state is not read, because it would be updated after every pod of a plan
    asked = demand_of(pod, node, now)
    if asked is None:
        raise ValueError(f"{pod.key} cannot be served on node {now.inputs.snapshot.nodes[node].name}")
    demand, free = asked
    return chip_numbers(take(demand.preset, demand.request, free & demand.usable, demand.multi_pod))


def deal_node(pods: Sequence[PodInfo], node: int, now: FamilyRound) -> dict[str, Chips] | None:
    """Returns pod key -> chips of pods on one node; None if the free chips cannot serve all of them.

    pods: in rank order, because lower ranks choose first. Pods without an NPU request are left out.
    """
    by_resource: dict[str, list[PodInfo]] = {}
    for pod in pods:
        resource = npu_resource(pod.requests)
        if resource is not None:
            by_resource.setdefault(resource, []).append(pod)
    out: dict[str, Chips] = {}
    for own in by_resource.values():
        demands: list[Demand] = []
        free = 0
        for pod in own:
            asked = demand_of(pod, node, now)
            if asked is None:
                return None
            demands.append(asked[0])
            free = asked[1]
        found = divide(demands, free)
        if found is None:
            return None
        out |= {pod.key: chip_numbers(mask) for pod, mask in zip(own, found, strict=True)}
    return out


def deal(places: Iterable[tuple[PodInfo, int]], now: FamilyRound) -> dict[str, Chips] | str:
    """Returns pod key -> chips of the NPU pods of a plan, on the draft before the plan.

    Returns a text instead if a node cannot serve all of its pods: the key of the last pod on this node. places: (pod,
    node position) in rank order.
    """
    by_node: dict[int, list[PodInfo]] = {}
    for pod, node in places:
        if npu_resource(pod.requests) is not None:
            by_node.setdefault(node, []).append(pod)
    out: dict[str, Chips] = {}
    for node, pods in by_node.items():
        found = deal_node(pods, node, now)
        if found is None:
            return pods[-1].key
        out |= found
    return out
