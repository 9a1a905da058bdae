"""How much of a round may go into searches: for victims, for units to move, for proofs that a mixed gang fits nowhere.

A live round is cut: once its time is used up, what fits is placed and its Bindings go out; units that found no room are
searched for in later rounds, as many as their time allows, one at least, and while they wait no other round searches.
Offline nothing is cut, so that the same input gives the same plan.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """The bound of one round."""

    searches: bool
    """Whether units that find no room are searched for until the time is used up; else they are deferred."""
    spent: Callable[[], bool]
    """Whether the round's time is used up; asked from the planner's thread. Never false again once it was true."""
    stops: bool = False
    """Whether the round ends then, after one unit at least; else it goes on placing what fits."""
    waiting: frozenset[str] = frozenset()
    """Units that wait for a search and are not tried in this round: their room is kept."""
    lapsed: frozenset[str] = frozenset()
    """Units whose room has been kept for long enough: it is anybody's."""

    def defers(self) -> bool:
        """Whether a search, or a hard proof, is left to another round now."""
        return not self.searches or (not self.stops and self.spent())
