"""The names of the rules, as results and events carry them."""

from enum import StrEnum


class RuleName(StrEnum):
    """Why a unit goes (simulate.md, evictions[].rule)."""

    PRIORITY = "priority"
    QUOTA = "quota"
    FAIR_SHARE = "fair-share"
    CONSOLIDATION = "consolidation"
    STALE_GANG = "stale-gang"
