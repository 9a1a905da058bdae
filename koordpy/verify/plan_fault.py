"""Faults that checks find in a plan."""

from enum import StrEnum
from typing import Self


class Check(StrEnum):
    """The independent checks; `koordpy_rejected_plans_total` counts rejected plans by these names."""

    MEMBERS = "members"
    ROOM = "room"
    NODES = "nodes"
    TIES = "ties"
    GANG = "gang"
    QUOTAS = "quotas"
    DEVICES = "devices"
    GPUS = "gpus"
    NPUS = "npus"
    CLAIMS = "claims"
    VICTIMS = "victims"
    UNITS = "units"
    PRIORITY = "priority"
    RECLAIM = "reclaim"
    SHARES = "shares"
    CONSOLIDATION = "consolidation"
    BUDGETS = "budgets"
    PROTECTION = "protection"
    RETURNS = "returns"


def check_of(family: str) -> Check:
    """Returns the check that counts faults of a device family: the check of its name, else `DEVICES`."""
    return Check(family) if family in set(Check) else Check.DEVICES


class PlanFault(str):
    """The text of one fault, and the check that found it."""

    check: Check

    def __new__(cls, text: str, check: Check) -> Self:
        out = super().__new__(cls, text)
        out.check = check
        return out
