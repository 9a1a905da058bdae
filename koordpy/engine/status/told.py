"""What was said of which object, so that a warning that every round finds is said once.

An object that is made anew has another uid and is told again. Of one text so many objects are told at most: a template
with a slip makes thousands of pods that have it.
"""

from collections import OrderedDict
from collections.abc import Hashable

MOST_SUBJECTS = 100
"""Objects that are told of one text."""
MOST_TEXTS = 2048
"""Texts that are remembered; what falls out may be said again."""


class Told:
    """Texts, and whom they were said of."""

    def __init__(self) -> None:
        self._subjects: OrderedDict[str, set[Hashable]] = OrderedDict()

    def is_enough(self, text: str) -> bool:
        """Whether nobody else is to be told of it."""
        return len(self._subjects.get(text, ())) >= MOST_SUBJECTS

    def is_new(self, subject: Hashable, text: str) -> bool:
        """Whether this is to be said; it counts as said then."""
        known = self._subjects.setdefault(text, set())
        self._subjects.move_to_end(text)
        if len(self._subjects) > MOST_TEXTS:
            self._subjects.popitem(last=False)
        if subject in known or self.is_enough(text):
            return False
        known.add(subject)
        return True
