"""Which of many objects a metric names: a bounded number of label sets, that changes as little as it can.

A name stays chosen as long as its object is there, so that an alert about it keeps its time. Free places go to the
first of the others in natural order. Choosing costs O(n) for n objects, and O(n log most) where places are free.
"""

import heapq
from collections.abc import Callable, Collection, Hashable
from typing import Generic, TypeVar

from koordpy.api.natural_order import natural_key

LETTERS = 320
"""Letters of a label's value: namespace and name of any object of Kubernetes; what gangs are called by annotations may
be longer."""


K = TypeVar("K", bound=Hashable)


class FewNames(Generic[K]):
    """At most `most` of the objects at a time."""

    def __init__(self, most: int, name: Callable[[K], str]) -> None:
        """name: of an object, by which the first are told."""
        self._most, self._name = most, name
        self._chosen: dict[K, None] = {}

    def choose(self, there: Collection[K]) -> list[K]:
        """The objects to be named, of all that are there; those that were chosen before come first."""
        kept = [one for one in self._chosen if one in there]
        free = self._most - len(kept)
        if free > 0 and len(there) > len(kept):
            known = set(kept)
            others = (one for one in there if one not in known)
            kept += heapq.nsmallest(free, others, key=lambda one: natural_key(self._name(one)))
        self._chosen = dict.fromkeys(kept)
        return kept


def label(text: str) -> str:
    """The value of a label that a tenant's text ends up in."""
    return text if len(text) <= LETTERS else text[: LETTERS - 3] + "..."
