# SPDX-License-Identifier: Apache-2.0
"""Names of rules, ways and guards, as they appear in results, events and metrics."""

from enum import StrEnum


class RuleName(StrEnum):
    """The rule under which a unit is evicted (simulate.md 3.2)."""

    PRIORITY = "priority"
    """The victim has a lower priority."""
    QUOTA = "quota"
    """The victim's quota uses more than its min, and the preemptor's quota reclaims its own min."""
    FAIR_SHARE = "fair-share"
    """The victim's user or queue uses more than its share, and the preemptor's user or queue reclaims its own share."""
    CONSOLIDATION = "consolidation"
    """The unit is moved: evicted, and placed again in the same plan."""
    STALE_GANG = "stale-gang"
    """The gang has lost members that it needs, and its grace period is over."""
    REPAIR = "repair"
    """The gang has lost members that it needs, and moves as a whole."""


class Way(StrEnum):
    """A way of choosing victims, in the order in which the ways are tried."""

    NODE = "node"
    """The cheapest victims of each node, for a plain pod (`single_pod.py`). Results and metrics report it as
    COUNTING."""
    COUNTING = "counting"
    """Dynamic programming over nodes and domains, without a solver (`counted_victims.py`)."""
    MODEL = "model"
    """CP-SAT (`victims_model.py`)."""
    GREEDY = "greedy"
    """All eligible units, less the units that a reprieve spares (`reprieve.py`)."""


EVERY_WAY = tuple(Way)


class Guard(StrEnum):
    """A protection that may prevent a plan which its rules allow (docs/rules/preemption.md 3.1, 3.4, 3.7).

    The value is also the reason in metrics.
    """

    SHARE = "share"
    """The plan would leave another tenant with less than its share (`preemption.acrossUsers`)."""
    SURPLUS = "surplus"
    """The plan would break a gang to place members above minMember (`preemption.surplusVictims`)."""
    HARM = "harm"
    """The victims hold too many accelerators for what the plan places (`protection.maxHarm`)."""
    ENTITLEMENT = "entitlement"
    """Consolidation would move units of tenants within their entitlement. Moves are not evictions, so no metric counts
    it."""


WAIVABLE = (Guard.SURPLUS, Guard.HARM, Guard.ENTITLEMENT)
"""Guards that a search may ignore, to find out whether a plan exists without them."""
WITHHOLDING = (Guard.SHARE, Guard.SURPLUS, Guard.HARM)
"""Guards that protect units from evictions."""

NO_GUARD: frozenset[Guard] = frozenset()
"""The usual value for the guards that a search ignores: none."""
