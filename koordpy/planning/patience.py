"""How much of a round may go into searches: for victims, for units to move, for proofs that a mixed gang fits nowhere.

A live round is cut: once its time is used up, what fits is placed and its Bindings go out; units that found no room are
searched for in later rounds, as many as their time allows, one at least, and while they wait no other round searches.
A search under way is given up, and begun again later, where somebody came meanwhile: of one unit for so long at most.
Offline nothing is cut, so that the same input gives the same plan.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


class Interrupted(Exception):
    """A search was given up in the middle: somebody came who need not wait for it."""


class Interrupts:
    """Ends the search under way in another thread: between two steps, or in the middle of a solve."""

    def __init__(self, came: Callable[[], bool]) -> None:
        """came: whether it is to end; asked from both threads."""
        self.came = came
        self._stop: Callable[[], None] | None = None

    def step(self) -> None:
        """One step of a search; raises Interrupted where it is to end."""
        if self.came():
            raise Interrupted

    def solving(self, solve: Callable[[], T], stop: Callable[[], None]) -> T:
        """The answer of a solve, which `stop` ends from the other thread; raises Interrupted where it is to end."""
        self.step()
        self._stop = stop
        try:
            return solve()
        finally:
            self._stop = None
            self.step()

    def look(self) -> None:
        """Called by the other thread now and then: ends a solve that is to end."""
        stop = self._stop
        if stop is not None and self.came():
            stop()


NEVER = Interrupts(lambda: False)


@dataclass(frozen=True, slots=True)
class Patience:
    """The bound of one round."""

    searches: bool
    """Whether units that find no room are searched for until the time is used up; else they are deferred."""
    spent: Callable[[], bool]
    """Whether the round's time is used up; asked from the planner's thread. Never false again once it was true."""
    stops: bool = False
    """Whether the round ends then, after one unit at least; else it goes on placing what fits."""
    begins: Callable[[], None] = lambda: None
    """Called when the first unit is tried."""
    cut: Callable[[], bool] = lambda: False
    """Whether the round ends at once, after one unit at least: somebody came who need not wait for the rest of it."""
    gives_back: bool = True
    """Whether quotas are looked at that are to give back."""
    waiting: frozenset[str] = frozenset()
    """Units that wait for a search and are not tried in this round: their room is kept."""
    lapsed: frozenset[str] = frozenset()
    """Units whose room has been kept for long enough: it is anybody's."""
    interrupts: Interrupts = NEVER
    """Ends a search under way for somebody who came meanwhile."""
    clock: Callable[[], float] | None = None
    """Seconds, for what each unit takes."""
    firm: frozenset[str] = frozenset()
    """Units whose searches were given up for long enough: they are carried through."""

    def defers(self) -> bool:
        """Whether a search, or a hard proof, is left to another round now."""
        return not self.searches or (not self.stops and self.spent())
