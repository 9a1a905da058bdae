"""Capacity that is kept though no pod holds it yet: what for, and how a plan's Draft counts it.

Two things can be kept. A pod's own place, by a node name: whoever may not have it counts the pod as if it were there.
And amounts on nodes, which count as used by everybody.
"""

from enum import StrEnum


class Purpose(StrEnum):
    """What amounts on nodes are set aside for."""

    STARVING = "starving"
    """Nodes held for a job that has waited too long; for the rest of the round."""
    PROMISED = "promised"
    """The place of the unit that a start is promised to; for those that would not have ended by then."""
    SEARCHED = "searched"
    """What units could use that a search has not decided; for one attempt of a unit behind them."""
