"""How much of a round may go into searches: for victims, for units to move, for proofs that a mixed gang fits nowhere.

A live round is cut: first everything due is placed that fits, and its Bindings go out; units that found no room are
searched for in rounds of their own, as many as their time allows, one at least. Offline nothing is cut, so that the
same input gives the same plan.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """The bound of one round."""

    searches: bool
    """Whether units that find no room are searched for; else they are deferred."""
    spent: Callable[[], bool]
    """Whether the round's time is used up; asked from the planner's thread."""
    waiting: frozenset[str] = frozenset()
    """Units that wait for a search and are not tried in this round: their room is kept."""
    lapsed: frozenset[str] = frozenset()
    """Units whose room has been kept for long enough: it is anybody's."""
