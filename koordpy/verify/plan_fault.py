# SPDX-License-Identifier: Apache-2.0
"""Defines `PlanFault`: a fault that an independent check has found in a plan, with the name of the check for
metrics."""

from enum import StrEnum
from typing import Self


class Check(StrEnum):
    """The independent checks; `koordpy_rejected_plans_total` counts rejected plans by these names."""

    MEMBERS = "members"
    """The pods are pending members of the unit, and the nodes exist."""
    CAPACITY = "room"
    """The nodes have enough free capacity."""
    NODES = "nodes"
    """Taints, node selectors and node affinity."""
    TIES = "ties"
    """Constraints between pods: host ports, disks, affinity, spread."""
    GANG = "gang"
    """The minimum of gangs, MustGather and podCountMultiple."""
    QUOTAS = "quotas"
    """No quota exceeds a limit."""
    DEVICES = "devices"
    """Devices of families that have no check with the family's name."""
    GPUS = "gpus"
    NPUS = "npus"
    CLAIMS = "claims"
    """Volumes and devices of claims."""
    VICTIMS = "victims"
    """The victims are pods that the preemptor may evict: bound, not protected, and so on."""
    UNITS = "units"
    """Gangs are evicted as a whole, or keep their minimum."""
    PRIORITY = "priority"
    """Victims of rule `priority`."""
    RECLAIM = "reclaim"
    """Victims of rule `quota`, and evicted units of quotas above their runtime."""
    SHARES = "shares"
    """Victims of rule `fair-share`."""
    CONSOLIDATION = "consolidation"
    """Units that consolidation moves."""
    BUDGETS = "budgets"
    """PodDisruptionBudgets."""
    PROTECTION = "protection"
    """Limits on harm, and on the eviction of gangs for surplus members."""
    RETURNS = "returns"
    """The new nodes of moved pods."""


def check_of(family: str) -> Check:
    """Returns the check for faults of a device family: the check with the family's name, else `DEVICES`."""
    return Check(family) if family in set(Check) else Check.DEVICES


class PlanFault(str):
    """The text of one fault, with the check that found it as an attribute."""

    check: Check

    def __new__(cls, text: str, check: Check) -> Self:
        out = super().__new__(cls, text)
        out.check = check
        return out
