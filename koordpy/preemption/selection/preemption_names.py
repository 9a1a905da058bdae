"""The names of the rules, as results and events carry them."""

from enum import StrEnum


class RuleName(StrEnum):
    """Why a unit goes (simulate.md 3.2)."""

    PRIORITY = "priority"
    QUOTA = "quota"
    FAIR_SHARE = "fair-share"
    CONSOLIDATION = "consolidation"
    STALE_GANG = "stale-gang"


class Way(StrEnum):
    """A way of choosing the units that rules allow, in the order in which they are tried: for a plain pod by a table of
    the cheapest victims of each node (told as counting), by counting, by the exact model, and by giving back what is
    not needed."""

    NODE = "node"
    COUNTING = "counting"
    MODEL = "model"
    GREEDY = "greedy"


EVERY_WAY = tuple(Way)


class Guard(StrEnum):
    """What may withhold a plan that its rules allow (preemption.md 3.1, 3.4 and 3.7); also the reason in metrics."""

    SHARE = "share"
    SURPLUS = "surplus"
    HARM = "harm"
    ENTITLEMENT = "entitlement"
    """Of moves alone, which are no evictions: in no metric."""


WAIVABLE = (Guard.SURPLUS, Guard.HARM, Guard.ENTITLEMENT)
"""Guards that a search may leave out, to learn whether there is a plan without them."""
WITHHOLDING = (Guard.SHARE, Guard.SURPLUS, Guard.HARM)
"""Guards that keep units from evictions."""

NO_GUARD: frozenset[Guard] = frozenset()
