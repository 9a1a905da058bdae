# SPDX-License-Identifier: Apache-2.0
"""Chooses which of many objects a metric names, so that the number of its label values is bounded.

An object stays chosen as long as it exists, so that the duration of an alert about it does not restart. If fewer than
the maximum are chosen, further objects are chosen in natural order. Choosing among n objects costs O(n), or O(n log
most) if further objects are chosen.
"""

import heapq
from collections.abc import Callable, Collection, Hashable
from typing import Generic, TypeVar

from koordpy.api.natural_order import natural_key

LETTERS = 320
"""Maximum length of a label value, in characters. Namespace and name of a Kubernetes object fit; the name of a gang in
an annotation may be longer and is cut."""


K = TypeVar("K", bound=Hashable)


class FewNames(Generic[K]):
    """Chooses at most `most` objects at a time."""

    def __init__(self, most: int, name: Callable[[K], str]) -> None:
        """name: returns the name of an object, by which objects are ordered."""
        self._most, self._name = most, name
        self._chosen: dict[K, None] = {}

    def choose(self, there: Collection[K]) -> list[K]:
        """Returns the objects to name, out of all existing objects; objects that were chosen before come first."""
        kept = [one for one in self._chosen if one in there]
        free = self._most - len(kept)
        if free > 0 and len(there) > len(kept):
            known = set(kept)
            others = (one for one in there if one not in known)
            kept += heapq.nsmallest(free, others, key=lambda one: natural_key(self._name(one)))
        self._chosen = dict.fromkeys(kept)
        return kept


def label(text: str) -> str:
    """Returns a tenant's text as a label value, cut to `LETTERS` characters."""
    return text if len(text) <= LETTERS else text[: LETTERS - 3] + "..."
