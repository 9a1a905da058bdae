# SPDX-License-Identifier: Apache-2.0
"""The part of a device family's interface by which the planner compares nodes (`FamilyCosts`).

The other methods of a family are in `device_family.py`. This module must not know any family.
"""

from collections.abc import Sequence

from koordpy.cache.snapshot import Ints
from koordpy.devices.family_round import FamilyRound, UnitCosts
from koordpy.devices.links.allocatable_devices import AllocatableDevices
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.pods.pod_info import PodInfo


class FamilyCosts:
    """Costs of nodes by the devices of one family. By default, all nodes cost the same."""

    def pod_costs(
        self, pod: PodInfo, nodes: Ints, inputs: FilterInputs, *, beside: Sequence[AllocatableDevices]
    ) -> Sequence[Ints]:
        """Returns costs of nodes for a plain pod, which the planner compares before scores. Empty for no costs.

        nodes: positions of the nodes that accept the pod. Each array of the result is like `nodes`; lower is better,
        and the first array is the most important. Called only if several nodes accept the pod. beside: allocatable
        devices of all families that the pod may get.
        """
        return ()

    costs_are_complete: bool = False
    """True if `pod_costs`, unless it is empty, replaces the costs of all other families."""

    def allocatable_devices(self, kinds: Sequence[PodInfo], inputs: FilterInputs) -> AllocatableDevices | None:
        """Returns the allocatable devices that pods may get, for the costs of another family; None for none.

        kinds: one pod of each shape.
        """
        return None

    def unit_costs(
        self,
        kinds: Sequence[PodInfo],
        members: Sequence[PodInfo],
        now: FamilyRound,
        *,
        gather: bool,
        beside: Sequence[AllocatableDevices],
    ) -> UnitCosts | None:
        """Returns the costs of nodes for a unit; None if all nodes cost the same.

        Also called for units without a request to the family. kinds: one pod of each shape of the unit's problem, in
        the order of the shapes. members: all pods of the unit, bound and pending. gather: True if the unit has a gather
        goal. beside: allocatable devices of all families that the pods may get.
        """
        return None
