# SPDX-License-Identifier: Apache-2.0
"""Costs of nodes by the devices of all families (`FamilyCosts`), as the planner compares nodes.

A family may count the allocatable devices of other families in its own costs, such as GPUs beside devices of claims.
"""

from collections.abc import Sequence

from koordpy.cache.snapshot import Ints
from koordpy.devices.family_registry import FAMILIES, families_of
from koordpy.devices.family_round import FamilyRound, UnitCosts
from koordpy.devices.links.allocatable_devices import AllocatableDevices
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.pods.device_asks import LatentAsk
from koordpy.pods.pod_info import PodInfo


def unit_costs(
    kinds: Sequence[PodInfo], members: Sequence[PodInfo], now: FamilyRound, *, gather: bool
) -> UnitCosts | None:
    """Returns the costs of nodes for a unit by the first family that has costs; None if all nodes cost the same."""
    latent = {name for pod in kinds for name, ask in pod.asks.items() if isinstance(ask, LatentAsk)}
    idle = latent - now.inputs.snapshot.families.keys()  # families without objects
    beside = _allocatable_devices(kinds, now.inputs)
    active = (family for family in FAMILIES if family.name not in idle)
    found = (family.unit_costs(kinds, members, now, gather=gather, beside=beside) for family in active)
    return next((costs for costs in found if costs is not None), None)


def devices_costs(pod: PodInfo, nodes: Ints, inputs: FilterInputs) -> list[Ints]:
    """Returns the costs of nodes (positions) for a plain pod, of all families of the pod; the most important first.

    The planner compares them before scores.
    """
    beside, costs = _allocatable_devices([pod], inputs), list[Ints]()
    for family in families_of(pod, inputs.snapshot):
        found = family.pod_costs(pod, nodes, inputs, beside=beside)
        costs += found
        if found and family.costs_are_complete:
            break
    return costs


def _allocatable_devices(kinds: Sequence[PodInfo], inputs: FilterInputs) -> list[AllocatableDevices]:
    """Returns the allocatable devices of all families that pods may get; empty if no family counts them. kinds: one pod
    of each shape."""
    asked = {family.name: family for pod in kinds for family in families_of(pod, inputs.snapshot)}
    if not any(family.costs_are_complete for family in asked.values()):
        return []
    names = asked.keys()
    found = (family.allocatable_devices(kinds, inputs) for family in FAMILIES if family.name in names)
    return [one for one in found if one is not None]
