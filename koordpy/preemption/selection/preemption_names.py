"""Names of rules, ways and guards, as they appear in results, events and metrics."""

from enum import StrEnum


class RuleName(StrEnum):
    """The rule under which a unit is evicted (simulate.md 3.2)."""

    PRIORITY = "priority"
    QUOTA = "quota"
    FAIR_SHARE = "fair-share"
    CONSOLIDATION = "consolidation"
    STALE_GANG = "stale-gang"


class Way(StrEnum):
    """A way of choosing victims, in the order in which they are tried.

    NODE: a table of the cheapest victims of each node for a plain pod (reported as counting). COUNTING: dynamic
    programming. MODEL: CP-SAT. GREEDY: all eligible units, then a reprieve.
    """

    NODE = "node"
    COUNTING = "counting"
    MODEL = "model"
    GREEDY = "greedy"


EVERY_WAY = tuple(Way)


class Guard(StrEnum):
    """A protection that may withhold a plan which its rules allow (preemption.md 3.1, 3.4, 3.7).

    Also the reason in metrics.
    """

    SHARE = "share"
    SURPLUS = "surplus"
    HARM = "harm"
    ENTITLEMENT = "entitlement"
    """Applies to moves alone, which are not evictions, so it is in no metric."""


WAIVABLE = (Guard.SURPLUS, Guard.HARM, Guard.ENTITLEMENT)
"""Guards that a search may leave out, to find out whether a plan exists without them."""
WITHHOLDING = (Guard.SHARE, Guard.SURPLUS, Guard.HARM)
"""Guards that protect units from evictions."""

NO_GUARD: frozenset[Guard] = frozenset()
