"""What was said of which object, so that a warning that every round finds is said once.

An object that is made anew has another uid and is told again. Of one text so many objects of a namespace are told at
most: a template with a slip makes thousands of pods that have it. Namespaces are kept apart: what is said in one uses
up nothing that another needs.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable

MOST_SUBJECTS = 100
"""Objects of a namespace that are told of one text."""
MOST_TEXTS = 2048
"""Texts of a namespace that are remembered, and namespaces; what falls out may be said again."""
MOST_A_MINUTE = 10
"""Texts that are said of one object in a minute: one that changes all the time would fill the log with others."""
MOST_OF_A_NAMESPACE = 300
"""Texts that are said of the objects of one namespace in a minute: it may have more of them than are remembered."""


class Told:
    """Texts, and whom they were said of."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds."""
        self._clock = clock
        self._namespaces: OrderedDict[str, _Namespace] = OrderedDict()

    def is_said(self, subject: Hashable, text: str, namespace: str = "") -> bool:
        """Whether it was said already, of this object or of enough others."""
        known = self._namespaces.get(namespace)
        return known is not None and known.is_said(subject, text)

    def is_new(self, subject: Hashable, text: str, namespace: str = "") -> bool:
        """Whether this is to be said now; it counts as said then. What waits for a minute to pass is still new."""
        known = self._namespaces.setdefault(namespace, _Namespace())
        self._namespaces.move_to_end(namespace)
        if len(self._namespaces) > MOST_TEXTS:
            self._namespaces.popitem(last=False)
        return known.is_new(subject, text, self._clock())

    def forget(self, there: Callable[[Hashable], bool]) -> None:
        """Lets go of what was said of objects that are not there any more."""
        for namespace, known in list(self._namespaces.items()):
            if known.forget(there, self._clock()):
                del self._namespaces[namespace]


class _Namespace:
    """What was said of the objects of one namespace."""

    def __init__(self) -> None:
        self._subjects: OrderedDict[str, set[Hashable]] = OrderedDict()
        self._lately: OrderedDict[Hashable, deque[float]] = OrderedDict()
        """Subject -> when the last texts were said of it."""
        self._of_all: deque[float] = deque(maxlen=MOST_OF_A_NAMESPACE)

    def is_said(self, subject: Hashable, text: str) -> bool:
        told = self._subjects.get(text, ())
        return subject in told or len(told) >= MOST_SUBJECTS

    def is_new(self, subject: Hashable, text: str, now: float) -> bool:
        if self.is_said(subject, text):
            self._subjects.move_to_end(text)
            return False
        if _is_loud(self._of_all, now):
            return False
        lately = self._lately.setdefault(subject, deque(maxlen=MOST_A_MINUTE))
        self._lately.move_to_end(subject)
        if len(self._lately) > MOST_TEXTS:
            self._lately.popitem(last=False)
        if _is_loud(lately, now):
            return False
        lately.append(now)
        self._of_all.append(now)
        self._subjects.setdefault(text, set()).add(subject)
        self._subjects.move_to_end(text)
        if len(self._subjects) > MOST_TEXTS:
            self._subjects.popitem(last=False)
        return True

    def forget(self, there: Callable[[Hashable], bool], now: float) -> bool:
        """Whether nothing is left."""
        for text, subjects in list(self._subjects.items()):
            left = {subject for subject in subjects if there(subject)}
            if left:
                self._subjects[text] = left
            else:
                del self._subjects[text]
        for subject, lately in list(self._lately.items()):
            if not there(subject) or now - lately[-1] >= 60.0:
                del self._lately[subject]
        while self._of_all and now - self._of_all[0] >= 60.0:
            self._of_all.popleft()
        return not (self._subjects or self._lately or self._of_all)


def _is_loud(lately: deque[float], now: float) -> bool:
    """Whether as many texts as may be were said within a minute."""
    return len(lately) == lately.maxlen and now - lately[0] < 60.0
