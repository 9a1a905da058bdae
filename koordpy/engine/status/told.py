"""What was said of which object, so that a warning that every round finds is said once.

An object that is made anew has another uid and is told again. Of one text so many objects are told at most: a template
with a slip makes thousands of pods that have it.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable

MOST_SUBJECTS = 100
"""Objects that are told of one text."""
MOST_TEXTS = 2048
"""Texts that are remembered; what falls out may be said again."""
MOST_A_MINUTE = 10
"""Texts that are said of one object in a minute: one that changes all the time would fill the log with others."""


class Told:
    """Texts, and whom they were said of."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds."""
        self._subjects: OrderedDict[str, set[Hashable]] = OrderedDict()
        self._clock = clock
        self._lately: OrderedDict[Hashable, deque[float]] = OrderedDict()
        """Subject -> when the last texts were said of it."""

    def is_enough(self, text: str) -> bool:
        """Whether nobody else is to be told of it."""
        return len(self._subjects.get(text, ())) >= MOST_SUBJECTS

    def is_new(self, subject: Hashable, text: str) -> bool:
        """Whether this is to be said; it counts as said then."""
        known = self._subjects.setdefault(text, set())
        self._subjects.move_to_end(text)
        if len(self._subjects) > MOST_TEXTS:
            self._subjects.popitem(last=False)
        if subject in known or self.is_enough(text) or self._is_loud(subject):
            return False
        known.add(subject)
        return True

    def _is_loud(self, subject: Hashable) -> bool:
        """Whether so much was said of an object lately that this has to wait; else it counts as said now."""
        now = self._clock()
        lately = self._lately.setdefault(subject, deque(maxlen=MOST_A_MINUTE))
        self._lately.move_to_end(subject)
        if len(self._lately) > MOST_TEXTS:
            self._lately.popitem(last=False)
        if len(lately) == MOST_A_MINUTE and now - lately[0] < 60.0:
            return True
        lately.append(now)
        return False
